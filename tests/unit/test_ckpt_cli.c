/* test_ckpt_cli.c - `gtrain ckpt` as a person calls it: exit status and what it says. */
#include "parity_help.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Runs `gtrain ckpt VERB PATH`, output and errors into out; its exit status. */
static int run(const char *verb, const char *path, char out[16384])
{
    char command[1024];
    const char *build = getenv("GTRAIN_BUILD");
    snprintf(command, sizeof command, "'%s/gtrain' ckpt %s '%s' 2>&1", build ? build : ".", verb,
             path);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t n = fread(out, 1, 16383, p);
    out[n] = 0;
    int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(const char *verb, const char *path, int status, const char *wanted)
{
    char out[16384];
    int got = run(verb, path, out);
    if (got != status || !strstr(out, wanted))
        fail_msg("ckpt %s %s: %d, not %d, or no '%s' in\n%s", verb, path, got, status, wanted, out);
}

/* Two nodes' folders below dir, two ranks; steps 10, 20, 30 committed, 40 finished. */
static void make_run(const char *dir)
{
    struct err err;
    struct ckpt *c[2];
    struct state s = {.n = 0};
    int64_t shape[] = {100, 30};
    char folders[2][300], *claims[2];
    state_add(&s, CKPT_F32, 2, shape);
    struct ckpt_io io = state_io(&s);
    for (int r = 0; r < 2; r++) {
        snprintf(folders[r], sizeof folders[r], "%s/n%d", dir, r + 1);
        struct ckpt_options o = help_options(folders[r], 4);
        o.node = r ? "n2" : "n1";
        o.world = 2;
        o.rank = r;
        s.tensors[0].global[0] = 200;
        s.tensors[0].offset[0] = 100 * r;
        ok(ckpt_open(&c[r], &o, s.tensors, s.n, &io, &err));
    }
    for (int64_t step = 10; step <= 40; step += 10) {
        struct ckpt_position position = {step, step * 8};
        for (int r = 0; r < 2; r++) {
            state_fill(&s, step);
            ok(ckpt_save(c[r], &position, NULL, &err));
            ok(ckpt_wait(c[r], help_soon(), &err));
            assert_non_null(claims[r] = ckpt_claim(c[r], step, &err));
        }
        char *record = ckpt_record((const char *const *)claims, 2, &err);
        for (int r = 0; r < 2; r++) {
            if (step < 40)
                ok(ckpt_commit(c[r], step, record, &err));
            free(claims[r]);
        }
        free(record);
    }
    ckpt_close(c[0], help_soon());
    ckpt_close(c[1], help_soon());
    state_free(&s);
}

static void test_commands(void **unused)
{
    (void)unused;
    char dir[256], node[300], path[512], out[16384];
    help_scratch(dir, NULL);
    make_run(dir);
    snprintf(node, sizeof node, "%s/n1", dir);

    expect("list", dir, 0, "        30      4     1      2    ");
    expect("list", dir, 0, "240  committed\n");
    expect("list", dir, 0, "not committed\n");
    expect("list", dir, 0, "1 older committed ones have been dropped");
    assert_int_equal(run("list", dir, out), 0);
    if (strstr(out, "       30") > strstr(out, "       20") || strstr(out, "       10"))
        fail_msg("newest first, without the dropped one:\n%s", out);
    expect("list", node, 0, "1 of 2 ranks are on other nodes");
    expect("verify", dir, 0, "good\n");
    expect("verify", node, 0, "good; 1 of 2 ranks");

    snprintf(path, sizeof path, "%s/n2/run-1.e4.g1.s30.r1.safetensors", dir);
    expect("show", path, 0, "run run-1, step 30, 240 samples consumed");
    expect("show", path, 0, "epoch 4, generation 1, rank 1 of 2, plan 123456789abcdef0");
    assert_int_equal(run("show", path, out), 0);
    if (!strstr(out, "layers.0.w") || !strstr(out, "200,30") || !strstr(out, "100,0"))
        fail_msg("no tensor, its global shape and its place in\n%s", out);

    FILE *f = fopen(path, "r+b"); /* damage it, then lose it */
    assert_non_null(f);
    fseek(f, -5000, SEEK_END);
    fputc('!', f);
    fclose(f);
    expect("list", dir, 0, "240  committed\n");
    expect("verify", dir, 1, "BAD\n");
    expect("verify", dir, 1, "s30.r1.safetensors: bytes");
    assert_int_equal(unlink(path), 0);
    expect("verify", dir, 1, "is missing");
    expect("list", dir, 1, "not whole: rank 1's file on n2 is missing");
    help_remove(dir);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* A run folder leads to both tiers, as far as they are on this machine. */
static void test_run_folder(void **unused)
{
    (void)unused;
    static const char run_id[] = "0123456789abcdef";
    char dir[256], shared[400], plan[1024], out[16384];
    struct err err;
    struct ckpt *c;
    struct state s = {.n = 0};
    int64_t shape[] = {100};
    help_scratch(dir, NULL);
    write_text(dir, "run.json", "{\"run_id\": \"0123456789abcdef\", \"epoch\": 1}\n");
    snprintf(plan, sizeof plan,
             "model: {layers: 2, hidden: 32, ffn: 48, heads: 4, vocab: 256}\n"
             "data: {format: text, train: data.txt}\n"
             "training: {steps: 9, global_batch: 2, microbatch: 1, sequence: 8}\n"
             "checkpoint: {local: %s/not-here, shared: copies, every: 3}\n",
             dir);
    write_text(dir, "plan.yaml", plan);
    expect("list", dir, 1, "are not on this machine, or there are none");

    state_add(&s, CKPT_F32, 1, shape);
    state_fill(&s, 3);
    struct ckpt_io io = state_io(&s);
    snprintf(shared, sizeof shared, "%s/copies/%s", dir, run_id);
    struct ckpt_options o = help_options(shared, 1);
    o.run_id = run_id;
    o.node = "shared";
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 3, &err));
    ckpt_close(c, help_soon());
    state_free(&s);
    expect("list", dir, 0, "24  committed\n");
    expect("verify", dir, 0, "24  good\n");
    assert_int_equal(run("list", dir, out), 0);
    if (!strstr(out, "checkpoint.local: ") || !strstr(out, "/not-here/0123456789abcdef: not on") ||
        !strstr(out, "checkpoint.shared: run 0123456789abcdef"))
        fail_msg("not both tiers in\n%s", out);
    help_remove(dir);
}

