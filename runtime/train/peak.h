/* peak.h - what the device can do in plain matrix products: the limit that utilisation is held
 * against. */
#ifndef GTRAIN_PEAK_H
#define GTRAIN_PEAK_H

#include <stdbool.h>

#include "comm/mesh.h"
#include "kernels.h"

struct peak {
    double flops; /* a second, all ranks together; 0: unknown */
    bool about;   /* something else had a part of the machine: the true limit may be higher */
};

/* Fill it with the FLOP/s of all ranks together in large matrix products of this dtype, all
 * measuring at the same time (ranks that share cores share them here too). All ranks call. Takes
 * about 0.3 s. */
int peak_measure(struct kernels *k, enum kdtype dtype, struct comm *comm, const struct mesh *mesh,
                 struct peak *peak, struct err *err);

/* The part of the limit that a step used which made so many FLOPs a second, NAN if the limit is
 * unknown. A step that makes more than was measured shows that the measurement was disturbed: what
 * it made is the limit from then on. So this is never more than 1. */
double peak_share(struct peak *peak, double flops);

#endif
