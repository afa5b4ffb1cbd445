/* typed_matmul.c - the three products of a linear layer, as calls of a single-threaded BLAS.
 *
 * A BLAS that threads by itself, or is given more rows at once, adds in another order. So each
 * product is cut into the panels of matmul.h: rows within one sample, columns of the output. One
 * call of the BLAS per panel pair, whoever makes it. In the weights' gradient the output's panels
 * are the tiles and each adds up the row panels, sample after sample. */
#include "typed.h"

#include "matmul.h"

struct product {
    const struct kop_matmul *op;
    struct panels rows; /* of one sample */
    struct panels down; /* of the output's rows, in the weights' gradient */
    struct panels cols; /* of the output's columns */
};

/* Tiles: (sample, row panel, column panel); neighbours share the left operand. */
static void rows_tile(void *arg, int64_t tile, int thread)
{
    const struct product *p = arg;
    const struct kop_matmul *o = p->op;
    int64_t col = tile % p->cols.count, panel = tile / p->cols.count % p->rows.count;
    int64_t sample = tile / p->cols.count / p->rows.count;
    bool forward = o->mode == KMATMUL_FORWARD;
    int64_t depth = forward ? o->k : o->n, width = forward ? o->n : o->k;
    int64_t row = sample * o->rows + panel_begin(p->rows, panel), first = panel_begin(p->cols, col);
    const real *a = real_of(o->a) + row * depth;
    /* w is (n, k): forward takes rows of it, backward columns. */
    const real *b = real_of(o->b) + (forward ? first * o->k : first);
    (void)thread;
    gemm(false, forward, panel_length(p->rows, panel), panel_length(p->cols, col), depth, 1, a,
         depth, b, o->k, o->accumulate ? 1 : 0, real_of(o->out) + row * width + first, width);
}

static void weight_tile(void *arg, int64_t tile, int thread)
{
    const struct product *p = arg;
    const struct kop_matmul *o = p->op;
    int64_t n0 = panel_begin(p->down, tile / p->cols.count);
    int64_t k0 = panel_begin(p->cols, tile % p->cols.count);
    int64_t n = panel_length(p->down, tile / p->cols.count);
    int64_t k = panel_length(p->cols, tile % p->cols.count);
    real *out = real_of(o->out) + n0 * o->k + k0, beta = o->accumulate ? 1 : 0;
    (void)thread;
    for (int64_t sample = 0; sample < o->samples; sample++)
        for (int64_t panel = 0; panel < p->rows.count; panel++) {
            int64_t row = sample * o->rows + panel_begin(p->rows, panel);
            gemm(true, false, n, k, panel_length(p->rows, panel), 1,
                 real_of(o->a) + row * o->n + n0, o->n, real_of(o->b) + row * o->k + k0, o->k, beta,
                 out, o->k);
            beta = 1;
        }
}

/* A sum over nothing is zero. */
static void product_of_nothing(const struct kop_matmul *o)
{
    if (!o->accumulate)
        memset(cpu_data(o->out), 0, o->out.count * sizeof(real));
}

int TYPED(cpu_matmul)(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_matmul *o = &op->matmul;
    struct product p = {.op = o, .rows = panels_of_rows(o->rows)};
    double work_ns = (double)(o->samples * o->rows) * (double)o->n * (double)o->k * 2 / 60;
    (void)err;
    if (o->samples * o->rows == 0 || o->n == 0 || o->k == 0) {
        product_of_nothing(o);
        return 0;
    }
    if (o->mode == KMATMUL_BACKWARD_WEIGHT) {
        p.down = panels_of_cols(o->n);
        p.cols = panels_of_cols(o->k);
        pool_run(cpu->pool, p.down.count * p.cols.count, work_ns, weight_tile, &p);
        return 0;
    }
    p.cols = panels_of_cols(o->mode == KMATMUL_FORWARD ? o->n : o->k);
    pool_run(cpu->pool, o->samples * p.rows.count * p.cols.count, work_ns, rows_tile, &p);
    return 0;
}
