/* test_ckpt.c - the engine from save to restore: bits, order, retention, refusals. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const int64_t shapes[][3] = {{64, 128}, {1}, {3, 5, 7}, {0, 9}, {1000003}, {4096}, {513}};

static void small_state(struct state *s)
{
    memset(s, 0, sizeof *s);
    state_add(s, CKPT_F32, 2, shapes[0]);
    state_add(s, CKPT_F64, 1, shapes[1]);
    state_add(s, CKPT_BF16, 3, shapes[2]);
    state_add(s, CKPT_F32, 2, shapes[3]);
    state_add(s, CKPT_F64, 0, NULL);
    state_add(s, CKPT_F32, 1, shapes[4]);
    state_add(s, CKPT_I64, 1, shapes[5]);
    state_add(s, CKPT_BF16, 1, shapes[6]);
}

/* Save, commit, decide, open anew, restore: the same bits, the same position. */
static void round_trip(struct state *s, bool no_uring, int64_t block, int depth)
{
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_decision d;
    struct ckpt_file *f;
    struct ckpt_position position;
    struct ckpt_io io = state_io(s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    o.no_uring = no_uring;
    o.block_bytes = block;
    o.queue_depth = depth;
    ok(ckpt_open(&c, &o, s->tensors, s->n, &io, &err));
    state_fill(s, 100);
    ok(help_checkpoint(c, 100, &err));
    ckpt_close(c, help_soon());

    ok(help_decide(dir, -1, &d, &err));
    assert_true(d.found);
    assert_int_equal(d.position.step, 100);
    assert_int_equal(d.position.samples, 800);
    assert_int_equal(d.epoch, 1);
    assert_int_equal(d.world, 1);
    assert_int_equal(d.plan_hash, UINT64_C(0x123456789abcdef0));
    assert_string_equal(d.report, "");
    o.epoch = d.epoch + 1;
    ok(ckpt_open(&c, &o, s->tensors, s->n, &io, &err));
    state_fill(s, 1);
    ok(ckpt_file_open(&f, d.places[0].path, &err));
    assert_int_equal(ckpt_file_digest(f), d.places[0].digest);
    ok(ckpt_restore(c, f, &position, &err));
    assert_int_equal(state_differs(s, 100), -1);
    assert_int_equal(position.step, 100);
    assert_int_equal(position.samples, 800);
    ok(ckpt_adopt(c, d.record, &err));
    ckpt_file_close(f);
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(dir, ".reserve"), 0);
    assert_int_equal(help_count(dir, ".part"), 0);
    ckpt_decision_free(&d);
    help_remove(dir);
}

static void test_round_trip_uring(void **unused)
{
    (void)unused;
    struct state s;
    small_state(&s);
    round_trip(&s, false, 0, 0);
    round_trip(&s, false, 4096, 3);
    round_trip(&s, false, 3 * 4096, 64);
    state_free(&s);
}

static void test_round_trip_threads(void **unused)
{
    (void)unused;
    struct state s;
    small_state(&s);
    round_trip(&s, true, 0, 0);
    round_trip(&s, true, 8192, 4);
    state_free(&s);
}

static void test_round_trip_many_small(void **unused)
{
    (void)unused;
    static struct state s;
    s.n = 0;
    for (int i = 0; i < 1000; i++) {
        int64_t n = i % 17;
        state_add(&s, (enum ckpt_dtype)(i % HELP_DTYPES), 1, &n);
    }
    round_trip(&s, false, 0, 0);
    state_free(&s);
}

static void test_round_trip_empty(void **unused)
{
    (void)unused;
    struct state s = {.n = 0};
    int64_t n = 0;
    state_add(&s, CKPT_F32, 1, &n);
    round_trip(&s, false, 0, 0);
    state_free(&s);
}

/* A file that came over the network: the same reader, from memory. */
static void test_restore_from_memory(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], path[512];
    struct ckpt *c;
    struct ckpt_file *f;
    struct ckpt_position position;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    state_fill(&s, 7);
    ok(help_checkpoint(c, 7, &err));
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s7.r0.safetensors", dir);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    static unsigned char bytes[8 << 20];
    size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    ok(ckpt_file_open_memory(&f, bytes, n, &err));
    state_fill(&s, 1);
    ok(ckpt_restore(c, f, &position, &err));
    assert_int_equal(state_differs(&s, 7), -1);
    for (int i = 0; i < s.n; i++) { /* one by one, too */
        struct ckpt_tensor t;
        assert_int_equal(ckpt_file_tensor(f, i, &t), 0);
        int which = atoi(t.name + strlen("layers."));
        unsigned char *host = malloc((size_t)s.sizes[which] + 1);
        ok(ckpt_file_read(f, i, host, &err));
        assert_memory_equal(host, s.bytes[which], (size_t)s.sizes[which]);
        free(host);
    }
    assert_int_equal(ckpt_file_count(f), s.n);
    ckpt_file_close(f);
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

