/* test_train_shared.c - the shared tier of checkpoints: a run whose nodes are gone goes on from it,
 * bit for bit; what is newer on the nodes' disks is preferred; what is damaged is passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt.h"
#include "drain.h"
#include "train_rig.h"

#define RUN "0123456789abcdef"

/* A run that is asked to stop after a step stops up to three later. */
enum { STEPS = 12, STOP = 4 };

static char folder[256], local_key[300], shared_key[300], local[300], shared[300];

static int make(void **state)
{
    (void)state;
    rig_folder_make(folder);
    snprintf(local, sizeof local, "%s/local/" RUN, folder);
    snprintf(shared, sizeof shared, "%s/shared/" RUN, folder);
    snprintf(local_key, sizeof local_key, "checkpoint.local=%s/local", folder);
    snprintf(shared_key, sizeof shared_key, "checkpoint.shared=%s/shared", folder);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

/* Four ranks, a checkpoint every third step, each copied that is not overtaken. */
static struct rig_run run_of(uint32_t epoch)
{
    return (struct rig_run){.folder = folder,
                            .steps = STEPS,
                            .changes = {"parallel.tensor=2", "parallel.pipeline=2",
                                        "checkpoint.every=3", "checkpoint.keep=4", local_key,
                                        shared_key, "checkpoint.shared_every=1"},
                            .epoch = epoch};
}

static void undisturbed(struct rig_result *whole)
{
    struct rig_run run = run_of(1);
    memset(run.changes + 2, 0, sizeof run.changes - 2 * sizeof *run.changes);
    rig_train_well(&run, whole);
}

static void same_bits(const struct rig_result *got, const struct rig_result *want)
{
    assert_int_equal(got->first + got->n - 1, STEPS);
    for (int i = 0; i < got->n; i++) {
        int at = (int)got->first - 1 + i;
        if (got->loss[i] != want->loss[at] || got->norm[i] != want->norm[at])
            fail_msg("step %d: loss %.17g and norm %.17g, undisturbed %.17g and %.17g", at + 1,
                     got->loss[i], got->norm[i], want->loss[at], want->norm[at]);
    }
}

static int64_t stopped_at(struct rig_run *run)
{
    struct rig_result r;
    run->stop_after = STOP;
    rig_train(run, &r);
    if (r.end != TRAIN_STOPPED)
        fail_msg("ended with %d: %s", (int)r.end, r.err.text);
    run->stop_after = 0;
    return r.first + r.n - 1;
}

/* Newest whole committed step up to `most` in one folder, -1 none; rank's file of it. */
static int64_t newest(const char *dir, int64_t most, int rank, char *path, size_t size)
{
    struct ckpt_decision d;
    struct err err;
    char *blob = ckpt_scan(dir, CKPT_SHARED_NODE, RUN, &err);
    assert_non_null(blob);
    assert_int_equal(ckpt_decide((const char *const *)&blob, 1, most, &d, &err), 0);
    int64_t step = d.found ? d.position.step : -1;
    if (path)
        snprintf(path, size, "%s", d.found ? d.places[rank].path : "");
    ckpt_decision_free(&d);
    free(blob);
    return step;
}

static int count(const char *dir, const char *part)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static void flip(const char *path, long at_from_end)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -at_from_end, SEEK_END), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, -at_from_end, SEEK_END), 0);
    assert_int_not_equal(fputc(byte ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

static void lose(const char *dir)
{
    char command[400];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

static void goes_on(struct rig_run *run, int64_t after, const struct rig_result *whole)
{
    struct rig_result r;
    rig_train_well(run, &r);
    assert_int_equal(r.first, after + 1);
    same_bits(&r, whole);
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

/* The last checkpoint is always there, however the run ended; two are kept. */
static void nodes_are_gone(void **state)
{
    (void)state;
    struct rig_result whole;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    int64_t step = stopped_at(&run);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), step);
    lose(local);
    run.epoch = 2;
    goes_on(&run, step, &whole);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
    assert_int_equal(count(shared, ".part"), 0);
    assert_in_range(count(shared, ".safetensors"), 4, 2 * 4);
    assert_int_equal(count(shared, ".commits"), 1);
}

/* Into another layout too, from nothing but the copies; two nodes. */
static void another_layout(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.node_ranks = 2;
    int64_t step = stopped_at(&run);
    lose(local);
    run.changes[0] = "parallel.tensor=1";
    run.changes[7] = "parallel.data=2";
    run.epoch = 2;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, step + 1);
    for (int i = 0; i < r.n; i++)
        if (!(fabs(r.loss[i] - whole.loss[r.first - 1 + i]) < 1e-10))
            fail_msg("step %d: loss %.17g, undisturbed %.17g", (int)r.first + i, r.loss[i],
                     whole.loss[r.first - 1 + i]);
}

/* shared_every 0: only the last; and a run of no steps copies what it was restored from, once. */
static void last_only(void **state)
{
    (void)state;
    struct rig_result r, whole;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.changes[6] = "checkpoint.shared_every=0";
    rig_train_well(&run, &r);
    assert_int_equal(count(shared, ".safetensors"), 4);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
    run.epoch = 2;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DONE);
    assert_int_equal(r.n, 0);
    assert_int_equal(count(shared, ".safetensors"), 4); /* nothing new to copy */
    lose(shared);
    run.epoch = 3;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DONE);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
    lose(local);
    run.epoch = 4;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DONE);
    assert_int_equal(r.n, 0);
}

