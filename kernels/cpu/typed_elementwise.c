/* typed_elementwise.c - operations whose every output element depends on its own inputs alone.
 *
 * A tile is a range of ELEMENTS_TILE elements. An element's bits do not depend on where in a
 * vector it lies, so they do not depend on how a buffer is cut either. Loads of a vector come
 * before its stores: outputs may be inputs. */
#include "typed.h"

struct span {
    int64_t begin, end;
};

static struct span tile_span(int64_t tile, int64_t count)
{
    int64_t begin = tile * ELEMENTS_TILE;
    return (struct span){begin, cpu_min(begin + ELEMENTS_TILE, count)};
}

static void run_elements(struct cpu *cpu, size_t count, double ns_each, pool_fn *fn, const void *op)
{
    pool_run(cpu->pool, cpu_tiles((int64_t)count, ELEMENTS_TILE), ns_each * (double)count, fn,
             (void *)op);
}

static void add_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_add *o = arg;
    real *out = real_of(o->out), *a = real_of(o->a), *b = real_of(o->b);
    struct span s = tile_span(tile, (int64_t)o->out.count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES)
        vput(out + i, vget(a + i, s.end - i) + vget(b + i, s.end - i), s.end - i);
}

int TYPED(cpu_add)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->add.out.count, NS_STREAMED, add_tile, &op->add);
    return 0;
}

static void scale_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_scale *o = arg;
    real *x = real_of(o->x);
    vec factor = vsplat((real) * (double *)cpu_data(o->factor));
    struct span s = tile_span(tile, (int64_t)o->x.count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES)
        vput(x + i, vget(x + i, s.end - i) * factor, s.end - i);
}

int TYPED(cpu_scale)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->scale.x.count, NS_STREAMED, scale_tile, &op->scale);
    return 0;
}

static void sum_n_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_sum_n *o = arg;
    real *out = real_of(o->out), *in = real_of(o->in);
    int64_t count = (int64_t)o->out.count;
    struct span s = tile_span(tile, count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES) {
        vec sum = vget(in + i, s.end - i);
        for (int part = 1; part < o->n; part++)
            sum += vget(in + part * count + i, s.end - i);
        vput(out + i, sum, s.end - i);
    }
}

static void max_n_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_sum_n *o = arg;
    real *out = real_of(o->out), *in = real_of(o->in);
    int64_t count = (int64_t)o->out.count;
    struct span s = tile_span(tile, count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES) {
        vec largest = vget(in + i, s.end - i);
        for (int part = 1; part < o->n; part++)
            largest = vmax(vget(in + part * count + i, s.end - i), largest);
        vput(out + i, largest, s.end - i);
    }
}

int TYPED(cpu_sum_n)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->sum_n.out.count, NS_STREAMED * op->sum_n.n, sum_n_tile, &op->sum_n);
    return 0;
}

int TYPED(cpu_max_n)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->sum_n.out.count, NS_STREAMED * op->sum_n.n, max_n_tile, &op->sum_n);
    return 0;
}

static void adamw_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_adamw *o = arg;
    const double *step = cpu_data(o->step);
    real *param = real_of(o->param), *grad = real_of(o->grad);
    real *first = real_of(o->m), *second = real_of(o->v);
    vec factor = vsplat((real) * (double *)cpu_data(o->factor));
    vec beta1 = vsplat((real)o->beta1), rest1 = vsplat((real)(1.0 - o->beta1));
    vec beta2 = vsplat((real)o->beta2), rest2 = vsplat((real)(1.0 - o->beta2));
    vec lr = vsplat((real)step[KSTEP_LR]), eps = vsplat((real)o->eps);
    vec correction1 = vsplat((real)step[KSTEP_CORRECTION1]);
    vec correction2 = vsplat((real)step[KSTEP_CORRECTION2]);
    vec decay = vsplat((real)o->decay);
    struct span s = tile_span(tile, (int64_t)o->param.count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES) {
        int64_t n = s.end - i;
        vec p = vget(param + i, n), g = vget(grad + i, n) * factor;
        vec m = beta1 * vget(first + i, n) + rest1 * g;
        vec v = beta2 * vget(second + i, n) + rest2 * g * g;
        vec denominator = vsqrt(v / correction2) + eps;
        p -= lr * (m / correction1 / denominator + decay * p);
        vput(first + i, m, n);
        vput(second + i, v, n);
        vput(param + i, p, n);
    }
}

