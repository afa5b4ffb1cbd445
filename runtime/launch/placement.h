/* placement.h - which node gets which ranks, and which nodes are spares. A pure function.
 *
 * Ranks fill nodes in order: rank = node_rank * tasks + local index, with the tensor coordinate
 * innermost, then context, expert, pipeline, and data outermost. So a placement is an order of the
 * nodes. What has to talk most is put nearest: the nodes of one tensor (context, expert) group,
 * then the pipeline neighbours of one replica, then replicas next to each other. Nodes are near
 * when their topology addresses ("spine.leaf.node") have a long common beginning. */
#ifndef GTRAIN_LAUNCH_PLACEMENT_H
#define GTRAIN_LAUNCH_PLACEMENT_H

#include "base/err.h"

struct placement_node {
    const char *name;     /* unique */
    const char *topology; /* its address, "" when the site has none */
};

struct placement_shape {
    int inner;    /* tensor * context * expert */
    int pipeline; /* stages */
    int data;     /* replicas */
    int tasks;    /* on every node */
};

/* What a placement costs: neighbours that have to go over a switch (nodes under different leaves),
 * counted by kind. Compared in this order. */
struct placement_cost {
    int inner;    /* nodes next to each other in one tensor-context-expert group */
    int pipeline; /* stages next to each other */
    int data;     /* replicas next to each other, as a ring */
};

/* node_rank[i] of every node i, -1 for a spare. The result depends on the set of nodes, not on
 * their order. Nodes needed = inner * pipeline * data / tasks, which must divide; the rest are
 * spares. -1 with err when it does not divide or nodes are too few. */
int placement_make(const struct placement_node *nodes, int n, const struct placement_shape *shape,
                   int *node_rank, struct err *err);

/* Give the node ranks in lost[] (n_lost of them, which no node has now) to spares: nodes with node
 * rank -1 and usable[i]. Nobody else moves. One after the other, each to the spare that makes the
 * cheapest placement, the one with the first name among equals. -1: too few spares; nothing is
 * changed then. */
int placement_replace(const struct placement_node *nodes, int n,
                      const struct placement_shape *shape, const int *lost, int n_lost,
                      const int *usable, int *node_rank);

/* As many replicas as whole nodes hold, at most shape->data. Pure. */
int placement_replicas(const struct placement_shape *shape, int nodes);

/* Too few spares: as many replicas as the usable nodes hold, and all other degrees as they are. Of
 * the node ranks before[] (those of nodes that are not usable are free), whole replicas stay
 * together, a node keeps its part of the model wherever it can, and who is left over is a spare.
 * shape->data is then the new one. -1: that would be fewer than `least` (or no memory); shape is
 * unchanged then. */
int placement_shrink(const struct placement_node *nodes, int n, struct placement_shape *shape,
                     int least, const int *usable, const int *before, int *node_rank);

/* Levels of switches that two nodes have to climb to reach each other: 0 the same node, 1 under one
 * leaf, 2 under one spine, ... Without addresses all nodes are under one leaf. */
int placement_distance(const struct placement_node *a, const struct placement_node *b);

struct placement_cost placement_cost(const struct placement_node *nodes, int n,
                                     const struct placement_shape *shape, const int *node_rank);

#endif
