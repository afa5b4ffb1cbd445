/* requeue.h - a batch job that has run out of nodes goes back into Slurm's queue by itself.
 *
 * Slurm is asked by scontrol, as the job's owner would: no library of Slurm's is needed, so the
 * small static agent can do it too, and a site's rules for scontrol hold. */
#ifndef GTRAIN_LAUNCH_REQUEUE_H
#define GTRAIN_LAUNCH_REQUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    REQUEUE_ASK_MS = 10000,  /* for one answer of a busy slurmctld */
    REQUEUE_TELL_MS = 15000, /* to hear that Slurm has taken the job back */
    REQUEUE_LOOKS = 4,       /* whether the step was cancelled, */
    REQUEUE_LOOK_MS = 250,   /* so long apart */
    REQUEUE_TRIES = 60,      /* of the change to the waiting job, one a second */
    REQUEUE_START_S = 5,     /* Slurm refuses to start a job in the second that it was ended in */
    REQUEUE_TEXT_BYTES = 65536, /* of a list of nodes, and of scontrol's answer */
};

/* A job as `scontrol show job --oneliner` tells it. */
struct requeue_job {
    int batch, allowed, running;
    int restarts;
    char batch_host[256];
    char *excluded; /* the list as Slurm writes it, "" for none; owned */
};

/* Read scontrol's line. 0, or -1 (nothing is owned then) if it is no such line. Pure. */
int requeue_parse(const char *line, struct requeue_job *job);
void requeue_job_free(struct requeue_job *job);

/* Whether Slurm calls the step running, as scontrol shows it; "": it shows none. Pure. */
int requeue_step_runs(const char *line);

/* Has somebody cancelled the step? Slurm then kills its agents without a word, which looks like
 * the loss of their nodes; but of a lost node's step Slurm hears no end. Looks for a moment
 * (REQUEUE_LOOKS), as Slurm hears of the last task's end after us. */
int requeue_step_cancelled(const char *job_id, const char *step_id);

struct requeue {
    const char *job_id;
    int restarts;        /* the launch we belong to: SLURM_RESTART_COUNT */
    const char *keep;    /* nodes that live, "n0,n2", or "": the others are given back first */
    const char *exclude; /* nodes not to be used again, "n1,n3", or "" */
};

/* Whether Slurm would take the job back: a batch job, allowed to, running, in this launch and no
 * later one. 0 with *job to be freed, or -1 with what is in the way. */
int requeue_ask(const char *job_id, int restarts, struct requeue_job *job, struct err *err);

/* Give the job back to the queue. Slurm then ends its step, us with it; so a process of its own
 * does it and stays for as long as Slurm lets it, to have the job start at once and elsewhere.
 * Returns 0 when Slurm has taken it, else -1. */
int requeue_do(const struct requeue *r, const struct requeue_job *job, struct err *err);

#endif
