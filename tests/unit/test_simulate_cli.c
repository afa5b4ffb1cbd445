/* `gtrain simulate` as a person runs it: output, picture, errors, exit codes. */
#include "cli_run.h"

static int run(const char *command, char *text)
{
    return cli_run(" simulate", command, text);
}

/* The number behind the first occurrence of a text. */
static double number_after(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    if (!at)
        fail_msg("no '%s' in:\n%s", what, text);
    return strtod(at + strlen(what), NULL);
}

static void expect_line(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no '%s' in:\n%s", line, text);
}

/* 16,384 GPUs, Llama 3's failures, 8 spares: the default. The parts add up to the whole. */
static void test_llama3(void **state)
{
    static const char *const parts[] = {
        "\n  useful work", "\n  work done again", "\n  checkpoint stalls", "\n  detection",
        "\n  restart",     "\n  restore",         "\n  waiting for nodes"};
    (void)state;
    char *text = malloc(CLI_OUTPUT), *again = malloc(CLI_OUTPUT);
    assert_true(text && again);
    assert_int_equal(run("$g --svg one.svg", text), 0);
    expect_line(text,
                "2048 nodes of 8 GPUs and 8 spare, 54 days, a failure every 3.09 h: Llama 3's "
                "rate, 419 in 54 days on 2048 nodes\n");
    double sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sum += number_after(text, parts[i]);
    if (!(sum > 99.99 && sum < 100.01))
        fail_msg("the parts add up to %.4f\n%s", sum, text);
    double ettr = number_after(text, "\nETTR "), formula = number_after(text, "closed formula ");
    if (!(ettr >= 99 && ettr - formula < 0.3 && formula - ettr < 0.3))
        fail_msg("ETTR %.2f, formula %.2f", ettr, formula);
    assert_int_equal(run("$g --svg two.svg; cmp one.svg two.svg", again), 0);
    assert_string_equal(text, again);
    assert_int_equal(run("head -c 4 one.svg; tail -c 7 one.svg", text), 0);
    assert_string_equal(text, "<svg</svg>\n");
    free(text);
    free(again);
}

/* A trace of one failure, worked out by hand: at 200 s, back to 150 of 194 s, 18 s until training
 * goes on; of 500 s 422 are useful. */
static void test_trace(void **state)
{
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    assert_int_equal(
        run("printf 'time_hours,node\\n0.0555555555555555556,0\\n' >t.csv; "
            "$g --trace t.csv --nodes 4 --spares 2 --days 0.005787037037037037 --step-s 10 "
            "--interval-s 50 --stall-s 2 --write-s 8 --snapshots off --detect-s 10 --restart-s 5 "
            "--restore-partner-s 3",
            text),
        0);
    expect_line(text, "1 failure within 0.0556 h\n");
    expect_line(text, "  useful work          84.400 %");
    expect_line(text, "  work done again       8.800 %");
    expect_line(text, "  checkpoint stalls     3.200 %");
    expect_line(text, "  detection             2.000 %");
    expect_line(text, "  restart               1.000 %");
    expect_line(text, "  restore               0.600 %");
    expect_line(text, "  waiting for nodes     0.000 %");
    free(text);
}

/* What the plan says about size, length, interval and patience. */
static void test_plan(void **state)
{
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    assert_int_equal(run("$g $p/llama3-405b.yaml,resilience.patience_ms=4000 --redundancy partner "
                         "--runs 5",
                         text),
                     0);
    expect_line(text, "2048 nodes of 8 GPUs and 16 spare, 1200000 steps, ");
    expect_line(text, " every 100 steps (");
    expect_line(text, "detection 4 s, ");
    free(text);
}

/* Constants from a file, and from a run's folder: an option wins over them. */
static void test_measured(void **state)
{
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_int_equal(run("printf '# here\\nrestart-s 0.5 a bench\\ndetect-s 2.5 another\\n' >m && "
                         "$g --runs 2 --measured m --restart-s 3",
                         text),
                     0);
    expect_line(text, "measured: restart-s 0.5: a bench\n");
    expect_line(text, "measured: detect-s 2.5: another\n");
    expect_line(text, "detection 2.5 s, restart 3 s, restore 2 s locally");
    /* Medians of three takeovers; one event is none, and one is torn. */
    assert_int_equal(
        run("mkdir r && printf '{\"step\":1,\"loss\":2,\"stall_ms\":3,\"time\":1.0}\\n"
            "{\"step\":2,\"loss\":2,\"stall_ms\":1,\"time\":2.0}\\n"
            "{\"step\":3,\"loss\":2,\"stall_ms\":0,\"time\":3.0}\\n' >r/metrics.jsonl && "
            "for i in 1 5 2; do printf '{\"time\":1,\"kind\":\"takeover\",\"step\":1,\"text\":"
            "\"generation 2 goes on from step 1: detect 1.0 s, decide 0.5 s, restart %s.25 s, "
            "communicate 0.5 s, restore 0.%s s, first step 9 s: 12 s in all\"}\\n' $i $i; done "
            ">r/events.jsonl && echo '{\"kind\":\"takeover\"' >>r/events.jsonl && "
            "$g --runs 2 --measured r",
            text),
        0);
    expect_line(text, "measured: detect-s 1.5: median of 3 takeovers\n");
    expect_line(text, "measured: restart-s 2.75: median of 3 takeovers\n");
    expect_line(text, "measured: restore-partner-s 0.2: median of 3 takeovers\n");
    expect_line(text, "measured: stall-s 0.002: mean of 2 steps that waited for a checkpoint\n");
    expect_line(text, "detection 1.5 s, restart 2.75 s, restore 0.2 s locally");
    assert_int_equal(run("cp $p/quickstart.yaml e.yaml; $g e.yaml,checkpoint.every=4 --runs 2 "
                         "--gpus-per-node 8 --step-s 2 --days 3 --write-s 20 --shared-s 1",
                         text),
                     0);
    expect_line(text, "a checkpoint every 10 steps (20 s), ");
    expect_line(text, "the plan's checkpoint.every is 4, but no write begins before the last is");
    /* What this machine measured still makes a run of 16,384 GPUs with 8 spares worth its time. */
    assert_int_equal(run("$g --runs 50 --measured $p/../measured.txt", text), 0);
    assert_true(number_after(text, "\nETTR ") >= 99);
    double off = number_after(strstr(text, "closed formula "), "(");
    assert_true(off >= -0.3 && off <= 0.3);
    free(text);
}

