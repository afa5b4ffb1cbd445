/* restore.c - from a rank's file back into the caller's tensors.
 *
 * A portion is handed over once its own checksums have been compared, while the next is still being
 * read; only when the last has been compared as well is anything restored. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine.h"
#include "file.h"
#include "stream.h"

/* Registered tensor `index` and its bytes in the file. */
struct source {
    const struct layout_tensor *from;
    int index;
};

struct restore {
    struct ckpt *ckpt;
    struct source *sources; /* in the order of their data; no empty ones */
    int n, next;            /* next: those before it have been handed over */
};

int engine_copy_in(const struct ckpt *c, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    struct err why;
    err_set(&why, "copy_in failed"); /* unless it says more */
    if (!c->io.copy_in(c->io.arg, index, at, host, bytes, &why))
        return 0;
    return err_set(err, "copying %s out of a checkpoint: %s", c->layout.tensors[index].key,
                   why.text);
}

int engine_flush(const struct ckpt *c, struct err *err)
{
    struct err why;
    err_set(&why, "flush failed");
    return c->io.flush && c->io.flush(c->io.arg, &why) ? err_set(err, "%s", why.text) : 0;
}

static bool same_tensor(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    size_t n = sizeof *a->shape * (size_t)a->dims;
    return a->dtype == b->dtype && a->dims == b->dims && !memcmp(a->shape, b->shape, n) &&
           !memcmp(a->global, b->global, n) && !memcmp(a->offset, b->offset, n);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct layout_tensor *const *)a)->key,
                  (*(const struct layout_tensor *const *)b)->key);
}

static int by_place(const void *a, const void *b)
{
    int64_t x = ((const struct source *)a)->from->begin,
            y = ((const struct source *)b)->from->begin;
    return x < y ? -1 : x > y;
}

/* The file's tensor that is to become a registered one. */
static const struct layout_tensor *find(const struct ckpt_file *f,
                                        const struct layout_tensor **sorted,
                                        const struct layout_tensor *wanted, struct err *err)
{
    const struct layout_tensor **found =
        bsearch(&wanted, sorted, (size_t)f->n, sizeof *sorted, by_key);
    if (!found || !same_tensor(&wanted->tensor, &(*found)->tensor)) {
        err_set(err,
                "%s has no tensor %s of the dtype, shape and slice that is wanted: the "
                "layout has changed since",
                f->path, wanted->key);
        return NULL;
    }
    if ((*found)->begin % dtype_bytes(wanted->tensor.dtype)) {
        err_set(err, "%s: tensor %s lies at byte %" PRId64 " of the data, across its elements",
                f->path, wanted->key, (*found)->begin);
        return NULL;
    }
    return *found;
}

static int match(struct restore *r, const struct ckpt_file *f, struct err *err)
{
    const struct layout *l = &r->ckpt->layout;
    const struct layout_tensor **sorted = calloc((size_t)f->n + 1, sizeof *sorted);
    r->sources = calloc((size_t)l->n, sizeof *r->sources);
    int rv = sorted && r->sources ? 0 : err_set(err, "out of memory");
    for (int i = 0; !rv && i < f->n; i++)
        sorted[i] = &f->tensors[i];
    if (!rv)
        qsort(sorted, (size_t)f->n, sizeof *sorted, by_key);
    for (int i = 0; !rv && i < l->n; i++) {
        const struct layout_tensor *from = find(f, sorted, &l->tensors[i], err);
        if (!from)
            rv = -1;
        else if (from->end > from->begin)
            r->sources[r->n++] = (struct source){from, i};
    }
    if (!rv)
        qsort(r->sources, (size_t)r->n, sizeof *r->sources, by_place);
    free(sorted);
    return rv;
}

/* Data bytes [at, at + n), which are right, and follow those before. */
static int hand_over(void *restore, int64_t at, const unsigned char *p, int64_t n, struct err *err)
{
    struct restore *r = restore;
    for (int64_t end = at + n; r->next < r->n; r->next++) {
        const struct source *s = &r->sources[r->next];
        int64_t from = s->from->begin > at ? s->from->begin : at;
        int64_t to = s->from->end < end ? s->from->end : end;
        if (from < to && engine_copy_in(r->ckpt, s->index, from - s->from->begin, p + (from - at),
                                        to - from, err))
            return -1;
        if (s->from->end > end)
            break;
    }
    return engine_flush(r->ckpt, err);
}

static int restore_data(struct restore *r, struct ckpt_file *f, struct err *err)
{
    if (!f->memory)
        return stream_file(r->ckpt->bio, f, hand_over, r, err);
    if (ckpt_file_verify(f, err))
        return -1;
    return hand_over(r, 0, f->memory + f->header_bytes, f->data_bytes, err);
}

int ckpt_restore(struct ckpt *c, struct ckpt_file *file, struct ckpt_position *position,
                 struct err *err)
{
    if (ckpt_wait(c, clock_ms() + ENGINE_WAIT_MS, err))
        return -1;
    struct restore r = {.ckpt = c};
    int rv = match(&r, file, err) ? -1 : restore_data(&r, file, err);
    free(r.sources);
    if (rv)
        return -1;
    if (position)
        *position = (struct ckpt_position){file->meta.key.step, file->meta.samples};
    return 0;
}
