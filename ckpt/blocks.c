/* blocks.c - see blocks.h. */
#include "blocks.h"

#include "crc.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The first tensor that ends behind `at`; l->n: none does. */
static int first_behind(const struct layout *l, int64_t at)
{
    int low = 0, high = l->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (l->tensors[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t blocks_make(const struct layout *l, const void *const *from, int64_t block,
                     unsigned char *data)
{
    int64_t at = block * CKPT_CRC_BLOCK, end = least(at + CKPT_CRC_BLOCK, l->data_bytes);
    uint32_t crc = 0;
    for (int i = first_behind(l, at); i < l->n && at < end; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        if (t->begin > at) { /* a gap */
            int64_t to = least(t->begin, end);
            crc = crc32c(crc, data + at, (size_t)(to - at));
            at = to;
        }
        int64_t to = least(t->end, end);
        if (to <= at)
            continue;
        const unsigned char *bytes = from[i];
        crc = crc32c_copy(crc, data + at, bytes + (at - t->begin), (size_t)(to - at));
        at = to;
    }
    return crc32c(crc, data + at, (size_t)(end - at));
}
