/* jobindex.h - which run folder a Slurm job used: a line a job, in the user's own state folder
 * ($XDG_STATE_HOME/gtrain/jobs, else ~/.local/state/gtrain/jobs), so that it is found after the job
 * is gone, from every host that sees the home.
 *
 * A file that has grown long is set aside as jobs.old, in place of the one before: what is older
 * still is forgotten. */
#ifndef GTRAIN_LAUNCH_JOBINDEX_H
#define GTRAIN_LAUNCH_JOBINDEX_H

#include <stddef.h>

#include "base/err.h"

enum { JOBINDEX_FILE_BYTES = 262144 };

/* The folder for a home; "" home: this user's, by the environment. 0, or -1: there is none. */
int jobindex_folder(const char *home, char *path, size_t room);

/* Remember it, in a folder that is made where missing. -1: it could not be. */
int jobindex_add(const char *folder, const char *job, const char *run_dir);

/* The run folder of the job's newest launch: 1, or 0: not known here. */
int jobindex_find(const char *folder, const char *job, char *run_dir, size_t room);

#endif
