/* takeover.c - see takeover.h. */
#include "launch/takeover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void takeover_fail(struct run *run, const struct run_failure *failure)
{
    struct run_failure *f = &run->failure;
    if (failure->cause == f->cause && failure->act_at < f->act_at)
        f->act_at = failure->act_at;
    if (failure->cause <= f->cause)
        return;
    int64_t noticed = f->cause ? f->noticed : failure->noticed;
    *f = *failure;
    f->noticed = noticed;
}

/* Is a node with ranks half lost? It will be back, or lost, within the patience. */
static int unsure(const struct run *run)
{
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].node_rank >= 0 && run->nodes[i].state == RUN_NODE_SUSPECT)
            return 1;
    return 0;
}

/* Does the blamed rank fail again and again, and the run gets no further? Then it is the end. */
static int is_bug(struct run *run)
{
    struct run_failure *f = &run->failure;
    if (f->rank < 0)
        return 0;
    struct run_rank *r = &run->ranks[f->rank];
    if (run->furthest > r->failed_at)
        r->failures = 0;
    r->failed_at = run->furthest;
    if (++r->failures <= run->config.restarts)
        return 0;
    char text[sizeof f->text + 160];
    snprintf(text, sizeof text, "%s", f->text);
    if (r->failures > 1)
        snprintf(text, sizeof text,
                 "%s, %d times, and the run got no further than step %" PRId64
                 ": that is taken for a bug in the program (resilience.restarts is %d)",
                 f->text, r->failures, run->furthest < 0 ? 0 : run->furthest, run->config.restarts);
    text[sizeof run->text - 1] = 0;
    run_end_because(run, RUN_CAUSE_SURE, f->code, text, f->act_at);
    return 1;
}

/* Say which spare has become what. */
static void describe_moves(struct run *run, const int *before)
{
    size_t used = 0;
    run->action[0] = 0;
    for (int i = 0; i < run->n_nodes; i++) {
        char ranks[64];
        if (run->nodes[i].node_rank < 0 || run->nodes[i].node_rank == before[i] ||
            used >= sizeof run->action)
            continue;
        run_describe_ranks(run, i, ranks, sizeof ranks);
        used += (size_t)snprintf(run->action + used, sizeof run->action - used,
                                 "%snode %s takes over %s", used ? ", " : "",
                                 run->nodes[i].info.node, ranks);
    }
    if (!used)
        snprintf(run->action, sizeof run->action, "it is started again on the same node");
}

/* Where everybody was, and is to be. */
struct moves {
    struct placement_node *nodes;
    int *before, *node_rank, *usable;
    int *lost, n_lost; /* node ranks */
};

static int moves_open(struct moves *m, const struct run *run)
{
    size_t n = (size_t)run->n_nodes;
    *m = (struct moves){.usable = calloc(n, sizeof *m->usable), .lost = calloc(n, sizeof *m->lost)};
    m->node_rank = calloc(n, sizeof *m->node_rank);
    if (run_as_placement(run, &m->nodes, &m->before) || !m->usable || !m->lost || !m->node_rank)
        return -1;
    for (int i = 0; i < run->n_nodes; i++) {
        int lost = run->nodes[i].state == RUN_NODE_LOST && m->before[i] >= 0;
        m->usable[i] = run->nodes[i].state == RUN_NODE_UP;
        m->node_rank[i] = lost ? -1 : m->before[i];
        if (lost)
            m->lost[m->n_lost++] = m->before[i];
    }
    return 0;
}

static void moves_close(struct moves *m)
{
    free(m->nodes);
    free(m->before);
    free(m->node_rank);
    free(m->usable);
    free(m->lost);
}

/* The lost nodes' ranks to spares. -1: too few. */
static int replace(struct run *run, struct moves *m)
{
    if (placement_replace(m->nodes, run->n_nodes, &run->config.shape, m->lost, m->n_lost, m->usable,
                          m->node_rank))
        return -1;
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].node_rank = m->node_rank[i];
    describe_moves(run, m->before);
    return 0;
}

/* Fewer replicas. -1: not allowed, or too few. */
static int shrink(struct run *run, struct moves *m)
{
    struct placement_shape *shape = &run->config.shape;
    if (!run->config.least_data ||
        placement_shrink(m->nodes, run->n_nodes, shape, run->config.least_data, m->usable,
                         m->before, m->node_rank))
        return -1;
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].node_rank = m->node_rank[i];
    run->world = shape->inner * shape->pipeline * shape->data;
    snprintf(run->action, sizeof run->action,
             "no spare is left: it goes on with %d of %d replicas on %d nodes", shape->data,
             run->replicas, run->world / shape->tasks);
    return 0;
}

static void give_up(struct run *run, int64_t now)
{
    struct run_failure *f = &run->failure;
    char text[sizeof f->text + 160];
    int least = run->config.least_data;
    int used = snprintf(text, sizeof text, "%s; no spare is left", f->text);
    if (least)
        snprintf(text + used, sizeof text - (size_t)used,
                 ", nor nodes for %d replica%s (resilience.min_data)", least, least > 1 ? "s" : "");
    text[sizeof run->text - 1] = 0;
    run_end_because(run, RUN_CAUSE_SURE, f->code, text, now);
    run->machine = 1;
}

static void begin_generation(struct run *run, int64_t now)
{
    const struct run_failure *f = &run->failure;
    run->config.generation++;
    run_seat(run);
    run->phases =
        (struct run_phases){.silent_ms = f->silent_ms, .noticed = f->noticed, .decided = now};
}

void takeover_tick(struct run *run, int64_t now)
{
    struct run_failure *f = &run->failure;
    if (!f->cause || run->cause || now < f->act_at || unsure(run))
        return;
    struct moves m;
    if (is_bug(run)) {
        f->cause = RUN_CAUSE_NONE;
        return;
    }
    if (!moves_open(&m, run) && (!replace(run, &m) || !shrink(run, &m)))
        begin_generation(run, now);
    else
        give_up(run, now);
    f->cause = RUN_CAUSE_NONE;
    moves_close(&m);
}

static double seconds(int64_t from, int64_t to)
{
    return to > from ? (double)(to - from) * 1e-3 : 0;
}

void takeover_describe(const struct run_phases *p, char *text, size_t room)
{
    const struct {
        const char *name;
        int64_t at;
    } phase[] = {{"decide", p->decided},
                 {"restart", p->opened},
                 {"communicate", p->met},
                 {"restore", p->restored},
                 {"first step", p->stepped}};
    int64_t from = p->noticed;
    size_t used = (size_t)snprintf(text, room, "detect %.3f s", (double)p->silent_ms * 1e-3);
    for (size_t i = 0; i < sizeof phase / sizeof *phase && phase[i].at && used < room; i++) {
        used += (size_t)snprintf(text + used, room - used, ", %s %.3f s", phase[i].name,
                                 seconds(from, phase[i].at));
        from = phase[i].at;
    }
    if (p->stepped && used < room)
        snprintf(text + used, room - used, ": %.3f s in all",
                 (double)p->silent_ms * 1e-3 + seconds(p->noticed, p->stepped));
}
