/* test_kernels_simple.c - operations with small closed answers: sums, casts, fills, clipping,
 * AdamW, memory accounting; and the errors a wrong operation gives. */
#include "test_kernels_help.h"

#include <unistd.h>

#include "base/clock.h"

static void assert_values(struct rig *r, const char *what, struct kbuf buf, const double *want,
                          double tolerance)
{
    double *got = doubles((int64_t)buf.count);
    get(r, buf, got);
    assert_close(what, got, want, (int64_t)buf.count, tolerance);
    free(got);
}

static void test_sums(void **state)
{
    const double parts[6] = {1, -5, 3, 10, 20, -30};
    static const enum kdtype dtypes[] = {K_F64, K_F32, K_I32};
    (void)state;
    for (int d = 0; d < 3; d++) {
        struct rig r = rig_open(1, dtypes[d]);
        struct kbuf in = put(&r, parts, 6), two = make(&r, r.dtype, 2), three;
        KSUBMIT(r.k, r.stream, SUM_N, sum_n, .out = two, .in = in, .n = 3);
        assert_values(&r, "sum of 3", two, (double[]){24, -25}, 0);
        KSUBMIT(r.k, r.stream, MAX_N, sum_n, .out = two, .in = in, .n = 3);
        assert_values(&r, "max of 3", two, (double[]){20, 10}, 0);
        three = kbuf_slice(in, 0, 3);
        KSUBMIT(r.k, r.stream, SUM_N, sum_n, .out = three, .in = in, .n = 2);
        assert_values(&r, "sum in place", in, (double[]){11, 15, -27, 10, 20, -30}, 0);
        rig_close(&r);
    }
}

/* 1e8 + 1 - 1e8 in f32 is 0 in this order and 1 in another: the order is that of the parts. */
static void test_sum_order(void **state)
{
    const double parts[3] = {1e8, 1, -1e8};
    (void)state;
    struct rig r = rig_open(1, K_F32);
    struct kbuf out = make(&r, K_F32, 1);
    KSUBMIT(r.k, r.stream, SUM_N, sum_n, .out = out, .in = put(&r, parts, 3), .n = 3);
    assert_values(&r, "sum", out, (double[]){0}, 0);
    rig_close(&r);
}

static void test_add_scale_copy(void **state)
{
    (void)state;
    struct rig r = rig_open(1, K_F32);
    struct kbuf a = put(&r, (double[]){1, 2, 3}, 3), b = put(&r, (double[]){10, 20, 30}, 3);
    KSUBMIT(r.k, r.stream, ADD, add, .out = a, .a = a, .b = b);
    assert_values(&r, "add", a, (double[]){11, 22, 33}, 0);
    KSUBMIT(r.k, r.stream, SCALE, scale, .x = a, .factor = put_as(&r, K_F64, (double[]){0.5}, 1));
    assert_values(&r, "scale", a, (double[]){5.5, 11, 16.5}, 0);
    KSUBMIT(r.k, r.stream, COPY, copy, .out = kbuf_slice(b, 1, 2), .in = kbuf_slice(a, 0, 2));
    assert_values(&r, "copy", b, (double[]){10, 5.5, 11}, 0);
    KSUBMIT(r.k, r.stream, FILL, fill, .out = kbuf_slice(b, 0, 2), .value = -7);
    assert_values(&r, "fill", b, (double[]){-7, -7, 11}, 0);
    rig_close(&r);
}

/* bf16 keeps 8 bits: 1 + 2^-8 lies half-way between 1 and 1 + 2^-7 and goes to the even 1;
 * 1 + 3*2^-8 goes up to 1 + 2^-6. In f64, 1 + 2^-8 + 2^-40 is above half-way: rounding through f32
 * first would lose that. */
