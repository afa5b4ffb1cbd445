/* device.c - memory, streams, events and the sticky error of the CPU device.
 *
 * A submitted operation runs at once, so streams and events have nothing to keep: whatever was
 * recorded has already happened. What a sync returns is the sticky error. */
#include "cpu.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "kop.h"
#include "matmul.h"

/* From here on memory is mapped, in huge pages where the system has them, and not touched before
 * it is used. */
static const size_t MAP_BYTES = (size_t)4 << 20;

/* Handles only: there is nothing to keep. */
struct kstream {
    char handle;
};

struct kevent {
    char handle;
};

static struct cpu *cpu_of(struct kernels *k)
{
    return (struct cpu *)k;
}

static unsigned char *memory_get(size_t bytes)
{
    if (bytes >= MAP_BYTES) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
        madvise(p, bytes, MADV_HUGEPAGE);
        return p;
    }
    void *p = NULL;
    if (posix_memalign(&p, CPU_ALIGN, bytes > 0 ? bytes : 1) != 0)
        return NULL;
    memset(p, 0, bytes);
    return p;
}

static void memory_put(unsigned char *p, size_t bytes)
{
    if (bytes >= MAP_BYTES)
        munmap(p, bytes);
    else
        free(p);
}

static int cpu_alloc(struct kernels *k, enum kdtype dtype, size_t count, struct kbuf *out,
                     struct err *err)
{
    struct cpu *cpu = cpu_of(k);
    size_t bytes;
    *out = (struct kbuf){0};
    if (__builtin_mul_overflow(count, kdtype_bytes(dtype), &bytes))
        return err_set(err, "%zu elements of %s are more than memory can be", count,
                       kdtype_name(dtype));
    struct kmem *mem = calloc(1, sizeof(*mem));
    unsigned char *base = mem != NULL ? memory_get(bytes) : NULL;
    if (base == NULL) {
        free(mem);
        return err_set(err, "no memory for %zu bytes", bytes);
    }
    *mem = (struct kmem){.owner = cpu, .base = base, .bytes = bytes};
    pthread_mutex_lock(&cpu->lock);
    mem->next = cpu->mems;
    if (mem->next != NULL)
        mem->next->prev = mem;
    cpu->mems = mem;
    cpu->bytes += bytes;
    if (cpu->bytes > cpu->peak)
        cpu->peak = cpu->bytes;
    pthread_mutex_unlock(&cpu->lock);
    *out = (struct kbuf){.mem = mem, .count = count, .dtype = dtype};
    return 0;
}

static void mem_release(struct kmem *mem)
{
    memory_put(mem->base, mem->bytes);
    free(mem);
}

static void cpu_free(struct kernels *k, struct kbuf *buf)
{
    struct cpu *cpu = cpu_of(k);
    struct kmem *mem = buf->mem;
    pthread_mutex_lock(&cpu->lock);
    if (mem->prev != NULL)
        mem->prev->next = mem->next;
    else
        cpu->mems = mem->next;
    if (mem->next != NULL)
        mem->next->prev = mem->prev;
    cpu->bytes -= mem->bytes;
    pthread_mutex_unlock(&cpu->lock);
    mem_release(mem);
}

static void *cpu_address(struct kernels *k, struct kbuf buf)
{
    (void)k;
    return cpu_data(buf);
}

static const void *cpu_host(struct kernels *k, struct kbuf buf)
{
    (void)k;
    return cpu_data(buf);
}

static size_t cpu_bytes(const struct kernels *k, size_t *peak_bytes)
{
    struct cpu *cpu = cpu_of((struct kernels *)k);
    pthread_mutex_lock(&cpu->lock);
    size_t bytes = cpu->bytes;
    if (peak_bytes != NULL)
        *peak_bytes = cpu->peak;
    pthread_mutex_unlock(&cpu->lock);
    return bytes;
}

static struct kstream *cpu_stream_open(struct kernels *k, struct err *err)
{
    struct kstream *stream = calloc(1, sizeof(*stream));
    (void)k;
    if (stream == NULL)
        err_set(err, "no memory for a stream");
    return stream;
}

static void cpu_stream_close(struct kernels *k, struct kstream *stream)
{
    (void)k;
    free(stream);
}

static struct kevent *cpu_event_open(struct kernels *k, struct err *err)
{
    struct kevent *event = calloc(1, sizeof(*event));
    (void)k;
    if (event == NULL)
        err_set(err, "no memory for an event");
    return event;
}

