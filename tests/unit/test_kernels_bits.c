/* test_kernels_bits.c - results are the same bit for bit for any number of threads and for any
 * grouping of the same samples into operations.
 *
 * A pass runs every layer operation on four samples with some number of threads, `group` samples to
 * an operation, and concatenates what came out. All passes must be equal. Odd sizes make partial
 * panels, blocks and vectors; a group's buffers start at other alignments than the whole's. */
#include "test_kernels_help.h"

#include <pthread.h>

enum { S = 4, H = 4, G = 2, D = 24, C = H * D, V = 211 };
enum { OUTPUTS = 24 };

struct pass {
    struct rig rig;
    int64_t rows, group, first; /* first: the group's first sample */
    uint64_t tensor;
    struct kbuf out[OUTPUTS];
    int outputs;
};

static struct kbuf random_buf(struct pass *p, int64_t n)
{
    double *x = normals(++p->tensor, n, 1);
    struct kbuf b = put(&p->rig, x, n);
    free(x);
    return b;
}

static struct kbuf result(struct pass *p, struct kbuf buf)
{
    assert_true(p->outputs < OUTPUTS);
    return p->out[p->outputs++] = buf;
}

static struct kbuf new_result(struct pass *p, int64_t n)
{
    return result(p, make(&p->rig, p->rig.dtype, n));
}

/* The group's part of a buffer with `each` elements a sample. */
static struct kbuf part(const struct pass *p, struct kbuf buf, int64_t each)
{
    return kbuf_slice(buf, (size_t)(p->first * each), (size_t)(p->group * each));
}

#define EACH_GROUP(p) for ((p)->first = 0; (p)->first < S; (p)->first += (p)->group)
#define RUN(p, KIND, member, ...)                                                                  \
    EACH_GROUP(p) KSUBMIT((p)->rig.k, (p)->rig.stream, KIND, member, __VA_ARGS__)

static void run_linear(struct pass *p, int64_t n, int64_t k)
{
    int64_t t = p->rows;
    struct kbuf x = random_buf(p, S * t * k), w = random_buf(p, n * k);
    struct kbuf y = new_result(p, S * t * n), dx = result(p, random_buf(p, S * t * k));
    struct kbuf dw = result(p, random_buf(p, n * k));
    RUN(p, MATMUL, matmul, .mode = KMATMUL_FORWARD, .out = part(p, y, t * n),
        .a = part(p, x, t * k), .b = w, .samples = p->group, .rows = t, .n = n, .k = k);
    RUN(p, MATMUL, matmul, .mode = KMATMUL_BACKWARD_INPUT, .out = part(p, dx, t * k),
        .a = part(p, y, t * n), .b = w, .samples = p->group, .rows = t, .n = n, .k = k,
        .accumulate = true);
    RUN(p, MATMUL, matmul, .mode = KMATMUL_BACKWARD_WEIGHT, .out = dw, .a = part(p, y, t * n),
        .b = part(p, x, t * k), .samples = p->group, .rows = t, .n = n, .k = k, .accumulate = true);
}

static void run_norm(struct pass *p)
{
    int64_t t = p->rows, n = t * C;
    struct kbuf x = random_buf(p, S * n), res = random_buf(p, S * n), w = random_buf(p, C);
    struct kbuf y = new_result(p, S * n), rstd = new_result(p, S * t), h = new_result(p, S * n);
    struct kbuf dx = new_result(p, S * n), dw = result(p, random_buf(p, C));
    RUN(p, NORM_FORWARD, norm_forward, .y = part(p, y, n), .rstd = part(p, rstd, t),
        .sum = part(p, h, n), .x = part(p, x, n), .residual = part(p, res, n), .weight = w,
        .samples = p->group, .rows = t, .dim = C, .eps = 1e-5);
    RUN(p, NORM_BACKWARD_INPUT, norm_backward_input, .dx = part(p, dx, n),
        .dresidual = part(p, res, n), .dy = part(p, x, n), .h = part(p, h, n),
        .rstd = part(p, rstd, t), .weight = w, .samples = p->group, .rows = t, .dim = C);
    RUN(p, NORM_BACKWARD_WEIGHT, norm_backward_weight, .dweight = dw, .dy = part(p, x, n),
        .h = part(p, h, n), .rstd = part(p, rstd, t), .samples = p->group, .rows = t, .dim = C);
}

