/* test_relaunch.c - a step that is launched again: on which nodes, by which words, and how often.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../spank/cmdline.h"
#include "../../spank/relaunch.h"
#include "launch/coordinator_relaunch.h"

static struct nodes split(const char *list)
{
    struct nodes nodes = {NULL, 0};
    char text[256], *save = NULL;
    snprintf(text, sizeof text, "%s", list);
    for (char *at = strtok_r(text, ",", &save); at; at = strtok_r(NULL, ",", &save))
        assert_int_equal(nodes_add(&nodes, at), 0);
    return nodes;
}

static void which_nodes(void **state)
{
    (void)state;
    static const struct {
        const char *step, *job, *gone;
        int want;
        const char *picked;
    } rows[] = {
        {"n0,n1,n2", "n0,n1,n2", "n1", 3, "n0,n2"},
        {"n0,n1", "n0,n1,n2,n3", "n1", 2, "n0,n2"},
        {"n2,n3", "n0,n1,n2,n3", "n3,n0", 2, "n2,n1"},
        {"n0,n1", "n0,n1,n2", "", 2, "n0,n1"},
        {"n0,n10", "n0,n1,n10", "n1", 3, "n0,n10"},
        {"n0", "n0", "n0", 1, ""},
        {"", "n4,n5", "n4", 2, "n5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct nodes step = split(rows[i].step), job = split(rows[i].job);
        struct nodes gone = split(rows[i].gone), wanted = split(rows[i].picked), pick;
        assert_int_equal(relaunch_pick(&pick, &step, &job, &gone, rows[i].want), 0);
        assert_int_equal(pick.count, wanted.count);
        for (int k = 0; k < pick.count; k++)
            assert_string_equal(pick.name[k], wanted.name[k]);
        nodes_free(&step);
        nodes_free(&job);
        nodes_free(&gone);
        nodes_free(&wanted);
        nodes_free(&pick);
    }
}

/* The program's own words stay behind the options', also where "--" parts them. */
static void which_words(void **state)
{
    (void)state;
    static const struct {
        const char *before[8], *after[10];
    } rows[] = {
        {{"srun", "-N4", "prog", "-N9"}, {"srun", "-N4", "-N", "3", "prog", "-N9"}},
        {{"srun", "-N", "4", "--", "prog"}, {"srun", "-N", "4", "-N", "3", "--", "prog"}},
        {{"srun", "--exclusive=user", "-r", "1", "-l", "prog", "-r"},
         {"srun", "-l", "-N", "3", "prog", "-r"}},
        {{"srun", "-r1", "--relative", "2", "--exclusive", "prog"}, {"srun", "-N", "3", "prog"}},
        {{"srun", "prog", "--", "x"}, {"srun", "-N", "3", "prog", "--", "x"}},
    };
    char *more[] = {"-N", "3", NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cmdline c;
        int argc = 0, n = 0;
        while (rows[i].before[argc])
            argc++;
        cmdline_scan(&c, argc, (char *const *)rows[i].before);
        char **words = relaunch_words(&c, argc, (char *const *)rows[i].before, more);
        assert_non_null(words);
        for (; rows[i].after[n]; n++)
            assert_string_equal(words[n], rows[i].after[n]);
        assert_null(words[n]);
        free(words);
    }
}

static void fail_nodes(struct runstate *record, const char *list)
{
    struct nodes nodes = split(list);
    for (int i = 0; i < nodes.count; i++)
        assert_int_equal(runstate_failed(record, nodes.name[i], "test"), 0);
    nodes_free(&nodes);
}

static void open_run(struct run *run)
{
    struct run_config config = {.nodes = 3,
                                .tasks = 3,
                                .shape = {.inner = 1, .pipeline = 2, .data = 1, .tasks = 1},
                                .generation = 1};
    struct err err;
    assert_int_equal(run_open(run, &config, 0, &err), 0);
}

static void when(void **state)
{
    (void)state;
    static const struct {
        const char *job_nodes, *failed;
        int left, machine, code, ordered, srun_is_gone, silent, possible;
    } rows[] = {
        {"n0,n1,n2", "n1", 3, 1, 1, 0, 0, 0, 1},
        {"n0,n1,n2", "n1,n2", 3, 1, 1, 0, 0, 0, 0}, /* two ranks need two nodes */
        {"n0,n1,n10", "n1", 3, 1, 1, 0, 0, 0, 1},
        {"n0,n1,n2,n3", "n1,n2", 1, 1, 1, 0, 0, 0, 1},
        {"n0,n1,n2", "n1", 0, 1, 1, 0, 0, 0, 0}, /* often enough */
        {"n0,n1,n2", "n1", 3, 0, 3, 0, 0, 0, 0}, /* the program's own fault */
        {"n0,n1,n2", "", 3, 1, 0, 0, 0, 0, 0},   /* success */
        {"n0,n1,n2", "n1", 3, 1, 1, 1, 0, 0, 0}, /* somebody ordered it */
        {"n0,n1,n2", "n1", 3, 1, 1, 0, 1, 0, 0}, /* nobody there to do it */
        {"n0,n1,n2", "n1", 3, 1, 1, 0, 1, 1, 1}, /* srun is ending for that reason */
        {NULL, "n1", 3, 1, 1, 0, 0, 0, 0},       /* its allocation goes with it */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct runstate record = {.begun = -1};
        struct relaunch r;
        struct run run;
        open_run(&run);
        fail_nodes(&record, rows[i].failed);
        relaunch_begin(&r, rows[i].job_nodes, 3, rows[i].left, &run, &record);
        r.silent = rows[i].silent;
        run.machine = rows[i].machine;
        run.code = (uint8_t)rows[i].code;
        run.ordered = rows[i].ordered;
        if (relaunch_possible(&r, &run, &record, rows[i].srun_is_gone) != rows[i].possible)
            fail_msg("row %zu: it should be %d", i, rows[i].possible);
        run_close(&run);
        runstate_free(&record);
    }
}

