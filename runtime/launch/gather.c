/* gather.c - see gather.h. */
#include "launch/gather.h"

#include <stdio.h>
#include <string.h>

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
    int ours = info->epoch == run->config.epoch && info->generation <= run->config.generation;
    int too_early =
        node->state == RUN_NODE_SUSPECT && !info->generation; /* never heard our answer */
    if (!same_place(&node->info, info) || !(ours || too_early))
        return err_set(err, "node %s registered twice", info->node);
    node->state = RUN_NODE_UP;
    node->heard = now;
    node->info.port = info->port;
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
    if (run->phase == RUN_ENDED || run->n_nodes == c->nodes)
        return err_set(err, "node %s is one too many: the step has %d", info->node, c->nodes);
    int running = run->phase == RUN_RUNNING;
    if (!*info->node || info->local_tasks != (uint32_t)c->shape.tasks) {
        err_set(err,
                "node %s has %u tasks, the others %d: use --ntasks-per-node (gtrain needs the "
                "same number on each node)",
                info->node, info->local_tasks, c->shape.tasks);
        if (!running)
            run_stop(run, 1, err->text, now);
        return -1;
    }
    struct run_node *node = &run->nodes[run->n_nodes];
    *node = (struct run_node){.info = *info, .node_rank = running ? -1 : -2, .heard = now};
    if (!run->n_nodes)
        run->first_node = now;
    run->asked_at = now;
    run->absent = run->absent_once = 0; /* it may be one of those */
    return run->n_nodes++;
}

static int nodes_up(const struct run *run)
{
    int up = 0;
    for (int i = 0; i < run->n_nodes; i++)
        up += run->nodes[i].state == RUN_NODE_UP;
    return up;
}

static int enough(const struct run *run, int nodes)
{
    int least = run->config.least_data;
    return placement_replicas(&run->config.shape, nodes) >=
           (least ? least : run->config.shape.data);
}

int gather_enough(const struct run *run)
{
    return enough(run, nodes_up(run));
}

/* Can they still become enough, if these never come? */
static int may_become_enough(const struct run *run, int never)
{
    int nodes = run->config.nodes - never;
    for (int i = 0; i < run->n_nodes; i++)
        nodes -= run->nodes[i].state == RUN_NODE_LOST;
    return enough(run, nodes);
}

static int enough_for_all(const struct run *run)
{
    const struct placement_shape *s = &run->config.shape;
    return placement_replicas(s, nodes_up(run)) >= s->data;
}

/* Has everybody come, or had the time to? */
static int gathered(const struct run *run)
{
    int64_t patience = run->config.start_patience_ms;
    return run->n_nodes + run->absent >= run->config.nodes || run->late ||
           (patience && run->full_at >= 0 && run->last_tick - run->full_at >= patience);
}

int run_complete(const struct run *run)
{
    if (run->phase != RUN_GATHERING || run->cause || !gathered(run))
        return 0;
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_SUSPECT)
            return 0;
    return gather_enough(run);
}

static void end_without(struct run *run, const char *node, int n, int64_t now)
{
    char text[256], others[48] = "";
    if (n > 1)
        snprintf(others, sizeof others, " and %d more", n - 1);
    snprintf(text, sizeof text, "node %.128s%s did not answer while the step was launched", node,
             others);
    run->machine |= !run->cause;
    run_end_because(run, RUN_CAUSE_NODE, 1, text, now);
}

void run_not_launched(struct run *run, const char *node, int n, int64_t now)
{
    if (run->phase != RUN_GATHERING)
        return;
    for (int i = 0; i < run->n_nodes; i++)
        run->nodes[i].state = RUN_NODE_GONE;
    end_without(run, node, n, now);
}

void run_absent(struct run *run, const char *node, int n, int64_t now)
{
    int missing = run->config.nodes - run->n_nodes;
    run->answers = run->asked;
    if (run->phase != RUN_GATHERING || run->cause)
        return;
    n = n < missing ? n : missing;
    run->absent = n < run->absent_once ? n : run->absent_once;
    run->absent_once = n;
    if (run->absent && !may_become_enough(run, run->absent))
        end_without(run, node, run->absent, now);
}

/* Ask twice within the patience, so that one that is dead is noticed by its end; and again where no
 * answer has come. */
static void ask_for_missing(struct run *run, int64_t now)
{
    int64_t patience = run->config.start_patience_ms;
    int64_t pause = run->asked > run->answers ? patience : patience / 2;
    if (!patience || run->n_nodes == run->config.nodes || now - run->asked_at < pause)
        return;
    run->asked++;
    run->asked_at = now;
}

/* Nodes may be lost while others have yet to come: too few are left then, whoever comes. But where
 * srun could not launch on one it ends the others first, and says so only then
 * (run_not_launched). */
static void find_too_few(struct run *run, int64_t now)
{
    char text[256] = "";
    if (may_become_enough(run, 0))
        run->few_at = -1;
    else if (run->few_at < 0)
        run->few_at = now;
    if (run->few_at < 0 || now - run->few_at < RUN_BLAME_MS)
        return;
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_LOST)
            snprintf(text, sizeof text, "node %.64s is lost (no ranks yet): %s",
                     run->nodes[i].info.node, run->nodes[i].why);
    run->machine = 1;
    run_end_because(run, RUN_CAUSE_NODE, 1, text, now);
}

void gather_tick(struct run *run, int64_t now)
{
    char text[256];
    if (run->phase != RUN_GATHERING || run->cause)
        return;
    ask_for_missing(run, now);
    find_too_few(run, now);
    if (!run->n_nodes || run->cause)
        return;
    if (!enough_for_all(run))
        run->full_at = -1;
    else if (run->full_at < 0)
        run->full_at = now;
    if (now - run->first_node <= RUN_GATHER_MS)
        return;
    run->late = gather_enough(run);
    if (run->late)
        return;
    snprintf(text, sizeof text, "only %d of %d nodes have registered within %d s", run->n_nodes,
             run->config.nodes, RUN_GATHER_MS / 1000);
    run_end_because(run, RUN_CAUSE_SURE, 1, text, now);
    run->machine = 1;
}
