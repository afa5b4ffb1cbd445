/* pace.h - when the next checkpoint, or snapshot, is due: as the plan says, or (checkpoint.every,
 * checkpoint.snapshots: auto) as rank 0 finds from what the last ones have cost all ranks.
 *
 * Costs travel to rank 0 in the tally of a step, its decision back in that of a later one: so all
 * ranks take it over at the same step. interval.h holds the decision itself. */
#ifndef GTRAIN_PACE_H
#define GTRAIN_PACE_H

#include <stdbool.h>

#include "plan/plan.h"
#include "train/identity.h"
#include "train/interval.h"
#include "train/step.h"

enum pace_of { PACE_CHECKPOINTS, PACE_SNAPSHOTS };

struct pace {
    enum pace_of of;
    bool automatic, decides; /* it is rank 0 that decides */
    int64_t every;           /* the same on all ranks */
    int64_t decided;         /* what it tells; 0: nothing yet */
    double mtbf_s;
    bool settled;                                    /* found, and told */
    int64_t counted;                                 /* newest checkpoint whose cost is noted */
    struct interval_window stall_s, write_s, step_s; /* of a snapshot stall_s is all it costs */
};

void pace_open(struct pace *p, enum pace_of of, const struct plan *plan,
               const struct train_identity *identity);

/* After `done` steps, when the last one was begun after `last`. Pure. */
bool pace_due(const struct pace *p, int64_t done, int64_t last);

/* What this rank tells in step_word.every, or .snapshot_every. */
int64_t pace_word(const struct pace *p);

/* What a step's tally said, and how long the step took. True: an interval has been found for the
 * first time, *why says from what. */
bool pace_hear(struct pace *p, const struct step_result *result, double step_s, struct err *why);

#endif
