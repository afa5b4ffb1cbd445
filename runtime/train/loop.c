/* loop.c - the training loop: steps, and what happens between them.
 *
 * A step is submitted, then the one before is finished: its tally is read, its line written, a
 * checkpoint that all ranks have on disk is committed. Where something must happen at a step's end
 * (validation, the last step), that step is finished before the next is submitted. A checkpoint
 * needs no such wait: its copy begins behind the step and must be over before the next one's update
 * (keeper.h). It counts only once it is committed, which comes after its step was seen to be well.
 * Every decision is taken from the plan or from the tally, so all ranks take the same one at the
 * same step, without asking each other. */
#include "train/train.h"

#include "base/clock.h"
#include "train/pace.h"
#include "train/peak.h"
#include "train/results.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loop {
    const struct train_options *options;
    const struct plan *plan;
    struct trainer trainer;
    struct keeper keeper;
    struct metrics *metrics;      /* rank 0 with a run folder; else NULL */
    struct peak peak;             /* of the machine: rank 0 holds the steps against it */
    int64_t start;                /* steps done before this run */
    int64_t submitted, finished;  /* steps, counted from the run's first */
    int64_t began_ns[2];          /* by step parity */
    int64_t stall_ns[2];          /* likewise: how long the step waited for a checkpoint's copy */
    struct pace pace;             /* of checkpoints */
    struct pace snapshots;        /* of those in memory */
    struct result noted[RESULTS]; /* of the steps up to start, where they came with the state */
    bool stop;                    /* the tally says so */
    bool common;                  /* a failure that all ranks have with the same text */
    bool damaged;                 /* and it is that of a checkpoint file */
    bool unfit; /* a node cannot do what the run did before: that node's failure */
};

static int event(struct loop *l, const char *kind, int64_t step, const char *text, struct err *err)
{
    return l->metrics ? metrics_event(l->metrics, kind, step, text, err) : 0;
}

static bool due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

static bool validates(const struct loop *l, int64_t done)
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
    return committed ? event(l, "checkpoint", durable, "committed", err) : 0;
}

/* What checkpoints cost, and how often they shall be therefore. */
static int hear_pace(struct loop *l, const struct step_result *result, double step_s,
                     struct err *err)
{
    struct err why;
    if (pace_hear(&l->pace, result, step_s, &why) &&
        event(l, "interval", l->finished, why.text, err))
        return -1;
    return pace_hear(&l->snapshots, result, step_s, &why)
               ? event(l, "interval", l->finished, why.text, err)
               : 0;
}

/* How copies to the shared folder went since the step before. */
static int hear_copies(struct loop *l, const struct step_result *result, struct err *err)
{
    struct keeper_news news;
    if (keeper_heard(&l->keeper, result->copied, result->copied_rank, &news, err) ||
        (news.step >= 0 && event(l, "note", news.step, news.text.text, err)))
        return -1;
    if (!keeper_told(&l->keeper, &news))
        return 0;
    if (*news.text.text)
        return event(l, "note", news.step, news.text.text, err);
    return event(l, "shared", news.step, "committed in the shared folder", err);
}

static void fill_line(struct loop *l, int64_t number, const struct step_result *result,
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

static enum train_end agree(struct loop *l, enum train_end mine, struct err *err);

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
    if (agree(l, rc ? TRAIN_FAILED : TRAIN_DONE, err) != TRAIN_DONE)
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
    return event(l, "note", step, err->text, err) ? TRAIN_FAILED : TRAIN_BACK;
}

/* The oldest step that is submitted and not finished. */
static enum train_end finish(struct loop *l, struct err *err)
{
    int64_t number = l->finished;
    struct step_result result;
    struct metrics_step line;
    if (step_collect(&l->trainer.step, number, &result, err) ||
        keeper_written(&l->keeper, result.written, err))
        return TRAIN_FAILED;
    if (!isfinite(result.loss) || !isfinite(result.norm))
        return not_finite(l, number + 1, &result, err);
    fill_line(l, number, &result, &line);
    l->finished = number + 1;
    l->stop |= result.stop;
    if (validates(l, number + 1) && trainer_validate(&l->trainer, &line.val_loss, err))
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
    word.written = l->keeper.written;
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
    return saves(l, l->submitted) ? begin_save(l, l->submitted, err) : 0;
}

