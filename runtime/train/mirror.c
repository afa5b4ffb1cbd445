/* mirror.c - see mirror.h. */
#include "train/mirror.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "train/background.h"

enum { MIRROR_PIECE_BYTES = 4 << 20 }; /* of one message */
enum { MIRROR_TAG = 1 };

/* In front of an image. */
struct note {
    uint32_t epoch, generation; /* of who sends */
    struct ckpt_memory_head head;
};

/* ---- with the partner and the ward ---- */

/* A state of an older generation may be there already: the ward hears whether it is. */
static int ask(struct mirror *m, bool *send, bool *take, struct err *err)
{
    int32_t have = 0, has = 0;
    *send = m->o.to >= 0;
    *take = m->o.from >= 0;
    if (m->key.generation == m->o.generation)
        return 0;
    have = m->o.from >= 0 && ckpt_memory_find_ward(m->o.memory, &m->key, m->o.from);
    if (comm_host_exchange(m->o.comm, &have, sizeof have, m->o.from, &has, sizeof has, m->o.to,
                           MIRROR_TAG, err))
        return -1;
    *send = *send && !has;
    *take = *take && !have;
    return 0;
}

static int check_note(const struct mirror *m, const struct note *n, struct err *err)
{
    if (n->epoch == m->o.epoch && n->generation == m->o.generation)
        return ckpt_memory_ward_begin(m->o.memory, &n->head, m->o.from, &m->key, err);
    return err_set(err,
                   "rank %d sends its state in epoch %u, generation %u; this is epoch %u, "
                   "generation %u",
                   m->o.from, n->epoch, n->generation, m->o.epoch, m->o.generation);
}

static int64_t part_of(int64_t left)
{
    return left < MIRROR_PIECE_BYTES ? left : MIRROR_PIECE_BYTES;
}

/* Both images at once, a piece each way at a time. */
static int swap_images(struct mirror *m, const unsigned char *image, int64_t out, int64_t in,
                       struct err *err)
{
    for (int64_t sent = 0, got = 0; sent < out || got < in;) {
        int64_t give = part_of(out - sent), take = part_of(in - got);
        void *to = take ? ckpt_memory_ward_next(m->o.memory, take, err) : NULL;
        if (take && !to)
            return -1;
        if (comm_host_exchange(m->o.comm, image + sent, (size_t)give, give ? m->o.to : -1, to,
                               (size_t)take, take ? m->o.from : -1, MIRROR_TAG, err))
            return -1;
        sent += give;
        got += take;
    }
    return 0;
}

static int exchange(struct mirror *m, struct err *err)
{
    struct note mine, theirs;
    bool send, take;
    if (!m->o.comm || (m->o.to < 0 && m->o.from < 0))
        return 0;
    memset(&mine, 0, sizeof mine); /* it travels whole */
    memset(&theirs, 0, sizeof theirs);
    mine.epoch = m->o.epoch;
    mine.generation = m->o.generation;
    const void *image = ckpt_memory_image(m->o.memory, &mine.head);
    if (ask(m, &send, &take, err) ||
        comm_host_exchange(m->o.comm, &mine, sizeof mine, send ? m->o.to : -1, &theirs,
                           sizeof theirs, take ? m->o.from : -1, MIRROR_TAG, err) ||
        (take && check_note(m, &theirs, err)) ||
        swap_images(m, image, send ? mine.head.bytes : 0, take ? theirs.head.bytes : 0, err))
        return -1;
    return take ? ckpt_memory_ward_end(m->o.memory, err) : 0;
}

/* ---- the thread ---- */

static int seal(struct mirror *m, struct err *err)
{
    char note[CKPT_MEMORY_NOTE] = "";
    if (ckpt_memory_flush(m->o.memory, err))
        return -1;
    if (m->o.note && m->o.note(m->o.arg, m->key.step, note, err))
        return -1;
    return ckpt_memory_seal(m->o.memory, note, err);
}

/* With the lock held: copy pieces that nobody has taken; it is let go meanwhile. */
static void copy(struct mirror *m)
{
    while (m->wanted && !m->failed && m->next < ckpt_memory_count(m->o.memory)) {
        struct err err;
        int piece = m->next++;
        m->copying++;
        pthread_mutex_unlock(&m->lock);
        int rc = ckpt_memory_copy(m->o.memory, piece, &err);
        pthread_mutex_lock(&m->lock);
        m->copying--;
        if (rc && !m->failed) {
            m->failed = true;
            m->failure = err;
        }
        if (!m->copying)
            pthread_cond_signal(&m->to_thread);
    }
}

