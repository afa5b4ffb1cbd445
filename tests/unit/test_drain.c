/* test_drain.c - copies to the shared folder: pace, hold, cancel, what is refused and what failed.
 * Cuts at every system call are in tests/crash/test_drain_crash.c. */
#include "ckpt_help.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "drain.h"
#include "drain_impl.h"

struct scene {
    char root[256], local[300], above[300], shared[300];
    struct state state;
    struct ckpt_io io;
    struct ckpt *ckpt;
    struct ckpt_drain_options options;
    char *record; /* of the newest local commit */
};

static void open_scene(struct scene *s)
{
    struct err err;
    int64_t shape[] = {500000}; /* two blocks of CRC */
    memset(s, 0, sizeof *s);
    help_scratch(s->root, NULL);
    snprintf(s->local, sizeof s->local, "%s/local", s->root);
    snprintf(s->above, sizeof s->above, "%s/above", s->root);
    snprintf(s->shared, sizeof s->shared, "%s/above/run-1", s->root);
    state_add(&s->state, CKPT_F32, 1, shape);
    s->io = state_io(&s->state);
    struct ckpt_options o = help_options(s->local, 1);
    o.holds = true;
    ok(ckpt_open(&s->ckpt, &o, s->state.tensors, s->state.n, &s->io, &err));
    ok(ckpt_shared_make(s->above, "run-1", &err));
    s->options = (struct ckpt_drain_options){.from = s->local,
                                             .to = s->shared,
                                             .run_id = "run-1",
                                             .world = 1,
                                             .epoch = 1,
                                             .generation = 1,
                                             .keep = 2,
                                             .total_bytes = 2000000,
                                             .leader = true};
}

static void close_scene(struct scene *s)
{
    ckpt_close(s->ckpt, help_soon());
    state_free(&s->state);
    free(s->record);
    help_remove(s->root);
}

static void commit(struct scene *s, int64_t step)
{
    struct err err;
    struct ckpt_position position = {step, step * 8};
    free(s->record);
    state_fill(&s->state, step);
    ok(ckpt_save(s->ckpt, &position, NULL, &err));
    ok(ckpt_wait(s->ckpt, help_soon(), &err));
    char *claim = ckpt_claim(s->ckpt, step, &err);
    assert_non_null(claim);
    s->record = ckpt_record((const char *const *)&claim, 1, &err);
    ok(ckpt_commit(s->ckpt, step, s->record, &err));
    ok(ckpt_wait(s->ckpt, help_soon(), &err));
    free(claim);
}

static bool has_step(const char *dir, int step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s%d.r0.safetensors", dir, step);
    return !access(path, F_OK);
}

static void copy_well(struct scene *s, struct ckpt_drain *d)
{
    struct err err;
    int64_t step;
    ok(ckpt_drain_start(d, s->record, &err));
    assert_true(ckpt_drain_wait(d, help_soon()));
    if (ckpt_drain_poll(d, &step, NULL, &err) != CKPT_DRAIN_DONE)
        fail_msg("the copy failed: %s", err.text);
    ok(ckpt_drain_commit(d, &err));
    assert_true(ckpt_drain_wait(d, help_soon()));
    int64_t there;
    ok(ckpt_drain_committed(d, &there, &err));
    assert_int_equal(there, step);
}

/* At a byte a second the copy stands still until somebody waits for it; the local file stays as
 * long, whatever is committed meanwhile. */
static void test_pace_and_hold(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    int64_t bytes;
    open_scene(&s);
    s.options.bytes_per_s = 1;
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 1);
    ckpt_hold(s.ckpt, 1);
    ok(ckpt_drain_start(d, s.record, &err));
    refused(ckpt_drain_start(d, s.record, &err), "still going");
    refused(ckpt_drain_commit(d, &err), "when it is complete");
    for (int64_t step = 2; step <= 5; step++)
        commit(&s, step);
    assert_true(has_step(s.local, 1) && has_step(s.local, 4) && has_step(s.local, 5));
    assert_false(has_step(s.local, 2) || has_step(s.local, 3));
    assert_int_equal(ckpt_drain_poll(d, NULL, &bytes, NULL), CKPT_DRAIN_COPYING);
    assert_in_range(bytes, 0, 1 << 20);
    assert_false(has_step(s.shared, 1));

    ckpt_drain_hurry(d);
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_int_equal(ckpt_drain_poll(d, NULL, NULL, &err), CKPT_DRAIN_DONE);
    assert_true(has_step(s.shared, 1));
    ckpt_hold(s.ckpt, -1);
    commit(&s, 6);
    assert_false(has_step(s.local, 1));
    ckpt_drain_close(d);
    close_scene(&s);
}

