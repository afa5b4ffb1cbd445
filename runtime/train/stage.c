/* stage.c - chains the layers of a pipeline stage and owns their activations. See stage.h.
 *
 * All activations of a slot are cut from one allocation. The cutting runs twice, first with no
 * memory behind it, to learn the size. */
#include "train/stage.h"

#include "base/clock.h"

#include <stdlib.h>

/* Buffers start at multiples of this many elements. */
enum { ALIGN_ELEMENTS = 32 };
enum { ROPE_UPLOAD_MS = 60000 }; /* of a table of a few MB; a device that needs longer is broken */

struct cutter {
    struct kbuf memory; /* not given: only counts */
    size_t used;
};

static struct kbuf cut(struct cutter *c, int64_t count)
{
    size_t at = c->used;
    c->used += ((size_t)count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    return c->memory.mem ? kbuf_slice(c->memory, at, (size_t)count) : (struct kbuf){0};
}

static void cut_layer(struct cutter *c, const struct math *m, struct layer_saved *s)
{
    int64_t r = m->samples * m->rows, wide = r * m->hidden;
    int64_t q = r * m->heads * m->dim, kv = r * m->kv_heads * m->dim;
    struct kbuf *hidden[] = {&s->y1, &s->mid, &s->y2, &s->dmid, &s->dy1, &s->dy2};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        *hidden[i] = cut(c, wide);
    struct kbuf *keys[] = {&s->k, &s->v, &s->dk, &s->dv};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *keys[i] = cut(c, kv);
    struct kbuf *queries[] = {&s->q, &s->o, &s->dq};
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
        *queries[i] = cut(c, q);
    struct kbuf *ffn[] = {&s->gate, &s->up, &s->act};
    for (size_t i = 0; i < sizeof ffn / sizeof *ffn; i++)
        *ffn[i] = cut(c, r * m->ffn);
    s->rstd1 = cut(c, r);
    s->rstd2 = cut(c, r);
    s->lse = cut(c, r * m->heads);
}

/* The activations between layers are shared: one layer's output is the next one's input. */
static void cut_slot(struct cutter *c, const struct stage *g, struct stage_slot *slot)
{
    const struct math *m = &g->math;
    int64_t r = m->samples * m->rows, layers = g->state->layers;
    slot->input = slot->output = cut(c, r * m->hidden);
    slot->dinput = slot->doutput = cut(c, r * m->hidden);
    for (int64_t i = 0; i < layers; i++) {
        struct layer_saved *s = &slot->layers[i];
        cut_layer(c, m, s);
        s->h = slot->output;
        slot->output = cut(c, r * m->hidden);
        slot->doutput = s->dout = cut(c, r * m->hidden);
    }
    if (!g->last)
        return;
    struct head_saved *s = &slot->head;
    s->h = slot->output;
    s->targets = slot->targets;
    s->y = cut(c, r * m->hidden);
    s->dy = cut(c, r * m->hidden);
    s->rstd = cut(c, r);
    s->max = cut(c, r);
    s->sums = cut(c, r * 2);
    s->logits = cut(c, r * m->vocab);
}

static int open_slot(struct stage *g, struct stage_slot *slot, struct err *err)
{
    size_t r = (size_t)(g->math.samples * g->math.rows);
    slot->layers = calloc((size_t)g->state->layers + 1, sizeof *slot->layers);
    if (!slot->layers)
        return err_set(err, "no memory for the table of activations");
    if (g->first || g->last) {
        if (kernels_alloc(g->k, K_I32, 2 * r, &slot->token_memory, err))
            return -1;
        slot->tokens = kbuf_slice(slot->token_memory, 0, r);
        slot->targets = kbuf_slice(slot->token_memory, r, r);
    }
    struct cutter c = {0};
    cut_slot(&c, g, slot);
    if (kernels_alloc(g->k, g->state->dtype, c.used, &slot->activations, err))
        return err_prefix(err, "activations of a microbatch");
    c = (struct cutter){.memory = slot->activations};
    cut_slot(&c, g, slot);
    return 0;
}

static int open_scratch(struct stage *g, struct err *err)
{
    const struct math *m = &g->math;
    int64_t r = m->samples * m->rows;
    struct cutter c = {0};
    for (int pass = 0; pass < 2; pass++) {
        g->scratch.residual = cut(&c, r * m->hidden);
        g->scratch.heads = cut(&c, r * m->heads * m->dim);
        g->scratch.wide = cut(&c, r * m->ffn);
        if (pass == 0 && kernels_alloc(g->k, g->state->dtype, c.used, &g->scratch_memory, err))
            return -1;
        c = (struct cutter){.memory = g->scratch_memory};
    }
    return 0;
}

/* The table is computed in f64 on the host and rounded once by the device. */
static int open_rope(struct stage *g, const struct plan *plan, struct kstream *stream,
                     struct err *err)
{
    size_t count = (size_t)(plan->training.sequence * plan->model.head_dim);
    struct kbuf wide = {0};
    double *table = malloc(count * sizeof *table);
    int rv = -1;
    if (!table) {
        err_set(err, "no memory for the rotation table");
        goto done;
    }
    model_rope(&plan->model, plan->training.sequence, table);
    if (kernels_alloc(g->k, K_F64, count, &wide, err) ||
        kernels_alloc(g->k, g->state->dtype, count, &g->rope_memory, err))
        goto done;
    KSUBMIT(g->k, stream, UPLOAD, upload, .out = wide, .host = table);
    if (g->state->dtype == K_F64)
        KSUBMIT(g->k, stream, COPY, copy, .out = g->rope_memory, .in = wide);
    else
        KSUBMIT(g->k, stream, CAST, copy, .out = g->rope_memory, .in = wide);
    g->math.rope = g->rope_memory;
    rv = kernels_stream_sync(g->k, stream, clock_ms() + ROPE_UPLOAD_MS, err);
done:
    kernels_free(g->k, &wide);
    free(table);
    return rv;
}

static void set_sizes(struct math *m, const struct plan *plan, const struct mesh *mesh)
{
    int part = mesh->coord[MESH_TENSOR], parts = mesh->degree[MESH_TENSOR];
    struct model_tensor embedding;
    struct model_slice vocabulary;
    model_tensor(&plan->model, 0, &embedding);
    model_slice(&embedding, part, parts, &vocabulary);
    m->samples = plan->training.microbatch;
    m->rows = plan->training.sequence;
    m->hidden = plan->model.hidden;
    m->heads = plan->model.heads / parts;
    m->kv_heads = plan->model.kv_heads / parts;
    m->dim = plan->model.head_dim;
    m->ffn = plan->model.ffn / parts;
    m->vocab = vocabulary.rows;
    m->first_token = vocabulary.row;
    m->eps = plan->model.norm_eps;
}

static struct kbuf part_of(const struct state_tensor *t, bool gradient)
{
    return gradient ? t->grad : t->param;
}

static void name_weights(const struct state *s, int layer, bool gradient, struct layer_weights *w)
{
    struct kbuf *by_role[MODEL_LAYER_ROLES] = {
        [MODEL_INPUT_NORM] = &w->norm1,
        [MODEL_Q] = &w->q,
        [MODEL_K] = &w->k,
        [MODEL_V] = &w->v,
        [MODEL_O] = &w->o,
        [MODEL_POST_NORM] = &w->norm2,
        [MODEL_GATE] = &w->gate,
        [MODEL_UP] = &w->up,
        [MODEL_DOWN] = &w->down,
    };
    for (int role = 0; role < MODEL_LAYER_ROLES; role++)
        *by_role[role] = part_of(state_layer_tensor(s, layer, (enum model_role)role), gradient);
}

static int open_tables(struct stage *g, int slots, struct err *err)
{
    size_t layers = (size_t)g->state->layers;
    g->weights = calloc(layers + 1, sizeof *g->weights);
    g->gradients = calloc(layers + 1, sizeof *g->gradients);
    g->slots = calloc((size_t)slots, sizeof *g->slots);
    if (!g->weights || !g->gradients || !g->slots)
        return err_set(err, "no memory for the stage's tables");
    g->n_slots = slots;
    for (size_t i = 0; i < layers; i++) {
        name_weights(g->state, g->state->first_layer + (int)i, false, &g->weights[i]);
        name_weights(g->state, g->state->first_layer + (int)i, true, &g->gradients[i]);
    }
    return 0;
}

int stage_open(struct stage *g, struct state *state, const struct plan *plan,
               const struct mesh *mesh, struct comm *comm, int slots, struct kstream *stream,
               struct err *err)
{
    int stage = mesh->coord[MESH_PIPELINE];
    *g = (struct stage){.k = state->k,
                        .state = state,
                        .first = stage == 0,
                        .last = stage == mesh->degree[MESH_PIPELINE] - 1,
                        .math = {.k = state->k, .comm = comm, .tensor = &mesh->axis[MESH_TENSOR]}};
    set_sizes(&g->math, plan, mesh);
    if (open_tables(g, slots, err) || open_scratch(g, err) || open_rope(g, plan, stream, err))
        goto fail;
    for (int i = 0; i < slots; i++)
        if (open_slot(g, &g->slots[i], err))
            goto fail;
    return 0;
fail:
    stage_close(g);
    return -1;
}

int stage_forward(struct stage *g, int slot_index, struct kstream *stream, struct kbuf loss,
                  double scale, struct err *err)
{
    struct stage_slot *slot = &g->slots[slot_index];
    struct state *s = g->state;
    g->math.stream = stream;
    if (g->first &&
        embedding_forward(&g->math, s->tensors[s->embedding].param, slot->tokens, slot->input, err))
        return -1;
    for (int i = 0; i < s->layers; i++) {
        struct kbuf out = i + 1 < s->layers ? slot->layers[i + 1].h : slot->output;
        if (layer_forward(&g->math, &g->weights[i], &slot->layers[i], &g->scratch, out, err))
            return -1;
    }
    if (!g->last)
        return 0;
    return head_forward(&g->math, s->tensors[s->norm].param, s->tensors[s->head].param, &slot->head,
                        loss, scale, err);
}

int stage_backward_input(struct stage *g, int slot_index, struct kstream *stream, struct err *err)
{
    struct stage_slot *slot = &g->slots[slot_index];
    struct state *s = g->state;
    g->math.stream = stream;
    if (g->last && head_backward_input(&g->math, s->tensors[s->norm].param,
                                       s->tensors[s->head].param, &slot->head, slot->doutput, err))
        return -1;
    for (int i = s->layers - 1; i >= 0; i--) {
        struct kbuf din = i > 0 ? slot->layers[i - 1].dout : slot->dinput;
        if (layer_backward_input(&g->math, &g->weights[i], &slot->layers[i], &g->scratch, din, err))
            return -1;
    }
    return 0;
}

void stage_backward_weight(struct stage *g, int slot_index, struct kstream *stream)
{
    struct stage_slot *slot = &g->slots[slot_index];
    struct state *s = g->state;
    g->math.stream = stream;
    if (g->last)
        head_backward_weight(&g->math, s->tensors[s->norm].grad, state_head_grad(s), &slot->head);
    for (int i = s->layers - 1; i >= 0; i--)
        layer_backward_weight(&g->math, &g->gradients[i], &slot->layers[i]);
    if (g->first)
        embedding_backward(&g->math, s->tensors[s->embedding].grad, slot->tokens, slot->dinput);
}

void stage_close(struct stage *g)
{
    for (int i = 0; g->slots && i < g->n_slots; i++) {
        kernels_free(g->k, &g->slots[i].activations);
        kernels_free(g->k, &g->slots[i].token_memory);
        free(g->slots[i].layers);
    }
    if (g->k) {
        kernels_free(g->k, &g->scratch_memory);
        kernels_free(g->k, &g->rope_memory);
    }
    free(g->slots);
    free(g->weights);
    free(g->gradients);
    *g = (struct stage){0};
}
