/* layers.c - a Llama layer out of the device's operations. See layers.h for the formulas. */
#include "train/layers.h"

/* y (R, n) = x (R, k) w^T, and its two gradients. */
static void linear(const struct math *m, struct kbuf y, struct kbuf x, struct kbuf w, int64_t n,
                   int64_t k)
{
    KSUBMIT(m->k, m->stream, MATMUL, matmul, .mode = KMATMUL_FORWARD, .out = y, .a = x, .b = w,
            .samples = m->samples, .rows = m->rows, .n = n, .k = k);
}

static void linear_input(const struct math *m, struct kbuf dx, struct kbuf dy, struct kbuf w,
                         int64_t n, int64_t k, bool accumulate)
{
    KSUBMIT(m->k, m->stream, MATMUL, matmul, .mode = KMATMUL_BACKWARD_INPUT, .out = dx, .a = dy,
            .b = w, .samples = m->samples, .rows = m->rows, .n = n, .k = k,
            .accumulate = accumulate);
}

static void linear_weight(const struct math *m, struct kbuf dw, struct kbuf dy, struct kbuf x,
                          int64_t n, int64_t k)
{
    KSUBMIT(m->k, m->stream, MATMUL, matmul, .mode = KMATMUL_BACKWARD_WEIGHT, .out = dw, .a = dy,
            .b = x, .samples = m->samples, .rows = m->rows, .n = n, .k = k, .accumulate = true);
}

static void norm(const struct math *m, struct kbuf y, struct kbuf rstd, struct kbuf x,
                 struct kbuf residual, struct kbuf sum, struct kbuf weight)
{
    KSUBMIT(m->k, m->stream, NORM_FORWARD, norm_forward, .y = y, .rstd = rstd, .sum = sum, .x = x,
            .residual = residual, .weight = weight, .samples = m->samples, .rows = m->rows,
            .dim = m->hidden, .eps = m->eps);
}

static void norm_input(const struct math *m, struct kbuf dx, struct kbuf dresidual, struct kbuf dy,
                       struct kbuf h, struct kbuf rstd, struct kbuf weight)
{
    KSUBMIT(m->k, m->stream, NORM_BACKWARD_INPUT, norm_backward_input, .dx = dx,
            .dresidual = dresidual, .dy = dy, .h = h, .rstd = rstd, .weight = weight,
            .samples = m->samples, .rows = m->rows, .dim = m->hidden);
}

static void norm_weight(const struct math *m, struct kbuf dweight, struct kbuf dy, struct kbuf h,
                        struct kbuf rstd)
{
    KSUBMIT(m->k, m->stream, NORM_BACKWARD_WEIGHT, norm_backward_weight, .dweight = dweight,
            .dy = dy, .h = h, .rstd = rstd, .samples = m->samples, .rows = m->rows,
            .dim = m->hidden);
}

static void rope(const struct math *m, struct kbuf x, int64_t heads, bool inverse)
{
    KSUBMIT(m->k, m->stream, ROPE, rope, .x = x, .table = m->rope, .samples = m->samples,
            .rows = m->rows, .heads = heads, .dim = m->dim, .inverse = inverse);
}

/* Partial sums become whole. */
static int add_over_tensor_group(const struct math *m, struct kbuf partial, struct err *err)
{
    if (m->tensor->size == 1)
        return 0;
    return comm_all_reduce(m->comm, m->tensor, m->stream, partial, COMM_SUM, err);
}

int layer_forward(const struct math *m, const struct layer_weights *w, struct layer_saved *s,
                  const struct layer_scratch *scratch, struct kbuf out, struct err *err)
{
    int64_t c = m->hidden, q = m->heads * m->dim, kv = m->kv_heads * m->dim;
    struct kbuf none = {0}, branch = scratch->residual;

    norm(m, s->y1, s->rstd1, s->h, none, none, w->norm1);
    linear(m, s->q, s->y1, w->q, q, c);
    linear(m, s->k, s->y1, w->k, kv, c);
    linear(m, s->v, s->y1, w->v, kv, c);
    rope(m, s->q, m->heads, false);
    rope(m, s->k, m->kv_heads, false);
    KSUBMIT(m->k, m->stream, ATTENTION_FORWARD, attention_forward, .o = s->o, .lse = s->lse,
            .q = s->q, .k = s->k, .v = s->v, .samples = m->samples, .rows = m->rows,
            .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->dim);
    linear(m, branch, s->o, w->o, c, q);
    if (add_over_tensor_group(m, branch, err))
        return -1;

    norm(m, s->y2, s->rstd2, s->h, branch, s->mid, w->norm2);
    linear(m, s->gate, s->y2, w->gate, m->ffn, c);
    linear(m, s->up, s->y2, w->up, m->ffn, c);
    KSUBMIT(m->k, m->stream, SWIGLU_FORWARD, swiglu_forward, .out = s->act, .gate = s->gate,
            .up = s->up);
    linear(m, branch, s->act, w->down, c, m->ffn);
    if (add_over_tensor_group(m, branch, err))
        return -1;
    /* Not left to the next layer's fused norm: the next layer may be on another stage, and the bits
     * must not depend on that. */
    KSUBMIT(m->k, m->stream, ADD, add, .out = out, .a = s->mid, .b = branch);
    return 0;
}

