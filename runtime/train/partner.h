/* partner.h - a copy of every rank's checkpoint file on another node.
 *
 * Each rank has a partner, who keeps copies of its files, and is itself the partner of one other:
 * its ward. Between two steps they exchange a message, in both directions at once: a piece of the
 * file that is under way, or that there is none. So the copy travels while training goes on, and
 * nobody needs to be asked when. Files go in the order in which they were saved; before the next
 * save begins, the one before has arrived. Every message says whose it is, of which epoch,
 * generation and step, and is refused if that is not what the receiver expects. */
#ifndef GTRAIN_PARTNER_H
#define GTRAIN_PARTNER_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "copy.h"
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
    struct comm *comm;
    const struct train_identity *identity;
    int to, from;           /* my partner, my ward; -1: none (one node, or not asked for) */
    struct ckpt_copy *copy; /* of the ward's files */
    void *piece;            /* PARTNER_PIECE_BYTES, to send from */

    int64_t sent;            /* newest step that went, -1: none */
    int fd;                  /* of the file under way; -1: none */
    struct ckpt_place place; /* of it; path and node are owned */
    int64_t step, at;
};

/* Who is whose partner: all ranks call. */
int partner_find(struct partner *p, struct comm *comm, const struct mesh *mesh,
                 const struct train_identity *identity, struct err *err);

/* Once the folder is there: ready to take the ward's files. */
int partner_open(struct partner *p, const char *dir, struct err *err);

/* Between two steps: send and receive at most so many bytes. All ranks call. */
int partner_turn(struct partner *p, struct ckpt *own, int64_t bytes, struct err *err);

/* All ranks call: until every finished file has gone, and come. */
int partner_settle(struct partner *p, struct ckpt *own, struct err *err);

void partner_close(struct partner *p);

#endif
