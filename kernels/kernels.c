/* kernels.c - names, sizes, and the calls of kernels.h passed on to the backend's table. */
#include "kernels.h"

size_t kdtype_bytes(enum kdtype dtype)
{
    switch (dtype) {
    case K_F64:
        return 8;
    case K_F32:
    case K_I32:
        return 4;
    case K_BF16:
        return 2;
    }
    return 0;
}

const char *kdtype_name(enum kdtype dtype)
{
    static const char *const names[] = {
        [K_F64] = "f64", [K_F32] = "f32", [K_BF16] = "bf16", [K_I32] = "i32"};
    return (unsigned)dtype < sizeof(names) / sizeof(*names) ? names[dtype] : "unknown";
}

const char *kop_name(enum kop_kind kind)
{
    static const char *const names[KOP_KINDS] = {
        [KOP_UPLOAD] = "upload",
        [KOP_DOWNLOAD] = "download",
        [KOP_COPY] = "copy",
        [KOP_CAST] = "cast",
        [KOP_FILL] = "fill",
        [KOP_FILL_NORMAL] = "fill_normal",
        [KOP_ADD] = "add",
        [KOP_SCALE] = "scale",
        [KOP_SUM_N] = "sum_n",
        [KOP_MAX_N] = "max_n",
        [KOP_SUM_SQUARES] = "sum_squares",
        [KOP_CLIP_FACTOR] = "clip_factor",
        [KOP_ADAMW] = "adamw",
        [KOP_MATMUL] = "matmul",
        [KOP_NORM_FORWARD] = "norm_forward",
        [KOP_NORM_BACKWARD_INPUT] = "norm_backward_input",
        [KOP_NORM_BACKWARD_WEIGHT] = "norm_backward_weight",
        [KOP_ROPE] = "rope",
        [KOP_ATTENTION_FORWARD] = "attention_forward",
        [KOP_ATTENTION_BACKWARD] = "attention_backward",
        [KOP_SWIGLU_FORWARD] = "swiglu_forward",
        [KOP_SWIGLU_BACKWARD] = "swiglu_backward",
        [KOP_EMBEDDING_FORWARD] = "embedding_forward",
        [KOP_EMBEDDING_BACKWARD] = "embedding_backward",
        [KOP_XENT_MAX] = "xent_max",
        [KOP_XENT_SUM] = "xent_sum",
        [KOP_XENT_LOSS] = "xent_loss",
    };
    return (unsigned)kind < KOP_KINDS ? names[kind] : "unknown";
}

struct kbuf kbuf_slice(struct kbuf buf, size_t first, size_t count)
{
    buf.offset += first;
    buf.count = count;
    return buf;
}

void kernels_close(struct kernels *k)
{
    if (k != NULL)
        k->ops->close(k);
}

const char *kernels_signature(const struct kernels *k)
{
    return k->ops->signature(k);
}

int kernels_alloc(struct kernels *k, enum kdtype dtype, size_t count, struct kbuf *out,
                  struct err *err)
{
    return k->ops->alloc(k, dtype, count, out, err);
}

void kernels_free(struct kernels *k, struct kbuf *buf)
{
    if (buf->mem != NULL)
        k->ops->free(k, buf);
    *buf = (struct kbuf){0};
}

size_t kernels_bytes(const struct kernels *k, size_t *peak_bytes)
{
    return k->ops->bytes(k, peak_bytes);
}

void *kernels_address(struct kernels *k, struct kbuf buf)
{
    return k->ops->address(k, buf);
}

const void *kernels_host(struct kernels *k, struct kbuf buf)
{
    return k->ops->host ? k->ops->host(k, buf) : NULL;
}

struct kstream *kernels_stream_open(struct kernels *k, struct err *err)
{
    return k->ops->stream_open(k, err);
}

void kernels_stream_close(struct kernels *k, struct kstream *stream)
{
    if (stream != NULL)
        k->ops->stream_close(k, stream);
}

struct kevent *kernels_event_open(struct kernels *k, struct err *err)
{
    return k->ops->event_open(k, err);
}

void kernels_event_close(struct kernels *k, struct kevent *event)
{
    if (event != NULL)
        k->ops->event_close(k, event);
}

void kernels_event_record(struct kernels *k, struct kevent *event, struct kstream *stream)
{
    k->ops->event_record(k, event, stream);
}

void kernels_event_wait(struct kernels *k, struct kstream *stream, struct kevent *event)
{
    k->ops->event_wait(k, stream, event);
}

int kernels_event_sync(struct kernels *k, struct kevent *event, int64_t deadline_ms,
                       struct err *err)
{
    return k->ops->event_sync(k, event, deadline_ms, err);
}

int kernels_stream_sync(struct kernels *k, struct kstream *stream, int64_t deadline_ms,
                        struct err *err)
{
    return k->ops->stream_sync(k, stream, deadline_ms, err);
}

void kernels_submit(struct kernels *k, struct kstream *stream, const struct kop *op)
{
    k->ops->submit(k, stream, op);
}
