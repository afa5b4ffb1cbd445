/* comm_cases.c - what a comm must do. See comm_cases.h. */
#include "comm_rig.h"

#include <stdlib.h>
#include <string.h>

/* ---- collectives ---- */

static int one_reduce(struct rank *r, const struct comm_group *g, enum kdtype dtype, size_t count,
                      enum comm_op op)
{
    struct pair buf;
    if (pair_open(r, &buf, dtype, count))
        return -1;
    for (size_t i = 0; i < count; i++)
        set_value(buf.host, dtype, i, input(dtype, r->rank, i, 1));
    pair_upload(r, &buf);
    int rv = comm_all_reduce(r->comm, g, r->stream, buf.dev, op, &r->err);
    for (size_t i = 0; i < count; i++)
        set_expected(buf.host, dtype, i, i, g, 1, op);
    if (!rv)
        rv = pair_compare(r, &buf, buf.host.any, op == COMM_SUM ? "sum" : "max");
    pair_close(r, &buf);
    return rv;
}

int all_reduce_right(struct rank *r, const struct comm_group *g, enum kdtype dtype, size_t count)
{
    return one_reduce(r, g, dtype, count, COMM_SUM) || one_reduce(r, g, dtype, count, COMM_MAX) ? -1
                                                                                                : 0;
}

int case_all_reduce(struct rank *r)
{
    return sweep(r, all_reduce_right);
}

static int one_reduce_scatter(struct rank *r, const struct comm_group *g, enum kdtype dtype,
                              size_t count)
{
    size_t total = count * (size_t)g->size;
    struct pair in, out;
    if (pair_open(r, &in, dtype, total) || pair_open(r, &out, dtype, count))
        return -1;
    for (size_t i = 0; i < total; i++)
        set_value(in.host, dtype, i, input(dtype, r->rank, i, 2));
    pair_upload(r, &in);
    int rv = comm_reduce_scatter(r->comm, g, r->stream, out.dev, in.dev, &r->err);
    for (size_t i = 0; i < count; i++)
        set_expected(out.host, dtype, i, (size_t)g->me * count + i, g, 2, COMM_SUM);
    if (!rv)
        rv = pair_compare(r, &out, out.host.any, "reduce-scatter");
    if (!rv)
        rv = pair_compare(r, &in, in.host.any, "input of reduce-scatter");
    pair_close(r, &in);
    pair_close(r, &out);
    return rv;
}

int case_reduce_scatter(struct rank *r)
{
    return sweep(r, one_reduce_scatter);
}

static int one_all_gather(struct rank *r, const struct comm_group *g, enum kdtype dtype,
                          size_t count)
{
    size_t total = count * (size_t)g->size;
    struct pair in, out, place;
    if (pair_open(r, &in, dtype, count) || pair_open(r, &out, dtype, total) ||
        pair_open(r, &place, dtype, total))
        return -1;
    for (size_t i = 0; i < count; i++)
        set_value(in.host, dtype, i, input(dtype, r->rank, i, 3));
    pair_upload(r, &in);
    struct kbuf mine = kbuf_slice(place.dev, (size_t)g->me * count, count);
    KSUBMIT(r->k, r->stream, COPY, copy, .out = mine, .in = in.dev);
    int rv = comm_all_gather(r->comm, g, r->stream, out.dev, in.dev, &r->err) ||
                     comm_all_gather(r->comm, g, r->stream, place.dev, mine, &r->err)
                 ? -1
                 : 0;
    for (size_t i = 0; i < total; i++)
        set_value(out.host, dtype, i, input(dtype, g->ranks[i / count], i % count, 3));
    if (!rv)
        rv = pair_compare(r, &out, out.host.any, "all-gather");
    if (!rv)
        rv = pair_compare(r, &place, out.host.any, "all-gather in place");
    pair_close(r, &in);
    pair_close(r, &out);
    pair_close(r, &place);
    return rv;
}

int case_all_gather(struct rank *r)
{
    return sweep(r, one_all_gather);
}

