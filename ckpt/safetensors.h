/* safetensors.h - the header of a safetensors file, read strictly and without trust.
 *
 * A file is: 8 bytes, the header's length N, little-endian; N bytes of JSON; the data. The JSON is
 *   {"__metadata__": {"key": "text", ...},
 *    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 * with offsets counted from the start of the data, no holes, no overlaps, nothing behind the last
 * tensor. Only this grammar is accepted, so there is no depth to run into; strings must be UTF-8,
 * numbers whole and below 2^63, keys unique. */
#ifndef GTRAIN_CKPT_SAFETENSORS_H
#define GTRAIN_CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    ST_MAX_DIMS = 8,
    ST_MAX_HEADER = 100000000, /* bytes; what the format's own library accepts */
};

struct st_type {
    const char *name; /* "F32" */
    int bytes;
};
const struct st_type *st_type_find(const char *name); /* NULL: unknown */

struct st_tensor {
    char *name;
    const struct st_type *type;
    int dims;
    int64_t shape[ST_MAX_DIMS];
    int64_t begin, end; /* bytes within the data */
};

struct st_pair {
    char *key, *value;
    size_t raw_at, raw_bytes; /* where the value stands in the JSON, between its quotes */
};

struct st_header {
    struct st_tensor *tensors; /* in the order of their data */
    int64_t n_tensors;
    struct st_pair *metadata; /* sorted by key */
    int64_t n_metadata;
};

/* json: the N bytes. data_bytes: what follows them in the file; the tensors must fill it exactly.
 * On failure out is empty and err says what is wrong at which byte of the header. */
int st_parse(const char *json, size_t bytes, int64_t data_bytes, struct st_header *out,
             struct err *err);
void st_free(struct st_header *h);

const struct st_pair *st_metadata(const struct st_header *h, const char *key); /* NULL: absent */

#endif
