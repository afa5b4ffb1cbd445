/* blockio.h - moves one long run of bytes between memory and a file, many blocks in flight.
 *
 * Through io_uring, or, where the kernel or a container refuses it or the caller says so, through a
 * few threads with pwrite/pread. Short transfers are finished, EINTR and EAGAIN tried again. If a
 * descriptor opened with O_DIRECT turns out not to take it, the flag is dropped and the block done
 * again. When a run ends, for whatever reason, no transfer of it is left in the kernel: the memory
 * may be used again. */
#ifndef GTRAIN_CKPT_BLOCKIO_H
#define GTRAIN_CKPT_BLOCKIO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sys.h"

enum {
    /* Transfers in flight, and bytes of one; a plan's defaults are the same. What counts is their
     * product: with 8 MiB in flight a drive was a quarter slower than with 16, with 32 no faster,
     * in blocks of 512 KiB as of 4 MiB. With 1 MiB a file of a few MiB still has several on their
     * way, and the cost of a request is far below its time on the drive. */
    BLOCKIO_DEPTH = 16,
    BLOCKIO_BLOCK = 1 << 20,
    BLOCKIO_DEPTH_MAX = 1024,
    /* More threads than this gain nothing: each keeps one block in flight and copies nothing. */
    BLOCKIO_THREADS_MAX = 16,
};

struct blockio;

struct blockio_job {
    int fd;
    bool write;
    unsigned char *memory; /* aligned as O_DIRECT wants it, if fd has it */
    int64_t offset, bytes; /* in the file */
    /* 0: memory has room for all bytes. Else it is a ring of that many, a multiple of the block,
     * and byte i of a read arrives at memory[i % ring], once room, asked in the thread that called,
     * says more than i: bytes that memory may have had by now. wait: say it when that is more than
     * the last time; -1 ends the run with "cancelled". */
    int64_t ring;
    int64_t (*room)(void *arg, bool wait);
    /* All bytes once, in the file's order: of a write at any time while it runs, of a read after
     * they have arrived. In the thread that called. */
    void (*visit)(void *arg, const unsigned char *p, size_t n);
    void *arg;
    const atomic_bool *cancel; /* may be NULL; ends the run with "cancelled" */
};

/* depth, block: 0 for the default. no_uring: threads. hook: may be NULL. */
int blockio_open(struct blockio **out, int depth, int64_t block, bool no_uring,
                 const struct ckpt_hook *hook, struct err *err);
bool blockio_has_ring(const struct blockio *b);
int blockio_depth(const struct blockio *b);
int64_t blockio_block(const struct blockio *b);
int blockio_run(struct blockio *b, const struct blockio_job *job, struct err *err);
void blockio_close(struct blockio *b);

#endif