/* The newest two committed stay, and what is not committed does not count. */
static void test_retention(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_decision d;
    struct ckpt_position position = {60, 480};
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    for (int64_t step = 10; step <= 50; step += 10) {
        state_fill(&s, step);
        ok(help_checkpoint(c, step, &err));
        ok(ckpt_wait(c, help_soon(), &err));
        assert_int_equal(help_count(dir, ".safetensors"), step == 10 ? 1 : 2);
        assert_int_equal(help_count(dir, ".reserve"), 1);
    }
    ok(ckpt_save(c, &position, NULL, &err)); /* finished, never committed */
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(dir, ".safetensors"), 3);
    ok(help_decide(dir, -1, &d, &err));
    assert_int_equal(d.position.step, 50);
    ckpt_decision_free(&d);
    ok(help_decide(dir, 49, &d, &err));
    assert_int_equal(d.position.step, 40);
    ckpt_decision_free(&d);
    ok(help_decide(dir, 30, &d, &err));
    assert_false(d.found);
    assert_int_equal(d.epoch, 1);
    assert_non_null(strstr(d.report, "rank 0's file on n1 is missing"));
    ckpt_decision_free(&d);

    o.epoch = 2; /* a lower step of a later epoch is newer */
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 45, &err));
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(dir, ".safetensors"), 2);
    ok(help_decide(dir, -1, &d, &err));
    assert_int_equal(d.position.step, 45);
    assert_int_equal(d.epoch, 2);
    ckpt_decision_free(&d);
    state_free(&s);
    help_remove(dir);
}

static ssize_t no_room(void *room, enum ckpt_op op, size_t bytes)
{
    return op == CKPT_OP_ROOM && !*(bool *)room ? 0 : (ssize_t)bytes;
}

/* After a restore from an older record, that record's files outlive `keep` newer commits; but no
 * longer than there is space for what a partner and a group put beside this rank's. files: of own
 * checkpoints, after two commits. */
static void spare_the_restored(const struct ckpt_options *others, bool room, int files)
{
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_decision d;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_hook hook = {.allow = no_room, .arg = &room};
    struct ckpt_options o = help_options(dir, 1);
    o.ahead = others->ahead;
    o.wards = others->wards;
    o.ward = others->ward;
    o.parity_bytes = others->parity_bytes;
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 10, &err));
    ok(help_checkpoint(c, 20, &err));
    ckpt_close(c, help_soon());
    ok(help_decide(dir, 10, &d, &err)); /* say 20 turned out to be damaged */
    assert_int_equal(d.position.step, 10);
    o.epoch = 2;
    ok(ckpt_open_hooked(&c, &o, s.tensors, s.n, &io, &hook, &err));
    ok(ckpt_adopt(c, d.record, &err));
    ckpt_decision_free(&d);
    ok(help_checkpoint(c, 11, &err));
    ok(ckpt_wait(c, help_soon(), &err));
    ok(help_decide(dir, 10, &d, &err));
    assert_true(d.found);
    ckpt_decision_free(&d);
    ok(help_checkpoint(c, 12, &err));
    ok(ckpt_wait(c, help_soon(), &err));
    /* so near to 10, it may yet be wanted */
    assert_int_equal(help_count(dir, ".safetensors"), files);
    ok(help_checkpoint(c, 10 + CKPT_TRIAL_STEPS, &err));
    ok(ckpt_wait(c, help_soon(), &err));
    assert_int_equal(help_count(dir, ".safetensors"), 2);
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

