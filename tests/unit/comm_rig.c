/* comm_rig.c - see comm_rig.h, comm_cases.h. */
#include "comm_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

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

uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
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

void set_value(union host h, enum kdtype dtype, size_t i, double x)
{
    if (dtype == K_F64)
        h.f64[i] = x;
    else if (dtype == K_F32)
        h.f32[i] = (float)x;
    else
        h.i32[i] = (int32_t)x;
}

double input(enum kdtype dtype, int rank, size_t i, int salt)
{
    double x = value(rank, i, salt);
    return dtype == K_I32 ? x / 64 : x; /* a sum of 8 stays below 2^31 */
}

#define COMBINE(type, out)                                                                         \
    do {                                                                                           \
        type all = (type)input(dtype, g->ranks[0], i, salt);                                       \
        for (int m = 1; m < g->size; m++) {                                                        \
            type one = (type)input(dtype, g->ranks[m], i, salt);                                   \
            all = op == COMM_SUM ? all + one : one > all ? one : all;                              \
        }                                                                                          \
        out = all;                                                                                 \
    } while (0)

void set_expected(union host h, enum kdtype dtype, size_t at, size_t i, const struct comm_group *g,
                  int salt, enum comm_op op)
{
    if (dtype == K_F64)
        COMBINE(double, h.f64[at]);
    else if (dtype == K_F32)
        COMBINE(float, h.f32[at]);
    else
        COMBINE(int32_t, h.i32[at]);
}

/* ---- buffers ---- */

int pair_open(struct rank *r, struct pair *p, enum kdtype dtype, size_t count)
{
    p->bytes = count * kdtype_bytes(dtype);
    p->host.any = calloc(1, p->bytes + 1);
    return kernels_alloc(r->k, dtype, count, &p->dev, &r->err);
}

void pair_close(struct rank *r, struct pair *p)
{
    kernels_free(r->k, &p->dev);
    free(p->host.any);
}

void pair_upload(struct rank *r, struct pair *p)
{
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = p->dev, .host = p->host.any);
}

int pair_compare(struct rank *r, const struct pair *p, const void *expected, const char *what)
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

struct comm_group everybody(const struct rank *r, int *ranks)
{
    for (int i = 0; i < r->world; i++)
        ranks[i] = i;
    return (struct comm_group){5, r->world, r->rank, ranks};
}

int sweep(struct rank *r, int (*one)(struct rank *, const struct comm_group *, enum kdtype, size_t))
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    for (size_t d = 0; d < N_OF(dtypes); d++)
        for (size_t n = 0; n < N_OF(counts); n++)
            if (one(r, &g, dtypes[d], counts[n]))
                return -1;
    return comm_barrier(r->comm, &g, &r->err);
}
