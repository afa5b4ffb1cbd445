/* loop_impl.h - between loop.c and loop_open.c. */
#ifndef GTRAIN_LOOP_IMPL_H
#define GTRAIN_LOOP_IMPL_H

#include "train/pace.h"
#include "train/peak.h"
#include "train/results.h"
#include "train/train.h"
#include "train/trainer.h"

struct loop {
    const struct train_options *options;
    const struct plan *plan;
    struct trainer trainer;
    struct keeper keeper;
    struct metrics *metrics;      /* rank 0 with a run folder; else NULL */
    struct peak peak;             /* of the machine: rank 0 holds the steps against it */
    int64_t start;                /* steps done before this run */
    int64_t submitted, finished;  /* steps, counted from the run's first */
    int64_t began_ns[2];          /* by step parity */
    int64_t stall_ns[2];          /* likewise: how long the step waited for a checkpoint's copy */
    struct pace pace;             /* of checkpoints */
    struct pace snapshots;        /* of those in memory */
    struct result noted[RESULTS]; /* of the steps up to start, where they came with the state */
    bool save_due;                /* but there was no room for it yet */
    bool stop;                    /* the tally says so */
    bool common;                  /* a failure that all ranks have with the same text */
    bool damaged;                 /* and it is that of a checkpoint file */
    bool unfit; /* a node cannot do what the run did before: that node's failure */
};

/* Into the run's events, by rank 0. */
int loop_event(struct loop *l, const char *kind, int64_t step, const char *text, struct err *err);

/* Is the state after so many steps tried on what is held out? */
bool loop_validates(const struct loop *l, int64_t done);

/* The line of step `number` (0-based). */
void loop_fill_line(struct loop *l, int64_t number, const struct step_result *result,
                    struct metrics_step *line);

/* Nobody goes on unless all can: the first rank that cannot tells all why, so that all end with the
 * same text. mine: how it went here. */
enum train_end loop_agree(struct loop *l, enum train_end mine, struct err *err);

/* TRAIN_DONE: the first step can be made. */
enum train_end loop_open(struct loop *l, struct err *err);

#endif
