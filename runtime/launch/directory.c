/* directory.c - see directory.h. */
#include "launch/directory.h"

#include <stdlib.h>
#include <string.h>

#include "launch/similar.h"

int directory_open(struct directory *d, int room, struct err *err)
{
    *d = (struct directory){.room = room, .world = room};
    d->ranks = calloc((size_t)room, sizeof *d->ranks);
    return d->ranks ? 0 : err_set(err, "out of memory for %d ranks", room);
}

static void drop_ask(struct directory_rank *r)
{
    free(r->ask.wanted);
    r->ask = (struct message_ask){0};
    r->asks = 0;
}

void directory_begin(struct directory *d, int world)
{
    for (int i = 0; d->ranks && i < d->room; i++) {
        wire_frame_drop(d->ranks[i].address);
        d->ranks[i].address = NULL;
        drop_ask(&d->ranks[i]);
    }
    free(d->first);
    d->first = NULL;
    d->first_bytes = d->bytes = 0;
    d->published = 0;
    d->world = world;
}

void directory_close(struct directory *d)
{
    directory_begin(d, 0);
    free(d->ranks);
    *d = (struct directory){0};
}

static int keep_first(struct directory *d, const void *address, size_t bytes)
{
    d->first = malloc(bytes + 1);
    if (!d->first)
        return -1;
    if (bytes)
        memcpy(d->first, address, bytes);
    d->first_bytes = bytes;
    return 0;
}

int directory_publish(struct directory *d, uint32_t rank, const void *address, size_t bytes,
                      struct err *err)
{
    size_t coded;
    if (rank >= (uint32_t)d->world || d->ranks[rank].address)
        return 0;
    struct wire_frame *f = wire_frame_new(0);
    if ((!d->first && keep_first(d, address, bytes)) || !f) {
        wire_frame_drop(f);
        return err_set(err, "the coordinator is out of memory");
    }
    similar_put(f, address, bytes, d->first, d->first_bytes);
    if (!wire_frame_payload(f, &coded)) {
        wire_frame_drop(f);
        return err_set(err, "the coordinator is out of memory");
    }
    d->ranks[rank].address = f;
    d->bytes += coded;
    if (d->bytes + d->first_bytes > WIRE_MAX_BYTES - 64)
        return err_set(err, "the ranks' addresses are too long for one answer");
    return ++d->published == d->world;
}

int directory_ask(struct directory *d, struct message_ask *ask)
{
    for (uint32_t i = 0; i < ask->n; i++)
        if (ask->wanted[i] >= (uint32_t)d->world)
            return -1;
    if (ask->who.rank >= (uint32_t)d->world)
        return -1;
    struct directory_rank *r = &d->ranks[ask->who.rank];
    drop_ask(r);
    r->ask = *ask;
    r->asks = 1;
    ask->wanted = NULL;
    return 0;
}

struct wire_frame *directory_answer(struct directory *d, uint32_t rank, int *failed)
{
    struct directory_rank *r = &d->ranks[rank];
    *failed = 0;
    if (d->published < d->world || rank >= (uint32_t)d->world || !r->asks)
        return NULL;
    struct wire_frame *f = message_answer(rank, r->ask.turn, r->ask.n, d->first, d->first_bytes);
    size_t coded;
    for (uint32_t i = 0; i < r->ask.n; i++) {
        const void *address = wire_frame_payload(d->ranks[r->ask.wanted[i]].address, &coded);
        wire_put_raw(f, address, coded);
    }
    drop_ask(r);
    *failed = !wire_frame_payload(f, &coded);
    if (!*failed)
        return f;
    wire_frame_drop(f);
    return NULL;
}
