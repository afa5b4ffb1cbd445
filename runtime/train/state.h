/* state.h - the part of the model one rank holds: weights, gradients, Adam's moments.
 *
 * Each of the four lies in one allocation, tensor after tensor, so that gradients are reduced in a
 * few large pieces. A tensor that tensor parallelism splits is a matrix of its own here.
 *
 * A tied embedding has two uses and so two gradient accumulators, added once a step (embedding's +
 * head's). With one stage both are here: the head's is `tied_grad`. With several the first and the
 * last stage each hold the tensor, accumulate into its grad, and receive the other's into
 * `tied_grad`; both then make the same sum and the same update. */
#ifndef GTRAIN_STATE_H
#define GTRAIN_STATE_H

#include "comm/mesh.h"
#include "kernels.h"
#include "train/model.h"

struct state_tensor {
    struct model_tensor global;
    struct model_slice slice;
    struct kbuf param, grad, m, v;
    bool counted; /* its square sum is this rank's to report: no other rank reports this slice */
};

struct state {
    struct kernels *k;
    enum kdtype dtype;
    int n;
    struct state_tensor *tensors; /* in the model's order; a tied head's copy last; owned */
    int first_layer, layers;
    int layer0;                /* index of the first layer's first tensor */
    int embedding, norm, head; /* indices, -1: on another stage; tied in one stage: head ==
                                  embedding */
    struct kbuf params, grads, m, v;
    struct kbuf tied_grad; /* not given unless tied and on first or last stage */
};

/* The dtype a plan's precision asks of the model. */
enum kdtype state_dtype(const struct plan *plan);

/* The list of the rank's tensors alone, without memory for them. On failure -1, err set, nothing
 * held. */
int state_list(struct state *s, const struct plan *plan, const struct mesh *mesh, struct err *err);

/* Allocate, for the rank the mesh describes. Contents are zero: state_init or a restore follows. On
 * failure -1, err set, nothing held. */
int state_open(struct state *s, struct kernels *k, const struct plan *plan, const struct mesh *mesh,
               struct err *err);

/* First weights, the same for every layout: each element is a function of (seed, tensor, element).
 */
void state_init(struct state *s, struct kstream *stream, uint64_t seed);
/* The same of a state that has been something else: the moments are zero again, too. */
void state_reset(struct state *s, struct kstream *stream, uint64_t seed);

/* Tensor `role` of global layer `layer`. */
struct state_tensor *state_layer_tensor(const struct state *s, int layer, enum model_role role);

/* Where the head's weight gradient is accumulated. */
struct kbuf state_head_grad(const struct state *s);

void state_close(struct state *s);

#endif
