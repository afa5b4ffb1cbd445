/* test_launch_rules.c - the coordinator's rules: how a step ends, and who is lost. The clock is
 * made of numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <signal.h>

#include <cmocka.h>

#include "run_rig.h"

static void shapes_refused(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(4, 1, 4);
    c.tasks = 7;
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "use -N4 --ntasks-per-node=2"));
    c = rig_config(4, 2, 7);
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "7 ranks, which do not fill nodes of 2 tasks"));
    c = rig_config(4, 1, 4);
    c.spares = 1;
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "use -N5"));
}

static void all_done(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 2, 2, 4);
    for (uint32_t r = 0; r < 4; r++) {
        run_tick(&run, 10);
        assert_int_equal(run.phase, RUN_RUNNING);
        rig_rank_exits(&run, r, 0, 0, 0, 10);
    }
    rig_ends_with(&run, 10, 0, "all ranks are done");
}

/* A rank that opened and was not done has failed, whatever its exit code says. */
static void zero_is_not_done(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 1, 2, 2);
    assert_int_equal(run_opened(&run, 0, 1, 5), 0);
    assert_int_equal(run_opened(&run, 0, 2, 5), -1); /* no such rank */
    rig_rank_exits(&run, 0, 0, 0, EXITED_OPENED | EXITED_DONE, 10);
    rig_rank_exits(&run, 1, 0, 0, 0, 10);
    rig_ends_with(&run, 10, 1, "rank 1 on node n0 ended before its work was done");
}

/* "My peer is gone" (exit code 1) comes first, the peer's death right after: that is the cause. */
static void better_cause_wins(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 3, 1, 3);
    rig_rank_exits(&run, 0, 1, 0, 0, 10);
    run_tick(&run, 10);
    assert_int_equal(run.phase, RUN_RUNNING);
    rig_rank_exits(&run, 1, 0, SIGSEGV, 0, 50);
    rig_rank_exits(&run, 2, 3, 0, 0, 50);
    rig_ends_with(&run, 50, 128 + SIGSEGV,
                  "rank 1 on node n1 ended with signal 11 (Segmentation fault)");
    rig_start(&run, 3, 1, 3);
    rig_rank_exits(&run, 0, 1, 0, 0, 10);
    run_tick(&run, 10 + RUN_SETTLE_MS - 1);
    assert_int_equal(run.phase, RUN_RUNNING);
    rig_ends_with(&run, 10 + RUN_SETTLE_MS, 1, "rank 0 on node n0 ended with exit code 1");
}

/* On a signal to the step the others get the time that Slurm gives them. */
static void orders_are_no_failure(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 2, 1, 2);
    rig_rank_exits(&run, 0, 0, SIGTERM, EXITED_ORDERED, 10);
    for (int64_t t = 10; t < 5000; t += BEAT) {
        run_heard(&run, 0, t);
        run_heard(&run, 1, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    rig_rank_exits(&run, 1, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 5000);
    assert_int_equal(run.machine, 0);
    rig_ends_with(&run, 5000, 128 + SIGTERM,
                  "rank 0 on node n0 ended with signal 15 (Terminated) on a signal to the step");
    /* all of them stop in good order: nothing has failed */
    rig_start(&run, 2, 1, 2);
    rig_rank_exits(&run, 0, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 10);
    rig_rank_exits(&run, 1, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 20);
    rig_ends_with(&run, 20, 0, "all ranks are done");
}

static void close_is_dead_now(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 2, 2, 4);
    run_closed(&run, 1, 10);
    run_tick(&run, 10);
    assert_int_equal(run.machine, 1); /* on more nodes it could go on */
    rig_ends_with(&run, 10, 1, "node n1 is lost (ranks 2-3): its agent is gone; no spare is left");
}

static void spares_may_go(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 3, 1, 2);
    assert_int_equal(run_spares(&run), 1);
    run_closed(&run, 2, 10);
    run_tick(&run, 10);
    assert_int_equal(run.phase, RUN_RUNNING);
    assert_int_equal(run_spares(&run), 0);
    run_close(&run);
}