static int one_all_to_all(struct rank *r, const struct comm_group *g, enum kdtype dtype,
                          size_t count)
{
    size_t total = count * (size_t)g->size;
    struct pair in, out;
    if (pair_open(r, &in, dtype, total) || pair_open(r, &out, dtype, total))
        return -1;
    for (size_t i = 0; i < total; i++) {
        set_value(in.host, dtype, i, input(dtype, r->rank, i, 4));
        set_value(out.host, dtype, i,
                  input(dtype, g->ranks[i / count], (size_t)g->me * count + i % count, 4));
    }
    pair_upload(r, &in);
    int rv = comm_all_to_all(r->comm, g, r->stream, out.dev, in.dev, &r->err);
    if (!rv)
        rv = pair_compare(r, &out, out.host.any, "all-to-all");
    pair_close(r, &in);
    pair_close(r, &out);
    return rv;
}

int case_all_to_all(struct rank *r)
{
    return sweep(r, one_all_to_all);
}

static int one_broadcast(struct rank *r, const struct comm_group *g, enum kdtype dtype,
                         size_t count)
{
    for (int root = 0; root < g->size; root++) {
        struct pair buf;
        if (pair_open(r, &buf, dtype, count))
            return -1;
        for (size_t i = 0; i < count; i++)
            set_value(buf.host, dtype, i, input(dtype, r->rank, i, root));
        pair_upload(r, &buf);
        int rv = comm_broadcast(r->comm, g, r->stream, buf.dev, root, &r->err);
        for (size_t i = 0; i < count; i++)
            set_value(buf.host, dtype, i, input(dtype, g->ranks[root], i, root));
        if (!rv)
            rv = pair_compare(r, &buf, buf.host.any, "broadcast");
        pair_close(r, &buf);
        if (rv)
            return -1;
    }
    return 0;
}

int case_broadcast(struct rank *r)
{
    return sweep(r, one_broadcast);
}

/* ---- host memory ---- */

static void fill(unsigned char *data, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t word = hash(seed, (uint32_t)i, 77);
        memcpy(data + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word);
    }
}

static int host_gather(struct rank *r, const struct comm_group *g, size_t bytes)
{
    unsigned char *in = malloc(bytes + 1), *out = malloc(bytes * (size_t)g->size + 1);
    unsigned char *expected = malloc(bytes + 1);
    fill(in, bytes, (uint32_t)r->rank);
    int rv = comm_host_all_gather(r->comm, g, in, bytes, out, &r->err);
    for (int m = 0; m < g->size && !rv; m++) {
        fill(expected, bytes, (uint32_t)g->ranks[m]);
        if (memcmp(out + (size_t)m * bytes, expected, bytes))
            rv = err_set(&r->err, "host all-gather of %zu bytes: part %d differs", bytes, m);
    }
    free(in);
    free(out);
    free(expected);
    return rv;
}

/* Member m brings m * m * 1000 bytes (member 0 none). */
static int host_gatherv(struct rank *r, const struct comm_group *g, size_t max_bytes)
{
    void *parts[64];
    size_t lengths[64], bytes = (size_t)(g->me * g->me) * 1000;
    size_t longest = (size_t)((g->size - 1) * (g->size - 1)) * 1000;
    unsigned char *in = malloc(bytes + 1), *expected = malloc(longest + 1);
    fill(in, bytes, (uint32_t)g->me);
    int rv = comm_host_all_gatherv(r->comm, g, in, bytes, max_bytes, parts, lengths, &r->err);
    if (longest > max_bytes)
        rv = rv == -1 ? 0 : err_set(&r->err, "a part over max_bytes was taken");
    else
        for (int m = 0; m < g->size && !rv; m++) {
            size_t expected_bytes = (size_t)(m * m) * 1000;
            fill(expected, expected_bytes, (uint32_t)m);
            if (lengths[m] != expected_bytes || memcmp(parts[m], expected, expected_bytes) ||
                ((char *)parts[m])[expected_bytes] != 0)
                rv = err_set(&r->err, "host all-gatherv: part %d of %zu bytes differs", m,
                             lengths[m]);
        }
    for (int m = 0; m < g->size && longest <= max_bytes; m++)
        free(parts[m]);
    free(in);
    free(expected);
    return rv;
}

