/* placement_shrink.c - fewer replicas on the nodes that are left. See placement.h.
 *
 * Nodes and replicas meet in blocks, the fewest whole nodes that hold whole replicas: with 6 ranks
 * a replica and 4 tasks a node a block is 3 nodes and 2 replicas. Blocks are dropped, and within
 * the others a node's position says which part of the model it has. So a hole is best filled by a
 * node of the same position of a dropped block: it has those very slices.
 *
 * Example, 2 stages on 2 nodes, 3 replicas, nodes a to f, b and e are lost:
 *   before  a . | c d | . f      blocks 0 and 2 lack one node, block 1 is whole
 *   after   a f | c d            block 0 is kept (it is the first), f had its second stage, too */
#include <stdlib.h>

#include "launch/placement.h"

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

struct block {
    int nodes, replicas;
};

static struct block block_of(const struct placement_shape *s)
{
    int replica = s->inner * s->pipeline, common = common_divisor(replica, s->tasks);
    return (struct block){.nodes = replica / common, .replicas = s->tasks / common};
}

int placement_replicas(const struct placement_shape *shape, int nodes)
{
    struct block block = block_of(shape);
    int n = nodes / block.nodes * block.replicas;
    return n < shape->data ? n : shape->data;
}

struct shrink {
    const struct placement_node *nodes;
    int n;
    const int *usable, *before; /* before: the node ranks that were */
    struct block block;
    int kept;                     /* blocks */
    struct placement_shape shape; /* the new one */
    int *live;                    /* by old block: nodes that are left */
    int *moves_to;                /* by old block: the new one, -1: dropped */
    int *mask;                    /* by node: may it fill the hole? */
};

static void count_live(struct shrink *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->usable[i] && s->before[i] >= 0)
            s->live[s->before[i] / s->block.nodes]++;
}

/* The blocks that lack least, the first among equals; those that can keep their place. */
static void choose_blocks(struct shrink *s, int blocks)
{
    for (int b = 0; b < blocks; b++)
        s->moves_to[b] = -1;
    for (int k = 0; k < s->kept; k++) {
        int best = -1;
        for (int b = 0; b < blocks; b++)
            if (s->moves_to[b] < 0 && (best < 0 || s->live[b] > s->live[best]))
                best = b;
        s->moves_to[best] = best;
    }
    int free_place = 0;
    for (int b = s->kept; b < blocks; b++) {
        if (s->moves_to[b] < 0)
            continue;
        while (s->moves_to[free_place] == free_place)
            free_place++;
        s->moves_to[b] = free_place++;
    }
}

/* Node ranks of the nodes that stay; all others are spares for now. */
static void seat_kept(const struct shrink *s, int *node_rank)
{
    for (int i = 0; i < s->n; i++) {
        int was = s->before[i],
            to = was < 0 || !s->usable[i] ? -1 : s->moves_to[was / s->block.nodes];
        node_rank[i] = to < 0 ? -1 : to * s->block.nodes + was % s->block.nodes;
    }
}

/* May fill the hole: nodes that are free and, unless any will do, had its position. */
static int choose_candidates(struct shrink *s, int hole, int any, const int *node_rank)
{
    int found = 0;
    for (int i = 0; i < s->n; i++) {
        int was = s->before[i];
        int fits = any || (was >= 0 && was % s->block.nodes == hole % s->block.nodes);
        s->mask[i] = s->usable[i] && node_rank[i] == -1 && fits;
        found |= s->mask[i];
    }
    return found;
}

/* First all holes that a node of the same position fills, so that none of those goes elsewhere. */
static int fill_holes(struct shrink *s, int *node_rank)
{
    int nodes = s->kept * s->block.nodes, bad = 0;
    int *taken = calloc((size_t)nodes, sizeof *taken);
    if (!taken)
        return -1;
    for (int i = 0; i < s->n; i++)
        if (node_rank[i] >= 0)
            taken[node_rank[i]] = 1;
    for (int any = 0; any < 2; any++)
        for (int hole = 0; hole < nodes && !bad; hole++) {
            if (taken[hole] || !choose_candidates(s, hole, any, node_rank))
                continue;
            bad = placement_replace(s->nodes, s->n, &s->shape, &hole, 1, s->mask, node_rank);
            taken[hole] = 1;
        }
    free(taken);
    return bad;
}

int placement_shrink(const struct placement_node *nodes, int n, struct placement_shape *shape,
                     int least, const int *usable, const int *before, int *node_rank)
{
    struct shrink s = {.nodes = nodes,
                       .n = n,
                       .usable = usable,
                       .before = before,
                       .block = block_of(shape),
                       .shape = *shape};
    int live = 0, blocks = shape->data / s.block.replicas, bad = -1;
    for (int i = 0; i < n; i++)
        live += usable[i] != 0;
    s.shape.data = placement_replicas(shape, live);
    s.kept = s.shape.data / s.block.replicas;
    if (s.shape.data < 1 || s.shape.data < least)
        return -1;
    s.live = calloc((size_t)blocks, sizeof *s.live);
    s.moves_to = calloc((size_t)blocks, sizeof *s.moves_to);
    s.mask = calloc((size_t)n, sizeof *s.mask);
    if (s.live && s.moves_to && s.mask) {
        count_live(&s);
        choose_blocks(&s, blocks);
        seat_kept(&s, node_rank);
        bad = fill_holes(&s, node_rank);
    }
    if (!bad)
        *shape = s.shape;
    free(s.live);
    free(s.moves_to);
    free(s.mask);
    return bad;
}