static void test_retention_spares_the_restored(void **unused)
{
    (void)unused;
    static const struct {
        struct ckpt_options others;
        bool room;
        int files;
    } table[] = {
        {{.wards = false}, true, 3},
        {{.wards = false}, false, 3}, /* its own next file is reserved: there is nothing to ask */
        {{.wards = true, .ward = 1}, true, 3},
        {{.wards = true, .ward = 1}, false, 2},
        {{.parity_bytes = 4096}, true, 3},
        {{.parity_bytes = 4096}, false, 2},
        {{.ahead = 1}, true, 3},
        {{.ahead = 1}, false, 2},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        spare_the_restored(&table[i].others, table[i].room, table[i].files);
}

static void touch(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

/* What a dead predecessor left half-made goes; another run's, another rank's, anybody's stays. */
/* A disk that holds so many files beside the next one. */
struct tight {
    const char *dir;
    int files;
};

static ssize_t tight_allow(void *arg, enum ckpt_op op, size_t bytes)
{
    const struct tight *t = arg;
    bool full = op == CKPT_OP_RESERVE && help_count(t->dir, ".safetensors") > t->files;
    return full ? -ENOSPC : (ssize_t)bytes;
}

/* Goes on from step 2, saves steps 3 and 4 and dies before they are committed. */
static void save_two_more(struct ckpt_options *o, struct state *s, const struct ckpt_hook *hook)
{
    struct err err;
    struct ckpt *c;
    struct ckpt_decision d;
    struct ckpt_io io = state_io(s);
    int64_t finished;
    ok(help_decide(o->dir, -1, &d, &err));
    assert_int_equal(d.position.step, 2);
    o->epoch = d.epoch + 1;
    ok(ckpt_open_hooked(&c, o, s->tensors, s->n, &io, hook, &err));
    ok(ckpt_adopt(c, d.record, &err));
    ckpt_decision_free(&d);
    for (int64_t step = 3; step <= 4; step++) {
        ok(ckpt_save(c, &(struct ckpt_position){step, step}, NULL, &err));
        ok(ckpt_wait(c, help_soon(), &err));
        ok(ckpt_finished(c, &finished, &err));
        assert_int_equal(finished, step);
    }
    ckpt_close(c, help_soon());
}

/* What a dead writer has left finished and not committed stays while there is space, and is no
 * reason to fail where there is none; what is committed is not dropped for it. */
static void test_abandoned_files_make_room(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct tight tight = {.dir = dir, .files = 4};
    struct ckpt_hook hook = {.allow = tight_allow, .arg = &tight};
    struct ckpt_options o = help_options(dir, 1);
    o.ahead = 1;
    ok(ckpt_open_hooked(&c, &o, s.tensors, s.n, &io, &hook, &err));
    ok(help_checkpoint(c, 1, &err));
    ok(help_checkpoint(c, 2, &err));
    ckpt_close(c, help_soon());
    save_two_more(&o, &s, &hook);
    assert_int_equal(help_count(dir, ".e1.g1.s1.r0.safetensors"), 1);
    assert_int_equal(help_count(dir, ".safetensors"), 4); /* there was space for all */
    save_two_more(&o, &s, &hook);
    assert_int_equal(help_count(dir, ".e1.g1.s1.r0.safetensors"), 1);
    assert_int_equal(help_count(dir, ".e1.g1.s2.r0.safetensors"), 1);
    assert_int_equal(help_count(dir, ".e3.g1.s3.r0.safetensors"), 1);
    assert_int_equal(help_count(dir, ".e3.g1.s4.r0.safetensors"), 1);
    assert_int_equal(help_count(dir, ".safetensors"), 4);
    state_free(&s);
    help_remove(dir);
}

static void test_foreign_files_stay(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        bool stays;
    } files[] = {
        {"run-1.e1.g1.s5.r0.part", false},
        {"run-1.e1.g1.r0.reserve", false},
        {"run-1.e0.g9.s5.r0.safetensors", false},
        {"run-1.e1.g1.s5.r1.part", true},
        {"run-2.e1.g1.s5.r0.part", true},
        {"run-2.e1.g1.s5.r0.safetensors", true},
        {"run-1.e01.g1.s5.r0.part", true},
        {"run-1.e1.g1.s5.r0.part~", true},
        {"run-1.e1.g1.s5.r0", true},
        {"notes.txt", true},
        {".hidden", true},
    };
    struct err err;
    char dir[256], sub[512], path[1024];
    struct ckpt *c;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        touch(dir, files[i].name);
    snprintf(sub, sizeof sub, "%s/run-1.e1.g1.s6.r0.part", dir); /* a folder, not ours */
    assert_int_equal(mkdir(sub, 0700), 0);
    struct ckpt_options o = help_options(dir, 2);
    o.world = 2;
    o.leader = false;
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    assert_int_equal(help_count(dir, ".reserve"), 1); /* its own; half-made ones go at once */
    snprintf(path, sizeof path, "%s/%s", dir, files[0].name);
    assert_int_equal(access(path, F_OK), -1);
    struct ckpt_position position = {1, 8};
    ok(ckpt_save(c, &position, NULL, &err));
    ok(ckpt_wait(c, help_soon(), &err));
    ok(ckpt_commit(c, 1, NULL, &err));
    ckpt_close(c, help_soon());
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        if (files[i].stays != !access(path, F_OK))
            fail_msg("%s %s", files[i].name, files[i].stays ? "is gone" : "is still there");
    }
    assert_int_equal(access(sub, F_OK), 0);
    state_free(&s);
    help_remove(dir);
}