static void test_errors(void **state)
{
    static const struct {
        const char *command;
        const char *says; /* all of the output */
    } cases[] = {
        {"$g --days 0", "gtrain: --days is '0': use a number above 0\n"},
        {"$g --days 1e999", "gtrain: --days is '1e999': use a number above 0\n"},
        {"$g --nodes 2.5", "gtrain: --nodes is '2.5': use a whole number from 1\n"},
        {"$g --spares -1", "gtrain: --spares is '-1': use a whole number from 0\n"},
        {"$g --stall-s nan", "gtrain: --stall-s is 'nan': use a number, 0 or more\n"},
        {"$g --nodes 4 --gpus 32", "gtrain: --nodes and --gpus say the same: use one\n"},
        {"$g --gpus 12",
         "gtrain: 12 GPUs do not fill nodes of 8: use a --gpus-per-node that divides them\n"},
        {"$g --days 1 --steps 5",
         "gtrain: --days and --steps both say how long the run is: use one\n"},
        {"$g --mtbf-hours 3 --trace llama3",
         "gtrain: --mtbf-hours, --node-mtbf-hours and --trace each say when nodes fail: use one\n"},
        {"$g --trace none.csv", "gtrain: none.csv: No such file or directory\n"},
        {"echo 1,2048 >t.csv; $g --trace t.csv",
         "gtrain: t.csv:1: the node is '2048': use 0 to 2047\n"},
        {"$g --redundancy xor", "gtrain: --redundancy is 'xor': use partner or none\n"},
        {"$g --redundancy none --snapshots on",
         "gtrain: --snapshots on needs --redundancy partner: without a copy on another node a lost "
         "node's snapshot is lost with it\n"},
        {"$g --interval-s 10", "gtrain: simulate: the interval is 12 s, but a checkpoint takes 20 "
                               "s to write: use at least "
                               "that\n"},
        {"$g --interval-s soon", "gtrain: --interval-s is 'soon': use a number above 0\n"},
        {"$g --mtbf-hours 0.0001",
         "gtrain: simulate: a failure every 0.36 s over 54 days is more than 1e+06 failures: use a "
         "longer time between failures or a shorter run\n"},
        {"$g --tflops 400",
         "gtrain: --tflops needs a plan, which says how much a step computes: give one, or use "
         "--step-s\n"},
        {"$g --runs 1000000", "gtrain: --runs is 1000000: use 1 to 100000\n"},
        {"$g --nodes",
         "gtrain: simulate: --nodes needs a value: `gtrain simulate --help` shows the options\n"},
        {"$g --failures 3", "gtrain: simulate: --failures is not an option: `gtrain simulate "
                            "--help` shows the options\n"},
        {"$g a b",
         "gtrain: simulate: more than one plan file: `gtrain simulate --help` shows the use\n"},
        {"$g none.yaml",
         "gtrain: none.yaml: the plan file cannot be read: No such file or directory\n"},
        {"cp $p/quickstart.yaml q.yaml; $g q.yaml --gpus-per-node 8 --step-s 1e-3 --steps 50",
         "gtrain: q.yaml: the run is over in 0.05 s, before one checkpoint is written in 20 s: a "
         "step takes 0.001 s; say what steps and checkpoints take with --step-s and --write-s, or "
         "with --measured and the folder of a run\n"},
        {"cp $p/llama3-405b.yaml .; $g llama3-405b.yaml",
         "gtrain: llama3-405b.yaml: checkpoint.redundancy is none and there is no "
         "checkpoint.shared: a lost node would end the run: set one of them, or use --redundancy "
         "partner\n"},
    };
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = run(cases[i].command, text);
        if (rc != 2 || strcmp(text, cases[i].says))
            fail_msg("%s\nexit %d, expected 2\n%s", cases[i].command, rc, text);
    }
    assert_int_equal(run("$g --runs 2 --svg /nowhere/x.svg >/dev/null", text), 1);
    assert_string_equal(text, "gtrain: /nowhere/x.svg: No such file or directory\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3),   cmocka_unit_test(test_trace),  cmocka_unit_test(test_plan),
        cmocka_unit_test(test_measured), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
