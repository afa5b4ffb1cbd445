/* ckpt.c - the caller's side: wait, claim, commit, close (save.c: save). */
#include "ckpt.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine.h"
#include "folder.h"
#include "log.h"
#include "memory.h"
#include "record.h"

/* With the lock held: until `idle` or the deadline. True: idle. */
static bool wait_for(struct ckpt *c, bool (*idle)(const struct ckpt *c), int64_t deadline_ms)
{
    struct timespec at = clock_point(deadline_ms);
    while (!idle(c))
        if (pthread_cond_timedwait(&c->from_writer, &c->lock, &at) == ETIMEDOUT)
            return idle(c);
    return true;
}

static bool all_done(const struct ckpt *c)
{
    return !c->copy_wanted && !c->write_wanted && !c->tidy_wanted && !c->tidying;
}

static bool state_untouched(const struct ckpt *c)
{
    return !c->copying && !c->flushing;
}

static bool thread_gone(const struct ckpt *c)
{
    return c->exited;
}

int64_t ckpt_clock_ms(void)
{
    return clock_ms();
}

int ckpt_finished(struct ckpt *c, int64_t *step, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    *step = c->n_done ? c->done[(c->n_done - 1) % ENGINE_DONE_KEPT].position.step : -1;
    int rv = c->failed ? -1 : 0;
    if (c->failed && err)
        *err = c->failure;
    c->failed = false;
    pthread_mutex_unlock(&c->lock);
    return rv;
}

int64_t ckpt_write_ns(struct ckpt *c)
{
    pthread_mutex_lock(&c->lock);
    int64_t ns = c->n_done ? c->done[(c->n_done - 1) % ENGINE_DONE_KEPT].write_ns : 0;
    pthread_mutex_unlock(&c->lock);
    return ns;
}

int ckpt_wait(struct ckpt *c, int64_t deadline_ms, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    bool idle = wait_for(c, all_done, deadline_ms);
    pthread_mutex_unlock(&c->lock);
    return idle ? 0 : err_set(err, "the checkpoint writer is not done by the deadline");
}

/* With the lock held. NULL: not finished here, or long ago. */
static const struct done_file *find_done(const struct ckpt *c, int64_t step)
{
    for (int64_t i = c->n_done - 1; i >= 0 && i >= c->n_done - ENGINE_DONE_KEPT; i--)
        if (c->done[i % ENGINE_DONE_KEPT].position.step == step)
            return &c->done[i % ENGINE_DONE_KEPT];
    return NULL;
}

/* Copies it out; -1 with err where there is none. */
static int get_done(struct ckpt *c, int64_t step, struct done_file *out, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    const struct done_file *done = find_done(c, step);
    if (done)
        *out = *done;
    pthread_mutex_unlock(&c->lock);
    return done
               ? 0
               : err_set(err, "rank %d has no finished checkpoint of step %" PRId64, c->rank, step);
}

char *ckpt_claim(struct ckpt *c, int64_t step, struct err *err)
{
    struct done_file done;
    char path[CKPT_NAME_ROOM];
    if (get_done(c, step, &done, err))
        return NULL;
    engine_name(c, NAME_FILE, step, path);
    struct record_rank rank = {.node = c->node,
                               .path = path,
                               .bytes = engine_file_bytes(c),
                               .digest = done.digest,
                               .cut = c->cut};
    struct record claim = {.meta = {.key = {c->epoch, c->generation, step},
                                    .samples = done.position.samples,
                                    .rank = c->rank,
                                    .world = c->world,
                                    .plan_hash = c->plan_hash},
                           .n = 1,
                           .ranks = &rank};
    strcpy(claim.meta.run, c->run);
    char *text = record_print(&claim, RECORD_CLAIM);
    if (!text)
        err_set(err, "out of memory");
    return text;
}

int ckpt_own_file(struct ckpt *c, int64_t step, struct ckpt_place *out, struct err *err)
{
    struct done_file done;
    char name[CKPT_NAME_ROOM];
    *out = (struct ckpt_place){.bytes = engine_file_bytes(c)};
    if (get_done(c, step, &done, err))
        return -1;
    engine_name(c, NAME_FILE, step, name);
    out->digest = done.digest;
    out->node = strdup(c->node);
    if (asprintf(&out->path, "%s/%s", c->dir, name) < 0)
        out->path = NULL;
    if (out->node && out->path)
        return 0;
    free(out->node);
    free(out->path);
    *out = (struct ckpt_place){0};
    return err_set(err, "out of memory");
}

/* Lines a log keeps when it is shortened: those whose files may be there, and some for people. */
int engine_log_lines(const struct ckpt *c)
{
    return c->keep + 64;
}

