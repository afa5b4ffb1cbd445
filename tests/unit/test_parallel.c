/* test_parallel.c - the same training, cut in every way the runtime knows: the losses tell.
 *
 * In float64 every layout gives the losses of one rank to 1e-10 at each of 30 steps; in float32 to
 * 1e-6 at the first and 1e-4 at the last. What promises equal bits (pipeline, microbatch size,
 * threads, a device that runs as late as it may) is held to equal bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train_rig.h"

enum { STEPS = 30 };

static char folder[256];

static void near(double got, double want, double tolerance, const char *what, int step)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s, step %d: %.17g, one rank has %.17g (relative %.2g, allowed %.2g)", what, step,
                 got, want, fabs(got / want - 1), tolerance);
}

static const char *const layouts[][4] = {
    {"parallel.tensor=2"},
    {"parallel.pipeline=2"},
    {"parallel.data=2"},
    {"parallel.tensor=2", "parallel.pipeline=2"},
    {"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"},
    {"parallel.pipeline=4"},
    {"parallel.data=3", "parallel.uneven=true"},
    {"parallel.data=3", "parallel.uneven=true", "parallel.pipeline=2", "training.microbatch=1"},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* base, then the layout's own. */
static struct rig_run with_layout(const struct rig_run *base, const char *const *layout)
{
    struct rig_run run = *base;
    int n = 0;
    while (run.changes[n])
        n++;
    for (int i = 0; i < 4 && layout[i]; i++)
        run.changes[n++] = layout[i];
    return run;
}

static void layout_name(const char *const *layout, char *name, size_t size)
{
    *name = 0;
    for (int i = 0; i < 4 && layout[i]; i++)
        snprintf(name + strlen(name), size - strlen(name), "%s%s", i ? " " : "", layout[i]);
}

static void compare_layouts(const struct rig_run *base, double first, double last)
{
    struct rig_result one, other;
    char name[256];
    rig_train_well(base, &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0] - 0.5); /* it does learn */
    for (int l = 0; l < LAYOUTS; l++) {
        struct rig_run run = with_layout(base, layouts[l]);
        layout_name(layouts[l], name, sizeof name);
        rig_train_well(&run, &other);
        for (int i = 0; i < STEPS; i++) {
            double allowed = first * pow(last / first, (double)i / (STEPS - 1));
            near(other.loss[i], one.loss[i], allowed, name, i + 1);
            if (!isnan(one.val_loss[i]))
                near(other.val_loss[i], one.val_loss[i], last, "validation", i + 1);
        }
    }
}

static void float64_layouts(void **state)
{
    (void)state;
    struct rig_run base = {.folder = folder, .steps = STEPS};
    compare_layouts(&base, 1e-10, 1e-10);
}

static void float64_layouts_tied(void **state)
{
    (void)state;
    struct rig_run base = {.folder = folder, .steps = STEPS, .changes = {"model.tied=true"}};
    compare_layouts(&base, 1e-10, 1e-10);
}

static void float32_layouts(void **state)
{
    (void)state;
    struct rig_run base = {
        .folder = folder, .steps = STEPS, .changes = {"training.precision=float32"}};
    compare_layouts(&base, 1e-6, 1e-4);
}

static void same_bits(const struct rig_result *got, const struct rig_result *want, const char *what)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        bool val = isnan(want->val_loss[i]) ? isnan(got->val_loss[i])
                                            : got->val_loss[i] == want->val_loss[i];
        if (got->loss[i] != want->loss[i] || got->norm[i] != want->norm[i] || !val)
            fail_msg("%s, step %d: loss %.17g, norm %.17g, validation %.17g; expected %.17g, "
                     "%.17g, %.17g",
                     what, i + 1, got->loss[i], got->norm[i], got->val_loss[i], want->loss[i],
                     want->norm[i], want->val_loss[i]);
    }
}

static void bitwise(const struct rig_run *base, const char *const (*changes)[4], int n)
{
    struct rig_result one, other;
    char name[256];
    rig_train_well(base, &one);
    for (int i = 0; i < n; i++) {
        struct rig_run run = with_layout(base, changes[i]);
        layout_name(changes[i], name, sizeof name);
        rig_train_well(&run, &other);
        same_bits(&other, &one, name);
    }
}

