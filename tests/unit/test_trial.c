/* test_trial.c - a step that is not finite soon after a restore: the checkpoint is marked bad and
 * the run goes one back; a run that diverges by itself is found out, and its marks are taken back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gtrain.h"
#include "mark.h"
#include "retain.h"
#include "spoil.h"
#include "train/trial.h"
#include "train_rig.h"

#define RUN "0123456789abcdef"

enum { STEPS = 12, WORLD = 2 };

#define ok(call)                                                                                   \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

/* ---- the rule ---- */

static void test_judge(void **state)
{
    (void)state;
    struct ckpt_mark marks[] = {{2, 1, 100, 105}, {3, 1, 102, 105}, {1, 1, 60, 61}};
    enum from { NOTHING, DISK, OLDEST /* nothing is older */, MEMORY, MEMORY_ALONE };
    static const struct {
        enum from from;
        bool named;
        int64_t restored, step;
        int n_marks;
        uint32_t epoch; /* of what was restored */
        enum trial_verdict verdict;
    } table[] = {
        {NOTHING, false, 0, 5, 0, 2, TRIAL_RUN},
        {DISK, false, 100, 101, 0, 2, TRIAL_CHECKPOINT},
        {DISK, false, 100, 110, 0, 2, TRIAL_CHECKPOINT},
        {DISK, false, 100, 111, 0, 2, TRIAL_RUN},        /* too late */
        {DISK, true, 100, 101, 0, 2, TRIAL_RUN},         /* asked for by its name */
        {OLDEST, false, 100, 101, 0, 2, TRIAL_RUN},      /* there is nothing older */
        {DISK, false, 90, 105, 2, 2, TRIAL_AGAIN},       /* as from 100, however late */
        {DISK, true, 90, 105, 2, 2, TRIAL_AGAIN},        /* whoever asked */
        {DISK, false, 100, 105, 1, 2, TRIAL_CHECKPOINT}, /* its own mark proves nothing */
        {DISK, false, 90, 91, 2, 2, TRIAL_CHECKPOINT},   /* another step: damaged as well */
        {DISK, false, 90, 106, 2, 2, TRIAL_RUN},
        {DISK, false, 55, 61, 3, 2, TRIAL_AGAIN},
        /* Epochs 2 and 3 may have begun with it, and be bad because it is. */
        {DISK, false, 99, 105, 2, 1, TRIAL_CHECKPOINT},
        {OLDEST, false, 99, 105, 2, 1, TRIAL_AGAIN}, /* it cannot be found out */
        {DISK, false, 90, 105, 2, 1, TRIAL_AGAIN},   /* nor so late */
        {DISK, false, 100, 105, 2, 2, TRIAL_CHECKPOINT},
        {MEMORY, false, 100, 101, 0, 4, TRIAL_MEMORY},
        {MEMORY, false, 100, 110, 0, 4, TRIAL_MEMORY},
        {MEMORY, false, 100, 111, 0, 4, TRIAL_RUN},
        {MEMORY_ALONE, false, 100, 101, 0, 4, TRIAL_RUN}, /* nothing to go back to */
        {MEMORY, false, 103, 105, 2, 4, TRIAL_AGAIN},     /* it came from an older one than those */
        {MEMORY, false, 103, 104, 2, 4, TRIAL_MEMORY},
        {MEMORY_ALONE, false, 90, 105, 2, 4, TRIAL_AGAIN},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        enum from from = table[i].from;
        struct ckpt_decision disk = {.found = from != NOTHING && from != MEMORY_ALONE,
                                     .older = from == DISK,
                                     .position = {table[i].restored, 0},
                                     .written_epoch = table[i].epoch,
                                     .written_generation = 1,
                                     .marks = marks,
                                     .n_marks = table[i].n_marks},
                             memory = {.found = true,
                                       .memory = true,
                                       .position = {table[i].restored, 0},
                                       .written_epoch = table[i].epoch,
                                       .written_generation = 1};
        enum trial_verdict got =
            trial_judge(from >= MEMORY ? &memory : &disk, &disk, table[i].named, table[i].step);
        if (got != table[i].verdict)
            fail_msg("row %zu: %d, not %d", i, (int)got, (int)table[i].verdict);
    }
}

