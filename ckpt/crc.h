/* crc.h - CRC32C (Castagnoli), as in RFC 3720: 32 zero bytes give 8a9136aa. */
#ifndef GTRAIN_CKPT_CRC_H
#define GTRAIN_CKPT_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of n more bytes after those that gave crc; crc of nothing is 0. */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);

/* The same, and a copy of the bytes, which goes past the caches: what is kept and not read soon
 * must not drive out what computes. from and to may be anywhere, but must not overlap. */
uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t n);

/* Checksums of a stream cut into blocks of CKPT_CRC_BLOCK bytes, the last one shorter. */
enum { CKPT_CRC_BLOCK = 1 << 20 };

struct crc_stream {
    uint32_t *crcs; /* one a block; the caller's */
    int64_t at;     /* bytes fed so far */
};

void crc_feed(struct crc_stream *s, const void *p, size_t n);
int64_t crc_blocks(int64_t bytes);

#endif
