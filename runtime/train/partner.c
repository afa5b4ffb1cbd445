/* partner.c - see partner.h. */
#include "train/partner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { PARTNER_TAG = 1, PARTNER_BYTES_TAG = (3 << 20) + 11 }; /* of the run's comm: as in side.c */
enum { WORDS_A_TIMEOUT = 4 }; /* how often a rank says that it is there, in the other's patience */
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

int partner_tell_bytes(struct partner *p, struct comm *comm, int64_t own, struct err *err)
{
    return comm_host_exchange(comm, &own, sizeof own, p->to, &p->file_bytes, sizeof p->file_bytes,
                              p->from, PARTNER_BYTES_TAG, err);
}

int partner_open(struct partner *p, const char *dir, int64_t comm_timeout_ms, struct err *err)
{
    p->word_ms = comm_timeout_ms / WORDS_A_TIMEOUT;
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
    int32_t rank;    /* whose file */
    uint32_t digest; /* once it is durable */
    int64_t step, header, total, at, n;
};

/* One way: where it is. */
struct way {
    int peer;     /* -1: it is over, or was none */
    int64_t next; /* byte of the file */
};

struct swap {
    struct partner *p;
    struct ckpt *own;
    const struct ckpt_image *image;
    struct way out, in; /* to the partner; from the ward */
    uint32_t digest;
    bool durable;
};

/* Is the file durable, if that is what the next piece waits for? */
static int hear_disk(struct swap *s, struct err *err)
{
    /* the ward is not to wait for this rank's disk while it has something to send */
    int64_t wait_ms = s->in.peer >= 0 && s->in.next > 0 ? 0 : s->p->word_ms;
    if (s->durable || s->out.peer < 0 || s->out.next >= s->image->header_bytes)
        return 0;
    int rc = ckpt_image_wait(s->own, clock_ms() + wait_ms, &s->digest, err);
    s->durable = rc > 0;
    return rc < 0 ? -1 : 0;
}

/* What goes next: nothing where that is over, or has to wait. */
static int next_head(struct swap *s, struct head *head, struct err *err)
{
    const struct ckpt_image *f = s->image;
    const struct train_identity *id = s->p->identity;
    if (hear_disk(s, err))
        return -1;
    int64_t at = s->out.next, left = ckpt_copy_end(f->header_bytes, f->total, at) - at;
    if (s->out.peer < 0 || (at < f->header_bytes && !s->durable))
        left = 0;
    *head = (struct head){.epoch = id->epoch,
                          .generation = id->generation,
                          .rank = id->rank,
                          .digest = s->digest,
                          .step = f->position.step,
                          .header = f->header_bytes,
                          .total = f->total,
                          .at = at,
                          .n = left < PARTNER_PIECE_BYTES ? left : PARTNER_PIECE_BYTES};
    return 0;
}

static int check_head(const struct swap *s, const struct head *h, struct err *err)
{
    const struct train_identity *id = s->p->identity;
    int64_t step = s->image->position.step;
    if (h->epoch == id->epoch && h->generation == id->generation && h->rank == s->p->from &&
        h->step == step && h->total == s->p->file_bytes && h->n >= 0 && h->n <= PARTNER_PIECE_BYTES)
        return 0;
    return err_set(
        err,
        "a piece of rank %d's checkpoint of epoch %u, generation %u, step %lld, %lld bytes, came, "
        "but this is the partner of rank %d in epoch %u, generation %u, step %lld, %lld bytes",
        h->rank, h->epoch, h->generation, (long long)h->step, (long long)h->total, s->p->from,
        id->epoch, id->generation, (long long)step, (long long)s->p->file_bytes);
}

/* A piece of the ward's file to the copy's writer. Takes data over. */
static int put(struct swap *s, const struct head *h, void *data, struct err *err)
{
    struct ckpt_copy_piece piece = {.step = h->step,
                                    .header = h->header,
                                    .total = h->total,
                                    .at = h->at,
                                    .n = h->n,
                                    .digest = h->digest,
                                    .data = data};
    if (ckpt_copy_put(s->p->copy, &piece, err))
        return -1;
    s->in.next = ckpt_copy_next(h->header, h->total, h->at + h->n);
    if (s->in.next < 0)
        s->in.peer = -1;
    return 0;
}

/* One piece each way, where there is a way. */
static int exchange(struct swap *s, struct comm *comm, struct err *err)
{
    struct head out, in = {0};
    int to = s->out.peer, from = s->in.peer;
    if (next_head(s, &out, err) ||
        comm_host_exchange(comm, &out, sizeof out, to, &in, sizeof in, from, PARTNER_TAG, err) ||
        (from >= 0 && check_head(s, &in, err)))
        return -1;
    to = out.n ? to : -1;
    from = in.n ? from : -1;
    void *data = from >= 0 ? malloc((size_t)in.n) : NULL;
    if (from >= 0 && !data)
        return err_set(err, "no memory for a piece of a checkpoint");
    if (comm_host_exchange(comm, to >= 0 ? s->image->bytes + out.at : NULL,
                           to >= 0 ? (size_t)out.n : 0, to, data, from >= 0 ? (size_t)in.n : 0,
                           from, PARTNER_TAG, err)) {
        free(data);
        return -1;
    }
    if (to >= 0) {
        s->out.next = ckpt_copy_next(out.header, out.total, out.at + out.n);
        if (s->out.next < 0)
            s->out.peer = -1;
    }
    return from >= 0 ? put(s, &in, data, err) : 0;
}

int partner_run(struct partner *p, struct ckpt *own, const struct ckpt_image *image,
                struct background *b, struct err *err)
{
    struct swap s = {.p = p,
                     .own = own,
                     .image = image,
                     .out = {.peer = p->to, .next = image->header_bytes},
                     .in = {.peer = p->from, .next = image->header_bytes}};
    while (s.out.peer >= 0 || s.in.peer >= 0) {
        if (exchange(&s, b->comm, err))
            return -1;
        background_moved(b);
    }
    return 0;
}

void partner_close(struct partner *p)
{
    if (!p->identity)
        return;
    ckpt_copy_close(p->copy);
    *p = (struct partner){.to = -1, .from = -1};
}