static void cpu_event_close(struct kernels *k, struct kevent *event)
{
    (void)k;
    free(event);
}

static void cpu_event_record(struct kernels *k, struct kevent *event, struct kstream *stream)
{
    (void)k;
    (void)event;
    (void)stream;
}

static void cpu_event_wait(struct kernels *k, struct kstream *stream, struct kevent *event)
{
    (void)k;
    (void)event;
    (void)stream;
}

static int sticky(struct cpu *cpu, struct err *err)
{
    if (!atomic_load_explicit(&cpu->failed, memory_order_acquire))
        return 0;
    return err_set(err, "%s", cpu->error.text);
}

static void fail(struct cpu *cpu, const struct err *err)
{
    pthread_mutex_lock(&cpu->fail_lock);
    if (!cpu->failed)
        cpu->error = *err;
    atomic_store_explicit(&cpu->failed, true, memory_order_release);
    pthread_mutex_unlock(&cpu->fail_lock);
}

static int cpu_event_sync(struct kernels *k, struct kevent *event, int64_t deadline_ms,
                          struct err *err)
{
    (void)event;
    (void)deadline_ms;
    return sticky(cpu_of(k), err);
}

static int cpu_stream_sync(struct kernels *k, struct kstream *stream, int64_t deadline_ms,
                           struct err *err)
{
    (void)stream;
    (void)deadline_ms;
    return sticky(cpu_of(k), err);
}

int cpu_scratch_reserve(struct cpu *cpu, size_t bytes, struct err *err)
{
    bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    if (bytes <= cpu->scratch_bytes)
        return 0;
    size_t all = bytes * (size_t)pool_threads(cpu->pool);
    void *p = NULL;
    if (posix_memalign(&p, CPU_ALIGN, all) != 0)
        return err_set(err, "no memory for %zu bytes of scratch", all);
    free(cpu->scratch);
    cpu->scratch = p;
    cpu->scratch_bytes = bytes;
    return 0;
}

/* Buffers must lie inside an allocation of this device. */
static int check_ranges(const struct cpu *cpu, const struct kop *op, struct err *err)
{
    struct kop_use uses[KOP_MAX_USES];
    int n = kop_uses(op, uses);
    for (int i = 0; i < n; i++) {
        struct kbuf b = uses[i].buf;
        if (b.mem == NULL)
            continue;
        if (b.mem->owner != cpu)
            return err_set(err, "%s: %s belongs to another device", kop_name(op->kind),
                           uses[i].name);
        size_t have = b.mem->bytes / kdtype_bytes(b.dtype);
        if (b.offset > have || b.count > have - b.offset)
            return err_set(err, "%s: %s is [%zu, %zu) of an allocation of %zu %s",
                           kop_name(op->kind), uses[i].name, b.offset, b.offset + b.count, have,
                           kdtype_name(b.dtype));
    }
    return 0;
}

static int run_op(struct cpu *cpu, const struct kop *op, struct err *err)
{
    if (kop_check(op, err) != 0 || check_ranges(cpu, op, err) != 0)
        return -1;
    cpu_op_fn *fn = cpu_plain_op(op);
    if (fn == NULL) {
        struct kop_use uses[KOP_MAX_USES];
        kop_uses(op, uses);
        enum kdtype dtype = uses[0].buf.dtype;
        if (dtype == K_BF16)
            return err_set(err,
                           "%s: the CPU has no bf16 arithmetic, only casts: use float32 or "
                           "float64",
                           kop_name(op->kind));
        fn = (dtype == K_F64 ? cpu->f64 : cpu->f32)->op[op->kind];
    }
    return fn(cpu, op, err);
}

static void submit(struct cpu *cpu, const struct kop *op)
{
    struct err err;
    if (!sticky(cpu, NULL) && run_op(cpu, op, &err))
        fail(cpu, &err);
}

static void cpu_submit(struct kernels *k, struct kstream *stream, const struct kop *op)
{
    struct cpu *cpu = cpu_of(k);
    (void)stream;
    /* Beside whatever else runs: a copy of the state that a checkpoint takes while the next step
     * computes neither holds up its operations nor waits for one. It uses neither pool nor scratch.
     */
    if (op->kind == KOP_DOWNLOAD) {
        submit(cpu, op);
        return;
    }
    pthread_mutex_lock(&cpu->lock);
    submit(cpu, op);
    pthread_mutex_unlock(&cpu->lock);
}

