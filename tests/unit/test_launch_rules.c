/* test_launch_rules.c - the coordinator's rules, with a clock made of numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>

#include <cmocka.h>

#include "launch/takeover.h"

enum { PATIENCE = 1000, BEAT = 100 };

static struct run_config config(int nodes, int tasks, int world)
{
    return (struct run_config){
        .nodes = nodes,
        .tasks = nodes * tasks,
        .shape = {.inner = 1, .pipeline = 1, .data = world, .tasks = tasks},
        .heartbeat_ms = BEAT,
        .patience_ms = PATIENCE,
        .epoch = 5,
        .generation = 1,
    };
}

static struct message_register node(int i, int tasks)
{
    struct message_register r = {.node_id = (uint32_t)i, .local_tasks = (uint32_t)tasks};
    snprintf(r.node, sizeof r.node, "n%d", i);
    return r;
}

/* A run of that many nodes and ranks, placed at time 0; failing ranks are restarted so often. */
static void start_with(struct run *run, int nodes, int tasks, int world, int restarts)
{
    struct run_config c = config(nodes, tasks, world);
    c.restarts = restarts;
    struct err err;
    if (run_open(run, &c, 0, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < nodes; i++) {
        struct message_register r = node(i, tasks);
        assert_int_equal(run_complete(run), 0);
        assert_int_equal(run_register(run, &r, 0, &err), i);
    }
    assert_int_equal(run_complete(run), 1);
    assert_int_equal(run_place(run, &err), 0);
    assert_int_equal(run->phase, RUN_RUNNING);
}

static void start(struct run *run, int nodes, int tasks, int world)
{
    start_with(run, nodes, tasks, world, 0);
}

static void rank_exits(struct run *run, uint32_t rank, int code, int number, int flags, int64_t now)
{
    struct message_exited how = {.who = {.rank = rank, .generation = run->config.generation},
                                 .code = (uint8_t)code,
                                 .signal = (uint8_t)number,
                                 .flags = (uint8_t)flags};
    assert_int_equal(run_exited(run, run->ranks[rank].node, &how, now), 0);
}

static void ends_with(struct run *run, int64_t now, int code, const char *text)
{
    run_tick(run, now);
    assert_int_equal(run->phase, RUN_ENDED);
    assert_int_equal(run->code, code);
    assert_string_equal(run->text, text);
    run_close(run);
}

static void shapes_refused(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = config(4, 1, 4);
    c.tasks = 7;
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "use -N4 --ntasks-per-node=2"));
    c = config(4, 2, 7);
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "7 ranks, which do not fill nodes of 2 tasks"));
    c = config(4, 1, 4);
    c.spares = 1;
    assert_int_equal(run_open(&run, &c, 0, &err), -1);
    assert_non_null(strstr(err.text, "use -N5"));
}

static void all_done(void **state)
{
    (void)state;
    struct run run;
    start(&run, 2, 2, 4);
    for (uint32_t r = 0; r < 4; r++) {
        run_tick(&run, 10);
        assert_int_equal(run.phase, RUN_RUNNING);
        rank_exits(&run, r, 0, 0, 0, 10);
    }
    ends_with(&run, 10, 0, "all ranks are done");
}

/* A rank that opened and was not done has failed, whatever its exit code says. */
static void zero_is_not_done(void **state)
{
    (void)state;
    struct run run;
    start(&run, 1, 2, 2);
    assert_int_equal(run_opened(&run, 0, 1, 5), 0);
    assert_int_equal(run_opened(&run, 0, 2, 5), -1); /* no such rank */
    rank_exits(&run, 0, 0, 0, EXITED_OPENED | EXITED_DONE, 10);
    rank_exits(&run, 1, 0, 0, 0, 10);
    ends_with(&run, 10, 1, "rank 1 on node n0 ended before its work was done");
}

