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

/* Fill the weights of a state that holds the whole model, from the newest committed checkpoint that
 * is whole in these folders. Slices are joined by name and offset; each element must be covered.
 * *position, where not NULL: what was loaded. */
int weights_load(const struct weights_source *source, struct state *state, struct kstream *stream,
                 struct ckpt_position *position, struct err *err);

#endif
