/* test_snapshot.c - a checkpoint holds the state of its step and of no other, however late and in
 * whatever order a device runs what events do not order; and a missing wait does not pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "ckpt.h"
#include "train/snapshot.h"
#include "train_rig.h"

enum { SEEDS = 64, STEPS = 5, TENSORS = 4, COUNT = 16 };

static void must(int rc, const struct err *err)
{
    if (rc)
        fail_msg("%s", err->text);
}

/* ---- the two waits ---- */

enum missing { NO_WAIT_MISSING, BEGIN_MISSING, JOIN_MISSING };

/* Tensors whose elements are the number of updates they have had, on a deferring device. */
struct drill {
    struct kernels *k;
    struct kstream *compute;
    struct kbuf tensor[TENSORS], one;
    struct snapshot snapshot;
    double host[TENSORS][COUNT];
};

static void drill_open(struct drill *d, uint64_t seed)
{
    struct err err = {{0}};
    struct kernels *cpu = kernels_open_cpu(1, &err);
    assert_non_null(cpu);
    d->k = kernels_open_deferred(cpu, seed, &err);
    assert_non_null(d->k);
    d->compute = kernels_stream_open(d->k, &err);
    assert_non_null(d->compute);
    for (int i = 0; i < TENSORS; i++)
        must(kernels_alloc(d->k, K_F64, COUNT, &d->tensor[i], &err), &err);
    must(kernels_alloc(d->k, K_F64, COUNT, &d->one, &err), &err);
    KSUBMIT(d->k, d->compute, FILL, fill, .out = d->one, .value = 1);
    must(snapshot_open(&d->snapshot, d->k, &err), &err);
}

static void drill_update(struct drill *d)
{
    for (int i = 0; i < TENSORS; i++)
        KSUBMIT(d->k, d->compute, ADD, add, .out = d->tensor[i], .a = d->tensor[i], .b = d->one);
}

static void drill_copy(struct drill *d)
{
    for (int i = 0; i < TENSORS; i++)
        snapshot_copy(&d->snapshot, d->tensor[i], d->host[i]);
}

/* The host may look at either stream first. */
static void drill_sync(struct drill *d, bool compute_first)
{
    struct err err = {{0}};
    int64_t soon = clock_ms() + 60000;
    if (compute_first)
        must(kernels_stream_sync(d->k, d->compute, soon, &err), &err);
    must(snapshot_sync(&d->snapshot, soon, &err), &err);
    must(kernels_stream_sync(d->k, d->compute, soon, &err), &err);
}

/* Steps with a snapshot after each; how many of them hold another step's numbers. */
static int drill_run(uint64_t seed, enum missing missing)
{
    struct drill d = {0};
    int wrong = 0;
    drill_open(&d, seed);
    drill_update(&d);
    for (int step = 1; step <= STEPS; step++) {
        if (missing != BEGIN_MISSING)
            snapshot_begin(&d.snapshot, d.compute);
        drill_copy(&d);
        if (missing != JOIN_MISSING)
            snapshot_join(&d.snapshot, d.compute);
        drill_update(&d);
        drill_sync(&d, (seed + (uint64_t)step) % 2);
        for (int i = 0; i < TENSORS * COUNT; i++)
            if (d.host[i / COUNT][i % COUNT] != step) {
                wrong++;
                break;
            }
    }
    snapshot_close(&d.snapshot);
    kernels_stream_close(d.k, d.compute);
    kernels_close(d.k);
    return wrong;
}

static void copies_are_of_their_step(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        assert_int_equal(drill_run(seed, NO_WAIT_MISSING), 0);
}

static void missing_wait_is_seen(void **state)
{
    (void)state;
    int begin = 0, join = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        begin += drill_run(seed, BEGIN_MISSING);
        join += drill_run(seed, JOIN_MISSING);
    }
    if (begin == 0 || join == 0)
        fail_msg("without a wait %d and %d of %d copies were wrong", begin, join, SEEDS * STEPS);
}

/* ---- whole runs ---- */

enum { RUN_STEPS = 7, RUN_SEEDS = 8, RANKS_MAX = 2 };

/* A digest stands for every byte of a rank's file; 0: not committed in that run. */
struct digests {
    uint32_t of[RUN_STEPS + 1][RANKS_MAX];
};

static char folder[256];

static void note_digests(const char *dir, struct digests *out)
{
    char path[400];
    struct err err = {{0}};
    *out = (struct digests){0};
    snprintf(path, sizeof path, "%s/0123456789abcdef", dir);
    char *blob = ckpt_scan(path, "here", "0123456789abcdef", &err);
    assert_non_null(blob);
    for (int64_t most = RUN_STEPS; most >= 0;) {
        struct ckpt_decision d;
        must(ckpt_decide((const char *const *)&blob, 1, most, &d, &err), &err);
        for (int r = 0; d.found && r < d.world; r++)
            out->of[d.position.step][r] = d.places[r].digest;
        most = d.found ? d.position.step - 1 : -1;
        ckpt_decision_free(&d);
    }
    free(blob);
}

/* A run that saves every step; its device defers where seed is not 0. */
static void run_once(const char *layout, uint64_t seed, struct digests *out)
{
    char dir[300], key[350];
    struct rig_result result;
    snprintf(dir, sizeof dir, "%s/%s.%d", folder, layout, (int)seed);
    snprintf(key, sizeof key, "checkpoint.local=%s", dir);
    struct rig_run run = {.folder = folder,
                          .steps = RUN_STEPS,
                          .changes = {key, "checkpoint.every=1", "checkpoint.keep=20",
                                      "training.microbatch=4", layout},
                          .deferred_seed = seed};
    rig_train_well(&run, &result);
    note_digests(dir, out);
}

static void check_layout(const char *layout)
{
    struct digests want, got;
    rig_folder_make(folder);
    run_once(layout, 0, &want);
    for (uint64_t seed = 1; seed <= RUN_SEEDS; seed++) {
        run_once(layout, seed * 100, &got);
        assert_int_not_equal(got.of[RUN_STEPS][0], 0); /* the last is always there */
        for (int step = 1; step <= RUN_STEPS; step++)
            for (int r = 0; r < RANKS_MAX; r++)
                if (got.of[step][r] && want.of[step][r] && got.of[step][r] != want.of[step][r])
                    fail_msg("seed %d: rank %d's file of step %d differs", (int)seed, r, step);
    }
    rig_folder_remove(folder);
}

static void files_are_of_their_step(void **state)
{
    (void)state;
    check_layout("parallel.pipeline=1");
    check_layout("parallel.pipeline=2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_of_their_step),
        cmocka_unit_test(missing_wait_is_seen),
        cmocka_unit_test(files_are_of_their_step),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
