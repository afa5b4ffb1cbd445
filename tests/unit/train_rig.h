/* train_rig.h - whole training runs with ranks as threads, for tests: a small plan, a small token
 * file, and what each step gave. */
#ifndef GTRAIN_TEST_TRAIN_RIG_H
#define GTRAIN_TEST_TRAIN_RIG_H

#include "train/threads.h"

enum { RIG_MAX_STEPS = 64, RIG_VOCAB = 61, RIG_CHANGES = 16 };

/* A temporary folder with tokens.bin in it (llm.c's format, 61 tokens, about 20,000 of them that
 * can be learnt); and its removal with all that is in it. */
void rig_folder_make(char folder[256]);
void rig_folder_remove(const char *folder);

/* What to run. Zero is a good default for all but folder and steps. */
struct rig_run {
    const char *folder;
    int steps;
    const char *changes[RIG_CHANGES]; /* "section.key=value", on top of the rig's plan */
    int threads;                      /* of a rank's device; 0: one */
    uint64_t deferred_seed;
    int stop_after; /* > 0: ask for a stop once that many steps are done */
    const char *restore;
    uint32_t epoch;      /* 0: 1 */
    uint32_t generation; /* 0: 1 */
    const int *memory;   /* as in threads_options */
    const char *run_id;  /* NULL: one that is always the same */
    int node_ranks;      /* as in threads_options */
    bool records;        /* write metrics and events into folder */
};

struct rig_result {
    enum train_end end;
    struct err err;
    int n;         /* steps seen */
    int64_t first; /* number of the first, 1-based */
    double loss[RIG_MAX_STEPS], norm[RIG_MAX_STEPS], val_loss[RIG_MAX_STEPS];
};

void rig_train(const struct rig_run *run, struct rig_result *out);

/* The run's plan, resolved, as folder/plan.yaml. */
void rig_write_plan(const struct rig_run *run);

/* Fails the test unless the run ended well with all its steps. */
void rig_train_well(const struct rig_run *run, struct rig_result *out);

#endif