/* Pipelines, microbatches and so the number of gradients accumulated. */
static void pipeline_and_accumulation_bitwise(void **state)
{
    (void)state;
    static const char *const changes[][4] = {
        {"parallel.pipeline=2"},
        {"parallel.pipeline=4"},
        {"parallel.pipeline=4", "parallel.schedule=gpipe"},
        {"training.microbatch=1"},
        {"training.microbatch=8"},
        {"parallel.pipeline=2", "training.microbatch=1"},
        {"parallel.pipeline=3", "training.microbatch=4"},
    };
    struct rig_run base = {
        .folder = folder, .steps = STEPS, .changes = {"training.precision=float32"}};
    bitwise(&base, changes, sizeof changes / sizeof *changes);
    base.changes[1] = "model.tied=true";
    bitwise(&base, changes, sizeof changes / sizeof *changes);
}

static void odd_layers_bitwise(void **state)
{
    (void)state;
    static const char *const changes[][4] = {{"parallel.pipeline=2"}, {"parallel.pipeline=3"}};
    struct rig_run base = {.folder = folder,
                           .steps = STEPS,
                           .changes = {"training.precision=float32", "model.layers=5"}};
    bitwise(&base, changes, 2);
}

/* Within a tensor- and data-parallel layout, pipeline and microbatch are still bitwise. */
static void pipeline_under_tensor_and_data_bitwise(void **state)
{
    (void)state;
    static const char *const changes[][4] = {{"parallel.pipeline=2", "training.microbatch=1"}};
    struct rig_run base = {.folder = folder,
                           .steps = STEPS,
                           .changes = {"training.precision=float32", "model.tied=true",
                                       "parallel.tensor=2", "parallel.data=2"}};
    bitwise(&base, changes, 1);
}

static void threads_bitwise(void **state)
{
    (void)state;
    struct rig_result one, two;
    struct rig_run run = {.folder = folder,
                          .steps = STEPS,
                          .changes = {"training.precision=float32", "parallel.pipeline=2"}};
    rig_train_well(&run, &one);
    run.threads = 2;
    rig_train_well(&run, &two);
    same_bits(&two, &one, "two threads");
}

/* A device that runs everything as late, and streams in as odd an order, as waits allow: a missing
 * wait is another number. */
static void deferred_bitwise(void **state)
{
    (void)state;
    static const char *const cases[][5] = {
        {"parallel.pipeline=1"},
        {"parallel.pipeline=4", "training.microbatch=1"},
        {"parallel.pipeline=2", "training.microbatch=1", "model.tied=true"},
        {"parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2", "training.microbatch=1"},
        {"parallel.pipeline=2", "parallel.data=3", "parallel.uneven=true", "training.microbatch=1"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct rig_run run = {.folder = folder, .steps = 8};
        struct rig_result plain, deferred;
        memcpy(run.changes, cases[c], sizeof cases[c]);
        rig_train_well(&run, &plain);
        for (uint64_t seed = 1; seed <= 6; seed++) {
            char what[64];
            run.deferred_seed = 1000 * seed;
            snprintf(what, sizeof what, "case %zu deferred with seed %d", c, (int)(1000 * seed));
            rig_train_well(&run, &deferred);
            same_bits(&deferred, &plain, what);
        }
    }
}

static int make_folder(void **state)
{
    (void)state;
    rig_folder_make(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float64_layouts),
        cmocka_unit_test(float64_layouts_tied),
        cmocka_unit_test(float32_layouts),
        cmocka_unit_test(pipeline_and_accumulation_bitwise),
        cmocka_unit_test(odd_layers_bitwise),
        cmocka_unit_test(pipeline_under_tensor_and_data_bitwise),
        cmocka_unit_test(threads_bitwise),
        cmocka_unit_test(deferred_bitwise),
    };
    return cmocka_run_group_tests_name("parallel", tests, make_folder, remove_folder);
}
