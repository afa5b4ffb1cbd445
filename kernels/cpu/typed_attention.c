/* typed_attention.c - causal grouped-query attention in tiles, with a running softmax (Milakov and
 * Gimelshein 2018; Dao et al. 2022): nothing of size T*T is ever held.
 *
 * Forward: a tile is (sample, query head, block of queries). It walks over blocks of keys up to its
 * own last query, keeping for each query the largest score m, the sum l of exp(score - m) and the
 * unnormalised output; a larger m rescales both. At the end o = acc / l and lse = m + log l.
 *
 * Backward: with p = exp(score - lse) and delta = sum_d do*o, the gradient of a scaled score is
 * ds = p * (do.v - delta). A tile is (sample, key/value head): for each block of keys, each query
 * head of the group and each block of queries at or after it,
 *   dv += p^T do,   dk += ds^T q * scale,   dq += ds k * scale,
 * so every sum's order is fixed by the shape of one sample.
 *
 * The products inside go to the BLAS: at these sizes it runs near its full speed. */
#include "typed.h"

/* Blocks, measured: forward, fewer queries waste less above the diagonal and more keys rescale
 * less; backward has five products to a block and likes them square. */
enum { FORWARD_QUERIES = 32, FORWARD_KEYS = 256, BACKWARD_QUERIES = 64, BACKWARD_KEYS = 128 };

/* What a tile knows of its tensors: pointers to its head's first row, and row strides. */
struct view {
    const real *at;
    int64_t stride;
};

static struct view head_of(struct kbuf buf, int64_t sample, int64_t rows, int64_t heads,
                           int64_t head, int64_t dim)
{
    return (struct view){real_of(buf) + (sample * rows * heads + head) * dim, heads * dim};
}

/* ---- forward ---- */

struct forward_scratch {
    real scores[FORWARD_QUERIES * FORWARD_KEYS];
    real largest[FORWARD_QUERIES], sum[FORWARD_QUERIES];
    real acc[]; /* (FORWARD_QUERIES, dim) */
};

/* Turn one query's scores into exp(score - m), the later keys to 0; rescale what was there. valid:
 * keys this query sees in the block, at least 1. */
static void softmax_row(struct forward_scratch *s, int64_t r, int64_t valid, int64_t keys,
                        int64_t dim)
{
    real *x = s->scores + r * FORWARD_KEYS, *acc = s->acc + r * dim;
    const vec least = vsplat(-(real)INFINITY);
    for (int64_t i = valid; i < keys; i++)
        x[i] = -(real)INFINITY;
    /* Beyond keys the row's memory holds old numbers: whole vectors are read, so blank them. */
    int64_t padded = cpu_tiles(keys, LANES) * LANES;
    for (int64_t i = keys; i < padded; i++)
        x[i] = -(real)INFINITY;
    vec most = least;
    for (int64_t i = 0; i < padded; i += LANES)
        most = vmax(vload(x + i), most);
    real before = s->largest[r], m = vlargest(most);
    m = before > m ? before : m;
    vec sum = {0};
    for (int64_t i = 0; i < padded; i += LANES) {
        vec p = vexp(vload(x + i) - vsplat(m));
        sum += p;
        vstore(x + i, p);
    }
    if (m == before) {
        s->sum[r] += vsum(sum);
        return;
    }
    vec factor = vexp(vsplat(before - m));
    s->largest[r] = m;
    s->sum[r] = s->sum[r] * factor[0] + vsum(sum);
    for (int64_t i = 0; i < dim; i += LANES)
        vput(acc + i, vget(acc + i, dim - i) * factor, dim - i);
}

static void forward_keys(const struct kop_attention_forward *o, struct forward_scratch *s,
                         struct view q, struct view k, struct view v, int64_t q0, int64_t queries,
                         int64_t k0)
{
    int64_t keys = cpu_min(FORWARD_KEYS, q0 + queries - k0), dim = o->dim;
    gemm(false, true, queries, keys, dim, (real)(1.0 / sqrt((double)dim)), q.at + q0 * q.stride,
         q.stride, k.at + k0 * k.stride, k.stride, 0, s->scores, FORWARD_KEYS);
    for (int64_t r = 0; r < queries; r++)
        softmax_row(s, r, cpu_min(keys, q0 + r - k0 + 1), keys, dim);
    gemm(false, false, queries, dim, keys, 1, s->scores, FORWARD_KEYS, v.at + k0 * v.stride,
         v.stride, k0 == 0 ? 0 : 1, s->acc, dim);
}

