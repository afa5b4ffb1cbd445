/* test_kernels_reference.h - the layers in the plainest form, in double, for tests to compare with.
 * Formulas only: no blocks, no threads, no cleverness. */
#ifndef TEST_KERNELS_REFERENCE_H
#define TEST_KERNELS_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* c (m, n) += op(a) op(b); ta, tb: the operand is stored transposed. */
static inline void ref_matmul(double *c, const double *a, const double *b, int64_t m, int64_t n,
                              int64_t k, int ta, int tb)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            long double sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += (long double)(ta ? a[p * m + i] : a[i * k + p]) *
                       (tb ? b[j * k + p] : b[p * n + j]);
            c[i * n + j] += (double)sum;
        }
}

/* y = h * rstd * weight with h = x + residual (may be NULL). */
static inline void ref_norm(double *y, double *rstd, double *h, const double *x,
                            const double *residual, const double *weight, int64_t rows, int64_t dim,
                            double eps)
{
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < dim; i++) {
            double v = x[r * dim + i] + (residual ? residual[r * dim + i] : 0);
            squares += v * v;
            h[r * dim + i] = v;
        }
        rstd[r] = 1 / sqrt(squares / (double)dim + eps);
        for (int64_t i = 0; i < dim; i++)
            y[r * dim + i] = h[r * dim + i] * rstd[r] * weight[i];
    }
}

/* table row: cos (dim/2), sin (dim/2). As a complex number, the pair (i, i + dim/2) is multiplied
 * by cos + i sin. */
static inline void ref_rope(double *x, const double *table, int64_t samples, int64_t rows,
                            int64_t heads, int64_t dim, int64_t first)
{
    int64_t half = dim / 2;
    for (int64_t s = 0; s < samples; s++)
        for (int64_t t = 0; t < rows; t++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t i = 0; i < half; i++) {
                    double *p = x + ((s * rows + t) * heads + h) * dim;
                    double c = table[(first + t) * dim + i],
                           z = table[(first + t) * dim + half + i];
                    double re = p[i], im = p[half + i];
                    p[i] = re * c - im * z;
                    p[half + i] = re * z + im * c;
                }
}

/* o = softmax(q k^T / sqrt(dim), causal) v, one sample; lse of the scaled scores. */
static inline void ref_attention(double *o, double *lse, const double *q, const double *k,
                                 const double *v, int64_t rows, int64_t heads, int64_t kv_heads,
                                 int64_t dim)
{
    double *p = malloc((size_t)rows * sizeof(*p));
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rows; i++) {
            int64_t g = h / (heads / kv_heads);
            double most = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= i; j++) {
                p[j] = 0;
                for (int64_t d = 0; d < dim; d++)
                    p[j] += q[(i * heads + h) * dim + d] * k[(j * kv_heads + g) * dim + d];
                p[j] /= sqrt((double)dim);
                most = fmax(most, p[j]);
            }
            for (int64_t j = 0; j <= i; j++)
                sum += p[j] = exp(p[j] - most);
            lse[h * rows + i] = most + log(sum);
            for (int64_t d = 0; d < dim; d++) {
                double out = 0;
                for (int64_t j = 0; j <= i; j++)
                    out += p[j] / sum * v[(j * kv_heads + g) * dim + d];
                o[(i * heads + h) * dim + d] = out;
            }
        }
    free(p);
}

static inline double ref_swiglu(double gate, double up)
{
    return gate / (1 + exp(-gate)) * up;
}

/* Sum over rows of -log softmax(logits)[target]; targets below 0 are left out. */
static inline double ref_cross_entropy(const double *logits, const double *targets, int64_t rows,
                                       int64_t vocab)
{
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = logits + r * vocab;
        double most = -INFINITY, sum = 0;
        if (targets[r] < 0)
            continue;
        for (int64_t i = 0; i < vocab; i++)
            most = fmax(most, x[i]);
        for (int64_t i = 0; i < vocab; i++)
            sum += exp(x[i] - most);
        loss += most + log(sum) - x[(int64_t)targets[r]];
    }
    return loss;
}

#endif