/* Each refusal names its reason before the first save. */
static void test_open_refusals(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], path[512], deep[600];
    struct ckpt *c;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1), bad;
#define open_bad() ckpt_open(&c, &bad, s.tensors, s.n, &io, &err)
    bad = o, bad.keep = 1;
    refused(open_bad(), "keep is 1");
    bad = o, bad.rank = 1;
    refused(open_bad(), "rank 1 in a world of 1");
    bad = o, bad.run_id = "Run";
    refused(open_bad(), "run id is 'Run'");
    bad = o, bad.node = "a/b";
    refused(open_bad(), "node's name is 'a/b'");
    bad = o, bad.block_bytes = 1000;
    refused(open_bad(), "block_bytes is 1000");
    bad = o, bad.queue_depth = 100000;
    refused(open_bad(), "queue_depth is 100000");
    refused(ckpt_open(&c, &o, s.tensors, 0, &io, &err), "no tensors");
    struct ckpt_tensor wrong = s.tensors[0];
    wrong.offset[0] = 1;
    refused(ckpt_open(&c, &o, &wrong, 1, &io, &err), "not inside the global size 64");
    struct ckpt_tensor twice[] = {s.tensors[0], s.tensors[0]};
    refused(ckpt_open(&c, &o, twice, 2, &io, &err), "registered twice");
    twice[1].offset[0] = 1, twice[1].shape[0] = 1; /* another slice of the same: yes; */
    ok(ckpt_open(&c, &o, twice, 2, &io, &err));
    ckpt_close(c, help_soon());
    twice[1].dtype = CKPT_I64; /* of another array of that name: no */
    refused(ckpt_open(&c, &o, twice, 2, &io, &err), "two dtypes or global shapes");
    wrong = s.tensors[0], wrong.global[0] = wrong.shape[0] = INT64_C(1) << 40;
    refused(ckpt_open(&c, &o, &wrong, 1, &io, &err), "use more ranks"); /* and at once */
    wrong = s.tensors[0], wrong.name = "a b";
    refused(ckpt_open(&c, &o, &wrong, 1, &io, &err), "named 'a b'");

    snprintf(path, sizeof path, "%s/link", dir);
    assert_int_equal(symlink(dir, path), 0);
    bad = o, bad.dir = path;
    refused(open_bad(), "is a symbolic link");
    snprintf(deep, sizeof deep, "%s/link/", dir);
    bad.dir = deep;
    refused(open_bad(), "is a symbolic link");
    touch(dir, "file");
    snprintf(path, sizeof path, "%s/file", dir);
    bad.dir = path;
    refused(open_bad(), "is not a folder");
    snprintf(path, sizeof path, "%s/file/sub", dir);
    refused(open_bad(), "Not a directory");
    bad.dir = "/proc/self/gtrain";
    refused(open_bad(), "cannot make gtrain");

    snprintf(path, sizeof path, "%s/a/b/c", dir); /* missing folders are made */
    bad.dir = path;
    ok(open_bad());
    struct ckpt *second;
    refused(ckpt_open(&second, &bad, s.tensors, s.n, &io, &err),
            "a new start needs a higher epoch");
    ok(help_checkpoint(c, 1, &err));
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(path, ".reserve"), 0);
    refused(ckpt_open(&second, &bad, s.tensors, s.n, &io, &err), "a new start needs a higher");
    bad.epoch++;
    snprintf(deep, sizeof deep, "%s/run-1.n1.commits", path);
    assert_int_equal(remove(deep), 0); /* not told by the first commit, but by now */
    assert_int_equal(symlink("../elsewhere", deep), 0);
    refused(open_bad(), "run-1.n1.commits is not a file of user");
    assert_int_equal(help_count(path, ".reserve"), 0);