static void test_cancel(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    open_scene(&s);
    s.options.bytes_per_s = 1;
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 1);
    ok(ckpt_drain_start(d, s.record, &err));
    ckpt_drain_close(d);
    assert_int_equal(help_count(s.shared, ".part"), 0);
    assert_int_equal(help_count(s.shared, ".safetensors"), 0);
    close_scene(&s);
}

/* What another rank could not copy leaves nothing here, and is copied anew when asked for again. */
static void test_abandon(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    open_scene(&s);
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 1);
    ok(ckpt_drain_start(d, s.record, &err));
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_true(has_step(s.shared, 1));
    ckpt_drain_abandon(d);
    refused(ckpt_drain_commit(d, &err), "when it is complete");
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_false(has_step(s.shared, 1));
    copy_well(&s, d);
    ckpt_drain_abandon(d); /* not for what is committed */
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_true(has_step(s.shared, 1));
    ok(ckpt_drain_start(d, s.record, &err));
    ckpt_drain_abandon(d); /* nor while it is copied */
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_true(has_step(s.shared, 1));
    ckpt_drain_close(d);
    close_scene(&s);
}

/* Writes fail, and nothing is taken back. */
static ssize_t allow_unless_down(void *down, enum ckpt_op op, size_t bytes)
{
    return *(atomic_bool *)down && (op == CKPT_OP_WRITE || op == CKPT_OP_UNLINK) ? -EIO
                                                                                 : (ssize_t)bytes;
}

static void copy_badly(struct scene *s, struct ckpt_drain *d, const char *why)
{
    struct err err = {""};
    ok(ckpt_drain_start(d, s->record, &err));
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_int_equal(ckpt_drain_poll(d, NULL, NULL, &err), CKPT_DRAIN_FAILED);
    if (!strstr(err.text, why))
        fail_msg("the copy failed with '%s', not '...%s...'", err.text, why);
}

/* However often a folder fails, one half lies there at most, and none once it works again. One that
 * went away and came back is opened again, and never made below its place. */
static void test_trouble(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    atomic_bool down = false;
    struct ckpt_hook hook = {allow_unless_down, &down};
    char away[512];
    open_scene(&s);
    ok(ckpt_drain_open_hooked(&d, &s.options, &hook, &err));
    commit(&s, 1);
    copy_well(&s, d);
    atomic_store(&down, true);
    commit(&s, 2);
    copy_badly(&s, d, "writing at byte");
    commit(&s, 3);
    copy_badly(&s, d, "s2.r0.part: cannot drop it");
    assert_int_equal(help_count(s.shared, ".part"), 1);
    atomic_store(&down, false);
    copy_well(&s, d);
    assert_int_equal(help_count(s.shared, ".part"), 0);

    atomic_store(&down, true);
    copy_badly(&s, d, "writing at byte");
    snprintf(away, sizeof away, "%s/away", s.root);
    assert_int_equal(rename(s.above, away), 0);
    copy_badly(&s, d, "cannot drop it");
    assert_int_equal(access(s.above, F_OK), -1);
    ok(ckpt_shared_make(s.above, "run-1", &err));
    atomic_store(&down, false);
    commit(&s, 4);
    copy_well(&s, d);
    assert_true(has_step(s.shared, 4));
    ckpt_drain_close(d);
    close_scene(&s);
}

/* A folder that was there before and is not now fails copies, not the opening; once it is back,
 * retention counts what earlier writers have committed. */
static void test_later(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    char away[512];
    open_scene(&s);
    s.options.keep = 3;
    ok(ckpt_drain_open(&d, &s.options, &err));
    for (int64_t step = 1; step <= 2; step++) {
        commit(&s, step);
        copy_well(&s, d);
    }
    ckpt_drain_close(d);
    snprintf(away, sizeof away, "%s/away", s.root);
    assert_int_equal(rename(s.above, away), 0);
    refused(ckpt_drain_open(&d, &s.options, &err), "above/run-1");
    s.options.later = true;
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 3);
    copy_badly(&s, d, "above/run-1");
    ckpt_drain_abandon(d);
    assert_int_equal(access(s.above, F_OK), -1);
    assert_int_equal(rename(away, s.above), 0);
    for (int64_t step = 4; step <= 5; step++) {
        commit(&s, step);
        copy_well(&s, d);
        assert_int_equal(has_step(s.shared, 1), step == 4);
        assert_true(has_step(s.shared, 2) && has_step(s.shared, (int)step));
    }
    ckpt_drain_close(d);
    close_scene(&s);
}

