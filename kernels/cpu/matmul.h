/* matmul.h - the panels matrix products are cut into. They depend on shapes alone and are part of
 * the device's signature: another panel size is another order of sums. */
#ifndef GTRAIN_CPU_MATMUL_H
#define GTRAIN_CPU_MATMUL_H

#include <stdint.h>

/* Rows of a sample in one call of the BLAS, about; and columns of the output, where it is small
 * (wider where there are many). Measured: calls of 256 x 128 run within a few per cent of the
 * speed of whole products. */
enum { MATMUL_PANEL_ROWS = 256, MATMUL_PANEL_COLS = 128 };

/* A range cut into equal parts, multiples of 16 long but for the last. */
struct panels {
    int64_t count, size, total;
};

static inline struct panels panels_cut(int64_t total, int64_t about)
{
    int64_t count = (total + about / 2) / about;
    if (count < 1)
        count = 1;
    int64_t size = ((total + count - 1) / count + 15) / 16 * 16;
    if (size < 16)
        size = 16;
    return (struct panels){.count = (total + size - 1) / size, .size = size, .total = total};
}

static inline struct panels panels_of_rows(int64_t rows)
{
    return panels_cut(rows, MATMUL_PANEL_ROWS);
}

static inline struct panels panels_of_cols(int64_t cols)
{
    return panels_cut(cols, cols <= 512 ? MATMUL_PANEL_COLS : 2 * MATMUL_PANEL_COLS);
}

static inline int64_t panel_begin(struct panels p, int64_t i)
{
    return i * p.size;
}

static inline int64_t panel_length(struct panels p, int64_t i)
{
    int64_t left = p.total - i * p.size;
    return left < p.size ? left : p.size;
}

#endif
