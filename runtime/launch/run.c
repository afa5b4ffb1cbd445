/* run.c - the coordinator's rules. */
#include "launch/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALONE_PATIENCES = 3 };

int run_open(struct run *run, const struct run_config *config, int64_t now, struct err *err)
{
    const struct placement_shape *s = &config->shape;
    *run = (struct run){.config = *config, .last_tick = now};
    run->world = s->inner * s->pipeline * s->data;
    if (config->tasks % config->nodes)
        return err_set(err,
                       "%d tasks on %d nodes are uneven: use -N%d --ntasks-per-node=%d (gtrain "
                       "needs the same number on each node)",
                       config->tasks, config->nodes, config->nodes,
                       (config->tasks + config->nodes - 1) / config->nodes);
    if (run->world % s->tasks)
        return err_set(err,
                       "the plan has %d ranks, which do not fill nodes of %d tasks: use a "
                       "--ntasks-per-node that divides %d",
                       run->world, s->tasks, run->world);
    int needed = run->world / s->tasks + config->spares;
    if (needed > config->nodes)
        return err_set(err,
                       "the plan has %d ranks: at %d a node that is %d nodes and %d spare, but the "
                       "step has %d: use -N%d",
                       run->world, s->tasks, run->world / s->tasks, config->spares, config->nodes,
                       needed);
    run->ranks = calloc((size_t)run->world, sizeof *run->ranks);
    run->nodes = calloc((size_t)config->nodes, sizeof *run->nodes);
    run->room_nodes = config->nodes;
    if (!run->ranks || !run->nodes) {
        run_close(run);
        return err_set(err, "out of memory for %d ranks", run->world);
    }
    return 0;
}

void run_close(struct run *run)
{
    free(run->ranks);
    free(run->nodes);
    run->ranks = NULL;
    run->nodes = NULL;
}

/* A cause of the end. It is held back for SETTLE_MS only if a better one may follow. */
static void end_because(struct run *run, enum run_cause cause, uint8_t code, const char *text,
                        int64_t at)
{
    if (run->phase != RUN_ENDED && cause == run->cause && at < run->end_at)
        run->end_at = at;
    if (run->phase == RUN_ENDED || cause <= run->cause)
        return;
    run->cause = cause;
    run->code = code;
    run->end_at = at;
    snprintf(run->text, sizeof run->text, "%s", text);
}

static int same_place(const struct message_register *a, const struct message_register *b)
{
    return !strcmp(a->node, b->node) && a->node_id == b->node_id &&
           a->local_tasks == b->local_tasks;
}

static int come_back(struct run *run, int i, const struct message_register *info, int64_t now,
                     struct err *err)
{
    struct run_node *node = &run->nodes[i];
    if (node->state == RUN_NODE_LOST || run->phase == RUN_ENDED)
        return err_set(err, "node %s came back after it had been given up", info->node);
    int ours = info->epoch == run->config.epoch && info->generation == run->config.generation;
    int too_early =
        node->state == RUN_NODE_SUSPECT && !info->generation; /* never heard our answer */
    if (!same_place(&node->info, info) || !(ours || too_early))
        return err_set(err, "node %s registered twice", info->node);
    node->state = RUN_NODE_UP;
    node->heard = now;
    return i;
}

int run_register(struct run *run, const struct message_register *info, int64_t now, struct err *err)
{
    for (int i = 0; i < run->n_nodes; i++)
        if (!strcmp(run->nodes[i].info.node, info->node) ||
            run->nodes[i].info.node_id == info->node_id)
            return come_back(run, i, info, now, err);
    const struct run_config *c = &run->config;
    if (info->generation)
        return err_set(err, "node %s belongs to another launch", info->node);
    if (run->phase != RUN_GATHERING || run->n_nodes == c->nodes)
        return err_set(err, "node %s is one too many: the step has %d", info->node, c->nodes);
    if (!*info->node || info->local_tasks != (uint32_t)c->shape.tasks) {
        err_set(err,
                "node %s has %u tasks, the others %d: use --ntasks-per-node (gtrain needs the "
                "same number on each node)",
                info->node, info->local_tasks, c->shape.tasks);
        run_stop(run, 1, err->text, now);
        return -1;
    }
    struct run_node *node = &run->nodes[run->n_nodes];
    *node = (struct run_node){.info = *info, .node_rank = -2, .heard = now};
    if (!run->n_nodes)
        run->first_node = now;
    return run->n_nodes++;
}

int run_complete(const struct run *run)
{
    if (run->phase != RUN_GATHERING || run->cause || run->n_nodes < run->config.nodes)
        return 0;
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state != RUN_NODE_UP)
            return 0;
    return 1;
}