/* The record is of this step, and of the file this rank has. */
static int check_record(const struct ckpt *c, const char *text, const struct done_file *done,
                        struct err *err)
{
    struct record r;
    char path[CKPT_NAME_ROOM];
    if (record_parse(text, (int64_t)strlen(text), RECORD_COMMIT, &r, err))
        return -1;
    engine_name(c, NAME_FILE, done->position.step, path);
    int rv = 0;
    if (strcmp(r.meta.run, c->run) || r.meta.world != c->world ||
        strcmp(r.ranks[c->rank].path, path) || r.ranks[c->rank].digest != done->digest)
        rv = err_set(err, "the record does not name %s, which rank %d has written", path, c->rank);
    record_free(&r);
    return rv;
}

int ckpt_commit(struct ckpt *c, int64_t step, const char *record, struct err *err)
{
    struct done_file done;
    struct ckpt_key key = {c->epoch, c->generation, step};
    if (get_done(c, step, &done, err))
        return -1;
    if (!record && c->leader)
        return err_set(err, "the leader needs the record to commit step %" PRId64, step);
    if (record && check_record(c, record, &done, err))
        return -1;
    if (commits_has(&c->commits, &key))
        return 0;
    if (c->leader && log_append(c->dirfd, c->log_name, record, engine_log_lines(c), c->hook, err))
        return err_prefix(err, "checkpoint folder %s", c->dir);
    pthread_mutex_lock(&c->lock);
    int rv = commits_add(&c->commits, &key);
    if (!rv) {
        c->commits.own++;
        c->tidy_wanted = true;
        pthread_cond_signal(&c->to_writer);
    }
    pthread_mutex_unlock(&c->lock);
    return rv ? err_set(err, "out of memory") : 0;
}

/* 1: the leader's log has a line with this text, 0: it has not, -1: it cannot be read. */
static int log_has(const struct ckpt *c, const char *text, struct err *err)
{
    char *bytes;
    const char *line;
    int64_t n, length;
    int found = 0;
    if (folder_read(c->dirfd, c->log_name, CKPT_LOG_MOST_BYTES, &bytes, &n))
        return errno == ENOENT ? 0 : err_set_errno(err, errno, "%s/%s", c->dir, c->log_name);
    struct log_reader r = {.bytes = bytes, .n = n};
    while (!found && log_next(&r, &line, &length))
        found = length == (int64_t)strlen(text) && !memcmp(line, text, (size_t)length);
    free(bytes);
    return found;
}

int ckpt_adopt(struct ckpt *c, const char *record, struct err *err)
{
    struct record r;
    if (record_parse(record, (int64_t)strlen(record), RECORD_COMMIT, &r, err))
        return -1;
    struct ckpt_key key = r.meta.key;
    bool own = !strcmp(r.meta.run, c->run);
    record_free(&r);
    if (!own)
        return err_set(err, "the record is of another run than %s", c->run);
    if (c->leader) {
        int has = log_has(c, record, err);
        if (has < 0 ||
            (!has && log_append(c->dirfd, c->log_name, record, engine_log_lines(c), c->hook, err)))
            return -1;
    }
    pthread_mutex_lock(&c->lock);
    c->commits.restored = true;
    c->commits.restored_from = key;
    c->commits.trial_step = key.step;
    int rv = commits_add(&c->commits, &key);
    pthread_mutex_unlock(&c->lock);
    return rv ? err_set(err, "out of memory") : 0;
}

void ckpt_try(struct ckpt *c, int64_t step)
{
    pthread_mutex_lock(&c->lock);
    c->commits.trial_step = step;
    pthread_mutex_unlock(&c->lock);
}

void ckpt_hold(struct ckpt *c, int64_t step)
{
    pthread_mutex_lock(&c->lock);
    c->commits.held = step >= 0;
    c->commits.held_key = (struct ckpt_key){c->epoch, c->generation, step};
    pthread_mutex_unlock(&c->lock);
}

void ckpt_close(struct ckpt *c, int64_t deadline_ms)
{
    if (!c)
        return;
    if (c->filler) {
        engine_free(c);
        return;
    }
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->to_writer);
    bool gone = wait_for(c, thread_gone, deadline_ms);
    if (!gone) {
        atomic_store(&c->cancel, true);
        gone = wait_for(c, thread_gone, clock_ms() + ENGINE_CANCEL_MS);
        if (!gone) /* the caller is about to free what is copied */
            wait_for(c, state_untouched, clock_ms() + ENGINE_WAIT_MS);
    }
    pthread_mutex_unlock(&c->lock);
    if (gone) {
        pthread_join(c->thread, NULL);
        engine_free(c);
        return;
    }
    /* The kernel still reads from the buffer: it and the thread are left alone. The half-made file
     * needs no care: a successor drops it. */
    pthread_detach(c->thread);
}
