#include "comm_cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/* Long enough for a loaded machine; only a hang gets that far. */
#define PATIENT_MS 60000
/* A deadline that is meant to pass. */
#define SHORT_MS 300

/* ---- running ---- */

int run_rank(const struct backend *backend, void *shared, struct rank *r, comm_case run)
{
    int rv = -1;
    r->k = kernels_open_cpu(1, &r->err);
    if (r->k && backend->deferred)
        r->k = kernels_open_deferred(r->k, backend->deferred + (uint64_t)r->rank, &r->err);
    r->stream = r->k ? kernels_stream_open(r->k, &r->err) : NULL;
    r->comm = r->stream ? backend->join(shared, r->k, r->rank, r->world, &r->err) : NULL;
    if (!r->comm)
        goto out;
    comm_set_timeout_ms(r->comm, PATIENT_MS);
    rv = run(r);
out:
    comm_close(r->comm);
    if (r->stream)
        kernels_stream_close(r->k, r->stream);
    if (r->k)
        kernels_close(r->k);
    return rv;
}

struct thread {
    pthread_t id;
    const struct backend *backend;
    void *shared;
    struct rank rank;
    comm_case run;
    int rv;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    t->rv = run_rank(t->backend, t->shared, &t->rank, t->run);
    return NULL;
}

int run_threads(const struct backend *backend, int world, comm_case run)
{
    struct thread *threads = calloc((size_t)world, sizeof *threads);
    void *shared = backend->world_open(world);
    int rv = shared && threads ? 0 : -1;
    for (int i = 0; i < world && !rv; i++) {
        threads[i] = (struct thread){.backend = backend, .shared = shared, .run = run};
        threads[i].rank.rank = i;
        threads[i].rank.world = world;
        if (pthread_create(&threads[i].id, NULL, thread_main, &threads[i]))
            abort();
    }
    for (int i = 0; i < world && !rv; i++)
        pthread_join(threads[i].id, NULL);
    for (int i = 0; i < world; i++) {
        if (!threads[i].rv)
            continue;
        fprintf(stderr, "world %d, rank %d: %s\n", world, i, threads[i].rank.err.text);
        rv = -1;
    }
    if (shared)
        backend->world_close(shared);
    free(threads);
    return rv;
}

/* ---- values ---- */

static uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t x = ((uint64_t)a << 40) ^ ((uint64_t)b << 20) ^ c;
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

/* Magnitudes that differ by 2^24, so that another order of addition has other bits. */
static double value(int rank, size_t i, int salt)
{
    uint32_t h = hash((uint32_t)rank + 1, (uint32_t)i, (uint32_t)salt);
    double x = (double)(h % 4001) - 2000;
    for (uint32_t up = h / 4001 % 24; up; up--)
        x *= 2;
    return x / 3;
}

union host {
    double *f64;
    float *f32;
    int32_t *i32;
    void *any;
};

static void set_value(union host h, enum kdtype dtype, size_t i, double x)
{
    if (dtype == K_F64)
        h.f64[i] = x;
    else if (dtype == K_F32)
        h.f32[i] = (float)x;
    else
        h.i32[i] = (int32_t)x;
}

static double input(enum kdtype dtype, int rank, size_t i, int salt)
{
    double x = value(rank, i, salt);
    return dtype == K_I32 ? x / 64 : x; /* a sum of 8 stays below 2^31 */
}

/* What rank-order addition (or maximum) of the members' inputs gives at element i. */
#define COMBINE(type, out)                                                                         \
    do {                                                                                           \
        type all = (type)input(dtype, g->ranks[0], i, salt);                                       \
        for (int m = 1; m < g->size; m++) {                                                        \
            type one = (type)input(dtype, g->ranks[m], i, salt);                                   \
            all = op == COMM_SUM ? all + one : one > all ? one : all;                              \
        }                                                                                          \
        out = all;                                                                                 \
    } while (0)

static void set_expected(union host h, enum kdtype dtype, size_t at, size_t i,
                         const struct comm_group *g, int salt, enum comm_op op)
{
    if (dtype == K_F64)
        COMBINE(double, h.f64[at]);
    else if (dtype == K_F32)
        COMBINE(float, h.f32[at]);
    else
        COMBINE(int32_t, h.i32[at]);
}