/* Two nodes' folders at once; then the same run while a launch of it goes on. */
static void test_prune(void **unused)
{
    (void)unused;
    char dir[256], node[300], plan[1024], out[16384];
    help_scratch(dir, NULL);
    make_run(dir);
    snprintf(node, sizeof node, "%s/n1", dir);
    write_text(node, "run-1.e3.g1.s25.r0.part", "half");
    write_text(node, "mine.part", "a stranger's");
    expect("prune --dry-run", dir, 0, "would drop run-1.e3.g1.s25.r0.part (4 B): half made");
    expect("prune", dir, 0, "1 files, 4 B, are gone; 2 committed checkpoints stay here whole");
    expect("prune --keep 2", dir, 0, "0 files, 0 B, are gone");
    expect("list", dir, 0, "240  committed\n");
    expect("verify", dir, 0, "good\n");
    assert_int_equal(help_count(node, ".part"), 1);
    expect("prune --keep 1", dir, 2, "--keep is 1: use 2");

    snprintf(plan, sizeof plan,
             "model: {layers: 2, hidden: 32, ffn: 48, heads: 4, vocab: 256}\n"
             "data: {format: text, train: data.txt}\n"
             "training: {steps: 9, global_batch: 2, microbatch: 1, sequence: 8}\n"
             "checkpoint: {local: %s/none, every: 3}\n",
             dir);
    write_text(dir, "plan.yaml", plan);
    write_text(dir, "run.json", "{\"run_id\": \"0123456789abcdef\", \"epoch\": 1}\n");
    expect("prune", dir, 1, "the run's checkpoints are not on this machine");
    snprintf(out, sizeof out, "%s/lock", dir);
    int fd = open(out, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect("prune", dir, 1, "is in use by");
    close(fd);
    help_remove(dir);
}

/* A folder that is called like the half of another: only a maker's mark makes it one. */
static void test_prune_part(void **unused)
{
    (void)unused;
    char scratch[256], beside[300], dir[300], path[400], host[256] = "", text[300], out[16384];
    help_scratch(scratch, NULL);
    snprintf(beside, sizeof beside, "%s/out", scratch);
    snprintf(dir, sizeof dir, "%s/out.part.7", scratch);
    snprintf(path, sizeof path, "%s/.gtrain-part", dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    expect("prune", beside, 0, "if nobody writes there, remove it");
    make_run(dir);
    expect("prune", dir, 0, "2 committed checkpoints stay here whole");
    expect("prune", beside, 0, "has checkpoints and no maker's mark, stays");
    write_text(dir, "plan.yaml",
               "model: {layers: 2, hidden: 32, ffn: 48, heads: 4, vocab: 256}\n"
               "data: {format: text, train: data.txt}\n"
               "training: {steps: 9, global_batch: 2, microbatch: 1, sequence: 8}\n"
               "checkpoint: {shared: none, every: 3}\n");
    write_text(dir, "run.json", "{\"run_id\": \"0123456789abcdef\", \"epoch\": 1}\n");
    expect("prune", dir, 1, "the run's checkpoints are not on this machine");
    assert_int_equal(run("prune", beside, out), 0);
    assert_null(strstr(out, "remove it"));

    write_text(dir, ".gtrain-part", "made by gtrain, process 7 on an.other.host\n");
    expect("prune", dir, 1, "was begun on another host");
    expect("prune", scratch, 0, "was begun on another host");
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "made by gtrain, process 7 on %s\n", host);
    write_text(dir, ".gtrain-part", text);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect("prune", dir, 1, "is being made, stays");
    close(fd);
    expect("prune --dry-run", dir, 0, "half made by a process that is gone");
    assert_int_equal(access(path, F_OK), 0);
    expect("prune", dir, 0, "half made by a process that is gone");
    assert_int_equal(access(dir, F_OK), -1);
    help_remove(scratch);
}

/* A mark on one node is seen, counts, and goes. */
static void test_marked(void **unused)
{
    (void)unused;
    char dir[256], node[300];
    struct err err;
    struct ckpt_mark mark = {.epoch = 4, .generation = 1, .step = 30, .nan_step = 33};
    help_scratch(dir, NULL);
    make_run(dir);
    snprintf(node, sizeof node, "%s/n2", dir);
    expect("verify", dir, 0, "good\n");
    ok(ckpt_mark_write(node, "n2", "run-1", &mark, 1, true, 5, 1, &err));
    expect("list", dir, 0, "marked bad: from it step 33 was not finite; committed\n");
    expect("verify", dir, 1, "marked bad: from it step 33 was not finite; good\n");
    expect("prune", node, 0, "1 committed checkpoint stays here whole");
    ok(ckpt_mark_write(node, "n2", "run-1", &mark, 1, false, 6, 1, &err));
    expect("verify", dir, 0, "good\n");
    expect("prune", node, 0, "2 committed checkpoints stay here whole");
    help_remove(dir);
}

static void test_refusals(void **unused)
{
    (void)unused;
    char dir[256], path[300];
    help_scratch(dir, NULL);
    expect("list", dir, 1, "there are no checkpoints here");
    expect("prune", dir, 2, "there are no checkpoints here");
    expect("reshard", dir, 2, "SRC, DST and --plan PLAN are expected, 1 folders and no plan given");
    expect("import", dir, 2, "import: HF_DIR and OUT are expected, 1 given");
    expect("import --force here", dir, 2, "import: there is no option '--force'");
    expect("export", dir, 2, "export: DIR and OUT are expected, 1 given");
    expect("prune here", dir, 2, "prune: one DIR is expected, 2 given");
    expect("list here", dir, 2, "gtrain: ckpt list: one DIR is expected, 2 given");
    expect("show --json", dir, 2, "gtrain: ckpt show: there is no option '--json'");
    expect("impor here", dir, 2, "gtrain: ckpt has no 'impor'");
    expect("reshard --plan /nowhere.yaml here", dir, 2, "/nowhere.yaml");
    expect("reshard --step -1 --plan /nowhere.yaml here", dir, 2, "--step is -1: use a whole");
    snprintf(path, sizeof path, "%s/none", dir);
    expect("prune", path, 2, "No such file or directory");
    expect("list", path, 2, "No such file or directory");
    expect("show", path, 2, "No such file or directory");
    FILE *f = fopen(path, "w");
    fputs("not a checkpoint at all", f);
    fclose(f);
    expect("show", path, 1, "not a safetensors file");
    expect("verify", path, 2, "is not a folder");
    expect("show", dir, 2, "is not a file");
    expect("list", "''", 2, "gtrain: ckpt list: the name given is empty");
    expect("prune --bogus", dir, 2, "gtrain: ckpt prune: unrecognized option '--bogus'");
    expect("export --bogus", dir, 2, "gtrain: ckpt export: unrecognized option '--bogus'");
    expect("frobnicate", dir, 2, "list, verify, show, prune, reshard, import and export");
    expect("--help", "", 0, "usage: gtrain ckpt list DIR");
    expect("list", "--help", 0, "Exit status: 0 all is well");
    help_remove(dir);
}

/* What is here of a checkpoint in a group, and what can be rebuilt of the rest. */
static void test_groups(void **unused)
{
    (void)unused;
    struct group g;
    struct err err;
    char path[400];
    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    group_fill(&g, 5);
    ok(group_checkpoint(&g, 5, &err));
    group_close(&g);
    expect("list", g.root, 0, "40  committed; in groups of 3 that keep 1\n");
    expect("verify", g.root, 0, "good\n");
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s5.p2.safetensors", g.dirs[2]);
    expect("show", path, 0, "gtrain.parity");
    FILE *f = fopen(path, "r+b"); /* in the parities */
    assert_non_null(f);
    fseek(f, -6000, SEEK_END);
    fputc('!', f);
    fclose(f);
    expect("list", g.root, 0, "committed; in groups of 3 that keep 1\n");
    expect("verify", g.root, 1, "s5.p2.safetensors: bytes");
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s5.r1.safetensors", g.dirs[1]);
    assert_int_equal(unlink(path), 0);
    expect("list", g.root, 1, "can be rebuilt: rank 1's file on n1 is missing\n");
    expect("verify", g.root, 1, "s5.r1.safetensors on n1 is missing\n"); /* the parity is bad */
    char out[16384];
    assert_int_equal(run("verify", g.root, out), 1);
    assert_null(strstr(out, "can be rebuilt"));
    help_remove(g.dirs[2]);
    expect("list", g.root, 1, "not whole: rank 1's file on n1 is missing\n");
    group_drop(&g);

    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    ok(group_checkpoint(&g, 5, &err));
    group_close(&g);
    help_remove(g.dirs[0]);
    expect("list", g.root, 0,
           "committed; in groups of 3 that keep 1; 1 of 3 ranks are on other nodes and can be "
           "rebuilt from these\n");
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s5.r1.safetensors", g.dirs[1]);
    f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -5000, SEEK_END);
    fputc('!', f);
    fclose(f);
    expect("verify", g.root, 1, "s5.r1.safetensors: bytes");
    group_drop(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),   cmocka_unit_test(test_groups),
        cmocka_unit_test(test_run_folder), cmocka_unit_test(test_prune),
        cmocka_unit_test(test_marked),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_prune_part),
    };
    return cmocka_run_group_tests_name("ckpt cli", tests, NULL, NULL);
}
