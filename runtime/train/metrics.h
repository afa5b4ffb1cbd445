/* metrics.h - what a person sees of a run: the live line, metrics.jsonl, events. Rank 0 only. */
#ifndef GTRAIN_METRICS_H
#define GTRAIN_METRICS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct metrics;

struct metrics_step {
    int64_t step;    /* 1-based: completed steps */
    double loss;     /* nats a token, mean over the global batch */
    double val_loss; /* NAN where not measured */
    double grad_norm, lr;
    int64_t tokens;          /* consumed so far */
    double step_s;           /* wall time of this step */
    double mfu;              /* model FLOPs / s over what the device can do; NAN unknown */
    bool mfu_about;          /* what it can do was measured while it did something else too */
    double stall_ms;         /* the checkpoint's */
    int64_t checkpoint_step; /* newest committed, -1 none */
    uint32_t epoch, generation;
    int spares;
    int replicas, planned_replicas; /* the latter 0: not known */
};

/* dir/metrics.jsonl is appended to. After a restore at step s, lines of later steps stay where they
 * are: a reader takes the last line of each step. live: 1 live line on `fd`, more: one of so many
 * columns, 0 plain lines, -1 by isatty. */
int metrics_open(struct metrics **out, const char *dir, int fd, int live, int64_t total_steps,
                 int64_t tokens_per_step, struct err *err);
/* The step of the last whole line, 0: there is none. */
int64_t metrics_last_step(const struct metrics *m);
/* The step of the last checkpoint that the events tell of, since the run last began from first
 * weights; -1: none. */
int64_t metrics_committed(const struct metrics *m);
int metrics_step(struct metrics *m, const struct metrics_step *s, struct err *err);
/* A line for the log and for the report's timeline: "restored", "checkpoint committed", ... */
int metrics_event(struct metrics *m, const char *kind, int64_t step, const char *text,
                  struct err *err);
void metrics_close(struct metrics *m);

#endif