/* ---- buffers ---- */

struct pair { /* a device buffer and its host image */
    struct kbuf dev;
    union host host;
    size_t bytes;
};

static int pair_open(struct rank *r, struct pair *p, enum kdtype dtype, size_t count)
{
    p->bytes = count * kdtype_bytes(dtype);
    p->host.any = calloc(1, p->bytes + 1);
    return kernels_alloc(r->k, dtype, count, &p->dev, &r->err);
}

static void pair_close(struct rank *r, struct pair *p)
{
    kernels_free(r->k, &p->dev);
    free(p->host.any);
}

static void upload(struct rank *r, struct pair *p)
{
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = p->dev, .host = p->host.any);
}

static int compare(struct rank *r, const struct pair *p, const void *expected, const char *what)
{
    unsigned char *got = malloc(p->bytes + 1);
    KSUBMIT(r->k, r->stream, DOWNLOAD, download, .in = p->dev, .host = got);
    int rv = kernels_stream_sync(r->k, r->stream, clock_ms() + PATIENT_MS, &r->err);
    size_t at = 0, size = kdtype_bytes(p->dev.dtype);
    while (!rv && at < p->bytes && got[at] == ((const unsigned char *)expected)[at])
        at++;
    if (!rv && at < p->bytes)
        rv = err_set(&r->err, "%s: %zu of %s: element %zu differs", what, p->dev.count,
                     kdtype_name(p->dev.dtype), at / size);
    free(got);
    return rv;
}

static const enum kdtype dtypes[] = {K_F64, K_F32, K_I32};
/* Whole exchange and slices, fewer elements than ranks, counts that do not divide. */
static const size_t counts[] = {1, 7, 1001, 4099, 20011};
#define N_OF(array) (sizeof(array) / sizeof(array)[0])

static struct comm_group everybody(const struct rank *r, int *ranks)
{
    for (int i = 0; i < r->world; i++)
        ranks[i] = i;
    return (struct comm_group){5, r->world, r->rank, ranks};
}

/* Calls `one` for all dtypes and counts. */
static int sweep(struct rank *r,
                 int (*one)(struct rank *, const struct comm_group *, enum kdtype, size_t))
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    for (size_t d = 0; d < N_OF(dtypes); d++)
        for (size_t n = 0; n < N_OF(counts); n++)
            if (one(r, &g, dtypes[d], counts[n]))
                return -1;
    return comm_barrier(r->comm, &g, &r->err);
}

/* ---- collectives ---- */

static int one_reduce(struct rank *r, const struct comm_group *g, enum kdtype dtype, size_t count,
                      enum comm_op op)
{
    struct pair buf;
    if (pair_open(r, &buf, dtype, count))
        return -1;
    for (size_t i = 0; i < count; i++)
        set_value(buf.host, dtype, i, input(dtype, r->rank, i, 1));
    upload(r, &buf);
    int rv = comm_all_reduce(r->comm, g, r->stream, buf.dev, op, &r->err);
    for (size_t i = 0; i < count; i++)
        set_expected(buf.host, dtype, i, i, g, 1, op);
    if (!rv)
        rv = compare(r, &buf, buf.host.any, op == COMM_SUM ? "sum" : "max");
    pair_close(r, &buf);
    return rv;
}

static int one_all_reduce(struct rank *r, const struct comm_group *g, enum kdtype dtype,
                          size_t count)
{
    return one_reduce(r, g, dtype, count, COMM_SUM) || one_reduce(r, g, dtype, count, COMM_MAX) ? -1
                                                                                                : 0;
}

