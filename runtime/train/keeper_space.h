/* keeper_space.h - do the checkpoints of all ranks that write to one disk fit on it? */
#ifndef GTRAIN_TRAIN_KEEPER_SPACE_H
#define GTRAIN_TRAIN_KEEPER_SPACE_H

#include "base/err.h"
#include "ckpt.h"

#include <stdbool.h>

struct keeper;

/* Once all ranks have opened their writers and have what they restore; all ranks call. What must go
 * before anything is saved has gone then. 0, or -1 with err; *common: the same text on all ranks.
 * In a later generation it is the node's failure: *unfit on its ranks, and no error on others. */
int keeper_space_check(struct keeper *keeper, bool *common, bool *unfit, struct err *err);

/* What a rank's files need, and what it sees in its folder. */
struct space_need {
    char node[256]; /* "": of the folder that all have */
    struct ckpt_space space;
    bool writes;
};

/* Does it fit on every node? -1: err says where not, with the sum; *first is the first rank of that
 * node. Pure. */
int keeper_space_fits(const struct space_need *ranks, int world, const char *dir, int *first,
                      struct err *err);

/* It fits on this rank's node only once what is loose has gone. Pure. */
bool keeper_space_tight(const struct space_need *ranks, int world, int rank);

#endif
