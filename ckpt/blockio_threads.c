/* blockio_threads.c - blocks through threads that each pwrite or pread one at a time. They live for
 * one run: starting a few threads costs far less than the smallest file. */
#include "blockio_run.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct pool {
    struct blockio *b;
    const struct blockio_job *job;
    pthread_mutex_t lock;
    pthread_cond_t arrival, roomy;
    int64_t blocks, next;
    int64_t room;           /* bytes that memory has room for */
    unsigned char *arrived; /* a flag for each block */
    bool failed;
    struct err err;
};

static int64_t block_end(const struct pool *p, int64_t i)
{
    struct transfer t;
    job_block(p->b, p->job, i, &t);
    return t.at + (int64_t)t.bytes;
}

static int move_block(struct pool *p, int64_t i, struct err *err)
{
    const struct blockio_job *job = p->job;
    struct transfer t;
    job_block(p->b, job, i, &t);
    for (;;) {
        unsigned char *memory = job_memory(job, t.at) + t.done;
        off_t at = job->offset + t.at + (off_t)t.done;
        size_t left = t.bytes - t.done;
        ssize_t n = job->write ? sys_pwrite(p->b->hook, job->fd, memory, left, at)
                               : sys_pread(p->b->hook, job->fd, memory, left, at);
        enum transfer_next next = transfer_result(&t, job, n < 0 ? -errno : n, err);
        if (next != TRANSFER_AGAIN)
            return next == TRANSFER_DONE ? 0 : -1;
    }
}

static void *worker(void *arg)
{
    struct pool *p = arg;
    struct err err;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->failed && p->next < p->blocks && block_end(p, p->next) > p->room)
            pthread_cond_wait(&p->roomy, &p->lock);
        if (p->failed || p->next == p->blocks)
            break;
        int64_t i = p->next++;
        int rc;
        pthread_mutex_unlock(&p->lock);
        if (job_cancelled(p->job))
            rc = err_set(&err, "cancelled");
        else
            rc = move_block(p, i, &err);
        pthread_mutex_lock(&p->lock);
        if (!rc)
            p->arrived[i] = 1;
        if (rc && !p->failed) {
            p->failed = true;
            p->err = err;
            pthread_cond_broadcast(&p->roomy);
        }
        pthread_cond_signal(&p->arrival);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Called and left with the lock held: ask again how much memory has room for. */
static void ask_room(struct pool *p, bool wait)
{
    if (!p->job->ring)
        return;
    pthread_mutex_unlock(&p->lock);
    int64_t room = p->job->room(p->job->arg, wait);
    pthread_mutex_lock(&p->lock);
    if (room < 0 && !p->failed) {
        p->failed = true;
        err_set(&p->err, "cancelled");
    }
    p->room = room;
    pthread_cond_broadcast(&p->roomy);
}

/* In the file's order; of a read, each block once it has arrived. A failed worker wakes it too, so
 * the wait ends with the transfers. */
static void visit_all(struct pool *p)
{
    for (int64_t i = 0; i < p->blocks; i++) {
        struct transfer t;
        job_block(p->b, p->job, i, &t);
        pthread_mutex_lock(&p->lock);
        ask_room(p, false);
        while (!p->job->write && !p->arrived[i] && !p->failed)
            if (block_end(p, i) > p->room)
                ask_room(p, true);
            else
                pthread_cond_wait(&p->arrival, &p->lock);
        bool failed = p->failed;
        pthread_mutex_unlock(&p->lock);
        if (failed)
            return;
        if (p->job->visit)
            p->job->visit(p->job->arg, job_memory(p->job, t.at), t.bytes);
    }
}

static int run_pool(struct pool *p, int wanted, struct err *err)
{
    pthread_t threads[BLOCKIO_THREADS_MAX];
    int n = 0, rc = 0;
    while (n < wanted && !(rc = pthread_create(&threads[n], NULL, worker, p)))
        n++;
    if (!n)
        return err_set_errno(err, rc, "starting a thread for checkpoint transfers");
    visit_all(p);
    while (n)
        pthread_join(threads[--n], NULL);
    if (!p->failed)
        return 0;
    if (err)
        *err = p->err;
    return -1;
}

int blockio_run_threads(struct blockio *b, const struct blockio_job *job, struct err *err)
{
    struct pool p = {.b = b, .job = job, .blocks = job_blocks(b, job)};
    p.room = job->ring ? 0 : job->bytes;
    int wanted = b->depth < BLOCKIO_THREADS_MAX ? b->depth : BLOCKIO_THREADS_MAX;
    if (wanted > p.blocks)
        wanted = (int)p.blocks;
    p.arrived = calloc((size_t)p.blocks, 1);
    if (!p.arrived)
        return err_set(err, "out of memory for %d transfers", b->depth);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.arrival, NULL);
    pthread_cond_init(&p.roomy, NULL);
    int rv = run_pool(&p, wanted, err);
    pthread_cond_destroy(&p.arrival);
    pthread_cond_destroy(&p.roomy);
    pthread_mutex_destroy(&p.lock);
    free(p.arrived);
    return rv;
}