#undef open_bad
    state_free(&s);
    help_remove(dir);
}

/* A limit on the size of files is told, not met by a signal that ends the process. */
static void test_file_size_limit(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct rlimit old, few;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 1, &err));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    few = old, few.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    int rv = help_checkpoint(c, 2, &err); /* a file was reserved, but the log may not grow */
    ckpt_close(c, help_soon());
    o.epoch++;
    int second = ckpt_open(&c, &o, s.tensors, s.n, &io, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rv, -1);
    assert_int_equal(second, -1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    rv = ckpt_open(&c, &o, s.tensors, s.n, &io, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rv, -1);
    assert_non_null(strstr(err.text, "(ulimit -f)"));
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 3, &err));
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

static void test_not_owned(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct state s;
    if (geteuid()) /* only root can give a folder away; cmocka's skip() is no TAP skip */
        return;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    assert_int_equal(chown(dir, 12345, (gid_t)-1), 0);
    struct ckpt_options o = help_options(dir, 1);
    refused(ckpt_open(&c, &o, s.tensors, s.n, &io, &err), "belongs to user 12345");
    state_free(&s);
    help_remove(dir);
}

/* A tensor larger than any disk: refused for its size before memory is asked for. */
static void test_no_space(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt_tensor t = {.name = "w", .dtype = CKPT_F32, .dims = 1};
    t.global[0] = t.shape[0] = INT64_C(1) << 40; /* 4 TiB: its checksums still fit a header */
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    refused(ckpt_open(&c, &o, &t, 1, &io, &err), "are free");
    assert_int_equal(help_count(dir, ".reserve"), 0);
    help_remove(dir);
}

/* What a file system may answer while a folder is opened: [op] fails with this, and the text says.
 */
struct answer {
    enum ckpt_op op;
    int errnum;
    const char *text;
};

static ssize_t answer_allow(void *arg, enum ckpt_op op, size_t bytes)
{
    const struct answer *a = arg;
    return op == a->op ? -a->errnum : (ssize_t)bytes;
}

static void test_open_answers(void **unused)
{
    (void)unused;
    static const struct answer answers[] = {
        {CKPT_OP_OPEN, EROFS, "Read-only file system"},
        {CKPT_OP_OPEN, EACCES, "Permission denied"},
        {CKPT_OP_RESERVE, ENOSPC, "cannot reserve"},
        {CKPT_OP_RESERVE, EDQUOT, "Disk quota exceeded"},
    };
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct ckpt_hook hook = {.allow = answer_allow, .arg = (void *)&answers[i]};
        refused(ckpt_open_hooked(&c, &o, s.tensors, s.n, &io, &hook, &err), answers[i].text);
        if (!strstr(err.text, dir))
            fail_msg("the folder is not named: %s", err.text);
        assert_int_equal(help_count(dir, ".reserve"), 0);
    }
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

