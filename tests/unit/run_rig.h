/* run_rig.h - the coordinator's rules (launch/run.h) with a clock made of numbers, for tests. */
#ifndef GTRAIN_TEST_RUN_RIG_H
#define GTRAIN_TEST_RUN_RIG_H

#include "launch/takeover.h"

enum { PATIENCE = 1000, BEAT = 100 };

/* Of that many nodes of so many tasks, and ranks: all of them replicas. */
struct run_config rig_config(int nodes, int tasks, int world);
struct message_register rig_node(int i, int tasks); /* called "n<i>" */

/* A run of that many nodes and ranks, placed at time 0; failing ranks are restarted so often. */
void rig_start_with(struct run *run, int nodes, int tasks, int world, int restarts);
void rig_start(struct run *run, int nodes, int tasks, int world); /* never */

void rig_rank_exits(struct run *run, uint32_t rank, int code, int number, int flags, int64_t now);

/* It does, at once, and is closed. */
void rig_ends_with(struct run *run, int64_t now, int code, const char *text);

/* The generation after `now`, and the nodes of the ranks as one text. */
void rig_runs(struct run *run, int64_t now, uint32_t generation, const char *nodes);

#endif
