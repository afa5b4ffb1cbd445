/* stream.h - all data of a rank's file, read, checked and handed on at the same time.
 *
 * One thread reads past the page cache into a ring of memory, many blocks in flight, and holds each
 * MiB's checksum against the header's; the caller's thread takes what has been found to be right,
 * in order. So neither reading nor checking nor what the caller does with the bytes waits for the
 * other two, and however large the file, the memory is that of the ring. The ring is made for the
 * one call, in this process alone: no transfer of a dead process can land there. */
#ifndef GTRAIN_CKPT_STREAM_H
#define GTRAIN_CKPT_STREAM_H

#include "blockio.h"
#include "file.h"

enum {
    /* The ring has at most this part of the data, so that a restore needs little memory beyond the
     * state that it fills, if that leaves two blocks and a MiB; and no more than twice what is in
     * flight: then drive and caller each have as much again to be ahead of the other. */
    STREAM_PART = 8,
    STREAM_FLIGHTS = 2,
    /* The caller gets at most this part of the ring at once: the rest may be read over meanwhile.
     */
    STREAM_TAKE_PART = 8,
};

/* take: data bytes [at, at + n), cut at multiples of 4096; no longer needed when it returns. What
 * it returns, if not 0, ends it. b must not be in use. */
int stream_file(struct blockio *b, struct ckpt_file *f,
                int (*take)(void *arg, int64_t at, const unsigned char *p, int64_t n,
                            struct err *err),
                void *arg, struct err *err);

/* Bytes of the ring. Pure. */
int64_t stream_ring(int depth, int64_t block, int64_t data_bytes);

#endif