static void local_is_newer(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    int64_t step = stopped_at(&run);
    struct rig_run alone = run_of(2);
    memset(alone.changes + 5, 0, sizeof alone.changes - 5 * sizeof *alone.changes);
    rig_train_well(&alone, &r); /* to the end, without the shared folder */
    assert_int_equal(newest(shared, -1, 0, NULL, 0), step);
    run.epoch = 3;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_DONE);
    assert_int_equal(r.n, 0);                                /* the last step was there */
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS); /* and has been copied now */
}

/* One file of the newest is lost on a node, another damaged: the copies stand in, of the same step.
 */
static void copies_stand_in(void **state)
{
    (void)state;
    struct rig_result whole;
    char path[600];
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    int64_t step = stopped_at(&run);
    assert_int_equal(newest(local, -1, 2, path, sizeof path), step);
    assert_int_equal(unlink(path), 0);
    run.epoch = 2;
    run.stop_after = 1;
    struct rig_result r;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_STOPPED);
    assert_int_equal(r.first, step + 1);
    step = r.first + r.n - 1;

    assert_int_equal(newest(local, -1, 1, path, sizeof path), step);
    flip(path, 5000);
    run.epoch = 3;
    run.stop_after = 0;
    goes_on(&run, step, &whole);
}

static void damaged_copy_falls_back(void **state)
{
    (void)state;
    struct rig_result whole, r;
    char path[600];
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.changes[7] = "checkpoint.shared_keep=0";
    run.stop_after = 1;
    rig_train(&run, &r);
    int64_t older = r.first + r.n - 1;
    run.epoch = 2;
    int64_t step = stopped_at(&run);
    assert_true(older < step);
    lose(local);
    assert_int_equal(newest(shared, -1, 3, path, sizeof path), step);
    flip(path, 5000); /* a bit of the newest */
    int64_t second = newest(shared, step - 1, 0, NULL, 0);
    assert_true(second >= older);
    run.epoch = 3;
    goes_on(&run, second, &whole);
}

/* The newest record is torn, and a half of a dead writer lies about. */
static void torn_log_falls_back(void **state)
{
    (void)state;
    struct rig_result whole, r;
    char path[600], log[400], half[400];
    struct stat st;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.changes[7] = "checkpoint.shared_keep=0";
    run.stop_after = 1;
    rig_train(&run, &r);
    int64_t older = r.first + r.n - 1;
    run.epoch = 2;
    int64_t step = stopped_at(&run);
    lose(local);
    snprintf(log, sizeof log, "%s/" RUN "." CKPT_SHARED_NODE ".commits", shared);
    assert_int_equal(stat(log, &st), 0);
    assert_int_equal(truncate(log, st.st_size - 10), 0);
    snprintf(half, sizeof half, "%s/" RUN ".e2.g1.s99.r0.part", shared);
    assert_int_equal(newest(shared, -1, 0, path, sizeof path) < step, 1);
    assert_int_equal(link(path, half), 0);
    int64_t second = newest(shared, -1, 0, NULL, 0);
    assert_true(second >= older);
    run.epoch = 3;
    goes_on(&run, second, &whole);
    assert_int_equal(access(half, F_OK), -1);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
}

/* Nothing can be used: said, not started afresh. */
static void nothing_left_is_refused(void **state)
{
    (void)state;
    char path[600];
    struct rig_run run = run_of(1);
    run.changes[6] = "checkpoint.shared_every=0";
    int64_t step = stopped_at(&run);
    char wanted[64];
    lose(local);
    assert_int_equal(newest(shared, -1, 1, path, sizeof path), step);
    assert_int_equal(unlink(path), 0);
    run.epoch = 2;
    snprintf(wanted, sizeof wanted, "step %d ", (int)step);
    refused(&run, (const char *[]){"no committed checkpoint of run " RUN, wanted,
                                   "rank 1's file on shared is missing", "--restore none", NULL});
    run.restore = "none";
    struct rig_result r;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 1);
}

/* A later generation does without the folder if the nodes have their own, and does not start afresh
 * if they have not; the last checkpoint is nowhere but with them then, and that is said. */
