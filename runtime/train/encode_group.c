/* encode_group.c - see encode_group.h. */
#include "train/encode_group.h"

#include <stdlib.h>
#include <string.h>

/* All nodes have as many ranks. */
static bool alike(const struct partner_seat *seats, int world, const struct partner_node *nodes,
                  int n)
{
    int ranks = world / n;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ranks; k++)
            if (nodes[i].first + ranks > world ||
                strcmp(seats[nodes[i].first + k].node, seats[nodes[i].first].node))
                return false;
    return world % n == 0;
}

/* Example: 5 nodes under leaves a a b b b, groups of 2: a1 b1 b3 and a2 b2. */
bool encode_groups(const struct partner_seat *seats, int world, int members,
                   struct encode_seat *out, int *nodes_out)
{
    struct partner_node *nodes = calloc((size_t)world, sizeof *nodes);
    int largest, n = nodes ? partner_nodes(seats, world, nodes, &largest) : 0;
    bool good = n > 0 && alike(seats, world, nodes, n);
    int groups = good ? n / members : 0, ranks = n ? world / n : 0;
    *nodes_out = good ? n : 0;
    for (int i = 0; groups > 0 && i < n; i++)
        for (int k = 0; k < ranks; k++)
            out[nodes[i].first + k] =
                (struct encode_seat){.group = nodes[i % groups].first + k,
                                     .member = i / groups,
                                     .size = n / groups + (i % groups < n % groups)};
    free(nodes);
    return groups > 0;
}
