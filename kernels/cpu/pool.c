/* pool.c - see pool.h.
 *
 * The caller publishes a job under the lock and wakes as many threads as the work is worth. A
 * thread that wakes enters the job (busy++) if tiles are left, takes tiles from a shared counter,
 * and leaves (busy--). The caller takes tiles too; when none are left it closes the job, so that a
 * thread that wakes late finds nothing to enter, and waits only for those inside. So a thread that
 * the system is slow to schedule costs nothing.
 *
 * A thread that leaves a job looks a few microseconds for the next one before it sleeps: the
 * operations of a small model follow each other faster than a sleeping thread can be woken. */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Work below this is not worth waking a thread for; above, one thread for each such part. */
static const double WAKE_NS = 15000;

/* Looks at the job counter before sleeping; one look is a few nanoseconds to some tens. */
enum { LOOKS = 100 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    int threads;  /* with the caller */
    int started;  /* workers that run */
    int sleepers; /* workers in wake */
    int busy;     /* workers inside the job */
    int wanted;   /* workers that may still enter */
    bool closing;
    atomic_ulong job; /* counts jobs; changes under the lock */
    pool_fn *fn;
    void *arg;
    int64_t tiles;
    atomic_int_fast64_t next;
    struct worker *workers;
};

static void take_tiles(struct pool *pool, pool_fn *fn, void *arg, int64_t tiles, int thread)
{
    for (;;) {
        int64_t tile = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (tile >= tiles)
            return;
        fn(arg, tile, thread);
    }
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void look_for_job(struct pool *pool, unsigned long seen)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(&pool->job, memory_order_relaxed) != seen)
            return;
        pause_briefly();
    }
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct pool *pool = self->pool;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    while (!pool->closing) {
        if (pool->wanted == 0) {
            seen = pool->job;
            pthread_mutex_unlock(&pool->lock);
            look_for_job(pool, seen);
            pthread_mutex_lock(&pool->lock);
            pool->sleepers++;
            while (pool->wanted == 0 && !pool->closing)
                pthread_cond_wait(&pool->wake, &pool->lock);
            pool->sleepers--;
            continue;
        }
        pool->wanted--;
        pool->busy++;
        pool_fn *fn = pool->fn;
        void *fn_arg = pool->arg;
        int64_t tiles = pool->tiles;
        pthread_mutex_unlock(&pool->lock);
        take_tiles(pool, fn, fn_arg, tiles, self->index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_workers(struct pool *pool, struct err *err)
{
    for (int i = 1; i < pool->threads; i++) {
        struct worker *w = &pool->workers[i - 1];
        *w = (struct worker){.pool = pool, .index = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0)
            return err_set_errno(err, rc, "cannot start thread %d of %d", i + 1, pool->threads);
        pool->started++;
    }
    return 0;
}

struct pool *pool_open(int threads, struct err *err)
{
    if (threads < 1) {
        err_set(err, "threads is %d, must be at least 1", threads);
        return NULL;
    }
    struct pool *pool = calloc(1, sizeof(*pool));
    struct worker *workers = calloc((size_t)threads, sizeof(*workers));
    if (pool == NULL || workers == NULL) {
        err_set(err, "no memory for a pool of %d threads", threads);
        free(pool);
        free(workers);
        return NULL;
    }
    pool->threads = threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    if (start_workers(pool, err) != 0) {
        pool_close(pool);
        return NULL;
    }
    return pool;
}

void pool_close(struct pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

/* Workers that are worth waking. */
static int helpers_for(const struct pool *pool, int64_t tiles, double work_ns)
{
    int most = pool->threads - 1;
    if (most > tiles - 1)
        most = (int)(tiles - 1);
    double worth = work_ns / WAKE_NS;
    return worth < most ? (int)worth : most;
}

void pool_run(struct pool *pool, int64_t tiles, double work_ns, pool_fn *fn, void *arg)
{
    int helpers = tiles > 1 ? helpers_for(pool, tiles, work_ns) : 0;
    if (helpers == 0) {
        for (int64_t tile = 0; tile < tiles; tile++)
            fn(arg, tile, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->arg = arg;
    pool->tiles = tiles;
    atomic_store(&pool->next, 0);
    pool->wanted = helpers;
    atomic_fetch_add(&pool->job, 1);
    int wake = helpers < pool->sleepers ? helpers : pool->sleepers;
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < wake; i++)
        pthread_cond_signal(&pool->wake);

    take_tiles(pool, fn, arg, tiles, 0);

    pthread_mutex_lock(&pool->lock);
    pool->wanted = 0;
    while (pool->busy > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