struct attention {
    struct cpu *cpu;
    const void *op;
};

static void forward_tile(void *arg, int64_t tile, int thread)
{
    const struct attention *a = arg;
    const struct kop_attention_forward *o = a->op;
    struct forward_scratch *s = cpu_scratch(a->cpu, thread);
    int64_t blocks = cpu_tiles(o->rows, FORWARD_QUERIES);
    /* The longest rows first: the last tiles are the short ones, and threads end together. */
    int64_t block = blocks - 1 - tile % blocks, head = tile / blocks % o->heads;
    int64_t sample = tile / blocks / o->heads, kv_head = head / (o->heads / o->kv_heads);
    int64_t q0 = block * FORWARD_QUERIES, queries = cpu_min(FORWARD_QUERIES, o->rows - q0),
            dim = o->dim;
    struct view q = head_of(o->q, sample, o->rows, o->heads, head, dim);
    struct view k = head_of(o->k, sample, o->rows, o->kv_heads, kv_head, dim);
    struct view v = head_of(o->v, sample, o->rows, o->kv_heads, kv_head, dim);
    for (int64_t r = 0; r < queries; r++) {
        s->largest[r] = -(real)INFINITY;
        s->sum[r] = 0;
    }
    memset(s->acc, 0, (size_t)(queries * dim) * sizeof(real));
    for (int64_t k0 = 0; k0 < q0 + queries; k0 += FORWARD_KEYS)
        forward_keys(o, s, q, k, v, q0, queries, k0);
    real *out = real_of(o->o) + ((sample * o->rows + q0) * o->heads + head) * dim;
    real *lse = real_of(o->lse) + (sample * o->heads + head) * o->rows + q0;
    for (int64_t r = 0; r < queries; r++, out += o->heads * dim) {
        vec inverse = vsplat(1 / s->sum[r]);
        lse[r] = s->largest[r] + (real)log((double)s->sum[r]);
        for (int64_t i = 0; i < dim; i += LANES)
            vput(out + i, vget(s->acc + r * dim + i, dim - i) * inverse, dim - i);
    }
}

/* Nanoseconds of n multiply-adds in the BLAS, about; half are skipped by causality. */
static double causal_ns(int64_t samples, int64_t heads, int64_t rows, int64_t dim, double products)
{
    return products * (double)(samples * heads) * (double)rows * (double)rows * (double)dim / 60;
}

int TYPED(cpu_attention_forward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_attention_forward *o = &op->attention_forward;
    struct attention a = {cpu, o};
    size_t bytes = sizeof(struct forward_scratch) + sizeof(real) * FORWARD_QUERIES * (size_t)o->dim;
    if (cpu_scratch_reserve(cpu, bytes, err) != 0)
        return -1;
    pool_run(cpu->pool, o->samples * o->heads * cpu_tiles(o->rows, FORWARD_QUERIES),
             causal_ns(o->samples, o->heads, o->rows, o->dim, 2), forward_tile, &a);
    return 0;
}

/* ---- backward ---- */

struct backward_scratch {
    real p[BACKWARD_QUERIES * BACKWARD_KEYS];
    real ds[BACKWARD_QUERIES * BACKWARD_KEYS];
};

/* p = exp(score - lse), 0 for keys the query does not see; ds = p * (ds - delta). */
static void backward_row(struct backward_scratch *s, int64_t r, int64_t valid, int64_t keys,
                         real lse, real delta)
{
    real *p = s->p + r * BACKWARD_KEYS, *ds = s->ds + r * BACKWARD_KEYS;
    for (int64_t i = cpu_min(valid < 0 ? 0 : valid, keys); i < keys; i++)
        p[i] = -(real)INFINITY;
    for (int64_t i = 0; i < keys; i += LANES) {
        int64_t n = keys - i;
        vec weight = vexp(vget(p + i, n) - vsplat(lse));
        vput(p + i, weight, n);
        vput(ds + i, weight * (vget(ds + i, n) - vsplat(delta)), n);
    }
}

