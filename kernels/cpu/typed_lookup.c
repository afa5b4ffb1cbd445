/* typed_lookup.c - embedding and the vocabulary-parallel cross-entropy: the two ends of a model
 * that know tokens.
 *
 * The gradient of the embedding adds rows in token order; its tiles are blocks of columns, so that
 * two threads never meet in one table row. In the cross-entropy a tile is some rows; the sample's
 * loss is added up in float64 in row order by one thread. */
#include "typed.h"

/* Columns of one tile of the embedding's gradient. */
enum { EMBEDDING_COLS = 128 };

static void embedding_forward_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_embedding *o = arg;
    const int32_t *tokens = cpu_data(o->tokens);
    int64_t step = tile_rows(o->dim), end = cpu_min((tile + 1) * step, o->count);
    size_t bytes = (size_t)o->dim * sizeof(real);
    (void)thread;
    for (int64_t i = tile * step; i < end; i++) {
        real *y = real_of(o->out) + i * o->dim;
        int64_t held = tokens[i] - o->first;
        if (held >= 0 && held < o->vocab)
            memcpy(y, real_of(o->table_or_dy) + held * o->dim, bytes);
        else
            memset(y, 0, bytes);
    }
}

int TYPED(cpu_embedding_forward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_embedding *o = &op->embedding;
    (void)err;
    pool_run(cpu->pool, cpu_tiles(o->count, tile_rows(o->dim)),
             NS_STREAMED * (double)(o->count * o->dim), embedding_forward_tile, (void *)o);
    return 0;
}

static void embedding_backward_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_embedding *o = arg;
    const int32_t *tokens = cpu_data(o->tokens);
    int64_t begin = tile * EMBEDDING_COLS, end = cpu_min(begin + EMBEDDING_COLS, o->dim);
    (void)thread;
    for (int64_t i = 0; i < o->count; i++) {
        int64_t held = tokens[i] - o->first;
        if (held < 0 || held >= o->vocab)
            continue;
        real *dtable = real_of(o->out) + held * o->dim;
        const real *dy = real_of(o->table_or_dy) + i * o->dim;
        for (int64_t c = begin; c < end; c += LANES)
            vput(dtable + c, vget(dtable + c, end - c) + vget(dy + c, end - c), end - c);
    }
}

int TYPED(cpu_embedding_backward)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_embedding *o = &op->embedding;
    (void)err;
    pool_run(cpu->pool, cpu_tiles(o->dim, EMBEDDING_COLS),
             2 * NS_STREAMED * (double)(o->count * o->dim), embedding_backward_tile, (void *)o);
    return 0;
}

/* Run fn on row tiles of the logits. extra: tiles after those, for the caller's own use. */
static void run_rows(struct cpu *cpu, const struct kop_xent *o, double ns, int64_t extra,
                     pool_fn *fn)
{
    int64_t rows = o->samples * o->rows;
    pool_run(cpu->pool, cpu_tiles(rows, tile_rows(o->vocab)) + extra,
             ns * (double)(rows * o->vocab), fn, (void *)o);
}

static void xent_max_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_xent *o = arg;
    int64_t step = tile_rows(o->vocab), end = cpu_min((tile + 1) * step, o->samples * o->rows);
    (void)thread;
    for (int64_t row = tile * step; row < end; row++) {
        const real *x = real_of(o->logits) + row * o->vocab;
        vec largest = vsplat(-(real)INFINITY);
        int64_t i = 0;
        for (; i + LANES <= o->vocab; i += LANES)
            largest = vmax(vload(x + i), largest);
        real most = vlargest(largest);
        for (; i < o->vocab; i++)
            most = x[i] > most ? x[i] : most;
        real_of(o->max)[row] = most;
    }
}

int TYPED(cpu_xent_max)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_rows(cpu, &op->xent, NS_STREAMED, 0, xent_max_tile);
    return 0;
}

/* Lanes hold this many terms each before they go into the float64 sum: a vocabulary of 100,000 in
 * f32 lanes alone would cost two digits. */
enum { XENT_BLOCK = 64 * LANES };

static double sum_exp(const real *x, int64_t n, real max)
{
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += XENT_BLOCK) {
        int64_t end = cpu_min(begin + XENT_BLOCK, n), i = begin;
        vec sum = {0}, rest = vsplat(-(real)INFINITY);
        for (; i + LANES <= end; i += LANES)
            sum += vexp(vload(x + i) - vsplat(max));
        if (i < end) {
            memcpy(&rest, x + i, (size_t)(end - i) * sizeof(real));
            sum += vexp(rest - vsplat(max));
        }
        total += (double)vsum(sum);
    }
    return total;
}

static void xent_sum_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_xent *o = arg;
    const int32_t *targets = cpu_data(o->targets);
    int64_t step = tile_rows(o->vocab), end = cpu_min((tile + 1) * step, o->samples * o->rows);
    (void)thread;
    for (int64_t row = tile * step; row < end; row++) {
        const real *x = real_of(o->logits) + row * o->vocab;
        real *sums = real_of(o->sums) + 2 * row, max = real_of(o->max)[row];
        int64_t held = targets[row] - o->first;
        bool here = targets[row] >= 0 && held >= 0 && held < o->vocab;
        sums[0] = (real)sum_exp(x, o->vocab, max);
        sums[1] = here ? x[held] - max : 0;
    }
}

int TYPED(cpu_xent_sum)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    run_rows(cpu, &op->xent, NS_EXP, 0, xent_sum_tile);
    return 0;
}

static void sample_loss(const struct kop_xent *o, int64_t sample)
{
    const int32_t *targets = cpu_data(o->targets);
    const real *sums = real_of(o->sums);
    double loss = 0;
    for (int64_t row = sample * o->rows; row < (sample + 1) * o->rows; row++)
        if (targets[row] >= 0)
            loss += log((double)sums[2 * row]) - (double)sums[2 * row + 1];
    ((double *)cpu_data(o->loss))[sample] = loss;
}

/* (softmax - onehot) * scale; zero where the target is left out. */
static void dlogits_row(const struct kop_xent *o, int64_t row)
{
    int64_t at = row * o->vocab, target = ((const int32_t *)cpu_data(o->targets))[row];
    const real *x = real_of(o->logits) + at;
    real *d = real_of(o->dlogits) + at;
    if (target < 0) {
        memset(d, 0, (size_t)o->vocab * sizeof(real));
        return;
    }
    vec max = vsplat(real_of(o->max)[row]);
    vec factor = vsplat((real)(o->scale / (double)real_of(o->sums)[2 * row]));
    for (int64_t i = 0; i < o->vocab; i += LANES)
        vput(d + i, vexp(vget(x + i, o->vocab - i) - max) * factor, o->vocab - i);
    int64_t held = target - o->first;
    if (held >= 0 && held < o->vocab)
        d[held] -= (real)o->scale;
}

static void xent_loss_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_xent *o = arg;
    int64_t step = tile_rows(o->vocab), rows = o->samples * o->rows;
    (void)thread;
    if (tile < o->samples) {
        sample_loss(o, tile);
        return;
    }
    tile -= o->samples;
    for (int64_t row = tile * step; row < cpu_min((tile + 1) * step, rows); row++)
        dlogits_row(o, row);
}

int TYPED(cpu_xent_loss)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_xent *o = &op->xent;
    (void)err;
    if (o->dlogits.mem != NULL)
        run_rows(cpu, o, NS_EXP, o->samples, xent_loss_tile);
    else
        pool_run(cpu->pool, o->samples, 15.0 * (double)(o->samples * o->rows), xent_loss_tile,
                 (void *)o);
    return 0;
}
