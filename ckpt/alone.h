/* alone.h - a checkpoint of all ranks written by one process, a rank after the other, for tools
 * that make one from something else. Memory is that of the largest tensor, or 16 MiB. The files
 * come from the same engine as any other's; the record comes last, with rank 0, so cut anywhere
 * before there is none.
 */
#ifndef GTRAIN_CKPT_ALONE_H
#define GTRAIN_CKPT_ALONE_H

#include "ckpt.h"

struct alone {
    const char *dir, *node, *run_id;
    int world;
    uint32_t epoch;
    uint64_t plan_hash;
    struct ckpt_position position;
    bool replicated; /* as in ckpt_options */
    char **claims;   /* world, NULL at first; alone_close frees them */
};

int alone_open(struct alone *a, struct err *err); /* the rest is set */
void alone_close(struct alone *a);

/* Rank's file; ranks from world - 1 down to 0. copy_out as in ckpt_io, but for one tensor
 * after the other, in order, in the writer's thread, while the file is written. */
int alone_write(struct alone *a, int rank, const struct ckpt_tensor *tensors, int n,
                int (*copy_out)(void *arg, int index, void *host, struct err *err), void *arg,
                struct err *err);

#endif
