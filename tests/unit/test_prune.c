/* test_prune.c - what `gtrain ckpt prune` may drop, as a table and on a disk, cut anywhere. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "crash_shim.h"
#include "prune.h"

static void test_decision(void **unused)
{
    (void)unused;
    /* epoch 3 went on from epoch 2's step 20; step 40 of epoch 2 is committed but not whole here */
    const struct ckpt_key committed[] = {
        {3, 1, 30}, {3, 1, 25}, {2, 1, 40}, {2, 1, 20}, {1, 1, 10}};
    const struct ckpt_key good[] = {{3, 1, 30}, {3, 1, 25}, {2, 1, 20}, {1, 1, 10}};
    static const struct {
        enum name_kind kind;
        struct ckpt_key key;
        int n_good, keep;
        bool goes;
    } table[] = {
        {NAME_PART, {9, 9, 99}, 0, 2, true},
        {NAME_RESERVE, {3, 1, -1}, 0, 2, true},
        {NAME_LOG, {0, 0, 0}, 4, 2, false},
        {NAME_FOREIGN, {0, 0, 0}, 4, 2, false},
        {NAME_FILE, {3, 1, 30}, 4, 2, false},
        {NAME_FILE, {3, 1, 25}, 4, 2, false},
        {NAME_FILE, {2, 1, 40}, 4, 2, true},
        {NAME_FILE, {2, 1, 40}, 4, 3, false}, /* newer than the oldest that is kept */
        {NAME_FILE, {2, 1, 20}, 4, 3, false},
        {NAME_FILE, {1, 1, 10}, 4, 3, true},
        {NAME_FILE, {1, 1, 10}, 4, 5, false}, /* fewer are good than are kept */
        {NAME_FILE, {1, 1, 10}, 1, 2, false},
        {NAME_FILE, {3, 1, 35}, 4, 2, false}, /* no record: newer than all */
        {NAME_FILE, {3, 1, 27}, 4, 2, false}, /* between the two newest */
        {NAME_FILE, {2, 7, 99}, 4, 2, true},
        {NAME_FILE, {2, 7, 99}, 4, 9, true}, /* that more are kept does not help it */
        {NAME_FILE, {2, 7, 99}, 1, 2, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct prune_view view = {good, table[i].n_good, committed, 5};
        struct ckpt_name name = {.kind = table[i].kind, .key = table[i].key};
        bool goes = prune_decide(&view, table[i].keep, &name) != NULL;
        if (goes != table[i].goes)
            fail_msg("row %zu: goes is %d", i, goes);
    }
}

