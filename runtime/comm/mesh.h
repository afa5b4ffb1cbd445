/* mesh.h - which rank stands where: mixed-radix coordinates and the groups along each axis.
 *
 * Rank = ((data * pipeline + p) * expert + e) * context + c) * tensor + t: tensor innermost, data
 * outermost. With tensor 2, pipeline 2, data 2: rank 5 = data 1, pipeline 0, tensor 1; its tensor
 * group is {4, 5}, its pipeline group {5, 7}, its data group {1, 5}. */
#ifndef GTRAIN_MESH_H
#define GTRAIN_MESH_H

#include "base/err.h"
#include "comm/comm.h"

enum mesh_axis { MESH_TENSOR, MESH_CONTEXT, MESH_EXPERT, MESH_PIPELINE, MESH_DATA, MESH_AXES };

struct mesh {
    int degree[MESH_AXES];
    int world;
    int rank;
    int coord[MESH_AXES];
    struct comm_group axis[MESH_AXES]; /* the groups this rank is in */
    struct comm_group all;             /* everybody */
    struct comm_group stage; /* all ranks of my pipeline stage (tensor x context x expert x data) */
    int *ranks;              /* what the groups point into; owned */
};

/* Rank from coordinates, and back. Pure. */
int mesh_rank(const int degree[MESH_AXES], const int coord[MESH_AXES]);
void mesh_coord(const int degree[MESH_AXES], int rank, int coord[MESH_AXES]);

int mesh_open(struct mesh *m, const int degree[MESH_AXES], int rank, struct err *err);
void mesh_close(struct mesh *m);

/* Whom this rank exchanges messages with in the collectives of its groups: all of its groups along
 * the axes, and of the others those that the host collectives need (device collectives on `all` and
 * `stage` may take anybody). peers: room for the world, ascending. Returns how many. Pure. */
int mesh_peers(const struct mesh *m, int *peers);

/* The rank `by` places further along the axis, or -1 past its end. */
int mesh_neighbour(const struct mesh *m, enum mesh_axis axis, int by);

#endif
