/* kernels.h - memory, streams, events and arithmetic of one device, behind one table.
 *
 * An operation is data: a `struct kop`, submitted to a stream. A backend executes it (cpu/: at
 * once, on its own threads), queues it (a GPU), or keeps it back on purpose (kernels_open_deferred,
 * for tests). So the runtime is written once, and a missing dependency shows as a wrong number on a
 * CPU.
 *
 * Rules that every backend keeps:
 * - operations of one stream run in the order they were submitted; different streams are ordered by
 *   events only;
 * - only the backend dereferences device memory; others pass buffers;
 * - dtype is in the buffer. All floating buffers of one operation have the same dtype (the model's)
 *   unless its comment says otherwise;
 * - results are bitwise the same for any number of threads, and for any grouping of the same
 *   samples into operations (one call on 4 samples = 4 calls on one), because every sum's order
 *   depends on the shape of one sample alone;
 * - an operation that fails (bad shape, mixed dtypes, device fault) sets the device's sticky error:
 *   the first is kept, later operations are ignored, and every sync returns it. So callers check
 *   where they wait, not at every call.
 *
 * Shapes: S samples in a microbatch, T positions (tokens) per sample, rows = S*T, C hidden size,
 * H query heads, G key/value heads, D head size, F feed-forward size, V vocabulary. Row-major. */
#ifndef GTRAIN_KERNELS_H
#define GTRAIN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum kdtype { K_F64, K_F32, K_BF16, K_I32 };

/* Bytes of one element. */
size_t kdtype_bytes(enum kdtype dtype);

/* "f64", "f32", "bf16", "i32". */
const char *kdtype_name(enum kdtype dtype);

struct kmem; /* backend's: one allocation */

/* A range of device memory. A value: copy it, slice it; it owns nothing. mem == NULL: "not given".
 */
struct kbuf {
    struct kmem *mem;
    size_t offset; /* elements from the start of mem */
    size_t count;  /* elements */
    enum kdtype dtype;
};

/* The part [first, first+count) of a buffer. */
struct kbuf kbuf_slice(struct kbuf buf, size_t first, size_t count);

struct kernels; /* one device, as one rank sees it */
struct kstream;
struct kevent;

/* ---- operations ---- */

enum kop_kind {
    /* moving */
    KOP_UPLOAD,   /* host -> device */
    KOP_DOWNLOAD, /* device -> host */
    KOP_COPY,     /* device -> device, same dtype */
    KOP_CAST,     /* device -> device, dtypes differ */
    /* elementwise and sums */
    KOP_FILL,        /* a constant */
    KOP_FILL_NORMAL, /* Philox normal numbers */
    KOP_ADD,         /* out = a + b */
    KOP_SCALE,       /* x *= factor, the factor in device memory */
    KOP_SUM_N,       /* out = in[0] + in[1] + ... in that order */
    KOP_MAX_N,       /* elementwise maximum of n */
    KOP_SUM_SQUARES, /* f64 scalar */
    KOP_CLIP_FACTOR, /* global norm and clip factor from the square sums */
    KOP_ADAMW,
    /* layers */
    KOP_MATMUL,
    KOP_NORM_FORWARD,
    KOP_NORM_BACKWARD_INPUT,
    KOP_NORM_BACKWARD_WEIGHT,
    KOP_ROPE,
    KOP_ATTENTION_FORWARD,
    KOP_ATTENTION_BACKWARD,
    KOP_SWIGLU_FORWARD,
    KOP_SWIGLU_BACKWARD,
    KOP_EMBEDDING_FORWARD,
    KOP_EMBEDDING_BACKWARD,
    KOP_XENT_MAX,
    KOP_XENT_SUM,
    KOP_XENT_LOSS,
    KOP_KINDS
};

/* Host memory must stay as it is (upload) or untouched (download) until the stream has passed the
 * operation. Bytes moved: buf.count * kdtype_bytes(buf.dtype). */
struct kop_upload {
    struct kbuf out;
    const void *host;
};
struct kop_download {
    struct kbuf in;
    void *host;
};

/* Counts equal. KOP_COPY: dtypes equal. KOP_CAST: any two floating dtypes, round to nearest even.
 */
struct kop_copy {
    struct kbuf out, in;
};

