/* background.c - see background.h. */
#include "train/background.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "base/clock.h"

/* ---- threads ---- */

int background_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *what,
                      struct err *err)
{
    struct sched_param param = {.sched_priority = 0};
    int policy;
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set_errno(err, rc, "starting the thread for %s", what);
    if (!pthread_getschedparam(*thread, &policy, &param) && policy == SCHED_OTHER)
        pthread_setschedparam(*thread, SCHED_BATCH, &param);
    return 0;
}

/* ---- in the thread ---- */

/* Called and left with the lock held. */
static void work(struct background *b)
{
    struct err err;
    int64_t start_ns = clock_ns();
    pthread_mutex_unlock(&b->lock);
    int rc = b->work(b, b->arg, &err);
    bool lost = rc && comm_failed(b->comm);
    if (rc && !lost)
        comm_abort(b->comm, err.text);
    pthread_mutex_lock(&b->lock);
    b->wanted--;
    atomic_store(&b->ns, clock_ns() - start_ns);
    if (rc) {
        b->wanted = 0;
        b->failed = true;
        atomic_store(&b->lost_peers, lost);
        b->failure = err;
    }
    pthread_cond_broadcast(&b->from_thread);
}

static void *main_thread(void *arg)
{
    struct background *b = arg;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->wanted && !b->stop)
            pthread_cond_wait(&b->to_thread, &b->lock);
        if (!b->wanted)
            break;
        work(b);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void background_moved(struct background *b)
{
    atomic_fetch_add(&b->moved, 1);
}

/* ---- the caller's side ---- */

int background_open(struct background *b, struct comm *comm,
                    int (*work)(struct background *b, void *arg, struct err *err), void *arg,
                    struct err *err)
{
    pthread_condattr_t attr;
    *b = (struct background){.comm = comm, .work = work, .arg = arg};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->to_thread, NULL);
    pthread_cond_init(&b->from_thread, &attr);
    pthread_condattr_destroy(&attr);
    b->runs =
        !background_thread(&b->thread, main_thread, b, "files on their way to other nodes", err);
    return b->runs ? 0 : -1;
}

/* With the lock held. */
static int check(const struct background *b, struct err *err)
{
    if (!b->failed)
        return 0;
    if (err)
        *err = b->failure;
    return -1;
}

int background_begin(struct background *b, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    int rv = check(b, err);
    if (!rv)
        b->wanted++;
    pthread_mutex_unlock(&b->lock);
    pthread_cond_signal(&b->to_thread); /* free to go: it needs the lock at once */
    return rv;
}

int background_check(struct background *b, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    int rv = check(b, err);
    pthread_mutex_unlock(&b->lock);
    return rv;
}

/* With the lock held. -1: it has not got on. */
static int wait_over(struct background *b, int64_t patience_ms)
{
    while (b->wanted) {
        long long moved = atomic_load(&b->moved);
        int64_t end = clock_ms() + patience_ms;
        struct timespec at = {.tv_sec = end / 1000, .tv_nsec = (long)(end % 1000) * 1000000};
        int rc = 0;
        while (b->wanted && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&b->from_thread, &b->lock, &at);
        if (b->wanted && atomic_load(&b->moved) == moved)
            return -1;
    }
    return 0;
}

int background_wait(struct background *b, int64_t patience_ms, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    int rv = wait_over(b, patience_ms)
                 ? err_set(err, "nothing has moved for %lld ms", (long long)patience_ms)
                 : check(b, err);
    pthread_mutex_unlock(&b->lock);
    return rv;
}

int64_t background_ns(const struct background *b)
{
    return atomic_load(&b->ns);
}

bool background_lost_peers(const struct background *b)
{
    return atomic_load(&b->lost_peers);
}

void background_close(struct background *b, bool orderly, int64_t patience_ms)
{
    if (!b->comm)
        return;
    if (b->runs) {
        pthread_mutex_lock(&b->lock);
        if (orderly)
            wait_over(b, patience_ms);
        bool busy = b->wanted;
        b->stop = true;
        b->wanted = busy; /* what has not begun never will */
        pthread_mutex_unlock(&b->lock);
        pthread_cond_signal(&b->to_thread);
        if (busy)
            comm_abort(b->comm, "this rank ends");
        pthread_join(b->thread, NULL);
    }
    comm_close(b->comm); /* until then the buffers of messages under way are its */
    pthread_cond_destroy(&b->to_thread);
    pthread_cond_destroy(&b->from_thread);
    pthread_mutex_destroy(&b->lock);
    *b = (struct background){.comm = NULL};
}