static void test_save_refusals(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_position position = {5, 40}, early = {5, 48};
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(ckpt_save(c, &position, NULL, &err));
    refused(ckpt_save(c, &early, NULL, &err), "cannot be saved after step 5");
    ok(ckpt_wait(c, help_soon(), &err));
    assert_null(ckpt_claim(c, 6, &err));
    refused(ckpt_commit(c, 5, NULL, &err), "leader needs the record");
    refused(ckpt_commit(c, 5, "commit v=1", &err), "words are missing");
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

static int count_lines(const char *dir, const char *name)
{
    char path[512];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

/* Ranks of one folder: a record names each rank's file; a lost one makes it unusable. */
static void test_two_ranks(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], *claims[2];
    struct ckpt *c[2];
    struct ckpt_decision d;
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    for (int r = 0; r < 2; r++) {
        struct ckpt_options o = help_options(dir, 1);
        o.world = 2;
        o.rank = r;
        o.leader = r == 0;
        ok(ckpt_open(&c[r], &o, s.tensors, s.n, &io, &err));
    }
    for (int64_t step = 1; step <= 2; step++) {
        struct ckpt_position position = {step, step};
        for (int r = 0; r < 2; r++) {
            state_fill(&s, step * 10 + r);
            ok(ckpt_save(c[r], &position, NULL, &err));
            ok(ckpt_wait(c[r], help_soon(), &err));
            assert_non_null(claims[r] = ckpt_claim(c[r], step, &err));
        }
        char *record = ckpt_record((const char *const *)claims, 2, &err);
        assert_non_null(record);
        for (int r = 0; r < 2; r++) {
            ok(ckpt_commit(c[r], step, record, &err));
            free(claims[r]);
        }
        ok(ckpt_commit(c[0], step, record, &err)); /* once more: it stands there already */
        assert_int_equal(count_lines(dir, "run-1.n1.commits"), step);
        free(record);
    }
    ckpt_close(c[0], help_soon());
    ckpt_close(c[1], help_soon());
    ok(help_decide(dir, -1, &d, &err));
    assert_int_equal(d.position.step, 2);
    assert_int_equal(d.world, 2);
    for (int r = 0; r < 2; r++) {
        struct ckpt_file *f;
        ok(ckpt_file_open(&f, d.places[r].path, &err));
        ok(ckpt_file_verify(f, &err));
        ckpt_file_close(f);
    }
    assert_int_equal(unlink(d.places[1].path), 0);
    ckpt_decision_free(&d);
    ok(help_decide(dir, -1, &d, &err));
    assert_int_equal(d.position.step, 1);
    assert_non_null(strstr(d.report, "step 2 (epoch 1, generation 1) is not whole: rank 1's"));
    ckpt_decision_free(&d);
    state_free(&s);
    help_remove(dir);
}

/* Slices keep their place in the global tensor, and a changed layout is refused. */
static void test_slices(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], path[512];
    struct ckpt *c;
    struct ckpt_file *f;
    struct ckpt_tensor t;
    struct state s = {.n = 0};
    int64_t shape[] = {4, 6};
    state_add(&s, CKPT_F32, 2, shape);
    s.tensors[0].global[0] = 16;
    s.tensors[0].offset[0] = 8;
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    state_fill(&s, 3);
    ok(help_checkpoint(c, 3, &err));
    ckpt_close(c, help_soon());
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s3.r0.safetensors", dir);
    ok(ckpt_file_open(&f, path, &err));
    assert_int_equal(ckpt_file_count(f), 1);
    assert_int_equal(ckpt_file_tensor(f, 0, &t), 0);
    assert_int_equal(ckpt_file_tensor(f, 1, &t), -1);
    assert_string_equal(t.name, "layers.0.w");
    assert_int_equal(t.dtype, CKPT_F32);
    assert_int_equal(t.dims, 2);
    const int64_t want[3][2] = {{16, 6}, {8, 0}, {4, 6}};
    assert_memory_equal(t.global, want[0], sizeof want[0]);
    assert_memory_equal(t.offset, want[1], sizeof want[1]);
    assert_memory_equal(t.shape, want[2], sizeof want[2]);
    s.tensors[0].offset[0] = 4;
    o.epoch = 2;
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    refused(ckpt_restore(c, f, NULL, &err), "the layout has changed");
    ckpt_close(c, help_soon());
    ckpt_file_close(f);
    state_free(&s);
    help_remove(dir);
}

/* Cancelled: nothing is left, not even a half-made file. */
static void test_close_cancels(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_position position = {1, 8};
    struct state s;
    small_state(&s);
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(ckpt_save(c, &position, NULL, &err));
    ckpt_close(c, 0);
    assert_int_equal(help_count(dir, ".part"), 0);
    assert_int_equal(help_count(dir, ".reserve"), 0);
    state_free(&s);
    help_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_uring),
        cmocka_unit_test(test_round_trip_threads),
        cmocka_unit_test(test_round_trip_many_small),
        cmocka_unit_test(test_round_trip_empty),
        cmocka_unit_test(test_restore_from_memory),
        cmocka_unit_test(test_retention),
        cmocka_unit_test(test_retention_spares_the_restored),
        cmocka_unit_test(test_abandoned_files_make_room),
        cmocka_unit_test(test_foreign_files_stay),
        cmocka_unit_test(test_open_refusals),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_not_owned),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_open_answers),
        cmocka_unit_test(test_save_refusals),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_close_cancels),
    };
    return cmocka_run_group_tests_name("ckpt", tests, NULL, NULL);
}
