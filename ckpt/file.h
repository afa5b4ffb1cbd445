/* file.h - a rank's file, opened and its header checked. For this room; ckpt.h has the rest. */
#ifndef GTRAIN_CKPT_FILE_H
#define GTRAIN_CKPT_FILE_H

#include "layout.h"
#include "safetensors.h"
#include "sys.h"

struct ckpt_file {
    char *path;                   /* for errors; "(memory)" */
    int fd;                       /* -1: in memory */
    const struct ckpt_hook *hook; /* in front of reads after the opening; may be NULL */
    const unsigned char *memory;  /* the caller's */
    int64_t bytes, header_bytes, data_bytes;
    struct st_header header;
    struct file_meta meta;
    struct layout_tensor *tensors; /* without pads, in the order of their data; key is borrowed */
    int n;
    uint32_t *crcs; /* one a block of the data */
    uint32_t digest;
    unsigned char *block; /* the last block read, checked; room for CKPT_CRC_BLOCK */
    int64_t block_index;  /* which, -1: none */
    int64_t ahead;        /* blocks before it have been asked for */
};

/* Block i of the data, checked; valid until the next call. NULL: err. */
const unsigned char *file_block(struct ckpt_file *f, int64_t i, struct err *err);

/* n bytes of the file as they are, unchecked. */
int file_read_at(struct ckpt_file *f, void *to, int64_t n, int64_t at, struct err *err);

/* Fills f->meta, crcs, tensors from f->header; raw is the whole header, 8 length bytes included. */
int file_interpret(struct ckpt_file *f, const unsigned char *raw, struct err *err);

/* -1 and err naming the block, unless crc is that of block i. */
int file_check_block(const struct ckpt_file *f, int64_t i, uint32_t crc, struct err *err);

#endif
