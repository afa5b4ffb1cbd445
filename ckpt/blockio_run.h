/* blockio_run.h - what the two ways of moving blocks share. Only blockio*.c includes it. */
#ifndef GTRAIN_CKPT_BLOCKIO_RUN_H
#define GTRAIN_CKPT_BLOCKIO_RUN_H

#include <liburing.h>

#include "blockio.h"

enum {
    /* Times in a row that a transfer may make no progress (EAGAIN, a short one below a sector)
     * before it counts as failed, with BLOCKIO_PAUSE_US between: about five seconds. */
    BLOCKIO_RETRIES = 5000,
    BLOCKIO_PAUSE_US = 1000,
};

struct blockio {
    int depth;
    int64_t block;
    const struct ckpt_hook *hook;
    bool has_ring; /* io_uring may be used */
};

/* One block on its way. */
struct transfer {
    int64_t at;         /* in the job */
    size_t bytes, done; /* done: known to be transferred */
    int retries;
};

enum transfer_next { TRANSFER_DONE, TRANSFER_AGAIN, TRANSFER_FAILED };

/* What a result (bytes, or -errno) means for the transfer; on FAILED err is set. */
enum transfer_next transfer_result(struct transfer *t, const struct blockio_job *job, ssize_t res,
                                   struct err *err);

int64_t job_blocks(const struct blockio *b, const struct blockio_job *job);
void job_block(const struct blockio *b, const struct blockio_job *job, int64_t i,
               struct transfer *t);
/* Where byte `at` of the job is in memory; of a ring, with the rest of its block behind it. */
unsigned char *job_memory(const struct blockio_job *job, int64_t at);
bool job_cancelled(const struct blockio_job *job);

/* -errno where the kernel or a container refuses it. */
int blockio_ring_make(struct io_uring *ring, int depth);
int blockio_run_ring(struct blockio *b, struct io_uring *ring, const struct blockio_job *job,
                     struct err *err);
int blockio_run_threads(struct blockio *b, const struct blockio_job *job, struct err *err);

#endif