static int mlp_backward_input(const struct math *m, const struct layer_weights *w,
                              struct layer_saved *s, const struct layer_scratch *scratch,
                              struct err *err)
{
    int64_t c = m->hidden;
    linear_input(m, scratch->wide, s->dout, w->down, c, m->ffn, false);
    KSUBMIT(m->k, m->stream, SWIGLU_BACKWARD, swiglu_backward, .dgate = s->gate, .dup = s->up,
            .dh = scratch->wide, .gate = s->gate, .up = s->up);
    linear_input(m, s->dy2, s->gate, w->gate, m->ffn, c, false);
    linear_input(m, s->dy2, s->up, w->up, m->ffn, c, true);
    if (add_over_tensor_group(m, s->dy2, err))
        return -1;
    norm_input(m, s->dmid, s->dout, s->dy2, s->mid, s->rstd2, w->norm2);
    return 0;
}

int layer_backward_input(const struct math *m, const struct layer_weights *w, struct layer_saved *s,
                         const struct layer_scratch *scratch, struct kbuf din, struct err *err)
{
    int64_t c = m->hidden, q = m->heads * m->dim, kv = m->kv_heads * m->dim;
    if (mlp_backward_input(m, w, s, scratch, err))
        return -1;
    linear_input(m, scratch->heads, s->dmid, w->o, c, q, false);
    KSUBMIT(m->k, m->stream, ATTENTION_BACKWARD, attention_backward, .dq = s->dq, .dk = s->dk,
            .dv = s->dv, .dout = scratch->heads, .o = s->o, .lse = s->lse, .q = s->q, .k = s->k,
            .v = s->v, .samples = m->samples, .rows = m->rows, .heads = m->heads,
            .kv_heads = m->kv_heads, .dim = m->dim);
    rope(m, s->dq, m->heads, true);
    rope(m, s->dk, m->kv_heads, true);
    linear_input(m, s->dy1, s->dq, w->q, q, c, false);
    linear_input(m, s->dy1, s->dk, w->k, kv, c, true);
    linear_input(m, s->dy1, s->dv, w->v, kv, c, true);
    if (add_over_tensor_group(m, s->dy1, err))
        return -1;
    norm_input(m, din, s->dmid, s->dy1, s->h, s->rstd1, w->norm1);
    return 0;
}

void layer_backward_weight(const struct math *m, const struct layer_weights *g,
                           const struct layer_saved *s)
{
    int64_t c = m->hidden, q = m->heads * m->dim, kv = m->kv_heads * m->dim;
    linear_weight(m, g->down, s->dout, s->act, c, m->ffn);
    linear_weight(m, g->gate, s->gate, s->y2, m->ffn, c);
    linear_weight(m, g->up, s->up, s->y2, m->ffn, c);
    norm_weight(m, g->norm2, s->dy2, s->mid, s->rstd2);
    linear_weight(m, g->o, s->dmid, s->o, c, q);
    linear_weight(m, g->q, s->dq, s->y1, q, c);
    linear_weight(m, g->k, s->dk, s->y1, kv, c);
    linear_weight(m, g->v, s->dv, s->y1, kv, c);
    norm_weight(m, g->norm1, s->dy1, s->h, s->rstd1);
}

int head_forward(const struct math *m, struct kbuf weight, struct kbuf head, struct head_saved *s,
                 struct kbuf loss, double scale, struct err *err)
{
    struct kbuf none = {0};
    struct kop_xent xent = {.logits = s->logits,
                            .targets = s->targets,
                            .max = s->max,
                            .sums = s->sums,
                            .loss = loss,
                            .dlogits = scale > 0 ? s->logits : none,
                            .samples = m->samples,
                            .rows = m->rows,
                            .vocab = m->vocab,
                            .first = m->first_token,
                            .scale = scale};
    norm(m, s->y, s->rstd, s->h, none, none, weight);
    linear(m, s->logits, s->y, head, m->vocab, m->hidden);
    kernels_submit(m->k, m->stream, &(struct kop){.kind = KOP_XENT_MAX, .xent = xent});
    if (m->tensor->size > 1 &&
        comm_all_reduce(m->comm, m->tensor, m->stream, s->max, COMM_MAX, err))
        return -1;
    kernels_submit(m->k, m->stream, &(struct kop){.kind = KOP_XENT_SUM, .xent = xent});
    if (add_over_tensor_group(m, s->sums, err))
        return -1;
    kernels_submit(m->k, m->stream, &(struct kop){.kind = KOP_XENT_LOSS, .xent = xent});
    return 0;
}

int head_backward_input(const struct math *m, struct kbuf weight, struct kbuf head,
                        struct head_saved *s, struct kbuf dh, struct err *err)
{
    struct kbuf none = {0};
    linear_input(m, s->dy, s->logits, head, m->vocab, m->hidden, false);
    if (add_over_tensor_group(m, s->dy, err))
        return -1;
    norm_input(m, dh, none, s->dy, s->h, s->rstd, weight);
    return 0;
}

void head_backward_weight(const struct math *m, struct kbuf dweight, struct kbuf dhead,
                          const struct head_saved *s)
{
    linear_weight(m, dhead, s->logits, s->y, m->vocab, m->hidden);
    norm_weight(m, dweight, s->dy, s->h, s->rstd);
}

int embedding_forward(const struct math *m, struct kbuf table, struct kbuf tokens, struct kbuf out,
                      struct err *err)
{
    KSUBMIT(m->k, m->stream, EMBEDDING_FORWARD, embedding, .out = out, .table_or_dy = table,
            .tokens = tokens, .count = m->samples * m->rows, .dim = m->hidden,
            .first = m->first_token, .vocab = m->vocab);
    return add_over_tensor_group(m, out, err);
}

void embedding_backward(const struct math *m, struct kbuf dtable, struct kbuf tokens,
                        struct kbuf dout)
{
    KSUBMIT(m->k, m->stream, EMBEDDING_BACKWARD, embedding, .out = dtable, .table_or_dy = dout,
            .tokens = tokens, .count = m->samples * m->rows, .dim = m->hidden,
            .first = m->first_token, .vocab = m->vocab);
}
