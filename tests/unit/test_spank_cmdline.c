/* Where the options of srun, sbatch and salloc end, and what is said before. The expected values
 * are what Slurm's own tools make of the same words (their manual pages). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "../../spank/cmdline.h"

#define WORDS_MAX 16

struct scan_case {
    const char *words[WORDS_MAX];
    const char *plan, *nodes, *tasks, *tasks_per_node;
    const char *program; /* NULL: none */
};

static const struct scan_case scan_cases[] = {
    {{"srun", "hostname"}, NULL, NULL, NULL, NULL, "hostname"},
    {{"srun", "--gtrain-plan=p.yaml", "prog"}, "p.yaml", NULL, NULL, NULL, "prog"},
    {{"srun", "--gtrain-plan", "p.yaml", "prog"}, "p.yaml", NULL, NULL, NULL, "prog"},
    {{"srun", "--gtrain-pl=p.yaml,a=b", "prog"}, "p.yaml,a=b", NULL, NULL, NULL, "prog"},
    {{"srun", "-N4", "-n", "8", "prog", "-N9"}, NULL, "4", "8", NULL, "prog"},
    {{"srun", "-lN", "4", "-k", "prog"}, NULL, "4", NULL, NULL, "prog"},
    {{"srun", "-lN4", "-K1", "-I30", "prog"}, NULL, "4", NULL, NULL, "prog"},
    {{"srun", "--nodes=2-4", "--ntasks-per-node", "2", "prog"}, NULL, "2-4", NULL, "2", "prog"},
    {{"srun", "--nodelist", "n1", "--ntasks=3", "prog"}, NULL, NULL, "3", NULL, "prog"},
    {{"srun", "--wait", "30", "--gtrain-plan=p", "prog"}, "p", NULL, NULL, NULL, "prog"},
    {{"srun", "-s", "--label", "prog", "--gtrain-plan=x"}, NULL, NULL, NULL, NULL, "prog"},
    {{"srun", "-w", "n1", "prog", "--gtrain-plan=x"}, NULL, NULL, NULL, NULL, "prog"},
    {{"srun", "-N2", "--", "prog", "--gtrain-plan=x"}, NULL, "2", NULL, NULL, "prog"},
    {{"srun", "--exclusive", "prog", "--gtrain-plan=x"}, NULL, NULL, NULL, NULL, "prog"},
    {{"sbatch", "-a", "1-3", "--parsable", "job.sh", "--gtrain-plan=x"},
     NULL,
     NULL,
     NULL,
     NULL,
     "job.sh"},
    {{"sbatch", "--wait", "-o", "out", "--gtrain-plan=p", "job.sh"},
     "p",
     NULL,
     NULL,
     NULL,
     "job.sh"},
    {{"sbatch", "-W", "-N2", "--gtrain-plan=p", "job.sh"}, "p", "2", NULL, NULL, "job.sh"},
    {{"sbatch", "--gtrain-plan=p"}, "p", NULL, NULL, NULL, NULL},
    {{"srun", "--gtrain-plan"}, NULL, NULL, NULL, NULL, NULL},
    {{"srun", "-N"}, NULL, NULL, NULL, NULL, NULL},
    {{"srun"}, NULL, NULL, NULL, NULL, NULL},
    {{"srun", "-"}, NULL, NULL, NULL, NULL, "-"},
};

static int count_words(const char *const words[])
{
    int n = 0;

    while (n < WORDS_MAX && words[n])
        n++;
    return n;
}

static void assert_text(const char *got, const char *wanted)
{
    assert_string_equal(got ? got : "(nothing)", wanted ? wanted : "(nothing)");
}

static void test_scan(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(scan_cases) / sizeof(scan_cases[0]); i++) {
        const struct scan_case *s = &scan_cases[i];
        int argc = count_words(s->words);
        struct cmdline c;

        cmdline_scan(&c, argc, (char *const *)s->words);
        assert_text(c.value[OPTION_PLAN], s->plan);
        assert_text(c.nodes, s->nodes);
        assert_text(c.tasks, s->tasks);
        assert_text(c.tasks_per_node, s->tasks_per_node);
        assert_true(c.program <= argc);
        assert_text(c.program < argc ? s->words[c.program] : NULL, s->program);
    }
}

