/* partner.c - see partner.h. */
#include "train/partner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARTNER_TAG = 1 };
enum { PARTNER_PIECE_BYTES = 4 * 1024 * 1024 }; /* of one message: bounds both sides' memory */

/* ---- who is whose ---- */

static size_t leaf_length(const char *topology)
{
    const char *dot = strrchr(topology, '.');
    return dot ? (size_t)(dot - topology) : 0;
}

static bool same_leaf(const struct partner_seat *a, const struct partner_seat *b)
{
    size_t n = leaf_length(a->topology);
    return n == leaf_length(b->topology) && !memcmp(a->topology, b->topology, n);
}

static int compare_places(const void *x, const void *y)
{
    const struct partner_node *a = x, *b = y;
    if (a->leaf != b->leaf)
        return a->leaf < b->leaf ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

int partner_nodes(const struct partner_seat *seats, int world, struct partner_node *nodes,
                  int *largest)
{
    int n = 0;
    for (int r = 0; r < world; r++)
        if (!r || strcmp(seats[r].node, seats[r - 1].node))
            nodes[n++] = (struct partner_node){.seat = &seats[r], .first = r};
    *largest = 0;
    for (int i = 0; i < n; i++) {
        int leaf = 0, size = 0;
        while (!same_leaf(nodes[leaf].seat, nodes[i].seat))
            leaf++;
        nodes[i].leaf = leaf;
        for (int k = leaf; k < n; k++)
            size += same_leaf(nodes[k].seat, nodes[i].seat);
        if (size > *largest)
            *largest = size;
    }
    qsort(nodes, (size_t)n, sizeof *nodes, compare_places);
    return n;
}

/* A step on in that row by the size of the fullest leaf leaves one's own leaf, if that leaves room.
 *
 * Example: leaves a a a b b c, the fullest has 3: a->b, a->b, a->c, b->a, b->a, c->a. */
bool partner_choose(const struct partner_seat *seats, int world, int *partner)
{
    struct partner_node *nodes = calloc((size_t)world, sizeof *nodes);
    int largest = 0, n = nodes ? partner_nodes(seats, world, nodes, &largest) : 0;
    for (int r = 0; r < world; r++)
        partner[r] = -1;
    int ranks = n ? world / n : 0, shift = largest < n ? largest : 1;
    for (int i = 0; n > 1 && i < n; i++)
        for (int k = 0; k < ranks; k++)
            partner[nodes[i].first + k] = nodes[(i + shift) % n].first + k;
    free(nodes);
    return n > 1;
}

void partner_sit(const struct train_identity *identity, struct partner_seat *out)
{
    memset(out, 0, sizeof *out); /* it travels whole */
    snprintf(out->node, sizeof out->node, "%s", identity->node);
    snprintf(out->topology, sizeof out->topology, "%s",
             identity->topology ? identity->topology : "");
}

int partner_find(struct partner *p, struct comm *comm, const struct mesh *mesh,
                 const struct train_identity *identity, struct err *err)
{
    int world = mesh->world, rv = -1;
    struct partner_seat mine, *seats = calloc((size_t)world, sizeof *seats);
    int *partner = calloc((size_t)world, sizeof *partner);
    *p = (struct partner){.identity = identity, .to = -1, .from = -1};
    partner_sit(identity, &mine);
    if (!seats || !partner) {
        err_set(err, "no memory to choose partners");
    } else if (!comm_host_all_gather(comm, &mesh->all, &mine, sizeof mine, seats, err)) {
        rv = 0;
        partner_choose(seats, world, partner);
        p->to = partner[mesh->rank];
        for (int r = 0; r < world; r++)
            if (partner[r] == mesh->rank)
                p->from = r;
    }
    free(seats);
    free(partner);
    return rv;
}

int partner_open(struct partner *p, const char *dir, struct err *err)
{
    if (p->from < 0 || p->copy)
        return 0;
    struct ckpt_copy_options options = {.dir = dir,
                                        .run_id = p->identity->run_id,
                                        .rank = p->from,
                                        .epoch = p->identity->epoch,
                                        .generation = p->identity->generation};
    return ckpt_copy_open(&p->copy, &options, err);
}

/* ---- sending and receiving ---- */

/* In front of each piece. */
struct head {
    uint32_t epoch, generation;
    int32_t rank; /* whose file */
    uint32_t digest;
    int64_t step, total, at, n;
};

static void drop_place(struct partner *p)
{
    free(p->place.node);
    free(p->place.path);
    p->place = (struct ckpt_place){0};
}

int partner_begin(struct partner *p, struct ckpt *own, int64_t step, struct err *err)
{
    drop_place(p);
    if (ckpt_own_file(own, step, &p->place, err))
        return -1;
    p->step = step;
    return p->place.image
               ? 0
               : err_set(err, "%s is not in memory any more to be copied", p->place.path);
}

static int64_t piece_of(int64_t left)
{
    return left < PARTNER_PIECE_BYTES ? left : PARTNER_PIECE_BYTES;
}

static struct head head_of(const struct partner *p, int64_t at)
{
    return (struct head){.epoch = p->identity->epoch,
                         .generation = p->identity->generation,
                         .rank = p->identity->rank,
                         .digest = p->place.digest,
                         .step = p->step,
                         .total = p->place.bytes,
                         .at = at,
                         .n = piece_of(p->place.bytes - at)};
}

static int check_head(const struct partner *p, const struct head *h, struct err *err)
{
    const struct train_identity *id = p->identity;
    if (h->epoch == id->epoch && h->generation == id->generation && h->rank == p->from &&
        h->step == p->step && h->n > 0 && h->n <= PARTNER_PIECE_BYTES)
        return 0;
    return err_set(
        err,
        "a piece of rank %d's checkpoint of epoch %u, generation %u, step %lld came, but "
        "this is the partner of rank %d in epoch %u, generation %u, step %lld",
        h->rank, h->epoch, h->generation, (long long)h->step, p->from, id->epoch, id->generation,
        (long long)p->step);
}

/* One piece each way; to, from -1: not that way. in: its head. */
static int exchange(struct partner *p, struct comm *comm, int to, int64_t at, int from,
                    struct head *in, struct err *err)
{
    struct head out = head_of(p, at);
    const char *bytes = to >= 0 ? (const char *)p->place.image + at : NULL;
    if (comm_host_exchange(comm, &out, sizeof out, to, in, sizeof *in, from, PARTNER_TAG, err) ||
        (from >= 0 && check_head(p, in, err)))
        return -1;
    void *data = from >= 0 ? malloc((size_t)in->n) : NULL;
    if (from >= 0 && !data)
        return err_set(err, "no memory for a piece of a checkpoint");
    if (comm_host_exchange(comm, bytes, to >= 0 ? (size_t)out.n : 0, to, data,
                           from >= 0 ? (size_t)in->n : 0, from, PARTNER_TAG, err)) {
        free(data);
        return -1;
    }
    struct ckpt_copy_piece piece = {.step = in->step,
                                    .total = in->total,
                                    .at = in->at,
                                    .n = in->n,
                                    .digest = in->digest,
                                    .data = data};
    return from >= 0 ? ckpt_copy_put(p->copy, &piece, err) : 0;
}

int partner_run(struct partner *p, struct background *b, struct err *err)
{
    int to = p->to, from = p->from;
    for (int64_t at = 0; to >= 0 || from >= 0; at += PARTNER_PIECE_BYTES) {
        struct head in;
        if (exchange(p, b->comm, to, at, from, &in, err))
            return -1;
        background_moved(b);
        if (to >= 0 && at + PARTNER_PIECE_BYTES >= p->place.bytes)
            to = -1;
        if (from >= 0 && in.at + in.n >= in.total)
            from = -1;
    }
    drop_place(p);
    return 0;
}

void partner_close(struct partner *p)
{
    if (!p->identity)
        return;
    drop_place(p);
    ckpt_copy_close(p->copy);
    *p = (struct partner){.to = -1, .from = -1};
}
