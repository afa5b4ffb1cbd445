/* srun.h - the plugin inside srun. All return 0, or -1 after one line in Slurm's log. */
#ifndef GTRAIN_SPANK_SRUN_H
#define GTRAIN_SPANK_SRUN_H

#include "job.h"

int srun_init(struct self *self, spank_t sp);
int srun_post_opt(struct self *self);
int srun_user_init(struct self *self, spank_t sp);
void srun_exit(void);

#endif