static int host_broadcast(struct rank *r, const struct comm_group *g, size_t bytes)
{
    unsigned char *data = malloc(bytes + 1), *expected = malloc(bytes + 1);
    int rv = 0;
    for (int root = 0; root < g->size && !rv; root++) {
        fill(data, bytes, (uint32_t)(1000 * r->rank));
        fill(expected, bytes, (uint32_t)(1000 * g->ranks[root]));
        rv = comm_host_broadcast(r->comm, g, data, bytes, root, &r->err);
        if (!rv && memcmp(data, expected, bytes))
            rv = err_set(&r->err, "host broadcast of %zu bytes from %d differs", bytes, root);
    }
    free(data);
    free(expected);
    return rv;
}

/* Bulk bytes round the ring: even places send first, and the last of an odd ring receives first.
 * Then all do both at once, and last one half each. */
static int host_ring(struct rank *r, size_t bytes)
{
    if (r->world == 1)
        return 0;
    unsigned char *out = malloc(bytes), *in = malloc(bytes), *expected = malloc(bytes);
    int to = (r->rank + 1) % r->world, from = (r->rank + r->world - 1) % r->world;
    fill(out, bytes, (uint32_t)r->rank);
    fill(expected, bytes, (uint32_t)from);
    int rv = 0;
    if (r->rank % 2 == 0)
        rv = comm_host_send(r->comm, out, bytes, to, 9, &r->err);
    if (!rv)
        rv = comm_host_recv(r->comm, in, bytes, from, 9, &r->err);
    if (!rv && r->rank % 2)
        rv = comm_host_send(r->comm, out, bytes, to, 9, &r->err);
    if (!rv && memcmp(in, expected, bytes))
        rv = err_set(&r->err, "host ring of %zu bytes differs", bytes);
    memset(in, 0, bytes);
    if (!rv)
        rv = comm_host_exchange(r->comm, out, bytes, to, in, bytes, from, 10, &r->err);
    if (!rv && memcmp(in, expected, bytes))
        rv = err_set(&r->err, "host exchange of %zu bytes differs", bytes);
    if (!rv && r->rank == 0)
        rv = comm_host_exchange(r->comm, out, bytes, 1, NULL, 0, -1, 10, &r->err);
    if (!rv && r->rank == 1)
        rv = comm_host_exchange(r->comm, NULL, 0, -1, in, bytes, 0, 10, &r->err);
    free(out);
    free(in);
    free(expected);
    return rv;
}

int case_host(struct rank *r)
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    static const size_t sizes[] = {0, 1, 13, 5000, 300001};
    for (size_t i = 0; i < N_OF(sizes); i++)
        if (host_gather(r, &g, sizes[i]) || host_broadcast(r, &g, sizes[i]))
            return -1;
    /* A ring of odd size has two neighbours that both send first; the second of them is last, and
     * its receiver, rank 0, comes to receive after its own send: no circle. */
    if (host_gatherv(r, &g, 1 << 20) || host_gatherv(r, &g, 500) || host_ring(r, 300001))
        return -1;
    for (int i = 0; i < 20; i++)
        if (comm_barrier(r->comm, &g, &r->err))
            return -1;
    return 0;
}

/* ---- several groups and streams ---- */

int case_mesh_groups(struct rank *r)
{
    struct mesh m;
    if (mesh_open(&m, (const int[MESH_AXES]){2, 1, 1, 2, 2}, r->rank, &r->err))
        return -1;
    int rv = 0;
    static const enum mesh_axis axes[] = {MESH_DATA, MESH_TENSOR, MESH_PIPELINE};
    for (int round = 0; round < 10 && !rv; round++)
        for (size_t a = 0; a < N_OF(axes) && !rv; a++)
            rv = all_reduce_right(r, &m.axis[axes[a]], K_F32, 777) ||
                         all_reduce_right(r, &m.stage, K_F64, 333)
                     ? -1
                     : 0;
    if (!rv)
        rv = comm_barrier(r->comm, &m.all, &r->err);
    mesh_close(&m);
    return rv;
}

