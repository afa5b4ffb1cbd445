/* run.c - the coordinator's rules. How a step begins is gather.c's, what happens after a failure
 * takeover.c's. */
#include "launch/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/gather.h"
#include "launch/takeover.h"

enum { ALONE_PATIENCES = 3, COMMON_SILENCE_PART = 4 };

int run_open(struct run *run, const struct run_config *config, int64_t now, struct err *err)
{
    const struct placement_shape *s = &config->shape;
    *run = (struct run){.config = *config,
                        .last_tick = now,
                        .furthest = -1,
                        .full_at = -1,
                        .few_at = -1,
                        .asked_at = now};
    run->world = s->inner * s->pipeline * s->data;
    run->replicas = s->data;
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
void run_end_because(struct run *run, enum run_cause cause, uint8_t code, const char *text,
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

int run_as_placement(const struct run *run, struct placement_node **nodes, int **node_rank)
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

void run_seat(struct run *run)
{
    int tasks = run->config.shape.tasks;
    run->progress = (struct progress){.step = -1, .signalled = run->progress.signalled};
    for (int i = 0; i < run->n_nodes; i++)
        for (int k = 0; run->nodes[i].node_rank >= 0 && k < tasks; k++) {
            struct run_rank *r = &run->ranks[run->nodes[i].node_rank * tasks + k];
            *r = (struct run_rank){.node = i,
                                   .step = -1,
                                   .begin = -1,
                                   .failures = r->failures,
                                   .failed_at = r->failed_at};
        }
}

int run_place(struct run *run, struct err *err)
{
    int n = 0, bad = -1;
    struct placement_node *nodes;
    int *node_rank;
    if (run_as_placement(run, &nodes, &node_rank)) {
        err_set(err, "out of memory placing %d nodes", run->n_nodes);
        goto out;
    }
    /* Some may be lost already. */
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_UP)
            nodes[n++] = nodes[i];
    struct placement_shape *shape = &run->config.shape;
    if (run->config.least_data)
        shape->data = placement_replicas(shape, n);
    if (placement_make(nodes, n, shape, node_rank, err))
        goto out;
    run->world = shape->inner * shape->pipeline * shape->data;
    n = 0;
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].node_rank = run->nodes[i].state == RUN_NODE_UP ? node_rank[n++] : -1;
    for (int i = 0; i < run->world; i++)
        run->ranks[i].failed_at = -2;
    run_seat(run);
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
    if (!run_as_placement(run, &nodes, &node_rank))
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

/* When somebody was last heard who is still there; -1: there is nobody. */
static int64_t last_voice(const struct run *run)
{
    int64_t last = -1;
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_UP && run->nodes[i].heard > last)
            last = run->nodes[i].heard;
    return last;
}

/* A node's silence is what others have said meanwhile. Where nobody is heard (a suspended job, a
 * network of our own that is down) time stands still for all: those that were stopped first, or had
 * spoken long before, are not lost for it. */
static int silent(const struct run *run, const struct run_node *node, int64_t last)
{
    return last - node->heard > run->config.patience_ms;
}

/* Everyone's patience starts anew: what we saw was our own trouble, not theirs. */
static void forgive(struct run *run, int64_t now)
{
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].heard = now;
}

void run_heard(struct run *run, int node, int64_t now)
{
    /* The first voice after a common silence: of that a part counts. So the others have the rest of
     * their patience, and whoever is dead is found however rare voices are. A connection that broke
     * is more than silence: a pause excuses it only when it has been a long one. */
    int64_t last = last_voice(run), pause = last < 0 ? 0 : now - last;
    int64_t forgiven = pause - run->config.patience_ms / COMMON_SILENCE_PART;
    for (int i = 0; i < run->n_nodes && forgiven > 0; i++)
        if (run->nodes[i].state != RUN_NODE_SUSPECT || pause > run->config.patience_ms)
            run->nodes[i].heard += forgiven;
    run->nodes[node].heard = now;
}

void run_broken(struct run *run, int node, int64_t now)
{
    if (run->nodes[node].state != RUN_NODE_UP)
        return;
    run->nodes[node].state = RUN_NODE_SUSPECT;
    run->nodes[node].heard = now;
}

void run_describe_ranks(const struct run *run, int i, char *text, size_t room)
{
    const struct run_node *node = &run->nodes[i];
    int tasks = run->config.shape.tasks;
    if (node->node_rank < 0)
        snprintf(text, room, "%s", node->node_rank == -1 ? "a spare" : "no ranks yet");
    else if (tasks == 1)
        snprintf(text, room, "rank %d", node->node_rank);
    else
        snprintf(text, room, "ranks %d-%d", node->node_rank * tasks,
                 node->node_rank * tasks + tasks - 1);
}

