/* `gtrain plan` as a person and the Slurm plugin run it: output, errors, exit codes. */
#include "cli_run.h"

static int run(const char *command, char *text)
{
    return cli_run("", command, text);
}

static void test_check(void **state)
{
    static const struct {
        const char *command;
        int exit;
        const char *says; /* all of the output */
    } cases[] = {
        {"$g plan check $p/quickstart.yaml", 0, ""},
        {"$g plan check $p/llama3-405b.yaml --nodes 2064 --tasks-per-node 8", 0, ""},
        {"$g plan check $p/quickstart.yaml,parallel.data=1 --nodes 3 --tasks-per-node 2 --spares 1",
         0, ""},
        {"cp $p/quickstart.yaml q.yaml; $g plan check q.yaml,parallel.tensor=3", 2,
         "gtrain: q.yaml,parallel.tensor=3: parallel.tensor is 3, but attention has 4 heads: use 1 "
         "or "
         "2\n"},
        {"$g plan check q.yaml --nodes 4 --tasks-per-node 2 --spares 1", 2,
         "gtrain: q.yaml: 8 ranks, 2 on a node, and 1 spare node need 5 nodes, but -N is 4: use "
         "-N5 "
         "--ntasks-per-node=2\n"},
        {"$g plan check none.yaml", 2,
         "gtrain: none.yaml: the plan file cannot be read: No such file or directory\n"},
        {"$g plan check \"$(printf 'no\\033]0;x\\007\\302\\233p\\303\\251')\"", 2,
         "gtrain: no?]0;x???p\303\251: the plan file cannot be read: No such file or directory\n"},
        {"$g plan check q.yaml --nodes 4x", 2,
         "gtrain: --nodes is '4x': use a whole number from 1\n"},
        {"$g plan check q.yaml --spares -1", 2,
         "gtrain: --spares is '-1': use a whole number from 0\n"},
        {"$g plan check q.yaml --nodes 99999999999", 2,
         "gtrain: --nodes is '99999999999': use a whole number from 1\n"},
        {"$g plan check", 2,
         "gtrain: plan check: no plan file: `gtrain plan --help` shows the use\n"},
        {"$g plan check q.yaml q.yaml", 2,
         "gtrain: plan check: more than one plan file: `gtrain plan --help` shows the use\n"},
        {"$g plan check q.yaml --svg x", 2,
         "gtrain: plan check: --svg is not an option: `gtrain plan --help` shows the options\n"},
        {"$g plan check q.yaml,training.precision=bf16 && $g plan check q.yaml --for-train", 0, ""},
        {"$g plan check q.yaml,training.precision=bf16 --for-train", 2,
         "gtrain: q.yaml,training.precision=bf16: training.precision is bfloat16, which the CPU "
         "backend does not compute in: use float32 or float64\n"},
        {"$g plan check q.yaml --nodes 4 --tasks-per-node 2 --spares 1 --spares-added", 0, ""},
        {"$g plan check q.yaml --nodes 3 --tasks-per-node 2 --spares 1 --spares-added", 2,
         "gtrain: q.yaml: 8 ranks, 2 on a node, and 1 spare node need 5 nodes, but -N is 3: use "
         "-N5 --ntasks-per-node=2\n"},
        {"$g plan nodes q.yaml --tasks-per-node 2 --spares 1", 0, "4 5\n"},
        {"$g plan nodes q.yaml,resilience.spares=2 --spares 1", 0, "8 10\n"},
        {"$g plan nodes -- q.yaml", 0, "8 8\n"},
        {"$g plan nodes q.yaml --tasks-per-node 3", 2,
         "gtrain: q.yaml: 8 ranks do not fill nodes of 3 tasks: use "
         "--ntasks-per-node=1, 2, 4 or 8\n"},
        {"$g plan show q.yaml >/dev/full", 1, "gtrain: standard output: No space left on device\n"},
        {"$g plan keys >/dev/full", 1, "gtrain: standard output: No space left on device\n"},
        {"$g --help >/dev/full", 1, "gtrain: standard output: No space left on device\n"},
        {"$g --version | grep -c '^gtrain [0-9]'", 0, "1\n"},
        {"$g plan", 2,
         "gtrain: plan: use check, nodes, show or keys: `gtrain plan --help` says more\n"},
        {"$g plan show q.yaml --actions 2", 2,
         "gtrain: --actions is 2, but the pipeline has 2 stages: use 0 to 1\n"},
        {"$g plan show q.yaml --svg /nowhere/x.svg >/dev/null", 2,
         "gtrain: /nowhere/x.svg: No such file or directory\n"},
    };
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = run(cases[i].command, text);
        if (rc != cases[i].exit || strcmp(text, cases[i].says))
            fail_msg("%s\nexit %d, expected %d\n%s", cases[i].command, rc, cases[i].exit, text);
    }
    free(text);
}

