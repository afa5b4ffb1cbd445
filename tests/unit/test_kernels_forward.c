/* test_kernels_forward.c - each operation's values against plain reference code, in f64 and f32.
 *
 * Tolerances: relative to the largest value. f64 sums of a few hundred terms of order one differ
 * from the reference's order by some 1e-14; f32 ones by some 1e-6 (its unit is 6e-8, sums of
 * hundreds of terms lose one to two digits). */
#include "test_kernels_help.h"
#include "test_kernels_reference.h"

static double tolerance(enum kdtype dtype)
{
    return dtype == K_F64 ? 1e-13 : 3e-6;
}

/* Each type on each instruction set; a machine without one repeats the next lower. */
static const struct {
    enum kdtype dtype;
    enum cpu_isa most;
} tables[] = {{K_F64, CPU_ISA_V4}, {K_F32, CPU_ISA_V4},   {K_F64, CPU_ISA_V3},
              {K_F32, CPU_ISA_V3}, {K_F64, CPU_ISA_BASE}, {K_F32, CPU_ISA_BASE}};
#define EACH_TABLE(i) for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++)

static void matmul_case(struct rig *r, int64_t samples, int64_t rows, int64_t n, int64_t k)
{
    int64_t m = samples * rows;
    double *x = normals(1, m * k, 1), *w = normals(2, n * k, 1), *dy = normals(3, m * n, 1);
    double *c = normals(4, m * (n > k ? n : k) + n * k, 1), *want = doubles(m * (n + k) + n * k);
    double *got = doubles(m * (n + k) + n * k);
    char what[96];
    for (int mode = 0; mode < 3; mode++)
        for (int add = 0; add < 2; add++) {
            int64_t count = mode == KMATMUL_FORWARD          ? m * n
                            : mode == KMATMUL_BACKWARD_INPUT ? m * k
                                                             : n * k;
            struct kbuf out = put(r, c, count);
            struct kbuf a = mode == KMATMUL_FORWARD ? put(r, x, m * k) : put(r, dy, m * n);
            struct kbuf b = mode == KMATMUL_BACKWARD_WEIGHT ? put(r, x, m * k) : put(r, w, n * k);
            KSUBMIT(r->k, r->stream, MATMUL, matmul, .mode = (enum kmatmul)mode, .out = out, .a = a,
                    .b = b, .samples = samples, .rows = rows, .n = n, .k = k,
                    .accumulate = add != 0);
            get(r, out, got);
            for (int64_t i = 0; i < count; i++)
                want[i] = add ? c[i] : 0;
            if (mode == KMATMUL_FORWARD)
                ref_matmul(want, x, w, m, n, k, 0, 1);
            else if (mode == KMATMUL_BACKWARD_INPUT)
                ref_matmul(want, dy, w, m, k, n, 0, 0);
            else
                ref_matmul(want, dy, x, n, k, m, 1, 0);
            snprintf(what, sizeof(what), "%s mode %d add %d (%lld x %lld, n %lld, k %lld)",
                     kdtype_name(r->dtype), mode, add, (long long)samples, (long long)rows,
                     (long long)n, (long long)k);
            assert_close(what, got, want, count, tolerance(r->dtype));
            kernels_free(r->k, &out);
            kernels_free(r->k, &a);
            kernels_free(r->k, &b);
        }
    free(x), free(w), free(dy), free(c), free(want), free(got);
}

/* Odd sizes, sizes of one, several panels: the BLAS has other code for each. */
static void test_matmul(void **state)
{
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1},    {1, 1, 7, 5},    {1, 17, 1, 9},   {2, 5, 3, 1},     {1, 16, 16, 16},
        {3, 31, 33, 29}, {1, 65, 63, 67}, {2, 96, 48, 40}, {1, 130, 129, 3}, {1, 300, 19, 37},
        {2, 385, 8, 21}, {1, 7, 300, 11}, {1, 9, 13, 450}, {1, 40, 264, 70}, {1, 101, 97, 103},
    };
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            matmul_case(&r, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        rig_close(&r);
    }
}

