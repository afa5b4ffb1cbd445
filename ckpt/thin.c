/* thin.c - see thin.h. */
#include "thin.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"

/* As much as is in flight with the default depth and block: small tensors go together. */
enum { THIN_BYTES = 16 << 20 };

/* Where the next tensor begins, behind the padding; of the last, the end of the data. */
static int64_t region_end(const struct layout *l, int i)
{
    return i + 1 < l->n ? l->tensors[i + 1].begin : l->data_bytes;
}

int64_t thin_buffer_bytes(const struct layout *layout)
{
    int64_t most = layout->data_bytes < THIN_BYTES ? layout->data_bytes : THIN_BYTES;
    for (int i = 0; i < layout->n; i++) {
        int64_t bytes = region_end(layout, i) - layout->tensors[i].begin;
        most = bytes > most ? bytes : most;
    }
    return layout->header_bytes + most;
}

/* Tensors [first, *end) into the buffer, as many as it has room for. *bytes: theirs. */
static int fill(struct ckpt *c, int first, int *end, int64_t *bytes, struct err *err)
{
    const struct layout *l = &c->layout;
    unsigned char *to = c->buffer + l->header_bytes;
    int64_t begin = l->tensors[first].begin, room = c->buffer_bytes - l->header_bytes;
    for (*end = first; *end < l->n && region_end(l, *end) - begin <= room; ++*end) {
        const struct layout_tensor *t = &l->tensors[*end];
        if (atomic_load(&c->cancel))
            return err_set(err, "cancelled");
        err_set(err, "copy_out failed"); /* unless it says more */
        if (c->io.copy_out(c->io.arg, *end, to + (t->begin - begin), err))
            return err_prefix(err, "copying %s for a checkpoint", t->key);
        memset(to + (t->end - begin), 0, (size_t)(region_end(l, *end) - t->end));
    }
    *bytes = region_end(l, *end - 1) - begin;
    return engine_flush(c, err);
}

static void feed(void *stream, const unsigned char *p, size_t n)
{
    crc_feed(stream, p, n);
}

int thin_write(struct ckpt *c, int fd, struct crc_stream *stream, struct err *err)
{
    int64_t header = c->layout.header_bytes, bytes = 0;
    for (int i = 0, end; i < c->layout.n; i = end) {
        if (fill(c, i, &end, &bytes, err))
            return -1;
        struct blockio_job job = {.fd = fd,
                                  .write = true,
                                  .memory = c->buffer + header,
                                  .offset = header + c->layout.tensors[i].begin,
                                  .bytes = bytes,
                                  .visit = feed,
                                  .arg = stream,
                                  .cancel = &c->cancel};
        if (blockio_run(c->bio, &job, err))
            return -1;
    }
    return 0;
}

int thin_save(struct ckpt *c, const struct ckpt_position *position, struct err *err)
{
    if (position->step <= c->last_step)
        return err_set(err, "step %" PRId64 " cannot be saved after step %" PRId64, position->step,
                       c->last_step);
    if (ckpt_wait(c, clock_ms() + ENGINE_WAIT_MS, err))
        return -1;
    c->last_step = position->step;
    pthread_mutex_lock(&c->lock);
    c->position = *position;
    c->write_wanted = true;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_signal(&c->to_writer);
    return 0;
}
