/* report_read.h - a run folder's records, read for the report. */
#ifndef GTRAIN_REPORT_READ_H
#define GTRAIN_REPORT_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A line of metrics.jsonl; NAN where it does not say. */
struct run_step {
    int64_t step;
    double loss, val_loss, grad_norm, lr, tokens, tokens_per_s, mfu, stall_ms;
    double time; /* seconds since 1970 */
    int epoch, generation;
    bool mfu_about; /* mfu is rough */
    size_t order;   /* of its line in the file */
};

struct run_event {
    double time;
    int64_t step;
    char kind[64];
    char *text;
};

/* Lines that followed each other in one epoch and generation. */
struct run_span {
    int epoch, generation;
    int64_t first_step, last_step;
    double first_time, last_time;
};

struct run {
    struct run_step *steps; /* ascending, each step once: its last line */
    size_t n_steps;
    struct run_event *events; /* as in the file */
    size_t n_events;
    struct run_span *spans; /* in time */
    size_t n_spans;
    size_t lines, malformed; /* of both files */
    /* Steps that were done more than once (after a restore), and those of them whose losses were
     * not the same bit for bit, with the first such step. */
    size_t repeated, differing;
    int64_t first_differing;
    char *plan; /* text of plan.yaml, NULL if there is none */
    size_t plan_bytes;
};

/* Lines that are torn or malformed are skipped and counted. -1: no metrics.jsonl, or not one whole
 * line in it. run is to be freed by run_free in any case. */
int run_read(struct run *run, const char *dir, struct err *err);
void run_free(struct run *run);

#endif
