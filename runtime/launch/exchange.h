/* exchange.h - all ranks swap blobs: each gives one, all get everybody's. Pure.
 *
 * One turn at a time: nobody can be a turn ahead of anybody who has not had its answer. The answer
 * of the turn before is kept, for a node that lost its connection meanwhile. */
#ifndef GTRAIN_LAUNCH_EXCHANGE_H
#define GTRAIN_LAUNCH_EXCHANGE_H

#include "base/err.h"
#include "launch/wire.h"

struct exchange {
    int room, world; /* room: the most ranks there ever are */
    uint32_t turn;
    int count;
    size_t bytes;
    void **blobs; /* by rank */
    size_t *lengths;
    struct wire_frame *answer; /* of turn - 1 */
};

enum exchange_outcome {
    EXCHANGE_STRANGE, /* not what a rank says now */
    EXCHANGE_KEPT,    /* others are still to come */
    EXCHANGE_AGAIN,   /* it wants `answer`, which it has lost */
    EXCHANGE_DONE,    /* `answer` is for all */
    EXCHANGE_TOO_LONG,
    EXCHANGE_NO_MEMORY,
};

int exchange_open(struct exchange *x, int room, struct err *err);
void exchange_close(struct exchange *x);
/* A generation of that many ranks: what was said before is forgotten. */
void exchange_begin(struct exchange *x, int world);
enum exchange_outcome exchange_take(struct exchange *x, uint32_t rank, uint32_t turn,
                                    const void *blob, size_t bytes);

#endif
