/* stage.h - one pipeline stage of the model: its layers in a row, with the activations of every
 * microbatch in flight (a slot each).
 *
 * Between stages travel `input` (the gradient of which is `dinput`) and `output` (`doutput`), each
 * (R, C). The first stage makes its input from tokens, the last makes its doutput from targets. */
#ifndef GTRAIN_STAGE_H
#define GTRAIN_STAGE_H

#include "train/layers.h"
#include "train/state.h"

struct stage_slot {
    struct kbuf tokens, targets; /* i32 (R); both on first and last stage */
    struct kbuf input, dinput;
    struct kbuf output, doutput;
    struct layer_saved *layers;
    struct head_saved head;  /* last stage */
    struct kbuf activations; /* one allocation behind all of the above but the tokens */
    struct kbuf token_memory;
};

struct stage {
    struct kernels *k;
    struct state *state;
    struct math math; /* stream is set by each call */
    bool first, last;
    struct layer_weights *weights, *gradients; /* state->layers each */
    struct layer_scratch scratch;
    struct kbuf scratch_memory, rope_memory;
    int n_slots;
    struct stage_slot *slots;
};

/* Allocate for slots microbatches in flight. stream: for the upload of the rotation table, synced
 * before it returns. On failure -1, nothing held. */
int stage_open(struct stage *g, struct state *state, const struct plan *plan,
               const struct mesh *mesh, struct comm *comm, int slots, struct kstream *stream,
               struct err *err);

/* loss: f64 (samples), used on the last stage; scale as in head_forward. */
int stage_forward(struct stage *g, int slot, struct kstream *stream, struct kbuf loss, double scale,
                  struct err *err);
int stage_backward_input(struct stage *g, int slot, struct kstream *stream, struct err *err);
void stage_backward_weight(struct stage *g, int slot, struct kstream *stream);

void stage_close(struct stage *g);

#endif
