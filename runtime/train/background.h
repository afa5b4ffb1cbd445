/* background.h - a thread that does one piece of work after the other while training goes on, with
 * a comm of its own.
 *
 * Others begin a piece, ask now and then how it went, and wait for all where they must. Work that
 * talks to other ranks is begun by all of them, in the same order, though not at the same moment:
 * who comes first waits, in this thread, and its training goes on. A failure is final: nothing can
 * be begun after it, what was begun before is not done, every question hears its text, and the comm
 * is aborted, so that the ranks that wait for this one hear of it, too. */
#ifndef GTRAIN_BACKGROUND_H
#define GTRAIN_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"

/* A thread for work that can wait: no signals come to it, and being woken it takes nobody's core.
 * what: for errors. 0, or -1 with err. */
int background_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *what,
                      struct err *err);

struct background {
    struct comm *comm; /* used by the thread alone; NULL: not open */
    int (*work)(struct background *b, void *arg, struct err *err);
    void *arg;

    pthread_mutex_t lock;
    pthread_cond_t to_thread, from_thread;
    pthread_t thread;
    bool runs;
    atomic_llong moved;     /* how often the work got on */
    atomic_bool lost_peers; /* it failed, for the comm had */
    atomic_llong ns;        /* how long the newest piece took that is over */
    /* Under lock. */
    int wanted; /* pieces that were begun and are not over; 0 where one has failed */
    bool stop, failed;
    struct err failure;
};

/* Takes comm over, on failure too. */
int background_open(struct background *b, struct comm *comm,
                    int (*work)(struct background *b, void *arg, struct err *err), void *arg,
                    struct err *err);

/* One piece more, after those that are under way; in any thread. */
int background_begin(struct background *b, struct err *err);

/* The work says that it got on. In its thread. */
void background_moved(struct background *b);

/* -1 with err if something has failed. Never blocks. */
int background_check(struct background *b, struct err *err);

/* Until nothing is under way; -1 with err if that failed, or has not got on for so long. */
int background_wait(struct background *b, int64_t patience_ms, struct err *err);

/* How long the newest piece took that is over, 0: none is. */
int64_t background_ns(const struct background *b);

/* Did it fail because others are gone? */
bool background_lost_peers(const struct background *b);

/* orderly: what is under way is waited for. Otherwise the comm is aborted. */
void background_close(struct background *b, bool orderly, int64_t patience_ms);

#endif