static void touch(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

static bool there(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return !access(path, F_OK);
}

/* One rank, keep 4: steps 10 to 40 committed by epoch 1, 50 finished but not committed. */
static void make_run(const char *dir)
{
    struct err err;
    struct ckpt *c;
    struct state s = {.n = 0};
    int64_t shape[] = {50, 20};
    state_add(&s, CKPT_F32, 2, shape);
    struct ckpt_io io = state_io(&s);
    struct ckpt_options o = help_options(dir, 1);
    o.keep = 4;
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    for (int64_t step = 10; step <= 40; step += 10) {
        state_fill(&s, step);
        ok(help_checkpoint(c, step, &err));
    }
    struct ckpt_position position = {50, 400};
    ok(ckpt_save(c, &position, NULL, &err));
    ok(ckpt_wait(c, help_soon(), &err));
    ckpt_close(c, help_soon());
    state_free(&s);
}

/* Beside the run: what dead writers left, and what is not ours. */
static const char *const ours[] = {
    "run-1.e1.g1.s60.r0.part", "run-1.e1.g1.r0.reserve", "run-1.n1.commits.new",
    "run-1.e1.g1.s15.r7.safetensors", /* never committed, older than the second-newest */
};
static const char *const foreign[] = {
    "notes.txt",
    "run-2.e1.g1.s60.r0.part",
    "run-1.e1.g1.s060.r0.part",
    "run-1.e1.g1.s60.r0.part.bak",
    "run-1.e1.g1.s60.r0.safetensors.new",
    "run-1.n1.commits.new.new",
};

static void litter(const char *dir)
{
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        touch(dir, ours[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        touch(dir, foreign[i]);
}

static void expect_newest(const char *dir, int64_t step)
{
    struct err err;
    struct ckpt_decision d;
    struct ckpt_file *f;
    ok(help_decide(dir, -1, &d, &err));
    assert_true(d.found);
    assert_int_equal(d.position.step, step);
    ok(ckpt_file_open(&f, d.places[0].path, &err));
    ok(ckpt_file_verify(f, &err));
    ckpt_file_close(f);
    ckpt_decision_free(&d);
}

static void expect_pruned(const char *dir)
{
    assert_false(there(dir, "run-1.e1.g1.s10.r0.safetensors"));
    assert_false(there(dir, "run-1.e1.g1.s20.r0.safetensors"));
    assert_true(there(dir, "run-1.e1.g1.s30.r0.safetensors"));
    assert_true(there(dir, "run-1.e1.g1.s40.r0.safetensors"));
    assert_true(there(dir, "run-1.e1.g1.s50.r0.safetensors"));
    assert_true(there(dir, "run-1.n1.commits"));
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (there(dir, ours[i]))
            fail_msg("%s is still there", ours[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (!there(dir, foreign[i]))
            fail_msg("%s is gone", foreign[i]);
    expect_newest(dir, 40);
}

static void test_disk(void **unused)
{
    (void)unused;
    char dir[256];
    struct err err;
    struct prune_result r;
    help_scratch(dir, NULL);
    make_run(dir);
    litter(dir);
    struct prune_options o = {.dir = dir, .run = "run-1", .keep = 2, .dry_run = true};
    ok(prune_folder(&o, &r, &err));
    assert_int_equal(r.files, 6);
    assert_true(there(dir, ours[0]) && there(dir, "run-1.e1.g1.s10.r0.safetensors"));
    o.dry_run = false;
    ok(prune_folder(&o, &r, &err));
    assert_int_equal(r.files, 6);
    assert_int_equal(r.good, 4);
    expect_pruned(dir);
    ok(prune_folder(&o, &r, &err));
    assert_int_equal(r.files, 0);
    o.keep = 1;
    refused(prune_folder(&o, &r, &err), "keep is 1: use 2");
    help_remove(dir);
}

/* The newest file is lost: what is left of that checkpoint counts for nothing, and stays. */
static void test_not_whole(void **unused)
{
    (void)unused;
    char dir[256], path[512];
    struct err err;
    struct prune_result r;
    help_scratch(dir, NULL);
    make_run(dir);
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s40.r0.safetensors", dir);
    assert_int_equal(truncate(path, 4096), 0);
    struct prune_options o = {.dir = dir, .run = "run-1", .keep = 2};
    ok(prune_folder(&o, &r, &err));
    assert_true(there(dir, "run-1.e1.g1.s40.r0.safetensors"));
    assert_true(there(dir, "run-1.e1.g1.s30.r0.safetensors"));
    assert_true(there(dir, "run-1.e1.g1.s20.r0.safetensors"));
    assert_false(there(dir, "run-1.e1.g1.s10.r0.safetensors"));
    expect_newest(dir, 30);
    help_remove(dir);
}

/* A writer has the folder open; a writer waits for who prunes. */
static void test_in_use(void **unused)
{
    (void)unused;
    char dir[256];
    struct err err;
    struct prune_result r;
    struct ckpt *c;
    struct state s = {.n = 0};
    int64_t shape[] = {10};
    help_scratch(dir, NULL);
    make_run(dir);
    state_add(&s, CKPT_F32, 1, shape);
    state_fill(&s, 60);
    struct ckpt_io io = state_io(&s);
    struct ckpt_options co = help_options(dir, 2);
    struct prune_options o = {.dir = dir, .run = "run-1", .keep = 2};
    ok(ckpt_open(&c, &co, s.tensors, s.n, &io, &err));
    refused(prune_folder(&o, &r, &err), "is in use by a run");
    assert_true(there(dir, "run-1.e1.g1.s10.r0.safetensors"));
    ckpt_close(c, help_soon());

    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    pid_t child = fork();
    if (!child) {
        usleep(100000); /* however long it takes: the open below waits */
        _exit(0);
    }
    close(fd); /* the child holds it now */
    co.epoch = 3;
    ok(ckpt_open(&c, &co, s.tensors, s.n, &io, &err));
    int status;
    assert_int_equal(waitpid(child, &status, WNOHANG) >= 0, 1);
    ckpt_close(c, help_soon());
    waitpid(child, &status, 0);
    ok(prune_folder(&o, &r, &err));
    state_free(&s);
    help_remove(dir);
}

/* Killed at every system call: the newest checkpoint is always there, and a second try ends. */
static void test_cut(void **unused)
{
    (void)unused;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (int at = 0, killed = 1; killed; at++) {
        char dir[256];
        struct err err;
        struct prune_result r;
        help_scratch(dir, NULL);
        make_run(dir);
        litter(dir);
        memset(shared, 0, sizeof *shared);
        struct shim shim = {.fault = FAULT_KILL, .at = at, .length = 1, .shared = shared};
        struct ckpt_hook hook = {shim_allow, &shim};
        struct prune_options o = {.dir = dir, .run = "run-1", .keep = 2, .hook = &hook};
        pid_t child = fork();
        if (!child)
            _exit(prune_folder(&o, &r, &err) ? 1 : 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        killed = WIFSIGNALED(status);
        if (!killed)
            assert_int_equal(WEXITSTATUS(status), 0);
        expect_newest(dir, 40);
        assert_true(there(dir, "run-1.e1.g1.s30.r0.safetensors"));
        o.hook = NULL;
        ok(prune_folder(&o, &r, &err));
        expect_pruned(dir);
        help_remove(dir);
        assert_true(at < 30);
    }
    munmap(shared, sizeof *shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decision),  cmocka_unit_test(test_disk),
        cmocka_unit_test(test_not_whole), cmocka_unit_test(test_in_use),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests_name("prune", tests, NULL, NULL);
}