/* Only a launch that begins from a later step than the one before has got anywhere. */
static void progress(void **state)
{
    (void)state;
    static const struct {
        int64_t before, begin;
        int left, left_then;
    } rows[] = {{-1, 0, 1, 3}, {0, 0, 1, 1}, {40, 40, 2, 2}, {40, 41, 0, 3}, {40, 30, 2, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct runstate record = {.begun = rows[i].before};
        struct relaunch r;
        struct run run;
        open_run(&run);
        relaunch_begin(&r, "n0,n1", 3, rows[i].left, &run, &record);
        assert_int_equal(relaunch_progress(&r, &run, &record), 0); /* not all have begun */
        run.phases.restored = 5;
        run.ranks[0].begin = rows[i].begin;
        assert_int_equal(relaunch_progress(&r, &run, &record), 1);
        assert_int_equal(relaunch_progress(&r, &run, &record), 0);
        assert_int_equal(r.left, rows[i].left_then);
        assert_int_equal(record.begun, rows[i].begin);
        run_close(&run);
    }
}

/* srun names nodes in lines that may come in pieces; healthy ones that it ended are not lost. */
static void not_launched(void **state)
{
    (void)state;
    struct runstate record = {.begun = -1};
    struct relaunch r;
    struct run run;
    struct err err;
    open_run(&run);
    relaunch_begin(&r, "n0,n1,n2", 3, -1, &run, &record);
    struct message_register info = {.node = "n0", .local_tasks = 1};
    assert_int_equal(run_register(&run, &info, 0, &err), 0);
    run_closed(&run, 0, 1);
    assert_int_equal(relaunch_hear(&r, "silent n", 8, &run, &record), 0);
    assert_int_equal(relaunch_hear(&r, "2\nnonsense\nsilent n1\nsil", 24, &run, &record), 0);
    relaunch_blame(&r, &run, &record, 2);
    run_tick(&run, 2);
    assert_int_equal(run.phase, RUN_ENDED);
    assert_string_equal(run.text, "node n1 and 1 more did not answer while the step was launched");
    assert_int_equal(runstate_lost(&record, &run), 0);
    assert_int_equal(record.n_failed, 2);
    assert_int_equal(relaunch_usable("n0,n1,n2", &record), 1);
    assert_int_equal(relaunch_usable("", &record), 0);
    run_close(&run);
    runstate_free(&record);
}

/* What srun answers: nodes that have registered do not count, and only an end is recorded. */
static void absent(void **state)
{
    (void)state;
    struct runstate record = {.begun = -1};
    struct relaunch r;
    struct run run;
    struct err err;
    static const char answer[] = "absent n0\nabsent n1\nabsent n2\nasked\n", none[] = "asked\n";
    open_run(&run);
    relaunch_begin(&r, "n0,n1,n2", 3, -1, &run, &record);
    struct message_register info = {.node = "n0", .local_tasks = 1};
    assert_int_equal(run_register(&run, &info, 0, &err), 0);
    for (int i = 0; i < 4; i++) {
        const char *text = i == 1 ? none : answer;
        assert_int_equal(relaunch_answer(&r, &run, &record, i), 0); /* not complete yet */
        assert_int_equal(relaunch_hear(&r, text, strlen(text), &run, &record), 0);
        assert_int_equal(record.n_failed, 0);
        assert_int_equal(run.cause, RUN_CAUSE_NONE);
        assert_int_equal(relaunch_answer(&r, &run, &record, i), 0);
    }
    run_tick(&run, 4);
    assert_int_equal(run.phase, RUN_ENDED);
    assert_string_equal(run.text, "node n1 and 1 more did not answer while the step was launched");
    assert_int_equal(record.n_failed, 2);
    assert_string_equal(record.failed[1].node, "n2");
    assert_int_equal(relaunch_possible(&r, &run, &record, 0), 0); /* n0 alone is too few */
    relaunch_end(&r);
    run_close(&run);
    runstate_free(&record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_nodes), cmocka_unit_test(which_words),  cmocka_unit_test(when),
        cmocka_unit_test(progress),    cmocka_unit_test(not_launched), cmocka_unit_test(absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
