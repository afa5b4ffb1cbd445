/* runstate.h - DIR/state.json: where a run stands, which nodes have failed its job and when. Read
 * by `gtrain status`, and by the job's next launch after a requeue. */
#ifndef GTRAIN_LAUNCH_RUNSTATE_H
#define GTRAIN_LAUNCH_RUNSTATE_H

#include <stdint.h>

#include "base/err.h"
#include "launch/message.h"

struct run; /* the coordinator's, of launch/run.h */

struct runstate_failed {
    char node[MESSAGE_NAME_BYTES];
    char reason[256];
    double time; /* seconds since 1970 */
    uint32_t epoch, generation;
};

/* Everything in the file. A zeroed one is empty. */
struct runstate {
    char job[64]; /* "" outside of Slurm */
    /* "waiting" for nodes, "running", "ended", "failed", "requeued", "relaunched" */
    char state[16];
    char text[MESSAGE_TEXT_BYTES]; /* why it ended, or the newest takeover with its phases */
    uint32_t epoch, generation;
    uint32_t first_epoch; /* of the launches that follow each other in the job; 0: not known */
    int restarts;         /* of the job, as Slurm counts */
    int requeues;         /* those that we made */
    int relaunches;       /* in the allocation, also ours */
    int world, spares;
    int replicas, planned_replicas; /* now, and in the plan */
    int64_t step;                   /* when it was written; -1: none yet */
    int64_t begun;                  /* that the newest launch to begin began from; -1: none has */
    double time;
    struct runstate_failed *failed; /* in order of time */
    int n_failed;
};

/* Read DIR/state.json: 1, or 0 where there is none, or -1. */
int runstate_read(struct runstate *r, const char *dir, struct err *err);
void runstate_free(struct runstate *r);

/* A launch begins: what was recorded for the same job is kept, another job starts with nothing. A
 * launch before it that never came to its end went with its host: that was a requeue, too. */
void runstate_begin(struct runstate *r, const char *job, int restarts, uint32_t epoch);
/* Nodes that the run has lost and that are not in the record yet. -1: out of memory. */
int runstate_lost(struct runstate *r, const struct run *run);
/* A node that never was in the run has failed it. -1: out of memory. */
int runstate_failed(struct runstate *r, const char *node, const char *reason);
/* "n1,n3": each once; malloc'ed, NULL when memory is out. */
char *runstate_excluded(const struct runstate *r);
/* Write it down, durably, with what the run knows. */
int runstate_write(struct runstate *r, const char *dir, const struct run *run, const char *state,
                   const char *text, struct err *err);

#endif