/* Once the end has a cause, or somebody has ordered it, a failure only explains it. */
static void fail(struct run *run, const struct run_failure *f)
{
    if (run->phase == RUN_GATHERING || run->cause || run->ordered)
        run_end_because(run, f->cause, f->code, f->text, f->act_at);
    else
        takeover_fail(run, f);
}

/* Do all ranks of this node need nothing from it any more? */
static int node_is_done(const struct run *run, const struct run_node *node)
{
    int tasks = run->config.shape.tasks;
    for (int k = 0; k < tasks; k++)
        if (!run->ranks[node->node_rank * tasks + k].done)
            return 0;
    return 1;
}

static void all_exited(struct run *run, int64_t now);

void run_lose(struct run *run, int i, const char *why, int64_t silent_ms, int64_t now)
{
    struct run_node *node = &run->nodes[i];
    if (node->state == RUN_NODE_LOST || node->state == RUN_NODE_GONE)
        return;
    if (run->phase == RUN_ENDED) {
        node->state = RUN_NODE_GONE;
        return;
    }
    node->state = RUN_NODE_LOST;
    snprintf(node->why, sizeof node->why, "%s", why);
    struct run_failure f = {.cause = RUN_CAUSE_NODE,
                            .rank = -1,
                            .code = 1,
                            .silent_ms = silent_ms,
                            .noticed = now,
                            .act_at = now};
    char ranks[64];
    run_describe_ranks(run, i, ranks, sizeof ranks);
    snprintf(f.text, sizeof f.text, "node %s is lost (%s): %s", node->info.node, ranks, why);
    if (run->phase == RUN_GATHERING) {
        node->node_rank = -1;
        if (!gather_enough(run) && run->n_nodes == run->config.nodes) {
            run->machine |= !run->cause;
            fail(run, &f);
        }
    } else if (node->node_rank >= 0 && node_is_done(run, node)) {
        for (int k = 0; k < run->config.shape.tasks; k++)
            run->ranks[node->node_rank * run->config.shape.tasks + k].exited = 1;
        all_exited(run, now);
    } else if (node->node_rank >= 0) { /* the run needs no spare, until one is needed */
        fail(run, &f);
    }
}

void run_closed(struct run *run, int node, int64_t now)
{
    run_lose(run, node, "its agent is gone", 0, now);
}

static struct run_rank *find_rank(struct run *run, int node, uint32_t rank)
{
    if (run->phase == RUN_GATHERING || rank >= (uint32_t)run->world ||
        run->ranks[rank].node != node)
        return NULL;
    return &run->ranks[rank];
}

