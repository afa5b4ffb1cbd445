/* model_rig.h - one rank that holds a whole tiny model, driven by hand: for tests of the model. */
#ifndef GTRAIN_TEST_MODEL_RIG_H
#define GTRAIN_TEST_MODEL_RIG_H

#include "train/stage.h"
#include "train/step.h"

struct rig {
    struct plan *plan;
    struct kernels *k;
    struct comm_hub *hub;
    struct comm *comm;
    struct kstream *stream;
    struct mesh mesh;
    struct state state;
    struct stage stage;
    struct step step;
};

/* plan_text: a plan of one rank and one microbatch a step. Fails the test if it cannot. */
void rig_open(struct rig *r, const char *plan_text);
void rig_close(struct rig *r);

/* Element-wise access to device memory, f64 models only. count values. */
void rig_put(struct rig *r, struct kbuf buf, const double *values);
void rig_get(struct rig *r, struct kbuf buf, double *values);

/* tokens, targets: samples * rows. */
void rig_tokens(struct rig *r, const int32_t *tokens, const int32_t *targets);

/* Mean loss a token; with gradients where wanted (they add up until an update). */
double rig_loss(struct rig *r, bool backward);

/* Tied sum, norm, AdamW as step number `number`. */
void rig_update(struct rig *r, int64_t number, struct step_result *result);

#endif
