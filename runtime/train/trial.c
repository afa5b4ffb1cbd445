/* trial.c - see trial.h. */
#include "train/trial.h"

static bool is_restored(const struct ckpt_decision *d, const struct ckpt_mark *m)
{
    return !d->memory && m->epoch == d->written_epoch && m->generation == d->written_generation &&
           m->step == d->position.step;
}

/* Whoever began with d came later. */
static bool may_come_from(const struct ckpt_mark *m, const struct ckpt_decision *d)
{
    return m->epoch > d->written_epoch ||
           (m->epoch == d->written_epoch && m->generation > d->written_generation);
}

enum trial_verdict trial_judge(const struct ckpt_decision *restored,
                               const struct ckpt_decision *disk, bool named, int64_t step)
{
    bool again = false, soon = step - restored->position.step <= CKPT_TRIAL_STEPS;
    if (!restored->found)
        return TRIAL_RUN;
    for (int i = 0; i < disk->n_marks; i++) {
        const struct ckpt_mark *m = &disk->marks[i];
        if (m->nan_step != step || is_restored(restored, m))
            continue;
        if (!may_come_from(m, restored))
            return TRIAL_AGAIN;
        again = true;
    }
    if (!named && soon && restored->memory && disk->found)
        return TRIAL_MEMORY;
    if (!named && soon && !restored->memory && restored->older)
        return TRIAL_CHECKPOINT;
    return again ? TRIAL_AGAIN : TRIAL_RUN;
}
