/* allocator.h - the plugin inside sbatch and salloc. All return 0, or -1 after one line in Slurm's
 * log. */
#ifndef GTRAIN_SPANK_ALLOCATOR_H
#define GTRAIN_SPANK_ALLOCATOR_H

#include "job.h"

int allocator_init(struct self *self, spank_t sp);
int allocator_post_opt(struct self *self);

#endif
