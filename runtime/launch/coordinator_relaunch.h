/* coordinator_relaunch.h - when the step cannot go on, but its allocation can: srun is asked to
 * launch the same step again on nodes of the job that live.
 *
 * What srun has to know for that is told when it changes, so that it can also do it when this
 * process is what died. The bound counts launches that made no progress: one that restored a later
 * step than the launch before has all of them anew. */
#ifndef GTRAIN_LAUNCH_COORDINATOR_RELAUNCH_H
#define GTRAIN_LAUNCH_COORDINATOR_RELAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "launch/run.h"
#include "launch/runstate.h"

enum { RELAUNCH_LINE_BYTES = 320 };

/* Sends one line to the plugin in srun. */
struct relaunch_line {
    void (*tell)(void *to, const char *line);
    void *to;
};

struct relaunch {
    const char *job_nodes; /* of the allocation, "n0,n1"; NULL: not in one, no relaunch */
    int limit, left;       /* launches that may follow without progress */
    int needed;            /* nodes for all ranks of the plan: a launch does not begin smaller */
    int64_t begun_before;  /* the step that the launch before began from, -1: none did */
    int begun;             /* this one has */
    int told;              /* failed nodes of the record */
    int silent;            /* nodes that srun has named */
    char **absent;         /* nodes that have not come, by the answer that is being heard */
    int n_absent;
    int answered; /* it is complete */
    char line[RELAUNCH_LINE_BYTES];
    size_t have;
};

/* How many nodes of a list "n0,n1" have not failed. Pure. */
int relaunch_usable(const char *job_nodes, const struct runstate *record);

/* A launch begins; `left` -1: it is the first. The record must be that of this launch. */
void relaunch_begin(struct relaunch *r, const char *job_nodes, int limit, int left,
                    const struct run *run, const struct runstate *record);
/* Tell srun how many launches may follow and which nodes have failed, as far as that is new. */
void relaunch_tell(struct relaunch *r, const struct runstate *record, struct relaunch_line line);

/* All ranks have begun: 1 if that is new, and then the record is to be written. */
int relaunch_progress(struct relaunch *r, const struct run *run, struct runstate *record);

/* What srun says: `silent NODE`, a node it could not launch on, which is put into the record; and
 * when it was asked (`missing`) `absent NODE` for each that does not answer, then `asked`. -1:
 * memory is out. */
int relaunch_hear(struct relaunch *r, const char *bytes, size_t n, const struct run *run,
                  struct runstate *record);
/* If an answer is complete, tell the run. If that is its end, the absent nodes are put into the
 * record. -1: memory is out. */
int relaunch_answer(struct relaunch *r, struct run *run, struct runstate *record, int64_t now);
void relaunch_end(struct relaunch *r);
/* srun has gone. If silent nodes are why the step did not come together, the run ends with that. */
void relaunch_blame(const struct relaunch *r, struct run *run, const struct runstate *record,
                    int64_t now);

/* The run has ended. Can another launch help, and is there one left? */
int relaunch_possible(const struct relaunch *r, const struct run *run,
                      const struct runstate *record, int srun_is_gone);

#endif