static enum train_end steps(struct loop *l, struct err *err)
{
    int64_t total = l->plan->training.steps;
    enum train_end end = TRAIN_DONE;
    while (l->submitted < total && !l->stop) {
        if (submit(l, err))
            return TRAIN_FAILED;
        /* The one before, always; this one too where its end is waited for. */
        int64_t keep_open = validates(l, l->submitted) ? 0 : 1;
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
    if (committed && event(l, "checkpoint", l->keeper.committed, "committed", err))
        return -1;
    if (keeper_drain_flush(&l->keeper, err)) {
        l->common = l->keeper.shared.common;
        return -1;
    }
    if (keeper_told(&l->keeper, &news) &&
        event(l, "shared", news.step, "committed in the shared folder", err))
        return -1;
    return comm_barrier(l->options->comm, &l->trainer.mesh.all, err);
}

static enum train_end train(struct loop *l, struct err *err)
{
    enum train_end end = steps(l, err);
    if (end != TRAIN_DONE)
        return end;
    if (settle(l, err))
        return TRAIN_FAILED;
    if (l->finished < l->plan->training.steps) {
        if (event(l, "stop", l->finished, "asked to stop", err))
            return TRAIN_FAILED;
        return TRAIN_STOPPED;
    }
    return event(l, "end", l->finished, "all steps done", err) ? TRAIN_FAILED : TRAIN_DONE;
}

/* ---- opening ---- */

static int open_metrics(struct loop *l, struct err *err)
{
    const struct plan_training *t = &l->plan->training;
    if (l->options->identity.rank != 0 || !l->options->identity.run_dir)
        return 0;
    int columns = l->options->columns, live = columns > 0 ? columns : columns < 0 ? 0 : -1;
    return metrics_open(&l->metrics, l->options->identity.run_dir, l->options->out_fd, live,
                        t->steps, t->global_batch * t->sequence, err);
}

/* Unlike arithmetic among the ranks costs the bitwise promise, not the run. */
static int compare_signatures(struct loop *l, struct err *err)
{
    const char *mine = kernels_signature(l->options->k);
    int world = l->trainer.mesh.world, other = -1, rv;
    void **all = calloc((size_t)world, sizeof *all);
    size_t *lengths = calloc((size_t)world, sizeof *lengths);
    if (all && lengths)
        rv = comm_host_all_gatherv(l->options->comm, &l->trainer.mesh.all, mine, strlen(mine), 4096,
                                   all, lengths, err);
    else
        rv = err_set(err, "no memory");
    for (int i = 0; !rv && i < world; i++)
        if (strcmp(all[i], all[0]))
            other = i;
    if (other >= 0) {
        struct err text;
        err_set(&text,
                "rank 0 computes with %s, rank %d with %s: bits depend on which node a rank "
                "is on",
                (const char *)all[0], other, (const char *)all[other]);
        rv = event(l, "arithmetic", l->start, text.text, err);
    }
    for (int i = 0; all && i < world; i++)
        free(all[i]);
    free(all);
    free(lengths);
    return rv;
}

/* ---- agreeing ---- */

struct verdict {
    int end;
    int damaged; /* it was a checkpoint's file, */
    int file;    /* this one; -1: not known */
    char text[sizeof((struct err *)0)->text];
};

/* The first rank that cannot go on, as all ranks hear it. */
static enum train_end hear(struct loop *l, const struct verdict *all, int world, struct err *err)
{
    for (int i = 0; i < world; i++)
        if (all[i].damaged && keeper_mark_damaged(&l->keeper, all[i].file, err))
            return TRAIN_FAILED;
    for (int i = 0; i < world; i++) {
        if (all[i].end == TRAIN_DONE)
            continue;
        int length = (int)strnlen(all[i].text, sizeof all[i].text);
        if (i == 0)
            err_set(err, "%.*s", length, all[i].text);
        else
            err_set(err, "rank %d: %.*s", i, length, all[i].text);
        l->common = true;
        l->damaged = all[i].damaged;
        l->unfit = all[i].end == TRAIN_UNFIT;
        /* Only who is on that node says so: the others will go on without it. */
        return l->unfit && i != l->options->identity.rank ? TRAIN_FAILED
                                                          : (enum train_end)all[i].end;
    }
    return TRAIN_DONE;
}

/* Nobody goes on unless all can: the first rank that cannot tells all why, so that all end with the
 * same text. mine: how it went here. */
static enum train_end agree(struct loop *l, enum train_end mine, struct err *err)
{
    struct verdict me = {.end = mine, .damaged = l->keeper.damaged, .file = l->keeper.damaged_file},
                   *all;
    int world = l->options->identity.world;
    enum train_end end = TRAIN_FAILED;
    if (mine != TRAIN_DONE)
        snprintf(me.text, sizeof me.text, "%s", err->text);
    all = calloc((size_t)world, sizeof *all);
    if (!all)
        err_set(err, "no memory");
    else if (!comm_host_all_gather(l->options->comm, &l->trainer.mesh.all, &me, sizeof me, all,
                                   err))
        end = hear(l, all, world, err);
    free(all);
    /* All have read the verdict before anybody leaves; then it no longer matters who does. */
    if (l->common)
        comm_barrier(l->options->comm, &l->trainer.mesh.all, NULL);
    return end;
}

/* ---- lines of steps whose state was whole in memory before they were written ---- */

/* For the snapshot of the state after `step` steps, in its thread. Rank 0's is asked for later, or
 * that of a replica, whose image stands in for rank 0's. */
static int note_results(void *arg, int64_t step, char note[CKPT_MEMORY_NOTE], struct err *err)
{
    struct loop *l = arg;
    struct result results[RESULTS] = {{0}};
    bool asked = l->options->identity.rank % (l->plan->world / l->plan->parallel.data) == 0;
    for (int i = 0; i < RESULTS && asked; i++) {
        int64_t which = step - RESULTS + 1 + i;
        struct step_result r;
        const struct result *noted = results_find(l->noted, which);
        if (which <= l->start && !noted)
            continue;
        if (which > l->start && step_collect(&l->trainer.step, which - 1, &r, err))
            return -1;
        results[i] = which > l->start ? (struct result){which, r.loss, r.norm} : *noted;
    }
    results_print(results, note, CKPT_MEMORY_NOTE);
    return 0;
}

static int write_noted(struct loop *l, int64_t step, double val_loss, struct err *err)
{
    const struct result *noted = results_find(l->noted, step);
    struct step_result result;
    struct metrics_step line;
    if (!noted || !l->metrics)
        return 0;
    result = (struct step_result){.loss = noted->loss, .norm = noted->norm};
    fill_line(l, step - 1, &result, &line);
    line.step_s = line.mfu = NAN; /* who knew is dead */
    line.stall_ms = 0;
    line.val_loss = val_loss;
    line.generation = l->keeper.decision.written_generation;
    line.checkpoint_step = l->keeper.committed;
    return metrics_step(l->metrics, &line, err);
}

/* What was restored from memory may be ahead of the lines by two steps. */
static int catch_up(struct loop *l, struct err *err)
{
    int64_t last = l->metrics ? metrics_last_step(l->metrics) : 0;
    double val_loss = NAN;
    if (!l->keeper.decision.memory)
        return 0;
    results_parse(l->keeper.decision.note, l->noted);
    if (comm_host_broadcast(l->options->comm, &l->trainer.mesh.all, &last, sizeof last, 0, err))
        return -1;
    if (last < l->start && validates(l, l->start) && trainer_validate(&l->trainer, &val_loss, err))
        return -1;
    for (int64_t step = l->start - RESULTS + 1; step <= l->start; step++)
        if (step > last && write_noted(l, step, step == l->start ? val_loss : NAN, err))
            return -1;
    return 0;
}

static int announce(struct loop *l, const struct keeper_start *start, struct err *err)
{
    struct err text;
    if (*start->note && event(l, "note", l->start, start->note, err))
        return -1;
    if (!start->restored)
        return event(l, "start", 0, "from first weights", err);
    err_set(&text, "%" PRId64 " steps, %" PRId64 " samples%s", start->position.step,
            start->position.samples, l->keeper.decision.memory ? ", from the nodes' memory" : "");
    return event(l, "restored", l->start, text.text, err);
}

/* What to make of a rank that cannot open its checkpoints. In a later generation the plan, the data
 * and the folders are those that the run has worked with: it is the node (a full disk, no disk). */
static enum train_end cannot(const struct loop *l)
{
    bool later = l->options->identity.generation > 1 && !l->keeper.damaged;
    return later && !comm_failed(l->options->comm) ? TRAIN_UNFIT : TRAIN_REFUSED;
}

/* The newest checkpoint that is whole. Where bytes turn out to be damaged, they are taken from
 * somewhere else, or else an older checkpoint. */
static enum train_end restore(struct loop *l, struct keeper_start *start, struct err *err)
{
    for (bool touched = false;; touched = true) {
        if (keeper_find(&l->keeper, err)) {
            if (l->keeper.troubled >= 0)
                return agree(
                    l, l->keeper.troubled == l->options->identity.rank ? cannot(l) : TRAIN_DONE,
                    err);
            l->common = !comm_failed(l->options->comm);
            return l->common ? TRAIN_REFUSED : TRAIN_FAILED;
        }
        if (keeper_found_nothing_own(&l->keeper)) {
            enum train_end wide =
                agree(l, keeper_widen(&l->keeper, err) ? TRAIN_REFUSED : TRAIN_DONE, err);
            if (wide != TRAIN_DONE)
                return wide;
            continue;
        }
        enum train_end mine = keeper_restore(&l->keeper, start, err) ? cannot(l) : TRAIN_DONE;
        enum train_end end = agree(l, mine, err);
        if (end == TRAIN_DONE)
            end = agree(l, keeper_move(&l->keeper, err) ? TRAIN_REFUSED : TRAIN_DONE, err);
        if (end == TRAIN_DONE && touched && !start->restored)
            state_reset(&l->trainer.state, l->trainer.streams.stream[PROGRAM_STREAM_COMPUTE],
                        l->options->plan->training.seed); /* it was half filled */
        if (end == TRAIN_DONE || !l->damaged || !keeper_step_back(&l->keeper))
            return end;
        l->common = l->damaged = false;
        if (event(l, "note", 0, err->text, err))
            return TRAIN_FAILED;
    }
}

static enum train_end open_keeper(struct loop *l, struct err *err)
{
    const struct train_options *o = l->options;
    struct trainer *r = &l->trainer;
    struct keeper_start start;
    enum train_end end = TRAIN_DONE;
    if (keeper_open(&l->keeper, o->plan, &o->identity, o->k, o->comm, &r->mesh, &r->state,
                    r->streams.stream[PROGRAM_STREAM_COMPUTE], err))
        end = TRAIN_REFUSED;
    end = agree(l, end, err);
    if (end == TRAIN_DONE)
        end = restore(l, &start, err);
    if (end != TRAIN_DONE)
        return end;
    r->step.guard = (struct step_guard){before_sum, before_update, l};
    pace_open(&l->pace, PACE_CHECKPOINTS, o->plan, &o->identity);
    pace_open(&l->snapshots, PACE_SNAPSHOTS, o->plan, &o->identity);
    if (keeper_adopt(&l->keeper, err) || keeper_redundancy_start(&l->keeper, err))
        return TRAIN_FAILED;
    l->start = start.restored ? start.position.step : 0;
    l->keeper.memory.note = note_results;
    l->keeper.memory.note_arg = l;
    if (keeper_memory_start(&l->keeper, &l->common, err)) {
        l->unfit = l->keeper.memory.unfit;
        return l->common ? TRAIN_REFUSED : l->unfit ? TRAIN_UNFIT : TRAIN_FAILED;
    }
    return announce(l, &start, err) || catch_up(l, err) ? TRAIN_FAILED : TRAIN_DONE;
}

static enum train_end open_loop(struct loop *l, struct err *err)
{
    const struct train_options *o = l->options;
    enum train_end end = TRAIN_DONE;
    /* What the plan alone decides is the same everywhere; without a mesh nobody can be asked. */
    if (trainer_mesh(&l->trainer, o, err)) {
        l->common = true;
        return TRAIN_REFUSED;
    }
    if (trainer_open(&l->trainer, &end, err) == 0 && open_metrics(l, err))
        end = TRAIN_REFUSED;
    end = agree(l, end, err);
    if (end != TRAIN_DONE)
        return end;
    if (compare_signatures(l, err))
        return TRAIN_FAILED;
    if (o->measure &&
        peak_measure(o->k, state_dtype(o->plan), o->comm, &l->trainer.mesh, &l->peak, err))
        return TRAIN_FAILED;
    end = open_keeper(l, err);
    l->submitted = l->finished = l->start;
    if (end == TRAIN_DONE && o->hooks.progress)
        o->hooks.progress(o->hooks.arg, l->start);
    return end;
}

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
    l.keeper.committed = l.keeper.saved = l.keeper.written = -1;
    l.keeper.shared.flight = -1;
    enum train_end end = open_loop(&l, err);
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
