/* second_copy.h - who keeps a copy of whose state in memory, so that a lost node loses none.
 *
 * Replicas hold the same bytes, and the decision what to go on from (ckpt/memory.h) takes a
 * replica's snapshot where a rank's own is gone. So a rank one of whose replicas is as far away as
 * its partner would be has its second copy there, and sends none: a step's copies through the
 * network are left for the ranks that nobody else is like. */
#ifndef GTRAIN_SECOND_COPY_H
#define GTRAIN_SECOND_COPY_H

#include "comm/mesh.h"
#include "train/identity.h"
#include "train/partner.h"

/* Of each rank the one that takes its copies, -1: none. Ranks that are the same number modulo
 * `parts` are replicas. As partner_choose; then those are struck out that have a replica under
 * another leaf switch, or, where the partner is under the rank's own, on another node. Pure; -1: no
 * memory. */
int second_copy_choose(const struct partner_seat *seats, int world, int parts, int *partner);

/* This rank's: *to takes its copies, *from sends its own, -1: none. All ranks call. */
int second_copy_find(struct comm *comm, const struct mesh *mesh,
                     const struct train_identity *identity, int parts, int *to, int *from,
                     struct err *err);

#endif
