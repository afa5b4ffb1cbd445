/* memory_rig.h - one rank's memory slots, and a state to fill them with, for tests. */
#ifndef GTRAIN_TEST_MEMORY_RIG_H
#define GTRAIN_TEST_MEMORY_RIG_H

#include "memory.h"

enum { WORDS = 300000, WORLD = 2, RIG_TENSORS = 2 };

/* A rank, its state, and memory that outlives it. */
struct rig {
    int fds[CKPT_MEMORY_SLOTS];
    float state[WORDS];
    bool stands; /* the state is read where it stands, not copied out */
    struct ckpt_memory *m;
};

/* What the state is: two tensors of an odd size each, so that there are gaps between them; and how
 * it is copied. */
extern const struct ckpt_tensor rig_tensors[RIG_TENSORS];
struct ckpt_io rig_io(struct rig *r);

/* Fails the test with that text. */
void rig_check(int rv, const struct err *err);
/* As another process finds it, of a later generation. */
void rig_reopen(struct rig *r, int rank, uint32_t generation);
/* With all its memory taken; and the end of it. */
void rig_begin(struct rig *r, int rank);
void rig_end(struct rig *r);
/* The state of that step into a slot. */
int rig_try_take(struct rig *r, uint32_t generation, int64_t step, const char *note,
                 struct err *err);
void rig_take(struct rig *r, uint32_t generation, int64_t step);
void rig_confirm(struct rig *r, uint32_t generation, int64_t step, int ward);
/* States that a scan tells of. */
int rig_lines(const struct rig *r);
/* Is the state of that step there whole, with the right bytes? */
bool rig_has(struct rig *r, uint32_t generation, int64_t step);

#endif
