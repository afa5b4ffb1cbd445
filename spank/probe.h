/* probe.h - nodes as Slurm knows them: lists of names, and who answers. */
#ifndef GTRAIN_SPANK_PROBE_H
#define GTRAIN_SPANK_PROBE_H

#include <stdint.h>

#include "relaunch.h"

/* The names in a list as Slurm writes it, "n[0-3,7]"; NULL is empty. Returns 0, or -1 when memory
 * is out. */
int probe_expand(struct nodes *nodes, const char *list);

/* The nodes of a job's step. Returns 0, or -1: Slurm does not say, or memory is out. */
int probe_step(struct nodes *nodes, uint32_t job, uint32_t step);

/* The list as Slurm writes it; malloc'ed, NULL when memory is out. */
char *probe_compress(const struct nodes *nodes);

/* Those of `nodes` whose slurmd's port takes no connection within a moment (PROBE_MS), or that
 * Slurm calls down. Returns 0 with `silent` to be freed, or -1: Slurm does not say where they are,
 * or memory is out. */
int probe_silent(struct nodes *silent, const struct nodes *nodes);

#endif
