/* coordinator_impl.h - between coordinator.c (nodes, time, the end) and coordinator_ranks.c. */
#ifndef GTRAIN_LAUNCH_COORDINATOR_IMPL_H
#define GTRAIN_LAUNCH_COORDINATOR_IMPL_H

#include "launch/coordinator.h"
#include "launch/coordinator_relaunch.h"
#include "launch/directory.h"
#include "launch/exchange.h"
#include "launch/news.h"
#include "launch/peers.h"
#include "launch/runlog.h"
#include "launch/runstate.h"

struct coordinator {
    struct coordinator_options options;
    struct run run;
    struct peers peers;
    struct runlog log;
    struct runstate record;
    struct relaunch relaunch;
    struct news news;
    struct exchange exchange;
    struct directory directory;
    uint32_t generation; /* that the nodes have been told of, 0: none yet */
    int replicas;        /* of the generation before */
    int recovering;      /* it began with a takeover whose phases are not told yet */
    int asked;           /* srun, who of the missing nodes cannot come (run.h) */
    int64_t next_beat;
    int64_t walked;    /* when all peers were last looked at */
    int64_t srun_gone; /* when; 0: it is there */
    int64_t leave_by;  /* after the end; INT64_MAX before */
};

/* ---- coordinator.c ---- */

void coordinator_send(struct coordinator *c, struct peer *peer, struct wire_frame *f);
/* To every node with a connection; only those with ranks if `ranks`. Drops the caller's hold. */
void coordinator_send_all(struct coordinator *c, struct wire_frame *f, int ranks);
/* Training goes on after a takeover: say, once, how long that took. */
void coordinator_tell_recovery(struct coordinator *c);

/* ---- coordinator_ranks.c ---- */

/* A node's message about one of its ranks. -1: it makes no sense. */
int coordinator_take_from_rank(struct coordinator *c, struct peer *peer,
                               const struct wire_message *m);

#endif
