/* encode_group.h - which ranks keep parity of each other's files. Pure.
 *
 * Nodes are dealt out into as many groups as there can be of the size the plan asks for; where that
 * does not divide, some groups are larger, and keep as much. They are dealt in the order of their
 * leaf switches, one to each group in turn, so that no group has more nodes under one leaf than it
 * must. Ranks at the same place on the nodes of a group make up a group of ranks. */
#ifndef GTRAIN_ENCODE_GROUP_H
#define GTRAIN_ENCODE_GROUP_H

#include "train/partner.h"

struct encode_seat {
    int group;  /* its first member's rank */
    int member; /* of the group, from 0 */
    int size;   /* of the group */
};

/* members: of a group, at least. False where there are fewer nodes, or unlike numbers of ranks on
 * them; *nodes tells how many there are (0: unlike). */
bool encode_groups(const struct partner_seat *seats, int world, int members,
                   struct encode_seat *out, int *nodes);

#endif
