/* host.c - collectives on host memory: decisions, addresses, sizes, and the barrier.
 *
 * No rank of a large group talks to all others: connections and addresses would grow with the
 * square of the job. The broadcast is a binomial tree; in the barrier's round k each rank tells the
 * one 2^k places on; and a gathering of more than COMM_FLAT parts doubles what each has in each
 * round (Bruck et al. 1997, "Efficient Algorithms for All-to-All Communications in Multiport
 * Message-Passing Systems"): with d parts it takes those of the one d places on. So in all of them
 * a rank's peers are those 2^k places before and behind it. Small groups gather in one exchange of
 * everybody with everybody: there it counts how often a rank must wake up. */
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

static uint32_t tag_of(const struct comm_group *group, uint16_t sequence, uint32_t part)
{
    return wire_tag_collective(group->id, sequence, part);
}

/* ---- rounds ---- */

/* Parts of all members, in the order me, me + 1, ... round the group: part i is [at[i], at[i + 1])
 * of data. Mine is there; the others come. */
struct rounds {
    unsigned char *data;
    size_t *at; /* size + 1 */
};

static int rounds_open(struct rounds *r, struct comm *c, const struct comm_group *group,
                       const size_t *lengths, size_t length, struct err *err)
{
    int n = group->size;
    r->data = NULL;
    r->at = calloc((size_t)n + 1, sizeof *r->at);
    for (int i = 0; r->at && i < n; i++)
        r->at[i + 1] = r->at[i] + (lengths ? lengths[(group->me + i) % n] : length);
    if (r->at)
        r->data = malloc(r->at[n] + 1);
    return r->data ? 0 : comm_fail(c, err, "rank %d: out of memory for %d parts", c->rank, n);
}

static void rounds_close(struct rounds *r)
{
    free(r->data);
    free(r->at);
}

static int rounds_run(struct rounds *r, struct comm *c, const struct comm_group *group,
                      uint16_t sequence, struct err *err)
{
    int n = group->size;
    uint32_t round = 0;
    for (int have = 1; have < n; have *= 2, round++) {
        int take = have < n - have ? have : n - have;
        uint32_t tag = tag_of(group, sequence, round);
        size_t to = r->at[have], bytes = r->at[have + take] - to;
        if ((bytes && comm_add_recv(c, r->data + to, bytes, group->ranks[(group->me + have) % n],
                                    tag, err)) ||
            (r->at[take] && comm_add_send(c, r->data, r->at[take],
                                          group->ranks[(group->me + n - have) % n], tag, err)) ||
            comm_wait_all(c, err))
            return -1;
    }
    return 0;
}

/* ---- parts of one size ---- */

static int gather_far(struct comm *c, const struct comm_group *group, uint16_t sequence,
                      const void *in, size_t bytes, unsigned char *out, struct err *err)
{
    struct rounds r;
    int n = group->size, rv = rounds_open(&r, c, group, NULL, bytes, err);
    if (!rv)
        memcpy(r.data, in, bytes);
    if (!rv && !(rv = rounds_run(&r, c, group, sequence, err)))
        for (int i = 0; i < n; i++)
            memcpy(out + (size_t)((group->me + i) % n) * bytes, r.data + r.at[i], bytes);
    rounds_close(&r);
    return rv;
}

int comm_host_all_gather(struct comm *c, const struct comm_group *group, const void *in,
                         size_t bytes, void *out, struct err *err)
{
    uint16_t sequence;
    if (comm_enter(c, group, "host all-gather", &sequence, err))
        return -1;
    uint32_t tag = tag_of(group, sequence, 0);
    unsigned char *parts = out;
    int n = group->size, me = group->me;
    if (!bytes)
        return 0;
    if (n > COMM_FLAT)
        return gather_far(c, group, sequence, in, bytes, parts, err);
    for (int step = 1; step < n; step++) {
        int from = (me + n - step) % n;
        if (comm_add_recv(c, parts + (size_t)from * bytes, bytes, group->ranks[from], tag, err))
            return -1;
    }
    for (int step = 1; step < n; step++)
        if (comm_add_send(c, in, bytes, group->ranks[(me + step) % n], tag, err))
            return -1;
    if (comm_wait_all(c, err))
        return -1;
    memmove(parts + (size_t)me * bytes, in, bytes);
    return 0;
}

/* ---- parts of any size ---- */

/* All members hold the same lengths, so all come to the same answer. */
static int check_lengths(const struct comm_group *group, const uint64_t *lengths, size_t max_bytes,
                         struct err *err)
{
    for (int i = 0; i < group->size; i++)
        if (lengths[i] > max_bytes)
            return err_set(err, "comm: rank %d brings %llu bytes to a gathering of at most %zu",
                           group->ranks[i], (unsigned long long)lengths[i], max_bytes);
    return 0;
}

