/* relaunch.h - the same step once more, in the allocation it ran in: on which nodes, by which
 * command. Decisions only: what has been heard comes in, words come out.
 *
 * The coordinator says when (coordinator.h): that takes an allocation that is not srun's own. */
#ifndef GTRAIN_SPANK_RELAUNCH_H
#define GTRAIN_SPANK_RELAUNCH_H

#include <stdbool.h>

#include "cmdline.h"

/* Names of nodes, each malloc'ed. A zeroed one is empty. */
struct nodes {
    char **name;
    int count;
};

/* Add one, unless it is there. Returns 0, or -1 when memory is out. */
int nodes_add(struct nodes *nodes, const char *name);
bool nodes_have(const struct nodes *nodes, const char *name);
void nodes_free(struct nodes *nodes);

/* The nodes of the next launch: those of the step and then the job's others, none that is gone, at
 * most `want`. Returns 0 with `pick` to be freed, or -1 when memory is out. */
int relaunch_pick(struct nodes *pick, const struct nodes *step, const struct nodes *job,
                  const struct nodes *gone, int want);

/* argv with `more` (NULL at its end) put in behind its options, as `c` has found them: later words
 * win over the same option before. Those that say in another way where the step goes are left out,
 * as Slurm refuses both. Returns a malloc'ed array of the words given, NULL when memory is out. */
char **relaunch_words(const struct cmdline *c, int argc, char *const argv[], char *const more[]);

#endif
