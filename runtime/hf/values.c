/* values.c - see values.h. Layouts: IEEE 754 binary32 and binary16; bfloat16 is the upper half of
 * binary32. */
#include "hf/values.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *tag, *name, *brief;
    size_t bytes;
} dtypes[HF_DTYPES] = {
    [HF_F32] = {"F32", "float32", "f32", 4},
    [HF_BF16] = {"BF16", "bfloat16", "bf16", 2},
    [HF_F16] = {"F16", "float16", "f16", 2},
};

const char *hf_dtype_tag(enum hf_dtype dtype)
{
    return dtypes[dtype].tag;
}

const char *hf_dtype_name(enum hf_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t hf_dtype_bytes(enum hf_dtype dtype)
{
    return dtypes[dtype].bytes;
}

int hf_dtype_find(const char *text)
{
    for (int i = 0; i < HF_DTYPES; i++)
        if (!strcmp(text, dtypes[i].tag) || !strcmp(text, dtypes[i].name) ||
            !strcmp(text, dtypes[i].brief))
            return i;
    return -1;
}

/* A NaN's sign and upper bits, as they are: an instruction that converts makes a signalling one
 * quiet. */
static uint32_t bits_of_nan(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t fraction = (uint32_t)(bits >> 29) & 0x7fffff;
    return (uint32_t)(bits >> 63) << 31 | 0x7f800000 | (fraction ? fraction : 0x400000);
}

/* As a float, to nearest. to_odd: of the two neighbours the one whose last bit is set, so that
 * rounding once more, to fewer bits, gives what rounding once would have given. */
static uint32_t bits_of(double value, bool to_odd)
{
    if (isnan(value))
        return bits_of_nan(value);
    float nearest = (float)value;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (!to_odd || isinf(value) || (double)nearest == value)
        return bits;
    if (fabs((double)nearest) > fabs(value))
        bits--;
    return bits | 1;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float widen_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
    uint32_t fraction = half & 1023;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float small = ldexpf((float)fraction, -24);
    return sign ? -small : small;
}

void hf_widen(enum hf_dtype dtype, const void *in, size_t n, float *out)
{
    const uint16_t *halves = in;
    if (dtype == HF_F32)
        memcpy(out, in, n * sizeof *out);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = dtype == HF_BF16 ? float_of((uint32_t)halves[i] << 16) : widen_half(halves[i]);
}

/* Drops the low `drop` bits, to nearest, ties to even; a carry into the exponent is right. */
static uint32_t round_off(uint32_t bits, int drop)
{
    uint32_t rest = bits & ((1u << drop) - 1), half = 1u << (drop - 1), kept = bits >> drop;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

static uint16_t narrow_bfloat(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000) /* no number: rounding could make it infinite */
        return (uint16_t)(bits >> 16 | ((bits >> 16 & 127) ? 0 : 64));
    return (uint16_t)round_off(bits, 16);
}

static uint16_t narrow_half(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return (uint16_t)(sign | 0x7c00 | (size >> 13 & 1023) | ((size >> 13 & 1023) ? 0 : 512));
    if (size >= 0x47800000) /* 2^16 and more, infinity */
        return (uint16_t)(sign | 0x7c00);
    if (size >= 0x38800000) /* 2^-14 and more: a carry may make it infinite */
        return (uint16_t)(sign | round_off(size - (112u << 23), 13));
    if (size < 0x33000000) /* below 2^-25, half of the smallest */
        return (uint16_t)sign;
    int exponent = (int)(size >> 23);
    return (uint16_t)(sign | round_off((size & 0x7fffff) | 0x800000, 126 - exponent));
}

static bool too_large(enum hf_dtype dtype, double value, const void *narrowed)
{
    if (!isfinite(value))
        return false;
    if (dtype == HF_F32)
        return isinf(*(const float *)narrowed);
    uint16_t infinite = dtype == HF_BF16 ? 0x7f80 : 0x7c00;
    return (*(const uint16_t *)narrowed & 0x7fff) == infinite;
}

size_t hf_narrow(enum hf_dtype dtype, const double *in, size_t n, void *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(in[i], dtype != HF_F32);
        void *to = (char *)out + i * hf_dtype_bytes(dtype);
        uint16_t half = dtype == HF_BF16 ? narrow_bfloat(bits) : narrow_half(bits);
        if (dtype == HF_F32)
            memcpy(to, &bits, sizeof bits);
        else
            memcpy(to, &half, sizeof half);
        if (too_large(dtype, in[i], to))
            return i;
    }
    return n;
}
