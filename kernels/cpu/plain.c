/* plain.c - operations without a floating type of their own: moving bytes, casting between types,
 * constants and random numbers of any type, integer sums, and the clip factor.
 *
 * They work element by element (or byte by byte), in tiles whose bounds do not matter. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "philox.h"

/* Bytes of one tile when moving, elements when converting, pairs when drawing. */
enum { MOVE_TILE = 256 * 1024, CONVERT_TILE = 8192, DRAW_TILE = 512 };

/* About what one costs, for pool_run: a byte moved, an element converted, a normal number. */
static const double MOVE_NS = 0.08, CONVERT_NS = 0.5, DRAW_NS = 60;

/* ---- bytes ---- */

struct move {
    unsigned char *to;
    const unsigned char *from;
    int64_t bytes;
};

static void move_tile(void *arg, int64_t tile, int thread)
{
    const struct move *m = arg;
    int64_t begin = tile * MOVE_TILE;
    (void)thread;
    memmove(m->to + begin, m->from + begin, (size_t)cpu_min(MOVE_TILE, m->bytes - begin));
}

static int move_bytes(struct cpu *cpu, void *to, const void *from, struct kbuf buf)
{
    struct move m = {to, from, (int64_t)(buf.count * kdtype_bytes(buf.dtype))};
    if (to != from)
        pool_run(cpu->pool, cpu_tiles(m.bytes, MOVE_TILE), MOVE_NS * (double)m.bytes, move_tile,
                 &m);
    return 0;
}

static int cpu_upload(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    return move_bytes(cpu, cpu_data(op->upload.out), op->upload.host, op->upload.out);
}

/* In the calling thread alone: it may run while another operation has the pool. */
static int cpu_download(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_download *o = &op->download;
    const void *from = cpu_data(o->in);
    (void)cpu;
    (void)err;
    if (o->in.count > 0 && o->host != from)
        memmove(o->host, from, o->in.count * kdtype_bytes(o->in.dtype));
    return 0;
}

static int cpu_copy(struct cpu *cpu, const struct kop *op, struct err *err)
{
    (void)err;
    return move_bytes(cpu, cpu_data(op->copy.out), cpu_data(op->copy.in), op->copy.out);
}

/* ---- one element of any floating type ---- */

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* To nearest, ties to even; a NaN stays one. */
static uint16_t bf16_from_float_bits(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounding to f32 and then to bf16 could round twice the same way. So the first step rounds to odd:
 * towards zero, with the last bit set where anything was lost; then the second sees the loss. */
static uint16_t bf16_from_double(double x)
{
    float f = (float)x;
    uint32_t bits = float_bits(f);
    if (isfinite(x) && (double)f != x) {
        if (fabs((double)f) > fabs(x))
            bits--;
        bits |= 1;
    }
    return bf16_from_float_bits(bits);
}

static double element_get(const void *p, enum kdtype dtype, int64_t i)
{
    switch (dtype) {
    case K_F64:
        return ((const double *)p)[i];
    case K_F32:
        return (double)((const float *)p)[i];
    case K_BF16:
        return (double)bits_float((uint32_t)((const uint16_t *)p)[i] << 16);
    case K_I32:
        return ((const int32_t *)p)[i];
    }
    return 0;
}

static void element_put(void *p, enum kdtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case K_F64:
        ((double *)p)[i] = x;
        break;
    case K_F32:
        ((float *)p)[i] = (float)x;
        break;
    case K_BF16:
        ((uint16_t *)p)[i] = bf16_from_double(x);
        break;
    case K_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    }
}

/* ---- casts ---- */

static void cast_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_copy *o = arg;
    const void *in = cpu_data(o->in);
    void *out = cpu_data(o->out);
    enum kdtype from = o->in.dtype, to = o->out.dtype;
    int64_t begin = tile * CONVERT_TILE;
    int64_t end = cpu_min(begin + CONVERT_TILE, (int64_t)o->out.count);
    (void)thread;
    if (from == K_F32 && to == K_BF16) {
        const float *x = in;
        uint16_t *y = out;
        for (int64_t i = begin; i < end; i++)
            y[i] = bf16_from_float_bits(float_bits(x[i]));
    } else if (from == K_BF16 && to == K_F32) {
        const uint16_t *x = in;
        float *y = out;
        for (int64_t i = begin; i < end; i++)
            y[i] = bits_float((uint32_t)x[i] << 16);
    } else {
        for (int64_t i = begin; i < end; i++)
            element_put(out, to, i, element_get(in, from, i));
    }
}

static int cpu_cast(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_copy *o = &op->copy;
    (void)err;
    if (o->in.dtype == o->out.dtype)
        return cpu_copy(cpu, op, err);
    pool_run(cpu->pool, cpu_tiles((int64_t)o->out.count, CONVERT_TILE),
             CONVERT_NS * (double)o->out.count, cast_tile, (void *)o);
    return 0;
}

/* ---- constants and random numbers ---- */

