/* rundir.h - the run folder: one job at a time, and which run and launch this is.
 *
 * DIR/lock is held (flock) for the life of whoever decides: the coordinator, or rank 0's process
 * where there is none. DIR/run.json is {"run_id": "16 hex digits", "epoch": N}: the name of the run
 * for ever, and how often it was launched. */
#ifndef GTRAIN_LAUNCH_RUNDIR_H
#define GTRAIN_LAUNCH_RUNDIR_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { RUNDIR_ID_BYTES = 17 };

/* Make dir (and its parents) and lock it. Returns the lock's descriptor (close-on-exec; closing it
 * lets go), or -1 with err, which names the holder when another job has it. */
int rundir_lock(const char *dir, struct err *err);

/* Does somebody hold the lock now (1, and who, for people), nobody (0), or can that not be told
 * (-1)? */
int rundir_holder(const char *dir, char *text, size_t room);

/* Under the lock: the run's id, made at the first launch, and this launch's epoch = last + 1 (the
 * first is 1), on disk for good before this returns 0. */
int rundir_next_epoch(const char *dir, char run_id[RUNDIR_ID_BYTES], uint32_t *epoch,
                      struct err *err);

/* The run's id, without a lock and changing nothing. An error where dir holds no run.json. */
int rundir_read_id(const char *dir, char run_id[RUNDIR_ID_BYTES], struct err *err);

#endif
