/* fill.c - a rank's tensors out of pieces: ckpt_fill_*.
 *
 * They are put together in the copy buffer, as they lie in a file, so a restore needs no memory
 * beyond what saving needs anyway. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "engine.h"

int64_t ckpt_piece_bytes(const struct ckpt_piece *piece, const struct ckpt_tensor *tensor)
{
    return shape_bytes(tensor->dtype, tensor->dims, piece->shape);
}

int ckpt_fill_begin(struct ckpt *c, struct err *err)
{
    if (ckpt_wait(c, clock_ms() + ENGINE_WAIT_MS, err))
        return -1;
    memset(c->buffer + c->layout.header_bytes, 0, (size_t)c->layout.data_bytes);
    c->slice = NULL;
    return 0;
}

int ckpt_fill_piece(struct ckpt *c, const struct ckpt_piece *piece, struct err *err)
{
    if (piece->to < 0 || piece->to >= c->layout.n)
        return err_set(err, "a piece for tensor %d of %d", piece->to, c->layout.n);
    const struct layout_tensor *t = &c->layout.tensors[piece->to];
    if (!runs_begin(&c->runs, &t->tensor, piece->offset, piece->shape))
        return err_set(err, "a piece of %s that is not in this rank's slice", t->tensor.name);
    c->slice = c->buffer + c->layout.header_bytes + t->begin;
    c->run_left = 0;
    return 0;
}

int ckpt_fill_put(struct ckpt *c, const void *p, size_t n, struct err *err)
{
    const unsigned char *from = p;
    while (n) {
        if (!c->run_left) {
            if (!c->slice || !runs_next(&c->runs, &c->run_at))
                return err_set(err, "%zu bytes more than the piece has", n);
            c->run_left = c->runs.bytes;
        }
        size_t part = (int64_t)n < c->run_left ? n : (size_t)c->run_left;
        memcpy(c->slice + c->run_at, from, part);
        c->run_at += (int64_t)part;
        c->run_left -= (int64_t)part;
        from += part;
        n -= part;
    }
    return 0;
}

int ckpt_fill_end(struct ckpt *c, struct err *err)
{
    const unsigned char *data = c->buffer + c->layout.header_bytes;
    c->slice = NULL;
    for (int i = 0; i < c->layout.n; i++) {
        const struct layout_tensor *t = &c->layout.tensors[i];
        if (c->io.copy_in(c->io.arg, i, 0, data + t->begin, t->end - t->begin, err))
            return err_prefix(err, "copying %s out of a checkpoint", t->key);
    }
    return c->io.flush ? c->io.flush(c->io.arg, err) : 0;
}
