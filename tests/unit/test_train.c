/* test_train.c - a run that was stopped and restored has, bit for bit, the losses of one that was
 * not; what cannot be restored is refused in one line; and what a checkpoint has learnt can be read
 * back, whatever layout wrote it. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/weights.h"
#include "train_rig.h"

enum { STEPS = 12, STOP = 7 };

static char folder[256], local_key[300];

static void same_bits(const struct rig_result *got, const struct rig_result *want)
{
    for (int i = 0; i < got->n; i++) {
        int at = (int)(got->first - want->first) + i;
        assert_in_range(at, 0, want->n - 1);
        if (got->loss[i] != want->loss[at] || got->norm[i] != want->norm[at])
            fail_msg("step %d: loss %.17g and norm %.17g, undisturbed %.17g and %.17g", at + 1,
                     got->loss[i], got->norm[i], want->loss[at], want->norm[at]);
    }
}

/* Undisturbed; stopped after some steps; restored. base.changes holds the layout. */
static void interrupted_equals_undisturbed(const struct rig_run *base)
{
    struct rig_result whole, before, after;
    struct rig_run run = *base;
    rig_folder_make(folder);
    snprintf(local_key, sizeof local_key, "checkpoint.local=%s/checkpoints", folder);
    run.folder = folder;
    run.steps = STEPS;
    rig_train_well(&run, &whole);

    int n = 0;
    while (run.changes[n])
        n++;
    run.changes[n] = local_key;
    run.changes[n + 1] = "checkpoint.every=3";
    run.stop_after = STOP;
    run.records = true;
    rig_train(&run, &before);
    assert_int_equal(before.end, TRAIN_STOPPED);
    assert_int_equal(before.first, 1);
    assert_in_range(before.n, STOP, STEPS - 1);
    same_bits(&before, &whole);

    run.stop_after = 0;
    run.epoch = 2;
    rig_train_well(&run, &after);
    assert_int_equal(after.first, before.n + 1); /* a stop leaves a checkpoint of its last step */
    same_bits(&after, &whole);
    rig_folder_remove(folder);
}

static void restored_one_rank(void **state)
{
    (void)state;
    struct rig_run run = {.changes = {"training.precision=float32"}};
    interrupted_equals_undisturbed(&run);
}

static void restored_eight_ranks(void **state)
{
    (void)state;
    struct rig_run run = {.changes = {"training.precision=float32", "parallel.tensor=2",
                                      "parallel.pipeline=2", "parallel.data=2"}};
    interrupted_equals_undisturbed(&run);
}

static void restored_tied_pipeline(void **state)
{
    (void)state;
    struct rig_run run = {.changes = {"model.tied=true", "parallel.pipeline=2"}};
    interrupted_equals_undisturbed(&run);
}

static void restored_deferred(void **state)
{
    (void)state;
    struct rig_run run = {.changes = {"parallel.pipeline=2", "training.microbatch=1"},
                          .deferred_seed = 77};
    interrupted_equals_undisturbed(&run);
}

/* ---- one run with checkpoints at 3, 6, 9 and 12, and what may be asked of it ---- */

static int make_run(void **state)
{
    (void)state;
    struct rig_result r;
    rig_folder_make(folder);
    snprintf(local_key, sizeof local_key, "checkpoint.local=%s/checkpoints", folder);
    struct rig_run run = {
        .folder = folder,
        .steps = STEPS,
        .changes = {local_key, "checkpoint.every=3", "checkpoint.keep=4", "parallel.tensor=2"}};
    rig_train_well(&run, &r);
    return 0;
}

static int remove_run(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

static struct rig_run restore_of(const char *what, uint32_t epoch)
{
    return (struct rig_run){
        .folder = folder,
        .steps = STEPS,
        .changes = {local_key, "checkpoint.every=3", "checkpoint.keep=4", "parallel.tensor=2"},
        .restore = what,
        .epoch = epoch};
}

static void refused(struct rig_run *run, const char *const *parts)
{
    struct rig_result r;
    rig_train(run, &r);
    assert_int_equal(r.end, TRAIN_REFUSED);
    assert_null(strchr(r.err.text, '\n'));
    for (; *parts; parts++)
        if (!strstr(r.err.text, *parts))
            fail_msg("'%s' does not say '%s'", r.err.text, *parts);
}

static void refuses_a_missing_step(void **state)
{
    (void)state;
    struct rig_run run = restore_of("5", 2);
    refused(&run, (const char *[]){"restore", "step 5", NULL});
    run.restore = "yesterday";
    refused(&run, (const char *[]){"yesterday", "latest, none, a step", NULL});
    run.restore = "/nowhere/0123456789abcdef";
    refused(&run, (const char *[]){"/nowhere/0123456789abcdef", "no committed", NULL});
}

static void refuses_to_restore_without_checkpoints(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig_run run = {.folder = folder,
                              .steps = STEPS,
                              .restore = i ? "/nowhere/0123456789abcdef" : "3",
                              .epoch = 2};
        refused(&run, (const char *[]){run.restore, "checkpoint.local", NULL});
    }
}

