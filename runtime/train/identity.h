/* identity.h - what the training code is told of the rank it runs: no launcher is known here. */
#ifndef GTRAIN_IDENTITY_H
#define GTRAIN_IDENTITY_H

#include <stdint.h>

struct train_identity {
    int rank, world;
    int local_rank, local_world; /* on this node */
    int spares;
    int planned_replicas; /* of the plan as it was given, which may have been more; 0: not known */
    uint32_t epoch, generation;
    uint32_t since; /* the epoch the job began with: what it has committed goes before restore; 0:
                     * this launch stands alone */
    const char *node;
    const char *topology; /* its address in the network, "spine.leaf.node"; NULL: not known */
    const char *run_id;
    const char *run_dir; /* NULL: no metrics, no records (tests) */
    const char *restore; /* latest | none | STEP | folder of a run's checkpoints */
    /* restore is a run folder: what its run.json and plan.yaml say (from_run_id NULL: it is not).
     * Folders of checkpoints, "" where the plan has none. */
    const char *from_run_id, *from_local, *from_shared;
    /* CKPT_MEMORY_SLOTS memfds that somebody holds who outlives this process; NULL: nobody does,
     * and no snapshots are taken. */
    const int *memory;
};

#endif