/* What show prints is a plan, and showing that one prints the same plan. */
static void test_show_is_a_plan(void **state)
{
    static const char *const names[] = {"quickstart", "llama3-8b", "llama3-70b", "llama3-405b"};
    (void)state;
    char *text = malloc(CLI_OUTPUT), command[500];
    assert_non_null(text);
    for (int i = 0; i < 4; i++) {
        snprintf(
            command, sizeof command,
            "$g plan show $p/%s.yaml > a.yaml && $g plan show a.yaml > b.yaml && "
            "grep -v '^# .*resolved' a.yaml > a && grep -v '^# .*resolved' b.yaml > b && cmp a b",
            names[i]);
        int rc = run(command, text);
        if (rc != 0 || text[0])
            fail_msg("%s: exit %d\n%s", names[i], rc, text);
    }
    free(text);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

static void test_show_numbers(void **state)
{
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    assert_int_equal(run("$g plan show $p/llama3-405b.yaml", text), 0);
    assert_non_null(strstr(text, "# parameters       405.85 billion (405853388800)\n"));
    assert_non_null(strstr(text, "# ranks            16384 = tensor 8 x context 1 x expert 1 x "
                                 "pipeline 16 x data 128\n"));
    assert_non_null(strstr(text, "# ... and 126 more replicas, each 128 ranks further on\n"));
    /* 8 of 126 layers of 3.19e9 parameters on 8 tensor ranks: 2 bytes each, and 12 on 128 replicas;
     * five times that */
    assert_non_null(strstr(text, "#     6.2 GiB a copy that files are written from\n"));
    assert_non_null(strstr(text, "#    31.1 GiB in all\n"));
    assert_true(count(text, "\n") < 150); /* a page or two, whatever the size of the run */
    assert_int_equal(run("$g plan show $p/quickstart.yaml,parallel.data=1,training.global_batch=16 "
                         "--tasks-per-node 4",
                         text),
                     0);
    assert_non_null(strstr(text, "# data 0     stage 0: 0-1  stage 1: 2-3\n"));
    /* 445 KiB of weights and twice that of moments: once, twice, twice */
    assert_non_null(strstr(text, "#     6.5 MiB in all\n#    26.1 MiB a node of 4 ranks\n"));
    assert_non_null(strstr(text, "# stage 0    |01.a-2b-3c-.d-\n# stage 1    |.0a-1b-2c-3d-.\n"));
    /* 11 microbatches on 3 replicas: 4, 4, 3, so that the third idles a quarter of its time */
    assert_int_equal(run("$g plan show $p/quickstart.yaml,parallel.data=3,parallel.uneven=true,"
                         "training.global_batch=44,training.microbatch=4",
                         text),
                     0);
    assert_non_null(strstr(text, "# microbatches     of 4 samples, a step: 4 on 2 of 3 replicas, 3 "
                                 "on the others, 8.3% idle\n"));
    free(text);
}

static void test_svg(void **state)
{
    (void)state;
    char *text = malloc(CLI_OUTPUT);
    assert_non_null(text);
    assert_int_equal(
        run("$g plan show $p/llama3-405b.yaml --svg x.svg >/dev/null && cat x.svg", text), 0);
    assert_int_equal(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 38), 0);
    assert_int_equal(count(text, "<svg "), 1);
    assert_int_equal(count(text, "</svg>\n"), 1);
    assert_int_equal(count(text, "<g "), count(text, "</g>"));
    assert_int_equal(count(text, "<text "), count(text, "</text>"));
    assert_int_equal(count(text, "href"), 0); /* stands alone */
    /* 16 stages of 16 microbatches, three boxes each, and each says what it is. */
    assert_int_equal(count(text, "<title>forward of microbatch"), 256);
    assert_int_equal(count(text, "<title>backward input of microbatch"), 256);
    assert_int_equal(count(text, "<title>backward weight of microbatch"), 256);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_show_is_a_plan),
        cmocka_unit_test(test_show_numbers),
        cmocka_unit_test(test_svg),
    };
    return cmocka_run_group_tests_name("plan cli", tests, cli_setup, cli_teardown);
}
