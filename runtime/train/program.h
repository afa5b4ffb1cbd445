/* program.h - a training step as data: made by one function, checked, printed, drawn, then run.
 *
 * program_make is a pure function of the plan and a rank's pipeline stage. An action names what to
 * do, on which microbatch, and what must have happened before; the executor (execute.c) holds no
 * decision. Ranks that differ only in tensor or data coordinate have the same program. */
#ifndef GTRAIN_PROGRAM_H
#define GTRAIN_PROGRAM_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "plan/plan.h"

enum action_kind {
    ACTION_LOAD,           /* tokens of a microbatch to the device (first and last stage) */
    ACTION_RECV_FORWARD,   /* activations from the stage before */
    ACTION_FORWARD,        /* all layers of the chunk; on the last stage also the loss */
    ACTION_SEND_FORWARD,   /* activations to the next stage */
    ACTION_RECV_BACKWARD,  /* gradient of my output from the next stage */
    ACTION_BACKWARD_INPUT, /* gradient of my input */
    ACTION_SEND_BACKWARD,  /* gradient of my input to the stage before */
    ACTION_BACKWARD_WEIGHT,
    ACTION_REDUCE_TIED,  /* sum the tied embedding's two gradients (first and last stage) */
    ACTION_REDUCE_GRADS, /* sum gradients over data-parallel replicas */
    ACTION_NORM,         /* square sums, their all-reduce, clip factor */
    ACTION_OPTIMIZER,
    ACTION_READ_BACK, /* loss and norm to the host, read one step late */
    ACTION_KINDS
};

enum { PROGRAM_STREAM_COMPUTE, PROGRAM_STREAM_COMM, PROGRAM_STREAMS };
enum { PROGRAM_MAX_WAITS = 4 };

struct action {
    enum action_kind kind;
    int microbatch; /* -1: not about one */
    int slot;       /* which set of saved activations: microbatches in flight share by turns; -1 */
    int peer_stage; /* for sends and receives; -1 */
    int stream;
    int n_waits;
    int waits[PROGRAM_MAX_WAITS]; /* indices of earlier actions whose event this one waits for */
};

struct program {
    int stage, stages;
    int64_t microbatches;
    int slots; /* sets of saved activations needed */
    int n;
    struct action *actions; /* owned */
};

/* Pure. -1 with err when the plan asks for a schedule that is not built. */
int program_make(struct program *p, const struct plan *plan, int stage, struct err *err);
/* Only forwards, for validation: loads, receives, forwards, sends. */
int program_make_validation(struct program *p, const struct plan *plan, int stage,
                            int64_t microbatches, struct err *err);
void program_free(struct program *p);

/* Check all stages' programs against each other: every action's inputs come before it, every send
 * has its receive, no deadlock when run side by side with sends that do not block, no slot reused
 * while alive. Returns 0, or -1 with what and where. */
int program_check(const struct program *stages, int n_stages, struct err *err);

/* Simulated time line with forward = 1, backward = 2 units: for text and picture.
 * start[stage][action index], end likewise; caller frees both. Total length in *length. */
int program_simulate(const struct program *stages, int n_stages, double **start, double **end,
                     double *length, struct err *err);

const char *action_name(enum action_kind kind);
int program_print(const struct program *stages, int n_stages, FILE *out);
int program_svg(const struct program *stages, int n_stages, const char *title, FILE *out);

#endif
