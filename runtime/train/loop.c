/* loop.c - the training loop: steps, and what happens between them.
 *
 * A step is submitted, then the one before is finished: its tally is read, its line written, a
 * checkpoint that all ranks have on disk is committed. Where something must happen at a step's end
 * (validation, the last step), that step is finished before the next is submitted. A checkpoint
 * needs no such wait: its copy begins behind the step and must be over before the next one's update
 * (keeper.h). It counts only once it is committed, which comes after its step was seen to be well.
 * Every decision is taken from the plan or from the tally, so all ranks take the same one at the
 * same step, without asking each other. */
#include "train/loop_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>

int loop_event(struct loop *l, const char *kind, int64_t step, const char *text, struct err *err)
{
    return l->metrics ? metrics_event(l->metrics, kind, step, text, err) : 0;
}

static bool due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

bool loop_validates(const struct loop *l, int64_t done)
{
    const struct plan_training *t = &l->plan->training;
    return l->trainer.held_out && (due(t->val_every, done) || done == t->steps);
}

static bool saves(const struct loop *l, int64_t done)
{
    int64_t last = l->keeper.saved > l->start ? l->keeper.saved : l->start;
    if (!l->keeper.ckpt || l->plan->checkpoint.every == 0)
        return false;
    return pace_due(&l->pace, done, last) || done == l->plan->training.steps ||
           (keeper_degraded(&l->keeper) && done == l->start + 1);
}

/* Nobody goes on from the last step. */
static bool takes_snapshot(const struct loop *l, int64_t done)
{
    return done < l->plan->training.steps && pace_due(&l->snapshots, done, l->keeper.memory.newest);
}

/* ---- finishing a step ---- */

static int commit(struct loop *l, int64_t durable, struct err *err)
{
    bool committed;
    if (keeper_commit(&l->keeper, durable, &committed, err))
        return -1;
    return committed ? loop_event(l, "checkpoint", durable, "committed", err) : 0;
}

/* What checkpoints cost, and how often they shall be therefore. */
static int hear_pace(struct loop *l, const struct step_result *result, double step_s,
                     struct err *err)
{
    struct err why;
    if (pace_hear(&l->pace, result, step_s, &why) &&
        loop_event(l, "interval", l->finished, why.text, err))
        return -1;
    return pace_hear(&l->snapshots, result, step_s, &why)
               ? loop_event(l, "interval", l->finished, why.text, err)
               : 0;
}

/* How copies to the shared folder went since the step before. */
static int hear_copies(struct loop *l, const struct step_result *result, struct err *err)
{
    struct keeper_news news;
    if (keeper_heard(&l->keeper, result->copied, result->copied_rank, &news, err) ||
        (news.step >= 0 && loop_event(l, "note", news.step, news.text.text, err)))
        return -1;
    if (!keeper_told(&l->keeper, &news))
        return 0;
    if (*news.text.text)
        return loop_event(l, "note", news.step, news.text.text, err);
    return loop_event(l, "shared", news.step, "committed in the shared folder", err);
}

void loop_fill_line(struct loop *l, int64_t number, const struct step_result *result,
                    struct metrics_step *line)
{
    const struct plan_training *t = &l->plan->training;
    double tokens = (double)t->global_batch * (double)t->sequence;
    int64_t end_ns = l->submitted > number + 1 ? l->began_ns[(number + 1) & 1] : clock_ns();
    *line = (struct metrics_step){
        .step = number + 1,
        .loss = result->loss,
        .val_loss = NAN,
        .grad_norm = result->norm,
        .lr = plan_lr(t, number),
        .tokens = (number + 1) * t->global_batch * t->sequence,
        .stall_ms = (double)l->stall_ns[number & 1] * 1e-6,
        .step_s = (double)(end_ns - l->began_ns[number & 1]) * 1e-9,
        .mfu = NAN,
        .epoch = l->options->identity.epoch,
        .generation = l->options->identity.generation,
        .spares = l->options->identity.spares,
        .replicas = l->plan->parallel.data,
        .planned_replicas = l->options->identity.planned_replicas,
    };
    if (line->step_s > 0)
        line->mfu = peak_share(&l->peak, plan_flops_per_token(l->plan) * tokens / line->step_s);
    line->mfu_about = l->peak.about;
}

/* Of the steps that are submitted and not finished nobody waits for another any more. */
static int let_steps_end(struct loop *l, struct err *err)
{
    struct step_result unused;
    for (int64_t number = l->finished; number < l->submitted; number++)
        if (step_collect(&l->trainer.step, number, &unused, err))
            return -1;
    return 0;
}

/* Step `step` (1-based) cannot be gone on from: is it the run, or the checkpoint it began with? All
 * ranks see the same tally, and so do the same. */
