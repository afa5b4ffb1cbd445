/* rebuild.h - files of a checkpoint that lie nowhere, put together from those of their groups.
 *
 * Each lost file has a rank that builds it, on its own node's disk. The ranks that are where the
 * group's files and parities lie send it their elements (ckpt/parity.h), chunk by chunk, all in the
 * one order that the decision gives: nobody asks, nobody waits in a circle. Who cannot read what it
 * should send sends the word that it cannot, and nobody is left waiting. */
#ifndef GTRAIN_REBUILD_H
#define GTRAIN_REBUILD_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "train/identity.h"

struct rebuild {
    struct comm *comm;
    const struct mesh *mesh;
    const struct train_identity *identity;
    const char *dir; /* each node's folder, where a file is built */
    struct ckpt_decision *decision;
    /* A place that turned out to be damaged: called on all ranks for all of them. -1: err. */
    int (*damaged)(void *arg, const struct ckpt_place *place, struct err *err);
    /* A place where a file is now: likewise. */
    int (*built)(void *arg, const struct ckpt_place *place, struct err *err);
    void *arg;
    /* Whose own disk or memory would not do, where that is why rebuild_lost failed; all ranks hear
     * it. Else as it was. */
    int *troubled;
};

/* All ranks call, with a decision of ckpt_decide_rebuilt. 0: every file is there, and the
 * decision's places say where. 1: some source was damaged, so it must be decided anew. -1: err; if
 * the network has not failed, the same on all ranks. */
int rebuild_lost(const struct rebuild *r, struct err *err);

#endif
