/* similar.c - see similar.h. */
#include "launch/similar.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_RUN = 4 }; /* equal bytes that are worth a pair of numbers */

static void put_number(struct wire_frame *f, size_t value)
{
    while (value >= 128) {
        wire_put_u8(f, (uint8_t)(value | 128));
        value >>= 7;
    }
    wire_put_u8(f, (uint8_t)value);
}

static size_t get_number(struct wire_reader *r)
{
    size_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t byte = wire_get_u8(r);
        value |= (size_t)(byte & 127) << shift;
        if (!(byte & 128))
            return value;
    }
    r->bad = 1;
    return 0;
}

/* Bytes from `at` on that are equal in both. */
static size_t equal_run(const unsigned char *a, const unsigned char *b, size_t at, size_t end)
{
    size_t i = at;
    while (i < end && a[i] == b[i])
        i++;
    return i - at;
}

void similar_put(struct wire_frame *f, const void *blob, size_t bytes, const void *before,
                 size_t before_bytes)
{
    const unsigned char *new = blob, *old = before;
    size_t both = bytes < before_bytes ? bytes : before_bytes, at = 0;
    put_number(f, bytes);
    while (at < bytes) {
        size_t same = equal_run(new, old, at, both), from = at + same, to = from, run = 0;
        while (to < bytes && (run = equal_run(new, old, to, both)) < LEAST_RUN)
            to += run + 1;
        to = to < bytes ? to : bytes;
        put_number(f, same);
        put_number(f, to - from);
        wire_put_raw(f, new + from, to - from);
        at = to;
    }
}

void *similar_get(struct wire_reader *r, size_t max, const void *before, size_t before_bytes,
                  size_t *bytes)
{
    size_t all = get_number(r), at = 0;
    *bytes = 0;
    unsigned char *blob = !r->bad && all <= max ? malloc(all + 1) : NULL;
    while (blob && at < all && !r->bad) {
        size_t same = get_number(r), new = get_number(r);
        /* A pair of nothing would go on for ever. */
        r->bad |= same + new == 0 || same > all - at || new > all - at - same ||
                  (same && (at > before_bytes || same > before_bytes - at));
        if (r->bad)
            break;
        if (same)
            memcpy(blob + at, (const unsigned char *)before + at, same);
        wire_get_raw(r, blob + at + same, new);
        at += same + new;
    }
    if (!blob || r->bad) {
        free(blob);
        r->bad = 1;
        return NULL;
    }
    blob[all] = 0;
    *bytes = all;
    return blob;
}
