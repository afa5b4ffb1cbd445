/* space.h - how much of a folder's file system the files of one writer take. Pure.
 *
 * At a time there are `keep` committed checkpoints, `ahead` finished ones that wait for their
 * commit, and the one that is being written; of each this rank's own file, its ward's, and its
 * parities. Checkpoints of earlier starts count among those that are kept, until this start's have
 * taken their places: so before its first commit there is room for theirs and for ahead + 1 of its
 * own. What more an earlier start has left goes then, where it is needed (retain.h). */
#ifndef GTRAIN_CKPT_SPACE_H
#define GTRAIN_CKPT_SPACE_H

#include <stdint.h>

struct space_use {
    int keep, ahead, held;     /* as in ckpt_options; held: own files more */
    int64_t own, ward, parity; /* of a file; 0: there is none */
    int64_t log;               /* that the log may yet grow by */
};

/* What a file takes beside its bytes: where they lie, and its name. */
enum { SPACE_FILE_BYTES = 4096 };

/* All that there may be at a time, in the end. */
int64_t space_all(const struct space_use *u);
/* Of this start's before its first commit. */
int64_t space_first(const struct space_use *u);
/* The most that a log of this node takes, in a world of so many ranks, where it keeps so many
 * lines. */
int64_t space_log(int world, int lines);

#endif
