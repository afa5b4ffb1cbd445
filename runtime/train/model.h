/* model.h - Llama 3 as a table of parameters: names, shapes, how each is split, who holds it.
 *
 * All of it is pure: a function of the plan's model. Tensors are numbered 0..model_count()-1 in the
 * order of a forward pass; the number seeds a tensor's first values and orders the sums of the
 * gradient norm, so neither depends on a layout. Names are those of Hugging Face. A tied head has
 * no tensor of its own: it is tensor 0, the embedding.
 *
 * Tensor parallelism splits q, k, v, gate and up by rows (outputs), o and down by columns (inputs),
 * embedding and head by rows (vocabulary); norms are whole on every rank. */
#ifndef GTRAIN_MODEL_H
#define GTRAIN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/plan.h"

/* The first nine in the order they stand in a layer. */
enum model_role {
    MODEL_INPUT_NORM,
    MODEL_Q,
    MODEL_K,
    MODEL_V,
    MODEL_O,
    MODEL_POST_NORM,
    MODEL_GATE,
    MODEL_UP,
    MODEL_DOWN,
    MODEL_LAYER_ROLES,
    MODEL_EMBEDDING = MODEL_LAYER_ROLES,
    MODEL_FINAL_NORM,
    MODEL_HEAD,
};

enum model_split { MODEL_WHOLE, MODEL_BY_ROWS, MODEL_BY_COLUMNS };

struct model_tensor {
    char name[96];
    enum model_role role;
    int layer;  /* -1: in no layer */
    int number; /* in the model's order */
    bool matrix;
    enum model_split split;
    int64_t rows, cols; /* of the whole tensor; a vector is (1, cols) */
    double init_std;    /* of the first values; 0: filled with 1 */
};

/* The part of a tensor that one rank holds. */
struct model_slice {
    int64_t row, col, rows, cols;
};

int model_count(const struct plan_model *m);

/* Tensor `number` of the model. */
void model_tensor(const struct plan_model *m, int number, struct model_tensor *out);

/* Part `part` of `parts`: [size * part / parts, size * (part + 1) / parts) along the split axis, so
 * no part is empty while parts <= size, and parts differ by one row at most. */
void model_slice(const struct model_tensor *t, int part, int parts, struct model_slice *out);

/* The pipeline stage that owns the tensor. */
int model_stage(const struct plan *plan, const struct model_tensor *t);

/* table (positions, head_dim): cosines in the first half of a row, sines in the second, of position
 * * frequency; with rope_scaling on, the low frequencies are divided as Llama 3.1 does (published
 * reference code: llama-models, apply_scaling). */
void model_rope(const struct plan_model *m, int64_t positions, double *table);

#endif