/* Called and left with the lock held. */
static void make_whole(struct mirror *m)
{
    struct err err;
    int64_t start = clock_thread_ns();
    copy(m);
    while (m->copying)
        pthread_cond_wait(&m->to_thread, &m->lock);
    if (!m->failed) {
        pthread_mutex_unlock(&m->lock);
        int rc = (m->fresh && seal(m, &err)) || exchange(m, &err);
        pthread_mutex_lock(&m->lock);
        if (rc) {
            m->failed = true;
            m->failure = err;
        }
    }
    m->worked_ns = clock_thread_ns() - start;
    m->wanted = false;
    pthread_cond_broadcast(&m->from_thread);
}

static void *main_thread(void *arg)
{
    struct mirror *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->wanted && !m->stop)
            pthread_cond_wait(&m->to_thread, &m->lock);
        if (!m->wanted)
            break;
        make_whole(m);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the caller's side ---- */

int mirror_open(struct mirror *m, const struct mirror_options *options, struct err *err)
{
    pthread_condattr_t attr;
    *m = (struct mirror){.o = *options};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->to_thread, NULL);
    pthread_cond_init(&m->from_thread, &attr);
    pthread_condattr_destroy(&attr);
    m->made = true;
    m->runs = !background_thread(&m->thread, main_thread, m, "snapshots", err);
    return m->runs ? 0 : -1;
}

int mirror_begin(struct mirror *m, const struct ckpt_key *key, int64_t samples, struct err *err)
{
    int64_t start = clock_ns();
    bool there = ckpt_memory_find(m->o.memory, key);
    if (!there && ckpt_memory_begin(m->o.memory, key, samples, err))
        return -1;
    pthread_mutex_lock(&m->lock);
    m->key = *key;
    m->fresh = !there;
    m->next = there ? ckpt_memory_count(m->o.memory) : 0;
    m->wanted = true;
    pthread_mutex_unlock(&m->lock);
    m->begun = true;
    m->begin_ns = clock_ns() - start;
    int64_t computed = clock_thread_ns(); /* as in ckpt_save_begin */
    pthread_cond_signal(&m->to_thread);
    m->begin_ns += clock_thread_ns() - computed;
    return 0;
}

/* With the lock held. -1: the time is up. */
static int wait_whole(struct mirror *m, int64_t deadline_ms)
{
    struct timespec at = {.tv_sec = deadline_ms / 1000,
                          .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
    while (m->wanted)
        if (pthread_cond_timedwait(&m->from_thread, &m->lock, &at) == ETIMEDOUT && m->wanted)
            return -1;
    return 0;
}

int mirror_join(struct mirror *m, int64_t deadline_ms, int64_t *stall_ns, struct err *err)
{
    int64_t start = clock_ns();
    int rv = 0;
    *stall_ns = 0;
    if (!m->begun)
        return 0;
    m->begun = false;
    pthread_mutex_lock(&m->lock);
    copy(m);
    if (wait_whole(m, deadline_ms)) {
        rv = err_set(err, "the snapshot of step %lld is not done in time", (long long)m->key.step);
    } else if (m->failed) {
        rv = -1;
        if (err)
            *err = m->failure;
    }
    int64_t worked_ns = m->worked_ns;
    pthread_mutex_unlock(&m->lock);
    *stall_ns = m->begin_ns + clock_ns() - start;
    m->cost_ns = *stall_ns + worked_ns;
    return rv;
}

void mirror_close(struct mirror *m, bool orderly, int64_t deadline_ms)
{
    if (m->runs) {
        pthread_mutex_lock(&m->lock);
        if (orderly)
            wait_whole(m, deadline_ms);
        bool done = !m->wanted;
        m->stop = true;
        pthread_mutex_unlock(&m->lock);
        pthread_cond_signal(&m->to_thread);
        if (!done && m->o.comm)
            comm_abort(m->o.comm, "this rank ends");
        pthread_join(m->thread, NULL);
    }
    if (m->o.comm) /* until then the buffers of messages under way are its */
        comm_close(m->o.comm);
    if (m->made) {
        pthread_cond_destroy(&m->to_thread);
        pthread_cond_destroy(&m->from_thread);
        pthread_mutex_destroy(&m->lock);
    }
    *m = (struct mirror){0};
}
