/* execute.h - runs a step program on streams and events. It holds no decision: order, streams and
 * waits are the program's.
 *
 * The event of an action stands for all it put on its stream. A wait for a send also waits for the
 * message to be gone, so its buffer may be written again. A receive holds the executor until the
 * data is there. */
#ifndef GTRAIN_EXECUTE_H
#define GTRAIN_EXECUTE_H

#include "comm/mesh.h"
#include "train/data.h"
#include "train/program.h"
#include "train/stage.h"
#include "train/step.h"

/* The two streams of a rank, and the events that order one program after another. */
struct streams {
    struct kernels *k;
    struct kstream *stream[PROGRAM_STREAMS];
    struct kevent *end[PROGRAM_STREAMS];
};

int streams_open(struct streams *s, struct kernels *k, struct err *err);
/* What is submitted from now on, to either stream, comes after all that was submitted before. */
void streams_join(struct streams *s);
int streams_sync(struct streams *s, int64_t deadline_ms, struct err *err);
void streams_close(struct streams *s);

/* Tokens on their way to the device: host memory of one slot. */
struct staging {
    int32_t *tokens, *targets; /* (R) */
    struct kevent *read;       /* the device has them */
};

struct executor {
    const struct plan *plan;
    const struct mesh *mesh;
    struct comm *comm;
    struct streams *streams;
    struct stage *stage;
    struct step *step;
    struct staging *staging; /* one a slot */
    int32_t *window;         /* sequence + 1 tokens */
    int capacity;            /* actions that the two tables below have room for */
    struct kevent **events;
    struct comm_request **requests;
};

/* For programs of at most `actions` actions. */
int executor_open(struct executor *x, const struct plan *plan, const struct mesh *mesh,
                  struct comm *comm, struct streams *streams, struct stage *stage,
                  struct step *step, int actions, struct err *err);

/* What a program works on. */
struct pass {
    const struct data *data;
    int64_t first_sample; /* global index of the step's first sample */
    double scale;         /* of the loss's gradient; 0: evaluation only */
};

int execute(struct executor *x, const struct program *program, const struct pass *pass,
            struct err *err);

void executor_close(struct executor *x);

#endif
