/* typed.h - what the typed sources share: the operations' names for one (type, instruction set),
 * the cost of touching memory, and the two BLAS calls behind one name. */
#ifndef GTRAIN_CPU_TYPED_H
#define GTRAIN_CPU_TYPED_H

#include <cblas.h>

#include "cpu.h"
#include "simd.h"

cpu_op_fn TYPED(cpu_add), TYPED(cpu_scale), TYPED(cpu_sum_n), TYPED(cpu_max_n);
cpu_op_fn TYPED(cpu_adamw), TYPED(cpu_swiglu_forward), TYPED(cpu_swiglu_backward), TYPED(cpu_rope);
cpu_op_fn TYPED(cpu_sum_squares), TYPED(cpu_norm_forward), TYPED(cpu_norm_backward_input);
cpu_op_fn TYPED(cpu_norm_backward_weight), TYPED(cpu_matmul), TYPED(cpu_attention_forward);
cpu_op_fn TYPED(cpu_attention_backward), TYPED(cpu_embedding_forward);
cpu_op_fn TYPED(cpu_embedding_backward), TYPED(cpu_xent_max), TYPED(cpu_xent_sum);
cpu_op_fn TYPED(cpu_xent_loss);

/* Elements of one tile of an elementwise operation: a few microseconds of work, and well inside a
 * core's cache. */
enum { ELEMENTS_TILE = 8192 };

/* About what one element costs in nanoseconds, for pool_run: streamed, and with an exponential. */
#define NS_STREAMED 0.25
#define NS_EXP      0.6

static inline real *real_of(struct kbuf buf)
{
    return cpu_data(buf);
}

/* Rows of dim elements that make a tile of about ELEMENTS_TILE. */
static inline int64_t tile_rows(int64_t dim)
{
    int64_t rows = dim > 0 ? ELEMENTS_TILE / dim : 1;
    return rows > 0 ? rows : 1;
}

/* c (m, n) = alpha * op(a) * op(b) + beta * c, row-major; ta, tb: transposed. */
static inline void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
                        const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c,
                        int64_t ldc)
{
    enum CBLAS_TRANSPOSE opa = ta ? CblasTrans : CblasNoTrans, opb = tb ? CblasTrans : CblasNoTrans;
#if REAL_F64
    cblas_dgemm(CblasRowMajor, opa, opb, (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda,
                b, (blasint)ldb, beta, c, (blasint)ldc);
#else
    cblas_sgemm(CblasRowMajor, opa, opb, (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda,
                b, (blasint)ldb, beta, c, (blasint)ldc);
#endif
}

#endif