static int exchange_parts_far(struct comm *c, const struct comm_group *group, uint16_t sequence,
                              const void *in, void **out, const size_t *lengths, struct err *err)
{
    struct rounds r;
    int n = group->size, rv = rounds_open(&r, c, group, lengths, 0, err);
    if (!rv && lengths[group->me])
        memcpy(r.data, in, lengths[group->me]);
    if (!rv && !(rv = rounds_run(&r, c, group, sequence, err)))
        for (int i = 0; i < n; i++)
            memcpy(out[(group->me + i) % n], r.data + r.at[i], r.at[i + 1] - r.at[i]);
    rounds_close(&r);
    return rv;
}

static int exchange_parts(struct comm *c, const struct comm_group *group, uint32_t tag,
                          const void *in, void **out, const size_t *lengths, struct err *err)
{
    int n = group->size, me = group->me;
    for (int step = 1; step < n; step++) {
        int from = (me + n - step) % n;
        if (lengths[from] &&
            comm_add_recv(c, out[from], lengths[from], group->ranks[from], tag, err))
            return -1;
    }
    for (int step = 1; step < n && lengths[me]; step++)
        if (comm_add_send(c, in, lengths[me], group->ranks[(me + step) % n], tag, err))
            return -1;
    if (comm_wait_all(c, err))
        return -1;
    if (lengths[me])
        memcpy(out[me], in, lengths[me]);
    return 0;
}

static int alloc_parts(struct comm *c, int n, void **out, const size_t *lengths, struct err *err)
{
    for (int i = 0; i < n; i++)
        if (!(out[i] = calloc(1, lengths[i] + 1)))
            return comm_fail(c, err, "rank %d: out of memory for a part of %zu bytes", c->rank,
                             lengths[i]);
    return 0;
}

int comm_host_all_gatherv(struct comm *c, const struct comm_group *group, const void *in,
                          size_t bytes, size_t max_bytes, void **out, size_t *lengths,
                          struct err *err)
{
    int n = group->size, rv = -1;
    uint64_t mine = bytes, *all = calloc((size_t)n, sizeof *all);
    for (int i = 0; i < n; i++)
        out[i] = NULL;
    if (!all)
        return comm_fail(c, err, "rank %d: out of memory for %d lengths", c->rank, n);
    uint16_t sequence;
    if (comm_host_all_gather(c, group, &mine, sizeof mine, all, err) ||
        check_lengths(group, all, max_bytes, err) ||
        comm_enter(c, group, "host all-gather", &sequence, err))
        goto fail;
    for (int i = 0; i < n; i++)
        lengths[i] = (size_t)all[i];
    if (alloc_parts(c, n, out, lengths, err) ||
        (n > COMM_FLAT
             ? exchange_parts_far(c, group, sequence, in, out, lengths, err)
             : exchange_parts(c, group, tag_of(group, sequence, 0), in, out, lengths, err)))
        goto fail;
    rv = 0;
fail:
    for (int i = 0; rv && i < n; i++) {
        free(out[i]);
        out[i] = NULL;
    }
    free(all);
    return rv;
}

/* ---- broadcast and barrier ---- */

/* Places are counted from the root. Place p hears from p without its lowest bit, and tells p + 2^k
 * for every 2^k below that bit, the farthest (whose tree is largest) first. */
int comm_host_broadcast(struct comm *c, const struct comm_group *group, void *data, size_t bytes,
                        int root_index, struct err *err)
{
    uint16_t sequence;
    int n = group->size;
    if (root_index < 0 || root_index >= n)
        return err_set(err, "comm: broadcast: root %d is not in a group of %d", root_index, n);
    if (comm_enter(c, group, "broadcast", &sequence, err))
        return -1;
    uint32_t tag = tag_of(group, sequence, 0);
    int place = (group->me - root_index + n) % n, bit = 1;
    while (bit < n && !(place & bit))
        bit *= 2;
    if (!bytes)
        return 0;
    if (place) {
        int from = (place - bit + root_index) % n;
        if (comm_add_recv(c, data, bytes, group->ranks[from], tag, err) || comm_wait_all(c, err))
            return -1;
    }
    for (bit /= 2; bit; bit /= 2)
        if (place + bit < n &&
            comm_add_send(c, data, bytes, group->ranks[(place + bit + root_index) % n], tag, err))
            return -1;
    return comm_wait_all(c, err);
}

int comm_barrier(struct comm *c, const struct comm_group *group, struct err *err)
{
    uint16_t sequence;
    if (comm_enter(c, group, "barrier", &sequence, err))
        return -1;
    int n = group->size;
    uint32_t round = 0;
    for (int reach = 1; reach < n; reach *= 2, round++) {
        uint32_t tag = tag_of(group, sequence, round);
        int to = group->ranks[(group->me + reach) % n];
        int from = group->ranks[(group->me + n - reach) % n];
        if (comm_add_recv(c, NULL, 0, from, tag, err) || comm_add_send(c, NULL, 0, to, tag, err) ||
            comm_wait_all(c, err))
            return -1;
    }
    return 0;
}
