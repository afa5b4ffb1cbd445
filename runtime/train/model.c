/* model.c - the parameter table of Llama 3. See model.h. */
#include "train/model.h"

#include <math.h>
#include <stdio.h>

/* Inside a layer. */
static const struct {
    const char *name;
    enum model_split split;
} layer_roles[MODEL_LAYER_ROLES] = {
    [MODEL_INPUT_NORM] = {"input_layernorm", MODEL_WHOLE},
    [MODEL_Q] = {"self_attn.q_proj", MODEL_BY_ROWS},
    [MODEL_K] = {"self_attn.k_proj", MODEL_BY_ROWS},
    [MODEL_V] = {"self_attn.v_proj", MODEL_BY_ROWS},
    [MODEL_O] = {"self_attn.o_proj", MODEL_BY_COLUMNS},
    [MODEL_POST_NORM] = {"post_attention_layernorm", MODEL_WHOLE},
    [MODEL_GATE] = {"mlp.gate_proj", MODEL_BY_ROWS},
    [MODEL_UP] = {"mlp.up_proj", MODEL_BY_ROWS},
    [MODEL_DOWN] = {"mlp.down_proj", MODEL_BY_COLUMNS},
};

int model_count(const struct plan_model *m)
{
    return (int)m->layers * MODEL_LAYER_ROLES + 2 + (m->tied ? 0 : 1);
}

static void set_shape(struct model_tensor *t, bool matrix, int64_t rows, int64_t cols)
{
    t->matrix = matrix;
    t->rows = rows;
    t->cols = cols;
}

static void layer_shape(const struct plan_model *m, struct model_tensor *t)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    switch (t->role) {
    case MODEL_Q:
        return set_shape(t, true, q, m->hidden);
    case MODEL_K:
    case MODEL_V:
        return set_shape(t, true, kv, m->hidden);
    case MODEL_O:
        return set_shape(t, true, m->hidden, q);
    case MODEL_GATE:
    case MODEL_UP:
        return set_shape(t, true, m->ffn, m->hidden);
    case MODEL_DOWN:
        return set_shape(t, true, m->hidden, m->ffn);
    default:
        return set_shape(t, false, 1, m->hidden);
    }
}

static void layer_tensor(const struct plan_model *m, int number, struct model_tensor *t)
{
    t->layer = (number - 1) / MODEL_LAYER_ROLES;
    t->role = (enum model_role)((number - 1) % MODEL_LAYER_ROLES);
    t->split = layer_roles[t->role].split;
    layer_shape(m, t);
    /* What is added to the residual stream starts smaller, so that its variance does not grow with
     * the number of layers (Radford et al. 2019, section 2.3). */
    bool residual = t->role == MODEL_O || t->role == MODEL_DOWN;
    t->init_std = residual ? m->init_std / sqrt(2.0 * (double)m->layers) : m->init_std;
    snprintf(t->name, sizeof t->name, "model.layers.%d.%s.weight", t->layer,
             layer_roles[t->role].name);
}

static void outer_tensor(const struct plan_model *m, enum model_role role, const char *name,
                         struct model_tensor *t)
{
    t->layer = -1;
    t->role = role;
    bool matrix = role != MODEL_FINAL_NORM;
    t->split = matrix ? MODEL_BY_ROWS : MODEL_WHOLE;
    set_shape(t, matrix, matrix ? m->vocab : 1, m->hidden);
    t->init_std = m->init_std;
    snprintf(t->name, sizeof t->name, "%s", name);
}

void model_tensor(const struct plan_model *m, int number, struct model_tensor *out)
{
    int last_layer = (int)m->layers * MODEL_LAYER_ROLES;
    *out = (struct model_tensor){.number = number};
    if (number == 0)
        outer_tensor(m, MODEL_EMBEDDING, "model.embed_tokens.weight", out);
    else if (number <= last_layer)
        layer_tensor(m, number, out);
    else if (number == last_layer + 1)
        outer_tensor(m, MODEL_FINAL_NORM, "model.norm.weight", out);
    else
        outer_tensor(m, MODEL_HEAD, "lm_head.weight", out);
    if (!out->matrix)
        out->init_std = 0;
}

void model_slice(const struct model_tensor *t, int part, int parts, struct model_slice *out)
{
    *out = (struct model_slice){.rows = t->rows, .cols = t->cols};
    if (t->split == MODEL_BY_ROWS) {
        out->row = t->rows * part / parts;
        out->rows = t->rows * (part + 1) / parts - out->row;
    } else if (t->split == MODEL_BY_COLUMNS) {
        out->col = t->cols * part / parts;
        out->cols = t->cols * (part + 1) / parts - out->col;
    }
}

int model_stage(const struct plan *plan, const struct model_tensor *t)
{
    int stages = plan->parallel.pipeline;
    if (t->role == MODEL_EMBEDDING)
        return 0;
    if (t->layer < 0)
        return stages - 1;
    for (int stage = 0; stage < stages; stage++) {
        int64_t first, count;
        plan_stage_layers(plan, stage, &first, &count);
        if (t->layer >= first && t->layer < first + count)
            return stage;
    }
    return stages - 1;
}

/* Frequency of pair i, in radians a token. */
static double rope_frequency(const struct plan_model *m, int64_t i)
{
    double frequency = pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
    if (!m->rope_scaling.on)
        return frequency;
    double turns = (double)m->rope_scaling.original_context * frequency / (2.0 * M_PI);
    double low = m->rope_scaling.low_freq_factor, high = m->rope_scaling.high_freq_factor;
    if (turns > high)
        return frequency;
    if (turns < low)
        return frequency / m->rope_scaling.factor;
    double smooth = (turns - low) / (high - low);
    return (1 - smooth) * frequency / m->rope_scaling.factor + smooth * frequency;
}

void model_rope(const struct plan_model *m, int64_t positions, double *table)
{
    int64_t half = m->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(m, i);
        for (int64_t p = 0; p < positions; p++) {
            table[p * m->head_dim + i] = cos((double)p * frequency);
            table[p * m->head_dim + half + i] = sin((double)p * frequency);
        }
    }
}