/* "My peer is gone" (exit code 1) comes first, the peer's death right after: that is the cause. */
static void better_cause_wins(void **state)
{
    (void)state;
    struct run run;
    start(&run, 3, 1, 3);
    rank_exits(&run, 0, 1, 0, 0, 10);
    run_tick(&run, 10);
    assert_int_equal(run.phase, RUN_RUNNING);
    rank_exits(&run, 1, 0, SIGSEGV, 0, 50);
    rank_exits(&run, 2, 3, 0, 0, 50);
    ends_with(&run, 50, 128 + SIGSEGV,
              "rank 1 on node n1 ended with signal 11 (Segmentation fault)");
    start(&run, 3, 1, 3);
    rank_exits(&run, 0, 1, 0, 0, 10);
    run_tick(&run, 10 + RUN_SETTLE_MS - 1);
    assert_int_equal(run.phase, RUN_RUNNING);
    ends_with(&run, 10 + RUN_SETTLE_MS, 1, "rank 0 on node n0 ended with exit code 1");
}

/* On a signal to the step the others get the time that Slurm gives them. */
static void orders_are_no_failure(void **state)
{
    (void)state;
    struct run run;
    start(&run, 2, 1, 2);
    rank_exits(&run, 0, 0, SIGTERM, EXITED_ORDERED, 10);
    for (int64_t t = 10; t < 5000; t += BEAT) {
        run_heard(&run, 0, t);
        run_heard(&run, 1, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    rank_exits(&run, 1, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 5000);
    assert_int_equal(run.machine, 0);
    ends_with(&run, 5000, 128 + SIGTERM,
              "rank 0 on node n0 ended with signal 15 (Terminated) on a signal to the step");
    /* all of them stop in good order: nothing has failed */
    start(&run, 2, 1, 2);
    rank_exits(&run, 0, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 10);
    rank_exits(&run, 1, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 20);
    ends_with(&run, 20, 0, "all ranks are done");
}

static void close_is_dead_now(void **state)
{
    (void)state;
    struct run run;
    start(&run, 2, 2, 4);
    run_closed(&run, 1, 10);
    run_tick(&run, 10);
    assert_int_equal(run.machine, 1); /* on more nodes it could go on */
    ends_with(&run, 10, 1, "node n1 is lost (ranks 2-3): its agent is gone; no spare is left");
}

static void spares_may_go(void **state)
{
    (void)state;
    struct run run;
    start(&run, 3, 1, 2);
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
    start(&run, 2, 1, 2);
    int64_t t = 0;
    for (; t <= PATIENCE; t += BEAT) {
        run_heard(&run, 0, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_RUNNING);
    }
    run_heard(&run, 0, t);
    ends_with(&run, t, 1, "node n1 is lost (rank 1): it is silent for 1.0 s; no spare is left");
}

/* A broken connection that is made again in time costs nothing. */
static void broken_may_come_back(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct message_register back = node(1, 1), foreign = node(1, 1);
    back.epoch = 5;
    back.generation = 1;
    foreign.epoch = 4;
    foreign.generation = 1;
    start(&run, 2, 1, 2);
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
    ends_with(&run, 2100, 1,
              "node n1 is lost (rank 1): its connection broke and was not made again for 1.0 s; no "
              "spare is left");
}

/* All silent at once, or a jump of our own clock: nobody is dead. */
static void common_silence_is_ours(void **state)
{
    (void)state;
    struct run run;
    start(&run, 3, 1, 3);
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

static void strange_registrations(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = config(2, 2, 4);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    struct message_register a = node(0, 2), twin = node(0, 2), uneven = node(1, 1);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &twin, 0, &err), -1);
    assert_string_equal(err.text, "node n0 registered twice");
    assert_int_equal(run.phase, RUN_GATHERING);
    assert_int_equal(run_register(&run, &uneven, 0, &err), -1);
    ends_with(&run, 0, 1,
              "node n1 has 1 tasks, the others 2: use --ntasks-per-node (gtrain needs the same "
              "number on each node)");
}

static void nodes_that_never_come(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = config(2, 1, 2);
    struct message_register a = node(0, 1);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    int64_t t = 0;
    for (; t < 10000; t += BEAT) /* before the first there is no hurry: prologs run */
        run_tick(&run, t);
    assert_int_equal(run_register(&run, &a, t, &err), 0);
    for (int64_t until = t + RUN_GATHER_MS; t <= until; t += BEAT) {
        run_heard(&run, 0, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_GATHERING);
    }
    run_heard(&run, 0, t);
    ends_with(&run, t, 1, "only 1 of 2 nodes have registered within 120 s");
}

/* ---- takeover ---- */

/* The generation after `now`, and the nodes of the ranks as one text. */
static void runs(struct run *run, int64_t now, uint32_t generation, const char *nodes)
{
    char text[256] = "";
    run_tick(run, now);
    assert_int_equal(run->phase, RUN_RUNNING);
    for (int r = 0; r < run->world; r++) {
        const char *name = run->nodes[run->ranks[r].node].info.node;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", r ? " " : "", name);
    }
    assert_string_equal(text, nodes);
    assert_int_equal(run->config.generation, generation);
}

static void spare_takes_over(void **state)
{
    (void)state;
    struct run run;
    start(&run, 4, 2, 4);
    runs(&run, 5, 1, "n0 n0 n1 n1");
    assert_int_equal(run_exited(&run, 1, &(struct message_exited){.who = {3, 1}}, 6), 0);
    run_closed(&run, 1, 10);
    runs(&run, 10, 2, "n0 n0 n2 n2");
    assert_string_equal(run.action, "node n2 takes over ranks 2-3");
    assert_int_equal(run.ranks[3].exited, 0); /* all start anew */
    assert_int_equal(run_spares(&run), 1);
    assert_int_equal(run_opened(&run, 1, 2, 11), -1); /* n1 has no rank any more */
    run_closed(&run, 0, 20);
    runs(&run, 20, 3, "n3 n3 n2 n2");
    run_closed(&run, 2, 30);
    ends_with(&run, 30, 1, "node n2 is lost (ranks 2-3): its agent is gone; no spare is left");
}

static void two_at_once(void **state)
{
    (void)state;
    struct run run;
    start(&run, 6, 1, 4);
    run_closed(&run, 0, 10);
    run_closed(&run, 2, 10);
    runs(&run, 10, 2, "n4 n1 n5 n3");
    assert_string_equal(run.action, "node n4 takes over rank 0, node n5 takes over rank 2");
    run_close(&run);
}

static void fewer_replicas(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = config(5, 1, 4);
    struct err err;
    c.least_data = 2;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 5; i++) {
        struct message_register r = node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    assert_int_equal(run_place(&run, &err), 0);
    run_closed(&run, 1, 10); /* a spare first */
    runs(&run, 10, 2, "n0 n4 n2 n3");
    assert_int_equal(run.config.shape.data, 4);
    run_closed(&run, 0, 20);
    runs(&run, 20, 3, "n3 n4 n2");
    assert_int_equal(run.world, 3);
    assert_int_equal(run.config.shape.data, 3);
    assert_int_equal(run.replicas, 4);
    assert_string_equal(run.action, "no spare is left: it goes on with 3 of 4 replicas on 3 nodes");
    assert_int_equal(run_opened(&run, 3, 3, 25), -1); /* no such rank any more */
    run_closed(&run, 2, 30);
    runs(&run, 30, 4, "n3 n4");
    run_closed(&run, 3, 40);
    ends_with(&run, 40, 1,
              "node n3 is lost (rank 0): its agent is gone; no spare is left, nor nodes for 2 "
              "replicas (resilience.min_data)");
}

/* All ranks of the smaller world are enough for the end. */
static void fewer_replicas_finish(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = config(3, 2, 6);
    struct err err;
    c.least_data = 1;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = node(i, 2);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    assert_int_equal(run_place(&run, &err), 0);
    run_closed(&run, 1, 10);
    runs(&run, 10, 2, "n0 n0 n2 n2");
    for (uint32_t r = 0; r < 4; r++)
        rank_exits(&run, r, 0, 0, 0, 20);
    ends_with(&run, 20, 0, "all ranks are done");
}

/* Some nodes never came: it begins with the replicas that the others hold. */
static void fewer_replicas_from_the_start(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = config(4, 1, 4);
    struct err err;
    c.least_data = 3;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    for (int64_t t = 0; t <= RUN_GATHER_MS + BEAT; t += BEAT) {
        assert_int_equal(run_complete(&run), 0);
        for (int i = 0; i < 3; i++)
            run_heard(&run, i, t);
        run_tick(&run, t);
    }
    assert_int_equal(run_complete(&run), 1);
    assert_int_equal(run_place(&run, &err), 0);
    assert_int_equal(run.world, 3);
    run_close(&run);
}

/* The worker's death is heard first, its node's right after: one generation is lost, not two. */
static void dying_node(void **state)
{
    (void)state;
    struct run run;
    start_with(&run, 3, 1, 2, 3);
    rank_exits(&run, 1, 0, SIGKILL, 0, 10);
    rank_exits(&run, 0, 1, 0, 0, 12);
    runs(&run, 12, 1, "n0 n1");
    run_closed(&run, 1, 20);
    runs(&run, 20, 2, "n0 n2");
    assert_int_equal(run.ranks[1].failures, 0);
    run_close(&run);
}

static void crash_restarts_in_place(void **state)
{
    (void)state;
    struct run run;
    start_with(&run, 3, 1, 2, 2);
    int64_t t = 0;
    uint32_t generation = 1;
    for (int i = 0; i < 10; i++) { /* each time it gets further: as often as it likes */
        assert_int_equal(run_progress(&run, 1, 1, i, 0, t), 0);
        rank_exits(&run, 1, 0, SIGSEGV, 0, t);
        t += RUN_FOLLOW_MS;
        run_heard(&run, 0, t);
        runs(&run, t, ++generation, "n0 n1");
        assert_string_equal(run.action, "it is started again on the same node");
    }
    for (int i = 0; i < 2; i++) { /* one time without getting further is counted already */
        rank_exits(&run, 1, 0, SIGSEGV, 0, t);
        t += RUN_FOLLOW_MS;
        run_heard(&run, 0, t);
        if (i == 0)
            runs(&run, t, ++generation, "n0 n1");
    }
    ends_with(&run, t, 128 + SIGSEGV,
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
        start_with(&run, 2, 1, 2, 3);
        rank_exits(&run, 0, cases[i].code, 0, cases[i].flags, 10);
        run_tick(&run, 10 + RUN_SETTLE_MS);
        assert_int_equal(run.phase, cases[i].ends ? RUN_ENDED : RUN_RUNNING);
        assert_int_equal(run.config.generation, cases[i].ends ? 1 : 2);
        if (cases[i].ends)
            assert_int_equal(run.code, cases[i].code);
        run_close(&run);
    }
}

/* A later generation's worker that finds its node unfit (its disk is full): another node. */
static void unfit_node_is_replaced(void **state)
{
    (void)state;
    struct run run;
    start_with(&run, 4, 1, 2, 1);
    run_closed(&run, 0, 10);
    run_tick(&run, 10);
    assert_int_equal(run.config.generation, 2);
    int node = run.ranks[0].node;
    rank_exits(&run, 0, RUN_EXIT_UNFIT, 0, EXITED_OPENED, 20);
    run_tick(&run, 20);
    assert_int_equal(run.config.generation, 3);
    assert_int_equal(run.nodes[node].state, RUN_NODE_LOST);
    assert_int_not_equal(run.ranks[0].node, node);
    rank_exits(&run, 1, RUN_EXIT_UNFIT, 0, EXITED_OPENED, 30); /* and no spare is left */
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
    struct message_register back = node(1, 1);
    back.epoch = 5;
    back.generation = 1;
    start_with(&run, 3, 1, 2, 3);
    run_broken(&run, 1, 10);
    rank_exits(&run, 0, 1, 0, 0, 10);
    run_heard(&run, 0, 500);
    runs(&run, 500, 1, "n0 n1");
    assert_int_equal(run_register(&run, &back, 600, &err), 1);
    runs(&run, 600, 2, "n0 n1");
    run_broken(&run, 1, 610);
    rank_exits(&run, 0, 1, 0, 0, 620);
    run_heard(&run, 0, 1000);
    runs(&run, 1000, 2, "n0 n1");
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
    runs(&run, 2101, 3, "n0 n2");
    assert_int_equal(run.phases.silent_ms, 1001);
    run_close(&run);
}

static void without_its_agent_a_node_is_lost(void **state)
{
    (void)state;
    struct run run;
    start_with(&run, 3, 2, 4, 3);
    rank_exits(&run, 3, 0, SIGKILL, EXITED_NO_AGENT, 10);
    assert_string_equal(run.failure.text,
                        "node n1 is lost (ranks 2-3): the agent of rank 3 is gone");
    runs(&run, 10, 2, "n0 n0 n2 n2");
    run_close(&run);
}

static void order_is_no_takeover(void **state)
{
    (void)state;
    struct run run;
    start_with(&run, 3, 1, 2, 3);
    rank_exits(&run, 0, 0, 0, EXITED_ORDERED | EXITED_OPENED | EXITED_DONE, 10);
    run_closed(&run, 1, 20);
    ends_with(&run, 20, 1, "node n1 is lost (rank 1): its agent is gone");
}

/* The others need nothing from a node whose ranks are done. */
static void done_nodes_may_go(void **state)
{
    (void)state;
    struct run run;
    start(&run, 2, 1, 2);
    assert_int_equal(run_opened(&run, 1, 1, 5), 0);
    assert_int_equal(run_done(&run, 1, 1), 0);
    run_closed(&run, 1, 10);
    runs(&run, 10, 1, "n0 n1");
    rank_exits(&run, 0, 0, 0, EXITED_OPENED | EXITED_DONE, 20);
    ends_with(&run, 20, 0, "all ranks are done");
}

/* Lost before it was ever given a rank. */
static void lost_at_the_start(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = config(3, 1, 2);
    struct message_register a = node(0, 1), b = node(1, 1), d = node(2, 1);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &b, 0, &err), 1);
    run_closed(&run, 0, 5);
    run_tick(&run, 5);
    assert_int_equal(run_complete(&run), 0);
    assert_int_equal(run_register(&run, &d, 10, &err), 2);
    assert_int_equal(run_complete(&run), 1);
    assert_int_equal(run_place(&run, &err), 0);
    runs(&run, 10, 1, "n1 n2");
    assert_int_equal(run_spares(&run), 0);
    run_close(&run);
    /* not enough are left */
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    run_closed(&run, 0, 5);
    run_closed(&run, 1, 5);
    assert_int_equal(run_complete(&run), 0);
    ends_with(&run, 5, 1, "node n1 is lost (no ranks yet): its agent is gone");
    /* two of three came; with the time that a third might take it goes on */
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &b, 0, &err), 1);
    for (int64_t t = 0; t <= RUN_GATHER_MS + BEAT; t += BEAT) {
        assert_int_equal(run_complete(&run), 0);
        run_heard(&run, 0, t);
        run_heard(&run, 1, t);
        run_tick(&run, t);
    }
    assert_int_equal(run_complete(&run), 1);
    run_close(&run);
}