static void none_starts_afresh(void **state)
{
    (void)state;
    struct rig_run run = restore_of("none", 2);
    struct rig_result r;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 1);
}

static void refuses_another_plan(void **state)
{
    (void)state;
    struct rig_run run = restore_of("latest", 2);
    run.changes[4] = "training.seed=6";
    refused(&run, (const char *[]){"belongs to another plan", NULL});
}

/* Newest committed step up to `most` (-1: any), and rank's file of it, found by asking the library.
 */
static int64_t committed_step(int64_t most, char *path, size_t size, int rank)
{
    char dir[300];
    struct ckpt_decision d;
    struct err err;
    snprintf(dir, sizeof dir, "%s/checkpoints/0123456789abcdef", folder);
    char *blob = ckpt_scan(dir, "here", "0123456789abcdef", &err);
    assert_non_null(blob);
    assert_int_equal(ckpt_decide((const char *const *)&blob, 1, most, &d, &err), 0);
    assert_true(d.found);
    int64_t step = d.position.step;
    snprintf(path, size, "%s", d.places[rank].path);
    ckpt_decision_free(&d);
    free(blob);
    return step;
}

/* Which steps but the last were committed depends on how fast the disk was. */
static void restores_a_step(void **state)
{
    (void)state;
    char path[600], step[32];
    int64_t second = committed_step(STEPS - 1, path, sizeof path, 0);
    snprintf(step, sizeof step, "%d", (int)second);
    struct rig_run run = restore_of(step, 2);
    struct rig_result r;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, second + 1);
}

static void damage(const char *path)
{
    struct stat st;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    assert_int_equal(fseek(f, st.st_size / 2, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, st.st_size / 2, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

/* A launch that was told to start afresh fails, and nothing that it has written can be used: its
 * next generation starts afresh as well, from first weights, not from what half a restore left. The
 * files are some MiB long, so the damage is found only when ranks have begun to fill their state.
 */
static void none_starts_afresh_after_damage(void **state)
{
    (void)state;
    enum { FEW = 4 };
    struct rig_result whole, r;
    struct rig_run run = {.folder = folder,
                          .steps = FEW,
                          .changes = {"parallel.tensor=2", "model.ffn=2048", local_key,
                                      "checkpoint.every=2", "checkpoint.snapshots=0"},
                          .restore = "none"};
    rig_train_well(&run, &whole);
    for (int64_t most = FEW; most >= 0; most--) {
        char dir[300];
        struct ckpt_decision d;
        struct err err;
        snprintf(dir, sizeof dir, "%s/checkpoints/0123456789abcdef", folder);
        char *blob = ckpt_scan(dir, "here", "0123456789abcdef", &err);
        assert_int_equal(ckpt_decide((const char *const *)&blob, 1, most, &d, &err), 0);
        if (d.found && d.position.step == most) {
            assert_true(d.places[1].bytes > 3 << 20);
            damage(d.places[1].path);
        }
        ckpt_decision_free(&d);
        free(blob);
    }
    run.generation = 2;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 1);
    same_bits(&r, &whole);
}

static int make_folder(void **state)
{
    (void)state;
    rig_folder_make(folder);
    snprintf(local_key, sizeof local_key, "checkpoint.local=%s/checkpoints", folder);
    return 0;
}

static void damaged_newest_falls_back(void **state)
{
    (void)state;
    char path[600];
    /* Which one is second depends on how fast the disk was. */
    int64_t second = committed_step(STEPS - 1, path, sizeof path, 1);
    assert_int_equal(committed_step(-1, path, sizeof path, 1), STEPS);
    damage(path);

    struct rig_run run = restore_of("latest", 2);
    struct rig_result r;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, second + 1); /* the newest is damaged on one rank, so all go back */
}

/* A finished run is made longer: on the schedule it had, it is the run that was longer from the
 * start, and how a rank computes (microbatch, threads) may change with it. */
static void a_finished_run_goes_on(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct rig_run longer = {.folder = folder,
                             .steps = STEPS + 5,
                             .changes = {"training.decay_steps=12", "parallel.tensor=2"}};
    rig_train_well(&longer, &whole);

    struct rig_run run = restore_of("latest", 2);
    run.steps = STEPS + 5;
    refused(&run, (const char *[]){"ends at step 12", "at 17",
                                   "to train on after step 12 give training.decay_steps=12", NULL});
    run.changes[4] = "training.decay_steps=12";
    run.changes[5] = "training.microbatch=4";
    run.threads = 2;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, STEPS + 1);
    same_bits(&r, &whole);
}

