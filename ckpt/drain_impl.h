/* drain_impl.h - struct ckpt_drain, shared by drain.c (caller's side and thread) and drain_copy.c
 * (one file from here to there). */
#ifndef GTRAIN_CKPT_DRAIN_IMPL_H
#define GTRAIN_CKPT_DRAIN_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "drain.h"
#include "retain.h"
#include "sys.h"

/* One file to copy. */
struct drain_job {
    struct ckpt_key key;
    char path[CKPT_NAME_ROOM];
    int64_t bytes;
    uint32_t digest;
};

struct ckpt_drain {
    /* Set by open, then only read. */
    char *from, *to;
    char run[CKPT_RUN_MAX + 1];
    int rank, world, keep;
    uint32_t epoch, generation;
    int64_t bytes_per_s, total_bytes;
    bool leader;
    const struct ckpt_hook *hook;
    int dirfd;

    /* Between caller and thread, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t to_thread, from_thread;
    pthread_t thread;
    bool stop, exited, hurry, busy;
    enum ckpt_drain_state state; /* of job; while COPYING, job is the thread's to read */
    struct drain_job job;
    struct err failure;
    char *record; /* of job, node names replaced; owned */
    bool abandon; /* wanted: the file of abandoned */
    struct drain_job abandoned;
    char *commit; /* wanted by the leader; owned */
    struct ckpt_key commit_key;
    struct commits commits;
    int64_t committed;
    bool commit_failed, troubled; /* the last thing tried there failed */
    struct err commit_failure;

    /* The thread's, once it runs. */
    bool unready;              /* the folder is still to be prepared: dirfd is -1 */
    char left[CKPT_NAME_ROOM]; /* half a copy that could not be dropped, "": none */

    atomic_bool cancel;
    _Atomic int64_t copied; /* bytes of job */
};

int ckpt_drain_open_hooked(struct ckpt_drain **out, const struct ckpt_drain_options *options,
                           const struct ckpt_hook *hook, struct err *err);

/* The thread's: copies d->job's file; on failure no trace is left, unless the process ends or the
 * folder takes nothing back: then the next one begins with that. */
int drain_copy(struct ckpt_drain *d, const struct drain_job *job, struct err *err);

/* Sleeps as long as `bytes` since start_ns are ahead of the rate; ends early when cancelled or
 * hurried. */
void drain_pace(struct ckpt_drain *d, int64_t start_ns, int64_t bytes);

#endif
