/* remote.h - the plugin inside slurmstepd. Returns 0, or -1 after one line in Slurm's log. */
#ifndef GTRAIN_SPANK_REMOTE_H
#define GTRAIN_SPANK_REMOTE_H

#include "job.h"

int remote_init(struct self *self, spank_t sp);
int remote_task_init(struct self *self, spank_t sp);

#endif
