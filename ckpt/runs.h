/* runs.h - a box inside a slice, as runs of bytes that lie together. Pure.
 *
 * A slice lies in memory row by row. A box of it (global coordinates, inside the slice) is a number
 * of runs of equal length: trailing dimensions that the box takes whole join into one. The runs
 * come in row-major order, so one box read from one slice and put into another is the same stream
 * of bytes, whatever the two slices are. */
#ifndef GTRAIN_CKPT_RUNS_H
#define GTRAIN_CKPT_RUNS_H

#include "ckpt.h"

struct runs {
    int outer; /* dimensions that are stepped through */
    int64_t count[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS], index[CKPT_MAX_DIMS];
    int64_t base, bytes; /* of the first run: where, how long */
    bool more;
};

/* dims of offset and shape are the slice's. False: the box is not inside the slice. */
bool runs_begin(struct runs *r, const struct ckpt_tensor *slice, const int64_t *offset,
                const int64_t *shape);

/* The next run: *at bytes from the slice's first, r->bytes long. False: there is none. */
bool runs_next(struct runs *r, int64_t *at);

#endif
