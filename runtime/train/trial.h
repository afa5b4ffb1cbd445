/* trial.h - a step was not finite: is what the run was restored from to blame?
 *
 * Steps are the same bit for bit from whatever checkpoint they are reached. So a step that is not
 * finite from one checkpoint, and finite from an older one, was spoilt by the first; one that is
 * not finite from both is the run's own. That holds only where the newer one does not come from the
 * older: a launch or generation may have begun with a spoilt checkpoint and written its own of
 * that, and then both are spoilt, and one older than both is not.
 *
 * A state in memory was made of what the run had, by copying: it is given up, without a mark, and
 * what is on disk is tried; then it goes as with any checkpoint. Pure. */
#ifndef GTRAIN_TRIAL_H
#define GTRAIN_TRIAL_H

#include "ckpt.h"

enum trial_verdict {
    TRIAL_RUN,        /* no reason to suspect what was restored, or nothing to compare it with */
    TRIAL_MEMORY,     /* soon after the restore from memory: take what is on disk */
    TRIAL_CHECKPOINT, /* soon after the restore: mark it, take the one before */
    TRIAL_AGAIN,      /* as from a newer one, which was marked for it: it is the run, after all */
};

/* restored: what the run went on from; disk: the newest checkpoint that there was beside a state in
 * memory, else the same; with the marks that held then. named: somebody asked for that one, and
 * gets what it gives. step: 1-based, that was not finite. */
enum trial_verdict trial_judge(const struct ckpt_decision *restored,
                               const struct ckpt_decision *disk, bool named, int64_t step);

#endif
