/* train.h - train a plan, as one of its ranks.
 *
 * The caller brings a device, a connected comm and an identity, and keeps them; train_run does the
 * rest: data, model, restore, steps, validation, checkpoints, metrics. It knows no launcher: what
 * it needs to ask or tell one goes through the hooks. */
#ifndef GTRAIN_TRAIN_H
#define GTRAIN_TRAIN_H

#include "comm/comm.h"
#include "plan/plan.h"
#include "train/identity.h"
#include "train/metrics.h"
#include "train/side.h"

enum train_end {
    TRAIN_DONE,
    TRAIN_STOPPED,  /* asked to; the state is in a committed checkpoint if the plan keeps any */
    TRAIN_FAILED,   /* the machine, a peer or a disk */
    TRAIN_REFUSED,  /* the plan, its data or the checkpoint do not fit: no other try will help */
    TRAIN_DIVERGED, /* the loss is not a number any more */
    TRAIN_UNFIT,    /* in a later generation: this node cannot do what the run has done elsewhere */
    TRAIN_BACK,     /* nor is it here, but soon after a restore: that checkpoint is marked bad now,
                     * and the next start, of a higher epoch or generation, takes an older one */
};

struct train_hooks {
    int (*stop_asked)(void *arg);                          /* may be NULL; asked once a step */
    void (*progress)(void *arg, int64_t step);             /* may be NULL; completed steps */
    void (*step)(void *arg, const struct metrics_step *s); /* may be NULL; every rank, every step */
    int (*accepted)(void *arg, struct err *err); /* may be NULL; rank 0, before the first step: the
                                                  * plan goes with what is restored, and fits */
    void *arg;
};

struct train_options {
    const struct plan *plan;
    struct train_identity identity;
    struct kernels *k;
    struct comm *comm;
    /* Taken over. */
    struct side mirror;  /* for copies of snapshots; none: none are made */
    struct side carrier; /* for copies or parity of checkpoint files, where the plan asks for one
                          * and not all ranks are on one node */
    struct train_hooks hooks;
    bool measure; /* find the device's matmul peak first (0.3 s), for the utilisation in metrics */
    int out_fd;   /* where rank 0 shows its progress */
    int columns;  /* > 0: it is a terminal so wide; < 0: it is none; 0: ask it */
};

/* Can this version run the plan? 0, or -1 with err naming the key. Pure. */
int train_check(const struct plan *plan, struct err *err);

/* Who should tell people of a failure. */
enum train_whose {
    TRAIN_MINE,   /* this rank's own: it should speak */
    TRAIN_COMMON, /* all ranks have the same text: one should */
    TRAIN_PEERS,  /* this rank only lost its peers: who failed first should */
};

/* On all but TRAIN_DONE and TRAIN_STOPPED err says why, *whose who should say it. */
enum train_end train_run(const struct train_options *options, enum train_whose *whose,
                         struct err *err);

#endif
