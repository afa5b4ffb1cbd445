/* partner.h - a copy of every rank's checkpoint file on another node.
 *
 * Each rank has a partner, who keeps copies of its files, and is itself the partner of one other:
 * its ward. While a rank's file is written, from the moment its data stand in the writer's memory,
 * a thread of the rank (background.h) sends them piece by piece, and takes its ward's; another
 * writes those (ckpt/copy.h). The header goes last, when the file is durable: so a copy is complete
 * only where its original is. Every message says whose it is, of which epoch, generation and step,
 * and is refused if that is not what the receiver expects.
 *
 * Nobody waits in a circle: piece for piece a rank starts its send and its receive and then waits
 * for both, as in encode.h, and what is said there holds here. Where one file is longer the rest of
 * it goes one way. Who has to wait for its disk sends empty pieces meanwhile. */
#ifndef GTRAIN_PARTNER_H
#define GTRAIN_PARTNER_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "copy.h"
#include "image.h"
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
    int64_t file_bytes;                    /* of one of those; 0: not known yet */
    int64_t word_ms;                       /* each hears of the other as often at least */
};

/* Who is whose partner: all ranks call. */
int partner_find(struct partner *p, struct comm *comm, const struct mesh *mesh,
                 const struct train_identity *identity, struct err *err);

/* How long the ward's files are: all ranks call, with the bytes of their own. */
int partner_tell_bytes(struct partner *p, struct comm *comm, int64_t own, struct err *err);

/* Once the folder is there: ready to take the ward's files. comm_timeout_ms: how long the others
 * wait for this rank. */
int partner_open(struct partner *p, const char *dir, int64_t comm_timeout_ms, struct err *err);

/* In the thread, of each image that own shows: all of the file goes, and the ward's is with the
 * copy's writer. All ranks call. The image is the caller's to release. */
int partner_run(struct partner *p, struct ckpt *own, const struct ckpt_image *image,
                struct background *b, struct err *err);

void partner_close(struct partner *p);

#endif
