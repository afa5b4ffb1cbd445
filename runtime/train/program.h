/* program.h - a training step as data: made by one function, checked, printed, drawn, then run.
 *
 * program_make is a pure function of the plan and a rank's replica and pipeline stage. An action
 * names what to do, on which microbatch, and what must have happened before; the executor
 * (execute.c) holds no decision. Ranks that differ only in tensor coordinate have the same program,
 * and so have replicas with as many microbatches. Others differ in what comes before the
 * reductions: where replicas meet, they all do, once a step.
 *
 * What a program means, for whoever runs or checks it:
 * - Actions are submitted in their order, each on its stream; one stream keeps order, two streams
 *   are ordered by waits alone.
 * - A wait on a send means that the message has left its buffer (comm_wait on the request), a wait
 *   on anything else that its stream has passed it (an event). Sends do not block the executor,
 *   receives do.
 * - A slot is a set of buffers for one microbatch in flight: its tokens, its input (what
 *   RECV_FORWARD fills), what forward saves, its output (SEND_FORWARD reads it), the gradient of
 *   the output (RECV_BACKWARD fills it) and of the input (SEND_BACKWARD reads it). Microbatch i has
 *   slot i mod slots. None of the six may share memory with another.
 * - BACKWARD_WEIGHT of a microbatch comes after its BACKWARD_INPUT and may read all six.
 * - Between two runs everything has passed: whoever runs a program first waits for the sends of the
 *   run before and makes each stream wait for the other. So waits never reach into another run.
 *   What a host array is uploaded from (LOAD) stays as it is until then: one area a microbatch. */
#ifndef GTRAIN_PROGRAM_H
#define GTRAIN_PROGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "plan/plan.h"

enum action_kind {
    ACTION_LOAD,           /* tokens of a microbatch to its slot (first and last stage) */
    ACTION_RECV_FORWARD,   /* activations from the stage before */
    ACTION_FORWARD,        /* all layers of the chunk; on the last stage also the loss */
    ACTION_SEND_FORWARD,   /* activations to the next stage */
    ACTION_RECV_BACKWARD,  /* gradient of my output from the next stage */
    ACTION_BACKWARD_INPUT, /* gradient of my input */
    ACTION_SEND_BACKWARD,  /* gradient of my input to the stage before */
    ACTION_BACKWARD_WEIGHT,
    ACTION_REDUCE_TIED,  /* add the tied embedding's two gradients: exchanged between first and last
                            stage; peer_stage -1 with one stage, that has both */
    ACTION_REDUCE_GRADS, /* sum gradients over data-parallel replicas; only where there are some */
    ACTION_NORM,         /* square sums, their exchange among all stages, clip factor */
    ACTION_OPTIMIZER,    /* new weights; gradients are then zero for the next step */
    ACTION_READ_BACK,    /* loss and norm to the host, read one step late */
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
int program_make(struct program *p, const struct plan *plan, int replica, int stage,
                 struct err *err);
/* Only forwards, for validation: loads, receives, forwards, sends. */
int program_make_validation(struct program *p, const struct plan *plan, int replica, int stage,
                            struct err *err);
void program_free(struct program *p);

/* Check all stages' programs against each other: every action's inputs come before it and are
 * ordered before it by streams and waits, no buffer is overwritten while it is alive, every send
 * has its receive, and run side by side with receives that block until the message is there, sends
 * that are done only once it was received, and NORM a meeting of all stages, none waits for ever.
 * Returns 0, or -1 with what and where. */
int program_check(const struct program *stages, int n_stages, struct err *err);

/* Time units of the three computing actions; all others take none. */
struct program_costs {
    double forward, backward_input, backward_weight;
};

/* Simulated time line. costs NULL: 1, 1, 1. {1, 2, 0} is a backward that is one piece of 2 units,
 * as the textbook formulas have it: with it the idle part of 1F1B and of GPipe is (p-1)/(m+p-1) of
 * the step. With the split the gradient leaves before the weights' part is done, and the step is
 * p-1 units shorter. start[stage][action index], end likewise: program_times_free. Total length in
 * *length. */
int program_simulate(const struct program *stages, int n_stages, const struct program_costs *costs,
                     double ***start, double ***end, double *length, struct err *err);
void program_times_free(double **times, int n_stages);

const char *action_name(enum action_kind kind);

/* "forward of microbatch 3 in slot 1" */
void action_text(const struct action *a, char *text, size_t size);

/* The time line as text, a row a stage, of many stages and of long ones a part. */
int program_print(const struct program *stages, int n_stages, FILE *out, struct err *err);

/* One stage's actions, a line each, with what they wait for. */
int program_print_actions(const struct program *p, FILE *out);

/* The time line as an SVG group, `width` pixels wide at (0, 0). *height: what it takes. out NULL:
 * only *height. */
int program_svg(const struct program *stages, int n_stages, double width, double *height, FILE *out,
                struct err *err);

#endif
