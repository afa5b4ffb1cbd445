/* test_kernels_help.h - a CPU device with one stream, and plain arrays of doubles in and out of it.
 *
 * Tests hold their numbers as doubles; put() rounds them to the dtype under test, get() brings
 * them back. Everything allocated is freed by rig_close. */
#ifndef TEST_KERNELS_HELP_H
#define TEST_KERNELS_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cpu/cpu.h"
#include "kernels.h"
#include "philox.h"

enum { DEADLINE_MS = 60000 };

struct rig {
    struct kernels *k;
    struct kstream *stream;
    enum kdtype dtype;
};

static inline struct rig rig_open_isa(int threads, enum kdtype dtype, enum cpu_isa most)
{
    struct err err = {""};
    struct rig r = {.k = cpu_open(threads, most, &err), .dtype = dtype};
    if (r.k == NULL)
        fail_msg("%s", err.text);
    r.stream = kernels_stream_open(r.k, &err);
    assert_non_null(r.stream);
    return r;
}

static inline struct rig rig_open(int threads, enum kdtype dtype)
{
    return rig_open_isa(threads, dtype, CPU_ISA_V4);
}

static inline void rig_close(struct rig *r)
{
    kernels_stream_close(r->k, r->stream);
    kernels_close(r->k);
}

static inline void rig_sync(struct rig *r)
{
    struct err err = {""};
    if (kernels_stream_sync(r->k, r->stream, clock_ms() + DEADLINE_MS, &err) != 0)
        fail_msg("%s", err.text);
}

/* Zeros. */
static inline struct kbuf make(struct rig *r, enum kdtype dtype, int64_t n)
{
    struct err err = {""};
    struct kbuf buf;
    if (kernels_alloc(r->k, dtype, (size_t)n, &buf, &err) != 0)
        fail_msg("%s", err.text);
    return buf;
}

static inline struct kbuf put_as(struct rig *r, enum kdtype dtype, const double *values, int64_t n)
{
    struct kbuf buf = make(r, dtype, n);
    size_t size = kdtype_bytes(dtype);
    char *host = malloc((size_t)n * size + 1);
    assert_non_null(host);
    for (int64_t i = 0; i < n; i++) {
        float f = (float)values[i];
        int32_t whole = dtype == K_I32 ? (int32_t)values[i] : 0;
        memcpy(host + (size_t)i * size,
               dtype == K_F64   ? (const void *)&values[i]
               : dtype == K_F32 ? (const void *)&f
                                : (const void *)&whole,
               size);
    }
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = buf, .host = host);
    rig_sync(r);
    free(host);
    return buf;
}

static inline struct kbuf put(struct rig *r, const double *values, int64_t n)
{
    return put_as(r, r->dtype, values, n);
}

static inline void get(struct rig *r, struct kbuf buf, double *values)
{
    size_t size = kdtype_bytes(buf.dtype);
    char *host = malloc(buf.count * size + 1);
    assert_non_null(host);
    KSUBMIT(r->k, r->stream, DOWNLOAD, download, .in = buf, .host = host);
    rig_sync(r);
    for (size_t i = 0; i < buf.count; i++) {
        float f;
        int32_t whole;
        if (buf.dtype == K_F64)
            memcpy(&values[i], host + i * size, size);
        else if (buf.dtype == K_F32)
            values[i] = (memcpy(&f, host + i * size, size), f);
        else
            values[i] = (memcpy(&whole, host + i * size, size), whole);
    }
    free(host);
}

static inline double *doubles(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof(*p));
    assert_non_null(p);
    return p;
}

/* Normal numbers that f32 holds exactly, so that both types compute from the same inputs. */
static inline double *normals(uint64_t tensor, int64_t n, double std)
{
    double *p = doubles(n), pair[2];
    for (int64_t i = 0; i < n; i++) {
        philox_normal_pair(7, tensor, (uint64_t)i / 2, pair);
        p[i] = (double)(float)(std * pair[i & 1]);
    }
    return p;
}

/* Largest |a - b| relative to the largest |b|, both printed where it is above the tolerance. */
static inline void assert_close(const char *what, const double *a, const double *b, int64_t n,
                                double tolerance)
{
    double largest = 1e-30;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(b[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * largest))
            fail_msg("%s[%lld] is %.17g, should be %.17g (tolerance %g of %g)", what, (long long)i,
                     a[i], b[i], tolerance, largest);
}

/* Bytes of a buffer, to compare bit for bit. The caller frees. */
static inline void *bytes_of(struct rig *r, struct kbuf buf)
{
    void *host = malloc(buf.count * kdtype_bytes(buf.dtype) + 1);
    assert_non_null(host);
    KSUBMIT(r->k, r->stream, DOWNLOAD, download, .in = buf, .host = host);
    rig_sync(r);
    return host;
}

#endif
