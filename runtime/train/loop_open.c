/* loop_open.c - before the first step: all that must be there is opened, the newest state that can
 * be had is restored, and all ranks agree that each part went well before the next. See loop.c. */
#include "train/loop_impl.h"

#include "train/keeper_space.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        rv = loop_event(l, "arithmetic", l->start, text.text, err);
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

enum train_end loop_agree(struct loop *l, enum train_end mine, struct err *err)
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
    loop_fill_line(l, step - 1, &result, &line);
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
    if (last < l->start && loop_validates(l, l->start) &&
        trainer_validate(&l->trainer, &val_loss, err))
        return -1;
    for (int64_t step = l->start - RESULTS + 1; step <= l->start; step++)
        if (step > last && write_noted(l, step, step == l->start ? val_loss : NAN, err))
            return -1;
    return 0;
}

static int announce(struct loop *l, const struct keeper_start *start, struct err *err)
{
    struct err text;
    if (*start->note && loop_event(l, "note", l->start, start->note, err))
        return -1;
    if (!start->restored)
        return loop_event(l, "start", 0, "from first weights", err);
    err_set(&text, "%" PRId64 " steps, %" PRId64 " samples%s", start->position.step,
            start->position.samples, l->keeper.decision.memory ? ", from the nodes' memory" : "");
    return loop_event(l, "restored", l->start, text.text, err);
}

static int accept(const struct loop *l, struct err *err)
{
    const struct train_hooks *hooks = &l->options->hooks;
    bool asked = hooks->accepted && l->options->identity.rank == 0;
    return asked ? hooks->accepted(hooks->arg, err) : 0;
}

/* What to make of a rank that cannot open its checkpoints. In a later generation the plan, the data
 * and the folders are those that the run has worked with: it is the node (a full disk, no disk). */
static enum train_end cannot(const struct loop *l)
{
    bool later = l->options->identity.generation > 1 && !l->keeper.damaged;
    return later && !comm_failed(l->options->comm) ? TRAIN_UNFIT : TRAIN_REFUSED;
}

/* The newest step that the run folder tells was committed, -1: none. Rank 0's; the others' is -1.
 */
static int64_t committed_before(const struct loop *l)
{
    return l->metrics ? metrics_committed(l->metrics) : -1;
}

/* A later generation may find nothing where nothing was committed yet, but not where the folder
 * that may have it cannot be read. */
static enum train_end check_unread(const struct loop *l, struct err *err)
{
    const char *why = l->keeper.shared.unread.text;
    if (!*why)
        return TRAIN_DONE;
    err_set(err,
            "restore: no node has a state to go on from, and checkpoint.shared cannot be read: %s",
            why);
    return TRAIN_FAILED;
}

/* This launch has left nothing: what was asked for then. */
static enum train_end widen(struct loop *l, struct err *err)
{
    enum train_end mine = check_unread(l, err);
    if (mine == TRAIN_DONE && keeper_widen(&l->keeper, err))
        mine = TRAIN_REFUSED;
    return loop_agree(l, mine, err);
}

/* The newest checkpoint that is whole. Where bytes turn out to be damaged, they are taken from
 * somewhere else, or else an older checkpoint. */
static enum train_end restore(struct loop *l, struct keeper_start *start, struct err *err)
{
    for (bool touched = false;; touched = true) {
        if (keeper_find(&l->keeper, err)) {
            if (l->keeper.troubled >= 0)
                return loop_agree(
                    l, l->keeper.troubled == l->options->identity.rank ? cannot(l) : TRAIN_DONE,
                    err);
            l->common = !comm_failed(l->options->comm);
            return l->common ? TRAIN_REFUSED : TRAIN_FAILED;
        }
        if (keeper_found_nothing_own(&l->keeper)) {
            enum train_end wide = widen(l, err);
            if (wide != TRAIN_DONE)
                return wide;
            continue;
        }
        enum train_end mine = keeper_restore(&l->keeper, start, err) ? cannot(l) : TRAIN_DONE;
        enum train_end end = loop_agree(l, mine, err);
        if (end == TRAIN_DONE)
            end = loop_agree(l, keeper_move(&l->keeper, err) ? TRAIN_REFUSED : TRAIN_DONE, err);
        if (end == TRAIN_DONE && touched && !start->restored)
            state_reset(&l->trainer.state, l->trainer.streams.stream[PROGRAM_STREAM_COMPUTE],
                        l->options->plan->training.seed); /* it was half filled */
        if (end == TRAIN_DONE || !l->damaged || !keeper_step_back(&l->keeper))
            return end;
        l->common = l->damaged = false;
        if (loop_event(l, "note", 0, err->text, err))
            return TRAIN_FAILED;
    }
}

