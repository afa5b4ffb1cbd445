/* status_job.h - from a Slurm job's number to the run folder it used. */
#ifndef GTRAIN_CLI_STATUS_JOB_H
#define GTRAIN_CLI_STATUS_JOB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* Is that a job's number, and no folder here? */
bool status_is_job(const char *text);

/* Its run folder. 0, or -1: not known, or another job's by now. */
int status_find_job(const char *job, char *dir, size_t room, struct err *err);

#endif
