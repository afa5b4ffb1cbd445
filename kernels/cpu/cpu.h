/* cpu.h - the CPU device, as its parts see each other.
 *
 * device.c owns memory, streams and the sticky error and hands each checked operation to a
 * function of the table that fits its dtype and the machine's vector instructions. The sources
 * typed_*.c are compiled once for each (type, instruction set); plain.c holds what has no type or
 * several. */
#ifndef GTRAIN_CPU_H
#define GTRAIN_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels.h"
#include "pool.h"

/* Alignment of allocations and of a thread's scratch: a cache line, and the widest vector. */
enum { CPU_ALIGN = 64 };

struct kmem {
    struct cpu *owner;
    unsigned char *base;
    size_t bytes;
    struct kmem *next, *prev;
};

struct cpu_table;

struct cpu {
    struct kernels base; /* first: a struct kernels * is a struct cpu * */
    struct pool *pool;
    const struct cpu_table *f32, *f64;
    pthread_mutex_t lock; /* operations but downloads run one at a time, whoever submits */
    /* The first failure, kept. Not under lock: who comes between two operations of a thread that
     * submits one after the other may wait for all of them. */
    pthread_mutex_t fail_lock; /* to set it */
    atomic_bool failed;        /* error is set, and changes no more */
    struct err error;
    struct kmem *mems;
    size_t bytes, peak;
    unsigned char *scratch; /* scratch_bytes for each thread */
    size_t scratch_bytes;
    char signature[256];
};

/* An operation on buffers that have been checked. -1 with err set where it fails all the same. */
typedef int cpu_op_fn(struct cpu *cpu, const struct kop *op, struct err *err);

/* The operations on one floating type; NULL where it is not a typed one. */
struct cpu_table {
    const char *isa;
    cpu_op_fn *op[KOP_KINDS];
};

enum cpu_isa { CPU_ISA_BASE, CPU_ISA_V3, CPU_ISA_V4 };

/* As kernels_open_cpu, with at most these instructions, so that tests can run each table. */
struct kernels *cpu_open(int threads, enum cpu_isa most, struct err *err);

/* One table per type and instruction set. v3 is AVX2 with FMA, v4 AVX-512 (x86-64 levels). */
extern const struct cpu_table cpu_table_f32_base, cpu_table_f64_base;
extern const struct cpu_table cpu_table_f32_v3, cpu_table_f64_v3;
extern const struct cpu_table cpu_table_f32_v4, cpu_table_f64_v4;

/* plain.c: moving, casting, filling, integers; NULL where the operation is a typed one. */
cpu_op_fn *cpu_plain_op(const struct kop *op);

/* First byte of a buffer. */
static inline void *cpu_data(struct kbuf buf)
{
    return buf.mem == NULL ? NULL : buf.mem->base + buf.offset * kdtype_bytes(buf.dtype);
}

/* Make every thread's scratch at least bytes large; its contents are lost. Before pool_run. */
int cpu_scratch_reserve(struct cpu *cpu, size_t bytes, struct err *err);

static inline void *cpu_scratch(const struct cpu *cpu, int thread)
{
    return cpu->scratch + cpu->scratch_bytes * (size_t)thread;
}

static inline int64_t cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t cpu_tiles(int64_t count, int64_t tile)
{
    return (count + tile - 1) / tile;
}

#endif