/* A run that has had checkpoints does not start afresh unasked, though no trace of one is found:
 * the folder is not mounted, or moved, or the plan names another. */
static enum train_end check_lost(struct loop *l, const struct keeper_start *start, struct err *err)
{
    const struct train_identity *id = &l->options->identity;
    const struct plan_checkpoint *c = &l->options->plan->checkpoint;
    enum train_end mine = TRAIN_DONE;
    if (start->restored || l->keeper.wish.nothing || (!c->local && !c->shared))
        return TRAIN_DONE;
    if (id->generation > 1)
        return loop_agree(l, check_unread(l, err), err);
    int64_t step = committed_before(l);
    if (step >= 0) {
        mine = TRAIN_REFUSED;
        err_set(err,
                "restore: %s/events.jsonl says that this run has committed checkpoints, the last "
                "of step %" PRId64 ", but %s%s%s has no record of any: bring the folder back, or "
                "start afresh with --restore none",
                id->run_dir, step, c->local ? c->local : "", c->local && c->shared ? " and " : "",
                c->shared ? c->shared : "");
    }
    return loop_agree(l, mine, err);
}

/* Disks have room for what all ranks on them will write. */
static enum train_end check_space(struct loop *l, struct err *err)
{
    bool common = false, unfit = false;
    if (keeper_space_check(&l->keeper, &common, &unfit, err) && !unfit) {
        l->common = common;
        return common ? TRAIN_REFUSED : TRAIN_FAILED;
    }
    return loop_agree(l, unfit ? TRAIN_UNFIT : TRAIN_DONE, err);
}

static enum train_end open_keeper(struct loop *l, struct err *err)
{
    const struct train_options *o = l->options;
    struct trainer *r = &l->trainer;
    struct keeper_start start;
    enum train_end end = TRAIN_DONE;
    if (keeper_open(&l->keeper, o->plan, &o->identity, o->k, o->comm, &r->mesh, &r->state,
                    r->streams.stream[PROGRAM_STREAM_COMPUTE], committed_before(l), err))
        end = TRAIN_REFUSED;
    end = loop_agree(l, end, err);
    if (end == TRAIN_DONE)
        end = restore(l, &start, err);
    if (end == TRAIN_DONE)
        end = check_lost(l, &start, err);
    if (end != TRAIN_DONE)
        return end;
    pace_open(&l->pace, PACE_CHECKPOINTS, o->plan, &o->identity);
    pace_open(&l->snapshots, PACE_SNAPSHOTS, o->plan, &o->identity);
    if (keeper_adopt(&l->keeper, err) || keeper_redundancy_start(&l->keeper, err))
        return TRAIN_FAILED;
    l->start = start.restored ? start.position.step : 0;
    l->keeper.memory.note = note_results;
    l->keeper.memory.note_arg = l;
    end = check_space(l, err);
    if (end != TRAIN_DONE)
        return end;
    if (keeper_memory_start(&l->keeper, &l->common, err)) {
        l->unfit = l->keeper.memory.unfit;
        return l->common ? TRAIN_REFUSED : l->unfit ? TRAIN_UNFIT : TRAIN_FAILED;
    }
    return accept(l, err) || announce(l, &start, err) || catch_up(l, err) ? TRAIN_FAILED
                                                                          : TRAIN_DONE;
}

enum train_end loop_open(struct loop *l, struct err *err)
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
    end = loop_agree(l, end, err);
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
