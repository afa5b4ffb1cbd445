/* ckpt_help.h - what the checkpoint tests share: a scratch folder, a small state, a ckpt around it.
 */
#ifndef GTRAIN_TESTS_CKPT_HELP_H
#define GTRAIN_TESTS_CKPT_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt.h"
#include "engine.h"

/* Every call of the library must succeed unless the test says otherwise. */
#define ok(call)                                                                                   \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)
#define refused(call, wanted)                                                                      \
    do {                                                                                           \
        err.text[0] = 0;                                                                           \
        assert_int_equal(call, -1);                                                                \
        if (!strstr(err.text, wanted))                                                             \
            fail_msg("%s: the error is '%s', not '...%s...'", #call, err.text, wanted);            \
    } while (0)

enum { HELP_TENSORS_MAX = 1200 };

/* Tensors and their bytes; the callbacks copy between it and the library. */
struct state {
    struct ckpt_tensor tensors[HELP_TENSORS_MAX];
    char names[HELP_TENSORS_MAX][32];
    unsigned char *bytes[HELP_TENSORS_MAX];
    int64_t sizes[HELP_TENSORS_MAX];
    int n;
};

/* As the names of the types say. */
enum { HELP_DTYPES = 15 };
static const int help_element_bytes[HELP_DTYPES] = {
    [CKPT_F64] = 8, [CKPT_F32] = 4, [CKPT_BF16] = 2, [CKPT_I64] = 8,     [CKPT_F16] = 2,
    [CKPT_I32] = 4, [CKPT_I16] = 2, [CKPT_I8] = 1,   [CKPT_U64] = 8,     [CKPT_U32] = 4,
    [CKPT_U16] = 2, [CKPT_U8] = 1,  [CKPT_BOOL] = 1, [CKPT_F8_E4M3] = 1, [CKPT_F8_E5M2] = 1,
};

static inline int64_t help_bytes(const struct ckpt_tensor *t)
{
    int64_t n = help_element_bytes[t->dtype];
    for (int d = 0; d < t->dims; d++)
        n *= t->shape[d];
    return n;
}

static inline void state_add(struct state *s, enum ckpt_dtype dtype, int dims, const int64_t *shape)
{
    struct ckpt_tensor *t = &s->tensors[s->n];
    snprintf(s->names[s->n], sizeof s->names[0], "layers.%d.w", s->n);
    *t = (struct ckpt_tensor){.name = s->names[s->n], .dtype = dtype, .dims = dims};
    for (int d = 0; d < dims; d++)
        t->global[d] = t->shape[d] = shape[d];
    s->sizes[s->n] = help_bytes(t);
    s->bytes[s->n] = malloc((size_t)s->sizes[s->n] + 1);
    s->n++;
}

static inline void state_free(struct state *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->bytes[i]);
    s->n = 0;
}

/* A byte of the state at a step; every position and step differs in a way that shifts show. */
static inline unsigned char state_byte(int64_t step, int tensor, int64_t at)
{
    uint64_t x = (uint64_t)step * 1000003 + (uint64_t)tensor * 7919 + (uint64_t)at;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned char)(x >> 56);
}

static inline void state_fill(struct state *s, int64_t step)
{
    for (int i = 0; i < s->n; i++)
        for (int64_t b = 0; b < s->sizes[i]; b++)
            s->bytes[i][b] = state_byte(step, i, b);
}

/* The first tensor that is not that of the step, -1 if all are. */
static inline int state_differs(const struct state *s, int64_t step)
{
    for (int i = 0; i < s->n; i++)
        for (int64_t b = 0; b < s->sizes[i]; b++)
            if (s->bytes[i][b] != state_byte(step, i, b))
                return i;
    return -1;
}

static inline int state_out(void *arg, int i, void *host, struct err *err)
{
    (void)err;
    struct state *s = arg;
    memcpy(host, s->bytes[i], (size_t)s->sizes[i]);
    return 0;
}

static inline int state_in(void *arg, int i, int64_t at, const void *host, int64_t bytes,
                           struct err *err)
{
    (void)err;
    struct state *s = arg;
    memcpy(s->bytes[i] + at, host, (size_t)bytes);
    return 0;
}

static inline struct ckpt_io state_io(struct state *s)
{
    return (struct ckpt_io){.copy_out = state_out, .copy_in = state_in, .arg = s};
}

static inline void help_scratch(char dir[256], const char *where)
{
    const char *tmp = where && !access(where, W_OK) ? where : getenv("TMPDIR");
    snprintf(dir, 256, "%s/gtrain-ckpt-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static inline int help_remove_one(const char *path, const struct stat *st, int type,
                                  struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void help_remove(const char *dir)
{
    nftw(dir, help_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Names in dir that end in suffix. */
static inline int help_count(const char *dir, const char *suffix)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        size_t name = strlen(e->d_name), end = strlen(suffix);
        n += name >= end && !strcmp(e->d_name + name - end, suffix);
    }
    closedir(d);
    return n;
}

static inline struct ckpt_options help_options(const char *dir, uint32_t epoch)
{
    return (struct ckpt_options){.dir = dir,
                                 .node = "n1",
                                 .run_id = "run-1",
                                 .world = 1,
                                 .epoch = epoch,
                                 .generation = 1,
                                 .plan_hash = UINT64_C(0x123456789abcdef0),
                                 .keep = 2,
                                 .leader = true};
}

static inline int64_t help_soon(void)
{
    return clock_ms() + 60000;
}

/* A world of one: save, wait, claim, record, commit. 0 or -1. */
static inline int help_checkpoint(struct ckpt *c, int64_t step, struct err *err)
{
    struct ckpt_position position = {step, step * 8};
    int64_t finished;
    if (ckpt_save(c, &position, NULL, err) || ckpt_wait(c, help_soon(), err) ||
        ckpt_finished(c, &finished, err))
        return -1;
    if (finished != step)
        return err_set(err, "step %lld is finished, not %lld", (long long)finished,
                       (long long)step);
    char *claim = ckpt_claim(c, step, err);
    char *record = claim ? ckpt_record((const char *const *)&claim, 1, err) : NULL;
    int rv = record ? ckpt_commit(c, step, record, err) : -1;
    free(claim);
    free(record);
    return rv;
}

/* Scan one folder and decide. */
static inline int help_decide(const char *dir, int64_t max_step, struct ckpt_decision *d,
                              struct err *err)
{
    char *blob = ckpt_scan(dir, "n1", "run-1", err);
    int rv = blob ? ckpt_decide((const char *const *)&blob, 1, max_step, d, err) : -1;
    free(blob);
    return rv;
}

#endif
