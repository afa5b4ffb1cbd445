/* launches.h - whether this srun's step can be launched again, and doing it.
 *
 * Where a step cannot go on but its allocation can, srun becomes a new srun: the same command on
 * the nodes that live. That takes an allocation around srun (sbatch, salloc); one of its own is
 * given back by then. The coordinator says when, and bounds it; if the coordinator itself is what
 * died, what it said last counts. */
#ifndef GTRAIN_SPANK_LAUNCHES_H
#define GTRAIN_SPANK_LAUNCHES_H

#include <stdbool.h>

#include "job.h"

/* Remember how srun was started; before anything is changed. Returns 0, or -1 after one line in
 * Slurm's log. */
int launches_save(const struct self *self);

/* Whether this srun is itself such a new launch. */
bool launches_again(void);

/* The step has been created, with so many tasks a node. Returns as above. */
int launches_begin(spank_t sp, int nodes, int tasks_per_node);

/* For the coordinator: all nodes of the allocation, "n0,n1", and how many launches may still follow
 * this one; NULL where there is nothing to say. */
const char *launches_job_nodes(void);
const char *launches_left(void);

/* A line of the coordinator's: `relaunch LEFT NEEDED` (how many launches may follow, on how many
 * nodes at least), `lost NODE`, `placed` (all nodes that will come are there), `again` (launch
 * again once this step has ended), `missing` (some nodes have not come: tell it which do not
 * answer). Others are not for us. */
void launches_hear(const char *line, void (*tell)(const char *line));

/* Whether a launch may follow if the coordinator is gone. */
bool launches_follow(void);
/* It is: that is the reason to launch again. */
void launches_want(void);

/* srun ends, and the run is not over. If nodes were still being waited for, tell the coordinator
 * which of them do not answer: perhaps that is why. */
void launches_name_silent(void (*tell)(const char *line));

/* The step has ended. If it is to be launched again, choose the nodes. */
void launches_prepare(void);
/* The process is about to end: launch again instead, if that was prepared. */
void launches_go(void);

#endif
