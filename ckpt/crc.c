/* crc.c - CRC32C by ISA-L, whose function leaves the two inversions to its caller.
 *
 * A copy with its checksum reads memory once: some KiB are summed, which brings them into the
 * innermost caches, then stored from there, while the next ones are fetched. Stores past the caches
 * (SSE2: every x86-64 has them) also spare reading what they overwrite; elsewhere it is memcpy. */
#include "crc.h"

#include <isa-l.h>
#include <string.h>

#if defined(__SSE2__) && !defined(CRC_PLAIN_STORES)
#define STORES_PAST_CACHES
#include <emmintrin.h>
#endif

enum { COPY_CHUNK = 8192, LINE = 64 };

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

#ifdef STORES_PAST_CACHES

/* Whole lines, to where one begins; what comes `ahead` bytes later is fetched. */
static void store_lines(unsigned char *to, const unsigned char *from, size_t n, size_t ahead)
{
    for (size_t i = 0; i < n; i += LINE) {
        const __m128i *in = (const __m128i *)(from + i);
        __m128i *out = (__m128i *)(to + i);
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                d = _mm_loadu_si128(in + 3);
        if (i < ahead)
            _mm_prefetch(from + n + i, _MM_HINT_T0);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
}

/* Others must see the stores before any that follow. */
static void end_stores(void)
{
    _mm_sfence();
}

#else

static void store_lines(unsigned char *to, const unsigned char *from, size_t n, size_t ahead)
{
    (void)ahead;
    memcpy(to, from, n);
}

static void end_stores(void)
{
}

#endif

uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t n)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t now = (LINE - (uintptr_t)out % LINE) % LINE; /* up to a line's begin */
    now = now < n ? now : n;
    for (bool lines = false; n; lines = true) {
        size_t whole = lines ? now - now % LINE : 0, next = n - now;
        crc = crc32c(crc, in, now);
        store_lines(out, in, whole, next < COPY_CHUNK ? next : COPY_CHUNK);
        memcpy(out + whole, in + whole, now - whole);
        out += now;
        in += now;
        n -= now;
        now = n < COPY_CHUNK ? n : COPY_CHUNK;
    }
    end_stores();
    return crc;
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
