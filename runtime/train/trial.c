/* trial.c - see trial.h. */
#include "train/trial.h"

static bool is_restored(const struct ckpt_decision *d, const struct ckpt_mark *m)
{
    return m->epoch == d->written_epoch && m->generation == d->written_generation &&
           m->step == d->position.step;
}

enum trial_verdict trial_judge(const struct ckpt_decision *restored, bool named, int64_t step)
{
    if (!restored->found)
        return TRIAL_RUN;
    for (int i = 0; i < restored->n_marks; i++)
        if (restored->marks[i].nan_step == step && !is_restored(restored, &restored->marks[i]))
            return TRIAL_AGAIN;
    if (!named && restored->older && step - restored->position.step <= CKPT_TRIAL_STEPS)
        return TRIAL_CHECKPOINT;
    return TRIAL_RUN;
}