struct kop_fill {
    struct kbuf out;
    double value;
};

/* out (rows, cols) = the slice at (row0, col0) of a global matrix with global_cols columns whose
 * element e (row-major index) is mean 0, deviation std, a function of (seed, tensor, e) alone: so a
 * weight has the same values however it is split. Philox4x32-10 (Salmon et al. 2011) with key =
 * seed, counter = (e/2 low, e/2 high, tensor low, tensor high); Box-Muller in f64, then rounded to
 * out's dtype. */
struct kop_fill_normal {
    struct kbuf out;
    uint64_t seed, tensor;
    double std;
    int64_t rows, cols, row0, col0, global_cols;
};

/* out may be a or b. */
struct kop_add {
    struct kbuf out, a, b;
};

/* factor: one f64 in device memory. */
struct kop_scale {
    struct kbuf x, factor;
};

/* in holds n parts of out.count elements, one after the other. Sum and maximum go in the order
 * 0..n-1; the sum is carried in out's dtype. out may be part 0. Any dtype (K_I32 too). */
struct kop_sum_n {
    struct kbuf out, in;
    int n;
};

/* out: one f64 = sum of x*x, in f64, in blocks whose bounds depend on x.count alone. */
struct kop_sum_squares {
    struct kbuf out, x;
};

/* sums: f64 (n), one a tensor. norm, factor: one f64 each. norm = sqrt(sum of sums in order);
 * factor = min(1, max_norm / norm), and 1 where max_norm is 0 (no clipping) or norm is 0. */
struct kop_clip_factor {
    struct kbuf norm, factor, sums;
    double max_norm;
};

/* What varies from step to step, in device memory: f64 (KSTEP_COUNT). */
enum kstep { KSTEP_LR, KSTEP_CORRECTION1, KSTEP_CORRECTION2, KSTEP_COUNT };

/* AdamW, decoupled decay (Loshchilov and Hutter 2019, algorithm 2), elementwise:
 *   g = grad * factor; m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g g
 *   param -= lr * (m / correction1 / (sqrt(v / correction2) + eps) + decay * param)
 * with correction_i = 1 - beta_i^step. step: f64 (KSTEP_COUNT); factor: one f64. Same dtype and
 * count for param, grad, m, v; the arithmetic of an element is in f64 for f64 and f32 for f32. */
struct kop_adamw {
    struct kbuf param, grad, m, v, step, factor;
    double beta1, beta2, eps, decay;
};

/* The three products of a linear layer with weight w (N, K), x (S*T, K), y (S*T, N).
 *   KMATMUL_FORWARD          out = y  (S*T, N): x w^T          a = x,  b = w
 *   KMATMUL_BACKWARD_INPUT   out = dx (S*T, K): dy w           a = dy, b = w
 *   KMATMUL_BACKWARD_WEIGHT  out = dw (N, K):   sum_s dy_s^T x_s  a = dy, b = x
 * accumulate: add to what out holds. The weight gradient adds sample after sample, panel after
 * panel. */
enum kmatmul { KMATMUL_FORWARD, KMATMUL_BACKWARD_INPUT, KMATMUL_BACKWARD_WEIGHT };
struct kop_matmul {
    enum kmatmul mode;
    struct kbuf out, a, b;
    int64_t samples, rows, n, k; /* rows per sample (T) */
    bool accumulate;
};

/* RMSNorm of h = x + residual (residual may be not given: h = x; sum, where given, receives h).
 * y = h * rstd * weight, rstd (rows) = 1/sqrt(mean(h^2) + eps). All (rows, dim); weight (dim). */
struct kop_norm_forward {
    struct kbuf y, rstd, sum, x, residual, weight;
    int64_t samples, rows, dim; /* rows per sample */
    double eps;
};
/* dx = gradient of h (+ dresidual, where given: the gradient that arrives past the norm). dx may be
 * dresidual. */
struct kop_norm_backward_input {
    struct kbuf dx, dresidual, dy, h, rstd, weight;
    int64_t samples, rows, dim;
};
/* dweight += sum over rows of dy * h * rstd, sample after sample. */
struct kop_norm_backward_weight {
    struct kbuf dweight, dy, h, rstd;
    int64_t samples, rows, dim;
};

