/* layout.h - where each byte of a rank's file stands, and its header.
 *
 * The file is header (8 bytes of length, JSON, spaces up to a multiple of 4 KiB), then the tensors,
 * each starting at a multiple of 4 KiB so that it can be read or written past the page cache. The
 * format allows no holes, so the gaps are tensors too: __pad__.N, bytes of zero, the last one ends
 * the file at a multiple of 4 KiB. The layout depends on the registered tensors alone: header room
 * is computed with the longest possible numbers, so every file of a run has the same length.
 *
 * __metadata__ carries, next to the position: a CRC32C for each MiB of the data (gtrain.crc32c, 8
 * hex digits each), one over the 8 length bytes and the JSON with its own digits read as zeros
 * (gtrain.header_crc32c), and for a tensor that is a slice `gtrain.slice.KEY` =
 * "GLOBAL,GLOBAL@OFFSET,OFFSET". */
#ifndef GTRAIN_CKPT_LAYOUT_H
#define GTRAIN_CKPT_LAYOUT_H

#include <stdio.h>

#include "ckpt.h"
#include "names.h"

enum { CKPT_ALIGN = 4096 };

#define CKPT_PAD_PREFIX    "__pad__."
#define CKPT_META_CRCS     "gtrain.crc32c"
#define CKPT_META_HEADER   "gtrain.header_crc32c"
#define CKPT_META_SLICE    "gtrain.slice."
#define CKPT_META_VERSION  "gtrain.format"
#define CKPT_FORMAT_NUMBER "1"

/* What a file says of itself, beside its tensors. */
struct file_meta {
    char run[CKPT_RUN_MAX + 1];
    struct ckpt_key key;
    int64_t samples;
    int rank, world;
    uint64_t plan_hash;
};

struct layout_tensor {
    struct ckpt_tensor tensor; /* its name is owned */
    char *key;                 /* in the file: "name" or "name@o0,o1" */
    int64_t begin, end;        /* in the data */
};

struct layout {
    struct layout_tensor *tensors; /* in the order given */
    int n;
    int64_t header_bytes; /* all before the data */
    int64_t data_bytes;   /* a multiple of CKPT_ALIGN */
};

/* Checks the tensors (names of [0-9A-Za-z._/:+-], unique; slices inside their global shape) and
 * lays them out in the order given. */
int layout_make(struct layout *out, const struct ckpt_tensor *tensors, int n, struct err *err);
void layout_free(struct layout *l);

/* Writes header_bytes bytes to `to`; crcs: one a block of the data. *digest: CRC32C of the header,
 * which, as the header holds all others, stands for the whole file. */
int layout_header(const struct layout *l, const struct file_meta *meta, const uint32_t *crcs,
                  void *to, uint32_t *digest, struct err *err);

const char *dtype_name(enum ckpt_dtype dtype); /* NULL: no such */
int dtype_bytes(enum ckpt_dtype dtype);
/* Bytes of a shape; -1: it does not fit 62 bits. */
int64_t shape_bytes(enum ckpt_dtype dtype, int dims, const int64_t *shape);
/* The slice is the whole tensor. */
bool tensor_is_whole(const struct ckpt_tensor *t);
/* "1,2,3" */
void dims_print(FILE *out, int dims, const int64_t *values);

#endif
