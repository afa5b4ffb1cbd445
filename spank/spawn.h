/* spawn.h - starting gtrain's own commands from inside srun, sbatch or salloc. */
#ifndef GTRAIN_SPANK_SPAWN_H
#define GTRAIN_SPANK_SPAWN_H

#include <sys/types.h>

/* Run argv[0] with argv to its end: its standard error is the user's, its standard output goes
 * nowhere. Returns its exit status, or -1 after one line in Slurm's log (not started, killed by a
 * signal, or not done after deadline_ms: then it is killed). */
int spawn_run(char *const argv[], int deadline_ms);

/* Start argv[0] in a session of its own, with nothing of ours but the two descriptors, which it has
 * as 3 and 4. Returns its pid, or -1 with errno set. */
pid_t spawn_detached(char *const argv[], int fd3, int fd4);

/* Wait for a child for at most deadline_ms. Returns 1 if it ended (its wait status in *status), 0
 * if it still runs, -1 if there is no such child. */
int spawn_wait(pid_t pid, int *status, int deadline_ms);

#endif