int TYPED(cpu_adamw)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->adamw.param.count, 4 * NS_STREAMED, adamw_tile, &op->adamw);
    return 0;
}

static vec sigmoid(vec x)
{
    return vsplat(1) / (vsplat(1) + vexp(-x));
}

static void swiglu_forward_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_swiglu_forward *o = arg;
    real *out = real_of(o->out), *gate = real_of(o->gate), *up = real_of(o->up);
    struct span s = tile_span(tile, (int64_t)o->out.count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES) {
        vec g = vget(gate + i, s.end - i);
        vput(out + i, g * sigmoid(g) * vget(up + i, s.end - i), s.end - i);
    }
}

int TYPED(cpu_swiglu_forward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->swiglu_forward.out.count, NS_EXP, swiglu_forward_tile,
                 &op->swiglu_forward);
    return 0;
}

/* d/dg (g s(g)) = s + g s (1 - s) */
static void swiglu_backward_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_swiglu_backward *o = arg;
    real *dgate = real_of(o->dgate), *dup = real_of(o->dup), *dh = real_of(o->dh);
    real *gate = real_of(o->gate), *up = real_of(o->up);
    struct span s = tile_span(tile, (int64_t)o->dgate.count);
    (void)thread;
    for (int64_t i = s.begin; i < s.end; i += LANES) {
        int64_t n = s.end - i;
        vec g = vget(gate + i, n), u = vget(up + i, n), d = vget(dh + i, n);
        vec sig = sigmoid(g), silu = g * sig;
        vput(dgate + i, d * u * (sig + silu * (vsplat(1) - sig)), n);
        vput(dup + i, d * silu, n);
    }
}

int TYPED(cpu_swiglu_backward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_elements(cpu, op->swiglu_backward.dgate.count, 1.5 * NS_EXP, swiglu_backward_tile,
                 &op->swiglu_backward);
    return 0;
}

/* One position's heads; the pairs (i, i + half) turn by the position's angles. */
static void rope_row(const struct kop_rope *o, real *x, const real *angles)
{
    int64_t half = o->dim / 2;
    const real *cosine = angles, *sine = angles + half;
    vec sign = vsplat(o->inverse ? -1 : 1);
    for (int64_t head = 0; head < o->heads; head++, x += o->dim)
        for (int64_t i = 0; i < half; i += LANES) {
            int64_t n = half - i;
            vec a = vget(x + i, n), b = vget(x + half + i, n);
            vec c = vget(cosine + i, n), s = vget(sine + i, n) * sign;
            vput(x + i, a * c - b * s, n);
            vput(x + half + i, b * c + a * s, n);
        }
}

static void rope_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_rope *o = arg;
    int64_t width = o->heads * o->dim, step = tile_rows(width);
    int64_t end = cpu_min((tile + 1) * step, o->samples * o->rows);
    (void)thread;
    for (int64_t row = tile * step; row < end; row++)
        rope_row(o, real_of(o->x) + row * width,
                 real_of(o->table) + (o->first + row % o->rows) * o->dim);
}

int TYPED(cpu_rope)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_rope *o = &op->rope;
    int64_t rows = o->samples * o->rows, width = o->heads * o->dim;
    (void)err;
    if (width > 0)
        pool_run(cpu->pool, cpu_tiles(rows, tile_rows(width)),
                 2 * NS_STREAMED * (double)(rows * width), rope_tile, (void *)o);
    return 0;
}