static void run_attention(struct pass *p)
{
    int64_t t = p->rows, nq = t * H * D, nk = t * G * D, nl = H * t;
    struct kbuf q = result(p, random_buf(p, S * nq)), k = random_buf(p, S * nk);
    struct kbuf v = random_buf(p, S * nk), dout = random_buf(p, S * nq);
    struct kbuf table = random_buf(p, t * D), o = new_result(p, S * nq);
    struct kbuf lse = new_result(p, S * nl), dq = new_result(p, S * nq);
    struct kbuf dk = new_result(p, S * nk), dv = new_result(p, S * nk);
    RUN(p, ROPE, rope, .x = part(p, q, nq), .table = table, .samples = p->group, .rows = t,
        .heads = H, .dim = D);
    RUN(p, ATTENTION_FORWARD, attention_forward, .o = part(p, o, nq), .lse = part(p, lse, nl),
        .q = part(p, q, nq), .k = part(p, k, nk), .v = part(p, v, nk), .samples = p->group,
        .rows = t, .heads = H, .kv_heads = G, .dim = D);
    RUN(p, ATTENTION_BACKWARD, attention_backward, .dq = part(p, dq, nq), .dk = part(p, dk, nk),
        .dv = part(p, dv, nk), .dout = part(p, dout, nq), .o = part(p, o, nq),
        .lse = part(p, lse, nl), .q = part(p, q, nq), .k = part(p, k, nk), .v = part(p, v, nk),
        .samples = p->group, .rows = t, .heads = H, .kv_heads = G, .dim = D);
}

static void run_swiglu(struct pass *p)
{
    int64_t n = p->rows * 37;
    struct kbuf gate = result(p, random_buf(p, S * n)), up = result(p, random_buf(p, S * n));
    struct kbuf h = new_result(p, S * n);
    RUN(p, SWIGLU_FORWARD, swiglu_forward, .out = part(p, h, n), .gate = part(p, gate, n),
        .up = part(p, up, n));
    RUN(p, SWIGLU_BACKWARD, swiglu_backward, .dgate = part(p, gate, n), .dup = part(p, up, n),
        .dh = part(p, h, n), .gate = part(p, gate, n), .up = part(p, up, n));
}

static void run_tokens(struct pass *p)
{
    int64_t t = p->rows;
    double *ids = doubles(S * t);
    for (int64_t i = 0; i < S * t; i++)
        ids[i] = (double)(i * i * 31 % V);
    struct kbuf tokens = put_as(&p->rig, K_I32, ids, S * t);
    struct kbuf table = random_buf(p, V * C), y = new_result(p, S * t * C);
    struct kbuf dtable = result(p, random_buf(p, V * C)), logits = random_buf(p, S * t * V);
    struct kbuf max = make(&p->rig, p->rig.dtype, S * t);
    struct kbuf sums = make(&p->rig, p->rig.dtype, 2 * S * t);
    struct kbuf loss = result(p, make(&p->rig, K_F64, S)), d = new_result(p, S * t * V);
    RUN(p, EMBEDDING_FORWARD, embedding, .out = part(p, y, t * C), .table_or_dy = table,
        .tokens = part(p, tokens, t), .count = p->group * t, .dim = C, .vocab = V);
    RUN(p, EMBEDDING_BACKWARD, embedding, .out = dtable, .table_or_dy = part(p, y, t * C),
        .tokens = part(p, tokens, t), .count = p->group * t, .dim = C, .vocab = V);
    EACH_GROUP(p)
    {
        struct kop op = {.xent = {.logits = part(p, logits, t * V),
                                  .targets = part(p, tokens, t),
                                  .max = part(p, max, t),
                                  .sums = part(p, sums, 2 * t),
                                  .loss = part(p, loss, 1),
                                  .dlogits = part(p, d, t * V),
                                  .samples = p->group,
                                  .rows = t,
                                  .vocab = V,
                                  .scale = 0.125}};
        for (op.kind = KOP_XENT_MAX; op.kind <= KOP_XENT_LOSS; op.kind++)
            kernels_submit(p->rig.k, p->rig.stream, &op);
    }
    free(ids);
}