/* The nodes as placement.h sees them, and where they are; malloc'ed. -1: memory is out. */
static int as_placement(const struct run *run, struct placement_node **nodes, int **node_rank)
{
    size_t n = run->n_nodes > 0 ? (size_t)run->n_nodes : 0;
    *nodes = calloc(n + 1, sizeof **nodes);
    *node_rank = calloc(n + 1, sizeof **node_rank);
    if (!*nodes || !*node_rank)
        return -1;
    for (size_t i = 0; i < n; i++) {
        (*nodes)[i] = (struct placement_node){.name = run->nodes[i].info.node,
                                              .topology = run->nodes[i].info.topology};
        (*node_rank)[i] = run->nodes[i].node_rank;
    }
    return 0;
}

int run_place(struct run *run, struct err *err)
{
    int n = run->n_nodes, tasks = run->config.shape.tasks, bad = -1;
    struct placement_node *nodes;
    int *node_rank;
    if (as_placement(run, &nodes, &node_rank)) {
        err_set(err, "out of memory placing %d nodes", n);
        goto out;
    }
    if (placement_make(nodes, n, &run->config.shape, node_rank, err))
        goto out;
    for (int i = 0; i < n; i++) {
        run->nodes[i].node_rank = node_rank[i];
        for (int k = 0; node_rank[i] >= 0 && k < tasks; k++)
            run->ranks[node_rank[i] * tasks + k] = (struct run_rank){.node = i, .step = -1};
    }
    run->phase = RUN_RUNNING;
    bad = 0;
out:
    free(nodes);
    free(node_rank);
    return bad;
}

struct placement_cost run_placement_cost(const struct run *run)
{
    struct placement_cost cost = {0, 0, 0};
    struct placement_node *nodes;
    int *node_rank;
    if (!as_placement(run, &nodes, &node_rank))
        cost = placement_cost(nodes, run->n_nodes, &run->config.shape, node_rank);
    free(nodes);
    free(node_rank);
    return cost;
}

int run_find_node_rank(const struct run *run, int node_rank)
{
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].node_rank == node_rank)
            return i;
    return -1;
}

int run_spares(const struct run *run)
{
    int spares = 0;
    for (int i = 0; i < run->n_nodes; i++)
        spares += run->nodes[i].node_rank == -1 && run->nodes[i].state == RUN_NODE_UP;
    return spares;
}

static int silent(const struct run *run, const struct run_node *node, int64_t now)
{
    return now - node->heard > run->config.patience_ms;
}

static int all_silent(const struct run *run, int64_t now)
{
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_UP && !silent(run, &run->nodes[i], now))
            return 0;
    return 1;
}

/* Everyone's patience starts anew: what we saw was our own trouble, not theirs. */
static void forgive(struct run *run, int64_t now)
{
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].heard = now;
}

void run_heard(struct run *run, int node, int64_t now)
{
    /* The first voice after a common silence (a suspended job, a network that was down): the others
     * may need a moment more. */
    if (silent(run, &run->nodes[node], now) && all_silent(run, now))
        forgive(run, now);
    run->nodes[node].heard = now;
}

void run_broken(struct run *run, int node, int64_t now)
{
    if (run->nodes[node].state != RUN_NODE_UP)
        return;
    run->nodes[node].state = RUN_NODE_SUSPECT;
    run->nodes[node].heard = now;
}

/* The ranks of a node, for a line: "rank 3" or "ranks 2-3". */
static void describe_ranks(const struct run *run, const struct run_node *node, char *text,
                           size_t room)
{
    int tasks = run->config.shape.tasks;
    if (node->node_rank < 0)
        snprintf(text, room, "%s", node->node_rank == -1 ? "a spare" : "no ranks yet");
    else if (tasks == 1)
        snprintf(text, room, "rank %d", node->node_rank);
    else
        snprintf(text, room, "ranks %d-%d", node->node_rank * tasks,
                 node->node_rank * tasks + tasks - 1);
}

static void lose(struct run *run, int i, const char *why, int64_t now)
{
    struct run_node *node = &run->nodes[i];
    if (node->state == RUN_NODE_LOST || node->state == RUN_NODE_GONE)
        return;
    if (run->phase == RUN_ENDED) {
        node->state = RUN_NODE_GONE;
        return;
    }
    node->state = RUN_NODE_LOST;
    char ranks[64], text[MESSAGE_TEXT_BYTES];
    describe_ranks(run, node, ranks, sizeof ranks);
    snprintf(text, sizeof text, "node %s is lost (%s): %s", node->info.node, ranks, why);
    /* The run needs no spare, until one is needed. */
    if (run->phase == RUN_GATHERING || node->node_rank >= 0)
        end_because(run, RUN_CAUSE_SURE, 1, text, now);
}

void run_closed(struct run *run, int node, int64_t now)
{
    lose(run, node, "its agent is gone", now);
}

static struct run_rank *find_rank(struct run *run, int node, uint32_t rank)
{
    if (run->phase == RUN_GATHERING || rank >= (uint32_t)run->world ||
        run->ranks[rank].node != node)
        return NULL;
    return &run->ranks[rank];
}

int run_opened(struct run *run, int node, uint32_t rank)
{
    struct run_rank *r = find_rank(run, node, rank);
    if (!r)
        return -1;
    r->opened = 1;
    return 0;
}

