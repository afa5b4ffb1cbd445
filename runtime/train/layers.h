/* layers.h - one Llama layer as three functions: forward, backward of the input, backward of the
 * weights; and the same for the two ends of the model, embedding and head.
 *
 *   y1 = norm1(h);  mid = h + attention(rope(y1 Wq), rope(y1 Wk), y1 Wv) Wo
 *   y2 = norm2(mid);  out = mid + (silu(y2 Wgate) * (y2 Wup)) Wdown
 *
 * Shapes: R = samples * rows (tokens), C hidden, H and G query and key/value heads here (of this
 * tensor-parallel rank), D head size, F feed-forward size here, V vocabulary here. With tensor
 * parallelism the products with Wo and Wdown, and the gradients of y1 and y2, are partial sums,
 * added over the tensor group.
 *
 * The caller owns every buffer. What forward saves and what the backward of the input leaves behind
 * is all that the backward of the weights needs, so it may run any time later. */
#ifndef GTRAIN_LAYERS_H
#define GTRAIN_LAYERS_H

#include "comm/comm.h"
#include "kernels.h"

/* Sizes, and where the arithmetic happens. */
struct math {
    struct kernels *k;
    struct kstream *stream;
    struct comm *comm;
    const struct comm_group *tensor; /* partial sums are added over it */
    int64_t samples, rows;
    int64_t hidden, heads, kv_heads, dim, ffn, vocab, first_token;
    double eps;
    struct kbuf rope; /* (>= rows, D) */
};

/* Weights of one layer, or their gradients. */
struct layer_weights {
    struct kbuf norm1, q, k, v, o, norm2, gate, up, down;
};

/* One layer's activations of one microbatch. */
struct layer_saved {
    struct kbuf h, y1, mid, y2; /* (R, C) */
    struct kbuf rstd1, rstd2;   /* (R) */
    struct kbuf q, o;           /* (R, H, D) */
    struct kbuf k, v;           /* (R, G, D) */
    struct kbuf lse;            /* (samples, H, rows) */
    struct kbuf gate, up, act;  /* (R, F); the backward of the input turns gate and up into their
                                   gradients */
    struct kbuf dout, dmid;     /* (R, C) gradients of out and mid */
    struct kbuf dy1, dy2;       /* (R, C) */
    struct kbuf dq, dk, dv;     /* as q, k, v */
};

/* Room for values that no later function needs. */
struct layer_scratch {
    struct kbuf residual; /* (R, C) */
    struct kbuf heads;    /* (R, H, D) */
    struct kbuf wide;     /* (R, F) */
};

/* out (R, C). saved->h is the input. Each returns 0, or -1 with err when communication fails;
 * failures of the device are its sticky error. */
int layer_forward(const struct math *m, const struct layer_weights *w, struct layer_saved *saved,
                  const struct layer_scratch *scratch, struct kbuf out, struct err *err);

/* From saved->dout to din (R, C), the gradient of saved->h. */
int layer_backward_input(const struct math *m, const struct layer_weights *w,
                         struct layer_saved *saved, const struct layer_scratch *scratch,
                         struct kbuf din, struct err *err);

/* Adds to the gradients. */
void layer_backward_weight(const struct math *m, const struct layer_weights *gradients,
                           const struct layer_saved *saved);

/* Head: final norm, logits, cross-entropy. */
struct head_saved {
    struct kbuf h, y, dy;  /* (R, C) */
    struct kbuf rstd, max; /* (R) */
    struct kbuf sums;      /* (R, 2) */
    struct kbuf logits;    /* (R, V); turned into their gradient */
    struct kbuf targets;   /* i32 (R): the next tokens */
};

/* loss f64 (samples): the sum over each sample's tokens. scale > 0: logits become their gradient
 * times scale, for the backward; 0: evaluation only. */
int head_forward(const struct math *m, struct kbuf norm, struct kbuf head, struct head_saved *saved,
                 struct kbuf loss, double scale, struct err *err);
int head_backward_input(const struct math *m, struct kbuf norm, struct kbuf head,
                        struct head_saved *saved, struct kbuf dh, struct err *err);
void head_backward_weight(const struct math *m, struct kbuf dnorm, struct kbuf dhead,
                          const struct head_saved *saved);

/* Embedding: out (R, C) from tokens i32 (R). */
int embedding_forward(const struct math *m, struct kbuf table, struct kbuf tokens, struct kbuf out,
                      struct err *err);
void embedding_backward(const struct math *m, struct kbuf dtable, struct kbuf tokens,
                        struct kbuf dout);

#endif
