/* trial.h - a step was not finite: is the checkpoint to blame that the run was restored from?
 *
 * Steps are the same bit for bit from whatever checkpoint they are reached. So a step that is not
 * finite from one checkpoint, and finite from an older one, was spoilt by the first; one that is
 * not finite from both is the run's own. Pure. */
#ifndef GTRAIN_TRIAL_H
#define GTRAIN_TRIAL_H

#include "ckpt.h"

enum trial_verdict {
    TRIAL_RUN,        /* no reason to suspect what was restored, or nothing to compare it with */
    TRIAL_CHECKPOINT, /* soon after the restore: mark it, take the one before */
    TRIAL_AGAIN,      /* as from a newer one, which was marked for it: it is the run, after all */
};

/* restored: what the run went on from, with the marks that held then; named: somebody asked for
 * that one, and gets what it gives. step: 1-based, that was not finite. */
enum trial_verdict trial_judge(const struct ckpt_decision *restored, bool named, int64_t step);

#endif