/* Rotate x (S, T, heads, D) in place; pairs are (i, i + D/2) as in published Llama weights. table
 * (>= first + T, D): cos in [0, D/2), sin in [D/2, D) of each position's row; position of a row is
 * first + its index in the sample. inverse: the transposed rotation (the gradient). */
struct kop_rope {
    struct kbuf x, table;
    int64_t samples, rows, heads, dim, first;
    bool inverse;
};

/* Grouped-query causal attention, scale 1/sqrt(D). q, o (S, T, H, D); k, v (S, T, G, D); lse (S, H,
 * T) log-sum-exp of the scaled scores. H a multiple of G. Nothing of size T*T is kept. */
struct kop_attention_forward {
    struct kbuf o, lse, q, k, v;
    int64_t samples, rows, heads, kv_heads, dim;
};
struct kop_attention_backward {
    struct kbuf dq, dk, dv, dout, o, lse, q, k, v; /* dout: gradient of o */
    int64_t samples, rows, heads, kv_heads, dim;
};

/* h = gate * sigmoid(gate) * up. Forward: out = h. Backward: dgate, dup from dh; may overwrite gate
 * and up (dgate == gate, dup == up are allowed). */
struct kop_swiglu_forward {
    struct kbuf out, gate, up;
};
struct kop_swiglu_backward {
    struct kbuf dgate, dup, dh, gate, up;
};

/* table (vocab, dim) holds the tokens [first, first + vocab); tokens i32 (count). Forward: y
 * (count, dim), zero rows for tokens held elsewhere. Backward: dtable += dy, in token order. */
struct kop_embedding {
    struct kbuf out, table_or_dy; /* forward: y, table; backward: dtable, dy */
    struct kbuf tokens;
    int64_t count, dim, first, vocab;
};

/* Cross-entropy over a vocabulary split among ranks, in three parts with a reduction between them.
 * logits (samples*rows, vocab) for the tokens [first, first + vocab); targets i32 (samples*rows); a
 * target < 0 is left out of the loss.
 *   MAX:  max (rows) = largest logit of the row            -> all-reduce max
 *   SUM:  sums (rows, 2) = { sum exp(logit - max), logit[target] - max, or 0 if held elsewhere }
 *                                                          -> all-reduce sum
 *   LOSS: loss f64 (samples): = sum over the sample's rows of log(sums[0]) - sums[1];
 *         dlogits, where given (may be logits): (softmax - onehot) * scale. */
struct kop_xent {
    struct kbuf logits, targets, max, sums, loss, dlogits;
    int64_t samples, rows, vocab, first;
    double scale;
};

struct kop {
    enum kop_kind kind;
    union {
        struct kop_upload upload;
        struct kop_download download;
        struct kop_copy copy; /* KOP_COPY, KOP_CAST */
        struct kop_fill fill;
        struct kop_fill_normal fill_normal;
        struct kop_add add;
        struct kop_scale scale;
        struct kop_sum_n sum_n; /* KOP_SUM_N, KOP_MAX_N */
        struct kop_sum_squares sum_squares;
        struct kop_clip_factor clip_factor;
        struct kop_adamw adamw;
        struct kop_matmul matmul;
        struct kop_norm_forward norm_forward;
        struct kop_norm_backward_input norm_backward_input;
        struct kop_norm_backward_weight norm_backward_weight;
        struct kop_rope rope;
        struct kop_attention_forward attention_forward;
        struct kop_attention_backward attention_backward;
        struct kop_swiglu_forward swiglu_forward;
        struct kop_swiglu_backward swiglu_backward;
        struct kop_embedding embedding; /* KOP_EMBEDDING_FORWARD, _BACKWARD */
        struct kop_xent xent;           /* KOP_XENT_MAX, _SUM, _LOSS */
    };
};

/* "matmul", ... */
const char *kop_name(enum kop_kind kind);

/* ---- a device ---- */

/* The CPU. threads: worker threads for one operation (>= 1; the caller's thread counts as one).
 * Returns NULL with err set when threads or memory cannot be had. */
struct kernels *kernels_open_cpu(int threads, struct err *err);

/* For tests: passes operations to inner as late, and among streams in as odd an order, as events
 * and syncs allow; the order is a function of seed. Closing it closes inner. */
