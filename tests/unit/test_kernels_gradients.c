/* test_kernels_gradients.c - each backward operation against central finite differences of the
 * plain reference, in f64.
 *
 * The scalar that is differentiated is sum(out * c) with random c, so c is the gradient that
 * arrives. With a step of 1e-5 the difference is off by about 1e-10 (third derivatives, cancelled
 * digits); 1e-8 of the largest gradient is asked for. */
#include "test_kernels_help.h"
#include "test_kernels_reference.h"

static const double STEP = 1e-5, TOLERANCE = 1e-8;

static enum cpu_isa isa_of(void **state)
{
    return *(const enum cpu_isa *)*state;
}

typedef double scalar_fn(const void *arg);

/* Differences of f with respect to the n numbers at x (which f reads through arg). */
static double *differences(scalar_fn *f, const void *arg, double *x, int64_t n)
{
    double *d = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i];
        x[i] = keep + STEP;
        double above = f(arg);
        x[i] = keep - STEP;
        double below = f(arg);
        x[i] = keep;
        d[i] = (above - below) / (2 * STEP);
    }
    return d;
}

static void assert_gradient(struct rig *r, const char *what, struct kbuf buf, scalar_fn *f,
                            const void *arg, double *x)
{
    int64_t n = (int64_t)buf.count;
    double *want = differences(f, arg, x, n), *got = doubles(n);
    get(r, buf, got);
    assert_close(what, got, want, n, TOLERANCE);
    free(want), free(got);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* ---- linear layer ---- */

enum { M_ROWS = 6, M_SAMPLES = 2, M_N = 5, M_K = 7 };

struct linear {
    double *x, *w, *c;
};

static double linear_scalar(const void *arg)
{
    const struct linear *l = arg;
    double y[M_SAMPLES * M_ROWS * M_N] = {0};
    ref_matmul(y, l->x, l->w, M_SAMPLES * M_ROWS, M_N, M_K, 0, 1);
    return dot(y, l->c, M_SAMPLES * M_ROWS * M_N);
}

static void test_matmul(void **state)
{
    enum { M = M_SAMPLES * M_ROWS };
    struct rig r = rig_open_isa(2, K_F64, isa_of(state));
    struct linear l = {normals(1, M * M_K, 1), normals(2, M_N * M_K, 1), normals(3, M * M_N, 1)};
    struct kbuf dx = make(&r, K_F64, M * M_K), dw = make(&r, K_F64, M_N * M_K);
    KSUBMIT(r.k, r.stream, MATMUL, matmul, .mode = KMATMUL_BACKWARD_INPUT, .out = dx,
            .a = put(&r, l.c, M * M_N), .b = put(&r, l.w, M_N * M_K), .samples = M_SAMPLES,
            .rows = M_ROWS, .n = M_N, .k = M_K);
    KSUBMIT(r.k, r.stream, MATMUL, matmul, .mode = KMATMUL_BACKWARD_WEIGHT, .out = dw,
            .a = put(&r, l.c, M * M_N), .b = put(&r, l.x, M * M_K), .samples = M_SAMPLES,
            .rows = M_ROWS, .n = M_N, .k = M_K);
    assert_gradient(&r, "dx", dx, linear_scalar, &l, l.x);
    assert_gradient(&r, "dw", dw, linear_scalar, &l, l.w);
    free(l.x), free(l.w), free(l.c);
    rig_close(&r);
}

/* ---- norm ---- */

enum { N_ROWS = 5, N_DIM = 19, N_ALL = N_ROWS * N_DIM };

struct norm {
    double *x, *w, *c, *past;
};

/* h goes on past the norm, too: its gradient there is past. */
static double norm_scalar(const void *arg)
{
    const struct norm *n = arg;
    double y[N_ALL], h[N_ALL], rstd[N_ROWS];
    ref_norm(y, rstd, h, n->x, NULL, n->w, N_ROWS, N_DIM, 1e-5);
    return dot(y, n->c, N_ALL) + dot(h, n->past, N_ALL);
}

static void test_norm(void **state)
{
    struct rig r = rig_open_isa(2, K_F64, isa_of(state));
    struct norm n = {normals(1, N_ALL, 1), normals(2, N_DIM, 1), normals(3, N_ALL, 1),
                     normals(4, N_ALL, 1)};
    struct kbuf x = put(&r, n.x, N_ALL), w = put(&r, n.w, N_DIM), dy = put(&r, n.c, N_ALL);
    struct kbuf y = make(&r, K_F64, N_ALL), rstd = make(&r, K_F64, N_ROWS);
    struct kbuf dw = make(&r, K_F64, N_DIM), dx = put(&r, n.past, N_ALL);
    KSUBMIT(r.k, r.stream, NORM_FORWARD, norm_forward, .y = y, .rstd = rstd, .x = x, .weight = w,
            .samples = 1, .rows = N_ROWS, .dim = N_DIM, .eps = 1e-5);
    KSUBMIT(r.k, r.stream, NORM_BACKWARD_INPUT, norm_backward_input, .dx = dx, .dresidual = dx,
            .dy = dy, .h = x, .rstd = rstd, .weight = w, .samples = 1, .rows = N_ROWS,
            .dim = N_DIM);
    KSUBMIT(r.k, r.stream, NORM_BACKWARD_WEIGHT, norm_backward_weight, .dweight = dw, .dy = dy,
            .h = x, .rstd = rstd, .samples = 1, .rows = N_ROWS, .dim = N_DIM);
    assert_gradient(&r, "norm dx", dx, norm_scalar, &n, n.x);
    assert_gradient(&r, "norm dweight", dw, norm_scalar, &n, n.w);
    free(n.x), free(n.w), free(n.c), free(n.past);
    rig_close(&r);
}

/* ---- rope ---- */

enum { R_ROWS = 4, R_HEADS = 2, R_DIM = 6, R_ALL = R_ROWS * R_HEADS * R_DIM };

struct rope {
    double *x, *c, *table;
};

static double rope_scalar(const void *arg)
{
    const struct rope *p = arg;
    double x[R_ALL];
    memcpy(x, p->x, sizeof(x));
    ref_rope(x, p->table, 1, R_ROWS, R_HEADS, R_DIM, 0);
    return dot(x, p->c, R_ALL);
}

static void test_rope(void **state)
{
    struct rig r = rig_open_isa(1, K_F64, isa_of(state));
    struct rope p = {normals(1, R_ALL, 1), normals(2, R_ALL, 1), normals(3, R_ROWS * R_DIM, 1)};
    struct kbuf d = put(&r, p.c, R_ALL);
    KSUBMIT(r.k, r.stream, ROPE, rope, .x = d, .table = put(&r, p.table, R_ROWS * R_DIM),
            .samples = 1, .rows = R_ROWS, .heads = R_HEADS, .dim = R_DIM, .inverse = true);
    assert_gradient(&r, "rope dx", d, rope_scalar, &p, p.x);
    free(p.x), free(p.c), free(p.table);
    rig_close(&r);
}

/* ---- attention ---- */

struct attention {
    double *q, *k, *v, *c;
    int64_t rows, heads, kv, dim;
};

static double attention_scalar(const void *arg)
{
    const struct attention *a = arg;
    int64_t n = a->rows * a->heads * a->dim;
    double *o = doubles(n), *lse = doubles(a->heads * a->rows);
    ref_attention(o, lse, a->q, a->k, a->v, a->rows, a->heads, a->kv, a->dim);
    double s = dot(o, a->c, n);
    free(o), free(lse);
    return s;
}

static void attention_case(void **state, int64_t rows, int64_t heads, int64_t kv, int64_t dim)
{
    struct rig r = rig_open_isa(2, K_F64, isa_of(state));
    int64_t nq = rows * heads * dim, nk = rows * kv * dim;
    struct attention a = {normals(1, nq, 1),
                          normals(2, nk, 1),
                          normals(3, nk, 1),
                          normals(4, nq, 1),
                          rows,
                          heads,
                          kv,
                          dim};
    struct kbuf q = put(&r, a.q, nq), k = put(&r, a.k, nk), v = put(&r, a.v, nk);
    struct kbuf o = make(&r, K_F64, nq), lse = make(&r, K_F64, heads * rows);
    struct kbuf dq = make(&r, K_F64, nq), dk = make(&r, K_F64, nk), dv = make(&r, K_F64, nk);
    KSUBMIT(r.k, r.stream, ATTENTION_FORWARD, attention_forward, .o = o, .lse = lse, .q = q, .k = k,
            .v = v, .samples = 1, .rows = rows, .heads = heads, .kv_heads = kv, .dim = dim);
    KSUBMIT(r.k, r.stream, ATTENTION_BACKWARD, attention_backward, .dq = dq, .dk = dk, .dv = dv,
            .dout = put(&r, a.c, nq), .o = o, .lse = lse, .q = q, .k = k, .v = v, .samples = 1,
            .rows = rows, .heads = heads, .kv_heads = kv, .dim = dim);
    assert_gradient(&r, "dq", dq, attention_scalar, &a, a.q);
    assert_gradient(&r, "dk", dk, attention_scalar, &a, a.k);
    assert_gradient(&r, "dv", dv, attention_scalar, &a, a.v);
    free(a.q), free(a.k), free(a.v), free(a.c);
    rig_close(&r);
}

/* One block of each kind; groups of one, two and three query heads; several blocks of queries and
 * of keys, the last of each partial. */
static void test_attention(void **state)
{
    attention_case(state, 7, 4, 2, 5);
    attention_case(state, 9, 3, 1, 4);
    attention_case(state, 70, 2, 1, 2);
    attention_case(state, 150, 1, 1, 1);
}

/* ---- swiglu ---- */

enum { S_N = 37 };

struct swiglu {
    double *gate, *up, *c;
};

static double swiglu_scalar(const void *arg)
{
    const struct swiglu *s = arg;
    double sum = 0;
    for (int i = 0; i < S_N; i++)
        sum += s->c[i] * ref_swiglu(s->gate[i], s->up[i]);
    return sum;
}

static void test_swiglu(void **state)
{
    struct rig r = rig_open_isa(1, K_F64, isa_of(state));
    struct swiglu s = {normals(1, S_N, 2), normals(2, S_N, 1), normals(3, S_N, 1)};
    struct kbuf gate = put(&r, s.gate, S_N), up = put(&r, s.up, S_N);
    KSUBMIT(r.k, r.stream, SWIGLU_BACKWARD, swiglu_backward, .dgate = gate, .dup = up,
            .dh = put(&r, s.c, S_N), .gate = gate, .up = up);
    assert_gradient(&r, "dgate", gate, swiglu_scalar, &s, s.gate);
    assert_gradient(&r, "dup", up, swiglu_scalar, &s, s.up);
    free(s.gate), free(s.up), free(s.c);
    rig_close(&r);
}

/* ---- cross-entropy ---- */

enum { X_ROWS = 6, X_VOCAB = 21, X_ALL = X_ROWS * X_VOCAB };

struct xent {
    double *logits, *targets;
};

static double xent_scalar(const void *arg)
{
    const struct xent *x = arg;
    return 0.25 * ref_cross_entropy(x->logits, x->targets, X_ROWS, X_VOCAB);
}

static void test_cross_entropy(void **state)
{
    double targets[X_ROWS] = {0, 20, -1, 7, 7, 3};
    struct rig r = rig_open_isa(2, K_F64, isa_of(state));
    struct xent x = {normals(1, X_ALL, 2), targets};
    struct kop_xent o = {.logits = put(&r, x.logits, X_ALL),
                         .targets = put_as(&r, K_I32, targets, X_ROWS),
                         .max = make(&r, K_F64, X_ROWS),
                         .sums = make(&r, K_F64, 2 * X_ROWS),
                         .loss = make(&r, K_F64, 1),
                         .samples = 1,
                         .rows = X_ROWS,
                         .vocab = X_VOCAB,
                         .scale = 0.25};
    o.dlogits = o.logits;
    kernels_submit(r.k, r.stream, &(struct kop){.kind = KOP_XENT_MAX, .xent = o});
    kernels_submit(r.k, r.stream, &(struct kop){.kind = KOP_XENT_SUM, .xent = o});
    kernels_submit(r.k, r.stream, &(struct kop){.kind = KOP_XENT_LOSS, .xent = o});
    assert_gradient(&r, "dlogits", o.dlogits, xent_scalar, &x, x.logits);
    free(x.logits);
    rig_close(&r);
}

/* Each with every instruction set; a machine without one repeats the next lower. */
#define EACH_ISA(test)                                                                             \
    {#test " base", test, NULL, NULL, &isas[0]}, {#test " v3", test, NULL, NULL, &isas[1]},        \
    {                                                                                              \
#test " v4", test, NULL, NULL, &isas[2]                                                    \
    }

int main(void)
{
    enum cpu_isa isas[] = {CPU_ISA_BASE, CPU_ISA_V3, CPU_ISA_V4};
    const struct CMUnitTest tests[] = {
        EACH_ISA(test_matmul),    EACH_ISA(test_norm),   EACH_ISA(test_rope),
        EACH_ISA(test_attention), EACH_ISA(test_swiglu), EACH_ISA(test_cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