/* ---- the line ---- */

static void test_line(void **state)
{
    (void)state;
    static const char bad[] = "bad v=1 run=r-1 epoch=1 generation=2 step=100 by=3.4 nan=105";
    static const char good[] = "good v=1 run=r-1 epoch=1 generation=2 step=100 by=3.4";
    static const char *const none[] = {
        "bad v=2 run=r-1 epoch=1 generation=2 step=100 by=3.4 nan=105",
        "bad v=1 run=r-1 epoch=1 generation=2 step=100 by=3.4",
        "bad v=1 run=r-1 epoch=01 generation=2 step=100 by=3.4 nan=105",
        "bad v=1 run=r-1 epoch=4294967296 generation=2 step=100 by=3.4 nan=105",
        "bad v=1 run=R epoch=1 generation=2 step=100 by=3.4 nan=105",
        "bad v=1 run=r-1 epoch=1 generation=2 step=-1 by=3.4 nan=105",
        "bad v=1 run=r-1 epoch=1 generation=2 step=100 by=3.4 nan=105 ",
        "good v=1 run=r-1 epoch=1 generation=2 step=100 by=3.4 nan=105",
        "commit v=1 run=r-1",
        "bad ",
        "",
    };
    struct mark m;
    assert_true(mark_parse(bad, sizeof bad - 1, &m));
    assert_true(m.bad && m.key.epoch == 1 && m.key.generation == 2 && m.key.step == 100 &&
                m.by.epoch == 3 && m.by.generation == 4 && m.nan_step == 105);
    char *text = mark_print(&m);
    assert_string_equal(text, bad);
    free(text);
    assert_true(mark_parse(good, sizeof good - 1, &m) && !m.bad);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (mark_parse(none[i], (int64_t)strlen(none[i]), &m))
            fail_msg("'%s' is taken for a mark", none[i]);
    for (size_t cut = 0; cut + 1 < sizeof good; cut++)
        if (mark_parse(good, (int64_t)cut, &m) && cut < sizeof good - 2)
            fail_msg("cut at %zu it is still a mark", cut);
}

#define SCAN(node, rest) "scan 1\nnode " node "\ndir /" node "\n" rest "epoch 1\n"
#define REC(e, s)                                                                                  \
    "record commit v=1 run=r epoch=" #e " generation=1 step=" #s                                   \
    " samples=0 plan=0000000000000000 world=1 rank=0 node=a path=r.e" #e ".g1.s" #s                \
    ".r0.safetensors bytes=9 digest=00000000\nfile r.e" #e ".g1.s" #s ".r0.safetensors 9\n"
#define BAD(e, s, by)  "mark bad v=1 run=r epoch=" #e " generation=1 step=" #s " by=" #by " nan=9\n"
#define GOOD(e, s, by) "mark good v=1 run=r epoch=" #e " generation=1 step=" #s " by=" #by "\n"

