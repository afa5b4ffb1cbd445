/* image.c - see image.h. */
#include "image.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "engine.h"

void ckpt_image_share(struct ckpt *c, bool (*ready)(void *arg, const struct ckpt_image *image),
                      void *arg)
{
    pthread_mutex_lock(&c->lock);
    c->show = ready;
    c->show_arg = arg;
    pthread_mutex_unlock(&c->lock);
}

void image_show(struct ckpt *c)
{
    struct ckpt_image image = {.bytes = c->buffer,
                               .header_bytes = c->layout.header_bytes,
                               .total = engine_file_bytes(c),
                               .position = c->position};
    c->shown = c->show && c->show(c->show_arg, &image);
}

int ckpt_image_wait(struct ckpt *c, int64_t deadline_ms, uint32_t *digest, struct err *err)
{
    struct timespec at = {.tv_sec = deadline_ms / 1000,
                          .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
    const struct done_file *newest = NULL;
    int64_t step, rc = 0;
    pthread_mutex_lock(&c->lock);
    while (c->write_wanted && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&c->from_writer, &c->lock, &at);
    bool busy = c->write_wanted;
    step = c->position.step;
    if (!busy && c->n_done)
        newest = &c->done[(c->n_done - 1) % ENGINE_DONE_KEPT];
    bool done = newest && newest->position.step == step;
    if (done)
        *digest = newest->digest;
    pthread_mutex_unlock(&c->lock);
    if (busy || done)
        return done;
    return err_set(err, "rank %d's checkpoint of step %" PRId64 " could not be written", c->rank,
                   step);
}

void ckpt_image_release(struct ckpt *c)
{
    pthread_mutex_lock(&c->lock);
    c->shown = false;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_signal(&c->to_writer);
    pthread_cond_broadcast(&c->from_writer); /* who joins a save copies, too */
}