typedef void run_fn(struct pass *p);

static void run_linears(struct pass *p)
{
    run_linear(p, 133, 75);
    run_linear(p, 40, 300);
    run_linear(p, 64, 64);
}

static void run_others(struct pass *p)
{
    run_norm(p);
    run_attention(p);
    run_swiglu(p);
    run_tokens(p);
}

/* The bytes of all results, one after the other. */
static char *pass_bytes(run_fn *run, enum kdtype dtype, int64_t rows, int threads, int64_t group,
                        size_t *size)
{
    struct pass p = {.rig = rig_open(threads, dtype), .rows = rows, .group = group};
    char *all = NULL;
    *size = 0;
    run(&p);
    for (int i = 0; i < p.outputs; i++) {
        size_t n = p.out[i].count * kdtype_bytes(p.out[i].dtype);
        char *one = bytes_of(&p.rig, p.out[i]);
        all = realloc(all, *size + n);
        assert_non_null(all);
        memcpy(all + *size, one, n);
        *size += n;
        free(one);
    }
    rig_close(&p.rig);
    return all;
}

static void compare_passes(run_fn *run, enum kdtype dtype, int64_t rows)
{
    static const struct {
        int threads;
        int64_t group;
    } others[] = {{2, 4}, {3, 4}, {1, 1}, {3, 1}, {2, 2}};
    size_t size, other_size;
    char *want = pass_bytes(run, dtype, rows, 1, 4, &size);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        char *got = pass_bytes(run, dtype, rows, others[i].threads, others[i].group, &other_size);
        assert_int_equal(other_size, size);
        for (size_t at = 0; at < size; at++)
            if (got[at] != want[at])
                fail_msg("%s, %lld rows: %d threads, groups of %lld: byte %zu of %zu differs from "
                         "1 thread, groups of 4",
                         kdtype_name(dtype), (long long)rows, others[i].threads,
                         (long long)others[i].group, at, size);
        free(got);
    }
    free(want);
}

static void test_linear_f32(void **state)
{
    (void)state;
    compare_passes(run_linears, K_F32, 77);
    compare_passes(run_linears, K_F32, 300);
    compare_passes(run_linears, K_F32, 400);
}

static void test_linear_f64(void **state)
{
    (void)state;
    compare_passes(run_linears, K_F64, 77);
    compare_passes(run_linears, K_F64, 400);
}

static void test_layers_f32(void **state)
{
    (void)state;
    compare_passes(run_others, K_F32, 77);
    compare_passes(run_others, K_F32, 201);
}

static void test_layers_f64(void **state)
{
    (void)state;
    compare_passes(run_others, K_F64, 131);
}

/* An element has the same bits wherever in a buffer a shard begins: sharded optimizers rely on it.
 */
