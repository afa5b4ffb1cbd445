/* runs.c - see runs.h. */
#include "runs.h"

#include <string.h>

#include "layout.h"

static bool inside(const struct ckpt_tensor *slice, const int64_t *offset, const int64_t *shape)
{
    for (int d = 0; d < slice->dims; d++)
        if (offset[d] < slice->offset[d] || shape[d] < 0 ||
            offset[d] - slice->offset[d] > slice->shape[d] ||
            shape[d] > slice->shape[d] - (offset[d] - slice->offset[d]))
            return false;
    return true;
}

bool runs_begin(struct runs *r, const struct ckpt_tensor *slice, const int64_t *offset,
                const int64_t *shape)
{
    memset(r, 0, sizeof *r);
    if (!inside(slice, offset, shape))
        return false;
    int64_t stride = dtype_bytes(slice->dtype);
    bool joined = true; /* all dimensions behind this one are taken whole */
    r->bytes = stride;
    r->more = true;
    r->outer = 0;
    for (int d = slice->dims - 1; d >= 0; d--) {
        r->base += (offset[d] - slice->offset[d]) * stride;
        if (joined) {
            r->bytes *= shape[d];
        } else {
            r->count[r->outer] = shape[d];
            r->stride[r->outer++] = stride;
        }
        joined &= shape[d] == slice->shape[d];
        r->more &= shape[d] > 0;
        stride *= slice->shape[d];
    }
    return true;
}

bool runs_next(struct runs *r, int64_t *at)
{
    if (!r->more)
        return false;
    *at = r->base;
    for (int d = 0; d < r->outer; d++)
        *at += r->index[d] * r->stride[d];
    int d = 0; /* the innermost stepped dimension is the first */
    while (d < r->outer && ++r->index[d] == r->count[d])
        r->index[d++] = 0;
    r->more = d < r->outer;
    return true;
}