static void test_cast(void **state)
{
    const double in[6] = {1 + 0x1p-8, 1 + 0x3p-8, -0.1, 3e38, 1 + 0x1p-8 + 0x1p-40, 1e-30};
    const double want[6] = {1, 1 + 0x1p-6, -0x1.9ap-4, 0x1.c4p127, 1 + 0x1p-7, 0x1.44p-100};
    (void)state;
    struct rig r = rig_open(1, K_F64);
    struct kbuf half = make(&r, K_BF16, 6), back = make(&r, K_F64, 6);
    KSUBMIT(r.k, r.stream, CAST, copy, .out = half, .in = put(&r, in, 6));
    KSUBMIT(r.k, r.stream, CAST, copy, .out = back, .in = half);
    double got[6];
    get(&r, back, got);
    for (int i = 0; i < 6; i++)
        if (got[i] != want[i])
            fail_msg("bf16 of %a is %a, should be %a", in[i], got[i], want[i]);
    struct kbuf single = put_as(&r, K_F32, in, 3), single_back = make(&r, K_F32, 3);
    half = kbuf_slice(half, 0, 3);
    KSUBMIT(r.k, r.stream, CAST, copy, .out = half, .in = single);
    KSUBMIT(r.k, r.stream, CAST, copy, .out = single_back, .in = half);
    assert_values(&r, "f32 through bf16", single_back, want, 0);
    rig_close(&r);
}

static void test_squares_and_clip(void **state)
{
    enum { N = 100001 };
    (void)state;
    static const enum kdtype dtypes[] = {K_F64, K_F32};
    for (int d = 0; d < 2; d++) {
        struct rig r = rig_open(2, dtypes[d]);
        double *x = normals(1, N, 1), sum = 0;
        for (int i = 0; i < N; i++)
            sum += x[i] * x[i];
        struct kbuf sums = make(&r, K_F64, 2), norm = make(&r, K_F64, 1), one = make(&r, K_F64, 1);
        KSUBMIT(r.k, r.stream, SUM_SQUARES, sum_squares, .out = kbuf_slice(sums, 0, 1),
                .x = put(&r, x, N));
        KSUBMIT(r.k, r.stream, SUM_SQUARES, sum_squares, .out = kbuf_slice(sums, 1, 1),
                .x = put(&r, (double[]){3, 4}, 2));
        assert_values(&r, "square sums", sums, (double[]){sum, 25}, 1e-13);
        KSUBMIT(r.k, r.stream, CLIP_FACTOR, clip_factor, .norm = norm, .factor = one,
                .sums = kbuf_slice(sums, 1, 1), .max_norm = 2);
        assert_values(&r, "norm", norm, (double[]){5}, 0);
        assert_values(&r, "factor", one, (double[]){0.4}, 0);
        KSUBMIT(r.k, r.stream, CLIP_FACTOR, clip_factor, .norm = norm, .factor = one, .sums = sums,
                .max_norm = 0);
        assert_values(&r, "factor without clipping", one, (double[]){1}, 0);
        free(x);
        rig_close(&r);
    }
}

/* Three steps written out with the paper's formulas. */
static void test_adamw(void **state)
{
    enum { N = 19 };
    const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, factor = 0.5;
    static const enum kdtype dtypes[] = {K_F64, K_F32};
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct rig r = rig_open(1, dtypes[d]);
        double *p = normals(1, N, 1), *g = normals(2, N, 1), m[N] = {0}, v[N] = {0};
        struct kbuf bp = put(&r, p, N), bg = put(&r, g, N), bm = make(&r, r.dtype, N);
        struct kbuf bv = make(&r, r.dtype, N), step = make(&r, K_F64, KSTEP_COUNT);
        for (int t = 1; t <= 3; t++) {
            double now[KSTEP_COUNT] = {[KSTEP_LR] = 0.01 * t,
                                       [KSTEP_CORRECTION1] = 1 - pow(beta1, t),
                                       [KSTEP_CORRECTION2] = 1 - pow(beta2, t)};
            for (int i = 0; i < N; i++) {
                double gi = g[i] * factor;
                m[i] = beta1 * m[i] + (1 - beta1) * gi;
                v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
                p[i] -= now[KSTEP_LR] * (m[i] / now[KSTEP_CORRECTION1] /
                                             (sqrt(v[i] / now[KSTEP_CORRECTION2]) + eps) +
                                         decay * p[i]);
            }
            KSUBMIT(r.k, r.stream, UPLOAD, upload, .out = step, .host = now);
            KSUBMIT(r.k, r.stream, ADAMW, adamw, .param = bp, .grad = bg, .m = bm, .v = bv,
                    .step = step, .factor = put_as(&r, K_F64, &factor, 1), .beta1 = beta1,
                    .beta2 = beta2, .eps = eps, .decay = decay);
        }
        double tolerance = r.dtype == K_F64 ? 1e-14 : 1e-6;
        assert_values(&r, "adamw param", bp, p, tolerance);
        assert_values(&r, "adamw m", bm, m, tolerance);
        assert_values(&r, "adamw v", bv, v, tolerance);
        free(p), free(g);
        rig_close(&r);
    }
}

