/* windows.h - a rank's tensors as parts that go through a small buffer. Pure.
 *
 * A slice lies in memory row by row. A part is a range of it: as many whole rows of the first
 * dimension as the buffer takes; where one of them alone is too long, whole rows of the next one,
 * and so on. Parts that follow each other and have room together are a window. Pieces
 * (ckpt_pieces), cut where parts end and sorted by window, can be put together in a buffer of one
 * window, whatever files they come from and however finely these cut the tensors; what is handed
 * on is always a whole part. */
#ifndef GTRAIN_CKPT_WINDOWS_H
#define GTRAIN_CKPT_WINDOWS_H

#include "layout.h"

struct window_part {
    int tensor, window;
    int64_t at, bytes; /* of the tensor's slice */
    int64_t place;     /* in the buffer */
};

struct windows {
    struct window_part *parts; /* in the order of tensors, and of their bytes */
    int *first;                /* of each tensor; first[tensors] is n */
    int n, tensors, n_windows;
    int64_t bytes; /* of the buffer that takes any of them */
};

/* most: bytes of the buffer, at least those of an element. */
int windows_make(struct windows *w, const struct layout *layout, int64_t most, struct err *err);
void windows_free(struct windows *w);

/* Pieces of the layout's tensors, cut where parts end; by window, then source, tensor, place in it.
 * *out is malloc'ed. A piece that is not in its tensor's slice is an error. */
int windows_cut(const struct windows *w, const struct layout *layout,
                const struct ckpt_piece *pieces, int n, struct ckpt_piece **out, int *n_out,
                struct err *err);

/* The part that byte `at` of a tensor's slice is in; NULL: none. */
const struct window_part *windows_find(const struct windows *w, int tensor, int64_t at);

#endif
