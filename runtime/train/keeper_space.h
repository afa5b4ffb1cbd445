/* keeper_space.h - do the checkpoints of all ranks that write to one disk fit on it? */
#ifndef GTRAIN_TRAIN_KEEPER_SPACE_H
#define GTRAIN_TRAIN_KEEPER_SPACE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct keeper;

/* Once all ranks have opened their writers; all ranks call. In a launch's first generation only:
 * later ones have what they have, and each rank's own check. 0, or -1 with err; *common: the same
 * text on all ranks. */
int keeper_space_check(struct keeper *keeper, bool *common, struct err *err);

/* What a rank's files need, and what it sees free. */
struct space_need {
    char node[256]; /* "": of the folder that all have */
    int64_t to_come, available;
    bool writes;
};

/* Does it fit on every node? -1: err says where not, with the sum. */
int keeper_space_fits(const struct space_need *ranks, int world, const char *dir, struct err *err);

#endif