int case_all_reduce(struct rank *r)
{
    return sweep(r, one_all_reduce);
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
    upload(r, &in);
    int rv = comm_reduce_scatter(r->comm, g, r->stream, out.dev, in.dev, &r->err);
    for (size_t i = 0; i < count; i++)
        set_expected(out.host, dtype, i, (size_t)g->me * count + i, g, 2, COMM_SUM);
    if (!rv)
        rv = compare(r, &out, out.host.any, "reduce-scatter");
    if (!rv)
        rv = compare(r, &in, in.host.any, "input of reduce-scatter");
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
    upload(r, &in);
    struct kbuf mine = kbuf_slice(place.dev, (size_t)g->me * count, count);
    KSUBMIT(r->k, r->stream, COPY, copy, .out = mine, .in = in.dev);
    int rv = comm_all_gather(r->comm, g, r->stream, out.dev, in.dev, &r->err) ||
                     comm_all_gather(r->comm, g, r->stream, place.dev, mine, &r->err)
                 ? -1
                 : 0;
    for (size_t i = 0; i < total; i++)
        set_value(out.host, dtype, i, input(dtype, g->ranks[i / count], i % count, 3));
    if (!rv)
        rv = compare(r, &out, out.host.any, "all-gather");
    if (!rv)
        rv = compare(r, &place, out.host.any, "all-gather in place");
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
    upload(r, &in);
    int rv = comm_all_to_all(r->comm, g, r->stream, out.dev, in.dev, &r->err);
    if (!rv)
        rv = compare(r, &out, out.host.any, "all-to-all");
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
        upload(r, &buf);
        int rv = comm_broadcast(r->comm, g, r->stream, buf.dev, root, &r->err);
        for (size_t i = 0; i < count; i++)
            set_value(buf.host, dtype, i, input(dtype, g->ranks[root], i, root));
        if (!rv)
            rv = compare(r, &buf, buf.host.any, "broadcast");
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
            rv = one_all_reduce(r, &m.axis[axes[a]], K_F32, 777) ||
                         one_all_reduce(r, &m.stage, K_F64, 333)
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
        upload(r, &bufs[b]);
    }
    for (int b = 0; b < 2 && !rv; b++)
        rv = comm_all_reduce(r->comm, &g, streams[b], bufs[b].dev, COMM_SUM, &r->err);
    for (int b = 0; b < 2; b++) {
        for (size_t i = 0; i < 500; i++)
            set_expected(bufs[b].host, K_F64, i, i, &g, b, COMM_SUM);
        r->stream = streams[b];
        if (!rv)
            rv = compare(r, &bufs[b], bufs[b].host.any, "two streams");
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
        rv = compare(r, &u->buf, u->buf.host.any, "soak");
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
            upload(r, &u->buf);
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

/* ---- failures ---- */

/* The call must have failed, its text must have all of `parts` in it, and the next call must fail
 * with the same text. */
static int expect_failure(struct rank *r, int rv, const char *const *parts, int n)
{
    struct err first = r->err, second = {""};
    if (!rv)
        return err_set(&r->err, "a call that must fail came back with success");
    for (int i = 0; i < n; i++)
        if (!strstr(first.text, parts[i]))
            return err_set(&r->err, "the error \"%s\" does not name \"%s\"", first.text, parts[i]);
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    if (!comm_barrier(r->comm, &g, &second) || strcmp(first.text, second.text))
        return err_set(&r->err, "after \"%s\" the next call said \"%s\"", first.text, second.text);
    return 0;
}

/* Rank 1 sends 40 bytes where rank 0 expects 80, and the other way round with long messages. Who
 * learns first is open; the receiver must name both. */
int case_size_mismatch(struct rank *r)
{
    char data[80] = {0};
    if (r->rank == 1) {
        comm_host_send(r->comm, data, 40, 0, 3, &r->err);
        /* Wait for rank 0's end, as an error or a close. */
        comm_set_timeout_ms(r->comm, PATIENT_MS);
        return comm_host_recv(r->comm, data, 1, 0, 4, &r->err) == -1 ? 0 : -1;
    }
    if (r->rank > 1)
        return 0;
    static const char *const parts[] = {"rank 0", "rank 1", "80 bytes", "40", "host tag 3"};
    return expect_failure(r, comm_host_recv(r->comm, data, 80, 1, 3, &r->err), parts, 5);
}

int case_deadline(struct rank *r)
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    if (comm_barrier(r->comm, &g, &r->err))
        return -1;
    if (r->rank == 0) {
        comm_set_timeout_ms(r->comm, SHORT_MS);
        struct pair buf;
        struct comm_request *req;
        if (pair_open(r, &buf, K_F32, 16) ||
            comm_recv(r->comm, r->stream, buf.dev, 1, 21, &req, &r->err))
            return -1;
        int64_t start_ms = clock_ms();
        int rv = comm_wait(r->comm, &req, &r->err);
        static const char *const parts[] = {"rank 0", "from rank 1", "tag 21", "64 bytes",
                                            "within 300 ms"};
        rv = expect_failure(r, rv, parts, 5);
        free(buf.host.any);
        if (!rv && (req || clock_ms() - start_ms < SHORT_MS))
            rv = err_set(&r->err, "gave up too early, or left the request");
        return rv;
    }
    /* The others hear of it: by the hub, or because rank 0 goes away without a barrier. */
    char byte;
    static const char *const parts[] = {"rank 0"};
    return expect_failure(r, comm_host_recv(r->comm, &byte, 1, 0, 22, &r->err), parts, 1);
}

