/* second_copy.c - see second_copy.h. */
#include "train/second_copy.h"

#include <stdlib.h>

/* Where a rank is: node and leaf switch, each by a number. */
struct stand {
    int node, leaf;
};

static bool far_enough(const struct stand *stand, int rank, int partner, int twin)
{
    if (stand[partner].leaf != stand[rank].leaf)
        return stand[twin].leaf != stand[rank].leaf;
    return stand[twin].node != stand[rank].node;
}

/* That many nodes at once may be lost as with a partner: it is a replica's node anyway, or two
 * others hold what the rank holds. */
static bool has_replicas(const struct stand *stand, int world, int parts, int rank, int partner)
{
    int first = -1; /* the node of one that is far enough */
    for (int twin = rank % parts; twin < world; twin += parts) {
        int node = stand[twin].node;
        if (node == stand[partner].node)
            return true;
        if (!far_enough(stand, rank, partner, twin))
            continue;
        if (first >= 0 && first != node)
            return true;
        first = node;
    }
    return false;
}

int second_copy_choose(const struct partner_seat *seats, int world, int parts, int *partner)
{
    struct partner_node *nodes = calloc((size_t)world, sizeof *nodes);
    struct stand *stand = calloc((size_t)world, sizeof *stand);
    if (!nodes || !stand) {
        free(nodes);
        free(stand);
        return -1;
    }
    int largest, n = partner_nodes(seats, world, nodes, &largest), ranks = world / n;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ranks; k++)
            stand[nodes[i].first + k] = (struct stand){i, nodes[i].leaf};
    partner_choose(seats, world, partner);
    for (int r = 0; r < world; r++)
        if (partner[r] >= 0 && has_replicas(stand, world, parts, r, partner[r]))
            partner[r] = -1;
    free(nodes);
    free(stand);
    return 0;
}

int second_copy_find(struct comm *comm, const struct mesh *mesh,
                     const struct train_identity *identity, int parts, int *to, int *from,
                     struct err *err)
{
    int world = mesh->world, rv = -1;
    struct partner_seat mine, *seats = calloc((size_t)world, sizeof *seats);
    int *partner = calloc((size_t)world, sizeof *partner);
    *to = *from = -1;
    partner_sit(identity, &mine);
    if (!seats || !partner) {
        err_set(err, "no memory to choose who keeps copies");
    } else if (!comm_host_all_gather(comm, &mesh->all, &mine, sizeof mine, seats, err)) {
        rv = second_copy_choose(seats, world, parts, partner);
        if (rv)
            err_set(err, "no memory to choose who keeps copies");
        for (int r = 0; r < world && !rv; r++)
            if (partner[r] == mesh->rank)
                *from = r;
        if (!rv)
            *to = partner[mesh->rank];
    }
    free(seats);
    free(partner);
    return rv;
}