static enum train_end not_finite(struct loop *l, int64_t step, const struct step_result *result,
                                 struct err *err)
{
    static const char advice[] = "Try a lower training.lr, a longer warm-up, or float64 to see "
                                 "whether it is rounding";
    enum trial_verdict verdict = keeper_judge(&l->keeper, step);
    double loss = fabs(result->loss), norm = fabs(result->norm); /* no "-nan" */
    int64_t newer;
    if (verdict == TRIAL_RUN) {
        err_set(err,
                "step %" PRId64 ": the loss is %g and the gradient norm %g: the run has diverged. "
                "%s",
                step, loss, norm, advice);
        return TRAIN_DIVERGED;
    }
    int rc = let_steps_end(l, err);
    if (!rc)
        rc = verdict == TRIAL_AGAIN ? keeper_acquit(&l->keeper, step, &newer, err)
                                    : keeper_condemn(&l->keeper, step, err);
    if (loop_agree(l, rc ? TRAIN_FAILED : TRAIN_DONE, err) != TRAIN_DONE)
        return TRAIN_FAILED;
    if (verdict == TRIAL_AGAIN) {
        err_set(err,
                "step %" PRId64 ": the loss is %g and the gradient norm %g, from the checkpoint of "
                "step %" PRId64 " as from that of step %" PRId64
                ", which is not marked bad any more: the run itself has diverged. %s",
                step, loss, norm, l->start, newer, advice);
        return TRAIN_DIVERGED;
    }
    if (verdict == TRIAL_MEMORY)
        err_set(err,
                "step %" PRId64 ": the loss is %g and the gradient norm %g, %" PRId64
                " steps after the state of step %" PRId64
                " was taken from the nodes' memory: that is "
                "given up, and the run goes back to the newest checkpoint on disk",
                step, loss, norm, step - l->start, l->start);
    else
        err_set(err,
                "step %" PRId64 ": the loss is %g and the gradient norm %g, %" PRId64
                " steps after the checkpoint of step %" PRId64
                " was restored: that is marked bad, and the run goes back to the one before it",
                step, loss, norm, step - l->start, l->start);
    return loop_event(l, "note", step, err->text, err) ? TRAIN_FAILED : TRAIN_BACK;
}

/* The oldest step that is submitted and not finished. */
static enum train_end finish(struct loop *l, struct err *err)
{
    int64_t number = l->finished;
    struct step_result result;
    struct metrics_step line;
    if (step_collect(&l->trainer.step, number, &result, err))
        return TRAIN_FAILED;
    if (!isfinite(result.loss) || !isfinite(result.norm))
        return not_finite(l, number + 1, &result, err);
    loop_fill_line(l, number, &result, &line);
    l->finished = number + 1;
    l->stop |= result.stop;
    if (loop_validates(l, number + 1) && trainer_validate(&l->trainer, &line.val_loss, err))
        return TRAIN_FAILED;
    if (commit(l, result.finished, err) || hear_copies(l, &result, err) ||
        hear_pace(l, &result, line.step_s, err))
        return TRAIN_FAILED;
    line.checkpoint_step = l->keeper.committed;
    if (l->metrics && metrics_step(l->metrics, &line, err))
        return TRAIN_FAILED;
    if (l->options->hooks.step)
        l->options->hooks.step(l->options->hooks.arg, &line);
    if (l->options->hooks.progress)
        l->options->hooks.progress(l->options->hooks.arg, number + 1);
    return TRAIN_DONE;
}

/* ---- the loop ---- */

static int before_sum(void *arg, struct kstream *stream, struct err *err)
{
    struct loop *l = arg;
    return keeper_memory_join(&l->keeper, stream, &l->stall_ns[l->submitted & 1], err);
}

static int before_update(void *arg, struct kstream *stream, struct err *err)
{
    struct loop *l = arg;
    int64_t stall_ns;
    keeper_memory_confirm(&l->keeper);
    if (keeper_save_join(&l->keeper, stream, &stall_ns, err))
        return -1;
    l->stall_ns[l->submitted & 1] += stall_ns;
    return 0;
}

static int begin_save(struct loop *l, int64_t done, struct err *err)
{
    int64_t committed;
    if (keeper_make_room(&l->keeper, &committed, err) ||
        (committed >= 0 && loop_event(l, "checkpoint", committed, "committed", err)))
        return -1;
    if (keeper_save_begin(&l->keeper, done, err))
        return err_prefix(err, "checkpoint of step %" PRId64, done);
    return 0;
}