static void test_matmul_of_nothing(void **state)
{
    (void)state;
    struct rig r = rig_open(1, K_F32);
    double ones[6] = {1, 1, 1, 1, 1, 1}, got[6], zeros[6] = {0};
    struct kbuf out = put(&r, ones, 6), empty = make(&r, K_F32, 0);
    struct kop_matmul o = {.mode = KMATMUL_BACKWARD_WEIGHT,
                           .out = out,
                           .a = empty,
                           .b = empty,
                           .samples = 0,
                           .rows = 4,
                           .n = 2,
                           .k = 3,
                           .accumulate = true};
    kernels_submit(r.k, r.stream, &(struct kop){.kind = KOP_MATMUL, .matmul = o});
    get(&r, out, got);
    assert_close("kept", got, ones, 6, 0);
    o.accumulate = false;
    kernels_submit(r.k, r.stream, &(struct kop){.kind = KOP_MATMUL, .matmul = o});
    get(&r, out, got);
    assert_close("cleared", got, zeros, 6, 0);
    rig_close(&r);
}

static void norm_case(struct rig *r, int64_t rows, int64_t dim, int with_residual)
{
    int64_t n = rows * dim;
    double *x = normals(1, n, 1), *res = normals(2, n, 1), *w = normals(3, dim, 1);
    double *y = doubles(n), *h = doubles(n), *rstd = doubles(rows), *got = doubles(n);
    struct kbuf none = {0}, by = make(r, r->dtype, n), bs = make(r, r->dtype, n);
    struct kbuf br = make(r, r->dtype, rows);
    ref_norm(y, rstd, h, x, with_residual ? res : NULL, w, rows, dim, 1e-5);
    KSUBMIT(r->k, r->stream, NORM_FORWARD, norm_forward, .y = by, .rstd = br,
            .sum = with_residual ? bs : none, .x = put(r, x, n),
            .residual = with_residual ? put(r, res, n) : none, .weight = put(r, w, dim),
            .samples = 1, .rows = rows, .dim = dim, .eps = 1e-5);
    get(r, by, got);
    assert_close("norm y", got, y, n, tolerance(r->dtype));
    get(r, br, got);
    assert_close("norm rstd", got, rstd, rows, tolerance(r->dtype));
    if (with_residual) {
        get(r, bs, got);
        assert_close("norm sum", got, h, n, tolerance(r->dtype));
    }
    free(x), free(res), free(w), free(y), free(h), free(rstd), free(got);
}

static void test_norm(void **state)
{
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        for (int residual = 0; residual < 2; residual++) {
            norm_case(&r, 3, 1, residual);
            norm_case(&r, 5, 17, residual);
            norm_case(&r, 40, 64, residual);
            norm_case(&r, 70, 1000, residual);
        }
        rig_close(&r);
    }
}

static double *rope_table(int64_t positions, int64_t dim)
{
    double *t = doubles(positions * dim);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < dim / 2; i++) {
            double angle = (double)p * pow(10000, -2.0 * (double)i / (double)dim);
            t[p * dim + i] = (double)(float)cos(angle);
            t[p * dim + dim / 2 + i] = (double)(float)sin(angle);
        }
    return t;
}

/* first > 0 as in context parallelism; then back, which must give the input. */
static void rope_case(struct rig *r, int64_t samples, int64_t rows, int64_t heads, int64_t dim,
                      int64_t first)
{
    int64_t n = samples * rows * heads * dim, positions = first + rows + 2;
    double *x = normals(1, n, 1), *want = normals(1, n, 1), *got = doubles(n);
    double *table = rope_table(positions, dim);
    struct kbuf b = put(r, x, n), t = put(r, table, positions * dim);
    struct kop_rope o = {.x = b,
                         .table = t,
                         .samples = samples,
                         .rows = rows,
                         .heads = heads,
                         .dim = dim,
                         .first = first};
    ref_rope(want, table, samples, rows, heads, dim, first);
    kernels_submit(r->k, r->stream, &(struct kop){.kind = KOP_ROPE, .rope = o});
    get(r, b, got);
    assert_close("rope", got, want, n, tolerance(r->dtype));
    o.inverse = true;
    kernels_submit(r->k, r->stream, &(struct kop){.kind = KOP_ROPE, .rope = o});
    get(r, b, got);
    /* The table is rounded to f32, so c*c + s*s is 1 within 1e-7. */
    assert_close("rope and back", got, x, n, 1e-6);
    free(x), free(want), free(got), free(table);
}

