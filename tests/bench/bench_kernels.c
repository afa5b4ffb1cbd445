/* bench_kernels.c - how near the CPU device comes to what the machine's BLAS can do.
 *
 * The rival is one thread's cblas_sgemm on 1024^3, in operations per second of processor time,
 * measured first and again at the end (other work on the machine shows as a difference). Every line
 * gives the wall time and, as a ratio to the rival, the operations per second of processor time of
 * all threads together: median of RUNS, and the spread from the second to the last but one. How
 * well threads are fed shows in processor time used per wall time.
 *
 *     bench_kernels [THREADS [layer | attention | matmul]]
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kernels.h"

enum { RUNS = 9 };
static const double MIN_RUN_NS = 2e7; /* a run repeats its work until it has taken this long */

struct bench {
    struct kernels *k;
    struct kstream *stream;
    double rival; /* operations per nanosecond of processor time */
};

/* One work: n operations of a kind that together cost `flops`. */
struct work {
    const struct kop *ops;
    int n;
    double flops;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_ops(struct bench *b, const struct work *w)
{
    for (int i = 0; i < w->n; i++)
        kernels_submit(b->k, b->stream, &w->ops[i]);
}

/* Nanoseconds of processor time of all threads so far. */
static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Nanoseconds of one repetition, RUNS times, in ascending order: on the wall, and of processors. */
static void measure(struct bench *b, const struct work *w, double wall[RUNS], double cpu[RUNS])
{
    for (int run = -1; run < RUNS; run++) {
        int64_t begin = clock_ns(), repeats = 0;
        double cpu_begin = cpu_ns();
        do {
            run_ops(b, w);
            repeats++;
        } while ((double)(clock_ns() - begin) < MIN_RUN_NS);
        if (run < 0)
            continue;
        wall[run] = (double)(clock_ns() - begin) / (double)repeats;
        cpu[run] = (cpu_ns() - cpu_begin) / (double)repeats;
    }
    qsort(wall, RUNS, sizeof(*wall), ascending);
    qsort(cpu, RUNS, sizeof(*cpu), ascending);
}

static void report(struct bench *b, const char *name, const struct work *w)
{
    double wall[RUNS], cpu[RUNS];
    measure(b, w, wall, cpu);
    double percent = 100 * w->flops / b->rival;
    printf("  %-40s %9.1f us, %.2f processors; %5.1f %% of the rival (%.1f to %.1f)\n", name,
           wall[RUNS / 2] * 1e-3, cpu[RUNS / 2] / wall[RUNS / 2], percent / cpu[RUNS / 2],
           percent / cpu[RUNS - 2], percent / cpu[1]);
    fflush(stdout);
}

static void check(struct bench *b)
{
    struct err err;
    if (kernels_stream_sync(b->k, b->stream, clock_ms() + 1000, &err) != 0) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        exit(1);
    }
}

static struct kbuf buffer(struct bench *b, int64_t n)
{
    struct err err;
    struct kbuf buf;
    if (kernels_alloc(b->k, K_F32, (size_t)n, &buf, &err) != 0) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        exit(1);
    }
    KSUBMIT(b->k, b->stream, FILL_NORMAL, fill_normal, .out = buf, .seed = 1, .std = 0.5, .rows = 1,
            .cols = n, .global_cols = n);
    return buf;
}

/* One thread's cblas_sgemm on 1024^3: operations per nanosecond, the best of RUNS. */
static double blas_rate(void)
{
    enum { N = 1024 };
    float *m[3];
    double best = 0;
    for (int i = 0; i < 3; i++) {
        m[i] = malloc(sizeof(float) * N * N);
        if (m[i] == NULL)
            exit(1);
        for (int j = 0; j < N * N; j++)
            m[i][j] = (float)(j % 13) - 6;
    }
    for (int run = 0; run < RUNS; run++) {
        double begin = cpu_ns();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, m[0], N, m[1], N, 0, m[2],
                    N);
        double rate = 2.0 * N * N * N / (cpu_ns() - begin);
        best = rate > best ? rate : best;
    }
    for (int i = 0; i < 3; i++)
        free(m[i]);
    return best;
}

