/* keeper_restore.c - decides on a checkpoint with all ranks, and fills each. */
#include "train/keeper.h"

#include "drain.h"
#include "parity.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MOST = 1000 };        /* each finds a file damaged at least */
enum { SCAN_MAX_BYTES = 64 << 20 }; /* of one node's log: far more than retention leaves */

/* One rank of a node speaks for it; rank 0 for the shared folder. */
int keeper_scan(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    const struct keeper_wish *w = &keeper->wish;
    keeper->scanned = !w->nothing && w->dir[0] && identity->local_rank == 0
                          ? ckpt_scan(w->dir, identity->node, w->run_id, err)
                          : strdup("");
    if (!keeper->scanned)
        return -1;
    keeper->scanned_shared = keeper_drain_scan(keeper, err);
    return keeper->scanned_shared ? 0 : -1;
}

static int check_wish(const struct keeper *keeper, struct err *err)
{
    const struct keeper_wish *w = &keeper->wish;
    const struct ckpt_decision *d = &keeper->decision;
    const char *dir = w->dir[0] ? w->dir : w->shared;
    if (!w->exact || (d->found && (w->step < 0 || d->position.step == w->step)))
        return 0;
    if (w->step < 0)
        return err_set(err, "restore: %s holds no committed checkpoint that is whole%s%s", dir,
                       d->report && *d->report ? ": " : "", d->report ? d->report : "");
    if (!d->found)
        return err_set(err, "restore: %s holds no committed checkpoint of step %lld or before", dir,
                       (long long)w->step);
    return err_set(
        err,
        "restore: %s holds no committed checkpoint of step %lld; the newest before it is "
        "of step %lld",
        dir, (long long)w->step, (long long)d->position.step);
}

/* Of all blobs those in which somebody speaks, moved to the front. */
static int spoken(void **blobs, int world)
{
    int n = 0;
    for (int i = 0; i < world; i++) {
        void *blob = blobs[i];
        if (!blob || !*(const char *)blob)
            continue;
        blobs[i] = blobs[n];
        blobs[n++] = blob;
    }
    return n;
}

/* Once, of all ranks: how much a checkpoint is, and what rank 0 sees in the shared folder. */
static int gather_shared(struct keeper *keeper, void **blobs, size_t *lengths, struct err *err)
{
    const struct comm_group *all = &keeper->mesh->all;
    int world = keeper->mesh->world;
    int64_t mine = keeper_drain_bytes(keeper), *bytes = calloc((size_t)world, sizeof *bytes);
    int rv = bytes ? comm_host_all_gather(keeper->comm, all, &mine, sizeof mine, bytes, err)
                   : err_set(err, "no memory");
    if (!rv)
        rv = comm_host_all_gatherv(keeper->comm, all, keeper->scanned_shared,
                                   strlen(keeper->scanned_shared), SCAN_MAX_BYTES, blobs, lengths,
                                   err);
    if (!rv) {
        keeper->shared.blob = blobs[0];
        blobs[0] = NULL;
        keeper->shared.total_bytes = 0;
        for (int i = 0; i < world; i++)
            keeper->shared.total_bytes += bytes[i];
    }
    free(bytes);
    return rv;
}

/* The same bytes lie in the shared folder. */
static bool shared_has(const struct keeper *keeper, const struct ckpt_decision *d)
{
    const char *blob = keeper->shared.blob;
    struct ckpt_decision there = {0};
    struct err unused;
    if (!blob || !*blob || !d->found ||
        ckpt_decide_named(&blob, 1, d->position.step, &there, &unused))
        return false;
    bool same = there.found && there.position.step == d->position.step && there.world == d->world;
    for (int i = 0; same && i < d->world; i++)
        same = there.places[i].digest == d->places[i].digest;
    ckpt_decision_free(&there);
    return same;
}

