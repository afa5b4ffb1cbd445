/* run_rig.c - see run_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "run_rig.h"

struct run_config rig_config(int nodes, int tasks, int world)
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

struct message_register rig_node(int i, int tasks)
{
    struct message_register r = {.node_id = (uint32_t)i, .local_tasks = (uint32_t)tasks};
    snprintf(r.node, sizeof r.node, "n%d", i);
    return r;
}

void rig_start_with(struct run *run, int nodes, int tasks, int world, int restarts)
{
    struct run_config c = rig_config(nodes, tasks, world);
    c.restarts = restarts;
    struct err err;
    if (run_open(run, &c, 0, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < nodes; i++) {
        struct message_register r = rig_node(i, tasks);
        assert_int_equal(run_complete(run), 0);
        assert_int_equal(run_register(run, &r, 0, &err), i);
    }
    assert_int_equal(run_complete(run), 1);
    assert_int_equal(run_place(run, &err), 0);
    assert_int_equal(run->phase, RUN_RUNNING);
}

void rig_start(struct run *run, int nodes, int tasks, int world)
{
    rig_start_with(run, nodes, tasks, world, 0);
}

void rig_rank_exits(struct run *run, uint32_t rank, int code, int number, int flags, int64_t now)
{
    struct message_exited how = {.who = {.rank = rank, .generation = run->config.generation},
                                 .code = (uint8_t)code,
                                 .signal = (uint8_t)number,
                                 .flags = (uint8_t)flags};
    assert_int_equal(run_exited(run, run->ranks[rank].node, &how, now), 0);
}

void rig_ends_with(struct run *run, int64_t now, int code, const char *text)
{
    run_tick(run, now);
    assert_int_equal(run->phase, RUN_ENDED);
    assert_int_equal(run->code, code);
    assert_string_equal(run->text, text);
    run_close(run);
}

void rig_runs(struct run *run, int64_t now, uint32_t generation, const char *nodes)
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
