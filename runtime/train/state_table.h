/* state_table.h - a rank's state as the tensors of its checkpoint file. */
#ifndef GTRAIN_STATE_TABLE_H
#define GTRAIN_STATE_TABLE_H

#include "ckpt.h"
#include "train/state.h"

enum { STATE_TABLE_PARTS = 3 }; /* weight and two moments of each tensor, side by side */

/* Tensor i of the state is tensors[3 i], its moments follow; behind all stands gtrain.layout. Needs
 * no more of the state than state_list gives. *tensors and *names (theirs) are malloc'ed, also on
 * failure. */
int state_table(const struct state *state, struct ckpt_tensor **tensors, int *n, char **names,
                struct err *err);

#endif
