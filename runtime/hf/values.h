/* values.h - the number formats of published weights. Pure. */
#ifndef GTRAIN_HF_VALUES_H
#define GTRAIN_HF_VALUES_H

#include <stddef.h>
#include <stdint.h>

enum hf_dtype { HF_F32, HF_BF16, HF_F16, HF_DTYPES };

/* In safetensors: "F32", "BF16", "F16"; in config.json: "float32", "bfloat16", "float16". */
const char *hf_dtype_tag(enum hf_dtype dtype);
const char *hf_dtype_name(enum hf_dtype dtype);
size_t hf_dtype_bytes(enum hf_dtype dtype);
/* By tag, name or short name (f32, bf16, f16); -1: none. */
int hf_dtype_find(const char *text);

/* Exact. */
void hf_widen(enum hf_dtype dtype, const void *in, size_t n, float *out);

/* To nearest, ties to even; what was widened comes back bit for bit. Returns n, or the index of the
 * first finite value that is too large for the dtype. */
size_t hf_narrow(enum hf_dtype dtype, const double *in, size_t n, void *out);

#endif