int run_done(struct run *run, int node, uint32_t rank)
{
    struct run_rank *r = find_rank(run, node, rank);
    if (!r)
        return -1;
    r->done = 1;
    return 0;
}

int run_progress(struct run *run, int node, uint32_t rank, int64_t step)
{
    struct run_rank *r = find_rank(run, node, rank);
    if (!r || step < 0)
        return -1;
    if (step > r->step)
        r->step = step;
    return 0;
}

void run_describe_exit(const struct message_exited *how, char *text, size_t room)
{
    if (how->signal)
        snprintf(text, room, "signal %u (%s)", how->signal, strsignal(how->signal));
    else
        snprintf(text, room, "exit code %u", how->code);
}

static int exit_code(const struct message_exited *how)
{
    return how->signal ? 128 + how->signal : how->code;
}

static void all_exited(struct run *run, int64_t now)
{
    for (int i = 0; i < run->world; i++)
        if (!run->ranks[i].exited)
            return;
    if (run->cause)
        run->end_at = now; /* nobody is left who could tell more */
    else
        end_because(run, RUN_CAUSE_SURE, 0, "all ranks are done", now);
}

int run_exited(struct run *run, int node, const struct message_exited *how, int64_t now)
{
    struct run_rank *r = find_rank(run, node, how->rank);
    if (!r)
        return -1;
    if (r->exited)
        return 0; /* told again after a lost connection */
    r->exited = 1;
    r->how = *how;
    int opened = r->opened || how->flags & EXITED_OPENED;
    int done = r->done || how->flags & EXITED_DONE;
    int code = exit_code(how);
    char way[64], text[MESSAGE_TEXT_BYTES];
    run_describe_exit(how, way, sizeof way);
    snprintf(text, sizeof text, "rank %u on node %s ended with %s%s", how->rank,
             run->nodes[node].info.node, way,
             how->flags & EXITED_ORDERED ? " on a signal to the step" : "");
    if (code && how->flags & EXITED_ORDERED)
        end_because(run, RUN_CAUSE_PEER, (uint8_t)code, text, now + RUN_ORDER_MS);
    else if (code == 1)
        end_because(run, RUN_CAUSE_PEER, 1, text, now + RUN_SETTLE_MS);
    else if (code)
        end_because(run, RUN_CAUSE_SURE, (uint8_t)code, text, now);
    else if (opened && !done) {
        snprintf(text, sizeof text, "rank %u on node %s ended before its work was done", how->rank,
                 run->nodes[node].info.node);
        end_because(run, RUN_CAUSE_PEER, 1, text, now + RUN_SETTLE_MS);
    }
    all_exited(run, now);
    return 0;
}

void run_stop(struct run *run, uint8_t code, const char *text, int64_t now)
{
    end_because(run, RUN_CAUSE_SURE, code, text, now);
}

static void find_lost(struct run *run, int64_t now)
{
    /* If this process was stopped, or the machine asleep, nobody had a chance to be heard. */
    if (now - run->last_tick > run->config.patience_ms / 2)
        forgive(run, now);
    int all = all_silent(run, now);
    for (int i = 0; i < run->n_nodes; i++) {
        struct run_node *node = &run->nodes[i];
        char why[128];
        snprintf(why, sizeof why, "%s for %.1f s",
                 node->state == RUN_NODE_SUSPECT ? "its connection broke and was not made again"
                                                 : "it is silent",
                 (double)run->config.patience_ms / 1000);
        if (node->state != RUN_NODE_UP && node->state != RUN_NODE_SUSPECT)
            continue;
        /* All at once is our own network, until broken connections stay away for long. */
        int long_gone = node->state == RUN_NODE_SUSPECT &&
                        now - node->heard > ALONE_PATIENCES * run->config.patience_ms;
        if ((!all && silent(run, node, now)) || long_gone)
            lose(run, i, why, now);
    }
}

void run_tick(struct run *run, int64_t now)
{
    if (run->phase == RUN_ENDED)
        return;
    find_lost(run, now);
    run->last_tick = now;
    if (run->phase == RUN_GATHERING && run->n_nodes && !run->cause &&
        now - run->first_node > RUN_GATHER_MS) {
        char text[256];
        snprintf(text, sizeof text, "only %d of %d nodes have registered within %d s", run->n_nodes,
                 run->config.nodes, RUN_GATHER_MS / 1000);
        end_because(run, RUN_CAUSE_SURE, 1, text, now);
    }
    if (run->cause && now >= run->end_at)
        run->phase = RUN_ENDED;
}

int64_t run_next_tick(const struct run *run, int64_t now)
{
    int64_t step = run->config.heartbeat_ms;
    if (step > run->config.patience_ms / 4)
        step = run->config.patience_ms / 4;
    if (step < 1)
        step = 1;
    int64_t next = now + step;
    return run->cause && run->end_at < next ? run->end_at : next;
}
