/* client.h - what a worker knows of its launch: who it is, and a way to swap small blobs.
 *
 * Three ways to be launched, one face: by an agent (the Slurm plugin; a socket named in the
 * environment), by PMIx (srun --mpi=pmix, mpirun, prterun), or alone. PMIx is finalised before this
 * returns from launch_exchange: Slurm's PMIx server kills the step if a connected client dies. */
#ifndef GTRAIN_LAUNCH_CLIENT_H
#define GTRAIN_LAUNCH_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum launch_kind { LAUNCH_ALONE, LAUNCH_AGENT, LAUNCH_PMIX };

enum { LAUNCH_MEMORY_MAX = 8 };

struct launch_identity {
    enum launch_kind kind;
    int rank, world;
    int local_rank, local_world; /* on this node */
    int node_rank;
    int spares; /* spare nodes waiting now */
    /* Data-parallel replicas that the coordinator has placed, which may be fewer than the plan's
     * parallel.data; 0, 0: nobody counts them. */
    int replicas, planned_replicas;
    uint32_t epoch, generation;
    char run_id[17];  /* 16 hex digits, from DIR/run.json (rundir.h); "" without a coordinator */
    char node[256];   /* this node's name */
    char address[64]; /* this node's address towards the others (IPv4 text), or "" */
    uint32_t since;   /* what was committed in this epoch or later goes before `restore`; 0: none */
    char restore[4096]; /* --gtrain-restore: latest | none | STEP | PATH; "" = not said */
    char run_dir[4096]; /* --gtrain-dir, or "" */
    char *plan_text;    /* the resolved plan from the coordinator, NULL if none; owned */
    size_t plan_bytes;
    int memory[LAUNCH_MEMORY_MAX], n_memory; /* memfds that the agent holds: what is in them is
                                              * there still when this process is not; 0: none */
};

struct launch;

/* Find out. Never blocks longer than 60 s. */
int launch_open(struct launch **out, struct launch_identity *identity, struct err *err);

/* All ranks give a blob and get everybody's in rank order: all[i] malloc'ed, lengths[i]; the caller
 * frees each. Once per launch with PMIx, any number of times with an agent. */
int launch_exchange(struct launch *l, const void *mine, size_t bytes, void **all, size_t *lengths,
                    int64_t deadline_ms, struct err *err);

/* For a large world, by an agent only (identity.kind): give this rank's address, once, and ask for
 * those of the ranks that are needed, as often as need be; the first answer comes when all ranks
 * have given theirs. addresses[i] of ranks[i], malloc'ed, the caller frees each. */
int launch_publish(struct launch *l, const void *address, size_t bytes, struct err *err);
int launch_find(struct launch *l, const int *ranks, int n, void **addresses, size_t *lengths,
                int64_t deadline_ms, struct err *err);

/* This rank has completed so many steps; the same number again is a sign of life in something long.
 * busy_us: how much of the time since the report before it has spent itself, not waiting for
 * others; 0: not known. A rank that reported and then is silent for much longer than its steps take
 * counts as hung; one whose own time is longer than the others' is named as slow. Never blocks: an
 * agent that does not read loses the report. */
void launch_progress(struct launch *l, int64_t step, uint32_t busy_us);

/* 1 if the launcher asks for a stop (checkpoint, then exit 0), else 0. Never blocks. */
int launch_stop_asked(struct launch *l);

/* This rank's work is done: what follows is an orderly exit, not a death. */
int launch_done(struct launch *l, struct err *err);

void launch_close(struct launch *l, struct launch_identity *identity);

#endif
