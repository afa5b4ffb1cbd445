/* side.h - a comm of some ranks beside the run's own, for a thread that talks while training does.
 *
 * Whoever starts the ranks opens one for each such thread on every rank (train.h). Where ranks are
 * processes it is not connected yet: those that will talk on it tell each other its addresses over
 * the run's own comm, and nobody else hears of it. */
#ifndef GTRAIN_SIDE_H
#define GTRAIN_SIDE_H

#include <stddef.h>

#include "comm/comm.h"

struct side {
    struct comm *comm;   /* of the same ranks; NULL: there is none */
    const void *address; /* as comm_open_ucx gave it, where it is not connected; NULL: it is */
    size_t address_bytes;
};

/* All ranks that will talk call, at the same time: in round i this rank tells to[i] its address and
 * hears that of from[i], so to of one is from of the other; -1: that half is left out. main: the
 * run's comm, of `world` ranks. A connected one only gets its timeout, and n may be 0 where nobody
 * talks. A failure is one of the network. */
int side_connect(struct side *side, struct comm *main, const int *to, const int *from, int n,
                 int64_t timeout_ms, struct err *err);

/* The comm is the caller's from now on. */
struct comm *side_take(struct side *side);

/* Where nobody has taken it. */
void side_close(struct side *side);

#endif
