/* peak.c - measures matrix products. See peak.h. */
#include "train/peak.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

/* 0.13 GFLOP a product: long against the cost of a call, and its operands fit a core's cache as
 * well as any training shape's. */
enum { ROWS = 256, N = 512, K = 512 };
enum { MEASURE_MS = 80 }; /* of one window, after one product to warm up */
enum { WINDOWS = 3 };     /* the best of them counts: what else the machine does only slows */
enum { DEADLINE_MS = 60000 };

/* Windows of a machine that does nothing else differ by less. */
static const double QUIET = 0.9;

static int measure(struct kernels *k, struct kstream *stream, struct kbuf x, struct kbuf w,
                   struct kbuf y, double *flops, struct err *err)
{
    int64_t start = 0;
    int products = -1; /* the first is not counted */
    for (;;) {
        KSUBMIT(k, stream, MATMUL, matmul, .mode = KMATMUL_FORWARD, .out = y, .a = x, .b = w,
                .samples = 1, .rows = ROWS, .n = N, .k = K);
        if (kernels_stream_sync(k, stream, clock_ms() + DEADLINE_MS, err))
            return -1;
        if (++products == 0)
            start = clock_ns();
        else if (clock_ns() - start > (int64_t)MEASURE_MS * 1000000)
            break;
    }
    *flops = 2.0 * ROWS * N * K * products / ((double)(clock_ns() - start) * 1e-9);
    return 0;
}

static int measure_here(struct kernels *k, enum kdtype dtype, double *flops, struct err *err)
{
    struct kbuf x = {0}, w = {0}, y = {0};
    struct kstream *stream = kernels_stream_open(k, err);
    int rv = -1;
    if (!stream || kernels_alloc(k, dtype, ROWS * K, &x, err) ||
        kernels_alloc(k, dtype, N * K, &w, err) || kernels_alloc(k, dtype, ROWS * N, &y, err))
        goto done;
    KSUBMIT(k, stream, FILL, fill, .out = x, .value = 0.5);
    KSUBMIT(k, stream, FILL, fill, .out = w, .value = 0.5);
    rv = measure(k, stream, x, w, y, flops, err);
done:
    kernels_free(k, &x);
    kernels_free(k, &w);
    kernels_free(k, &y);
    if (stream)
        kernels_stream_close(k, stream);
    return rv;
}

/* One window: all ranks begin together. */
static int measure_all(struct kernels *k, enum kdtype dtype, struct comm *comm,
                       const struct mesh *mesh, double *each, double *sum, struct err *err)
{
    double mine = 0;
    if (comm_barrier(comm, &mesh->all, err) || measure_here(k, dtype, &mine, err) ||
        comm_host_all_gather(comm, &mesh->all, &mine, sizeof mine, each, err))
        return -1;
    *sum = 0;
    for (int i = 0; i < mesh->world; i++)
        *sum += each[i];
    return 0;
}

int peak_measure(struct kernels *k, enum kdtype dtype, struct comm *comm, const struct mesh *mesh,
                 struct peak *peak, struct err *err)
{
    double sum, least = 0, *each = calloc((size_t)mesh->world, sizeof *each);
    int rv = each ? 0 : err_set(err, "no memory");
    *peak = (struct peak){.flops = 0};
    for (int i = 0; !rv && i < WINDOWS; i++) {
        rv = measure_all(k, dtype, comm, mesh, each, &sum, err);
        if (!rv && sum > peak->flops)
            peak->flops = sum;
        if (!rv && (i == 0 || sum < least))
            least = sum;
    }
    peak->about = least < QUIET * peak->flops;
    free(each);
    return rv;
}

double peak_share(struct peak *peak, double flops)
{
    if (!(peak->flops > 0) || !isfinite(flops))
        return NAN;
    if (flops > peak->flops) {
        peak->flops = flops;
        peak->about = true;
    }
    return flops / peak->flops;
}
