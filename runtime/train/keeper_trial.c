/* keeper_trial.c - a step was not finite: mark the checkpoint that was restored (of a state in
 * memory: those that were made of it), or take marks back that prove wrong. trial.h decides; every
 * node's log, and the shared folder's, hears it, so that each later start goes by it, whichever
 * nodes it has. */
#include "train/keeper.h"

#include "base/clock.h"
#include "drain.h"

#include <stdlib.h>
#include <string.h>

/* From another run's folder it was only read: nothing is said of it there. */
static bool is_own(const struct keeper *keeper)
{
    return keeper->dir[0] && !strcmp(keeper->wish.run_id, keeper->identity->run_id);
}

enum trial_verdict keeper_judge(const struct keeper *keeper, int64_t step)
{
    if (!is_own(keeper))
        return TRIAL_RUN;
    return trial_judge(&keeper->decision, keeper_on_disk(keeper), keeper->wish.exact, step);
}

/* Each node's leader speaks for its folder, rank 0 for the shared one, whose thread must be idle:
 * it appends to the same log. */
int keeper_mark(struct keeper *keeper, const struct ckpt_mark *marks, int n, bool bad,
                struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    const char *shared = keeper->shared.dir;
    if (identity->local_rank == 0 &&
        ckpt_mark_write(keeper->dir, identity->node, identity->run_id, marks, n, bad,
                        identity->epoch, identity->generation, err))
        return -1;
    if (identity->rank == 0 && *shared &&
        ckpt_mark_write(shared, CKPT_SHARED_NODE, identity->run_id, marks, n, bad, identity->epoch,
                        identity->generation, err))
        return -1;
    return 0;
}

/* Nothing of this start is under way any more, on this rank. */
static int quiesce(struct keeper *keeper, struct err *err)
{
    int64_t stall_ns;
    int64_t deadline = clock_ms() + keeper->plan->resilience.comm_timeout_ms;
    if (keeper_save_join(keeper, keeper->stream, &stall_ns, err) ||
        (keeper->ckpt && ckpt_wait(keeper->ckpt, deadline, err)) ||
        keeper_redundancy_settle(keeper, err))
        return -1;
    ckpt_drain_close(keeper->shared.drain);
    keeper->shared.drain = NULL;
    return 0;
}

int keeper_condemn(struct keeper *keeper, int64_t step, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    struct ckpt_mark marks[1 + CKPT_TRIAL_STEPS];
    int n = 0;
    if (!d->memory)
        marks[n++] =
            (struct ckpt_mark){d->written_epoch, d->written_generation, d->position.step, step};
    for (int i = 0; i < keeper->n_trial_commits; i++)
        marks[n++] = (struct ckpt_mark){keeper->identity->epoch, keeper->identity->generation,
                                        keeper->trial_commits[i], step};
    if (quiesce(keeper, err))
        return -1;
    return keeper_mark(keeper, marks, n, true, err);
}

int keeper_acquit(struct keeper *keeper, int64_t step, int64_t *newest, struct err *err)
{
    const struct ckpt_decision *d = keeper_on_disk(keeper);
    struct ckpt_mark *marks = calloc((size_t)d->n_marks + 1, sizeof *marks);
    int n = 0;
    *newest = -1;
    if (!marks)
        return err_set(err, "no memory for %d marks", d->n_marks);
    for (int i = 0; i < d->n_marks; i++) {
        if (d->marks[i].nan_step != step)
            continue;
        marks[n++] = d->marks[i];
        if (d->marks[i].step > *newest)
            *newest = d->marks[i].step;
    }
    int rv = quiesce(keeper, err) || keeper_mark(keeper, marks, n, false, err) ? -1 : 0;
    free(marks);
    return rv;
}
