/* program_walk.h - runs all stages' programs side by side, without doing anything.
 *
 * A receive waits until the peer has sent; an action that waits for a send waits until the peer has
 * received it (the strictest a network can be); REDUCE_TIED waits for its peer, NORM for everybody.
 * Checking for deadlock and simulating time are both a walk. */
#ifndef GTRAIN_PROGRAM_WALK_H
#define GTRAIN_PROGRAM_WALK_H

#include "train/program.h"

/* Called when an action can run. from: a receive's send in the peer stage's program, else -1. */
typedef void program_visit(void *arg, int stage, int index, int from);

/* 0, or -1 with err: a deadlock, a message without a partner, or no memory. */
int program_walk(const struct program *stages, int n_stages, program_visit *visit, void *arg,
                 struct err *err);

#endif
