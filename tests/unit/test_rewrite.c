/* test_rewrite.c - a checkpoint that was written again in another layout gives, bit for bit, the
 * run that the original gives when it is restored into that layout; cut short it is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/rewrite.h"
#include "train_rig.h"

#define RUN     "0123456789abcdef"
#define WRITTEN "00000000000000aa"

enum { STEPS = 12, STOP = 5 };

static char folder[256], source[320], target[320];

static int make(void **state)
{
    (void)state;
    rig_folder_make(folder);
    snprintf(source, sizeof source, "%s/checkpoints/" RUN, folder);
    snprintf(target, sizeof target, "%s/written/" WRITTEN, folder);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

struct layout_case {
    const char *tensor, *pipeline, *data, *tied, *precision;
};

/* Goes on from what restore names, or (NULL) begins; local: where own checkpoints go. */
static struct rig_run run_of(const struct layout_case *l, const char *local, const char *restore)
{
    static char key[400];
    snprintf(key, sizeof key, "checkpoint.local=%s/%s", folder, local);
    return (struct rig_run){.folder = folder,
                            .steps = STEPS,
                            .changes = {key, "checkpoint.every=2", l->tensor, l->pipeline, l->data,
                                        l->tied, l->precision},
                            .restore = restore,
                            .run_id = restore ? "00000000000000bb" : RUN};
}

static struct plan *plan_of(const struct rig_run *run)
{
    char path[300];
    struct err err;
    rig_write_plan(run);
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    struct plan *plan = plan_load(path, NULL, 0, NULL, &err);
    if (!plan)
        fail_msg("%s", err.text);
    return plan;
}

static int rewrite(const struct plan *plan, int64_t step,
                   void (*tell)(void *arg, int rank, int64_t bytes), struct err *err)
{
    const char *dirs[] = {source};
    struct weights_source from = {.dirs = dirs, .n_dirs = 1, .run_id = RUN};
    struct rewrite_target to = {.dir = target, .run_id = WRITTEN, .epoch = 1, .tell = tell};
    struct rewrite r;
    int rv = rewrite_open(&r, &from, step, plan, err) || rewrite_write(&r, &to, err) ? -1 : 0;
    rewrite_close(&r);
    return rv;
}

static void same_run(const struct rig_result *got, const struct rig_result *want)
{
    assert_int_equal(got->first, want->first);
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < got->n; i++)
        if (memcmp(&got->loss[i], &want->loss[i], sizeof *got->loss) ||
            memcmp(&got->norm[i], &want->norm[i], sizeof *got->norm))
            fail_msg("step %d: loss %.17g and norm %.17g, from the original %.17g and %.17g",
                     (int)got->first + i, got->loss[i], got->norm[i], want->loss[i], want->norm[i]);
}

#define T(n) "parallel.tensor=" #n
#define P(n) "parallel.pipeline=" #n
#define D(n) "parallel.data=" #n
#define TIED "model.tied=true"
#define OPEN "model.tied=false"
#define F64  "training.precision=float64"
#define F32  "training.precision=float32"

static const struct {
    struct layout_case from, to;
} cases[] = {
    {{T(1), P(1), D(1), OPEN, F64}, {T(2), P(2), D(2), OPEN, F64}},
    {{T(2), P(2), D(2), OPEN, F32}, {T(1), P(1), D(1), OPEN, F32}},
    {{T(2), P(1), D(1), TIED, F32}, {T(1), P(2), D(1), TIED, F32}},
    {{T(1), P(2), D(2), TIED, F64}, {T(2), P(1), D(2), TIED, F64}},
    {{T(1), P(4), D(1), OPEN, F32}, {T(2), P(1), D(4), OPEN, F32}},
    {{T(2), P(2), D(2), TIED, F64}, {T(1), P(3), D(1), TIED, F64}},
    {{T(2), P(1), D(2), OPEN, F64}, {T(2), P(1), D(2), OPEN, F64}},
};