static const char *cpu_signature(const struct kernels *k)
{
    return ((const struct cpu *)k)->signature;
}

static void cpu_close(struct kernels *k)
{
    struct cpu *cpu = cpu_of(k);
    pool_close(cpu->pool);
    for (struct kmem *mem = cpu->mems, *next; mem != NULL; mem = next) {
        next = mem->next;
        mem_release(mem);
    }
    free(cpu->scratch);
    pthread_mutex_destroy(&cpu->lock);
    pthread_mutex_destroy(&cpu->fail_lock);
    free(cpu);
}

static const struct kernels_ops cpu_ops = {
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .address = cpu_address,
    .host = cpu_host,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .stream_sync = cpu_stream_sync,
    .submit = cpu_submit,
    .bytes = cpu_bytes,
    .signature = cpu_signature,
};

#if defined(__x86_64__)
static enum cpu_isa best_isa(void)
{
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return v4 ? CPU_ISA_V4 : v3 ? CPU_ISA_V3 : CPU_ISA_BASE;
}
#else
static enum cpu_isa best_isa(void)
{
    return CPU_ISA_BASE;
}
#endif

static void choose_tables(struct cpu *cpu, enum cpu_isa most)
{
    static const struct cpu_table *const tables[][2] = {
        [CPU_ISA_BASE] = {&cpu_table_f32_base, &cpu_table_f64_base},
#if defined(__x86_64__)
        [CPU_ISA_V3] = {&cpu_table_f32_v3, &cpu_table_f64_v3},
        [CPU_ISA_V4] = {&cpu_table_f32_v4, &cpu_table_f64_v4},
#endif
    };
    enum cpu_isa isa = best_isa();
    if (isa > most)
        isa = most;
    cpu->f32 = tables[isa][0];
    cpu->f64 = tables[isa][1];
}

/* OpenBLAS is called from several threads at once, one thread to a call: its own threads change the
 * bits of a product. Of its three builds only the one with pthreads can do that. Seen with 0.3.21:
 * the serial build has no locks, and calls at the same time now and then give wrong numbers; the
 * OpenMP build keeps its number of threads per calling thread, so ours would start teams. The
 * setting is the process's. */
static int hold_blas_to_one_thread(struct err *err)
{
    enum { SERIAL, PTHREADS, OPENMP };
    int build = openblas_get_parallel();
    if (build != PTHREADS)
        return err_set(err,
                       "OpenBLAS is its %s build, which cannot be called from several threads with "
                       "the same results: install the one with pthreads (on Debian "
                       "libopenblas0-pthread; update-alternatives chooses among several)",
                       build == OPENMP ? "OpenMP" : "serial");
    if (openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    return 0;
}

/* The C library is named for its logarithm, sine and cosine. */
#if defined(__GLIBC__)
static const char *libc_name(void)
{
    return gnu_get_libc_version();
}
#else
static const char *libc_name(void)
{
    return "other";
}
#endif

static void sign(struct cpu *cpu)
{
    /* The configuration's first two words are the name and the version. */
    const char *config = openblas_get_config(), *space = strchr(config, ' ');
    int words = space != NULL ? (int)(space - config) + 1 + (int)strcspn(space + 1, " ") : 0;
    snprintf(cpu->signature, sizeof(cpu->signature), "cpu %s, %.*s %s, libc %s, panels %d x %d",
             cpu->f32->isa, words, config, openblas_get_corename(), libc_name(), MATMUL_PANEL_ROWS,
             MATMUL_PANEL_COLS);
}

struct kernels *cpu_open(int threads, enum cpu_isa most, struct err *err)
{
    if (hold_blas_to_one_thread(err) != 0)
        return NULL;
    struct cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        err_set(err, "no memory for a device");
        return NULL;
    }
    cpu->base.ops = &cpu_ops;
    cpu->pool = pool_open(threads, err);
    if (cpu->pool == NULL) {
        free(cpu);
        return NULL;
    }
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_mutex_init(&cpu->fail_lock, NULL);
    choose_tables(cpu, most);
    sign(cpu);
    return &cpu->base;
}

struct kernels *kernels_open_cpu(int threads, struct err *err)
{
    return cpu_open(threads, CPU_ISA_V4, err);
}
