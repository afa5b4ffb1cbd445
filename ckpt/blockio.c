/* blockio.c - opening, and the rules of a single transfer. */
#include "blockio_run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "layout.h"

/* A ring that can be made may yet not be entered, where a container's filter forbids only that, or
 * know no plain reads and writes, in a kernel before 5.6. */
static bool ring_works(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool known = !probe || (io_uring_opcode_supported(probe, IORING_OP_READ) &&
                            io_uring_opcode_supported(probe, IORING_OP_WRITE));
    io_uring_free_probe(probe);
    struct io_uring_sqe *sqe = known ? io_uring_get_sqe(ring) : NULL;
    if (!sqe)
        return false;
    io_uring_prep_nop(sqe);
    return io_uring_submit_and_wait(ring, 1) == 1;
}

int blockio_open(struct blockio **out, int depth, int64_t block, bool no_uring,
                 const struct ckpt_hook *hook, struct err *err)
{
    if (depth < 0 || depth > BLOCKIO_DEPTH_MAX)
        return err_set(err, "queue_depth is %d: use 1 to %d", depth, BLOCKIO_DEPTH_MAX);
    if (block < 0 || block % CKPT_ALIGN || block > 1 << 30)
        return err_set(err, "block_bytes is %" PRId64 ": use a multiple of %d up to 1 GiB", block,
                       CKPT_ALIGN);
    struct blockio *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(err, "out of memory");
    b->depth = depth ? depth : BLOCKIO_DEPTH;
    b->block = block ? block : BLOCKIO_BLOCK;
    b->hook = hook;
    struct io_uring probe;
    b->has_ring = !no_uring && !blockio_ring_make(&probe, b->depth);
    if (b->has_ring) {
        b->has_ring = ring_works(&probe);
        io_uring_queue_exit(&probe);
    }
    *out = b;
    return 0;
}

bool blockio_has_ring(const struct blockio *b)
{
    return b->has_ring;
}

int blockio_depth(const struct blockio *b)
{
    return b->depth;
}

int64_t blockio_block(const struct blockio *b)
{
    return b->block;
}

void blockio_close(struct blockio *b)
{
    free(b);
}

int blockio_run(struct blockio *b, const struct blockio_job *job, struct err *err)
{
    if (!job->bytes)
        return 0;
    struct io_uring ring; /* of this thread: it takes no other's calls */
    if (!b->has_ring || blockio_ring_make(&ring, b->depth))
        return blockio_run_threads(b, job, err);
    int rv = blockio_run_ring(b, &ring, job, err);
    io_uring_queue_exit(&ring);
    return rv;
}

int64_t job_blocks(const struct blockio *b, const struct blockio_job *job)
{
    return (job->bytes + b->block - 1) / b->block;
}

void job_block(const struct blockio *b, const struct blockio_job *job, int64_t i,
               struct transfer *t)
{
    int64_t left = job->bytes - i * b->block;
    *t =
        (struct transfer){.at = i * b->block, .bytes = (size_t)(left < b->block ? left : b->block)};
}

unsigned char *job_memory(const struct blockio_job *job, int64_t at)
{
    return job->memory + (job->ring ? at % job->ring : at);
}

bool job_cancelled(const struct blockio_job *job)
{
    return job->cancel && atomic_load(job->cancel);
}

/* True if the descriptor had O_DIRECT and now has not. */
static bool drop_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && flags & O_DIRECT && !fcntl(fd, F_SETFL, flags & ~O_DIRECT);
}

enum transfer_next transfer_result(struct transfer *t, const struct blockio_job *job, ssize_t res,
                                   struct err *err)
{
    const char *what = job->write ? "write" : "read";
    int64_t where = job->offset + t->at + (int64_t)t->done;
    bool progress = false;
    if (res > 0) {
        size_t before = t->done;
        t->done += (size_t)res;
        if (t->done >= t->bytes)
            return TRANSFER_DONE;
        t->done -= t->done % CKPT_ALIGN; /* the rest must start where O_DIRECT may */
        progress = t->done > before;
    } else if (res == 0) {
        err_set(err,
                job->write ? "a write at byte %" PRId64 " wrote nothing"
                           : "the file ends at byte %" PRId64 ", before its length says so",
                where);
        return TRANSFER_FAILED;
    } else if (res == -EINVAL && drop_direct(job->fd)) {
        progress = true;
    } else if (res != -EAGAIN && res != -EINTR && res != -EINVAL) {
        err_set_errno(err, (int)-res, "%s of %zu bytes at byte %" PRId64, what, t->bytes - t->done,
                      where);
        return TRANSFER_FAILED;
    }
    /* EINVAL comes again, at most BLOCKIO_RETRIES times, for blocks that were in flight when the
     * flag was dropped. */
    t->retries = progress ? 0 : t->retries + 1;
    if (t->retries > BLOCKIO_RETRIES) {
        err_set_errno(err, res < 0 ? (int)-res : EIO, "%s at byte %" PRId64 " makes no progress",
                      what, where);
        return TRANSFER_FAILED;
    }
    if (!progress && res < 0)
        usleep(BLOCKIO_PAUSE_US);
    return TRANSFER_AGAIN;
}
