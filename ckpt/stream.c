/* stream.c - the reader's thread, the caller's, and the counts between them: what has been checked,
 * and what has been taken and may be read over. */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "crc.h"

struct stream {
    struct blockio *bio;
    struct ckpt_file *file;
    unsigned char *memory;
    int64_t ring;
    struct crc_stream crc; /* the reader's */
    atomic_bool cancel;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more_checked, more_taken;
    int64_t checked, taken; /* bytes */
    int64_t told;           /* to the reader, of room */
    bool ended, failed;     /* the reader */
    struct err err;
};

int64_t stream_ring(int depth, int64_t block, int64_t data_bytes)
{
    int64_t least = 2 * block + CKPT_CRC_BLOCK, most = STREAM_FLIGHTS * block * depth;
    int64_t ring = data_bytes / STREAM_PART;
    ring = ring < most ? ring : most;
    ring = ring > least ? ring : least;
    return (ring + block - 1) / block * block;
}

/* ---- the reader's thread ---- */

static void fail(struct stream *s, const struct err *err)
{
    pthread_mutex_lock(&s->lock);
    if (!s->failed)
        s->err = *err;
    s->failed = true;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->cancel, true);
}

static void check(void *stream, const unsigned char *p, size_t n)
{
    struct stream *s = stream;
    struct err err;
    int64_t i = s->crc.at / CKPT_CRC_BLOCK, bytes = s->file->data_bytes;
    if (atomic_load(&s->cancel))
        return;
    crc_feed(&s->crc, p, n);
    int64_t end = s->crc.at == bytes ? crc_blocks(bytes) : s->crc.at / CKPT_CRC_BLOCK;
    for (; i < end; i++)
        if (file_check_block(s->file, i, s->crc.crcs[i], &err)) {
            fail(s, &err);
            return;
        }
    pthread_mutex_lock(&s->lock);
    s->checked = s->crc.at == bytes ? bytes : end * CKPT_CRC_BLOCK;
    pthread_cond_signal(&s->more_checked);
    pthread_mutex_unlock(&s->lock);
}

static int64_t room(void *stream, bool wait)
{
    struct stream *s = stream;
    pthread_mutex_lock(&s->lock);
    while (wait && !atomic_load(&s->cancel) && s->taken + s->ring <= s->told)
        pthread_cond_wait(&s->more_taken, &s->lock);
    s->told = s->taken + s->ring;
    int64_t told = atomic_load(&s->cancel) ? -1 : s->told;
    pthread_mutex_unlock(&s->lock);
    return told;
}

static void *read_all(void *stream)
{
    struct stream *s = stream;
    struct ckpt_file *f = s->file;
    struct err err;
    struct blockio_job job = {.fd = f->fd,
                              .memory = s->memory,
                              .offset = f->header_bytes,
                              .bytes = f->data_bytes,
                              .ring = s->ring,
                              .room = room,
                              .visit = check,
                              .arg = s,
                              .cancel = &s->cancel};
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0 && f->header_bytes % CKPT_ALIGN == 0 && f->data_bytes % CKPT_ALIGN == 0)
        fcntl(f->fd, F_SETFL, flags | O_DIRECT); /* refused by some: then through the cache */
    if (blockio_run(s->bio, &job, &err)) {
        err_prefix(&err, "%s", f->path);
        fail(s, &err);
    }
    if (flags >= 0)
        fcntl(f->fd, F_SETFL, flags);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_signal(&s->more_checked);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the caller's ---- */

/* What may be taken next, in one piece; 0: no more will come. */
static int64_t next_part(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->checked == s->taken && !s->ended && !s->failed)
        pthread_cond_wait(&s->more_checked, &s->lock);
    int64_t n = s->failed ? 0 : s->checked - s->taken;
    pthread_mutex_unlock(&s->lock);
    int64_t to_end = s->ring - s->taken % s->ring, most = s->ring / STREAM_TAKE_PART;
    most -= most % CKPT_ALIGN;
    if (most < CKPT_CRC_BLOCK)
        most = CKPT_CRC_BLOCK;
    n = n < most ? n : most;
    return n < to_end ? n : to_end;
}

static void taken(struct stream *s, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    s->taken += n;
    pthread_cond_signal(&s->more_taken);
    pthread_mutex_unlock(&s->lock);
}

static int take_all(struct stream *s,
                    int (*take)(void *arg, int64_t at, const unsigned char *p, int64_t n,
                                struct err *err),
                    void *arg, struct err *err)
{
    for (int64_t n; (n = next_part(s));) {
        if (take(arg, s->taken, s->memory + s->taken % s->ring, n, err)) {
            atomic_store(&s->cancel, true);
            taken(s, 0); /* it may be waiting */
            return -1;
        }
        taken(s, n);
    }
    return 0;
}

static int start(pthread_t *thread, struct stream *s, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, read_all, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? err_set_errno(err, rc, "starting a thread that reads %s", s->file->path) : 0;
}

static int run(struct stream *s,
               int (*take)(void *arg, int64_t at, const unsigned char *p, int64_t n,
                           struct err *err),
               void *arg, struct err *err)
{
    pthread_t thread;
    if (start(&thread, s, err))
        return -1;
    int rv = take_all(s, take, arg, err);
    pthread_join(thread, NULL);
    if (rv || !s->failed)
        return rv;
    if (err)
        *err = s->err;
    return -1;
}

int stream_file(struct blockio *b, struct ckpt_file *f,
                int (*take)(void *arg, int64_t at, const unsigned char *p, int64_t n,
                            struct err *err),
                void *arg, struct err *err)
{
    struct stream s = {.bio = b, .file = f};
    s.ring = stream_ring(blockio_depth(b), blockio_block(b), f->data_bytes);
    s.crc.crcs = calloc((size_t)crc_blocks(f->data_bytes) + 1, sizeof *s.crc.crcs);
    if (!s.crc.crcs)
        return err_set(err, "out of memory");
    void *p =
        mmap(NULL, (size_t)s.ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rv = -1;
    if (p == MAP_FAILED) {
        err_set_errno(err, errno, "memory to read %s, %" PRId64 " bytes", f->path, s.ring);
    } else {
        madvise(p, (size_t)s.ring, MADV_HUGEPAGE);
        s.memory = p;
        pthread_mutex_init(&s.lock, NULL);
        pthread_cond_init(&s.more_checked, NULL);
        pthread_cond_init(&s.more_taken, NULL);
        rv = run(&s, take, arg, err);
        pthread_cond_destroy(&s.more_checked);
        pthread_cond_destroy(&s.more_taken);
        pthread_mutex_destroy(&s.lock);
        munmap(p, (size_t)s.ring);
    }
    free(s.crc.crcs);
    return rv;
}
