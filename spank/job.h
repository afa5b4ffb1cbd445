/* job.h - what srun, sbatch and salloc have in common: the program, its arguments, the check before
 * anything is allocated. */
#ifndef GTRAIN_SPANK_JOB_H
#define GTRAIN_SPANK_JOB_H

#include "args.h"
#include "cmdline.h"
#include "site.h"

/* What the dispatch file knows of this process. */
struct self {
    int argc;
    char **argv; /* of the process, NULL if unknown */
    struct cmdline cmdline;
    struct site site;
};

/* The shape a command line asks for; 0 where it is not known. */
struct shape {
    int nodes, tasks, tasks_per_node;
};

/* Have `gtrain plan check` look at the plan. Returns 0, or -1 after it, or we, said why not. */
int job_check_plan(const struct self *self, const struct args *args, const struct shape *shape);

#endif
