/* spoil.c - see spoil.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "memory.h"
#include "spoil.h"

enum { TENSORS_MOST = 512, WAIT_MS = 60000, SAMPLES = 8 /* a step */ };

#define ok(call)                                                                                   \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

static void decide(const struct spoil *s, struct ckpt_decision *d)
{
    struct err err;
    char *blob = ckpt_scan(s->dir, "here", s->run_id, &err);
    assert_non_null(blob);
    ok(ckpt_decide((const char *const *)&blob, 1, -1, d, &err));
    free(blob);
}

int64_t spoil_newest(const struct spoil *s, int *marks)
{
    struct ckpt_decision d;
    decide(s, &d);
    int64_t step = d.found ? d.position.step : -1;
    if (marks)
        *marks = d.n_marks;
    ckpt_decision_free(&d);
    return step;
}

/* A rank's good file, as where a writer gets the state from. */
struct source {
    pthread_mutex_t lock; /* copy_out comes from two threads, a file is read by one at a time */
    struct ckpt_file *file;
    struct ckpt_tensor tensors[TENSORS_MOST];
    int n;
    const char *spoilt;
};

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct source *s = arg;
    const struct ckpt_tensor *t = &s->tensors[index];
    pthread_mutex_lock(&s->lock);
    int rv = ckpt_file_read(s->file, index, host, err);
    pthread_mutex_unlock(&s->lock);
    if (rv)
        return -1;
    if (!strcmp(t->name, s->spoilt))
        for (int64_t i = 0; i < t->shape[0]; i++)
            ((double *)host)[i] = NAN;
    return 0;
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    (void)arg, (void)index, (void)at, (void)host, (void)bytes;
    return err_set(err, "nothing is read back");
}

static struct source *source_open(const struct spoil *s, const struct ckpt_decision *d, int rank)
{
    struct err err;
    struct source *source = calloc(1, sizeof *source);
    assert_non_null(source);
    pthread_mutex_init(&source->lock, NULL);
    ok(ckpt_file_open(&source->file, d->places[rank].path, &err));
    source->n = ckpt_file_count(source->file);
    source->spoilt = s->tensor;
    assert_in_range(source->n, 1, TENSORS_MOST);
    for (int i = 0; i < source->n; i++)
        ckpt_file_tensor(source->file, i, &source->tensors[i]);
    return source;
}

static void source_close(struct source *s)
{
    ckpt_file_close(s->file);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Rank's file: its claim. */
static char *write_rank(const struct spoil *s, const struct ckpt_decision *d, struct ckpt **c,
                        int rank, int64_t step, uint32_t epoch)
{
    struct err err;
    struct source *source = source_open(s, d, rank);
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = source};
    struct ckpt_options o = {.dir = s->dir,
                             .node = "here",
                             .run_id = s->run_id,
                             .rank = rank,
                             .world = s->world,
                             .epoch = epoch,
                             .generation = 1,
                             .plan_hash = d->plan_hash,
                             .keep = 9,
                             .leader = rank == 0};
    struct ckpt_position position = {step, step * SAMPLES};
    ok(ckpt_open(c, &o, source->tensors, source->n, &io, &err));
    ok(ckpt_save(*c, &position, NULL, &err));
    ok(ckpt_wait(*c, clock_ms() + WAIT_MS, &err));
    char *claim = ckpt_claim(*c, step, &err);
    assert_non_null(claim);
    source_close(source);
    return claim;
}

void spoil_disk(const struct spoil *s, int64_t step, uint32_t epoch)
{
    struct err err;
    struct ckpt_decision d;
    struct ckpt **c = calloc((size_t)s->world, sizeof *c);
    char **claims = calloc((size_t)s->world, sizeof *claims);
    decide(s, &d);
    assert_true(d.found && d.world == s->world && c && claims);
    for (int rank = 0; rank < s->world; rank++)
        claims[rank] = write_rank(s, &d, &c[rank], rank, step, epoch);
    char *record = ckpt_record((const char *const *)claims, s->world, &err);
    assert_non_null(record);
    for (int rank = 0; rank < s->world; rank++) {
        ok(ckpt_commit(c[rank], step, record, &err));
        free(claims[rank]);
    }
    for (int rank = 0; rank < s->world; rank++)
        ckpt_close(c[rank], clock_ms() + WAIT_MS);
    free(record);
    free(claims);
    free(c);
    ckpt_decision_free(&d);
}

static void fill_rank(const struct spoil *s, const struct ckpt_decision *d, int rank, int64_t step,
                      uint32_t epoch)
{
    struct err err;
    struct ckpt_memory *m;
    struct source *source = source_open(s, d, rank);
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = source};
    struct ckpt_memory_options o = {.fds = s->memory + rank * CKPT_MEMORY_SLOTS,
                                    .node = "here",
                                    .run_id = s->run_id,
                                    .rank = rank,
                                    .world = s->world,
                                    .epoch = epoch,
                                    .generation = 1,
                                    .plan_hash = d->plan_hash};
    struct ckpt_key key = {epoch, 1, step}, last = {epoch, 1, step - 1};
    ok(ckpt_memory_open(&m, &o, source->tensors, source->n, &io, &err));
    ok(ckpt_memory_take(m, 0, &err));
    ckpt_memory_keep(m, &last);
    ok(ckpt_memory_begin(m, &key, step * SAMPLES, &err));
    for (int i = 0; i < ckpt_memory_count(m); i++)
        ok(ckpt_memory_copy(m, i, &err));
    ok(ckpt_memory_seal(m, "", &err));
    ckpt_memory_close(m);
    source_close(source);
}

void spoil_memory(const struct spoil *s, int64_t step, uint32_t epoch)
{
    struct ckpt_decision d;
    decide(s, &d);
    assert_true(d.found && d.world == s->world);
    for (int rank = 0; rank < s->world; rank++)
        fill_rank(s, &d, rank, step, epoch);
    ckpt_decision_free(&d);
}
