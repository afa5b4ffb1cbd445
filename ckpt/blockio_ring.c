/* blockio_ring.c - blocks through io_uring: keep `depth` transfers in the kernel until all are
 * done; after a failure or a cancel start no more, and wait for those that are in.
 *
 * A visit (a checksum) must not hold up the drive. A block to be written is visited just before it
 * is given to the kernel, which then finds it in the processor's cache, and given at once: only the
 * first waits for its visit, the others are far behind those on their way. A block read is visited
 * after all that can be given to the kernel has been given. */
#include "blockio_run.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct run {
    struct blockio *b;
    const struct blockio_job *job;
    struct io_uring *ring;
    struct transfer *slots; /* depth of them */
    int *free_slots;
    int n_free, in_kernel;
    int64_t blocks, next;
    unsigned char *arrived; /* a flag for each block, of a read */
    int64_t visited;        /* blocks */
    int64_t room;           /* bytes that memory has room for */
    int ring_errors;        /* in a row */
    bool failed;
    struct err *err;
};

/* One thread submits and waits, and needs to hear of a completion only then: no interrupt need stop
 * it. Kernels before 6.1 do not know that, those before 6.0 none of it. */
int blockio_ring_make(struct io_uring *ring, int depth)
{
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; rc == -EINVAL && i < sizeof flags / sizeof *flags; i++)
        rc = io_uring_queue_init((unsigned)depth, ring, flags[i]);
    return rc;
}

static void visit_block(struct run *r, int64_t i)
{
    struct transfer t;
    job_block(r->b, r->job, i, &t);
    if (r->job->visit)
        r->job->visit(r->job->arg, job_memory(r->job, t.at), t.bytes);
}

static void finish(struct run *r, int slot)
{
    struct transfer *t = &r->slots[slot];
    if (!r->job->write)
        r->arrived[t->at / r->b->block] = 1;
    r->free_slots[r->n_free++] = slot;
}

/* Put the slot's remaining bytes on the ring, or settle it if the hook says how it ends. */
static void queue(struct run *r, int slot)
{
    struct transfer *t = &r->slots[slot];
    const struct blockio_job *job = r->job;
    for (;;) {
        ssize_t n =
            sys_allow(r->b->hook, job->write ? CKPT_OP_WRITE : CKPT_OP_READ, t->bytes - t->done);
        struct io_uring_sqe *sqe = n > 0 ? io_uring_get_sqe(r->ring) : NULL;
        if (sqe) {
            void *p = job_memory(job, t->at) + t->done;
            uint64_t at = (uint64_t)(job->offset + t->at) + t->done;
            if (job->write)
                io_uring_prep_write(sqe, job->fd, p, (unsigned)n, at);
            else
                io_uring_prep_read(sqe, job->fd, p, (unsigned)n, at);
            io_uring_sqe_set_data64(sqe, (uint64_t)slot);
            r->in_kernel++;
            return;
        }
        if (transfer_result(t, job, n > 0 ? -EAGAIN : n, r->err) == TRANSFER_FAILED) {
            r->failed = true;
            r->free_slots[r->n_free++] = slot;
            return;
        }
    }
}

static void completed(struct run *r, int slot, int res)
{
    struct err unused; /* the first failure is the one to report */
    r->in_kernel--;
    switch (transfer_result(&r->slots[slot], r->job, res, r->failed ? &unused : r->err)) {
    case TRANSFER_DONE:
        finish(r, slot);
        break;
    case TRANSFER_FAILED:
        r->failed = true;
        r->free_slots[r->n_free++] = slot;
        break;
    case TRANSFER_AGAIN:
        if (r->failed)
            r->free_slots[r->n_free++] = slot;
        else
            queue(r, slot);
        break;
    }
}

static void cancel(struct run *r)
{
    r->failed = true;
    err_set(r->err, "cancelled");
}

/* Memory has room for the next block. */
static bool has_room(struct run *r, bool wait)
{
    struct transfer t;
    if (!r->job->ring)
        return true;
    job_block(r->b, r->job, r->next, &t);
    int64_t end = t.at + (int64_t)t.bytes;
    if (end > r->room)
        r->room = r->job->room(r->job->arg, wait);
    if (r->room < 0)
        cancel(r);
    return end <= r->room;
}

static void start_more(struct run *r)
{
    while (!r->failed && r->n_free && r->next < r->blocks && has_room(r, false)) {
        if (job_cancelled(r->job)) {
            cancel(r);
            return;
        }
        int slot = r->free_slots[--r->n_free];
        if (r->job->write)
            visit_block(r, r->next);
        job_block(r->b, r->job, r->next++, &r->slots[slot]);
        queue(r, slot);
        if (r->job->write && r->job->visit)
            return;
    }
}

/* Give the kernel what is queued, take the completions there are, at least one if told to wait. A
 * ring that is out of memory or has too many completions waiting is asked again; -errno when it
 * does not recover. */
static int exchange(struct run *r, bool wait)
{
    if (wait)
        sys_allow(r->b->hook, CKPT_OP_WAIT, 0);
    int rc = wait ? io_uring_submit_and_wait(r->ring, 1) : io_uring_submit_and_get_events(r->ring);
    if (rc < 0 && rc != -EINTR) {
        if (++r->ring_errors > BLOCKIO_RETRIES)
            return rc;
        usleep(BLOCKIO_PAUSE_US);
    } else {
        r->ring_errors = 0;
    }
    struct io_uring_cqe *cqe;
    while (!io_uring_peek_cqe(r->ring, &cqe)) {
        int slot = (int)io_uring_cqe_get_data64(cqe), res = cqe->res;
        io_uring_cqe_seen(r->ring, cqe);
        completed(r, slot, res);
    }
    return 0;
}

/* The next block of a read is here. */
static bool can_visit(const struct run *r)
{
    return !r->job->write && !r->failed && r->visited < r->next && r->arrived[r->visited];
}

static bool can_start(const struct run *r)
{
    return r->job->write && !r->failed && r->n_free && r->next < r->blocks;
}

static int run_loop(struct run *r)
{
    for (;;) {
        start_more(r);
        bool visits = can_visit(r);
        if (!r->in_kernel && !visits) {
            if (r->failed || r->next == r->blocks)
                return r->failed ? -1 : 0;
            has_room(r, true);
            continue;
        }
        int rc = r->in_kernel ? exchange(r, !visits && !can_start(r)) : 0;
        if (rc)
            return err_set_errno(r->err, -rc, "io_uring");
        if (can_visit(r))
            visit_block(r, r->visited++);
    }
}

int blockio_run_ring(struct blockio *b, struct io_uring *ring, const struct blockio_job *job,
                     struct err *err)
{
    struct run r = {.b = b, .ring = ring, .job = job, .blocks = job_blocks(b, job), .err = err};
    r.slots = calloc((size_t)b->depth, sizeof *r.slots);
    r.free_slots = calloc((size_t)b->depth, sizeof *r.free_slots);
    r.arrived = calloc((size_t)r.blocks, 1);
    int rv = -1;
    if (!r.slots || !r.free_slots || !r.arrived) {
        err_set(err, "out of memory for %d transfers", b->depth);
    } else {
        for (r.n_free = 0; r.n_free < b->depth; r.n_free++)
            r.free_slots[r.n_free] = r.n_free;
        rv = run_loop(&r);
    }
    free(r.slots);
    free(r.free_slots);
    free(r.arrived);
    return rv;
}
