/* crc.c - CRC32C by ISA-L, whose function leaves the two inversions to its caller. */
#include "crc.h"

#include <isa-l.h>

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
    const size_t most = 1 << 30; /* ISA-L counts in int */
    unsigned char *at = (unsigned char *)p;
    crc = ~crc;
    while (n) {
        size_t now = n < most ? n : most;
        crc = crc32_iscsi(at, (int)now, crc);
        at += now;
        n -= now;
    }
    return ~crc;
}

void crc_feed(struct crc_stream *s, const void *p, size_t n)
{
    const unsigned char *from = p;
    while (n) {
        int64_t block = s->at / CKPT_CRC_BLOCK;
        size_t in_block = (size_t)(s->at % CKPT_CRC_BLOCK);
        size_t now = CKPT_CRC_BLOCK - in_block;
        if (now > n)
            now = n;
        s->crcs[block] = crc32c(in_block ? s->crcs[block] : 0, from, now);
        s->at += (int64_t)now;
        from += now;
        n -= now;
    }
}

int64_t crc_blocks(int64_t bytes)
{
    return (bytes + CKPT_CRC_BLOCK - 1) / CKPT_CRC_BLOCK;
}
