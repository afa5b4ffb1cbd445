/* typed_norm.c - RMSNorm and the sum of squares.
 *
 * A row's sum runs over its vectors in order, in two accumulators, and ends in vsum's tree: it
 * depends on the row's length alone. The weight's gradient goes down the rows of a sample for a
 * block of columns at a time, so that its order is that of the rows; blocks are the tiles. */
#include "typed.h"

/* h = x + residual, where there is one; kept in keep, where given. */
static real norm_sum_squares(const real *x, const real *residual, real *keep, int64_t n)
{
    vec even = {0}, odd = {0};
    for (int64_t i = 0; i < n; i += 2 * LANES) {
        vec h = vget(x + i, n - i), g = {0};
        if (residual != NULL)
            h += vget(residual + i, n - i);
        if (keep != NULL)
            vput(keep + i, h, n - i);
        even = vfma(h, h, even);
        int64_t j = i + LANES;
        if (j >= n)
            break;
        g = vget(x + j, n - j);
        if (residual != NULL)
            g += vget(residual + j, n - j);
        if (keep != NULL)
            vput(keep + j, g, n - j);
        odd = vfma(g, g, odd);
    }
    return vsum(even + odd);
}

static void norm_forward_row(const struct kop_norm_forward *o, int64_t row)
{
    int64_t n = o->dim, at = row * n;
    real *y = real_of(o->y) + at, *x = real_of(o->x) + at, *weight = real_of(o->weight);
    real *residual = o->residual.mem != NULL ? real_of(o->residual) + at : NULL;
    real *keep = o->sum.mem != NULL ? real_of(o->sum) + at : NULL;
    double mean = (double)norm_sum_squares(x, residual, keep, n) / (double)n;
    real rstd = (real)(1.0 / sqrt(mean + o->eps));
    real_of(o->rstd)[row] = rstd;
    /* With keep, h is read back: x or residual may have been overwritten by it. */
    const real *h = keep != NULL ? keep : x;
    if (keep != NULL)
        residual = NULL;
    for (int64_t i = 0; i < n; i += LANES) {
        vec v = vget(h + i, n - i);
        if (residual != NULL)
            v += vget(residual + i, n - i);
        vput(y + i, v * vsplat(rstd) * vget(weight + i, n - i), n - i);
    }
}

static void norm_forward_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_norm_forward *o = arg;
    int64_t step = tile_rows(o->dim), end = cpu_min((tile + 1) * step, o->samples * o->rows);
    (void)thread;
    for (int64_t row = tile * step; row < end; row++)
        norm_forward_row(o, row);
}

int TYPED(cpu_norm_forward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_norm_forward *o = &op->norm_forward;
    int64_t rows = o->samples * o->rows;
    (void)err;
    pool_run(cpu->pool, cpu_tiles(rows, tile_rows(o->dim)),
             2 * NS_STREAMED * (double)(rows * o->dim), norm_forward_tile, (void *)o);
    return 0;
}

/* dh = rstd * (dy*w - h * rstd^2 * mean(dy*w*h)) */
static void norm_backward_row(const struct kop_norm_backward_input *o, int64_t row)
{
    int64_t n = o->dim, at = row * n;
    real *dx = real_of(o->dx) + at, *dy = real_of(o->dy) + at, *h = real_of(o->h) + at;
    real *weight = real_of(o->weight);
    real *past = o->dresidual.mem != NULL ? real_of(o->dresidual) + at : NULL;
    double rstd = real_of(o->rstd)[row];
    vec sum = {0};
    for (int64_t i = 0; i < n; i += LANES)
        sum = vfma(vget(dy + i, n - i) * vget(weight + i, n - i), vget(h + i, n - i), sum);
    vec a = vsplat((real)rstd);
    vec b = vsplat((real)(rstd * rstd * rstd * (double)vsum(sum) / (double)n));
    for (int64_t i = 0; i < n; i += LANES) {
        vec d = vget(dy + i, n - i) * vget(weight + i, n - i) * a - vget(h + i, n - i) * b;
        if (past != NULL)
            d += vget(past + i, n - i);
        vput(dx + i, d, n - i);
    }
}

