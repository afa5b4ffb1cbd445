/* copy.c - see copy.h. */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt.h"
#include "crc.h"
#include "file.h"
#include "folder.h"

enum {
    QUEUE = 4,            /* pieces that wait for the disk: bounds the memory */
    PUT_WAIT_MS = 600000, /* for a place in it: a disk that needs longer is broken */
};

struct ckpt_copy {
    char *dir;
    char run[CKPT_RUN_MAX + 1];
    int rank, dirfd;
    uint32_t epoch, generation;

    /* The caller's: what the next piece must be; at -1: the first of a file. */
    int64_t step, at, header, total;

    /* Between caller and thread, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t to_thread, from_thread;
    pthread_t thread;
    struct ckpt_copy_piece queue[QUEUE];
    int first, n; /* the first is the thread's while busy */
    bool busy, stop, failed, told;
    struct err failure;
    int64_t finished;

    /* The thread's: the half it writes. */
    int fd; /* -1: none */
    char part[CKPT_NAME_ROOM];
    struct crc_stream stream; /* of its data; crcs malloc'ed, NULL: none */
};

int64_t ckpt_copy_next(int64_t header, int64_t total, int64_t end)
{
    return end == header ? -1 : end == total ? 0 : end;
}

int64_t ckpt_copy_end(int64_t header, int64_t total, int64_t at)
{
    return at < header ? header : total;
}

static bool is_last(const struct ckpt_copy_piece *p)
{
    return ckpt_copy_next(p->header, p->total, p->at + p->n) < 0;
}

static void make_name(const struct ckpt_copy *c, enum name_kind kind, int64_t step,
                      char out[CKPT_NAME_ROOM])
{
    struct ckpt_name name = {.kind = kind, .key = {c->epoch, c->generation, step}, .rank = c->rank};
    strcpy(name.run, c->run);
    name_format(&name, out);
}

/* ---- the thread ---- */

static void drop_crcs(struct ckpt_copy *c)
{
    free(c->stream.crcs);
    c->stream = (struct crc_stream){.crcs = NULL};
}

static void drop_part(struct ckpt_copy *c)
{
    drop_crcs(c);
    if (c->fd < 0)
        return;
    close(c->fd);
    c->fd = -1;
    unlinkat(c->dirfd, c->part, 0);
}

static int begin(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    make_name(c, NAME_COPY_PART, p->step, c->part);
    c->stream.crcs = calloc((size_t)crc_blocks(p->total - p->header), sizeof *c->stream.crcs);
    if (!c->stream.crcs)
        return err_set(err, "no memory for the checksums of %" PRId64 " bytes", p->total);
    c->fd = sys_open(NULL, c->dirfd, c->part, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (c->fd < 0)
        return err_set_errno(err, errno, "%s/%s", c->dir, c->part);
    if (sys_reserve(NULL, c->fd, p->total))
        return err_set_errno(err, errno, "%s/%s: cannot reserve %" PRId64 " bytes", c->dir, c->part,
                             p->total);
    return 0;
}

static int write_piece(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    for (int64_t done = 0; done < p->n;) {
        ssize_t n = sys_pwrite(NULL, c->fd, (const char *)p->data + done, (size_t)(p->n - done),
                               p->at + done);
        if (n <= 0)
            return err_set_errno(err, n ? errno : EIO, "%s/%s: writing at byte %" PRId64, c->dir,
                                 c->part, p->at + done);
        done += n;
    }
    if (p->at >= p->header)
        crc_feed(&c->stream, p->data, (size_t)p->n);
    return 0;
}

/* What came is what the header says, and that is the one its owner means. */
static int check_content(struct ckpt_copy *c, const struct ckpt_copy_piece *p,
                         const struct ckpt_file *f, struct err *err)
{
    struct ckpt_position position;
    if (f->bytes != p->total || f->header_bytes != p->header || ckpt_file_digest(f) != p->digest ||
        f->meta.rank != c->rank || ckpt_file_position(f, &position, NULL) ||
        position.step != p->step)
        return err_set(err, "%s/%s: what came is not rank %d's file of step %" PRId64, c->dir,
                       c->part, c->rank, p->step);
    for (int64_t i = 0; i < crc_blocks(f->data_bytes); i++)
        if (file_check_block(f, i, c->stream.crcs[i], err))
            return -1;
    return 0;
}

static int check(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    struct ckpt_file *f;
    char *path;
    if (asprintf(&path, "%s/%s", c->dir, c->part) < 0)
        return err_set(err, "no memory for a path");
    int rv = ckpt_file_open(&f, path, err);
    free(path);
    if (rv)
        return -1;
    rv = check_content(c, p, f, err);
    ckpt_file_close(f);
    drop_crcs(c);
    return rv;
}

static int finish(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    char final[CKPT_NAME_ROOM];
    make_name(c, NAME_FILE, p->step, final);
    if (check(c, p, err))
        return -1;
    if (sys_fsync(NULL, c->fd))
        return err_set_errno(err, errno, "%s/%s: fsync", c->dir, c->part);
    posix_fadvise(c->fd, 0, 0, POSIX_FADV_DONTNEED); /* training has better use for the memory */
    if (sys_rename_new(NULL, c->dirfd, c->part, final)) {
        if (errno != EEXIST)
            return err_set_errno(err, errno, "%s/%s: renaming to its final name", c->dir, c->part);
        drop_part(c); /* the original is in the same folder */
        return 0;
    }
    close(c->fd);
    c->fd = -1;
    if (sys_fsync(NULL, c->dirfd))
        return err_set_errno(err, errno, "fsync of the checkpoint folder %s", c->dir);
    return 0;
}

static int take(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    if ((p->at == p->header && begin(c, p, err)) || write_piece(c, p, err))
        return -1;
    return is_last(p) ? finish(c, p, err) : 0;
}

/* The first piece of the queue. Called and left with the lock held. */
static void turn(struct ckpt_copy *c)
{
    struct ckpt_copy_piece p = c->queue[c->first];
    struct err err;
    bool skip = c->failed;
    c->busy = true;
    pthread_mutex_unlock(&c->lock);
    int rv = skip ? 0 : take(c, &p, &err);
    if (rv)
        drop_part(c);
    free(p.data);
    pthread_mutex_lock(&c->lock);
    c->busy = false;
    c->first = (c->first + 1) % QUEUE;
    c->n--;
    if (rv) {
        c->failed = true;
        c->failure = err;
    } else if (!skip && is_last(&p)) {
        c->finished = p.step;
    }
}

static void *thread_main(void *arg)
{
    struct ckpt_copy *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->n && !c->stop)
            pthread_cond_wait(&c->to_thread, &c->lock);
        if (c->stop)
            break;
        turn(c);
        pthread_cond_broadcast(&c->from_thread);
    }
    pthread_mutex_unlock(&c->lock);
    drop_part(c);
    return NULL;
}