static int submit(struct loop *l, struct err *err)
{
    const struct train_hooks *hooks = &l->options->hooks;
    int64_t number = l->submitted;
    struct step_word word = {.copied = keeper_copied(&l->keeper),
                             .stop = hooks->stop_asked && hooks->stop_asked(hooks->arg)};
    if (keeper_finished(&l->keeper, &word.finished, err))
        return err_prefix(err, "writing a checkpoint");
    keeper_cost(&l->keeper, &word.stall_s, &word.write_s);
    word.every = pace_word(&l->pace);
    word.snapshot_s = keeper_memory_cost(&l->keeper);
    word.snapshot_every = pace_word(&l->snapshots);
    if (number == l->start && keeper_memory_begin_restored(&l->keeper, number, err))
        return -1;
    l->began_ns[number & 1] = clock_ns();
    if (trainer_step(&l->trainer, number, &word, err))
        return err_prefix(err, "step %" PRId64, number + 1);
    l->submitted = number + 1;
    if (takes_snapshot(l, l->submitted) && keeper_memory_begin(&l->keeper, l->submitted, err))
        return -1;
    l->save_due |= saves(l, l->submitted);
    if (!l->save_due || keeper_full(&l->keeper, l->finished))
        return 0;
    l->save_due = false;
    return begin_save(l, l->submitted, err);
}

static enum train_end steps(struct loop *l, struct err *err)
{
    int64_t total = l->plan->training.steps;
    enum train_end end = TRAIN_DONE;
    while (l->submitted < total && !l->stop) {
        if (submit(l, err))
            return TRAIN_FAILED;
        /* The one before, always; this one too where its end is waited for. */
        int64_t keep_open = loop_validates(l, l->submitted) ? 0 : 1;
        while (end == TRAIN_DONE && l->submitted - l->finished > keep_open)
            end = finish(l, err);
        if (end != TRAIN_DONE)
            return end;
    }
    while (end == TRAIN_DONE && l->finished < l->submitted)
        end = finish(l, err);
    return end;
}

/* The last state is in a committed checkpoint, if the plan keeps any, and in the shared folder, if
 * it has one. */
static int settle(struct loop *l, struct err *err)
{
    bool committed = false;
    struct keeper_news news;
    bool lacks = l->keeper.saved < l->finished || keeper_drain_lacks(&l->keeper, l->finished);
    if (l->keeper.ckpt && l->plan->checkpoint.every != 0 && lacks &&
        begin_save(l, l->finished, err))
        return -1;
    if (keeper_flush(&l->keeper, &committed, err))
        return -1;
    if (committed && loop_event(l, "checkpoint", l->keeper.committed, "committed", err))
        return -1;
    if (keeper_drain_flush(&l->keeper, err)) {
        l->common = l->keeper.shared.common;
        return -1;
    }
    if (keeper_told(&l->keeper, &news) &&
        loop_event(l, "shared", news.step, "committed in the shared folder", err))
        return -1;
    return comm_barrier(l->options->comm, &l->trainer.mesh.all, err);
}

static enum train_end train(struct loop *l, struct err *err)
{
    l->trainer.step.guard = (struct step_guard){before_sum, before_update, l};
    enum train_end end = steps(l, err);
    if (end != TRAIN_DONE)
        return end;
    if (settle(l, err))
        return TRAIN_FAILED;
    if (l->finished < l->plan->training.steps) {
        if (loop_event(l, "stop", l->finished, "asked to stop", err))
            return TRAIN_FAILED;
        return TRAIN_STOPPED;
    }
    return loop_event(l, "end", l->finished, "all steps done", err) ? TRAIN_FAILED : TRAIN_DONE;
}

/* ---- the run ---- */

static enum train_whose whose(const struct loop *l, enum train_end end)
{
    if (l->unfit)
        return end == TRAIN_UNFIT ? TRAIN_MINE : TRAIN_PEERS;
    if (l->common || end == TRAIN_DIVERGED || end == TRAIN_BACK)
        return TRAIN_COMMON;
    bool lost = comm_failed(l->options->comm) || keeper_lost_peers(&l->keeper);
    return lost ? TRAIN_PEERS : TRAIN_MINE;
}

enum train_end train_run(const struct train_options *options, enum train_whose *who,
                         struct err *err)
{
    struct loop l = {.options = options, .plan = options->plan};
    l.keeper.memory.side = options->mirror;
    l.keeper.side = options->carrier;
    l.keeper.committed = l.keeper.saved = -1;
    l.keeper.shared.flight = -1;
    enum train_end end = loop_open(&l, err);
    if (end == TRAIN_DONE)
        end = train(&l, err);
    *who = whose(&l, end);
    /* Nobody must wait for a rank that gave up. */
    bool orderly = end == TRAIN_DONE || end == TRAIN_STOPPED || end == TRAIN_BACK;
    if (!orderly)
        comm_abort(options->comm, err->text);
    l.keeper.memory.forget = end == TRAIN_BACK || end == TRAIN_DIVERGED;
    keeper_close(&l.keeper, orderly);
    if (l.metrics)
        metrics_close(l.metrics);
    trainer_close(&l.trainer);
    return end;
}
