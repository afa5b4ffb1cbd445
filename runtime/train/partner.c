/* partner.c - see partner.h. */
#include "train/partner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARTNER_TAG = (3 << 20) + 1 };            /* beside reshard's */
enum { PARTNER_PIECE_BYTES = 16 * 1024 * 1024 }; /* of one message: bounds both sides' memory */

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
    *p = (struct partner){
        .comm = comm, .identity = identity, .to = -1, .from = -1, .sent = -1, .fd = -1, .step = -1};
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
    p->piece = malloc(PARTNER_PIECE_BYTES);
    if (!p->piece)
        return err_set(err, "no memory for a piece of a checkpoint");
    return ckpt_copy_open(&p->copy, &options, err);
}

/* ---- sending and receiving ---- */

/* In front of each piece. n 0: there is none. */
struct head {
    uint32_t epoch, generation;
    int32_t rank; /* whose file */
    uint32_t digest;
    int64_t step, total, at, n;
    int32_t all; /* with this every finished file has gone */
    int32_t unused;
};

static void end_file(struct partner *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    free(p->place.node);
    free(p->place.path);
    p->place = (struct ckpt_place){0};
}

/* The newest finished file, if it has not gone yet: those before it have. */
static int begin_file(struct partner *p, struct ckpt *own, struct err *err)
{
    int64_t step;
    if (ckpt_finished(own, &step, err))
        return -1;
    if (p->fd >= 0 || step <= p->sent)
        return 0;
    if (ckpt_own_file(own, step, &p->place, err))
        return -1;
    p->step = step;
    p->at = 0;
    p->fd = open(p->place.path, O_RDONLY | O_CLOEXEC);
    return p->fd < 0 ? err_set_errno(err, errno, "%s", p->place.path) : 0;
}

static int read_piece(struct partner *p, int64_t bytes, struct err *err)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(p->fd, (char *)p->piece + done, (size_t)(bytes - done), p->at + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set_errno(err, n ? errno : EIO, "reading %s", p->place.path);
        done += n;
    }
    return 0;
}

/* What goes now: its head, and its bytes in p->piece. */
static int next_piece(struct partner *p, struct ckpt *own, int64_t bytes, struct head *head,
                      struct err *err)
{
    *head = (struct head){.epoch = p->identity->epoch,
                          .generation = p->identity->generation,
                          .rank = p->identity->rank,
                          .all = 1};
    if (begin_file(p, own, err))
        return -1;
    if (p->fd < 0)
        return 0;
    int64_t left = p->place.bytes - p->at;
    head->n = left < bytes ? left : bytes;
    head->step = p->step;
    head->total = p->place.bytes;
    head->at = p->at;
    head->digest = p->place.digest;
    head->all = head->n == left;
    if (read_piece(p, head->n, err))
        return -1;
    p->at += head->n;
    if (head->all) {
        p->sent = p->step;
        end_file(p);
    }
    return 0;
}

static int check_head(const struct partner *p, const struct head *h, struct err *err)
{
    const struct train_identity *id = p->identity;
    if (h->epoch == id->epoch && h->generation == id->generation && h->rank == p->from &&
        h->n >= 0 && h->n <= PARTNER_PIECE_BYTES)
        return 0;
    return err_set(err,
                   "a piece of rank %d's checkpoint of epoch %u, generation %u came, but this is "
                   "the partner of rank %d in epoch %u, generation %u",
                   h->rank, h->epoch, h->generation, p->from, id->epoch, id->generation);
}

/* One message each way; to, from -1: not that way. */
static int exchange(struct partner *p, struct ckpt *own, int to, int from, int64_t bytes,
                    struct head *out, struct head *in, struct err *err)
{
    *in = *out = (struct head){.all = 1};
    if ((to >= 0 && next_piece(p, own, bytes, out, err)) ||
        comm_host_exchange(p->comm, out, sizeof *out, to, in, sizeof *in, from, PARTNER_TAG, err) ||
        (from >= 0 && check_head(p, in, err)))
        return -1;
    void *data = in->n ? malloc((size_t)in->n) : NULL;
    if (in->n && !data)
        return err_set(err, "no memory for a piece of a checkpoint");
    if (comm_host_exchange(p->comm, p->piece, (size_t)out->n, out->n ? to : -1, data, (size_t)in->n,
                           in->n ? from : -1, PARTNER_TAG, err)) {
        free(data);
        return -1;
    }
    struct ckpt_copy_piece piece = {.step = in->step,
                                    .total = in->total,
                                    .at = in->at,
                                    .n = in->n,
                                    .digest = in->digest,
                                    .data = data};
    return in->n ? ckpt_copy_put(p->copy, &piece, err) : 0;
}

int partner_turn(struct partner *p, struct ckpt *own, int64_t bytes, struct err *err)
{
    struct head out, in;
    if (p->to < 0)
        return 0;
    if (bytes > PARTNER_PIECE_BYTES)
        bytes = PARTNER_PIECE_BYTES;
    return exchange(p, own, p->to, p->from, bytes, &out, &in, err);
}

int partner_settle(struct partner *p, struct ckpt *own, struct err *err)
{
    int to = p->to, from = p->from;
    while (to >= 0 || from >= 0) {
        struct head out, in;
        if (exchange(p, own, to, from, PARTNER_PIECE_BYTES, &out, &in, err))
            return -1;
        to = out.all ? -1 : to;
        from = in.all ? -1 : from;
    }
    return 0;
}

void partner_close(struct partner *p)
{
    if (!p->comm)
        return;
    end_file(p);
    ckpt_copy_close(p->copy);
    free(p->piece);
    *p = (struct partner){.to = -1, .from = -1, .sent = -1, .fd = -1, .step = -1};
}
