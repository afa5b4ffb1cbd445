/* state.c - allocates and initialises a rank's weights, gradients and moments. See state.h. */
#include "train/state.h"

#include <stdlib.h>

/* Tensors start at multiples of this many elements: a cache line in any dtype. */
enum { ALIGN_ELEMENTS = 32 };

static size_t aligned(size_t count)
{
    return (count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

static size_t slice_count(const struct model_slice *slice)
{
    return (size_t)(slice->rows * slice->cols);
}

enum kdtype state_dtype(const struct plan *plan)
{
    switch (plan->training.precision) {
    case PLAN_F64:
        return K_F64;
    case PLAN_BF16:
        return K_BF16;
    default:
        return K_F32;
    }
}

static void add_tensor(struct state *s, const struct plan *plan, const struct mesh *mesh,
                       int number, bool copy)
{
    struct state_tensor *t = &s->tensors[s->n++];
    int part = mesh->coord[MESH_TENSOR];
    model_tensor(&plan->model, number, &t->global);
    model_slice(&t->global, part, mesh->degree[MESH_TENSOR], &t->slice);
    bool mine = t->global.split != MODEL_WHOLE || part == 0;
    t->counted = mine && !copy && mesh->coord[MESH_DATA] == 0;
}

static void list_tensors(struct state *s, const struct plan *plan, const struct mesh *mesh)
{
    int stage = mesh->coord[MESH_PIPELINE], last = mesh->degree[MESH_PIPELINE] - 1;
    int64_t first, count;
    plan_stage_layers(plan, stage, &first, &count);
    s->first_layer = (int)first;
    s->layers = (int)count;
    s->embedding = s->norm = s->head = -1;
    if (stage == 0) {
        s->embedding = s->n;
        add_tensor(s, plan, mesh, 0, false);
    }
    s->layer0 = s->n;
    for (int64_t i = 0; i < count * MODEL_LAYER_ROLES; i++)
        add_tensor(s, plan, mesh, (int)(1 + first * MODEL_LAYER_ROLES + i), false);
    if (stage < last)
        return;
    int norm = (int)plan->model.layers * MODEL_LAYER_ROLES + 1;
    s->norm = s->n;
    add_tensor(s, plan, mesh, norm, false);
    s->head = plan->model.tied && stage == 0 ? s->embedding : s->n;
    if (s->head == s->n)
        add_tensor(s, plan, mesh, plan->model.tied ? 0 : norm + 1, plan->model.tied);
}

static int allocate(struct state *s, bool tied, struct err *err)
{
    size_t total = 0;
    for (int i = 0; i < s->n; i++)
        total += aligned(slice_count(&s->tensors[i].slice));
    if (kernels_alloc(s->k, s->dtype, total, &s->params, err) ||
        kernels_alloc(s->k, s->dtype, total, &s->grads, err) ||
        kernels_alloc(s->k, s->dtype, total, &s->m, err) ||
        kernels_alloc(s->k, s->dtype, total, &s->v, err))
        return err_prefix(err, "weights, gradients and moments");
    size_t at = 0;
    for (int i = 0; i < s->n; i++) {
        struct state_tensor *t = &s->tensors[i];
        size_t count = slice_count(&t->slice);
        t->param = kbuf_slice(s->params, at, count);
        t->grad = kbuf_slice(s->grads, at, count);
        t->m = kbuf_slice(s->m, at, count);
        t->v = kbuf_slice(s->v, at, count);
        at += aligned(count);
    }
    int shared = s->embedding >= 0 ? s->embedding : s->head;
    if (!tied || shared < 0)
        return 0;
    return kernels_alloc(s->k, s->dtype, slice_count(&s->tensors[shared].slice), &s->tied_grad,
                         err);
}

int state_list(struct state *s, const struct plan *plan, const struct mesh *mesh, struct err *err)
{
    *s = (struct state){.dtype = state_dtype(plan)};
    s->tensors = calloc((size_t)model_count(&plan->model) + 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(err, "no memory for the parameter table");
    list_tensors(s, plan, mesh);
    return 0;
}

int state_open(struct state *s, struct kernels *k, const struct plan *plan, const struct mesh *mesh,
               struct err *err)
{
    if (state_list(s, plan, mesh, err))
        return -1;
    s->k = k;
    if (allocate(s, plan->model.tied, err)) {
        state_close(s);
        return -1;
    }
    return 0;
}

void state_init(struct state *s, struct kstream *stream, uint64_t seed)
{
    for (int i = 0; i < s->n; i++) {
        const struct state_tensor *t = &s->tensors[i];
        const struct model_slice *slice = &t->slice;
        if (t->global.init_std == 0)
            KSUBMIT(s->k, stream, FILL, fill, .out = t->param, .value = 1);
        else
            KSUBMIT(s->k, stream, FILL_NORMAL, fill_normal, .out = t->param, .seed = seed,
                    .tensor = (uint64_t)t->global.number, .std = t->global.init_std,
                    .rows = slice->rows, .cols = slice->cols, .row0 = slice->row,
                    .col0 = slice->col, .global_cols = t->global.cols);
    }
}

void state_reset(struct state *s, struct kstream *stream, uint64_t seed)
{
    state_init(s, stream, seed);
    KSUBMIT(s->k, stream, FILL, fill, .out = s->m, .value = 0);
    KSUBMIT(s->k, stream, FILL, fill, .out = s->v, .value = 0);
}

struct state_tensor *state_layer_tensor(const struct state *s, int layer, enum model_role role)
{
    return &s->tensors[s->layer0 + (layer - s->first_layer) * MODEL_LAYER_ROLES + (int)role];
}

struct kbuf state_head_grad(const struct state *s)
{
    return s->head == s->embedding ? s->tied_grad : s->tensors[s->head].grad;
}

void state_close(struct state *s)
{
    if (s->k) {
        kernels_free(s->k, &s->params);
        kernels_free(s->k, &s->grads);
        kernels_free(s->k, &s->m);
        kernels_free(s->k, &s->v);
        kernels_free(s->k, &s->tied_grad);
    }
    free(s->tensors);
    *s = (struct state){0};
}
