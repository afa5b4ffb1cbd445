/* coordinator.h - one per job step: listens, knows who is alive, gives out ranks, ends the step.
 *
 * One thread and one epoll loop. Decisions are run.h's; this side moves messages and keeps
 * strangers out. Nobody who has not proven the secret costs more than a small, bounded, short-lived
 * record. */
#ifndef GTRAIN_LAUNCH_COORDINATOR_H
#define GTRAIN_LAUNCH_COORDINATOR_H

#include <stdint.h>

#include "base/err.h"
#include "launch/auth.h"
#include "launch/run.h"
#include "launch/rundir.h"

struct coordinator_options {
    struct run_config run;
    const char *plan_text; /* NULL: none */
    size_t plan_bytes;
    int follows;                   /* another launch of the same job */
    const char *restore, *run_dir; /* "" = not said; run_dir "": nothing is written */
    char run_id[RUNDIR_ID_BYTES];
    int port_first, port_last; /* 0: any port */
    const char *job;           /* Slurm's number of the job; NULL or "": none */
    const char *step;          /* of the job, by its number; NULL: not known */
    int restarts;              /* of the job so far, as Slurm counts */
    int requeues;              /* how often the job may go back into the queue */
    const char *job_nodes; /* of the allocation that the step is in, "n0,n1"; NULL: it is its own */
    int relaunches;        /* how often the step may be launched again without progress */
    int relaunches_left;   /* of those; -1: this is the first launch */
    const char *hook;      /* of the site, for a node that has failed; NULL: none */
    int comment;           /* on the job, wanted */
    int life_fd; /* to srun: we end when it does; it gets `say TEXT` and `end STATUS`; -1: none */
};

struct coordinator;

/* Where nodes find it. */
struct coordinator_door {
    char address[64];
    uint16_t port;
    char secret[AUTH_HEX_BYTES];
};

/* Make the secret and listen. The options' texts must live as long as the coordinator. */
int coordinator_open(struct coordinator **out, const struct coordinator_options *options,
                     struct coordinator_door *door, struct err *err);

/* Run the step to its end. Returns the step's exit code. */
int coordinator_run(struct coordinator *c);

void coordinator_close(struct coordinator *c);

#endif