static void away_when_it_is_needed_or_not(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct rig_run run = run_of(1);
    char above[400], away[400];
    undisturbed(&whole);
    run.records = true; /* they tell that checkpoints were committed */
    int64_t step = stopped_at(&run);
    snprintf(above, sizeof above, "%s/shared", folder);
    snprintf(away, sizeof away, "%s/away", folder);
    assert_int_equal(rename(above, away), 0);
    run.generation = 2;
    rig_train(&run, &r);
    assert_int_equal(r.first, step + 1);
    same_bits(&r, &whole);
    assert_int_not_equal(r.end, TRAIN_DONE);
    assert_non_null(strstr(r.err.text, "could not be copied to checkpoint.shared"));
    assert_int_equal(access(above, F_OK), -1);

    lose(local);
    for (int i = 0; i < 2; i++) {
        run.generation = 3 + (uint32_t)i;
        run.restore = i ? "none" : NULL; /* which was meant for the first generation */
        rig_train(&run, &r);
        assert_int_equal(r.end, TRAIN_FAILED);
        assert_int_equal(r.n, 0);
        assert_non_null(strstr(r.err.text, "checkpoint.shared cannot be read"));
    }

    assert_int_equal(rename(away, above), 0);
    run.generation = 5;
    run.restore = NULL;
    goes_on(&run, step, &whole);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
}

/* The first generation may have ended before it had made the folder. */
static void second_generation_first(void **state)
{
    (void)state;
    struct rig_result whole, r;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.generation = 2;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 1);
    same_bits(&r, &whole);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
}

/* Without a local folder checkpoints are written to the shared one at once. */
static void shared_alone(void **state)
{
    (void)state;
    struct rig_result whole;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.changes[4] = shared_key;
    memset(run.changes + 5, 0, 3 * sizeof *run.changes);
    int64_t step = stopped_at(&run);
    run.epoch = 2;
    goes_on(&run, step, &whole);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), STEPS);
}

/* A relative folder counts from the run folder; --restore names folders. */
static void folders(void **state)
{
    (void)state;
    struct rig_result whole;
    struct rig_run run = run_of(1);
    undisturbed(&whole);
    run.changes[5] = "checkpoint.shared=shared";
    refused(&run, (const char *[]){"checkpoint.shared is shared", "absolute path", NULL});
    run.records = true;
    int64_t step = stopped_at(&run);
    assert_int_equal(newest(shared, -1, 0, NULL, 0), step);
    lose(local);
    run.epoch = 2;
    run.restore = shared;
    goes_on(&run, step, &whole);
}

static void bad_folders_are_named(void **state)
{
    (void)state;
    char key[400], path[300];
    struct rig_run run = run_of(1);
    run.changes[5] = key;
    snprintf(key, sizeof key, "checkpoint.shared=%s/not/there", folder);
    refused(&run, (const char *[]){"/not/there: the folder it is in", "mounted", NULL});

    snprintf(key, sizeof key, "checkpoint.shared=%s/tokens.bin", folder);
    refused(&run, (const char *[]){"tokens.bin is not a folder", NULL});

    snprintf(path, sizeof path, "%s/link", folder);
    assert_int_equal(symlink(folder, path), 0);
    snprintf(key, sizeof key, "checkpoint.shared=%s", path);
    refused(&run, (const char *[]){"link is a symbolic link", NULL});
    assert_int_equal(unlink(path), 0);

    if (geteuid() == 0) {
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof path, "%s/link/" RUN, folder);
        assert_int_equal(mkdir(path, 0777), 0);
        assert_int_equal(chown(path, 12345, 12345), 0);
        refused(&run, (const char *[]){"belongs to user 12345", NULL});
        snprintf(key, sizeof key, "checkpoint.shared=/proc/self");
        refused(&run, (const char *[]){"/proc/self", NULL});
    } else {
        snprintf(path, sizeof path, "%s/mine", folder);
        assert_int_equal(mkdir(path, 0500), 0);
        snprintf(key, sizeof key, "checkpoint.shared=%s", path);
        refused(&run, (const char *[]){"/mine/" RUN ": cannot be made", NULL});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nodes_are_gone, make, clear),
        cmocka_unit_test_setup_teardown(another_layout, make, clear),
        cmocka_unit_test_setup_teardown(last_only, make, clear),
        cmocka_unit_test_setup_teardown(local_is_newer, make, clear),
        cmocka_unit_test_setup_teardown(copies_stand_in, make, clear),
        cmocka_unit_test_setup_teardown(damaged_copy_falls_back, make, clear),
        cmocka_unit_test_setup_teardown(torn_log_falls_back, make, clear),
        cmocka_unit_test_setup_teardown(nothing_left_is_refused, make, clear),
        cmocka_unit_test_setup_teardown(away_when_it_is_needed_or_not, make, clear),
        cmocka_unit_test_setup_teardown(second_generation_first, make, clear),
        cmocka_unit_test_setup_teardown(shared_alone, make, clear),
        cmocka_unit_test_setup_teardown(folders, make, clear),
        cmocka_unit_test_setup_teardown(bad_folders_are_named, make, clear),
    };
    return cmocka_run_group_tests_name("train shared", tests, NULL, NULL);
}