/* Rank 0 named files in the shared folder as its node sees them; here they are in wish.shared. */
static int name_shared(struct keeper *keeper, struct err *err)
{
    for (int i = 0; i < keeper->decision.world; i++) {
        struct ckpt_place *p = &keeper->decision.places[i];
        char *path;
        if (!p->node || strcmp(p->node, CKPT_SHARED_NODE))
            continue;
        if (asprintf(&path, "%s/%s", keeper->wish.shared, strrchr(p->path, '/') + 1) < 0)
            return err_set(err, "no memory for a path");
        free(p->path);
        p->path = path;
    }
    return 0;
}

/* blobs: of the nodes, room for one more. */
static int decide_from(struct keeper *keeper, void **blobs, struct err *err)
{
    char *shared = keeper->shared.blob;
    int n = spoken(blobs, keeper->mesh->world);
    void *first = blobs[n];
    if (shared && *shared)
        blobs[n++] = shared;
    const struct keeper_wish *w = &keeper->wish;
    int rv = w->exact && w->step >= 0 ? ckpt_decide_rebuilt_named((const char *const *)blobs, n,
                                                                  w->step, &keeper->decision, err)
                                      : ckpt_decide_rebuilt((const char *const *)blobs, n, w->step,
                                                            &keeper->decision, err);
    if (shared && *shared)
        blobs[n - 1] = first;
    return rv ? -1 : name_shared(keeper, err);
}

static int decide(struct keeper *keeper, struct err *err)
{
    int world = keeper->mesh->world, rv = 0;
    void **blobs = calloc((size_t)world + 1, sizeof *blobs);
    size_t *lengths = calloc((size_t)world, sizeof *lengths);
    if (!blobs || !lengths)
        rv = err_set(err, "no memory to look for checkpoints");
    if (!rv && (keeper->wish.shared[0] || keeper->shared.dir[0]) && !keeper->shared.blob) {
        rv = gather_shared(keeper, blobs, lengths, err);
        for (int i = 0; i < world; i++) {
            free(blobs[i]);
            blobs[i] = NULL;
        }
    }
    if (!rv && !keeper->wish.nothing)
        rv = comm_host_all_gatherv(keeper->comm, &keeper->mesh->all, keeper->scanned,
                                   strlen(keeper->scanned), SCAN_MAX_BYTES, blobs, lengths, err) ||
                     decide_from(keeper, blobs, err)
                 ? -1
                 : 0;
    for (int i = 0; blobs && i < world; i++)
        free(blobs[i]);
    free(blobs);
    free(lengths);
    return rv;
}

/* ---- is it ours, and does it fit ---- */

static void layout_text(const int64_t layout[LAYOUT_WORDS], char *text, size_t size)
{
    snprintf(text, size, "tensor %lld, context %lld, expert %lld, pipeline %lld, data %lld",
             (long long)layout[MESH_TENSOR], (long long)layout[MESH_CONTEXT],
             (long long)layout[MESH_EXPERT], (long long)layout[MESH_PIPELINE],
             (long long)layout[MESH_DATA]);
}

/* Weights from outside belong to no plan, and have no moments. */
static bool imported(const struct keeper *keeper)
{
    return keeper->decision.found && !keeper->decision.plan_hash;
}

