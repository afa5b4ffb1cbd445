/* kop.h - what an operation touches, as data: for checks and for the deferring wrapper.
 *
 * Every backend checks an operation with kop_check before it runs it, so that a wrong shape is the
 * same one-line error everywhere and the arithmetic itself needs no checks. */
#ifndef GTRAIN_KOP_H
#define GTRAIN_KOP_H

#include "kernels.h"

/* The most buffers one operation has. */
#define KOP_MAX_USES 9

/* One buffer of an operation, and what the operation's shape asks of it. */
struct kop_use {
    const char *name;
    struct kbuf buf;
    enum kdtype dtype;
    int64_t count; /* elements it must hold; -1: the shape is negative or too large */
    bool optional; /* may be not given */
};

/* Fill uses with the buffers of op; returns how many. The first one tells op's floating dtype. */
int kop_uses(const struct kop *op, struct kop_use uses[KOP_MAX_USES]);

/* 0, or -1 with err naming the operation, the buffer, what it holds and what it must hold. */
int kop_check(const struct kop *op, struct err *err);

#endif