static void bench_matmul(struct bench *b)
{
    static const int64_t shapes[][4] = {
        {4, 64, 64, 64},       {4, 128, 128, 128},    {1, 256, 256, 256},
        {4, 256, 256, 704},    {1, 512, 512, 512},    {1, 512, 1376, 512},
        {1, 1024, 1024, 1024}, {1, 2048, 4096, 1024}, {1, 256, 4096, 4096}};
    static const char *const modes[] = {"forward", "input", "weight"};
    char name[96];
    puts("matrix products (samples x rows, n, k)");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int mode = 0; mode < 3; mode++) {
            int64_t s = shapes[i][0], t = shapes[i][1], n = shapes[i][2], k = shapes[i][3];
            struct kbuf x = buffer(b, s * t * k), y = buffer(b, s * t * n), w = buffer(b, n * k);
            struct kop op = {.kind = KOP_MATMUL,
                             .matmul = {.mode = (enum kmatmul)mode,
                                        .out = mode == 0   ? y
                                               : mode == 1 ? x
                                                           : w,
                                        .a = mode == 0 ? x : y,
                                        .b = mode == 2 ? x : w,
                                        .samples = s,
                                        .rows = t,
                                        .n = n,
                                        .k = k}};
            struct work work = {&op, 1, 2.0 * (double)(s * t) * (double)n * (double)k};
            snprintf(name, sizeof(name), "%lld x %lld, %lld, %lld %s", (long long)s, (long long)t,
                     (long long)n, (long long)k, modes[mode]);
            report(b, name, &work);
            check(b);
            kernels_free(b->k, &x);
            kernels_free(b->k, &y);
            kernels_free(b->k, &w);
        }
}

/* Operations counted: the lower triangle alone, 2 products forward and 5 backward. */
static void bench_attention(struct bench *b)
{
    static const int64_t shapes[][5] = {{4, 64, 4, 2, 32},
                                        {4, 256, 8, 4, 32},
                                        {1, 512, 8, 8, 64},
                                        {1, 2048, 8, 2, 64},
                                        {1, 1024, 4, 1, 128}};
    char name[96];
    puts("attention (samples x rows, heads, kv heads, head size)");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        int64_t s = shapes[i][0], t = shapes[i][1], h = shapes[i][2], g = shapes[i][3];
        int64_t d = shapes[i][4], nq = s * t * h * d, nk = s * t * g * d;
        struct kbuf q = buffer(b, nq), k = buffer(b, nk), v = buffer(b, nk), o = buffer(b, nq);
        struct kbuf lse = buffer(b, s * h * t), dq = buffer(b, nq), dk = buffer(b, nk);
        struct kbuf dv = buffer(b, nk);
        struct kop forward = {.kind = KOP_ATTENTION_FORWARD,
                              .attention_forward = {o, lse, q, k, v, s, t, h, g, d}};
        struct kop backward = {
            .kind = KOP_ATTENTION_BACKWARD,
            .attention_backward = {dq, dk, dv, q, o, lse, q, k, v, s, t, h, g, d}};
        double product = (double)(s * h) * (double)t * (double)(t + 1) * (double)d;
        snprintf(name, sizeof(name), "%lld x %lld, %lld, %lld, %lld", (long long)s, (long long)t,
                 (long long)h, (long long)g, (long long)d);
        char line[128];
        snprintf(line, sizeof(line), "%s forward", name);
        report(b, line, &(struct work){&forward, 1, 2 * product});
        snprintf(line, sizeof(line), "%s backward", name);
        report(b, line, &(struct work){&backward, 1, 5 * product});
        check(b);
        struct kbuf *all[] = {&q, &k, &v, &o, &lse, &dq, &dk, &dv};
        for (size_t j = 0; j < sizeof(all) / sizeof(*all); j++)
            kernels_free(b->k, all[j]);
    }
}

/* ---- one layer of a Llama, forward and backward ---- */