static void norm_backward_input_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_norm_backward_input *o = arg;
    int64_t step = tile_rows(o->dim), end = cpu_min((tile + 1) * step, o->samples * o->rows);
    (void)thread;
    for (int64_t row = tile * step; row < end; row++)
        norm_backward_row(o, row);
}

int TYPED(cpu_norm_backward_input)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_norm_backward_input *o = &op->norm_backward_input;
    int64_t rows = o->samples * o->rows;
    (void)err;
    pool_run(cpu->pool, cpu_tiles(rows, tile_rows(o->dim)),
             3 * NS_STREAMED * (double)(rows * o->dim), norm_backward_input_tile, (void *)o);
    return 0;
}

/* Columns of one tile: as many vectors as stay in registers. */
enum { WEIGHT_VECS = 4, WEIGHT_COLS = WEIGHT_VECS * LANES };

static void norm_weight_sample(const struct kop_norm_backward_weight *o, int64_t sample,
                               int64_t col)
{
    int64_t left = o->dim - col;
    vec acc[WEIGHT_VECS] = {{0}};
    for (int64_t row = sample * o->rows; row < (sample + 1) * o->rows; row++) {
        const real *dy = real_of(o->dy) + row * o->dim + col;
        const real *h = real_of(o->h) + row * o->dim + col;
        vec rstd = vsplat(real_of(o->rstd)[row]);
        for (int v = 0; v < WEIGHT_VECS && v * LANES < left; v++)
            acc[v] = vfma(vget(dy + v * LANES, left - v * LANES),
                          vget(h + v * LANES, left - v * LANES) * rstd, acc[v]);
    }
    real *dweight = real_of(o->dweight) + col;
    for (int v = 0; v < WEIGHT_VECS && v * LANES < left; v++)
        vput(dweight + v * LANES, vget(dweight + v * LANES, left - v * LANES) + acc[v],
             left - v * LANES);
}

static void norm_weight_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_norm_backward_weight *o = arg;
    (void)thread;
    for (int64_t sample = 0; sample < o->samples; sample++)
        norm_weight_sample(o, sample, tile * WEIGHT_COLS);
}

int TYPED(cpu_norm_backward_weight)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_norm_backward_weight *o = &op->norm_backward_weight;
    (void)err;
    pool_run(cpu->pool, cpu_tiles(o->dim, WEIGHT_COLS),
             2 * NS_STREAMED * (double)(o->samples * o->rows * o->dim), norm_weight_tile,
             (void *)o);
    return 0;
}

/* A block's partial sum; blocks are at least SQUARES_BLOCK long and at most SQUARES_BLOCKS many. */
enum { SQUARES_BLOCK = 16384, SQUARES_BLOCKS = 4096 };

struct squares {
    const real *x;
    int64_t count, block;
    double *sums;
};

static void squares_tile(void *arg, int64_t tile, int thread)
{
    const struct squares *s = arg;
    int64_t end = cpu_min((tile + 1) * s->block, s->count);
    dvec sum = {0};
    (void)thread;
    for (int64_t i = tile * s->block; i < end; i += LANES) {
        dvec x = __builtin_convertvector(vget(s->x + i, end - i), dvec);
        sum += x * x;
    }
    double lanes[LANES], total = 0;
    memcpy(lanes, &sum, sizeof(lanes));
    for (int l = 0; l < LANES; l++)
        total += lanes[l];
    s->sums[tile] = total;
}

int TYPED(cpu_sum_squares)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_sum_squares *o = &op->sum_squares;
    struct squares s = {.x = real_of(o->x), .count = (int64_t)o->x.count};
    if (cpu_scratch_reserve(cpu, SQUARES_BLOCKS * sizeof(double), err) != 0)
        return -1;
    s.sums = cpu_scratch(cpu, 0);
    s.block = cpu_tiles(cpu_tiles(s.count, SQUARES_BLOCKS), SQUARES_BLOCK) * SQUARES_BLOCK;
    if (s.block == 0)
        s.block = SQUARES_BLOCK;
    int64_t blocks = cpu_tiles(s.count, s.block);
    pool_run(cpu->pool, blocks, NS_STREAMED * (double)s.count, squares_tile, &s);
    double total = 0;
    for (int64_t i = 0; i < blocks; i++)
        total += s.sums[i];
    *(double *)cpu_data(o->out) = total;
    return 0;
}