static void fill_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_fill *o = arg;
    int64_t begin = tile * CONVERT_TILE;
    int64_t end = cpu_min(begin + CONVERT_TILE, (int64_t)o->out.count);
    unsigned char *p = cpu_data(o->out);
    size_t size = kdtype_bytes(o->out.dtype);
    (void)thread;
    if (begin >= end)
        return;
    element_put(p, o->out.dtype, begin, o->value);
    for (int64_t done = 1; done < end - begin; done *= 2)
        memcpy(p + (size_t)(begin + done) * size, p + (size_t)begin * size,
               (size_t)cpu_min(done, end - begin - done) * size);
}

static int cpu_fill(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_fill *o = &op->fill;
    if (o->out.dtype == K_I32 && !(o->value >= INT32_MIN && o->value <= INT32_MAX))
        return err_set(err, "fill: %g is not an i32", o->value);
    pool_run(cpu->pool, cpu_tiles((int64_t)o->out.count, CONVERT_TILE), 0.2 * (double)o->out.count,
             fill_tile, (void *)o);
    return 0;
}

/* Tiles: (row, DRAW_TILE pairs of columns). Both numbers of a pair are used where both lie here. */
static void normal_tile(void *arg, int64_t tile, int thread)
{
    const struct kop_fill_normal *o = arg;
    int64_t blocks = cpu_tiles(o->cols, 2 * DRAW_TILE), row = tile / blocks;
    int64_t begin = tile % blocks * 2 * DRAW_TILE, end = cpu_min(begin + 2 * DRAW_TILE, o->cols);
    uint64_t base = (uint64_t)(o->row0 + row) * (uint64_t)o->global_cols + (uint64_t)o->col0;
    void *out = cpu_data(o->out);
    double pair[2] = {0};
    (void)thread;
    for (int64_t col = begin; col < end; col++) {
        uint64_t e = base + (uint64_t)col;
        if (col == begin || (e & 1) == 0)
            philox_normal_pair(o->seed, o->tensor, e / 2, pair);
        element_put(out, o->out.dtype, row * o->cols + col, o->std * pair[e & 1]);
    }
}

static int cpu_fill_normal(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_fill_normal *o = &op->fill_normal;
    (void)err;
    pool_run(cpu->pool, o->rows * cpu_tiles(o->cols, 2 * DRAW_TILE), DRAW_NS * (double)o->out.count,
             normal_tile, (void *)o);
    return 0;
}

/* ---- integers, scalars ---- */

/* In unsigned numbers: a sum that does not fit wraps. */
static int cpu_sum_n_i32(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_sum_n *o = &op->sum_n;
    int32_t *out = cpu_data(o->out), *in = cpu_data(o->in);
    (void)cpu;
    (void)err;
    for (size_t i = 0; i < o->out.count; i++) {
        uint32_t sum = 0;
        for (int part = 0; part < o->n; part++)
            sum += (uint32_t)in[(size_t)part * o->out.count + i];
        out[i] = (int32_t)sum;
    }
    return 0;
}

static int cpu_max_n_i32(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_sum_n *o = &op->sum_n;
    int32_t *out = cpu_data(o->out), *in = cpu_data(o->in);
    (void)cpu;
    (void)err;
    for (size_t i = 0; i < o->out.count; i++) {
        int32_t most = in[i];
        for (int part = 1; part < o->n; part++) {
            int32_t x = in[(size_t)part * o->out.count + i];
            most = x > most ? x : most;
        }
        out[i] = most;
    }
    return 0;
}

static int cpu_clip_factor(struct cpu *cpu, const struct kop *op, struct err *err)
{
    const struct kop_clip_factor *o = &op->clip_factor;
    const double *sums = cpu_data(o->sums);
    double total = 0, *norm = cpu_data(o->norm), *factor = cpu_data(o->factor);
    (void)cpu;
    (void)err;
    for (size_t i = 0; i < o->sums.count; i++)
        total += sums[i];
    *norm = sqrt(total);
    *factor = o->max_norm > 0 && *norm > o->max_norm ? o->max_norm / *norm : 1;
    return 0;
}

cpu_op_fn *cpu_plain_op(const struct kop *op)
{
    switch (op->kind) {
    case KOP_UPLOAD:
        return cpu_upload;
    case KOP_DOWNLOAD:
        return cpu_download;
    case KOP_COPY:
        return cpu_copy;
    case KOP_CAST:
        return cpu_cast;
    case KOP_FILL:
        return cpu_fill;
    case KOP_FILL_NORMAL:
        return cpu_fill_normal;
    case KOP_SUM_N:
        return op->sum_n.out.dtype == K_I32 ? cpu_sum_n_i32 : NULL;
    case KOP_MAX_N:
        return op->sum_n.out.dtype == K_I32 ? cpu_max_n_i32 : NULL;
    case KOP_CLIP_FACTOR:
        return cpu_clip_factor;
    default:
        return NULL;
    }
}
