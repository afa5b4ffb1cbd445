/* partner.h - a copy of every rank's checkpoint file on another node.
 *
 * Each rank has a partner, who keeps copies of its files, and is itself the partner of one other:
 * its ward. Once the tally has told that every rank's file of a step is durable, all ranks begin,
 * without asking anybody, and training goes on: a thread of each rank (background.h) sends the file
 * piece by piece, as it still stands in the writer's memory, and takes its ward's; another writes
 * that (ckpt/copy.h). Before the next save begins, the copy of the one before has arrived. Every
 * message says whose it is, of which epoch, generation and step, and is refused if that is not what
 * the receiver expects.
 *
 * Nobody waits in a circle: piece for piece a rank starts its send and its receive and then waits
 * for both, as in encode.h, and what is said there holds here. Where one file is longer the rest of
 * it goes one way. */
#ifndef GTRAIN_PARTNER_H
#define GTRAIN_PARTNER_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "copy.h"
#include "train/background.h"
#include "train/identity.h"

enum {
    PARTNER_NODE_BYTES = 256,
    PARTNER_TOPOLOGY_BYTES = 256,
};

/* Where a rank is. */
struct partner_seat {
    char node[PARTNER_NODE_BYTES];
    char topology[PARTNER_TOPOLOGY_BYTES]; /* "spine.leaf.node", or "" */
};

/* A node with ranks: its first, and the leaf switch it is under, by the number of the first node
 * there. */
struct partner_node {
    const struct partner_seat *seat;
    int first, leaf;
};

/* The nodes, those of one leaf in a row; in *largest how many the fullest leaf has. nodes: room for
 * world. Ranks of a node must be in a row. Returns their number. Pure. */
int partner_nodes(const struct partner_seat *seats, int world, struct partner_node *nodes,
                  int *largest);

/* This rank's. */
void partner_sit(const struct train_identity *identity, struct partner_seat *out);

/* The partner of each rank, on another node, under another leaf switch wherever no leaf has more
 * than half of the nodes. A permutation. Nodes must have the same number of ranks each, in a row.
 * Returns false, and partner is all -1, where there is one node only. Pure. */
bool partner_choose(const struct partner_seat *seats, int world, int *partner);

struct partner {
    const struct train_identity *identity; /* NULL: not asked for */
    int to, from;                          /* my partner, my ward; -1: none (one node) */
    struct ckpt_copy *copy;                /* of the ward's files */

    /* From partner_begin on the thread's, until partner_run is over. */
    struct ckpt_place place; /* of this rank's file; path and node are owned */
    int64_t step;
};

/* Who is whose partner: all ranks call. */
int partner_find(struct partner *p, struct comm *comm, const struct mesh *mesh,
                 const struct train_identity *identity, struct err *err);

/* Once the folder is there: ready to take the ward's files. */
int partner_open(struct partner *p, const char *dir, struct err *err);

/* Every rank's file of a step is durable: its turn. own must not save again until partner_run is
 * over. No network. */
int partner_begin(struct partner *p, struct ckpt *own, int64_t step, struct err *err);

/* After that, in the thread: all of the file goes, and the ward's is with the copy's writer. All
 * ranks call. */
int partner_run(struct partner *p, struct background *b, struct err *err);

void partner_close(struct partner *p);

#endif