struct kernels *kernels_open_deferred(struct kernels *inner, uint64_t seed, struct err *err);

/* Waits for nothing: sync first. Frees all that was not freed. */
void kernels_close(struct kernels *k);

/* Names the arithmetic exactly enough to promise equal bits: library, its core type, panel sizes.
 * It is part of the plan hash. Valid until kernels_close. */
const char *kernels_signature(const struct kernels *k);

/* Zero-filled memory. On failure -1, err says how many bytes were asked for. */
int kernels_alloc(struct kernels *k, enum kdtype dtype, size_t count, struct kbuf *out,
                  struct err *err);

/* The caller has synced the streams that use it. Clears *buf. A buffer not given is ignored. */
void kernels_free(struct kernels *k, struct kbuf *buf);

/* Bytes allocated now, and the most there have been. */
size_t kernels_bytes(const struct kernels *k, size_t *peak_bytes);

/* Where the buffer lies, for a transport that moves bytes by address (UCX, NCCL): not to be
 * dereferenced by anyone else. */
void *kernels_address(struct kernels *k, struct kbuf buf);

/* Where the host may read the buffer, from any thread, as all that has been submitted so far has
 * left it and until it is changed: of a device that computes in host memory and has done what was
 * submitted when kernels_submit returns. NULL: a download must bring it. */
const void *kernels_host(struct kernels *k, struct kbuf buf);

/* Streams and events; NULL with err set on failure. Close after a sync. */
struct kstream *kernels_stream_open(struct kernels *k, struct err *err);
void kernels_stream_close(struct kernels *k, struct kstream *stream);
struct kevent *kernels_event_open(struct kernels *k, struct err *err);
void kernels_event_close(struct kernels *k, struct kevent *event);

/* The event stands for all that has been submitted to the stream so far. Recording again replaces.
 */
void kernels_event_record(struct kernels *k, struct kevent *event, struct kstream *stream);

/* What is submitted to the stream from now on waits for the event's latest record (none: no wait).
 */
void kernels_event_wait(struct kernels *k, struct kstream *stream, struct kevent *event);

/* Host waits. 0, or -1 with err: the sticky error, or the deadline (a clock_ms() value) has passed.
 */
int kernels_event_sync(struct kernels *k, struct kevent *event, int64_t deadline_ms,
                       struct err *err);
int kernels_stream_sync(struct kernels *k, struct kstream *stream, int64_t deadline_ms,
                        struct err *err);

/* Submit. The op is copied. Errors are sticky: see the top of this file. */
void kernels_submit(struct kernels *k, struct kstream *stream, const struct kop *op);

/* `KSUBMIT(k, stream, MATMUL, matmul, .mode = ..., .out = ...)`: an operation with named arguments.
 */
#define KSUBMIT(k, stream, KIND, member, ...)                                                      \
    kernels_submit((k), (stream), &(struct kop){.kind = KOP_##KIND, .member = {__VA_ARGS__}})

/* ---- what a backend provides (kernels/cpu, the deferring wrapper, a GPU module) ---- */

struct kernels_ops {
    void (*close)(struct kernels *);
    int (*alloc)(struct kernels *, enum kdtype, size_t, struct kbuf *, struct err *);
    void (*free)(struct kernels *, struct kbuf *);
    void *(*address)(struct kernels *, struct kbuf);
    const void *(*host)(struct kernels *, struct kbuf); /* may be NULL */
    struct kstream *(*stream_open)(struct kernels *, struct err *);
    void (*stream_close)(struct kernels *, struct kstream *);
    struct kevent *(*event_open)(struct kernels *, struct err *);
    void (*event_close)(struct kernels *, struct kevent *);
    void (*event_record)(struct kernels *, struct kevent *, struct kstream *);
    void (*event_wait)(struct kernels *, struct kstream *, struct kevent *);
    int (*event_sync)(struct kernels *, struct kevent *, int64_t, struct err *);
    int (*stream_sync)(struct kernels *, struct kstream *, int64_t, struct err *);
    void (*submit)(struct kernels *, struct kstream *, const struct kop *);
    size_t (*bytes)(const struct kernels *, size_t *);
    const char *(*signature)(const struct kernels *);
};

/* A backend's device begins with this. */
struct kernels {
    const struct kernels_ops *ops;
};

#endif