static void phases_add_up(void **state)
{
    (void)state;
    struct run run;
    char text[256];
    start(&run, 3, 1, 2);
    run_closed(&run, 0, 1000);
    runs(&run, 1010, 2, "n2 n1");
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

/* ---- who holds the run up ---- */

/* Four ranks on four nodes that make a step every `ms`, `n` of them. Returns the time. */
static int64_t train(struct run *run, int n, int64_t ms)
{
    start_with(run, 5, 1, 4, 3);
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
        cmocka_unit_test(strange_registrations),
        cmocka_unit_test(nodes_that_never_come),
        cmocka_unit_test(spare_takes_over),
        cmocka_unit_test(two_at_once),
        cmocka_unit_test(fewer_replicas),
        cmocka_unit_test(fewer_replicas_finish),
        cmocka_unit_test(fewer_replicas_from_the_start),
        cmocka_unit_test(dying_node),
        cmocka_unit_test(crash_restarts_in_place),
        cmocka_unit_test(hopeless_ends),
        cmocka_unit_test(unfit_node_is_replaced),
        cmocka_unit_test(half_lost_is_waited_for),
        cmocka_unit_test(without_its_agent_a_node_is_lost),
        cmocka_unit_test(order_is_no_takeover),
        cmocka_unit_test(done_nodes_may_go),
        cmocka_unit_test(lost_at_the_start),
        cmocka_unit_test(phases_add_up),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(slow_is_not_hung),
        cmocka_unit_test(suspended_is_not_hung),
        cmocka_unit_test(culprits),
        cmocka_unit_test(slow_ranks_are_named),
    };
    return cmocka_run_group_tests_name("launch_rules", tests, NULL, NULL);
}