/* Which of steps 5, 6 and 7 is taken, by what stands in the logs of two nodes. */
static void test_decide(void **state)
{
    (void)state;
#define ALL REC(1, 5) REC(1, 6) REC(1, 7)
    static const struct {
        const char *a, *b;
        int64_t named, step;
        bool older, marked;
        int passed_over, marks;
    } table[] = {
        {SCAN("a", ALL), SCAN("b", ""), -1, 7, true, false, 0, 0},
        {SCAN("a", ALL BAD(1, 7, 2.1)), SCAN("b", ""), -1, 6, true, false, 1, 1},
        {SCAN("a", ALL), SCAN("b", BAD(1, 7, 2.1)), -1, 6, true, false, 1, 1},
        {SCAN("a", ALL BAD(1, 7, 2.1) GOOD(1, 7, 3.1)), SCAN("b", ""), -1, 7, true, false, 0, 0},
        {SCAN("a", ALL GOOD(1, 7, 3.1)), SCAN("b", BAD(1, 7, 3.2)), -1, 6, true, false, 1, 1},
        {SCAN("a", ALL GOOD(1, 7, 3.2)), SCAN("b", BAD(1, 7, 3.1)), -1, 7, true, false, 0, 0},
        {SCAN("a", ALL GOOD(1, 7, 3.1)), SCAN("b", BAD(1, 7, 3.1)), -1, 6, true, false, 1, 1},
        {SCAN("a", ALL BAD(2, 7, 3.1)), SCAN("b", ""), -1, 7, true, false, 0, 1},
        {SCAN("a", ALL BAD(1, 7, 2.1) BAD(1, 6, 2.1)), SCAN("b", ""), -1, 5, false, false, 2, 2},
        {SCAN("a", ALL BAD(1, 6, 2.1) BAD(1, 5, 2.1)), SCAN("b", ""), -1, 7, false, false, 0, 2},
        {SCAN("a", ALL BAD(1, 7, 2.1)), SCAN("b", ""), 7, 7, true, true, 0, 1},
        {SCAN("a", ALL BAD(1, 7, 2.1) BAD(1, 6, 2.1) BAD(1, 5, 2.1)), SCAN("b", ""), -1, -1, false,
         false, 3, 3},
        {SCAN("a", ALL "mark something new\n"), SCAN("b", ""), -1, 7, true, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *blobs[] = {table[i].a, table[i].b};
        struct ckpt_decision d;
        struct err err;
        if (table[i].named >= 0)
            ok(ckpt_decide_named(blobs, 2, table[i].named, &d, &err));
        else
            ok(ckpt_decide(blobs, 2, -1, &d, &err));
        int64_t step = d.found ? d.position.step : -1;
        if (step != table[i].step || d.older != table[i].older || d.marked != table[i].marked ||
            d.passed_over != table[i].passed_over || d.n_marks != table[i].marks)
            fail_msg("row %zu: step %lld, older %d, marked %d, %d passed over, %d marks: %s", i,
                     (long long)step, d.older, d.marked, d.passed_over, d.n_marks, d.report);
        ckpt_decision_free(&d);
    }
}

/* Epoch 2 went on from step 100 of epoch 1, which had committed 70, 80, 90 and 100; or from a state
 * in memory, later than that. */
static void test_retention(void **state)
{
    (void)state;
    static const struct {
        int keep, own;
        int64_t newest[3]; /* of epoch 2 */
        int64_t trial;
        bool tight;
        const char *stays; /* of epoch 2, then of epoch 1: "1" or "0" */
    } table[] = {
        {2, 0, {0}, 100, false, "1100"},
        {2, 1, {101}, 100, false, "11100"},
        {2, 2, {102, 101}, 100, false, "111100"},
        {2, 2, {109, 108}, 100, false, "111100"},
        {2, 2, {110, 105}, 100, false, "110000"},
        {2, 2, {102, 101}, 100, true, "110000"},
        {2, 1, {101}, 100, true, "11000"},
        /* All that the plan keeps, however many of its own a run writes: each may prove bad. */
        {3, 0, {0}, 100, false, "1110"},
        {3, 1, {101}, 100, false, "11110"},
        {3, 3, {103, 102, 101}, 100, false, "1101110"},
        {3, 3, {110, 109, 108}, 100, false, "1110000"},
        {3, 3, {103, 102, 101}, 100, true, "1110000"},
        {4, 2, {102, 101}, 100, false, "111111"},
        /* From step 120 in memory. */
        {2, 2, {125, 121}, 120, false, "111100"},
        {2, 3, {129, 125, 121}, 120, false, "1101100"},
        {2, 2, {130, 125}, 120, false, "110000"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int own = table[i].own;
        struct ckpt_key keys[7] = {{0}};
        for (int k = 0; k < own; k++)
            keys[k] = (struct ckpt_key){2, 1, table[i].newest[k]};
        for (int k = 0; k < 4; k++)
            keys[own + k] = (struct ckpt_key){1, 1, 100 - 10 * k};
        struct commits c = {.keys = keys,
                            .n = own + 4,
                            .own = own,
                            .restored = true,
                            .tight = table[i].tight,
                            .restored_from = {1, 1, 100},
                            .trial_step = table[i].trial};
        for (int k = 0; k < c.n; k++)
            if (retain_file(&c, table[i].keep, &keys[k]) != (table[i].stays[k] == '1'))
                fail_msg("row %zu: step %d", i, (int)keys[k].step);
    }
}

/* ---- runs ---- */

static char folder[256], local_key[300], dir[320];

static void make_folder(void)
{
    rig_folder_make(folder);
    snprintf(local_key, sizeof local_key, "checkpoint.local=%s/checkpoints", folder);
    snprintf(dir, sizeof dir, "%s/checkpoints/" RUN, folder);
}

static const struct spoil here = {
    .dir = dir, .run_id = RUN, .world = WORLD, .tensor = "model.norm.weight"};

static int64_t newest(int *marks)
{
    return spoil_newest(&here, marks);
}

static void spoil(int64_t step, uint32_t epoch)
{
    spoil_disk(&here, step, epoch);
}

static struct rig_run run_of(uint32_t epoch)
{
    return (struct rig_run){
        .folder = folder,
        .steps = STEPS,
        .changes = {local_key, "checkpoint.every=3", "checkpoint.keep=4", "parallel.tensor=2"},
        .records = true,
        .epoch = epoch};
}

static void same_bits(const struct rig_result *got, const struct rig_result *want)
{
    for (int i = 0; i < got->n; i++) {
        int at = (int)(got->first - want->first) + i;
        assert_in_range(at, 0, want->n - 1);
        if (got->loss[i] != want->loss[at])
            fail_msg("step %d: %.17g, undisturbed %.17g", at + 1, got->loss[i], want->loss[at]);
    }
}

/* Two spoilt ones on top of a good one: each is marked, once, and then never looked at again. */
static void test_spoilt(void **state)
{
    (void)state;
    struct rig_result whole, r;
    int marks;
    make_folder();
    struct rig_run run = run_of(1);
    run.changes[0] = run.changes[3];
    run.changes[1] = NULL;
    rig_train_well(&run, &whole);
    run = run_of(1);
    run.stop_after = 5;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_STOPPED);
    int64_t good = newest(NULL);
    assert_in_range(good, 5, STEPS - 3);
    spoil(good + 1, 2);
    spoil(good + 2, 3);
    assert_int_equal(newest(NULL), good + 2);

    for (int i = 2; i > 0; i--) {
        run = run_of((uint32_t)(6 - i));
        rig_train(&run, &r);
        assert_int_equal(r.end, TRAIN_BACK);
        assert_int_equal(r.n, 0);
        char wanted[200];
        snprintf(wanted, sizeof wanted, "1 steps after the checkpoint of step %d was restored",
                 (int)good + i);
        if (!strstr(r.err.text, wanted) || !strstr(r.err.text, "marked bad"))
            fail_msg("'%s' does not say '%s'", r.err.text, wanted);
        assert_int_equal(newest(&marks), good + i - 1);
        assert_int_equal(marks, 3 - i);
    }
    run = run_of(6);
    rig_train_well(&run, &r);
    assert_int_equal(r.first, good + 1);
    same_bits(&r, &whole);
    rig_folder_remove(folder);
}

struct seen {
    int n;
    double loss[STEPS];
};

static void on_step(void *arg, int64_t step, double loss)
{
    struct seen *s = arg;
    assert_in_range(step, 1, STEPS);
    s->loss[step - 1] = loss;
    s->n++;
}

/* A program that calls gtrain_train sees nothing of it but the steps. */
static void test_by_itself(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct seen seen = {.n = 0};
    char path[300], error[1024];
    int marks;
    make_folder();
    struct rig_run run = run_of(1);
    run.stop_after = 5;
    rig_train(&run, &r);
    int64_t good = newest(NULL);
    spoil(good + 1, 2);
    spoil(good + 2, 3);
    run = run_of(1);
    run.changes[0] = run.changes[3];
    run.changes[1] = NULL;
    rig_train_well(&run, &whole);

    run = run_of(1);
    rig_write_plan(&run);
    snprintf(path, sizeof path, "%s/run.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"run_id\": \"" RUN "\", \"epoch\": 3}\n", f);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    struct gtrain_train_options o = {.plan = path,
                                     .dir = folder,
                                     .local = 1,
                                     .threads = 1,
                                     .out_fd = -1,
                                     .step = on_step,
                                     .arg = &seen};
    if (gtrain_train(NULL, &o, NULL, error, sizeof error) != GTRAIN_DONE)
        fail_msg("%s", error);
    assert_int_equal(seen.n, STEPS - good);
    for (int64_t i = good; i < STEPS; i++)
        assert_memory_equal(&seen.loss[i], &whole.loss[i], sizeof *seen.loss);
    assert_int_equal(newest(&marks), STEPS);
    assert_int_equal(marks, 2);
    rig_folder_remove(folder);
}

/* Who names it gets it, and its mark is gone; what then comes is the run's own. */
static void test_named(void **state)
{
    (void)state;
    struct rig_result r;
    int marks;
    char step[32];
    make_folder();
    struct rig_run run = run_of(1);
    run.stop_after = 5;
    rig_train(&run, &r);
    int64_t good = newest(NULL);
    spoil(good + 1, 2);
    run = run_of(3);
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_BACK);
    assert_int_equal(newest(&marks), good);
    snprintf(step, sizeof step, "%d", (int)good + 1);
    run = run_of(4);
    run.restore = step;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DIVERGED);
    assert_int_equal(newest(&marks), good + 1);
    assert_int_equal(marks, 0);
    rig_folder_remove(folder);
}