/* What is worth a note, behind what is there already. */
static void add_note(struct keeper_start *start, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_note(struct keeper_start *start, const char *format, ...)
{
    size_t at = strlen(start->note);
    va_list args;
    if (at && at + 2 < sizeof start->note)
        at += (size_t)snprintf(start->note + at, sizeof start->note - at, "; ");
    va_start(args, format);
    vsnprintf(start->note + at, sizeof start->note - at, format, args);
    va_end(args);
}

/* Its lines, as one. */
static void add_report(struct keeper_start *start, const char *report)
{
    size_t n = strlen(report);
    while (n && report[n - 1] == '\n')
        n--;
    add_note(start, "%.*s", (int)n, report);
    for (char *c = start->note; *c; c++)
        if (*c == '\n')
            *c = ' ';
}

static void note_layout(const struct keeper *keeper, struct keeper_start *start)
{
    const struct reshard *r = &keeper->reshard;
    const int64_t *was = r->files[0].layout, *is = keeper->layout;
    char old[128], now[128];
    if (imported(keeper)) {
        add_note(start, "imported weights: the optimizer's moments start at zero");
    } else if (memcmp(was, is, LAYOUT_SIGNATURE * sizeof *was)) {
        layout_text(was, old, sizeof old);
        layout_text(is, now, sizeof now);
        add_note(start, "written with %s; restored into %s", old, now);
    }
    for (int i = 0; !imported(keeper) && i < r->decision->world; i++)
        if (r->files[i].layout[LAYOUT_SIGNATURE] != is[LAYOUT_SIGNATURE]) {
            add_note(start,
                     "the checkpoint was written by another arithmetic than this machine's (%s): "
                     "losses will not be bit for bit those of the run it continues",
                     kernels_signature(keeper->k));
            break;
        }
}

/* Does the checkpoint stand at the end of its learning-rate schedule, and this plan differ from
 * the run's in nothing but where that end is? So it is with a finished run and more training.steps,
 * from which the end follows unless it is given. */
static bool only_longer(const struct plan *plan, const struct ckpt_decision *d)
{
    struct plan as_it_was = *plan;
    struct plan_training *t = &as_it_was.training;
    t->decay_steps = d->position.step;
    if (plan_hash(&as_it_was) == d->plan_hash)
        return true;
    t->wsd_decay_steps = t->decay_steps < 10 ? 1 : t->decay_steps / 10; /* its default */
    return plan_hash(&as_it_was) == d->plan_hash;
}

/* In what the plan differs from the one that the checkpoint's run folder has, if that is the one
 * that wrote it: malloc'ed, NULL where it is not known. */
static char *find_difference(const struct keeper *keeper, const struct ckpt_decision *d)
{
    const struct train_identity *id = keeper->identity;
    const char *dir = id->from_run_id ? id->restore : id->run_dir;
    char path[4160], *text = NULL;
    struct err unused;
    if (!dir)
        return NULL;
    snprintf(path, sizeof path, "%s/plan.yaml", dir);
    struct plan *was = plan_load(path, NULL, 0, NULL, &unused);
    if (was && plan_hash(was) == d->plan_hash)
        text = plan_difference(was, keeper->plan);
    plan_free(was);
    return text;
}

static int refuse_plan(const struct keeper *keeper, const struct ckpt_decision *d, struct err *err)
{
    char *difference = find_difference(keeper, d);
    if (difference)
        err_set(err,
                "restore: the checkpoint of step %lld was written with another plan (%.700s): use "
                "that plan, another run folder, or --restore none",
                (long long)d->position.step, difference);
    else
        err_set(err,
                "restore: the checkpoint of step %lld belongs to another plan (hash %016llx; "
                "this plan's model, data and training: %016llx): use that plan, another run "
                "folder, or --restore none",
                (long long)d->position.step, (unsigned long long)d->plan_hash,
                (unsigned long long)plan_hash(keeper->plan));
    free(difference);
    return -1;
}

static int check_decision(const struct keeper *keeper, const struct ckpt_decision *d,
                          struct err *err)
{
    uint64_t hash = plan_hash(keeper->plan);
    if (d->plan_hash == hash || imported(keeper))
        return 0;
    if (only_longer(keeper->plan, d))
        return err_set(
            err,
            "restore: the learning rate of this run ends at step %lld, that of this plan "
            "at %lld: to train on after step %lld give training.decay_steps=%lld",
            (long long)d->position.step, (long long)keeper->plan->training.decay_steps,
            (long long)d->position.step, (long long)d->position.step);
    return refuse_plan(keeper, d, err);
}

static int find_slices(struct keeper *keeper, struct err *err)
{
    char *own = ckpt_table(keeper->tensors, keeper->n_tensors, err);
    if (!own)
        return -1;
    int rv = reshard_open(&keeper->reshard, keeper->comm, keeper->mesh, &keeper->decision,
                          keeper->memory.slots, keeper->identity->node, own, err);
    free(own);
    return rv;
}

/* A run that has had checkpoints does not start afresh because none can be used. */
static int check_nothing_lost(const struct keeper *keeper, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    char what[600];
    if (keeper->wish.nothing || (!d->passed_over && !keeper->stepped_back))
        return 0;
    snprintf(what, sizeof what, "%s", d->report ? d->report : "");
    for (char *c = what; *c; c++)
        if (*c == '\n')
            *c = ' ';
    return err_set(err,
                   "restore: no committed checkpoint of run %s can be used: %s%sbring the missing "
                   "files back, or start afresh with --restore none",
                   keeper->wish.run_id, what,
                   keeper->stepped_back ? "those that are whole are damaged; " : "");
}

/* A decision that is ours, all of whose files are there: those that are not are rebuilt; where that
 * meets damaged ones, they are marked and it is decided anew. */
static int find_whole(struct keeper *keeper, struct err *err)
{
    struct ckpt_decision *d = &keeper->decision;
    int rounds = 0;
    for (int again = 1; again > 0;) {
        ckpt_decision_free(d);
        keeper->rebuilt = 0;
        if (decide(keeper, err) || check_wish(keeper, err))
            return -1;
        bool earlier = keeper->wish.epoch && d->written_epoch < keeper->wish.epoch;
        if (keeper_memory_find(keeper, err))
            return -1;
        if (earlier && !d->memory)
            ckpt_decision_free(d);
        if (!d->found)
            return 0;
        if (check_decision(keeper, d, err))
            return -1;
        if (d->memory)
            return 0;
        again = keeper_rebuild(keeper, err);
        keeper->stepped_back |= again > 0;
        if (again < 0)
            return -1;
        if (++rounds > ROUNDS_MOST)
            return err_set(err, "restore: %s holds more damaged files than can be sorted out",
                           keeper->wish.dir);
    }
    return 0;
}

/* Without files memory is all there may be. */
static int find_in_memory(struct keeper *keeper, struct err *err)
{
    if (keeper_memory_find(keeper, err))
        return -1;
    return keeper->decision.found ? check_decision(keeper, &keeper->decision, err) : 0;
}

static int find_files(struct keeper *keeper, struct err *err)
{
    return keeper_redundancy_find(keeper, err) || find_whole(keeper, err) ? -1 : 0;
}

int keeper_find(struct keeper *keeper, struct err *err)
{
    if (keeper->dir[0] ? find_files(keeper, err) : find_in_memory(keeper, err))
        return -1;
    if (!keeper->decision.found)
        return keeper->wish.epoch ? 0 : check_nothing_lost(keeper, err);
    return find_slices(keeper, err);
}

static bool step_back_on_disk(struct keeper *keeper)
{
    struct ckpt_decision *d = &keeper->decision;
    bool may = d->found;
    if (keeper->wish.exact)
        keeper->wish.step = d->position.step;
    /* Its files are well, or are as often as they are rebuilt, and it fails all the same. */
    if (may && ++keeper->rounds > keeper->mesh->world + d->world) {
        may = !keeper->wish.exact && d->position.step > 0;
        keeper->wish.step = d->position.step - 1;
        keeper->rounds = 0;
    }
    keeper->stepped_back = true;
    return may;
}

bool keeper_step_back(struct keeper *keeper)
{
    bool may = true;
    if (keeper->decision.memory)
        keeper_memory_step_back(keeper); /* to another slot, or to what is on disk */
    else
        may = step_back_on_disk(keeper);
    reshard_close(&keeper->reshard);
    ckpt_decision_free(&keeper->decision);
    keeper->damaged = false;
    keeper->damaged_file = -1;
    return may;
}

/* Of a decision that is of memory, what there was beside it. */
const struct ckpt_decision *keeper_on_disk(const struct keeper *keeper)
{
    return keeper->decision.memory ? &keeper->memory.recorded : &keeper->decision;
}

static int adopt_file(struct keeper *keeper, const struct ckpt_decision *d, struct err *err)
{
    if (ckpt_adopt(keeper->ckpt, d->record, err))
        return -1;
    if (keeper->decision.memory)
        ckpt_try(keeper->ckpt, keeper->decision.position.step);
    return 0;
}

int keeper_adopt(struct keeper *keeper, struct err *err)
{
    bool memory = keeper->decision.memory;
    const struct ckpt_decision *d = keeper_on_disk(keeper);
    if (!d->found)
        return 0;
    /* From another run it was only read. */
    if (strcmp(keeper->wish.run_id, keeper->identity->run_id))
        return 0;
    /* Who names it takes its mark away: the next start would pass it over again. */
    struct ckpt_mark own = {d->written_epoch, d->written_generation, d->position.step, 0};
    if (d->marked && keeper_mark(keeper, &own, 1, false, err))
        return -1;
    /* Of an earlier launch, beside a state in memory: it is only what may have to be gone back to.
     */
    if (d->written_epoch < keeper->wish.epoch)
        return adopt_file(keeper, d, err);
    keeper->committed = d->position.step;
    if (!memory || d->position.step == keeper->decision.position.step)
        keeper->saved = d->position.step;
    if (shared_has(keeper, d))
        keeper->shared.copied = keeper->shared.told = d->position.step;
    if (keeper->shared.drain && ckpt_drain_adopt(keeper->shared.drain, d->record, err))
        return -1;
    return adopt_file(keeper, d, err);
}

static int fill_whole(struct keeper *keeper, int number, struct err *err)
{
    struct ckpt_file *file;
    int rv = reshard_open_file(&keeper->reshard, number, &file, err);
    if (!rv)
        rv = ckpt_restore(keeper_filler(keeper), file, NULL, err);
    ckpt_file_close(file);
    keeper->damaged = rv != 0;
    keeper->damaged_file = number;
    return rv;
}

/* Of imported weights alone: what gets no piece is zero. */
static int plan_weights(struct keeper *keeper, struct err *err)
{
    struct reshard *r = &keeper->reshard;
    int n = keeper->n_tensors / KEEPER_PARTS;
    struct ckpt_tensor *list = calloc((size_t)n + 1, sizeof *list);
    if (!list)
        return err_set(err, "no memory to restore");
    for (int i = 0; i < n; i++)
        list[i] = keeper->tensors[i * KEEPER_PARTS];
    int rv = reshard_plan(r, list, n, err);
    for (int i = 0; i < r->n_pieces; i++)
        r->pieces[i].to *= KEEPER_PARTS;
    free(list);
    return rv;
}

static int plan_pieces(struct keeper *keeper, struct err *err)
{
    struct reshard *r = &keeper->reshard;
    if (imported(keeper) ? plan_weights(keeper, err)
                         : reshard_plan(r, keeper->tensors, keeper->n_tensors - 1, err))
        return -1;
    return reshard_order(r, keeper_filler(keeper), keeper->tensors, err);
}

int keeper_fill(struct keeper *keeper, struct keeper_start *start, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    const struct reshard_file *bad = reshard_damage(&keeper->reshard);
    int whole = keeper->reshard.whole[keeper->mesh->rank];
    keeper->damaged = bad != NULL;
    keeper->damaged_file = bad ? bad->number : -1;
    if (bad)
        return err_set(err, "%s", bad->text);
    start->position = d->position;
    if (d->report && *d->report)
        add_report(start, d->report);
    if (keeper->rebuilt)
        add_note(start, "%d of %d files were rebuilt from their groups", keeper->rebuilt, d->world);
    note_layout(keeper, start);
    if (whole >= 0 ? fill_whole(keeper, whole, err) : plan_pieces(keeper, err))
        return -1;
    start->restored = true;
    return 0;
}
