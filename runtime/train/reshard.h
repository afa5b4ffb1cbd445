/* reshard.h - a checkpoint's files to the ranks that need them, whatever layout wrote them.
 *
 * A rank reads the files of its own node itself. To ranks elsewhere one of the node's ranks serves
 * each; what is in a rank's memory only that rank reads. A file on a node that has no rank is one
 * that all nodes see (the shared folder). What the files hold is exchanged once, a table for each
 * way of cutting, so replicas cost nothing. Then each rank knows by itself where its slices are. A
 * rank whose very slices are in a file at hand reads that file whole (`whole`); any other asks for
 * pieces.
 *
 * A rank is filled window by window (ckpt_fill_order), so that it needs little memory beside its
 * state, and so all of a window's pieces must come before any of the next. At first each rank tells
 * those that have its pieces which ones it wants, window by window. Then the windows, counted from
 * 0 on every rank, are moved one after the other, in rounds: in round x rank r meets rank r ^ x and
 * nobody else, so each is busy with one other, all of them at once. Both know from the lists
 * whether there is something to move between them, and do not meet where there is not. In a meeting
 * the lower rank is served first. Nobody waits in a circle: all go through (window, round) in the
 * same order, and of those that wait the one with the lowest has a peer that is on its way there,
 * waiting for nobody. */
#ifndef GTRAIN_RESHARD_H
#define GTRAIN_RESHARD_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "memory.h"

/* What gtrain.layout holds: the degrees that made the slices, and a hash of kernels_signature. */
enum { LAYOUT_SIGNATURE = MESH_AXES, LAYOUT_WORDS };

/* Name of the tensor that says how a file was cut. */
#define RESHARD_LAYOUT_NAME "gtrain.layout"

enum { RESHARD_NODE_BYTES = 256, RESHARD_TEXT_BYTES = 512 };

struct reshard_file {
    int number;   /* of the decision's places */
    int damaged;  /* then text says how, and the rest is nothing */
    uint64_t cut; /* hash of the file's table */
    int64_t layout[LAYOUT_WORDS];
    char text[RESHARD_TEXT_BYTES];
};

struct reshard_rank {
    char node[RESHARD_NODE_BYTES];
    uint64_t cut; /* hash of the table of its own slices */
};

struct reshard {
    struct comm *comm;
    const struct mesh *mesh;
    const struct ckpt_decision *decision;
    const struct ckpt_memory *memory; /* this rank's, for places in memory; may be NULL */
    struct reshard_rank *ranks;       /* world */
    struct reshard_file *files;       /* the decision's world */
    int *server;                      /* by file: a rank, -1: everybody reads it */
    int *whole;    /* by rank: the file that it reads whole, -1: it asks for pieces */
    bool moves;    /* some rank asks for pieces */
    char **tables; /* one for each cut, where moves; then n_tables of */
    uint64_t *cuts;
    int n_tables;
    struct ckpt_piece *pieces; /* this rank's; source is a file */
    int n_pieces;
    int64_t *piece_bytes; /* from reshard_order on */
    bool damaged;         /* a file turned out to be while it moved, */
    int damaged_file;     /* this one */
};

/* All ranks call: who is where, what the files hold. own: ckpt_table of this rank's slices. node:
 * its name. A file that cannot be read is no failure here: see reshard_damage. -1: the network, or
 * no memory. reshard_close after either. */
int reshard_open(struct reshard *r, struct comm *comm, const struct mesh *mesh,
                 const struct ckpt_decision *decision, const struct ckpt_memory *memory,
                 const char *node, const char *own, struct err *err);

/* The first file that cannot be used, the same on all ranks; NULL: all can. */
const struct reshard_file *reshard_damage(const struct reshard *r);

/* Every rank's state is cut as the file of its number is. */
bool reshard_same_cut(const struct reshard *r);

/* Where this rank's pieces are, unless it reads a whole file. No network. */
int reshard_plan(struct reshard *r, const struct ckpt_tensor *wanted, int n, struct err *err);

/* Then the pieces in the order in which c is filled. tensors: all that it fills. No network. */
int reshard_order(struct reshard *r, struct ckpt *c, const struct ckpt_tensor *tensors,
                  struct err *err);

/* All ranks call, after all have planned: pieces into c, with ckpt_fill. A damaged file is a
 * failure of the rank that serves it (r->damaged), and the others go on as if it were not. */
int reshard_move(struct reshard *r, struct ckpt *c, struct err *err);

/* The record's file, and no other: its digest stands for every byte. */
int reshard_open_file(const struct reshard *r, int file, struct ckpt_file **out, struct err *err);

void reshard_close(struct reshard *r);

/* Which rank serves each file: those of its node take turns. nodes: the ranks'. Pure. */
void reshard_servers(const struct reshard_rank *ranks, int world, const struct ckpt_place *places,
                     int n_files, int *server);

/* Who reads a file for a rank: itself where it lies at hand, else the file's server. Pure. */
int reshard_reader(const struct reshard *r, int file, int rank);

/* The file of a cut that this rank had best read: its own, one of its node, else replicas take
 * turns. -1: none. Pure. */
int reshard_nearest(const struct reshard *r, int rank, uint64_t cut);

#endif
