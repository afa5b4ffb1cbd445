/* windows.c - see windows.h. */
#include "windows.h"

#include <stdlib.h>
#include <string.h>

enum { PLACE_ALIGN = 64 }; /* of parts in the buffer: of any element, and a cache line */

/* The dimension whose rows a part is made of, and the bytes of one. */
static int cut_dimension(const struct ckpt_tensor *t, int64_t most, int64_t *row)
{
    int d = 0;
    *row = shape_bytes(t->dtype, t->dims, t->shape);
    for (; d < t->dims; d++) {
        *row /= t->shape[d];
        if (*row <= most)
            break;
    }
    return d;
}

static int add_part(struct windows *w, const struct window_part *part)
{
    if (!(w->n & (w->n - 1))) {
        void *more = reallocarray(w->parts, w->n ? (size_t)w->n * 2 : 1, sizeof *w->parts);
        if (!more)
            return -1;
        w->parts = more;
    }
    w->parts[w->n++] = *part;
    return 0;
}

/* Into the last window, or where it has no room left, the next. */
static int place_part(struct windows *w, struct window_part part, int64_t most, int64_t *used)
{
    if (!w->n_windows || *used + part.bytes > most) {
        w->n_windows++;
        *used = 0;
    }
    part.window = w->n_windows - 1;
    part.place = *used;
    *used += part.bytes;
    if (*used > w->bytes)
        w->bytes = *used;
    *used = (*used + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    return add_part(w, &part);
}

static int cut_tensor(struct windows *w, int tensor, const struct ckpt_tensor *t, int64_t most,
                      int64_t *used)
{
    int64_t all = shape_bytes(t->dtype, t->dims, t->shape), row;
    if (!all)
        return 0;
    int d = cut_dimension(t, most, &row);
    int64_t rows = d < t->dims ? t->shape[d] : 1; /* of one index of the dimensions before */
    int64_t together = most / row < rows ? most / row : rows;
    for (int64_t at = 0; at < all; at += rows * row)
        for (int64_t i = 0; i < rows; i += together) {
            int64_t n = rows - i < together ? rows - i : together;
            struct window_part part = {.tensor = tensor, .at = at + i * row, .bytes = n * row};
            if (place_part(w, part, most, used))
                return -1;
        }
    return 0;
}

int windows_make(struct windows *w, const struct layout *layout, int64_t most, struct err *err)
{
    int64_t used = 0;
    *w = (struct windows){.tensors = layout->n};
    w->first = calloc((size_t)layout->n + 1, sizeof *w->first);
    int rv = w->first ? 0 : -1;
    for (int i = 0; !rv && i < layout->n; i++) {
        w->first[i] = w->n;
        rv = cut_tensor(w, i, &layout->tensors[i].tensor, most, &used);
    }
    if (!rv)
        w->first[layout->n] = w->n;
    return rv ? err_set(err, "out of memory for the parts of %d tensors", layout->n) : 0;
}

void windows_free(struct windows *w)
{
    free(w->parts);
    free(w->first);
    *w = (struct windows){.n = 0};
}

const struct window_part *windows_find(const struct windows *w, int tensor, int64_t at)
{
    int low = w->first[tensor], high = w->first[tensor + 1];
    if (low == high || at < 0)
        return NULL;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (w->parts[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    const struct window_part *part = &w->parts[low];
    return at < part->at + part->bytes ? part : NULL;
}

/* ---- pieces ---- */

/* What a part is of the global tensor: one index of the first dimensions, some of the next, all of
 * those behind. */
static void part_box(const struct ckpt_tensor *t, const struct window_part *part,
                     struct ckpt_piece *box)
{
    int64_t at = part->at, row = shape_bytes(t->dtype, t->dims, t->shape);
    for (int d = 0; d < t->dims; d++) {
        row /= t->shape[d];
        int64_t n = part->bytes / row;
        box->offset[d] = t->offset[d] + at / row;
        box->shape[d] = n < 1 ? 1 : n < t->shape[d] ? n : t->shape[d];
        at %= row;
    }
}

/* Where a box's first and last elements are, in bytes of the slice. */
static void span(const struct ckpt_tensor *t, const struct ckpt_piece *box, int64_t *first,
                 int64_t *last)
{
    int64_t stride = dtype_bytes(t->dtype);
    *first = *last = 0;
    for (int d = t->dims - 1; d >= 0; d--) {
        *first += (box->offset[d] - t->offset[d]) * stride;
        *last += (box->offset[d] - t->offset[d] + box->shape[d] - 1) * stride;
        stride *= t->shape[d];
    }
}

static bool inside(const struct ckpt_tensor *t, const struct ckpt_piece *box)
{
    for (int d = 0; d < t->dims; d++)
        if (box->offset[d] < t->offset[d] || box->shape[d] < 1 ||
            box->offset[d] - t->offset[d] > t->shape[d] ||
            box->shape[d] > t->shape[d] - (box->offset[d] - t->offset[d]))
            return false;
    return true;
}

/* To what box has in common with piece. False: nothing. */
static bool intersect(int dims, const struct ckpt_piece *piece, struct ckpt_piece *box)
{
    for (int d = 0; d < dims; d++) {
        int64_t end = box->offset[d] + box->shape[d], other = piece->offset[d] + piece->shape[d];
        if (piece->offset[d] > box->offset[d])
            box->offset[d] = piece->offset[d];
        box->shape[d] = (other < end ? other : end) - box->offset[d];
        if (box->shape[d] < 1)
            return false;
    }
    return true;
}

struct pieces {
    struct ckpt_piece *all;
    int n;
};

static int add_piece(struct pieces *p, const struct ckpt_piece *piece)
{
    if (!(p->n & (p->n - 1))) {
        void *more = reallocarray(p->all, p->n ? (size_t)p->n * 2 : 1, sizeof *p->all);
        if (!more)
            return -1;
        p->all = more;
    }
    p->all[p->n++] = *piece;
    return 0;
}

static int cut_piece(const struct windows *w, const struct ckpt_tensor *t,
                     const struct ckpt_piece *piece, struct pieces *out, struct err *err)
{
    int64_t first, last;
    if (!inside(t, piece))
        return err_set(err, "a piece of %s that is not in this rank's slice", t->name);
    span(t, piece, &first, &last);
    const struct window_part *part = windows_find(w, piece->to, first);
    const struct window_part *end = w->parts + w->first[piece->to + 1];
    for (; part && part < end && part->at <= last; part++) {
        struct ckpt_piece box = *piece;
        part_box(t, part, &box);
        box.window = part->window;
        if (intersect(t->dims, piece, &box) && add_piece(out, &box))
            return err_set(err, "out of memory for pieces of %s", t->name);
    }
    return 0;
}

static int by_window(const void *a, const void *b)
{
    const struct ckpt_piece *x = a, *y = b;
    if (x->window != y->window)
        return x->window < y->window ? -1 : 1;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    for (int d = 0; d < CKPT_MAX_DIMS; d++)
        if (x->offset[d] != y->offset[d])
            return x->offset[d] < y->offset[d] ? -1 : 1;
    return 0;
}

int windows_cut(const struct windows *w, const struct layout *layout,
                const struct ckpt_piece *pieces, int n, struct ckpt_piece **out, int *n_out,
                struct err *err)
{
    struct pieces cut = {.n = 0};
    int rv = 0;
    *out = NULL;
    *n_out = 0;
    for (int i = 0; !rv && i < n; i++)
        if (pieces[i].to < 0 || pieces[i].to >= layout->n)
            rv = err_set(err, "a piece for tensor %d of %d", pieces[i].to, layout->n);
        else
            rv = cut_piece(w, &layout->tensors[pieces[i].to].tensor, &pieces[i], &cut, err);
    if (rv) {
        free(cut.all);
        return -1;
    }
    if (cut.n)
        qsort(cut.all, (size_t)cut.n, sizeof *cut.all, by_window);
    *out = cut.all;
    *n_out = cut.n;
    return 0;
}
