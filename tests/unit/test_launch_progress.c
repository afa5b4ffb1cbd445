/* test_launch_progress.c - the coordinator's rules: who holds the run up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run_rig.h"

/* Four ranks on four nodes that make a step every `ms`, `n` of them. Returns the time. */
static int64_t train(struct run *run, int n, int64_t ms)
{
    rig_start_with(run, 5, 1, 4, 3);
    run->config.stall_ms = 2000;
    run->config.steps = 1000;
    int64_t t = 0;
    for (int step = 0; step <= n; step++, t += ms)
        for (int r = 0; r < 4; r++) {
            assert_int_equal(run_progress(run, r, (uint32_t)r, step, 0, t), 0);
            for (int i = 0; i < 5; i++)
                run_heard(run, i, t);
            run_tick(run, t);
        }
    return t - ms;
}

/* Time passes, all nodes alive, until the agents are asked. */
static int64_t until_looked(struct run *run, int64_t t, int looks)
{
    while (run->progress.looks < looks && t < 1000000) {
        t += 10;
        for (int i = 0; i < 5; i++)
            run_heard(run, i, t);
        run_tick(run, t);
    }
    return t;
}

static void deadlines(void **state)
{
    (void)state;
    struct run run;
    train(&run, 0, 100); /* no step is done yet */
    assert_true(progress_deadline_ms(&run) == INT64_MAX);
    run_close(&run);
    train(&run, 10, 100); /* the floor */
    assert_int_equal(progress_deadline_ms(&run), 2000);
    run_close(&run);
    int64_t t = train(&run, 10, 500); /* ten times what steps take */
    assert_int_equal(progress_deadline_ms(&run), 5000);
    assert_int_equal(run_progress(&run, 0, 0, 11, 0, t + 4000), 0); /* one that saves, perhaps */
    assert_int_equal(progress_deadline_ms(&run), 12000);
    assert_int_equal(run_done(&run, 2, 2), 0); /* the end takes what it takes */
    assert_true(progress_deadline_ms(&run) == INT64_MAX);
    run_close(&run);
    train(&run, 10, 500);
    assert_int_equal(run_signalled(&run, 2, 2), 0); /* so does a stop that was asked for */
    assert_true(progress_deadline_ms(&run) == INT64_MAX);
    run_close(&run);
}

static void slow_is_not_hung(void **state)
{
    (void)state;
    struct run run;
    int64_t t = train(&run, 10, 100);
    for (int step = 11; step < 15; step++, t += 1900) {
        until_looked(&run, t, 1); /* runs into the deadline... */
        for (int r = 0; r < 4; r++)
            run_progress(&run, r, (uint32_t)r, step, 0, t + 2100); /* ...but there it is */
        for (int i = 0; i < 5; i++)
            run_heard(&run, i, t + 2100);
        run_tick(&run, t + 2100);
        t += 2100;
        assert_int_equal(run.progress.looks, 0);
        assert_int_equal(run.config.generation, 1);
    }
    run_close(&run);
}

/* Everybody silent, as in a job that is suspended: nobody hangs, then or just afterwards. */
static void suspended_is_not_hung(void **state)
{
    (void)state;
    struct run run;
    int64_t t = train(&run, 10, 100), resumed = t + 60000;
    for (; t < resumed; t += 50)
        run_tick(&run, t);
    assert_int_equal(run.progress.looks, 0);
    for (int i = 0; i < 5; i++)
        run_heard(&run, i, t);
    run_tick(&run, t);
    t = until_looked(&run, t, 1);
    assert_int_equal(run.config.generation, 1);
    assert_in_range(t - resumed, 1400, 2200); /* the deadline, less a few heartbeats */
    run_close(&run);
}

static void culprits(void **state)
{
    (void)state;
    static const struct {
        char states[5];
        int64_t cpu[4]; /* between the looks */
        int behind;     /* the rank that is a step behind, -1 none */
        const char *text;
    } table[] = {
        {"SSTS",
         {0, 0, 0, 0},
         -1,
         "rank 2 on node n2 hangs after step 10: it is stopped by a signal"},
        {"SRSS", {0, 490, 0, 0}, 3, "rank 1 on node n1 hangs after step 10: it computes, while"},
        /* Others want the cores, too. */
        {"SRSR", {0, 90, 0, 60}, 3, "rank 1 on node n1 hangs after step 10: it computes, while"},
        {"SSSD", {20, 10, 0, 0}, 0, "rank 3 on node n3 hangs after step 10: it waits for a disk"},
        {"SSSS", {0, 0, 0, 0}, 2, "rank 2 on node n2 hangs after step 9: all ranks wait"},
        {"SS-S",
         {0, 0, 0, 0},
         1,
         "node n2 is lost (rank 2): rank 2 on node n2 hangs after step 10: its "
         "agent does not answer"},
    };
    for (size_t c = 0; c < sizeof table / sizeof *table; c++) {
        struct run run;
        int64_t t = train(&run, 10, 100);
        if (table[c].behind >= 0)
            run.ranks[table[c].behind].step = 9;
        for (int look = 1; look <= 2; look++) {
            t = until_looked(&run, t, look);
            for (int r = 0; r < 4; r++)
                if (table[c].states[r] != '-')
                    assert_int_equal(run_seen(&run, r, (uint32_t)r, table[c].states[r],
                                              (look - 1) * table[c].cpu[r]),
                                     0);
        }
        assert_int_equal(run.config.generation, 1);
        for (int i = 0; i < 5; i++)
            run_heard(&run, i, t + PROGRESS_LOOK_MS);
        run_tick(&run, t + PROGRESS_LOOK_MS);
        assert_int_equal(run.config.generation, 2);
        if (strncmp(run.failure.text, table[c].text, strlen(table[c].text)))
            fail_msg("'%s' is not '%s...'", run.failure.text, table[c].text);
        int lost = table[c].states[2] == '-';
        assert_string_equal(run.action, lost ? "node n4 takes over rank 2"
                                             : "it is started again on the same node");
        run_close(&run);
    }
}

/* Named once, with what it costs. */
static void slow_ranks_are_named(void **state)
{
    (void)state;
    struct run run;
    int named = 0;
    train(&run, 0, 100);
    for (int step = 1; step < 10 * PROGRESS_SLOW_EVERY; step++)
        for (int r = 0; r < 4; r++) {
            int64_t t = step * 100;
            run_progress(&run, r, (uint32_t)r, step, r == 1 ? 80000 : 40000 + 1000 * (uint32_t)r,
                         t);
            for (int i = 0; i < 5; i++)
                run_heard(&run, i, t);
            run_tick(&run, t);
            if (!*run.progress.slow)
                continue;
            named++;
            assert_string_equal(
                run.progress.slow,
                "rank 1 on node n1 is slow: a step costs it 80.0 ms of its own, the "
                "median of all ranks is 43.0 ms");
            run.progress.slow[0] = 0;
        }
    assert_int_equal(named, 1);
    run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deadlines),
        cmocka_unit_test(slow_is_not_hung),
        cmocka_unit_test(suspended_is_not_hung),
        cmocka_unit_test(culprits),
        cmocka_unit_test(slow_ranks_are_named),
    };
    return cmocka_run_group_tests_name("launch progress", tests, NULL, NULL);
}
