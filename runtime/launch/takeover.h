/* takeover.h - what follows a failure: another generation, or the end. Pure, like run.h.
 *
 * A failure is noticed (takeover_fail); better explained ones replace it for a moment. Then, as
 * soon as no node is half lost, it is decided: every lost node's ranks go to a spare, all others
 * keep theirs, and all ranks start anew as the next generation. Where spares are too few, and
 * config.least_data allows it, it is a generation of fewer replicas instead. They are never more
 * again: nodes do not come back within a step. A rank that fails by itself on a
 * healthy node starts there again; when it fails more than `restarts` times without the run getting
 * any further, that is a bug in the program, and the end. */
#ifndef GTRAIN_LAUNCH_TAKEOVER_H
#define GTRAIN_LAUNCH_TAKEOVER_H

#include "launch/run.h"

void takeover_fail(struct run *run, const struct run_failure *failure);

/* Decide, if it is time to. The generation is the next one afterwards, or the end has its cause. */
void takeover_tick(struct run *run, int64_t now);

/* "detect 0.00 s, decide 0.05 s, ...": how long each phase of the newest takeover took, as far as
 * it has come. */
void takeover_describe(const struct run_phases *p, char *text, size_t room);

#endif