static void test_memory(void **state)
{
    (void)state;
    struct rig r = rig_open(1, K_F32);
    struct err err = {""};
    size_t peak, before = kernels_bytes(r.k, &peak);
    struct kbuf small = make(&r, K_F32, 1000), large = make(&r, K_F64, 1 << 20), none = {0};
    double *got = doubles(1 << 20);
    get(&r, large, got);
    for (int i = 0; i < 1 << 20; i++)
        assert_true(got[i] == 0);
    assert_int_equal(kernels_bytes(r.k, NULL) - before, 4000 + (8 << 20));
    kernels_free(r.k, &large);
    kernels_free(r.k, &none);
    assert_null(large.mem);
    assert_int_equal(kernels_bytes(r.k, &peak) - before, 4000);
    assert_int_equal(peak - before, 4000 + (8 << 20));
    kernels_free(r.k, &small);
    assert_int_equal(kernels_alloc(r.k, K_F64, SIZE_MAX / 2, &none, &err), -1);
    assert_null(none.mem);
    assert_non_null(strstr(err.text, "f64"));
    assert_int_equal(kernels_alloc(r.k, K_F32, (size_t)1 << 58, &none, &err), -1);
    assert_non_null(strstr(err.text, "1152921504606846976 bytes"));
    free(got);
    rig_close(&r);
}

/* Submit one wrong operation: the sync must say so, in these words; and go on saying so. */
static void assert_refused(struct rig *r, const struct kop *op, const char *text)
{
    struct err err = {""};
    kernels_submit(r->k, r->stream, op);
    assert_int_equal(kernels_stream_sync(r->k, r->stream, clock_ms() + DEADLINE_MS, &err), -1);
    if (strcmp(err.text, text) != 0)
        fail_msg("the error is \"%s\", should be \"%s\"", err.text, text);
    KSUBMIT(r->k, r->stream, FILL, fill, .out = (struct kbuf){0});
    err.text[0] = 0;
    assert_int_equal(kernels_stream_sync(r->k, r->stream, clock_ms() + DEADLINE_MS, &err), -1);
    assert_string_equal(err.text, text);
}

