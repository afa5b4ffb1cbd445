/* trainer.h - all that one rank holds while it trains, opened and closed as one. For loop.c and
 * tests.
 */
#ifndef GTRAIN_TRAINER_H
#define GTRAIN_TRAINER_H

#include "train/execute.h"
#include "train/keeper.h"
#include "train/train.h"

struct trainer {
    const struct train_options *options;
    const struct plan *plan;
    struct mesh mesh;
    struct program program, validation; /* validation.n == 0: none */
    struct data *data, *held_out;       /* held_out NULL: no validation */
    struct streams streams;
    struct state state;
    struct stage stage;
    struct step step;
    struct executor executor;
};

/* What follows from the plan alone, the same on all ranks: can it be run, and the mesh. On failure
 * -1, nothing held. */
int trainer_mesh(struct trainer *r, const struct train_options *options, struct err *err);

/* Everything but checkpoints: data, programs, device memory, first weights. On failure -1, *end
 * what it means; trainer_close after either. */
int trainer_open(struct trainer *r, enum train_end *end, struct err *err);

/* One training step, submitted: number is 0-based. */
int trainer_step(struct trainer *r, int64_t number, const struct step_word *word, struct err *err);

/* Mean loss a token over the validation split. */
int trainer_validate(struct trainer *r, double *loss, struct err *err);

void trainer_close(struct trainer *r);

#endif
