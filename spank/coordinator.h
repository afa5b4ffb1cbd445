/* coordinator.h - the plugin's end of `gtrain coordinate`: start it, hear from it, see it off. */
#ifndef GTRAIN_SPANK_COORDINATOR_H
#define GTRAIN_SPANK_COORDINATOR_H

#include <stdbool.h>

/* What the nodes need to know of a coordinator that is ready. */
struct contact {
    char address[256];
    char port[8];
    char secret[257]; /* hexadecimal */
};

/* Start argv[0] as the coordinator and wait until it is ready (15 s at most). A thread then listens
 * to it: it prints what the coordinator says, and ends srun with the run's status if srun does not
 * end by itself once the run is over. live_line: a line that is redrawn in place may stand where it
 * prints. One coordinator per process. Returns 0, or -1 after one line in Slurm's log. */
int coordinator_start(char *const argv[], bool live_line, struct contact *contact);

/* srun ends: tell the coordinator, and wait until it is gone (5 s, then it is killed). Does nothing
 * if none was started. */
void coordinator_end(void);

/* The exit status srun should have had, given the one it has: success is what the coordinator calls
 * so, and nothing else; tasks of nodes that were given up on the way do not count. Without a
 * coordinator, the one it has. */
int coordinator_status(int status);

#endif
