/* weights.h - read a model's weights out of a committed checkpoint, whatever layout wrote it. */
#ifndef GTRAIN_WEIGHTS_H
#define GTRAIN_WEIGHTS_H

#include "ckpt.h"
#include "train/state.h"

/* Where to look: folders that each hold a node's part of the run's checkpoints. */
struct weights_source {
    const char *const *dirs;
    int n_dirs;
    const char *run_id;
};

/* An open checkpoint, whole tensors to be read one by one. */
struct weights {
    const struct plan_model *model;
    struct ckpt_decision decision;
    enum ckpt_dtype dtype;      /* of the weights */
    struct ckpt_tensor *wanted; /* by number */
    char *names;                /* theirs */
    struct ckpt_piece *pieces;  /* by wanted tensor; source is a file of the decision */
    int n_pieces;
    struct ckpt_file *file; /* the last one read from */
    int file_number;
};

/* Which checkpoint: the newest committed one that is whole in these folders, not newer than
 * max_step
 * (-1: any); that there is none is an error. ckpt_decision_free after either. */
int weights_decide(const struct weights_source *source, int64_t max_step, struct ckpt_decision *d,
                   struct err *err);

/* The newest committed checkpoint that is whole in these folders, not newer than max_step (-1:
 * any). All weights of the model must be there, of the model's shapes. 0, or -1 with err; close
 * after either. */
int weights_open(struct weights *w, const struct weights_source *source,
                 const struct plan_model *model, int64_t max_step, struct err *err);

/* Tensor `number` (as in model.h), rows * cols values: read, every byte checked, made double. */
int weights_read(struct weights *w, int number, double *values, struct err *err);

/* Of it n rows from `first`; of a vector, elements. */
int weights_read_rows(struct weights *w, int number, int64_t first, int64_t n, double *values,
                      struct err *err);

void weights_close(struct weights *w);

/* Fill the weights of a state that holds the whole model, from the newest committed checkpoint.
 * *position, where not NULL: what was loaded. */
int weights_load(const struct weights_source *source, const struct plan_model *model,
                 struct state *state, struct kstream *stream, struct ckpt_position *position,
                 struct err *err);

#endif
