/* second_copy.h - who keeps a copy of whose state in memory, so that a lost node loses none.
 *
 * Replicas hold the same bytes, and the decision what to go on from (ckpt/memory.h) takes a
 * replica's snapshot where a rank's own is gone. So a rank sends no copy where its partner's node
 * has one of its replicas, or where two replicas on two nodes are as far away as its partner would
 * be: a step's copies through the network are left for the ranks that few others are like. One
 * replica elsewhere is not enough: two nodes that are lost at once may be that one's and the
 * rank's own.
 */
#ifndef GTRAIN_SECOND_COPY_H
#define GTRAIN_SECOND_COPY_H

#include "comm/mesh.h"
#include "train/identity.h"
#include "train/partner.h"

/* Of each rank the one that takes its copies, -1: none. Ranks that are the same number modulo
 * `parts` are replicas. As partner_choose; then those are struck out whose partner's node has a
 * replica, and those that have replicas on two nodes under another leaf switch, or, where the
 * partner is under the rank's own, on two other nodes. Pure; -1: no memory. */
int second_copy_choose(const struct partner_seat *seats, int world, int parts, int *partner);

/* This rank's: *to takes its copies, *from sends its own, -1: none. All ranks call. */
int second_copy_find(struct comm *comm, const struct mesh *mesh,
                     const struct train_identity *identity, int parts, int *to, int *from,
                     struct err *err);

#endif