static void test_twice(void **unused)
{
    const char *same[] = {"srun", "--gtrain-dir=a", "--gtrain-dir", "a", "p"};
    const char *other[] = {"srun", "--gtrain-dir=a", "--gtrain-dir=b", "p"};
    struct cmdline c;

    (void)unused;
    cmdline_scan(&c, 5, (char *const *)same);
    assert_text(c.value[OPTION_DIR], "a");
    assert_null(c.other[OPTION_DIR]);
    cmdline_scan(&c, 4, (char *const *)other);
    assert_text(c.value[OPTION_DIR], "a");
    assert_text(c.other[OPTION_DIR], "b");
}

static void test_shapes(void **unused)
{
    const struct {
        const char *words[WORDS_MAX];
        bool pty, multi_prog, heterogeneous;
    } cases[] = {
        {{"srun", "--pty", "bash"}, true, false, false},
        {{"srun", "--pt", "bash"}, true, false, false},
        {{"srun", "bash", "--pty"}, false, false, false},
        {{"srun", "--multi-prog", "conf"}, false, true, false},
        {{"srun", "-n1", "a", ":", "-n2", "b"}, false, false, true},
        {{"srun", "--het-group=0", "a"}, false, false, true},
        {{"srun", "--het-group", "0", "a"}, false, false, true},
        {{"srun", "--profile=none", "--ntasks=2", "a"}, false, false, false},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cmdline c;

        cmdline_scan(&c, count_words(cases[i].words), (char *const *)cases[i].words);
        assert_int_equal(c.pty, cases[i].pty);
        assert_int_equal(c.multi_prog, cases[i].multi_prog);
        assert_int_equal(c.heterogeneous, cases[i].heterogeneous);
    }
}

/* Whether srun shows the tasks' text as it is, on its own output. */
static void test_output(void **unused)
{
    const struct {
        const char *words[WORDS_MAX];
        bool label, output;
    } cases[] = {
        {{"srun", "-N2", "gtrain", "train"}, false, false},
        {{"srun", "-l", "gtrain", "train"}, true, false},
        {{"srun", "-lN2", "gtrain", "train"}, true, false},
        {{"srun", "--label", "gtrain", "train"}, true, false},
        {{"srun", "-o", "f", "gtrain", "train"}, false, true},
        {{"srun", "-of", "gtrain", "train"}, false, true},
        {{"srun", "--output=f", "gtrain", "train"}, false, true},
        {{"srun", "--output", "f", "gtrain", "train"}, false, true},
        {{"srun", "-Jlol", "gtrain", "train", "-l", "-o"}, false, false},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cmdline c;
        int argc = count_words(cases[i].words);

        cmdline_scan(&c, argc, (char *const *)cases[i].words);
        assert_int_equal(c.label, cases[i].label);
        assert_int_equal(c.output, cases[i].output);
        assert_true(cmdline_runs_train(&c, argc, (char *const *)cases[i].words));
    }
}

static void test_runs_train(void **unused)
{
    const struct {
        const char *words[WORDS_MAX];
        bool train;
    } cases[] = {
        {{"srun", "gtrain", "train"}, true},
        {{"srun", "-N", "2", "/opt/bin/gtrain", "train", "x"}, true},
        {{"srun", "gtrain"}, false},
        {{"srun", "gtrain", "report"}, false},
        {{"srun", "notgtrain", "train"}, false},
        {{"srun"}, false},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int argc = count_words(cases[i].words);
        struct cmdline c;

        cmdline_scan(&c, argc, (char *const *)cases[i].words);
        assert_int_equal(cmdline_runs_train(&c, argc, (char *const *)cases[i].words),
                         cases[i].train);
    }
}

static void test_count(void **unused)
{
    const struct {
        const char *text;
        int count;
    } cases[] = {{"5", 5},           {"0", 0},   {"", 0},
                 {NULL, 0},          {"2-4", 0}, {"4k", 0},
                 {"-3", 0},          {" 3", 0},  {"1000000", 1000000},
                 {"99999999999", 0}, {"007", 7}, {"1,2", 0},
                 {"16384", 16384}};

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(cmdline_count(cases[i].text), cases[i].count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scan),       cmocka_unit_test(test_twice),
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_output),
        cmocka_unit_test(test_runs_train), cmocka_unit_test(test_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
