/* test_trial_memory.c - a step that is not finite soon after a restore from the nodes' memory: that
 * state is given up, and what is on disk is taken, and judged as ever.
 *
 * Ranks are threads, a node's memory is memfds of the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "spoil.h"
#include "train_rig.h"

#define RUN "0123456789abcdef"

enum { WORLD = 2, STEPS = 14, STOP = 5, FDS = WORLD * CKPT_MEMORY_SLOTS };

struct rig {
    char folder[256], local_key[300], dir[320];
    int fds[FDS];
    struct rig_result whole; /* the undisturbed run */
    struct spoil spoil;
};

static struct rig_run run_of(const struct rig *r, uint32_t epoch, uint32_t generation)
{
    return (struct rig_run){
        .folder = r->folder,
        .steps = STEPS,
        .changes = {"parallel.tensor=2", r->local_key, "checkpoint.every=1", "checkpoint.keep=2"},
        .epoch = epoch,
        .generation = generation,
        .memory = r->fds};
}

/* The undisturbed run, and epoch 1, which ends after some steps. Its newest checkpoint's step. */
static int64_t begin(struct rig *r)
{
    struct rig_result first;
    memset(r, 0, sizeof *r);
    rig_folder_make(r->folder);
    snprintf(r->local_key, sizeof r->local_key, "checkpoint.local=%s/checkpoints", r->folder);
    snprintf(r->dir, sizeof r->dir, "%s/checkpoints/" RUN, r->folder);
    r->spoil = (struct spoil){.dir = r->dir, .run_id = RUN, .world = WORLD, .memory = r->fds};
    struct rig_run run = run_of(r, 1, 1);
    run.memory = NULL;
    run.changes[1] = NULL;
    rig_train_well(&run, &r->whole);
    for (int i = 0; i < FDS; i++) {
        r->fds[i] = memfd_create("test", MFD_CLOEXEC);
        assert_true(r->fds[i] >= 0);
    }
    run = run_of(r, 1, 1);
    run.stop_after = STOP;
    rig_train(&run, &first);
    if (first.end != TRAIN_STOPPED)
        fail_msg("%s", first.err.text);
    int64_t good = spoil_newest(&r->spoil, NULL);
    assert_int_equal(good, first.n);
    assert_in_range(good, STOP, STEPS - 6);
    return good;
}

static void end(struct rig *r)
{
    for (int i = 0; i < FDS; i++)
        close(r->fds[i]);
    rig_folder_remove(r->folder);
}

/* It ends at once, and says so. */
static void goes_back(const struct rig *r, uint32_t epoch, uint32_t generation, const char *wanted)
{
    struct rig_result got;
    struct rig_run run = run_of(r, epoch, generation);
    rig_train(&run, &got);
    if (got.end != TRAIN_BACK || !strstr(got.err.text, wanted))
        fail_msg("generation %d ended with %d: '%s', not '%s'", (int)generation, (int)got.end,
                 got.err.text, wanted);
}

static void ends_well(const struct rig *r, uint32_t epoch, uint32_t generation, int64_t from)
{
    struct rig_result rest;
    struct rig_run run = run_of(r, epoch, generation);
    rig_train_well(&run, &rest);
    assert_int_equal(rest.first, from + 1);
    assert_memory_equal(rest.loss, r->whole.loss + from, (size_t)rest.n * sizeof *rest.loss);
}

/* Whole in memory, and no good: no checkpoint is to blame, and none is marked. */
static void test_memory(void **state)
{
    (void)state;
    struct rig r;
    char wanted[300];
    int marks;
    int64_t good = begin(&r);
    r.spoil.tensor = "model.norm.weight";
    spoil_memory(&r.spoil, good + 1, 1);
    snprintf(wanted, sizeof wanted,
             "1 steps after the state of step %d was taken from the nodes' memory: that is given "
             "up, and the run goes back to the newest checkpoint on disk",
             (int)good + 1);
    goes_back(&r, 1, 2, wanted);
    assert_int_equal(spoil_newest(&r.spoil, &marks), good);
    assert_int_equal(marks, 0);
    ends_well(&r, 1, 3, good);
    end(&r);
}

/* The first step from it is good, and its checkpoint, made of a bad update, is not. */
static void test_commits_of_it(void **state)
{
    (void)state;
    struct rig r;
    int64_t good = begin(&r);
    r.spoil.tensor = "exp_avg_sq.model.norm.weight";
    spoil_memory(&r.spoil, good + 1, 1);
    goes_back(&r, 1, 2, "was taken from the nodes' memory");
    assert_int_equal(spoil_newest(&r.spoil, NULL), good);
    ends_well(&r, 1, 3, good);
    end(&r);
}

/* Epoch 2 restores a spoilt checkpoint, writes one of that and dies: memory, what epoch 2 wrote and
 * what it began with fail at the same step, and yet it is not the run that diverges. */
static void test_of_a_spoilt_one(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result got;
    char wanted[100];
    int marks;
    int64_t good = begin(&r);
    r.spoil.tensor = "exp_avg_sq.model.norm.weight";
    spoil_disk(&r.spoil, good + 1, 2);
    struct rig_run run = run_of(&r, 3, 1);
    run.steps = (int)good + 2;
    run.changes[4] = "training.decay_steps=14";
    rig_train(&run, &got);
    if (got.end != TRAIN_DONE)
        fail_msg("ended with %d: %s", (int)got.end, got.err.text);
    assert_int_equal(spoil_newest(&r.spoil, NULL), good + 2);
    spoil_memory(&r.spoil, good + 2, 3); /* the last step's state is not kept there */
    goes_back(&r, 3, 2, "was taken from the nodes' memory");
    for (int64_t step = good + 2; step > good; step--) {
        snprintf(wanted, sizeof wanted,
                 "the checkpoint of step %d was restored: that is marked bad", (int)step);
        goes_back(&r, 3, (uint32_t)(good + 5 - step), wanted);
    }
    assert_int_equal(spoil_newest(&r.spoil, &marks), good);
    assert_in_range(marks, 2, 3); /* one may have been committed while those were on trial */
    ends_well(&r, 3, 5, good);
    end(&r);
}

/* With nothing on disk it is the run that diverges. */
static void test_memory_alone(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result got;
    int64_t good = begin(&r);
    r.spoil.tensor = "model.norm.weight";
    spoil_memory(&r.spoil, good + 1, 1);
    struct rig_run run = run_of(&r, 1, 2);
    run.changes[1] = NULL;
    run.changes[2] = NULL;
    rig_train(&run, &got);
    if (got.end != TRAIN_DIVERGED)
        fail_msg("ended with %d: %s", (int)got.end, got.err.text);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_commits_of_it),
        cmocka_unit_test(test_of_a_spoilt_one),
        cmocka_unit_test(test_memory_alone),
    };
    return cmocka_run_group_tests_name("trial memory", tests, NULL, NULL);
}