int case_two_streams(struct rank *r)
{
    int ranks[64], rv = 0;
    struct comm_group g = everybody(r, ranks);
    struct kstream *streams[2] = {r->stream, kernels_stream_open(r->k, &r->err)};
    struct pair bufs[2];
    for (int b = 0; b < 2; b++) {
        if (pair_open(r, &bufs[b], K_F64, 500))
            return -1;
        for (size_t i = 0; i < 500; i++)
            set_value(bufs[b].host, K_F64, i, input(K_F64, r->rank, i, b));
        r->stream = streams[b];
        pair_upload(r, &bufs[b]);
    }
    for (int b = 0; b < 2 && !rv; b++)
        rv = comm_all_reduce(r->comm, &g, streams[b], bufs[b].dev, COMM_SUM, &r->err);
    for (int b = 0; b < 2; b++) {
        for (size_t i = 0; i < 500; i++)
            set_expected(bufs[b].host, K_F64, i, i, &g, b, COMM_SUM);
        r->stream = streams[b];
        if (!rv)
            rv = pair_compare(r, &bufs[b], bufs[b].host.any, "two streams");
        pair_close(r, &bufs[b]);
    }
    r->stream = streams[0];
    kernels_stream_close(r->k, streams[1]);
    return rv ? rv : comm_barrier(r->comm, &g, &r->err);
}

/* ---- soak ---- */

#define SOAK_MESSAGES 600
#define SOAK_WINDOW   5

struct under_way {
    struct comm_request *req;
    struct pair buf;
    uint32_t seed; /* of what must have come; 0: a send */
};

static size_t soak_count(uint32_t h)
{
    static const size_t size[] = {0, 1, 50, 1000, 3001, 20000, 70000};
    return size[h % N_OF(size)];
}

static int soak_finish(struct rank *r, struct under_way *u)
{
    int rv = comm_wait(r->comm, &u->req, &r->err);
    if (!rv && u->seed) {
        fill((unsigned char *)u->buf.host.any, u->buf.bytes, u->seed);
        rv = pair_compare(r, &u->buf, u->buf.host.any, "soak");
    }
    if (u->buf.host.any)
        pair_close(r, &u->buf);
    memset(u, 0, sizeof *u);
    return rv;
}

/* Message m goes from one rank to another, the same for all who look at the list. Everyone starts
 * its own in the order of the list and has at most SOAK_WINDOW under way: the oldest is waited for,
 * which cannot lock, because of all unfinished messages the first of the list is started by both.
 */
int case_soak(struct rank *r)
{
    struct under_way window[SOAK_WINDOW];
    memset(window, 0, sizeof window);
    int mine = 0, rv = 0, ranks[64];
    for (uint32_t m = 0; m < SOAK_MESSAGES && !rv; m++) {
        int src = (int)(hash(m, 1, 5) % (uint32_t)r->world);
        int dst = (src + 1 + (int)(hash(m, 2, 5) % (uint32_t)(r->world - 1))) % r->world;
        if (src != r->rank && dst != r->rank)
            continue;
        struct under_way *u = &window[mine++ % SOAK_WINDOW];
        size_t count = soak_count(hash(m, 3, 5));
        if ((rv = soak_finish(r, u)) || (rv = pair_open(r, &u->buf, K_I32, count)))
            break;
        uint32_t tag = hash(m, 4, 5) % 3;
        if (src == r->rank) {
            fill((unsigned char *)u->buf.host.any, u->buf.bytes, m + 1);
            pair_upload(r, &u->buf);
            rv = comm_send(r->comm, r->stream, u->buf.dev, dst, tag, &u->req, &r->err);
        } else {
            u->seed = m + 1;
            rv = comm_recv(r->comm, r->stream, u->buf.dev, src, tag, &u->req, &r->err);
        }
    }
    for (int i = 0; i < SOAK_WINDOW && !rv; i++)
        rv = soak_finish(r, &window[i]);
    struct comm_group g = everybody(r, ranks);
    return rv ? rv : comm_barrier(r->comm, &g, &r->err);
}
