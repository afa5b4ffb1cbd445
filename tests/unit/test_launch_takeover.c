/* test_launch_takeover.c - the coordinator's rules: what follows a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>

#include <cmocka.h>

#include "run_rig.h"

static void spare_takes_over(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 4, 2, 4);
    rig_runs(&run, 5, 1, "n0 n0 n1 n1");
    assert_int_equal(run_exited(&run, 1, &(struct message_exited){.who = {3, 1}}, 6), 0);
    run_closed(&run, 1, 10);
    rig_runs(&run, 10, 2, "n0 n0 n2 n2");
    assert_string_equal(run.action, "node n2 takes over ranks 2-3");
    assert_int_equal(run.ranks[3].exited, 0); /* all start anew */
    assert_int_equal(run_spares(&run), 1);
    assert_int_equal(run_opened(&run, 1, 2, 11), -1); /* n1 has no rank any more */
    run_closed(&run, 0, 20);
    rig_runs(&run, 20, 3, "n3 n3 n2 n2");
    run_closed(&run, 2, 30);
    rig_ends_with(&run, 30, 1, "node n2 is lost (ranks 2-3): its agent is gone; no spare is left");
}

static void two_at_once(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 6, 1, 4);
    run_closed(&run, 0, 10);
    run_closed(&run, 2, 10);
    rig_runs(&run, 10, 2, "n4 n1 n5 n3");
    assert_string_equal(run.action, "node n4 takes over rank 0, node n5 takes over rank 2");
    run_close(&run);
}

static void fewer_replicas(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = rig_config(5, 1, 4);
    struct err err;
    c.least_data = 2;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 5; i++) {
        struct message_register r = rig_node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    assert_int_equal(run_place(&run, &err), 0);
    run_closed(&run, 1, 10); /* a spare first */
    rig_runs(&run, 10, 2, "n0 n4 n2 n3");
    assert_int_equal(run.config.shape.data, 4);
    run_closed(&run, 0, 20);
    rig_runs(&run, 20, 3, "n3 n4 n2");
    assert_int_equal(run.world, 3);
    assert_int_equal(run.config.shape.data, 3);
    assert_int_equal(run.replicas, 4);
    assert_string_equal(run.action, "no spare is left: it goes on with 3 of 4 replicas on 3 nodes");
    assert_int_equal(run_opened(&run, 3, 3, 25), -1); /* no such rank any more */
    run_closed(&run, 2, 30);
    rig_runs(&run, 30, 4, "n3 n4");
    run_closed(&run, 3, 40);
    rig_ends_with(&run, 40, 1,
                  "node n3 is lost (rank 0): its agent is gone; no spare is left, nor nodes for 2 "
                  "replicas (resilience.min_data)");
}

/* All ranks of the smaller world are enough for the end. */
static void fewer_replicas_finish(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = rig_config(3, 2, 6);
    struct err err;
    c.least_data = 1;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = rig_node(i, 2);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    assert_int_equal(run_place(&run, &err), 0);
    run_closed(&run, 1, 10);
    rig_runs(&run, 10, 2, "n0 n0 n2 n2");
    for (uint32_t r = 0; r < 4; r++)
        rig_rank_exits(&run, r, 0, 0, 0, 20);
    rig_ends_with(&run, 20, 0, "all ranks are done");
}

/* The worker's death is heard first, its node's right after: one generation is lost, not two. */
static void dying_node(void **state)
{
    (void)state;
    struct run run;
    rig_start_with(&run, 3, 1, 2, 3);
    rig_rank_exits(&run, 1, 0, SIGKILL, 0, 10);
    rig_rank_exits(&run, 0, 1, 0, 0, 12);
    rig_runs(&run, 12, 1, "n0 n1");
    run_closed(&run, 1, 20);
    rig_runs(&run, 20, 2, "n0 n2");
    assert_int_equal(run.ranks[1].failures, 0);
    run_close(&run);
}

static void crash_restarts_in_place(void **state)
{
    (void)state;
    struct run run;
    rig_start_with(&run, 3, 1, 2, 2);
    int64_t t = 0;
    uint32_t generation = 1;
    for (int i = 0; i < 10; i++) { /* each time it gets further: as often as it likes */
        assert_int_equal(run_progress(&run, 1, 1, i, 0, t), 0);
        rig_rank_exits(&run, 1, 0, SIGSEGV, 0, t);
        t += RUN_FOLLOW_MS;
        run_heard(&run, 0, t);
        rig_runs(&run, t, ++generation, "n0 n1");
        assert_string_equal(run.action, "it is started again on the same node");
    }
    for (int i = 0; i < 2; i++) { /* one time without getting further is counted already */
        rig_rank_exits(&run, 1, 0, SIGSEGV, 0, t);
        t += RUN_FOLLOW_MS;
        run_heard(&run, 0, t);
        if (i == 0)
            rig_runs(&run, t, ++generation, "n0 n1");
    }
    rig_ends_with(
        &run, t, 128 + SIGSEGV,
        "rank 1 on node n1 ended with signal 11 (Segmentation fault), 3 times, and the run "
        "got no further than step 9: that is taken for a bug in the program "
        "(resilience.restarts is 2)");
}

