/* exchange.c - see exchange.h. */
#include "launch/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "launch/message.h"
#include "launch/similar.h"

int exchange_open(struct exchange *x, int room, struct err *err)
{
    *x = (struct exchange){.room = room, .world = room};
    x->blobs = calloc((size_t)room, sizeof *x->blobs);
    x->lengths = calloc((size_t)room, sizeof *x->lengths);
    return x->blobs && x->lengths ? 0 : err_set(err, "out of memory for %d ranks", room);
}

static void drop_blobs(struct exchange *x)
{
    for (int i = 0; x->blobs && i < x->room; i++) {
        free(x->blobs[i]);
        x->blobs[i] = NULL;
    }
    x->count = 0;
    x->bytes = 0;
}

void exchange_close(struct exchange *x)
{
    drop_blobs(x);
    free(x->blobs);
    free(x->lengths);
    wire_frame_drop(x->answer);
    *x = (struct exchange){0};
}

void exchange_begin(struct exchange *x, int world)
{
    drop_blobs(x);
    wire_frame_drop(x->answer);
    x->answer = NULL;
    x->turn = 0;
    x->world = world;
}

enum exchange_outcome exchange_take(struct exchange *x, uint32_t rank, uint32_t turn,
                                    const void *blob, size_t bytes)
{
    if (x->answer && turn + 1 == x->turn)
        return EXCHANGE_AGAIN;
    if (turn != x->turn || rank >= (uint32_t)x->world)
        return EXCHANGE_STRANGE;
    if (x->blobs[rank])
        return EXCHANGE_KEPT;
    if (x->bytes + bytes + SIMILAR_MORE_BYTES * (size_t)x->world > WIRE_MAX_BYTES - 64)
        return EXCHANGE_TOO_LONG;
    x->blobs[rank] = malloc(bytes + 1);
    if (!x->blobs[rank])
        return EXCHANGE_NO_MEMORY;
    if (bytes)
        memcpy(x->blobs[rank], blob, bytes);
    x->lengths[rank] = bytes;
    x->bytes += bytes;
    if (++x->count < x->world)
        return EXCHANGE_KEPT;
    wire_frame_drop(x->answer);
    x->answer = message_exchanged(x->turn, (uint32_t)x->world, x->blobs, x->lengths);
    drop_blobs(x);
    x->turn++;
    return x->answer ? EXCHANGE_DONE : EXCHANGE_NO_MEMORY;
}