#define REFUSED(TEXT, KIND, member, ...)                                                           \
    do {                                                                                           \
        struct rig r = rig_open(1, K_F32);                                                         \
        struct kbuf f6 = make(&r, K_F32, 6), f8 = make(&r, K_F32, 8), d6 = make(&r, K_F64, 6);     \
        struct kbuf h6 = make(&r, K_BF16, 6), i6 = make(&r, K_I32, 6), none = {0};                 \
        (void)f6, (void)f8, (void)d6, (void)h6, (void)i6, (void)none;                              \
        assert_refused(&r, &(struct kop){.kind = KOP_##KIND, .member = {__VA_ARGS__}}, TEXT);      \
        rig_close(&r);                                                                             \
    } while (0)

static void test_errors(void **state)
{
    (void)state;
    REFUSED("matmul: b holds 8 f32, must hold 6 f32 (samples 1, rows 3, n 2, k 3)", MATMUL, matmul,
            .out = f6, .a = make(&r, K_F32, 9), .b = f8, .samples = 1, .rows = 3, .n = 2, .k = 3);
    REFUSED("add: b holds 6 f64, must hold 6 f32", ADD, add, .out = f6, .a = f6, .b = d6);
    REFUSED("add: b is not given", ADD, add, .out = f6, .a = f6, .b = none);
    REFUSED("add: the CPU has no bf16 arithmetic, only casts: use float32 or float64", ADD, add,
            .out = h6, .a = h6, .b = h6);
    REFUSED("add: a i32 buffer where a floating one is needed", ADD, add, .out = i6, .a = i6,
            .b = i6);
    REFUSED("fill: out is [3, 9) of an allocation of 6 f32", FILL, fill,
            .out = kbuf_slice(f6, 3, 6));
    REFUSED("norm_forward: the shape is negative or too large (samples -1, rows 2, dim 3)",
            NORM_FORWARD, norm_forward, .y = f6, .rstd = f6, .x = f6, .weight = f6, .samples = -1,
            .rows = 2, .dim = 3);
    REFUSED("rope: head size 3 is odd", ROPE, rope, .x = f6, .table = f6, .samples = 1, .rows = 2,
            .heads = 1, .dim = 3);
    REFUSED("rope: table holds 6 f32, must hold 8 f32 (samples 1, rows 3, heads 1, dim 2, first 1)",
            ROPE, rope, .x = f6, .table = f6, .samples = 1, .rows = 3, .heads = 1, .dim = 2,
            .first = 1);
    REFUSED("attention_forward: 3 heads are not a multiple of 2 kv_heads", ATTENTION_FORWARD,
            attention_forward, .o = f6, .lse = kbuf_slice(f6, 0, 3), .q = f6,
            .k = kbuf_slice(f6, 0, 4), .v = kbuf_slice(f6, 0, 4), .samples = 1, .rows = 1,
            .heads = 3, .kv_heads = 2, .dim = 2);
    REFUSED("sum_n: n is 0, must be at least 1", SUM_N, sum_n, .out = f6,
            .in = kbuf_slice(f6, 0, 0), .n = 0);
    REFUSED("cast: in is i32, must be floating", CAST, copy, .out = f6, .in = i6);
}

static void test_other_device(void **state)
{
    (void)state;
    struct rig a = rig_open(1, K_F32), b = rig_open(1, K_F32);
    struct kbuf x = make(&b, K_F32, 2);
    assert_refused(&a, &(struct kop){.kind = KOP_FILL, .fill = {.out = x}},
                   "fill: out belongs to another device");
    rig_close(&a);
    rig_close(&b);
}

/* A thread that submits one operation after another lets the device's lock go for moments only, so
 * a copy out, and who asks how it went, must not need it. Held for good it makes that plain; a
 * failure must come through all the same. */
static void test_copy_out_beside_operations(void **state)
{
    const double in[3] = {1, -2, 3};
    float got[3] = {0};
    struct err err;
    (void)state;
    struct rig r = rig_open(1, K_F32);
    struct cpu *cpu = (struct cpu *)r.k;
    struct kbuf x = put(&r, in, 3), outside = {.mem = x.mem, .count = 4, .dtype = K_F32};
    struct kevent *event = kernels_event_open(r.k, &err);
    assert_non_null(event);
    pthread_mutex_lock(&cpu->lock);
    alarm(2 * DEADLINE_MS / 1000);
    KSUBMIT(r.k, r.stream, DOWNLOAD, download, .in = x, .host = got);
    kernels_event_record(r.k, event, r.stream);
    assert_int_equal(kernels_event_sync(r.k, event, clock_ms() + DEADLINE_MS, &err), 0);
    assert_int_equal(kernels_stream_sync(r.k, r.stream, clock_ms() + DEADLINE_MS, &err), 0);
    for (int i = 0; i < 3; i++)
        assert_true(got[i] == (float)in[i]);
    KSUBMIT(r.k, r.stream, DOWNLOAD, download, .in = outside, .host = got);
    assert_int_equal(kernels_stream_sync(r.k, r.stream, clock_ms() + DEADLINE_MS, &err), -1);
    alarm(0);
    pthread_mutex_unlock(&cpu->lock);
    assert_non_null(strstr(err.text, "download: "));
    kernels_event_close(r.k, event);
    rig_close(&r);
}

static void test_names(void **state)
{
    (void)state;
    for (int kind = 0; kind < KOP_KINDS; kind++)
        assert_non_null(kop_name((enum kop_kind)kind));
    struct err err = {""};
    assert_null(kernels_open_cpu(0, &err));
    assert_string_equal(err.text, "threads is 0, must be at least 1");
    struct rig r = rig_open(1, K_F32);
    assert_non_null(strstr(kernels_signature(r.k), "OpenBLAS"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_add_scale_copy),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_squares_and_clip),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_other_device),
        cmocka_unit_test(test_copy_out_beside_operations),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
