/* run_folder.h - what a run folder says of its run: id, plan, where its checkpoints lie. */
#ifndef GTRAIN_RUN_FOLDER_H
#define GTRAIN_RUN_FOLDER_H

#include <stdbool.h>

#include "launch/rundir.h"
#include "plan/plan.h"

struct run_folder {
    char run_id[RUNDIR_ID_BYTES];
    struct plan *plan;
    /* Folders of the run's checkpoints, on each node and for all; "": the plan has none. */
    char local[4096], shared[4096];
};

/* Is there a run.json in it? */
bool run_folder_is(const char *dir);

/* Reads DIR/run.json and the plan: DIR/plan.yaml, or the file given. 0, or -1 with err; close after
 * either. */
int run_folder_open(struct run_folder *f, const char *dir, const char *plan_path, struct err *err);
void run_folder_close(struct run_folder *f);

#endif
