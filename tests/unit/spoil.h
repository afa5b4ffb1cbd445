/* spoil.h - states that are whole by every checksum and yet no good: for tests of what a run makes
 * of one. Made of a good checkpoint; one tensor's values are not numbers. */
#ifndef GTRAIN_TEST_SPOIL_H
#define GTRAIN_TEST_SPOIL_H

#include "ckpt.h"

struct spoil {
    const char *dir, *run_id; /* of a run of double precision, its ranks on one node */
    int world;
    /* Where in memory: of each rank CKPT_MEMORY_SLOTS memfds, as in threads_options. */
    const int *memory;
    /* A weight: no step can be made of it. A moment, "exp_avg_sq." + a weight: the first step is
     * good still, its update is not. */
    const char *tensor;
};

/* What a start finds on disk; step -1: nothing. */
int64_t spoil_newest(const struct spoil *s, int *marks);

/* The newest checkpoint once more, spoilt, as a committed one of that step and epoch. */
void spoil_disk(const struct spoil *s, int64_t step, uint32_t epoch);

/* The same in every rank's memory, as the state that generation 1 of that epoch left. */
void spoil_memory(const struct spoil *s, int64_t step, uint32_t epoch);

#endif
