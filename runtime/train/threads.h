/* threads.h - all ranks of a plan as threads of this process, with the local backend.
 *
 * For `gtrain train --local`, and for tests: the same code trains as on a cluster, only messages
 * are copies. */
#ifndef GTRAIN_THREADS_H
#define GTRAIN_THREADS_H

#include "train/train.h"

struct threads_options {
    const struct plan *plan;
    struct train_identity identity; /* rank 0's; the others differ in rank and local_rank */
    struct train_hooks hooks;       /* called from every rank's thread; see `step_rank` */
    bool measure;
    int out_fd, columns;    /* as in train_options */
    int threads;            /* of each rank's device; 0: as the plan says, or cores / ranks */
    uint64_t deferred_seed; /* not 0: each device behind kernels_open_deferred(seed + rank) */
    int step_rank;          /* hooks.step is called on this rank alone */
    const int *memory;      /* not NULL: CKPT_MEMORY_SLOTS memfds for each rank, in rank order */
    int node_ranks;         /* not 0: tests, ranks 0 to node_ranks - 1 are on node "n0", and so on,
                               whatever machine this is */
};

/* Runs to the end. The result is that of the rank that failed first, which err names, or rank 0's.
 */
enum train_end threads_run(const struct threads_options *options, struct err *err);

/* Threads of one rank's device on this machine: asked (> 0), else the plan's, else cores /
 * local_world, at least 1. */
int threads_of_rank(int asked, const struct plan *plan, int local_world);

#endif
