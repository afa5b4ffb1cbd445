/* coordinator_requeue.h - the coordinator's last act where the machine has failed it: the job is
 * given back to Slurm. */
#ifndef GTRAIN_LAUNCH_COORDINATOR_REQUEUE_H
#define GTRAIN_LAUNCH_COORDINATOR_REQUEUE_H

#include "launch/runstate.h"
#include "launch/run.h"
#include "launch/runlog.h"

struct coordinator;

/* The run has ended. If more nodes would help, and Slurm takes the job back, count that in the
 * record, write it, and requeue: at most `requeues` times a job. `say` tells the user before that,
 * as Slurm ends srun at once. Returns 1 if the job is requeued, else 0 with what to add to the
 * reason of the end ("": nothing). */
int coordinator_requeue(struct runstate *record, const struct run *run, int requeues,
                        const char *run_dir, struct runlog *log,
                        void (*say)(struct coordinator *c, const char *text), struct coordinator *c,
                        char *text, size_t room);

#endif