static void test_shards(void **state)
{
    enum { N = 1003 };
    const double now[KSTEP_COUNT] = {0.01, 0.1, 0.05}, one = 0.7;
    static const enum kdtype dtypes[] = {K_F64, K_F32};
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct rig r = rig_open(2, dtypes[d]);
        double *start[4];
        void *bytes[2];
        for (int i = 0; i < 4; i++)
            start[i] = normals((uint64_t)i, N, 1);
        for (int i = 0; i < N; i++)
            start[3][i] = fabs(start[3][i]);
        struct kbuf step = put_as(&r, K_F64, now, KSTEP_COUNT), factor = put_as(&r, K_F64, &one, 1);
        for (size_t cut = 0; cut < 2; cut++) {
            struct kbuf b[4];
            for (int i = 0; i < 4; i++)
                b[i] = put(&r, start[i], N);
            size_t width = cut ? 37 : N;
            for (size_t at = 0; at < N; at += width) {
                size_t n = at + width < N ? width : N - at;
                KSUBMIT(r.k, r.stream, ADAMW, adamw, .param = kbuf_slice(b[0], at, n),
                        .grad = kbuf_slice(b[1], at, n), .m = kbuf_slice(b[2], at, n),
                        .v = kbuf_slice(b[3], at, n), .step = step, .factor = factor, .beta1 = 0.9,
                        .beta2 = 0.95, .eps = 1e-8, .decay = 0.1);
            }
            bytes[cut] = bytes_of(&r, b[0]);
        }
        assert_memory_equal(bytes[0], bytes[1], N * kdtype_bytes(dtypes[d]));
        for (int i = 0; i < 4; i++)
            free(start[i]);
        free(bytes[0]), free(bytes[1]);
        rig_close(&r);
    }
}

/* ---- several devices at once, as ranks that are threads of one process ---- */

enum { RANKS = 4, REPEATS = 30, RANK_ROWS = 130, RANK_DIM = 70 };

struct rank {
    struct rig rig;
    struct kop product, attention;
    pthread_t thread;
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    for (int i = 0; i < REPEATS; i++) {
        kernels_submit(r->rig.k, r->rig.stream, &r->product);
        kernels_submit(r->rig.k, r->rig.stream, &r->attention);
    }
    return NULL;
}

/* y += x w^T and causal attention of y with itself, over and over. */
static void rank_open(struct rank *r, int threads)
{
    struct pass p = {.rig = rig_open(threads, K_F32)};
    int64_t n = RANK_ROWS * RANK_DIM;
    struct kbuf x = random_buf(&p, n), w = random_buf(&p, RANK_DIM * RANK_DIM);
    struct kbuf y = random_buf(&p, n), lse = make(&p.rig, K_F32, RANK_ROWS * 2);
    r->rig = p.rig;
    r->product = (struct kop){.kind = KOP_MATMUL,
                              .matmul = {.mode = KMATMUL_FORWARD,
                                         .out = y,
                                         .a = x,
                                         .b = w,
                                         .samples = 1,
                                         .rows = RANK_ROWS,
                                         .n = RANK_DIM,
                                         .k = RANK_DIM,
                                         .accumulate = true}};
    r->attention = (struct kop){.kind = KOP_ATTENTION_FORWARD,
                                .attention_forward = {.o = x,
                                                      .lse = lse,
                                                      .q = y,
                                                      .k = y,
                                                      .v = y,
                                                      .samples = 1,
                                                      .rows = RANK_ROWS,
                                                      .heads = 2,
                                                      .kv_heads = 2,
                                                      .dim = RANK_DIM / 2}};
}

static void test_ranks_as_threads(void **state)
{
    struct rank alone, ranks[RANKS];
    size_t bytes = RANK_ROWS * RANK_DIM * sizeof(float);
    (void)state;
    rank_open(&alone, 1);
    rank_main(&alone);
    char *want = bytes_of(&alone.rig, alone.attention.attention_forward.o);
    for (int i = 0; i < RANKS; i++)
        rank_open(&ranks[i], 1 + i % 2);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < RANKS; i++) {
        char *got = bytes_of(&ranks[i].rig, ranks[i].attention.attention_forward.o);
        assert_memory_equal(got, want, bytes);
        free(got);
        rig_close(&ranks[i].rig);
    }
    free(want);
    rig_close(&alone.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_f32), cmocka_unit_test(test_linear_f64),
        cmocka_unit_test(test_layers_f32), cmocka_unit_test(test_layers_f64),
        cmocka_unit_test(test_shards),     cmocka_unit_test(test_ranks_as_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