static void *abort_later(void *comm)
{
    nanosleep(&(struct timespec){0, SHORT_MS * 1000000}, NULL);
    comm_abort(comm, "told to");
    return NULL;
}

int case_abort(struct rank *r)
{
    pthread_t thread;
    char byte;
    if (r->rank == 0 && pthread_create(&thread, NULL, abort_later, r->comm))
        return err_set(&r->err, "no thread");
    /* Nobody sends: all wait until rank 0 is aborted. */
    int peer = r->rank == 0 ? 1 : 0;
    int rv = comm_host_recv(r->comm, &byte, 1, peer, 5, &r->err);
    if (r->rank == 0)
        pthread_join(thread, NULL);
    static const char *const parts[] = {"rank 0", "gave up: told to"};
    return expect_failure(r, rv, parts, r->rank == 0 ? 2 : 1);
}

/* The last rank leaves; the others still talk among themselves, and learn it when they turn to it.
 */
int case_peer_closes(struct rank *r)
{
    int ranks[64], last = r->world - 1;
    struct comm_group all = everybody(r, ranks), rest = {6, last, r->rank, ranks};
    if (comm_barrier(r->comm, &all, &r->err))
        return -1;
    if (r->rank == last)
        return 0;
    for (int i = 0; i < 5; i++)
        if (one_all_reduce(r, &rest, K_F32, 100))
            return -1;
    /* Rank 0 turns to it, when all have come here: its failure is then everybody's. */
    char byte = 0;
    for (int i = 1; i < last; i++)
        if (r->rank == 0 ? comm_host_recv(r->comm, &byte, 1, i, 4, &r->err)
                         : r->rank == i && comm_host_send(r->comm, &byte, 1, 0, 4, &r->err))
            return -1;
    char text[32];
    snprintf(text, sizeof text, "rank %d", last);
    const char *const parts[] = {text, "closed"};
    int peer = r->rank == 0 ? last : 0; /* which never sends that: it fails first */
    return expect_failure(r, comm_host_recv(r->comm, &byte, 1, peer, 5, &r->err), parts, 2);
}

int case_bad_arguments(struct rank *r)
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks), wrong = g;
    struct kbuf none = {0};
    struct comm_request *req;
    struct pair buf;
    if (pair_open(r, &buf, K_F32, 10))
        return -1;
    wrong.id = 256;
    int accepted = 0;
    accepted += !comm_barrier(r->comm, &wrong, &r->err);
    wrong.id = 1;
    wrong.me = r->world;
    accepted += !comm_barrier(r->comm, &wrong, &r->err);
    accepted += !comm_send(r->comm, r->stream, buf.dev, r->world, 1, &req, &r->err);
    accepted += !comm_recv(r->comm, r->stream, buf.dev, 0, 1 << 24, &req, &r->err);
    accepted += !comm_all_gather(r->comm, &g, r->stream, none, buf.dev, &r->err);
    struct kbuf odd = kbuf_slice(buf.dev, 0, (size_t)r->world + 1);
    if (r->world > 1)
        accepted += !comm_all_to_all(r->comm, &g, r->stream, odd, odd, &r->err);
    accepted += !comm_broadcast(r->comm, &g, r->stream, buf.dev, r->world, &r->err);
    pair_close(r, &buf);
    if (accepted)
        return err_set(&r->err, "%d bad calls were taken", accepted);
    /* None of these is the comm's failure: it goes on working. */
    return comm_barrier(r->comm, &g, &r->err);
}
