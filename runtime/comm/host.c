/* host.c - collectives on host memory: decisions, addresses, sizes, and the barrier.
 *
 * Small things, so each is one exchange of everybody with everybody, but for the broadcast (a
 * binomial tree: log2 n rounds and no rank sends to all) and the barrier (in round k each rank
 * tells the one 2^k places on, so after log2 n rounds everyone has heard, through others, of all).
 */
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

static uint32_t tag_of(const struct comm_group *group, uint16_t sequence, uint32_t part)
{
    return wire_tag_collective(group->id, sequence, part);
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
        exchange_parts(c, group, tag_of(group, sequence, 0), in, out, lengths, err))
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
