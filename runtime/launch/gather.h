/* gather.h - how a step begins: nodes register, come back, or never come. The part of run.h that
 * says when the ranks may be given out. Pure, like run.h, which declares what others call. */
#ifndef GTRAIN_LAUNCH_GATHER_H
#define GTRAIN_LAUNCH_GATHER_H

#include "launch/run.h"

/* Are the nodes that are up enough for all ranks, or for as many replicas as will do? */
int gather_enough(const struct run *run);

/* Time passes. */
void gather_tick(struct run *run, int64_t now);

#endif
