/* restore.c - from a rank's file back into the caller's tensors.
 *
 * The whole file is read and every checksum compared before the first tensor is handed over, so a
 * damaged file changes nothing. It is read into the copy buffer, which is memory of this process
 * alone: nobody else's transfers can land there. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "crc.h"
#include "engine.h"
#include "file.h"

static void feed_crc(void *stream, const unsigned char *p, size_t n)
{
    crc_feed(stream, p, n);
}

/* The data of a file on disk into memory, checked. */
static int read_checked(struct ckpt *c, struct ckpt_file *f, unsigned char *memory, struct err *err)
{
    int64_t blocks = crc_blocks(f->data_bytes);
    uint32_t *crcs = calloc((size_t)blocks + 1, sizeof *crcs);
    if (!crcs)
        return err_set(err, "out of memory");
    struct crc_stream stream = {.crcs = crcs};
    struct blockio_job job = {.fd = f->fd,
                              .memory = memory,
                              .offset = f->header_bytes,
                              .bytes = f->data_bytes,
                              .visit = feed_crc,
                              .arg = &stream};
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0 && f->header_bytes % CKPT_ALIGN == 0 && f->data_bytes % CKPT_ALIGN == 0)
        fcntl(f->fd, F_SETFL, flags | O_DIRECT); /* refused by some: then through the cache */
    int rv = blockio_run(c->bio, &job, err);
    if (flags >= 0)
        fcntl(f->fd, F_SETFL, flags);
    if (rv)
        err_prefix(err, "%s", f->path);
    for (int64_t i = 0; i < blocks && !rv; i++)
        rv = file_check_block(f, i, crcs[i], err);
    free(crcs);
    return rv;
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

/* from[i]: the file's tensor for registered tensor i. malloc'ed. */
static const struct layout_tensor **match(const struct ckpt *c, const struct ckpt_file *f,
                                          struct err *err)
{
    const struct layout_tensor **sorted = calloc((size_t)f->n + 1, sizeof *sorted);
    const struct layout_tensor **from = calloc((size_t)c->layout.n, sizeof *from);
    bool good = sorted && from;
    if (!good)
        err_set(err, "out of memory");
    for (int i = 0; good && i < f->n; i++)
        sorted[i] = &f->tensors[i];
    if (good)
        qsort(sorted, (size_t)f->n, sizeof *sorted, by_key);
    for (int i = 0; good && i < c->layout.n; i++) {
        const struct layout_tensor *wanted = &c->layout.tensors[i];
        const struct layout_tensor **found =
            bsearch(&wanted, sorted, (size_t)f->n, sizeof *sorted, by_key);
        good = found && same_tensor(&wanted->tensor, &(*found)->tensor);
        if (good)
            from[i] = *found;
        else
            err_set(err,
                    "%s has no tensor %s of the dtype, shape and slice that is wanted: the "
                    "layout has changed since",
                    f->path, wanted->key);
    }
    free(sorted);
    if (!good) {
        free(from);
        from = NULL;
    }
    return from;
}

int engine_hand_over(struct ckpt *c, const struct layout_tensor *const *from,
                     const unsigned char *data, struct err *err)
{
    for (int i = 0; i < c->layout.n; i++) {
        const struct layout_tensor *t = from ? from[i] : &c->layout.tensors[i];
        if (c->io.copy_in(c->io.arg, i, 0, data + t->begin, t->end - t->begin, err))
            return err_prefix(err, "copying %s out of a checkpoint", c->layout.tensors[i].key);
    }
    return c->io.flush ? c->io.flush(c->io.arg, err) : 0;
}

static int restore_data(struct ckpt *c, struct ckpt_file *f, const struct layout_tensor **from,
                        struct err *err)
{
    if (f->memory) {
        if (ckpt_file_verify(f, err))
            return -1;
        return engine_hand_over(c, from, f->memory + f->header_bytes, err);
    }
    unsigned char *own = NULL, *memory = c->buffer + c->layout.header_bytes;
    if (f->data_bytes > c->layout.data_bytes) { /* a file with more in it than we register */
        own = mmap(NULL, (size_t)f->data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
        if (own == MAP_FAILED)
            return err_set_errno(err, errno, "memory for %" PRId64 " bytes of %s", f->data_bytes,
                                 f->path);
        memory = own;
    }
    int rv = read_checked(c, f, memory, err);
    if (!rv)
        rv = engine_hand_over(c, from, memory, err);
    if (own)
        munmap(own, (size_t)f->data_bytes);
    return rv;
}

int ckpt_restore(struct ckpt *c, struct ckpt_file *file, struct ckpt_position *position,
                 struct err *err)
{
    if (ckpt_wait(c, clock_ms() + ENGINE_WAIT_MS, err))
        return -1;
    const struct layout_tensor **from = match(c, file, err);
    if (!from)
        return -1;
    int rv = restore_data(c, file, from, err);
    free(from);
    if (rv)
        return -1;
    if (position)
        *position = (struct ckpt_position){file->meta.key.step, file->meta.samples};
    return 0;
}
