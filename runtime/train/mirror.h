/* mirror.h - each step's state into memory that outlives the process, here and on another node,
 * behind the step that follows.
 *
 * A thread of its own copies the tensors (whoever joins helps) and makes the checksums, in one pass
 * where the state stands in host memory, and swaps images with two other ranks over a comm of its
 * own: this rank's goes to its partner, its ward's comes. The join waits for all of that. It comes
 * before the sum over all ranks that the next update needs: so when that sum is there every rank
 * has joined, every state is whole in two places, and the ones before it may be overwritten
 * (ckpt/slots.h). That costs no message.
 *
 * Every message says of which epoch and generation it is, and the image whose, and which state; the
 * receiver checks both. The pieces arrive where they are to stay, in a slot that is marked as not
 * whole before the first and as whole after every CRC32C is checked; who is killed in between, or
 * gives up, leaves nothing that counts. */
#ifndef GTRAIN_MIRROR_H
#define GTRAIN_MIRROR_H

#include <pthread.h>

#include "comm/comm.h"
#include "memory.h"

struct mirror_options {
    struct ckpt_memory *memory;
    struct comm *comm; /* taken over; used by the thread alone. NULL: no other node */
    int to, from;      /* partner and ward, -1: none */
    uint32_t epoch, generation;
    /* What shall stand beside the state after `step` steps (ckpt_memory_seal); asked by the thread
     * once the state is copied. NULL: nothing. */
    int (*note)(void *arg, int64_t step, char note[CKPT_MEMORY_NOTE], struct err *err);
    void *arg;
};

struct mirror {
    struct mirror_options o;

    /* The caller's thread. */
    bool begun;
    int64_t begin_ns;    /* how long it was held by the begin */
    int64_t cost_ns;     /* of the newest that is whole: begin, join, and the thread's work; the
                          * caller may clear it */
    struct ckpt_key key; /* of the snapshot begun last */

    pthread_mutex_t lock;
    pthread_cond_t to_thread, from_thread;
    pthread_t thread;
    bool made, runs; /* the lock and what belongs to it; the thread */
    /* Under lock. */
    bool wanted; /* a snapshot: from its begin until it is whole everywhere, or has failed */
    bool fresh;  /* it is copied, not found in memory */
    bool stop, failed;
    int next, copying; /* piece to be copied next; how many are under way */
    int64_t worked_ns; /* what the thread has computed for the newest */
    struct err failure;
};

/* mirror_close after either result. */
int mirror_open(struct mirror *m, const struct mirror_options *options, struct err *err);

/* The state of that key, as it is now; it must stay so until the join. Where it is in memory
 * already only what is missing on the other side moves. Does not wait. */
int mirror_begin(struct mirror *m, const struct ckpt_key *key, int64_t samples, struct err *err);

/* Until it is whole here, and the ward's too; nothing was begun: 0. *stall_ns: how long begin and
 * join have held the caller. */
int mirror_join(struct mirror *m, int64_t deadline_ms, int64_t *stall_ns, struct err *err);

/* orderly: what was begun is waited for until the deadline. Otherwise the comm is aborted. */
void mirror_close(struct mirror *m, bool orderly, int64_t deadline_ms);

#endif