/* A block of queries of one query head against a block of keys. */
struct pair {
    int64_t q0, queries, k0, keys;
};

static void backward_pair(const struct kop_attention_backward *o, struct backward_scratch *s,
                          int64_t sample, int64_t head, struct pair b)
{
    int64_t dim = o->dim, kv_head = head / (o->heads / o->kv_heads);
    int64_t stride = o->heads * dim, kv_stride = o->kv_heads * dim;
    int64_t qat = (sample * o->rows + b.q0) * stride + head * dim;
    int64_t kat = (sample * o->rows + b.k0) * kv_stride + kv_head * dim;
    const real *q = real_of(o->q) + qat, *dout = real_of(o->dout) + qat, *out = real_of(o->o) + qat;
    const real *k = real_of(o->k) + kat, *v = real_of(o->v) + kat;
    const real *lse = real_of(o->lse) + (sample * o->heads + head) * o->rows + b.q0;
    real scale = (real)(1.0 / sqrt((double)dim));
    gemm(false, true, b.queries, b.keys, dim, scale, q, stride, k, kv_stride, 0, s->p,
         BACKWARD_KEYS);
    gemm(false, true, b.queries, b.keys, dim, 1, dout, stride, v, kv_stride, 0, s->ds,
         BACKWARD_KEYS);
    for (int64_t r = 0; r < b.queries; r++)
        backward_row(s, r, b.q0 + r - b.k0 + 1, b.keys, lse[r],
                     vdot(dout + r * stride, out + r * stride, dim));
    gemm(true, false, b.keys, dim, b.queries, 1, s->p, BACKWARD_KEYS, dout, stride, 1,
         real_of(o->dv) + kat, kv_stride);
    gemm(true, false, b.keys, dim, b.queries, scale, s->ds, BACKWARD_KEYS, q, stride, 1,
         real_of(o->dk) + kat, kv_stride);
    gemm(false, false, b.queries, dim, b.keys, scale, s->ds, BACKWARD_KEYS, k, kv_stride,
         b.k0 == 0 ? 0 : 1, real_of(o->dq) + qat, stride);
}

static void clear_head(struct kbuf buf, const struct kop_attention_backward *o, int64_t sample,
                       int64_t kv_head)
{
    for (int64_t row = sample * o->rows; row < (sample + 1) * o->rows; row++)
        memset(real_of(buf) + (row * o->kv_heads + kv_head) * o->dim, 0,
               (size_t)o->dim * sizeof(real));
}

static void backward_tile(void *arg, int64_t tile, int thread)
{
    const struct attention *a = arg;
    const struct kop_attention_backward *o = a->op;
    struct backward_scratch *s = cpu_scratch(a->cpu, thread);
    int64_t sample = tile / o->kv_heads, kv_head = tile % o->kv_heads;
    int64_t group = o->heads / o->kv_heads;
    clear_head(o->dk, o, sample, kv_head);
    clear_head(o->dv, o, sample, kv_head);
    for (int64_t k0 = 0; k0 < o->rows; k0 += BACKWARD_KEYS)
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            for (int64_t q0 = k0; q0 < o->rows; q0 += BACKWARD_QUERIES) {
                int64_t queries = cpu_min(BACKWARD_QUERIES, o->rows - q0);
                int64_t keys = cpu_min(BACKWARD_KEYS, q0 + queries - k0);
                backward_pair(o, s, sample, head, (struct pair){q0, queries, k0, keys});
            }
}

int TYPED(cpu_attention_backward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_attention_backward *o = &op->attention_backward;
    struct attention a = {cpu, o};
    if (cpu_scratch_reserve(cpu, sizeof(struct backward_scratch), err) != 0)
        return -1;
    pool_run(cpu->pool, o->samples * o->kv_heads,
             causal_ns(o->samples, o->heads, o->rows, o->dim, 5), backward_tile, &a);
    return 0;
}
