/* simd.h - vectors of one floating type, as wide as the instruction set this file is compiled for.
 *
 * Vectors are gcc's and clang's own vector types: the lanes are in the source, so the order of a
 * sum is what is written here and not what a compiler makes of a loop. The build compiles the typed
 * sources without contraction of a*b + c, so that an element has the same bits in a full vector and
 * in the last, partial one; where a fused one is wanted it says vfma.
 *
 * Needs REAL_F64 (0 or 1) and SUFFIX (_f32_v4 and the like) from the compiler's command line. */
#ifndef GTRAIN_CPU_SIMD_H
#define GTRAIN_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SIMD_PASTE_(a, b) a##b
#define SIMD_PASTE(a, b)  SIMD_PASTE_(a, b)
#define TYPED(name)       SIMD_PASTE(name, SUFFIX)

#if defined(__AVX512F__)
#define VBYTES 64
#elif defined(__AVX2__)
#define VBYTES 32
#else
#define VBYTES 16
#endif

#if REAL_F64
typedef double real;
typedef int64_t ireal;
typedef uint64_t ureal;
#else
typedef float real;
typedef int32_t ireal;
typedef uint32_t ureal;
#endif

enum { LANES = VBYTES / (int)sizeof(real) };

typedef real vec __attribute__((vector_size(VBYTES)));
typedef ireal ivec __attribute__((vector_size(VBYTES)));
typedef ureal uvec __attribute__((vector_size(VBYTES)));
typedef real vec_anywhere __attribute__((vector_size(VBYTES), aligned(sizeof(real)), may_alias));
typedef double dvec __attribute__((vector_size(LANES * 8)));

static inline vec vsplat(real x)
{
    return x - (vec){0};
}

static inline vec vload(const real *p)
{
    return *(const vec_anywhere *)p;
}

static inline void vstore(real *p, vec x)
{
    *(vec_anywhere *)p = x;
}

/* The first n elements (any n > 0; all where n >= LANES), the rest zero. */
static inline vec vget(const real *p, int64_t n)
{
    if (n >= LANES)
        return vload(p);
    vec x = {0};
    memcpy(&x, p, (size_t)n * sizeof(real));
    return x;
}

static inline void vput(real *p, vec x, int64_t n)
{
    if (n >= LANES)
        vstore(p, x);
    else
        memcpy(p, &x, (size_t)n * sizeof(real));
}

/* mask's lanes are all ones (take a) or all zeros (take b), as comparisons give them. */
static inline vec vselect(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

#if defined(__x86_64__)
/* The instructions themselves: compilers do not reliably find them from loops over lanes. */
#if REAL_F64
#define X86_TYPE pd
#else
#define X86_TYPE ps
#endif
#if VBYTES == 64
#define X86(name) SIMD_PASTE(_mm512_##name##_, X86_TYPE)
#elif VBYTES == 32
#define X86(name) SIMD_PASTE(_mm256_##name##_, X86_TYPE)
#else
#define X86(name) SIMD_PASTE(_mm_##name##_, X86_TYPE)
#endif

/* The larger; b where one is not a number. */
static inline vec vmax(vec a, vec b)
{
    return (vec)X86(max)(a, b);
}

static inline vec vsqrt(vec a)
{
    return (vec)X86(sqrt)(a);
}

/* a*b + c, in one rounding where the instruction set has it. */
static inline vec vfma(vec a, vec b, vec c)
{
#if VBYTES > 16
    return (vec)X86(fmadd)(a, b, c);
#else
    return a * b + c;
#endif
}
#else
static inline vec vmax(vec a, vec b)
{
    return vselect(a > b, a, b);
}

static inline vec vsqrt(vec a)
{
    for (int l = 0; l < LANES; l++)
        a[l] = (real)sqrt(a[l]);
    return a;
}

static inline vec vfma(vec a, vec b, vec c)
{
    return a * b + c;
}
#endif

/* Halves added to halves: always the same tree. */
static inline real vsum(vec x)
{
    real a[LANES];
    memcpy(a, &x, sizeof(a));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            a[l] += a[l + half];
    return a[0];
}

static inline real vlargest(vec x)
{
    real a[LANES];
    memcpy(a, &x, sizeof(a));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            a[l] = a[l + half] > a[l] ? a[l + half] : a[l];
    return a[0];
}

/* sum of a*b over n elements; the order is fixed by n. */
static inline real vdot(const real *a, const real *b, int64_t n)
{
    vec even = {0}, odd = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even = vfma(vload(a + i), vload(b + i), even);
        odd = vfma(vload(a + i + LANES), vload(b + i + LANES), odd);
    }
    for (; i < n; i += LANES)
        even = vfma(vget(a + i, n - i), vget(b + i, n - i), even);
    return vsum(even + odd);
}

#if REAL_F64
enum { EXP_TERMS = 13, EXP_MANTISSA = 52, EXP_BIAS = 1023 };
#define EXP_LOWEST  (-708.0)
#define EXP_HIGHEST 709.0
#define EXP_ROUND   0x1.8p52
#define EXP_LN2_HI  0x1.62e42feep-1
#define EXP_LN2_LO  0x1.a39ef35793c76p-33
#else
enum { EXP_TERMS = 7, EXP_MANTISSA = 23, EXP_BIAS = 127 };
#define EXP_LOWEST  (-87.0f)
#define EXP_HIGHEST 88.0f
#define EXP_ROUND   0x1.8p23f
#define EXP_LN2_HI  0x1.62e4p-1f
#define EXP_LN2_LO  0x1.7f7d1cp-20f
#endif

/* e^x within 2 units in the last place; 0 below EXP_LOWEST, infinite above EXP_HIGHEST, NaN for
 * NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series (the term left out is below
 * 2^-57, or 2^-26 in f32); 2^n through the exponent's bits. Adding EXP_ROUND rounds to the nearest
 * whole number and leaves it in the low bits. Outside the range the lanes hold nonsense until the
 * end. */
static inline vec vexp(vec x)
{
    ivec under = x<vsplat((real)EXP_LOWEST), over = x> vsplat((real)EXP_HIGHEST);
    vec shifted = vfma(x, vsplat((real)1.4426950408889634074), vsplat((real)EXP_ROUND));
    vec n = shifted - vsplat((real)EXP_ROUND);
    vec r = vfma(n, vsplat((real)-EXP_LN2_HI), x);
    r = vfma(n, vsplat((real)-EXP_LN2_LO), r);
    static const real inverse_factorial[] = {
        (real)1.0,
        (real)1.0,
        (real)(1.0 / 2),
        (real)(1.0 / 6),
        (real)(1.0 / 24),
        (real)(1.0 / 120),
        (real)(1.0 / 720),
        (real)(1.0 / 5040),
        (real)(1.0 / 40320),
        (real)(1.0 / 362880),
        (real)(1.0 / 3628800),
        (real)(1.0 / 39916800),
        (real)(1.0 / 479001600),
        (real)(1.0 / 6227020800),
    };
    vec p = vsplat(inverse_factorial[EXP_TERMS]);
    for (int i = EXP_TERMS - 1; i >= 0; i--)
        p = vfma(p, r, vsplat(inverse_factorial[i]));
    /* Unsigned: for an x that is not a number the bits mean nothing, and may wrap. */
    uvec bits = ((uvec)shifted - (uvec)vsplat((real)EXP_ROUND) + EXP_BIAS) << EXP_MANTISSA;
    vec y = vselect(over, vsplat((real)INFINITY), p * (vec)bits);
    return vselect(under, (vec){0}, y);
}

#endif