static void test_rope(void **state)
{
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        rope_case(&r, 2, 5, 3, 2, 0);
        rope_case(&r, 1, 33, 2, 48, 7);
        rope_case(&r, 2, 100, 4, 64, 0);
        rig_close(&r);
    }
}

static void attention_case(struct rig *r, int64_t samples, int64_t rows, int64_t heads, int64_t kv,
                           int64_t dim, double size)
{
    int64_t nq = rows * heads * dim, nk = rows * kv * dim, nl = heads * rows;
    double *q = normals(1, samples * nq, size), *k = normals(2, samples * nk, size);
    double *v = normals(3, samples * nk, 1), *got = doubles(samples * nq);
    double *o = doubles(samples * nq), *lse = doubles(samples * nl);
    for (int64_t s = 0; s < samples; s++)
        ref_attention(o + s * nq, lse + s * nl, q + s * nq, k + s * nk, v + s * nk, rows, heads, kv,
                      dim);
    struct kbuf bo = make(r, r->dtype, samples * nq), bl = make(r, r->dtype, samples * nl);
    KSUBMIT(r->k, r->stream, ATTENTION_FORWARD, attention_forward, .o = bo, .lse = bl,
            .q = put(r, q, samples * nq), .k = put(r, k, samples * nk),
            .v = put(r, v, samples * nk), .samples = samples, .rows = rows, .heads = heads,
            .kv_heads = kv, .dim = dim);
    get(r, bo, got);
    assert_close("attention o", got, o, samples * nq, tolerance(r->dtype) * size * size);
    get(r, bl, got);
    assert_close("attention lse", got, lse, samples * nl, tolerance(r->dtype));
    free(q), free(k), free(v), free(got), free(o), free(lse);
}

/* Blocks of queries and keys that are full, partial and just one; scores up to some hundreds. */
static void test_attention(void **state)
{
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        attention_case(&r, 1, 1, 1, 1, 1, 1);
        attention_case(&r, 2, 5, 4, 2, 3, 1);
        attention_case(&r, 1, 64, 2, 1, 32, 1);
        attention_case(&r, 1, 65, 6, 3, 20, 1);
        attention_case(&r, 2, 200, 2, 2, 16, 1);
        attention_case(&r, 1, 300, 1, 1, 33, 1);
        attention_case(&r, 1, 140, 2, 1, 64, 6);
        rig_close(&r);
    }
}

static void test_swiglu(void **state)
{
    enum { N = 10007 };
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        double *gate = normals(1, N, 6), *up = normals(2, N, 1), *want = doubles(N);
        double *got = doubles(N);
        /* Far ends: exp would overflow or vanish. */
        gate[0] = 1000, gate[1] = -1000, gate[2] = -80, gate[3] = 0, gate[4] = -700;
        for (int i = 0; i < N; i++)
            want[i] = ref_swiglu(gate[i], up[i]);
        struct kbuf out = make(&r, r.dtype, N);
        KSUBMIT(r.k, r.stream, SWIGLU_FORWARD, swiglu_forward, .out = out, .gate = put(&r, gate, N),
                .up = put(&r, up, N));
        get(&r, out, got);
        for (int i = 0; i < N; i++)
            if (!(fabs(got[i] - want[i]) <=
                  (tables[d].dtype == K_F64 ? 2e-15 : 1e-6) * fabs(want[i]) + 1e-37))
                fail_msg("swiglu(%g, %g) is %.17g, should be %.17g", gate[i], up[i], got[i],
                         want[i]);
        free(gate), free(up), free(want), free(got);
        rig_close(&r);
    }
}

