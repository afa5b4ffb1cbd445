/* save.c - the state into the copy buffer, behind the caller's back.
 *
 * A save begins with a wish and ends with a join; in between the writer's thread brings tensor
 * after tensor into the buffer, as soon as the write before, and who sends it elsewhere (image.h),
 * have let go of it. Who joins takes the tensors that are left: so a caller that comes early is
 * held no longer than it would take to copy them itself, however little of a core the writer gets.
 * The last one out hands the buffer to the writer. */
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "engine.h"

bool save_can_copy(const struct ckpt *c)
{
    return c->copy_wanted && !c->write_wanted && !c->shown && c->copy_next < c->layout.n;
}

static int copy_tensor(struct ckpt *c, int i, struct err *err)
{
    const struct layout_tensor *t = &c->layout.tensors[i];
    if (atomic_load(&c->cancel))
        return err_set(err, "cancelled");
    err_set(err, "copy_out failed"); /* unless it says more */
    if (c->io.copy_out(c->io.arg, i, c->buffer + c->layout.header_bytes + t->begin, err))
        return err_prefix(err, "copying %s for a checkpoint", t->key);
    return 0;
}

void save_copy(struct ckpt *c)
{
    while (save_can_copy(c)) {
        struct err err;
        int i = c->copy_next++;
        c->copying++;
        pthread_mutex_unlock(&c->lock);
        int rc = copy_tensor(c, i, &err);
        pthread_mutex_lock(&c->lock);
        c->copying--;
        if (!rc)
            continue;
        c->copy_next = c->layout.n;
        if (!c->copy_failed)
            c->copy_failure = err;
        c->copy_failed = true;
    }
    if (!c->copy_wanted || c->copy_next < c->layout.n || c->copying)
        return;
    c->copy_wanted = false;
    c->write_wanted = true; /* also of what failed: what was begun must be flushed */
    c->position = c->next;
    c->no_file = c->copy_failed; /* the next save may begin before this is flushed */
    pthread_cond_signal(&c->to_writer);
    pthread_cond_broadcast(&c->from_writer);
}

int ckpt_save_begin(struct ckpt *c, const struct ckpt_position *position, struct err *err)
{
    int64_t start = clock_ns();
    if (c->filler || c->thin)
        return err_set(err, "this only fills tensors, or saves as thin.h says");
    if (position->step < 0 || position->samples < 0)
        return err_set(err, "a checkpoint of step %" PRId64 " after %" PRId64 " samples",
                       position->step, position->samples);
    if (c->begun)
        return err_set(
            err, "step %" PRId64 " cannot be saved before the save of step %" PRId64 " is joined",
            position->step, c->next.step);
    if (position->step <= c->last_step)
        return err_set(err, "step %" PRId64 " cannot be saved after step %" PRId64, position->step,
                       c->last_step);
    if (ckpt_buffer_take(c, err))
        return -1;
    pthread_mutex_lock(&c->lock);
    c->next = *position;
    c->tidy_wanted |= c->last_step < 0; /* what earlier starts have left may be in the way */
    c->copy_next = 0;
    c->copy_failed = false;
    c->copy_wanted = true;
    pthread_mutex_unlock(&c->lock);
    c->begun = true;
    c->begin_ns = clock_ns() - start;
    /* To wake a thread is not to wait for it. Where more threads than cores are at work, whose turn
     * is over often learns it in this call; that would come a moment later without it. */
    int64_t computed = clock_thread_ns();
    pthread_cond_signal(&c->to_writer); /* free to go: it needs the lock at once */
    c->begin_ns += clock_thread_ns() - computed;
    return 0;
}

/* With the lock held: until the copy is over. -1: the time is up. */
static int help_copy(struct ckpt *c, int64_t deadline_ms)
{
    struct timespec at = clock_point(deadline_ms);
    save_copy(c);
    while (c->copy_wanted) {
        int rc = pthread_cond_timedwait(&c->from_writer, &c->lock, &at);
        save_copy(c);
        if (rc == ETIMEDOUT && c->copy_wanted)
            return -1;
    }
    return 0;
}

int ckpt_save_join(struct ckpt *c, int64_t *stall_ns, struct err *err)
{
    int64_t start = clock_ns();
    int rv = 0;
    if (stall_ns)
        *stall_ns = 0;
    if (!c->begun)
        return 0;
    c->begun = false;
    pthread_mutex_lock(&c->lock);
    if (help_copy(c, clock_ms() + ENGINE_WAIT_MS)) {
        c->copy_wanted = c->copying > 0; /* not begun: it will not be */
        rv = err_set(err, "the checkpoint write before this one is still not done after %d s",
                     ENGINE_WAIT_MS / 1000);
    } else if (c->copy_failed) {
        rv = -1;
        if (err)
            *err = c->copy_failure;
    } else {
        c->last_step = c->next.step;
    }
    pthread_mutex_unlock(&c->lock);
    if (stall_ns)
        *stall_ns = c->begin_ns + clock_ns() - start;
    return rv;
}

int ckpt_save(struct ckpt *c, const struct ckpt_position *position, int64_t *stall_ns,
              struct err *err)
{
    int64_t start = clock_ns();
    if (ckpt_save_begin(c, position, err) || ckpt_save_join(c, NULL, err) || engine_flush(c, err))
        return -1;
    if (stall_ns)
        *stall_ns = clock_ns() - start;
    return 0;
}
