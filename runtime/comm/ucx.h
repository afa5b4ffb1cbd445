/* ucx.h - what the files of the UCX backend share.
 *
 * ucx_open.c   context, worker, configuration, connecting and closing
 * ucx_peers.c  endpoints, what ranks tell each other about themselves, lost peers
 * ucx.c        messages, waiting, the progress thread
 *
 * One lock guards the worker and everything here. Who progresses the worker: the rank's own thread
 * while it waits for a message; the progress thread while the rank computes. Both sleep in poll on
 * the worker's descriptor; nobody spins. */
#ifndef GTRAIN_COMM_UCX_H
#define GTRAIN_COMM_UCX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <ucp/api/ucp.h>

#include "comm/transport.h"

/* The 64-bit tag: sender's rank (16 bits), generation's low bits (16), wire tag (32). */
#define UCX_RANKS            65536
#define UCX_RANK_SHIFT       48
#define UCX_GENERATION_SHIFT 32
#define UCX_GENERATION_BITS  16

struct ucx_comm;

struct ucx_request {
    struct comm_request base;
    struct ucx_comm *comm;
    void *handle; /* UCX's own; NULL: it was done at once */
    bool done;
    ucs_status_t status;
    size_t received;                   /* bytes that came */
    struct ucx_request *newer, *older; /* all not waited for */
};

struct ucx_peer {
    struct ucx_comm *comm;
    ucp_ep_h ep;   /* made at the first message in either direction */
    void *address; /* NULL: not known yet */
    size_t address_bytes;
    void *hello; /* being received: the address in a hello */
    bool lost;   /* UCX has reported an error, `status` */
    bool closed; /* it said goodbye */
    ucs_status_t status;
};

struct ucx_comm {
    struct comm base;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address; /* mine */
    size_t address_bytes;
    struct comm_directory directory; /* find NULL: there is none */
    uint16_t generation;
    struct ucx_peer *peers; /* by rank; NULL before connect */
    int worker_fd;          /* readable when an armed worker has something to do */
    int wake_fd;            /* eventfd: a wait must look at `failed` */
    struct ucx_request *requests;
    int64_t swept_ms; /* when messages of other generations were last dropped */

    pthread_mutex_t lock;
    unsigned busy;  /* times in a row that UCX would neither progress nor sleep */
    bool told;      /* peers know that this comm has failed */
    bool lost_some; /* a peer's `lost` was set and not looked at */

    /* The progress thread. */
    pthread_t thread;
    bool thread_runs;
    pthread_cond_t resume;
    int stop_fd; /* eventfd: ends the thread's poll */
    bool stop;
    bool waiting;   /* the rank's thread is in a wait and progresses the worker */
    uint64_t waits; /* how many it has begun */
    bool parked;    /* the thread sleeps until that wait ends */
};

uint64_t ucx_tag(const struct ucx_comm *c, int sender, uint32_t wire_tag);

/* Lock held. Asks UCX to end all requests. One whose data is on its way may still write to its
 * buffer, whenever the worker is progressed. */
void ucx_cancel_requests(struct ucx_comm *c);
/* UCX's part of them, before its worker is destroyed; then ours. */
void ucx_free_handles(struct ucx_comm *c);
void ucx_free_requests(struct ucx_comm *c);

/* ---- ucx_peers.c; the lock is held ---- */

/* Control messages, as wire tags. */
enum { CONTROL_HELLO, CONTROL_GOODBYE, CONTROL_GAVE_UP };

/* Make an endpoint to the peer if there is none. -1: why it cannot be had, which is final. */
int ucx_endpoint(struct ucx_comm *c, int peer, bool send, struct err *err);

/* Has the peer said goodbye? What it sent before has been matched or is in UCX's queue. */
bool ucx_said_goodbye(struct ucx_comm *c, int peer);

/* -1 if a peer was lost without a goodbye. Cheap. */
int ucx_check_lost(struct ucx_comm *c, struct err *err);

/* Answer hellos. -1 if a peer gave up. */
int ucx_read_control(struct ucx_comm *c, struct err *err);

/* Tell the peers, once, why this comm has failed. */
void ucx_tell_failure(struct ucx_comm *c);
void ucx_say_goodbye(struct ucx_comm *c);

/* Drop what has come, was not asked for and has this tag under this mask; the same for all of other
 * generations, now and then. */
void ucx_drop_messages(struct ucx_comm *c, uint64_t tag, uint64_t mask);
void ucx_drop_old(struct ucx_comm *c);

/* ---- ucx.c ---- */

int ucx_thread_start(struct ucx_comm *c, struct err *err);
void ucx_thread_stop(struct ucx_comm *c);

int ucx_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
             struct comm_request **req, struct err *err);
int ucx_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
             struct comm_request **req, struct err *err);
int ucx_wait(struct comm *c, struct comm_request *req, int64_t deadline_ms, struct err *err);
void ucx_wake(struct comm *c);

#endif