int run_opened(struct run *run, int node, uint32_t rank, int64_t now)
{
    struct run_rank *r = find_rank(run, node, rank);
    if (!r)
        return -1;
    if (!r->opened && ++run->phases.n_opened == run->world)
        run->phases.opened = now;
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

int run_progress(struct run *run, int node, uint32_t rank, int64_t step, uint32_t busy_us,
                 int64_t now)
{
    struct run_rank *r = find_rank(run, node, rank);
    struct run_phases *p = &run->phases;
    if (!r || step < 0)
        return -1;
    progress_note(run, rank, step, busy_us, now);
    if (r->step < 0) {
        r->begin = step;
        if (++p->n_restored == run->world)
            p->restored = now;
    } else if (r->step == r->begin && step > r->begin && ++p->n_stepped == run->world) {
        p->stepped = now;
    }
    if (step > r->step)
        r->step = step;
    if (step > run->furthest)
        run->furthest = step;
    return 0;
}

int run_seen(struct run *run, int node, uint32_t rank, char state, int64_t cpu_ms)
{
    if (!find_rank(run, node, rank))
        return -1;
    progress_seen(run, rank, state, cpu_ms);
    return 0;
}

int run_signalled(struct run *run, int node, uint32_t rank)
{
    if (!find_rank(run, node, rank))
        return -1;
    run->progress.signalled = 1;
    return 0;
}

void run_met(struct run *run, int64_t now)
{
    if (!run->phases.met)
        run->phases.met = now;
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
    else if (run->failure.cause == RUN_CAUSE_PEER)
        run->failure.act_at = now;
    else if (run->failure.cause)
        return;
    else
        run_end_because(run, RUN_CAUSE_SURE, 0, "all ranks are done", now);
}

static int may_go_back(struct run *run)
{
    if (run->furthest > run->back_at)
        run->backs = 0;
    run->back_at = run->furthest;
    return ++run->backs <= RUN_BACKS_MOST;
}

/* A rank's own end that is not the orderly one; `opened`: it is gtrain's own or uses its library.
 */
static void rank_fails(struct run *run, int node, const struct message_exited *how, int opened,
                       int64_t now)
{
    struct run_failure f = {
        .cause = RUN_CAUSE_SURE, .rank = (int)how->who.rank, .noticed = now, .act_at = now};
    int code = exit_code(how);
    char way[64];
    const char *name = run->nodes[node].info.node;
    run_describe_exit(how, way, sizeof way);
    snprintf(f.text, sizeof f.text, "rank %u on node %s ended with %s%s", how->who.rank, name, way,
             how->flags & EXITED_ORDERED ? " on a signal to the step" : "");
    f.code = (uint8_t)(code ? code : 1);
    if (code && how->flags & EXITED_ORDERED) {
        run_end_because(run, RUN_CAUSE_PEER, f.code, f.text, now + RUN_ORDER_MS);
        return;
    }
    if (how->flags & EXITED_NEVER && run->config.generation > 1) {
        snprintf(f.text, sizeof f.text, "the program cannot be executed there: %s", strerror(code));
        run_lose(run, node, f.text, 0, now); /* a spare that lacks it, perhaps */
        return;
    }
    if (opened && code == RUN_EXIT_UNFIT && !how->signal && run->config.generation > 1) {
        snprintf(f.text, sizeof f.text, "rank %u cannot go on there, as it says", how->who.rank);
        run_lose(run, node, f.text, 0, now);
        return;
    }
    /* No other try will help. */
    int hopeless = how->flags & EXITED_NEVER ||
                   (opened && (code == RUN_EXIT_REFUSED || code == RUN_EXIT_DIVERGED));
    if (hopeless) {
        run_end_because(run, RUN_CAUSE_SURE, f.code, f.text, now);
        return;
    }
    if (opened && code == RUN_EXIT_BACK && !how->signal && may_go_back(run)) {
        f.rank = -1;
        f.cause = RUN_CAUSE_PEER;
        f.act_at = now + RUN_SETTLE_MS;
        snprintf(f.text, sizeof f.text, "the run goes back to an older checkpoint");
        fail(run, &f);
        return;
    }
    if (!code)
        snprintf(f.text, sizeof f.text, "rank %u on node %s ended before its work was done",
                 how->who.rank, name);
    if (code <= 1) {
        f.cause = RUN_CAUSE_PEER;
        f.act_at = now + RUN_SETTLE_MS;
    } else if (how->signal && !run->cause && run->config.restarts) {
        f.act_at = now + RUN_FOLLOW_MS;
    }
    fail(run, &f);
}

int run_exited(struct run *run, int node, const struct message_exited *how, int64_t now)
{
    struct run_rank *r = find_rank(run, node, how->who.rank);
    if (!r)
        return -1;
    if (how->flags & EXITED_NO_AGENT) {
        char text[64];
        snprintf(text, sizeof text, "the agent of rank %u is gone", how->who.rank);
        run_lose(run, node, text, 0, now);
        return 0;
    }
    if (r->exited)
        return 0; /* told again after a lost connection */
    r->exited = 1;
    r->how = *how;
    r->done |= (how->flags & EXITED_DONE) != 0;
    run->ordered |= (how->flags & EXITED_ORDERED) != 0;
    int opened = r->opened || how->flags & EXITED_OPENED;
    if (exit_code(how) || (opened && !r->done))
        rank_fails(run, node, how, opened, now);
    else
        r->done = 1;
    all_exited(run, now);
    return 0;
}

void run_stop(struct run *run, uint8_t code, const char *text, int64_t now)
{
    run_end_because(run, RUN_CAUSE_SURE, code, text, now);
}

static void find_lost(struct run *run, int64_t now)
{
    /* If this process was stopped, or the machine asleep, nobody had a chance to be heard. */
    if (now - run->last_tick > run->config.patience_ms / 2)
        forgive(run, now);
    int64_t last = last_voice(run);
    for (int i = 0; i < run->n_nodes; i++) {
        struct run_node *node = &run->nodes[i];
        int64_t silent_ms = now - node->heard;
        if (node->state != RUN_NODE_UP && node->state != RUN_NODE_SUSPECT)
            continue;
        /* A common silence is no excuse for broken connections that stay away for long. */
        int long_gone = node->state == RUN_NODE_SUSPECT &&
                        now - node->heard > ALONE_PATIENCES * run->config.patience_ms;
        if (!silent(run, node, last) && !long_gone)
            continue;
        char why[128];
        snprintf(why, sizeof why, "%s for %.1f s",
                 node->state == RUN_NODE_SUSPECT ? "its connection broke and was not made again"
                                                 : "it is silent",
                 (double)run->config.patience_ms / 1000);
        run_lose(run, i, why, silent_ms, now);
    }
}

void run_tick(struct run *run, int64_t now)
{
    if (run->phase == RUN_ENDED)
        return;
    if (now != run->last_tick) /* with thousands of nodes there are many ticks in a millisecond */
        find_lost(run, now);
    run->last_tick = now;
    gather_tick(run, now);
    progress_tick(run, now);
    takeover_tick(run, now);
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
    if (run->failure.cause && run->failure.act_at < next && run->failure.act_at > now)
        next = run->failure.act_at;
    return run->cause && run->end_at < next ? run->end_at : next;
}