static void test_layouts(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_result r, fly, written;
        struct err err;
        make(state);
        struct rig_run run = run_of(&cases[i].from, "checkpoints", NULL);
        run.stop_after = STOP;
        rig_train(&run, &r);
        assert_int_equal(r.end, TRAIN_STOPPED);

        run = run_of(&cases[i].to, "one", source);
        struct plan *plan = plan_of(&run);
        rig_train_well(&run, &fly);
        if (rewrite(plan, -1, NULL, &err))
            fail_msg("case %zu: %s", i, err.text);
        plan_free(plan);
        run = run_of(&cases[i].to, "two", target);
        rig_train_well(&run, &written);
        assert_int_equal(fly.first, r.n + 1);
        same_run(&written, &fly);
        clear(state);
    }
}

static void make_run(void)
{
    struct rig_result r;
    struct rig_run run = run_of(&cases[1].from, "checkpoints", NULL);
    run.stop_after = STOP;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_STOPPED);
}

static bool found(void)
{
    struct err err;
    struct ckpt_decision d;
    char *blob = ckpt_scan(target, "here", WRITTEN, &err);
    assert_non_null(blob);
    assert_int_equal(ckpt_decide((const char *const *)&blob, 1, -1, &d, &err), 0);
    bool is = d.found;
    ckpt_decision_free(&d);
    free(blob);
    return is;
}

static void die(void *arg, int rank, int64_t bytes)
{
    (void)arg;
    assert_true(bytes > 0);
    if (rank == 1)
        _exit(7);
}

static void test_cut(void **state)
{
    (void)state;
    struct err err;
    make_run();
    struct rig_run run = run_of(&cases[2].from, "one", source);
    run.changes[5] = OPEN;
    struct plan *plan = plan_of(&run);
    assert_int_equal(plan->world, 2);
    pid_t child = fork();
    if (!child)
        _exit(rewrite(plan, -1, die, &err) ? 1 : 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_false(found());
    plan_free(plan);
}

static void refused(const char *change, int64_t step, const char *wanted)
{
    struct err err = {{0}};
    struct rig_run run = run_of(&cases[1].to, "one", source);
    run.changes[7] = change;
    struct plan *plan = plan_of(&run);
    assert_int_equal(rewrite(plan, step, NULL, &err), -1);
    if (!strstr(err.text, wanted))
        fail_msg("'%s' does not say '%s'", err.text, wanted);
    plan_free(plan);
    assert_false(found());
}

static void test_refusals(void **state)
{
    (void)state;
    make_run();
    refused("training.seed=6", -1, "belongs to another plan");
    refused(NULL, 1, "no whole committed checkpoint");
}

/* A flipped bit in what is read: no checkpoint is made of it. */
static void test_damaged(void **state)
{
    (void)state;
    char path[500];
    struct err err;
    struct rig_result r;
    struct ckpt_decision d;
    struct rig_run run = run_of(&cases[0].from, "checkpoints", NULL);
    run.stop_after = STOP;
    rig_train(&run, &r);
    char *blob = ckpt_scan(source, "here", RUN, &err);
    assert_int_equal(ckpt_decide((const char *const *)&blob, 1, -1, &d, &err), 0);
    snprintf(path, sizeof path, "%s", d.places[0].path);
    ckpt_decision_free(&d);
    free(blob);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -20000, SEEK_END), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, -20000, SEEK_END), 0);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
    run = run_of(&cases[0].to, "one", source);
    struct plan *plan = plan_of(&run);
    assert_int_equal(rewrite(plan, -1, NULL, &err), -1);
    if (!strstr(err.text, path))
        fail_msg("'%s' does not name %s", err.text, path);
    assert_false(found());
    plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test_setup_teardown(test_cut, make, clear),
        cmocka_unit_test_setup_teardown(test_refusals, make, clear),
        cmocka_unit_test_setup_teardown(test_damaged, make, clear),
    };
    return cmocka_run_group_tests_name("rewrite", tests, NULL, NULL);
}