struct layer {
    int64_t s, t, c, h, g, d, f;
    struct kop ops[64];
    int n;
    double flops;
};

static void layer_op(struct layer *l, struct kop op)
{
    l->ops[l->n++] = op;
}

static void layer_linear(struct layer *l, struct kbuf x, struct kbuf w, struct kbuf y, int64_t n,
                         int64_t k, bool backward)
{
    struct kop_matmul o = {.samples = l->s, .rows = l->t, .n = n, .k = k};
    double flops = 2.0 * (double)(l->s * l->t) * (double)n * (double)k;
    if (!backward) {
        o.mode = KMATMUL_FORWARD, o.out = y, o.a = x, o.b = w;
        layer_op(l, (struct kop){.kind = KOP_MATMUL, .matmul = o});
        l->flops += flops;
        return;
    }
    o.mode = KMATMUL_BACKWARD_INPUT, o.out = x, o.a = y, o.b = w;
    layer_op(l, (struct kop){.kind = KOP_MATMUL, .matmul = o});
    o.mode = KMATMUL_BACKWARD_WEIGHT, o.out = w, o.a = y, o.b = x;
    layer_op(l, (struct kop){.kind = KOP_MATMUL, .matmul = o});
    l->flops += 2 * flops;
}

#define LAYER(KIND, member, ...)                                                                   \
    layer_op(l, (struct kop){.kind = KOP_##KIND, .member = {__VA_ARGS__}})

/* Inputs and gradients share buffers: it is the time that counts here. */
static void layer_build(struct bench *b, struct layer *l)
{
    int64_t m = l->s * l->t, q = l->h * l->d, kv = l->g * l->d;
    struct kbuf x = buffer(b, m * l->c), y = buffer(b, m * l->c), z = buffer(b, m * l->c);
    struct kbuf rstd = buffer(b, m), w = buffer(b, l->c), dw = buffer(b, l->c);
    struct kbuf bq = buffer(b, m * q), bk = buffer(b, m * kv), bv = buffer(b, m * kv);
    struct kbuf dq = buffer(b, m * q), dk = buffer(b, m * kv), dv = buffer(b, m * kv);
    struct kbuf o = buffer(b, m * q), lse = buffer(b, m * l->h), table = buffer(b, l->t * l->d);
    struct kbuf wq = buffer(b, q * l->c), wk = buffer(b, kv * l->c), wv = buffer(b, kv * l->c);
    struct kbuf wo = buffer(b, l->c * q), w1 = buffer(b, l->f * l->c), w3 = buffer(b, l->f * l->c);
    struct kbuf w2 = buffer(b, l->c * l->f), gate = buffer(b, m * l->f), up = buffer(b, m * l->f);
    struct kbuf act = buffer(b, m * l->f), none = {0};
    for (int backward = 0; backward < 2; backward++) {
        for (int half = 0; half < 2; half++) {
            if (!backward)
                LAYER(NORM_FORWARD, norm_forward, y, rstd, half ? z : none, x, half ? y : none, w,
                      l->s, l->t, l->c, 1e-5);
            if (half == 0) {
                layer_linear(l, y, wq, bq, q, l->c, backward);
                layer_linear(l, y, wk, bk, kv, l->c, backward);
                layer_linear(l, y, wv, bv, kv, l->c, backward);
                LAYER(ROPE, rope, bq, table, l->s, l->t, l->h, l->d, 0, backward);
                LAYER(ROPE, rope, bk, table, l->s, l->t, l->g, l->d, 0, backward);
                double product =
                    (double)(l->s * l->h) * (double)l->t * (double)(l->t + 1) * (double)l->d;
                if (backward)
                    LAYER(ATTENTION_BACKWARD, attention_backward, dq, dk, dv, bq, o, lse, bq, bk,
                          bv, l->s, l->t, l->h, l->g, l->d);
                else
                    LAYER(ATTENTION_FORWARD, attention_forward, o, lse, bq, bk, bv, l->s, l->t,
                          l->h, l->g, l->d);
                l->flops += (backward ? 5 : 2) * product;
                layer_linear(l, o, wo, x, l->c, q, backward);
            } else {
                layer_linear(l, y, w1, gate, l->f, l->c, backward);
                layer_linear(l, y, w3, up, l->f, l->c, backward);
                if (backward)
                    LAYER(SWIGLU_BACKWARD, swiglu_backward, gate, up, act, gate, up);
                else
                    LAYER(SWIGLU_FORWARD, swiglu_forward, act, gate, up);
                layer_linear(l, act, w2, x, l->c, l->f, backward);
            }
            if (!backward)
                continue;
            LAYER(NORM_BACKWARD_INPUT, norm_backward_input, x, x, y, z, rstd, w, l->s, l->t, l->c);
            LAYER(NORM_BACKWARD_WEIGHT, norm_backward_weight, dw, y, z, rstd, l->s, l->t, l->c);
        }
    }
}

/* Where the layer's time goes, by kind of operation. */
static void layer_shares(struct bench *b, const struct layer *l)
{
    double total = 0, kinds[KOP_KINDS] = {0};
    int64_t begin = clock_ns();
    do
        for (int i = 0; i < l->n; i++) {
            double before = cpu_ns();
            kernels_submit(b->k, b->stream, &l->ops[i]);
            double ns = cpu_ns() - before;
            kinds[l->ops[i].kind] += ns;
            total += ns;
        }
    while (clock_ns() - begin < 500000000);
    for (int kind = 0; kind < KOP_KINDS; kind++)
        if (kinds[kind] > 0)
            printf("    %-24s %5.1f %%\n", kop_name((enum kop_kind)kind),
                   100 * kinds[kind] / total);
}

static void bench_layer(struct bench *b, const char *name, struct layer shape)
{
    static struct layer l;
    l = shape;
    layer_build(b, &l);
    printf("%s\n", name);
    report(b, "forward and backward", &(struct work){l.ops, l.n, l.flops});
    layer_shares(b, &l);
    check(b);
}

static void bench_layers(struct bench *b)
{
    bench_layer(b, "layer: 4 x 256, hidden 256, ffn 704, 8 heads of 32, 4 kv heads",
                (struct layer){4, 256, 256, 8, 4, 32, 704, .n = 0});
    bench_layer(b, "layer: 8 x 128, hidden 128, ffn 352, 4 heads of 32, 2 kv heads",
                (struct layer){8, 128, 128, 4, 2, 32, 352, .n = 0});
    bench_layer(b, "layer: 1 x 512, hidden 512, ffn 1376, 8 heads of 64, 4 kv heads",
                (struct layer){1, 512, 512, 8, 4, 64, 1376, .n = 0});
}

static void bench_overhead(struct bench *b)
{
    struct kbuf one = buffer(b, 1);
    struct kop op = {.kind = KOP_ADD, .add = {one, one, one}};
    double wall[RUNS], cpu[RUNS];
    measure(b, &(struct work){&op, 1, 0}, wall, cpu);
    printf("an operation on one element: %.0f ns\n", cpu[RUNS / 2]);
}

int main(int argc, char **argv)
{
    struct err err = {""};
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    const char *only = argc > 2 ? argv[2] : ""; /* part of the name of what is to run */
    struct bench b = {.k = kernels_open_cpu(threads, &err)};
    if (b.k == NULL || (b.stream = kernels_stream_open(b.k, &err)) == NULL) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    b.rival = blas_rate();
    printf("%s, %d threads\nrival: %.1f GF/s a thread\n", kernels_signature(b.k), threads, b.rival);
    bench_overhead(&b);
    if (strstr("layer", only) != NULL)
        bench_layers(&b);
    if (strstr("attention", only) != NULL)
        bench_attention(&b);
    if (strstr("matmul", only) != NULL)
        bench_matmul(&b);
    printf("rival measured again: %.1f GF/s\n", blas_rate());
    kernels_stream_close(b.k, b.stream);
    kernels_close(b.k);
    return 0;
}
