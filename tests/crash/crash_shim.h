/* crash_shim.h - a hook in front of the checkpoint room's system calls that kills the process, or
 * fails, shortens or delays a call, at the n-th of them. */
#ifndef GTRAIN_TESTS_CRASH_SHIM_H
#define GTRAIN_TESTS_CRASH_SHIM_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "sys.h"

enum fault {
    FAULT_KILL,  /* SIGKILL at a boundary */
    FAULT_TORN,  /* half a transfer, then SIGKILL */
    FAULT_NOSPC, /* ENOSPC for some calls; of the first a half may still fit */
    FAULT_EIO,   /* EIO for some calls */
    FAULT_SHORT, /* every other transfer is cut */
    FAULT_AGAIN, /* EAGAIN and EINTR now and then */
    FAULTS,
};

struct shared {
    atomic_int boundary;
    _Atomic int64_t committed, tried;
    _Atomic int64_t restored; /* what this life went on from */
    atomic_int commits;       /* that returned, of all lives */
};

struct shim {
    enum fault fault;
    int at, length; /* the first boundary that suffers, and how many do */
    struct shared *shared;
    bool talk;
};

static inline uint64_t mix(uint64_t x) /* splitmix64's finaliser */
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Part of a transfer, in sectors where it has some. */
static inline ssize_t part(size_t bytes)
{
    return (ssize_t)(bytes >= 8192 ? bytes / 2 / 4096 * 4096 : bytes > 1 ? bytes / 2 : bytes);
}

static inline ssize_t shim_allow(void *arg, enum ckpt_op op, size_t bytes)
{
    struct shim *s = arg;
    int n = atomic_fetch_add(&s->shared->boundary, 1);
    bool hit = n >= s->at && n < s->at + s->length;
    bool transfer = op == CKPT_OP_WRITE || op == CKPT_OP_READ;
    switch (s->fault) {
    case FAULT_KILL:
        if (n >= s->at)
            die();
        break;
    case FAULT_TORN:
        if (n == s->at && op == CKPT_OP_WRITE)
            return part(bytes);
        if (n >= s->at)
            die();
        break;
    case FAULT_NOSPC:
        if (n == s->at && op == CKPT_OP_WRITE && n % 2)
            return part(bytes);
        if (hit && (op == CKPT_OP_WRITE || op == CKPT_OP_RESERVE))
            return -ENOSPC;
        break;
    case FAULT_EIO:
        if (hit && op != CKPT_OP_WAIT)
            return -EIO;
        break;
    case FAULT_SHORT:
        if (transfer && mix((uint64_t)n) % 2)
            return part(bytes);
        break;
    case FAULT_AGAIN:
        if (transfer && op == CKPT_OP_WRITE && bytes >= 4096 && n % 37 == 5)
            return n % 2 ? -EAGAIN : -EINTR;
        break;
    case FAULTS:
        break;
    }
    return (ssize_t)bytes;
}

#endif
