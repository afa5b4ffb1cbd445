/* peak.h - what the device can do in plain matrix products: the limit that utilisation is held
 * against. */
#ifndef GTRAIN_PEAK_H
#define GTRAIN_PEAK_H

#include "comm/mesh.h"
#include "kernels.h"

/* FLOP/s of all ranks together in large matrix products of this dtype, all measuring at the same
 * time (ranks that share cores share them here too). All ranks call. Takes about 0.3 s. */
int peak_measure(struct kernels *k, enum kdtype dtype, struct comm *comm, const struct mesh *mesh,
                 double *flops, struct err *err);

#endif
