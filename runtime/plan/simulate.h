/* simulate.h - a long training run under failures, replayed as events. Pure: no clock, no files, no
 * output; the same configuration, failures and seed give the same run.
 *
 * The run trains until a failure, notices it, waits for nodes if no spare is left, starts the
 * workers again, restores, and trains on from the newest state it still has. Every second of it is
 * put under exactly one part; the useful part's share is the effective training time ratio (ETTR).
 *
 * Rules, each a line of the design:
 * - A checkpoint is begun after every `every_steps`-th step. It stops training for stall_s and
 * counts write_s after its begin, training going on meanwhile. Every `shared_every`-th is also in
 * the shared folder shared_s after its begin.
 * - A snapshot, where there are any, is taken after every step, and is whole in the partner's
 * memory snapshot_copy_s later.
 * - A lost node's place goes to a spare. The node is broken for repair_s. It is no spare again
 * until the job is requeued: a node that failed stays out.
 * - No spare left: the job is requeued. It starts requeue_s later, once there are nodes enough, and
 *   has all that are not broken. Memory is gone then, checkpoints are not.
 * - Places 2i and 2i + 1 are partners. If one is lost before what it held stands in two places
 * again after the other's loss (write_s after training went on), or if there are no partner copies,
 * what is left is the shared folder.
 * - A failure during a recovery begins the recovery anew, detection first. */
#ifndef GTRAIN_PLAN_SIMULATE_H
#define GTRAIN_PLAN_SIMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct simulate_config {
    int nodes;          /* that train */
    int spares;         /* beside them */
    double horizon_s;   /* the run's length; 0: until goal_steps are done */
    int64_t goal_steps; /* 0: until horizon_s has passed */
    double step_s;

    int64_t every_steps;
    double stall_s, write_s;
    int shared_every;
    double shared_s;
    bool partner;
    bool snapshots;
    double snapshot_stall_s, snapshot_copy_s;

    double detect_s, restart_s;
    double restore_local_s;   /* no node was lost: from this node's own memory or drive */
    double restore_partner_s; /* a node was lost */
    double restore_shared_s;
    double repair_s, requeue_s;
};

enum simulate_kind {
    SIMULATE_NODE,  /* a node is lost */
    SIMULATE_WORKER /* a worker died on a healthy node: it starts again there */
};

struct simulate_failure {
    double at_s;
    int place; /* 0 ... nodes-1: which of the job's nodes */
    enum simulate_kind kind;
};

/* Where failures come from: a list in order of time, or, without one, a Poisson process of lost
 * nodes with this mean time between two of them. */
struct simulate_source {
    double mean_s;
    uint64_t seed;
    const struct simulate_failure *list; /* NULL: Poisson */
    size_t n;
};

enum simulate_part {
    SIMULATE_USEFUL,
    SIMULATE_AGAIN, /* work that was lost and had to be done again */
    SIMULATE_STALL, /* checkpoints and snapshots */
    SIMULATE_DETECT,
    SIMULATE_RESTART,
    SIMULATE_RESTORE,
    SIMULATE_WAIT, /* for nodes */
    SIMULATE_PARTS
};

extern const char *const simulate_part_names[SIMULATE_PARTS];

struct simulate_run {
    double part_s[SIMULATE_PARTS];
    double wall_s; /* their sum */
    int64_t steps;
    bool finished;        /* reached goal_steps, where there is one */
    int64_t failures;     /* that happened to the run, spares and all */
    int64_t requeues;     /* times no spare was left */
    int64_t from_shared;  /* recoveries that had only the shared folder */
    double longest_off_s; /* longest time from a failure until training went on */
};

/* Called with each stretch of a run, in no strict order (what was lost is known late). */
struct simulate_watch {
    void (*stretch)(void *arg, enum simulate_part part, double from_s, double to_s);
    void *arg;
};

/* 0, or -1 with the first value that cannot be and what would be right. */
int simulate_check(const struct simulate_config *config, const struct simulate_source *source,
                   struct err *err);

/* One run. watch may be NULL. -1: out of memory. Expects what simulate_check lets through. */
int simulate_one(const struct simulate_config *config, const struct simulate_source *source,
                 const struct simulate_watch *watch, struct simulate_run *run, struct err *err);

struct simulate_range {
    double low, median, high; /* 10th, 50th and 90th percentile */
    double mean;
};

struct simulate_summary {
    struct simulate_range part[SIMULATE_PARTS]; /* shares of the wall time, 0 to 1 */
    struct simulate_range failures, requeues, from_shared, longest_off_s, wall_s;
    int runs, unfinished;
};

/* Many runs. Run i's seed follows from source's and i alone, so two configurations meet the same
 * failures. */
int simulate_many(const struct simulate_config *config, const struct simulate_source *source,
                  int runs, struct simulate_summary *summary, struct err *err);

/* The seed of run i. */
uint64_t simulate_seed(uint64_t seed, int run);

/* Steps between checkpoints, at least: as many as a write takes, here and to the shared folder. */
int64_t simulate_least_interval(const struct simulate_config *config);

/* tau = sqrt(2 s M), not shorter than a write takes, as a whole number of steps. M: the mean time
 * between failures that go back to a checkpoint; with snapshots that is every (spares + 1)-th. */
int64_t simulate_auto_interval(const struct simulate_config *config, double mean_s);

/* The closed formula, ETTR = [1 - N r (u0 + Tc + tau/2)] / (1 + s/tau): N r = 1 / mean_s, u0 =
 * detection, restart and restore, Tc the age at which a saved state counts, tau between two such.
 * It holds where failures are few against the recoveries' length and a spare is always there. With
 * `requeues` every (spares + 1)-th failure also costs the requeue, and snapshots. */
double simulate_formula(const struct simulate_config *config, double mean_s, bool requeues);

struct simulate_point {
    int64_t x;   /* spares, or steps between checkpoints */
    double ettr; /* mean */
    double paid; /* of spares: ettr * nodes / (nodes + spares), useful work per node that is held */
};

enum { SIMULATE_POINTS = 65 };

/* ETTR for 0, 1, ... spares, up to where more cannot pay and a few beyond the config's own. *best:
 * the index of the best `paid`. Returns the number of points, -1: out of memory. */
int simulate_spares(const struct simulate_config *config, const struct simulate_source *source,
                    int runs, struct simulate_point points[SIMULATE_POINTS], int *best,
                    struct err *err);

/* ETTR for intervals from the shortest that a write allows, evenly in their logarithms. *best: the
 * index of the best ettr. */
int simulate_intervals(const struct simulate_config *config, const struct simulate_source *source,
                       int runs, struct simulate_point points[SIMULATE_POINTS], int *best,
                       struct err *err);

/* Read a trace: lines "time_hours,node[,kind]", kind `node` or `worker`; # begins a comment, a
 * first line of column names is skipped. Sorted by time. *list is malloc'ed. Returns the number, or
 * -1 with "NAME:LINE: ...". */
long simulate_read_trace(FILE *in, const char *name, int nodes, struct simulate_failure **list,
                         struct err *err);

#endif
