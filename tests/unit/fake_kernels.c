/* The least device that collectives need: memory is malloc'ed, operations run at once. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

struct kmem {
    unsigned char *data;
};
struct kstream {
    int unused;
};
struct kevent {
    int unused;
};

size_t kdtype_bytes(enum kdtype dtype)
{
    static const size_t bytes[] = {8, 4, 2, 4};
    return bytes[dtype];
}
const char *kdtype_name(enum kdtype dtype)
{
    static const char *const name[] = {"f64", "f32", "bf16", "i32"};
    return name[dtype];
}
struct kbuf kbuf_slice(struct kbuf buf, size_t first, size_t count)
{
    buf.offset += first;
    buf.count = count;
    return buf;
}
struct kernels *kernels_open_cpu(int threads, struct err *err)
{
    (void)threads, (void)err;
    return calloc(1, sizeof(struct kernels));
}
void kernels_close(struct kernels *k)
{
    free(k);
}
int kernels_alloc(struct kernels *k, enum kdtype dtype, size_t count, struct kbuf *out,
                  struct err *err)
{
    (void)k, (void)err;
    struct kmem *mem = malloc(sizeof *mem);
    mem->data = calloc(count + 1, kdtype_bytes(dtype));
    *out = (struct kbuf){mem, 0, count, dtype};
    return 0;
}
void kernels_free(struct kernels *k, struct kbuf *buf)
{
    (void)k;
    free(buf->mem->data);
    free(buf->mem);
    memset(buf, 0, sizeof *buf);
}
void *kernels_address(struct kernels *k, struct kbuf buf)
{
    (void)k;
    return buf.mem->data + buf.offset * kdtype_bytes(buf.dtype);
}
struct kstream *kernels_stream_open(struct kernels *k, struct err *err)
{
    (void)k, (void)err;
    return calloc(1, sizeof(struct kstream));
}
void kernels_stream_close(struct kernels *k, struct kstream *stream)
{
    (void)k;
    free(stream);
}
struct kevent *kernels_event_open(struct kernels *k, struct err *err)
{
    (void)k, (void)err;
    return calloc(1, sizeof(struct kevent));
}
void kernels_event_close(struct kernels *k, struct kevent *event)
{
    (void)k;
    free(event);
}
void kernels_event_record(struct kernels *k, struct kevent *event, struct kstream *stream)
{
    (void)k, (void)event, (void)stream;
}
int kernels_event_sync(struct kernels *k, struct kevent *event, int64_t deadline_ms,
                       struct err *err)
{
    (void)k, (void)event, (void)deadline_ms, (void)err;
    return 0;
}
int kernels_stream_sync(struct kernels *k, struct kstream *stream, int64_t deadline_ms,
                        struct err *err)
{
    (void)k, (void)stream, (void)deadline_ms, (void)err;
    return 0;
}
#define REDUCE(type)                                                                               \
    do {                                                                                           \
        type *out = kernels_address(k, op->out);                                                   \
        const type *in = kernels_address(k, op->in);                                               \
        for (size_t i = 0; i < op->out.count; i++) {                                               \
            type x = in[i];                                                                        \
            for (int m = 1; m < op->n; m++) {                                                      \
                type y = in[(size_t)m * op->out.count + i];                                        \
                x = !max ? x + y : y > x ? y : x;                                                  \
            }                                                                                      \
            out[i] = x;                                                                            \
        }                                                                                          \
    } while (0)

static void reduce(struct kernels *k, const struct kop_sum_n *op, int max)
{
    if (op->out.dtype == K_F64)
        REDUCE(double);
    else if (op->out.dtype == K_F32)
        REDUCE(float);
    else
        REDUCE(int32_t);
}
void kernels_submit(struct kernels *k, struct kstream *stream, const struct kop *op)
{
    (void)stream;
    if (op->kind == KOP_UPLOAD) {
        struct kbuf out = op->upload.out;
        memcpy(kernels_address(k, out), op->upload.host, out.count * kdtype_bytes(out.dtype));
    } else if (op->kind == KOP_DOWNLOAD) {
        struct kbuf in = op->download.in;
        memcpy(op->download.host, kernels_address(k, in), in.count * kdtype_bytes(in.dtype));
    } else if (op->kind == KOP_COPY) {
        struct kbuf in = op->copy.in;
        memcpy(kernels_address(k, op->copy.out), kernels_address(k, in),
               in.count * kdtype_bytes(in.dtype));
    } else {
        reduce(k, &op->sum_n, op->kind == KOP_MAX_N);
    }
}