/* Nothing older is left to go back to: as if nothing had been restored. */
static void test_nothing_older(void **state)
{
    (void)state;
    struct rig_result r;
    int marks;
    make_folder();
    struct rig_run run = run_of(1);
    run.stop_after = 5;
    rig_train(&run, &r);
    int64_t good = newest(NULL);
    spoil(good + 1, 2);
    for (int64_t step = 1; step <= good; step++)
        for (int rank = 0; rank < WORLD; rank++) {
            char path[500];
            snprintf(path, sizeof path, "%s/" RUN ".e1.g1.s%d.r%d.safetensors", dir, (int)step,
                     rank);
            unlink(path);
        }
    run = run_of(3);
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DIVERGED);
    assert_int_equal(newest(&marks), good + 1);
    assert_int_equal(marks, 0);
    rig_folder_remove(folder);
}

/* A learning rate that no model stands: from an older checkpoint it ends at the same step, and all
 * checkpoints are good again. */
static void test_divergent(void **state)
{
    (void)state;
    struct rig_result r, again;
    int marks;
    make_folder();
    struct rig_run run = run_of(1);
    run.changes[1] = "checkpoint.every=1";
    run.changes[4] = "training.precision=float32";
    run.changes[5] = "training.lr=1000";
    run.changes[6] = "training.clip=0";
    run.changes[7] = "training.warmup_steps=64";
    run.changes[8] = "training.decay_steps=64";
    run.steps = 64;
    for (int i = 0; i < 2; i++) { /* two orderly ends, so two checkpoints at least */
        run.epoch = (uint32_t)i + 1;
        run.stop_after = 2 + 2 * i;
        rig_train(&run, &r);
        if (r.end != TRAIN_STOPPED)
            fail_msg("stop %d: %d %s", i, (int)r.end, r.err.text);
    }
    int64_t last = newest(NULL);
    run.stop_after = 0;
    run.epoch = 3;
    rig_train(&run, &r);
    if (r.end != TRAIN_BACK)
        fail_msg("ended with %d: %s", (int)r.end, r.err.text);
    int64_t first = last + r.n + 1;
    assert_in_range(newest(&marks), 1, last - 1);
    assert_true(marks > 0); /* what it has committed since is marked, too */
    do { /* once more where the older one is of the epoch before: the newer may come from it */
        run.epoch++;
        rig_train(&run, &again);
    } while (again.end == TRAIN_BACK && run.epoch < 9);
    if (again.end != TRAIN_DIVERGED || !strstr(again.err.text, "the run itself has diverged"))
        fail_msg("ended with %d: %s", (int)again.end, again.err.text);
    assert_true(again.first <= last);
    assert_int_equal(again.first + again.n, first);
    assert_true(newest(&marks) >= last);
    assert_int_equal(marks, 0);
    rig_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judge),     cmocka_unit_test(test_line),
        cmocka_unit_test(test_decide),    cmocka_unit_test(test_retention),
        cmocka_unit_test(test_spoilt),    cmocka_unit_test(test_by_itself),
        cmocka_unit_test(test_named),     cmocka_unit_test(test_nothing_older),
        cmocka_unit_test(test_divergent),
    };
    return cmocka_run_group_tests_name("trial", tests, NULL, NULL);
}