/* Two ranks hold half of the vocabulary each; the reductions between the parts are done here. */
static void xent_case(struct rig *r, int64_t samples, int64_t rows, int64_t vocab, double size)
{
    int64_t all = samples * rows, half = vocab / 2, widths[2] = {half, vocab - half};
    double *logits = normals(1, all * vocab, size), *targets = doubles(all);
    double *max = doubles(2 * all), *sums = doubles(4 * all), *loss = doubles(samples);
    double *want = doubles(samples), *part = doubles(all * vocab);
    struct kbuf bufs[2], bt;
    for (int64_t i = 0; i < all; i++)
        targets[i] = i % 5 == 3 ? -1 : (double)(i * 7919 % vocab);
    bt = put_as(r, K_I32, targets, all);
    for (int64_t s = 0; s < samples; s++)
        want[s] = ref_cross_entropy(logits + s * rows * vocab, targets + s * rows, rows, vocab);
    struct kop_xent o[2];
    for (int p = 0; p < 2; p++) {
        int64_t first = p * half, width = widths[p];
        for (int64_t i = 0; i < all; i++)
            memcpy(part + i * width, logits + i * vocab + first, (size_t)width * sizeof(double));
        bufs[p] = put(r, part, all * width);
        o[p] = (struct kop_xent){.logits = bufs[p],
                                 .targets = bt,
                                 .max = make(r, r->dtype, all),
                                 .sums = make(r, r->dtype, 2 * all),
                                 .samples = samples,
                                 .rows = rows,
                                 .vocab = width,
                                 .first = first,
                                 .scale = 1};
        kernels_submit(r->k, r->stream, &(struct kop){.kind = KOP_XENT_MAX, .xent = o[p]});
        get(r, o[p].max, max + p * all);
    }
    for (int64_t i = 0; i < all; i++)
        max[i] = fmax(max[i], max[all + i]);
    for (int p = 0; p < 2; p++) {
        o[p].max = put(r, max, all);
        kernels_submit(r->k, r->stream, &(struct kop){.kind = KOP_XENT_SUM, .xent = o[p]});
        get(r, o[p].sums, sums + p * 2 * all);
    }
    for (int64_t i = 0; i < 2 * all; i++)
        sums[i] += sums[2 * all + i];
    o[0].sums = put(r, sums, 2 * all);
    o[0].loss = make(r, K_F64, samples);
    kernels_submit(r->k, r->stream, &(struct kop){.kind = KOP_XENT_LOSS, .xent = o[0]});
    get(r, o[0].loss, loss);
    assert_close("loss", loss, want, samples, r->dtype == K_F64 ? 1e-14 : 1e-6);
    free(logits), free(targets), free(max), free(sums), free(loss), free(want), free(part);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    EACH_TABLE(d)
    {
        struct rig r = rig_open_isa(2, tables[d].dtype, tables[d].most);
        xent_case(&r, 2, 3, 2, 1);
        xent_case(&r, 1, 40, 257, 1);
        xent_case(&r, 3, 11, 4099, 8);
        rig_close(&r);
    }
}

/* The table holds tokens [3, 9): others give zero rows, and no gradient; a token that comes twice
 * adds twice. */
static void test_embedding(void **state)
{
    double tokens[6] = {2, 3, 8, 9, 3, 5}, table[6 * 5], dy[6 * 5], want[6 * 5], got[6 * 5];
    (void)state;
    for (int i = 0; i < 30; i++)
        table[i] = i + 1, dy[i] = 100 + i;
    struct rig r = rig_open(1, K_F32);
    struct kbuf bt = put_as(&r, K_I32, tokens, 6), y = make(&r, K_F32, 30);
    KSUBMIT(r.k, r.stream, EMBEDDING_FORWARD, embedding, .out = y,
            .table_or_dy = put(&r, table, 30), .tokens = bt, .count = 6, .dim = 5, .first = 3,
            .vocab = 6);
    get(&r, y, got);
    for (int t = 0; t < 6; t++)
        for (int c = 0; c < 5; c++)
            want[t * 5 + c] =
                tokens[t] >= 3 && tokens[t] < 9 ? table[((int)tokens[t] - 3) * 5 + c] : 0;
    assert_close("embedding", got, want, 30, 0);
    struct kbuf dtable = put(&r, table, 30);
    KSUBMIT(r.k, r.stream, EMBEDDING_BACKWARD, embedding, .out = dtable,
            .table_or_dy = put(&r, dy, 30), .tokens = bt, .count = 6, .dim = 5, .first = 3,
            .vocab = 6);
    get(&r, dtable, got);
    memcpy(want, table, sizeof(want));
    for (int c = 0; c < 5; c++) {
        want[0 * 5 + c] += dy[1 * 5 + c] + dy[4 * 5 + c];
        want[5 * 5 + c] += dy[2 * 5 + c];
        want[2 * 5 + c] += dy[5 * 5 + c];
    }
    assert_close("embedding gradient", got, want, 30, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),        cmocka_unit_test(test_matmul_of_nothing),
        cmocka_unit_test(test_norm),          cmocka_unit_test(test_rope),
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