/* What a start went back behind stays until `keep` of its own stand, as does what it went back to.
 */
static void test_passed_over(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    open_scene(&s);
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 1);
    copy_well(&s, d);
    char *first = strdup(s.record);
    commit(&s, 2);
    copy_well(&s, d);
    ckpt_drain_close(d);
    ok(ckpt_drain_open(&d, &s.options, &err));
    ok(ckpt_drain_adopt(d, first, &err));
    commit(&s, 3);
    copy_well(&s, d);
    assert_true(has_step(s.shared, 1) && has_step(s.shared, 2) && has_step(s.shared, 3));
    commit(&s, 4);
    copy_well(&s, d);
    assert_false(has_step(s.shared, 1) || has_step(s.shared, 2));
    ckpt_drain_close(d);
    free(first);
    close_scene(&s);
}

/* keep 1, 2 and 0; what is foreign or of a later writer stays. */
static void test_retention(void **unused)
{
    (void)unused;
    static const char *const strangers[] = {"other-run.e1.g1.s1.r0.safetensors", "notes.txt",
                                            "run-1.e9.g1.s1.r0.safetensors",
                                            "run-1.e9.g1.s2.r0.part"};
    for (int keep = 0; keep <= 2; keep++) {
        struct err err;
        struct scene s;
        struct ckpt_drain *d;
        char path[512];
        open_scene(&s);
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%s", s.shared, strangers[i]);
            close(open(path, O_CREAT | O_WRONLY, 0666));
        }
        s.options.keep = keep;
        ok(ckpt_drain_open(&d, &s.options, &err));
        for (int64_t step = 1; step <= 4; step++) {
            commit(&s, step);
            copy_well(&s, d);
        }
        for (int step = 1; step <= 4; step++)
            assert_int_equal(has_step(s.shared, step), !keep || step > 4 - keep);
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%s", s.shared, strangers[i]);
            assert_int_equal(access(path, F_OK), 0);
        }
        ckpt_drain_close(d);
        close_scene(&s);
    }
}

/* A bit that turned on the local disk is found before it is a copy. */
static void test_damaged_source(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    char path[512], byte;
    open_scene(&s);
    ok(ckpt_drain_open(&d, &s.options, &err));
    commit(&s, 1);
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s1.r0.safetensors", s.local);
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, 1500000), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 1500000), 1);
    close(fd);
    ok(ckpt_drain_start(d, s.record, &err));
    assert_true(ckpt_drain_wait(d, help_soon()));
    assert_int_equal(ckpt_drain_poll(d, NULL, NULL, &err), CKPT_DRAIN_FAILED);
    assert_non_null(strstr(err.text, "damaged"));
    assert_int_equal(help_count(s.shared, ".safetensors"), 0);
    assert_int_equal(help_count(s.shared, ".part"), 0);
    refused(ckpt_drain_commit(d, &err), "when it is complete");
    commit(&s, 2); /* and the next one is copied as if nothing had been */
    copy_well(&s, d);
    ckpt_drain_close(d);
    close_scene(&s);
}

static void test_refusals(void **unused)
{
    (void)unused;
    struct err err;
    struct scene s;
    struct ckpt_drain *d;
    char path[512];
    open_scene(&s);
    s.options.total_bytes = INT64_C(1) << 60;
    refused(ckpt_drain_open(&d, &s.options, &err), "too few: choose another folder or a lower");
    snprintf(path, sizeof path, "%s/nothing/here", s.root);
    refused(ckpt_shared_make(path, "run-1", &err), "is the file system mounted?");
    refused(ckpt_shared_see(path, clock_ms() + 60, &err), "all nodes must see the same");
    snprintf(path, sizeof path, "%s/link", s.root);
    assert_int_equal(symlink(s.above, path), 0);
    refused(ckpt_shared_make(path, "run-1", &err), "symbolic link");
    snprintf(path, sizeof path, "%s/above/run-2", s.root);
    assert_int_equal(symlink(s.shared, path), 0);
    refused(ckpt_shared_make(s.above, "run-2", &err), "symbolic link");
    ok(ckpt_shared_see(s.shared, clock_ms() + 60, &err));
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace_and_hold), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_abandon),       cmocka_unit_test(test_trouble),
        cmocka_unit_test(test_later),         cmocka_unit_test(test_retention),
        cmocka_unit_test(test_passed_over),   cmocka_unit_test(test_damaged_source),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("drain", tests, NULL, NULL);
}
