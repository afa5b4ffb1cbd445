/* test_train_cli.c - `gtrain train` and `gtrain generate` as a person types them, on one machine.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/gtrain-train-cli-XXXXXX";

static const char plan[] =
    "model: {layers: 1, hidden: 16, ffn: 16, heads: 2, vocab: 256}\n"
    "data: {format: text, train: text}\n"
    "training: {steps: 6, global_batch: 2, microbatch: 1, sequence: 8, lr: 0.003}\n"
    "parallel: {tensor: 2}\n"
    "checkpoint: {local: disk, every: 3}\n"
    "run: {dir: run}\n";

/* Run in the test's folder; $g is gtrain. Both outputs in text. */
static int run(const char *command, char text[4096])
{
    char line[2048];
    const char *build = getenv("GTRAIN_BUILD");
    snprintf(line, sizeof line, "cd %s && g='%s/gtrain' && { %s ; } 2>&1", folder,
             build ? build : ".", command);
    FILE *in = popen(line, "r");
    assert_non_null(in);
    size_t n = fread(text, 1, 4095, in);
    text[n] = 0;
    int status = pclose(in);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The reader goes away after the first line; the run goes on to its end. */
static void test_reader_goes_away(void **state)
{
    char text[4096];
    (void)state;
    int rc = run("{ $g train --plan plan.yaml --local; echo $? >code; } | head -n 1; cat code; "
                 "wc -l <run/metrics.jsonl",
                 text);
    assert_int_equal(rc, 0);
    assert_string_equal(text, "step 0: start: from first weights\n0\n6\n");
}

/* A launch that is refused because it does not go with the checkpoint says in what, and leaves the
 * folder with the plan that does. */
static void test_refused_plan(void **state)
{
    char text[4096];
    (void)state;
    int rc =
        run("$g train --plan plan.yaml,training.decay_steps=8 --local --dir other >code || exit; "
            "cp other/plan.yaml code; "
            "$g train --plan plan.yaml,training.steps=8,training.lr=0.004,model.tied=true --local "
            "--dir other; echo $?; cmp code other/plan.yaml && rm -r other disk",
            text);
    assert_int_equal(rc, 0);
    assert_string_equal(text, "gtrain: restore: the checkpoint of step 6 was written with another "
                              "plan (model.tied: false, now true; training.lr: 0.003, now 0.004; "
                              "training.min_lr: 0.0003, now 0.0004): use that plan, another run "
                              "folder, or --restore none\n2\n");
}

/* Started without standard outputs: what would have been printed goes into no file that is opened
 * in their place. */
static void test_closed_outputs(void **state)
{
    char text[4096];
    (void)state;
    int rc = run("$g train --plan plan.yaml --local --dir closed >&- 2>&-; echo $?; "
                 "grep -rl tokens/s closed disk; wc -l <closed/lock; wc -l <closed/metrics.jsonl; "
                 "$g ckpt verify closed >&-; echo $?; rm -rf closed disk",
                 text);
    assert_int_equal(rc, 0);
    assert_string_equal(text, "0\n1\n6\ngtrain: standard output: Bad file descriptor\n1\n");
}

/* What Slurm sends once may arrive twice. The step is a long one, so that it has not ended by then;
 * the plan is kept small, but for its sizes. */
static void test_signal_twice(void **state)
{
    char text[4096];
    (void)state;
    int rc =
        run("big=model.layers=2,model.hidden=256,model.ffn=1024,training.global_batch=256; "
            ": >out; "
            "$g train --plan plan.yaml,$big,checkpoint.every=0 --local --dir twice >out & p=$!; "
            "i=0; until grep -q start out || [ $i = 500 ]; do sleep 0.02; i=$((i+1)); done; "
            "kill -TERM $p; sleep 0.02; kill -TERM $p; wait $p; echo $?; "
            "grep -o 'stop: .*' out; rm -rf out twice disk",
            text);
    assert_int_equal(rc, 0);
    assert_string_equal(text, "0\nstop: asked to stop\n");
}

/* The checkpoints are on the disk of another machine. */
static void test_generate_elsewhere(void **state)
{
    char text[4096];
    (void)state;
    static const char ask[] = "$g generate --checkpoint run --prompt In --tokens 3";
    char moved[200];
    assert_int_equal(run(ask, text), 0);
    snprintf(moved, sizeof moved, "mkdir -p node%s && mv disk node%s && %s", folder, folder, ask);
    assert_int_equal(run(moved, text), 2);
    if (!strstr(text, "gtrain: generate: the checkpoints of run are in ") ||
        !strstr(text, "--node-root") || !strstr(text, "checkpoint.shared"))
        fail_msg("%s", text);
    snprintf(moved, sizeof moved, "%s --node-root node", ask);
    assert_int_equal(run(moved, text), 0);
    assert_int_equal(strncmp(text, "In", 2), 0);
}

static int count_commands(const char *text, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] < ' ' && !strchr("\n\t\r", text[i])) || text[i] == 127;
    return count;
}

/* What a model makes up is no command to a terminal; a file gets it as it is. */
static void test_generate_on_terminal(void **state)
{
    char text[4096], command[400];
    (void)state;
    static const char ask[] = "$g generate --checkpoint run --prompt In --tokens 400 "
                              "--temperature 100";
    snprintf(command, sizeof command, "%s >made && tr -d '[:print:]\n\t\200-\377' <made | wc -c",
             ask);
    assert_int_equal(run(command, text), 0);
    assert_true(atoi(text) > 10);

    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    assert_true(master >= 0 && !grantpt(master) && !unlockpt(master));
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    snprintf(command, sizeof command, "%s >%s", ask, ptsname(master));
    assert_int_equal(run(command, text), 0);
    size_t n = 0;
    for (ssize_t got; n < sizeof text && (got = read(master, text + n, sizeof text - n)) > 0;)
        n += (size_t)got;
    close(slave);
    close(master);
    assert_in_range(n, 402, sizeof text);
    assert_int_equal(strncmp(text, "In", 2), 0);
    assert_int_equal(count_commands(text, n), 0);
}

static int make_folder(void **state)
{
    char text[4096], path[200];
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs(plan, f) < 0 || fclose(f))
        return -1;
    return run("yes 'the quick brown fox' | head -c 4096 >text", text);
}

static int drop_folder(void **state)
{
    char text[4096];
    (void)state;
    return run("rm -r plan.yaml text code run node made", text) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_goes_away),   cmocka_unit_test(test_generate_on_terminal),
        cmocka_unit_test(test_generate_elsewhere), cmocka_unit_test(test_closed_outputs),
        cmocka_unit_test(test_signal_twice),       cmocka_unit_test(test_refused_plan),
    };
    return cmocka_run_group_tests_name("train cli", tests, make_folder, drop_folder);
}
