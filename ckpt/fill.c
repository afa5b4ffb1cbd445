/* fill.c - a rank's tensors out of pieces: ckpt_fill_*.
 *
 * A window of the state (windows.h) is put together at a time, in a buffer that is small beside
 * the state, and handed over part by part: so a restore needs hardly more memory than the tensors
 * themselves, and a device gets few large copies however finely the files cut a tensor. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine.h"

enum {
    STAGE_PART = 16,         /* a window has at most this part of the state, */
    STAGE_MOST = 16 << 20,   /* and so many bytes: a device or a drive has no use for more, */
    STAGE_LEAST = 4096,      /* but a page */
    STAGE_ALIGN = CKPT_ALIGN /* of the buffer */
};

int64_t ckpt_piece_bytes(const struct ckpt_piece *piece, const struct ckpt_tensor *tensor)
{
    return shape_bytes(tensor->dtype, tensor->dims, piece->shape);
}

int64_t engine_state_bytes(const struct ckpt *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->layout.n; i++)
        bytes += c->layout.tensors[i].end - c->layout.tensors[i].begin;
    return bytes;
}

static int find_windows(struct ckpt *c, struct err *err)
{
    int64_t most = engine_state_bytes(c) / STAGE_PART;
    most = most < STAGE_MOST ? most : STAGE_MOST;
    most = most > STAGE_LEAST ? most : STAGE_LEAST;
    if (c->windows.first)
        return 0;
    if (!windows_make(&c->windows, &c->layout, most, err))
        return 0;
    windows_free(&c->windows);
    return -1;
}

int ckpt_fill_order(struct ckpt *c, struct ckpt_piece **pieces, int *n, struct err *err)
{
    struct ckpt_piece *cut;
    int n_cut;
    if (find_windows(c, err) ||
        windows_cut(&c->windows, &c->layout, *pieces, *n, &cut, &n_cut, err))
        return -1;
    free(*pieces);
    *pieces = cut;
    *n = n_cut;
    return 0;
}

int ckpt_fill_begin(struct ckpt *c, struct err *err)
{
    if (ckpt_wait(c, clock_ms() + ENGINE_WAIT_MS, err) || find_windows(c, err))
        return -1;
    size_t bytes = ((size_t)c->windows.bytes / STAGE_ALIGN + 1) * STAGE_ALIGN;
    if (!c->stage && !(c->stage = aligned_alloc(STAGE_ALIGN, bytes)))
        return err_set(err, "out of memory for %zu bytes of a checkpoint", bytes);
    memset(c->stage, 0, bytes);
    c->window = c->part = 0;
    c->into = NULL;
    return 0;
}

/* The window is whole. */
static int hand_over(struct ckpt *c, struct err *err)
{
    const struct windows *w = &c->windows;
    int64_t used = 0;
    for (; c->part < w->n && w->parts[c->part].window == c->window; c->part++) {
        const struct window_part *p = &w->parts[c->part];
        used = p->place + p->bytes;
        if (engine_copy_in(c, p->tensor, p->at, c->stage + p->place, p->bytes, err))
            return -1;
    }
    if (engine_flush(c, err))
        return -1;
    memset(c->stage, 0, (size_t)used);
    c->window++;
    return 0;
}

/* Behind the last element that a run touches. */
static int64_t runs_end(const struct runs *r)
{
    int64_t end = r->base + r->bytes;
    for (int d = 0; d < r->outer; d++)
        end += (r->count[d] - 1) * r->stride[d];
    return end;
}

int ckpt_fill_piece(struct ckpt *c, const struct ckpt_piece *piece, struct err *err)
{
    if (piece->to < 0 || piece->to >= c->layout.n)
        return err_set(err, "a piece for tensor %d of %d", piece->to, c->layout.n);
    const struct ckpt_tensor *t = &c->layout.tensors[piece->to].tensor;
    if (!c->stage || !runs_begin(&c->runs, t, piece->offset, piece->shape))
        return err_set(err, "a piece of %s that is not in this rank's slice", t->name);
    c->run_left = 0;
    c->into = NULL;
    if (!c->runs.more)
        return 0; /* it is empty */
    const struct window_part *part = windows_find(&c->windows, piece->to, c->runs.base);
    if (!part || runs_end(&c->runs) > part->at + part->bytes || part->window < c->window)
        return err_set(err, "a piece of %s that is out of order: ckpt_fill_order gives the order",
                       t->name);
    while (c->window < part->window)
        if (hand_over(c, err))
            return -1;
    c->into = part;
    return 0;
}

int ckpt_fill_put(struct ckpt *c, const void *p, size_t n, struct err *err)
{
    const unsigned char *from = p;
    while (n) {
        if (!c->run_left) {
            if (!c->into || !runs_next(&c->runs, &c->run_at))
                return err_set(err, "%zu bytes more than the piece has", n);
            c->run_left = c->runs.bytes;
        }
        size_t part = (int64_t)n < c->run_left ? n : (size_t)c->run_left;
        memcpy(c->stage + (c->into->place + (c->run_at - c->into->at)), from, part);
        c->run_at += (int64_t)part;
        c->run_left -= (int64_t)part;
        from += part;
        n -= part;
    }
    return 0;
}

int ckpt_fill_end(struct ckpt *c, struct err *err)
{
    int rv = c->stage ? 0 : err_set(err, "nothing was begun to be filled");
    while (!rv && c->window < c->windows.n_windows)
        rv = hand_over(c, err);
    free(c->stage);
    c->stage = NULL;
    c->into = NULL;
    return rv;
}
