/* transport.h - what a backend of comm.h provides, and what the files of this room share.
 *
 * A backend moves bytes by address between ranks, matched by (peer, wire tag) in the order they
 * were started; everything else (streams, collectives, statistics, the final error) is written once
 * on top of it. Only the thread that owns the comm calls the table, except `wake`.
 *
 * A send may wait for its receiver: nobody may count on a message being buffered. */
#ifndef GTRAIN_COMM_TRANSPORT_H
#define GTRAIN_COMM_TRANSPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "comm/comm.h"
#include "kernels.h"

/* Ids of groups, so that they and a sequence number fit into a wire tag. */
#define COMM_GROUP_IDS 256

/* Groups up to this size gather small things in one exchange of everybody with everybody; larger
 * ones in rounds (host.c). 32 wake-ups' worth of messages is about where five rounds pay. */
#define COMM_FLAT 32

/* The wire tag, 32 bits: two of kind, then what the kind needs. */
enum wire_kind { WIRE_P2P, WIRE_HOST, WIRE_COLLECTIVE, WIRE_CONTROL };
#define WIRE_KIND_SHIFT     30
#define WIRE_TAG_LIMIT      (1u << 24) /* comm.h: tag < 2^24 */
#define WIRE_GROUP_SHIFT    22         /* group id, 8 bits */
#define WIRE_SEQUENCE_SHIFT 6          /* call in that group, 16 bits, wraps */
#define WIRE_PARTS          (1u << 6)  /* part of the call, 6 bits */

uint32_t wire_tag(enum wire_kind kind, uint32_t tag);
uint32_t wire_tag_collective(int group_id, uint16_t sequence, uint32_t part);

/* A started message. Backends have more behind it. */
struct comm_request {
    const void *data; /* not const for a receive */
    size_t bytes;
    int peer;
    uint32_t tag; /* wire tag */
    bool send;
};

/* "to rank 3 (tag 7, 4096 bytes)" or "from rank 3 (...)". Returns text. */
struct wire_text {
    char text[128];
};
const char *wire_describe(const struct comm_request *req, struct wire_text *out);

/* "tag 7", "host tag 7", "group 2, call 40, part 1". */
const char *wire_tag_text(uint32_t tag, struct wire_text *out);

struct transport_ops {
    /* 0 and *req, owned by the backend until wait; or -1 and the comm has failed. */
    int (*send)(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                struct comm_request **req, struct err *err);
    int (*recv)(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                struct comm_request **req, struct err *err);
    /* Until the message is done or the deadline (clock_ms()) has passed. The request is gone
     * afterwards, whatever happened. */
    int (*wait)(struct comm *c, struct comm_request *req, int64_t deadline_ms, struct err *err);
    /* The comm has failed: make a wait that is going on, in another thread, look. From the return
     * on no buffer of a message is touched, but by a wait that has not returned yet. */
    void (*wake)(struct comm *c);
    /* Everything of the backend, the comm's own memory included. */
    void (*close)(struct comm *c);
};

/* Begins every backend's comm. */
struct comm {
    const struct transport_ops *ops;
    struct kernels *k;
    int rank, world;
    int64_t timeout_ms;
    uint64_t bytes_sent;
    int64_t wait_ns;

    uint16_t sequence[COMM_GROUP_IDS]; /* calls so far, by group id */
    struct comm_request **pending;     /* of the collective that is going on; grown on demand */
    int n_pending, max_pending;
    struct kbuf parts[K_I32 + 1]; /* collectives' device scratch by dtype, grown on demand, kept */
    struct kevent *parts_free;    /* the last operation that reads it */

    atomic_bool failed;
    pthread_mutex_t why_lock;
    struct err why; /* set once, before `failed` */
};

/* For backends' open and close. */
int comm_init(struct comm *c, const struct transport_ops *ops, struct kernels *k, int rank,
              int world, struct err *err);
void comm_release(struct comm *c);

/* Fail for good. The first text is kept; err gets that one. -1. */
int comm_fail(struct comm *c, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 0, or -1 with the first error's text. */
int comm_check(struct comm *c, struct err *err);

/* Start a message; with checks, the failed state and statistics in front of the table. */
int comm_start_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                    struct comm_request **req, struct err *err);
int comm_start_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                    struct comm_request **req, struct err *err);

/* The same into c->pending, and the wait for all of those. */
int comm_add_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                  struct err *err);
int comm_add_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                  struct err *err);
int comm_wait_all(struct comm *c, struct err *err);

/* Until the stream (NULL: nothing) has passed what was submitted to it. */
int comm_sync(struct comm *c, struct kstream *stream, struct err *err);

/* The start of a collective: checks the group, and takes its next sequence number. */
int comm_enter(struct comm *c, const struct comm_group *group, const char *what, uint16_t *sequence,
               struct err *err);

#endif