static void hopeless_ends(void **state)
{
    (void)state;
    static const struct {
        int code, flags, ends;
    } cases[] = {
        {2, EXITED_OPENED, 1}, /* gtrain train: the plan does not fit */
        {3, EXITED_OPENED, 1}, /* gtrain train: diverged */
        {2, 0, 0},             /* some other program */
        {2, EXITED_NEVER, 1},  /* ENOENT */
        {4, EXITED_OPENED, 0},
        {1, EXITED_OPENED, 0},
        {0, EXITED_OPENED, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run run;
        rig_start_with(&run, 2, 1, 2, 3);
        rig_rank_exits(&run, 0, cases[i].code, 0, cases[i].flags, 10);
        run_tick(&run, 10 + RUN_SETTLE_MS);
        assert_int_equal(run.phase, cases[i].ends ? RUN_ENDED : RUN_RUNNING);
        assert_int_equal(run.config.generation, cases[i].ends ? 1 : 2);
        if (cases[i].ends)
            assert_int_equal(run.code, cases[i].code);
        run_close(&run);
    }
}

/* Going back to an older checkpoint is nobody's bug; from a program that says so for ever, it is.
 */
static void going_back_is_no_bug(void **state)
{
    (void)state;
    struct run run;
    int64_t t = 10;
    rig_start_with(&run, 2, 1, 2, 0);
    run_progress(&run, 0, 0, 7, 0, t);
    for (uint32_t backs = 1; backs <= RUN_BACKS_MOST; backs++, t += 1000) {
        rig_rank_exits(&run, 0, RUN_EXIT_BACK, 0, EXITED_OPENED, t);
        rig_runs(&run, t, backs, "n0 n1"); /* for a moment, somebody may explain it better */
        rig_runs(&run, t + RUN_SETTLE_MS, backs + 1, "n0 n1");
    }
    assert_string_equal(run.failure.text, "the run goes back to an older checkpoint");
    run_progress(&run, 0, 0, 8, 0, t); /* further than ever */
    rig_rank_exits(&run, 0, RUN_EXIT_BACK, 0, EXITED_OPENED, t);
    rig_runs(&run, t + RUN_SETTLE_MS, RUN_BACKS_MOST + 2, "n0 n1");
    run.backs = RUN_BACKS_MOST;
    rig_rank_exits(&run, 0, RUN_EXIT_BACK, 0, EXITED_OPENED, t + 1000);
    rig_ends_with(&run, t + 1000, RUN_EXIT_BACK, "rank 0 on node n0 ended with exit code 5");
    /* another program's own code */
    rig_start_with(&run, 2, 1, 2, 0);
    rig_rank_exits(&run, 0, RUN_EXIT_BACK, 0, 0, 10);
    rig_ends_with(&run, 10, RUN_EXIT_BACK, "rank 0 on node n0 ended with exit code 5");
}

/* A later generation's worker that finds its node unfit (its disk is full): another node. */
static void unfit_node_is_replaced(void **state)
{
    (void)state;
    struct run run;
    rig_start_with(&run, 4, 1, 2, 1);
    run_closed(&run, 0, 10);
    run_tick(&run, 10);
    assert_int_equal(run.config.generation, 2);
    int node = run.ranks[0].node;
    rig_rank_exits(&run, 0, RUN_EXIT_UNFIT, 0, EXITED_OPENED, 20);
    run_tick(&run, 20);
    assert_int_equal(run.config.generation, 3);
    assert_int_equal(run.nodes[node].state, RUN_NODE_LOST);
    assert_int_not_equal(run.ranks[0].node, node);
    rig_rank_exits(&run, 1, RUN_EXIT_UNFIT, 0, EXITED_OPENED, 30); /* and no spare is left */
    run_tick(&run, 30);
    assert_int_equal(run.phase, RUN_ENDED);
    assert_true(run.machine);
    run_close(&run);
}

/* A node whose connection broke is back or lost within the patience: until then nobody knows whom
 * to start what on. */
static void half_lost_is_waited_for(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct message_register back = rig_node(1, 1);
    back.epoch = 5;
    back.generation = 1;
    rig_start_with(&run, 3, 1, 2, 3);
    run_broken(&run, 1, 10);
    rig_rank_exits(&run, 0, 1, 0, 0, 10);
    run_heard(&run, 0, 500);
    rig_runs(&run, 500, 1, "n0 n1");
    assert_int_equal(run_register(&run, &back, 600, &err), 1);
    rig_runs(&run, 600, 2, "n0 n1");
    run_broken(&run, 1, 610);
    rig_rank_exits(&run, 0, 1, 0, 0, 620);
    run_heard(&run, 0, 1000);
    rig_runs(&run, 1000, 2, "n0 n1");
    /* It comes back from before the generation it has not heard of. */
    assert_int_equal(run_register(&run, &back, 1100, &err), 1);
    run_broken(&run, 1, 1100);
    run_heard(&run, 0, 1500);
    run_heard(&run, 2, 1500);
    run_tick(&run, 1500);
    run_heard(&run, 0, 2000);
    run_heard(&run, 2, 2000);
    run_tick(&run, 2000);
    run_heard(&run, 0, 2101);
    run_heard(&run, 2, 2101);
    rig_runs(&run, 2101, 3, "n0 n2");
    assert_int_equal(run.phases.silent_ms, 1001);
    run_close(&run);
}

static void without_its_agent_a_node_is_lost(void **state)
{
    (void)state;
    struct run run;
    rig_start_with(&run, 3, 2, 4, 3);
    rig_rank_exits(&run, 3, 0, SIGKILL, EXITED_NO_AGENT, 10);
    assert_string_equal(run.failure.text,
                        "node n1 is lost (ranks 2-3): the agent of rank 3 is gone");
    rig_runs(&run, 10, 2, "n0 n0 n2 n2");
    run_close(&run);
}

static void order_is_no_takeover(void **state)
{
    (void)state;
    struct run run;
    rig_start_with(&run, 3, 1, 2, 3);
    rig_rank_exits(&run, 0, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 10);
    run_closed(&run, 1, 20);
    rig_ends_with(&run, 20, 1, "node n1 is lost (rank 1): its agent is gone");
}

/* The others need nothing from a node whose ranks are done. */
static void done_nodes_may_go(void **state)
{
    (void)state;
    struct run run;
    rig_start(&run, 2, 1, 2);
    assert_int_equal(run_opened(&run, 1, 1, 5), 0);
    assert_int_equal(run_done(&run, 1, 1), 0);
    run_closed(&run, 1, 10);
    rig_runs(&run, 10, 1, "n0 n1");
    rig_rank_exits(&run, 0, 0, 0, EXITED_OPENED | EXITED_DONE, 20);
    rig_ends_with(&run, 20, 0, "all ranks are done");
}

static void phases_add_up(void **state)
{
    (void)state;
    struct run run;
    char text[256];
    rig_start(&run, 3, 1, 2);
    run_closed(&run, 0, 1000);
    rig_runs(&run, 1010, 2, "n2 n1");
    run_opened(&run, 1, 1, 1100);
    run_opened(&run, 2, 0, 1200);
    run_met(&run, 1250);
    run_progress(&run, 1, 1, 7, 0, 1300);
    run_progress(&run, 1, 1, 8, 0, 1310);
    takeover_describe(&run.phases, text, sizeof text);
    assert_string_equal(text, "detect 0.000 s, decide 0.010 s, restart 0.190 s, communicate "
                              "0.050 s");
    run_progress(&run, 2, 0, 7, 0, 1320);
    run_progress(&run, 2, 0, 8, 0, 2000);
    takeover_describe(&run.phases, text, sizeof text);
    assert_string_equal(text,
                        "detect 0.000 s, decide 0.010 s, restart 0.190 s, communicate 0.050 s, "
                        "restore 0.070 s, first step 0.680 s: 1.000 s in all");
    run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spare_takes_over),
        cmocka_unit_test(two_at_once),
        cmocka_unit_test(fewer_replicas),
        cmocka_unit_test(fewer_replicas_finish),
        cmocka_unit_test(dying_node),
        cmocka_unit_test(crash_restarts_in_place),
        cmocka_unit_test(hopeless_ends),
        cmocka_unit_test(going_back_is_no_bug),
        cmocka_unit_test(unfit_node_is_replaced),
        cmocka_unit_test(half_lost_is_waited_for),
        cmocka_unit_test(without_its_agent_a_node_is_lost),
        cmocka_unit_test(order_is_no_takeover),
        cmocka_unit_test(done_nodes_may_go),
        cmocka_unit_test(phases_add_up),
    };
    return cmocka_run_group_tests_name("launch takeover", tests, NULL, NULL);
}
