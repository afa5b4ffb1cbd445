/* session.h - from a launch to a trained model: what `gtrain train` and gtrain_train() do.
 *
 * Finds out how this process was started (an agent, PMIx, alone; or --local: all ranks as threads
 * here), loads the plan, locks the run folder where no coordinator does, opens device and network,
 * trains, and says it is done. */
#ifndef GTRAIN_SESSION_H
#define GTRAIN_SESSION_H

#include "launch/client.h"
#include "train/train.h"

struct session_options {
    const char *plan;             /* FILE[,key=value...]; NULL: the launcher's */
    const char *dir;              /* run folder; NULL: the launcher's or the plan's */
    const char *restore;          /* NULL: the launcher's, or latest */
    bool local;                   /* all ranks of the plan as threads of this process */
    int threads;                  /* a rank; 0: the plan's, or cores / ranks */
    int out_fd;                   /* where rank 0 shows progress */
    int columns;                  /* as in train_options */
    int (*stop_asked)(void *arg); /* may be NULL */
    void (*step)(void *arg, const struct metrics_step *s); /* may be NULL; on rank 0 */
    void *arg;
};

/* The plan of "FILE[,key=value...]". NULL with err. */
struct plan *session_load_plan(const char *spec, struct err *err);

/* *speak: this process is the one to tell people err. launch may be NULL (then it is opened and
 * closed here) or an open one with its identity. */
enum train_end session_run(const struct session_options *options, struct launch *launch,
                           struct launch_identity *identity, bool *speak, struct err *err);

#endif