static void silence_gets_patience(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 2, 1, 2);
    int64_t t = 0;
    for (; t <= PATIENCE; t += BEAT) {
        run_heard(&run, 0, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    run_heard(&run, 0, t);
    rig_ends_with(&run, t, 1, "node n1 is lost (rank 1): it is silent for 1.0 s; no spare is left");
}

/* A broken connection that is made again in time costs nothing. */
static void broken_may_come_back(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct message_register back = rig_node(1, 1), foreign = rig_node(1, 1);
    back.epoch = 5;
    back.generation = 1;
    foreign.epoch = 4;
    foreign.generation = 1;
    rig_start(&run, 2, 1, 2);
    run_broken(&run, 1, 100);
    assert_int_equal(run_register(&run, &foreign, 500, &err), -1);
    assert_int_equal(run_register(&run, &back, 500, &err), 1);
    run_heard(&run, 0, 900);
    run_heard(&run, 1, 900);
    run_tick(&run, 900);
    assert_int_equal(run.phase, RUN_RUNNING);
    run_broken(&run, 1, 1000);
    for (int64_t t = 1000; t <= 2000; t += BEAT) {
        run_heard(&run, 0, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    run_heard(&run, 0, 2100);
    run_tick(&run, 2100);
    assert_int_equal(run_register(&run, &back, 2100, &err), -1);
    assert_string_equal(err.text, "node n1 came back after it had been given up");
    rig_ends_with(
        &run, 2100, 1,
        "node n1 is lost (rank 1): its connection broke and was not made again for 1.0 s; no "
        "spare is left");
}

/* All silent at once, or a jump of our own clock: nobody is dead. */
static void common_silence_is_ours(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 3, 1, 3);
    int64_t t = 0;
    for (; t < 20 * PATIENCE; t += BEAT) {
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    /* One is heard; the others have their patience from now on. */
    run_heard(&run, 1, t);
    run_tick(&run, t);
    assert_int_equal(run.phase, RUN_RUNNING);
    run_heard(&run, 0, t + 500);
    run_heard(&run, 2, t + 500);
    run_tick(&run, t + 500);
    assert_int_equal(run.phase, RUN_RUNNING);
    /* We slept for an hour. */
    run_tick(&run, t + 3600000);
    run_heard(&run, 0, t + 3600000);
    run_tick(&run, t + 3600100);
    assert_int_equal(run.phase, RUN_RUNNING);
    run_close(&run);
}

/* A job is suspended node after node, and so resumed; what was said last is of other moments, too.
 * pause: how long all are still. The nodes stop `apart` one after the other, and start so. */
static void suspend(int64_t pause, int64_t apart)
{
    struct run run;
    rig_start(&run, 4, 1, 4);
    int64_t stopped = 5000, resumed = stopped + pause, end = resumed + 5 * PATIENCE;
    for (int64_t t = 0; t < end; t += BEAT / 2) {
        for (int i = 0; i < 4; i++)
            if ((t < stopped + i * apart || t >= resumed + i * apart) &&
                t % BEAT == i % 2 * BEAT / 2)
                run_heard(&run, i, t);
        run_tick(&run, t);
        if (run.phase != RUN_RUNNING || run.cause || run.failure.cause)
            fail_msg("%lld ms, %lld apart: at %lld: %s", (long long)pause, (long long)apart,
                     (long long)t, run.text);
    }
    run_close(&run);
}

static void suspended_one_after_the_other(void **state)
{
    (void)state;
    for (int64_t pause = PATIENCE; pause < 10 * PATIENCE; pause += 350)
        for (int64_t apart = 0; apart <= 150; apart += BEAT / 2)
            suspend(pause, apart);
}

/* All but one are dead, and that one is heard seldom, as on a busy machine: they are found, once it
 * has been heard often enough. */
static void rare_voices_find_the_dead(void **state)
{
    (void)state;
    static const int64_t every[] = {BEAT, 2 * BEAT, 3 * BEAT, 6 * BEAT, 12 * BEAT, 30 * BEAT};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        struct run run;
        rig_start(&run, 3, 1, 3);
        int64_t t = 0;
        for (; !run.cause && t < 100 * PATIENCE; t += BEAT) {
            if (t % every[i] == 0)
                run_heard(&run, 0, t);
            run_tick(&run, t);
        }
        int64_t most = every[i] > PATIENCE / 4 ? 5 * every[i] : PATIENCE + every[i];
        assert_in_range(t, PATIENCE, most + BEAT);
        run_close(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_refused),
        cmocka_unit_test(all_done),
        cmocka_unit_test(zero_is_not_done),
        cmocka_unit_test(better_cause_wins),
        cmocka_unit_test(orders_are_no_failure),
        cmocka_unit_test(close_is_dead_now),
        cmocka_unit_test(spares_may_go),
        cmocka_unit_test(silence_gets_patience),
        cmocka_unit_test(broken_may_come_back),
        cmocka_unit_test(common_silence_is_ours),
        cmocka_unit_test(suspended_one_after_the_other),
        cmocka_unit_test(rare_voices_find_the_dead),
    };
    return cmocka_run_group_tests_name("launch rules", tests, NULL, NULL);
}