/* ---- the caller ---- */

/* With the lock held: until at most `most` pieces wait. */
static bool wait_for_room(struct ckpt_copy *c, int most, int64_t deadline_ms)
{
    struct timespec at = clock_point(deadline_ms);
    while (c->n > most)
        if (pthread_cond_timedwait(&c->from_thread, &c->lock, &at) == ETIMEDOUT)
            return c->n <= most;
    return true;
}

static bool follows(const struct ckpt_copy *c, const struct ckpt_copy_piece *p)
{
    if (c->at < 0)
        return p->step > c->step && p->at == p->header && p->header > 0 && p->header < p->total;
    return p->step == c->step && p->at == c->at && p->header == c->header && p->total == c->total;
}

static int check_piece(struct ckpt_copy *c, const struct ckpt_copy_piece *p, struct err *err)
{
    if (follows(c, p) && p->n > 0 && p->n <= ckpt_copy_end(p->header, p->total, p->at) - p->at) {
        c->step = p->step;
        c->header = p->header;
        c->total = p->total;
        c->at = ckpt_copy_next(p->header, p->total, p->at + p->n);
        return 0;
    }
    return err_set(err,
                   "a piece of rank %d's file of step %" PRId64 " (%" PRId64 " bytes at %" PRId64
                   " of %" PRId64 ") that does not follow the one before",
                   c->rank, p->step, p->n, p->at, p->total);
}

int ckpt_copy_put(struct ckpt_copy *c, const struct ckpt_copy_piece *piece, struct err *err)
{
    if (check_piece(c, piece, err)) {
        free(piece->data);
        return -1;
    }
    pthread_mutex_lock(&c->lock);
    bool room = wait_for_room(c, QUEUE - 1, clock_ms() + PUT_WAIT_MS);
    if (room)
        c->queue[(c->first + c->n++) % QUEUE] = *piece;
    pthread_cond_signal(&c->to_thread);
    pthread_mutex_unlock(&c->lock);
    if (room)
        return 0;
    free(piece->data);
    return err_set(err, "checkpoint folder %s has not taken a piece for %d s", c->dir,
                   PUT_WAIT_MS / 1000);
}

int ckpt_copy_finished(struct ckpt_copy *c, int64_t *step, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    *step = c->finished;
    int rv = c->failed && !c->told ? -1 : 0;
    if (rv && err)
        *err = c->failure;
    c->told |= rv != 0;
    pthread_mutex_unlock(&c->lock);
    return rv;
}

int ckpt_copy_wait(struct ckpt_copy *c, int64_t deadline_ms, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    bool idle = wait_for_room(c, 0, deadline_ms);
    pthread_mutex_unlock(&c->lock);
    return idle ? 0 : err_set(err, "the writer of copies is not done by the deadline");
}

static void free_copy(struct ckpt_copy *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->queue[(c->first + i) % QUEUE].data);
    if (c->dirfd >= 0)
        close(c->dirfd);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->to_thread);
    pthread_cond_destroy(&c->from_thread);
    free(c->dir);
    free(c);
}

static int start(struct ckpt_copy *c, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&c->thread, NULL, thread_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? err_set_errno(err, rc, "starting the writer of copies") : 0;
}

int ckpt_copy_open(struct ckpt_copy **out, const struct ckpt_copy_options *o, struct err *err)
{
    pthread_condattr_t attr;
    *out = NULL;
    if (!name_run_valid(o->run_id) || o->rank < 0)
        return err_set(err, "copies of rank %d of run '%.100s'", o->rank, o->run_id);
    struct ckpt_copy *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->to_thread, NULL);
    pthread_cond_init(&c->from_thread, &attr);
    pthread_condattr_destroy(&attr);
    c->dirfd = c->fd = -1;
    c->finished = c->step = c->at = -1;
    c->rank = o->rank;
    c->epoch = o->epoch;
    c->generation = o->generation;
    strcpy(c->run, o->run_id);
    c->dir = strdup(o->dir);
    if (!c->dir)
        err_set(err, "out of memory");
    else
        c->dirfd = folder_open_own(o->dir, NULL, err);
    if (c->dirfd < 0 || start(c, err)) {
        free_copy(c);
        return -1;
    }
    *out = c;
    return 0;
}

void ckpt_copy_close(struct ckpt_copy *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->to_thread);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    free_copy(c);
}