/* ---- what this version does not do ---- */

static void refuses_what_it_cannot(void **state)
{
    (void)state;
    static const struct {
        const char *change, *says;
    } cases[] = {
        {"parallel.context=2", "parallel.context"},
        {"parallel.shard=optimizer", "parallel.shard"},
        {"training.precision=bf16", "training.precision"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_run run = {.folder = folder,
                              .steps = STEPS,
                              .changes = {local_key, "parallel.data=2", cases[i].change}};
        refused(&run, (const char *[]){cases[i].says, "use ", NULL});
    }
}

static void diverged_is_said(void **state)
{
    (void)state;
    struct rig_run run = {.folder = folder,
                          .steps = STEPS,
                          .changes = {"training.precision=float32", "training.lr=1000",
                                      "training.clip=0", "training.warmup_steps=0",
                                      "parallel.tensor=2"}};
    struct rig_result r;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DIVERGED);
    assert_non_null(strstr(r.err.text, "diverged"));
    assert_non_null(strstr(r.err.text, "step "));
}

static void unwritable_checkpoints_are_said(void **state)
{
    (void)state;
    struct rig_run run = {
        .folder = folder,
        .steps = STEPS,
        .changes = {"checkpoint.local=/dev/null/x", "checkpoint.every=3", "parallel.pipeline=2"}};
    refused(&run, (const char *[]){"/dev/null/x", NULL});
}

/* Copies travel between the steps and change nothing in them; what is committed is restored. */
static void partners_change_nothing(void **state)
{
    (void)state;
    static const char *const every[] = {"checkpoint.every=1", "checkpoint.every=4"};
    struct rig_result plain, with, again;
    struct rig_run alone = {
        .folder = folder, .steps = STEPS, .changes = {"parallel.tensor=2", "parallel.data=2"}};
    rig_train_well(&alone, &plain);
    for (int i = 0; i < 2; i++) {
        char local[300];
        snprintf(local, sizeof local, "checkpoint.local=%s/partners.%d", folder, i);
        struct rig_run run = {.folder = folder,
                              .steps = STEPS,
                              .changes = {"parallel.tensor=2", "parallel.data=2", local, every[i],
                                          "checkpoint.redundancy=partner"},
                              .node_ranks = i + 1,
                              .stop_after = STEPS / 2,
                              .deferred_seed = (uint64_t)i};
        rig_train(&run, &with);
        assert_int_equal(with.end, TRAIN_STOPPED);
        run.stop_after = 0;
        run.epoch = 2;
        rig_train_well(&run, &again);
        assert_int_equal(again.first, with.n + 1);
        for (int k = 0; k < with.n; k++)
            assert_memory_equal(&with.loss[k], &plain.loss[k], sizeof *plain.loss);
        for (int k = 0; k < again.n; k++)
            assert_memory_equal(&again.loss[k], &plain.loss[with.n + k], sizeof *plain.loss);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_one_rank),
        cmocka_unit_test(restored_eight_ranks),
        cmocka_unit_test(restored_tied_pipeline),
        cmocka_unit_test(restored_deferred),
        cmocka_unit_test_setup_teardown(restores_a_step, make_run, remove_run),
        cmocka_unit_test_setup_teardown(refuses_a_missing_step, make_run, remove_run),
        cmocka_unit_test_setup_teardown(refuses_to_restore_without_checkpoints, make_run,
                                        remove_run),
        cmocka_unit_test_setup_teardown(none_starts_afresh, make_run, remove_run),
        cmocka_unit_test_setup_teardown(refuses_another_plan, make_run, remove_run),
        cmocka_unit_test_setup_teardown(a_finished_run_goes_on, make_run, remove_run),
        cmocka_unit_test_setup_teardown(damaged_newest_falls_back, make_run, remove_run),
        cmocka_unit_test_setup_teardown(none_starts_afresh_after_damage, make_folder, remove_run),
        cmocka_unit_test_setup_teardown(refuses_what_it_cannot, make_run, remove_run),
        cmocka_unit_test_setup_teardown(diverged_is_said, make_run, remove_run),
        cmocka_unit_test_setup_teardown(unwritable_checkpoints_are_said, make_run, remove_run),
        cmocka_unit_test_setup_teardown(partners_change_nothing, make_run, remove_run),
    };
    return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
