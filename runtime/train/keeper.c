/* keeper.c - opens, commits and closes; keeper_save.c copies the state out and in, keeper_restore.c
 * finds and reads checkpoints. See keeper.h. */
#include "train/keeper.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLAIM_MAX_BYTES = 65536 }; /* a claim is one line: node, path, sizes */

/* FNV-1a: only told apart, never trusted. */
static int64_t hash_text(const char *text)
{
    uint64_t h = 1469598103934665603u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return (int64_t)(h >> 1);
}

static int open_writer(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    const struct plan_checkpoint *c = &keeper->plan->checkpoint;
    struct ckpt_options options = {
        .dir = keeper->dir,
        .node = identity->node,
        .run_id = identity->run_id,
        .rank = identity->rank,
        .world = identity->world,
        .epoch = identity->epoch,
        .generation = identity->generation,
        .plan_hash = plan_hash(keeper->plan),
        .keep = c->keep,
        .ahead = plan_files_ahead(&keeper->plan->checkpoint),
        .queue_depth = c->queue_depth,
        .block_bytes = c->block_bytes,
        .replicated = true,
        .holds = keeper->shared.dir[0] != 0,
        .parity_bytes = keeper->encode.file_bytes,
        .wards = keeper->partner.from >= 0,
        .ward = keeper->partner.from,
        .ward_bytes = keeper->partner.file_bytes,
        .leader = identity->local_rank == 0,
    };
    struct ckpt_io io = keeper_io(keeper);
    return ckpt_open(&keeper->ckpt, &options, keeper->tensors, keeper->n_tensors, &io, err);
}

static int join_path(char *out, size_t size, const char *a, const char *b, struct err *err)
{
    if (snprintf(out, size, "%s/%s", a, b) < (int)size)
        return 0;
    return err_set(err, "checkpoint folder: the path %.64s... is too long", a);
}

/* A relative checkpoint.shared counts from the run folder. */
static int set_shared_root(struct keeper *keeper, struct err *err)
{
    const char *shared = keeper->plan->checkpoint.shared, *run_dir = keeper->identity->run_dir;
    struct keeper_shared *s = &keeper->shared;
    if (*shared != '/' && !run_dir)
        return err_set(err,
                       "checkpoint.shared is %.200s, which counts from the run folder, but there "
                       "is none here: use an absolute path",
                       shared);
    if (*shared != '/')
        return join_path(s->root, sizeof s->root, run_dir, shared, err);
    if (snprintf(s->root, sizeof s->root, "%s", shared) >= (int)sizeof s->root)
        return err_set(err, "checkpoint.shared: the path %.64s... is too long", shared);
    return 0;
}

static int set_dirs(struct keeper *keeper, struct err *err)
{
    const struct plan_checkpoint *c = &keeper->plan->checkpoint;
    const char *run_id = keeper->identity->run_id;
    struct keeper_shared *s = &keeper->shared;
    if (c->shared && set_shared_root(keeper, err))
        return -1;
    if (!c->local)
        return join_path(keeper->dir, sizeof keeper->dir, s->root, run_id, err);
    if (c->shared && join_path(s->dir, sizeof s->dir, s->root, run_id, err))
        return -1;
    return join_path(keeper->dir, sizeof keeper->dir, c->local, run_id, err);
}

int keeper_open(struct keeper *keeper, const struct plan *plan,
                const struct train_identity *identity, struct kernels *k, struct comm *comm,
                const struct mesh *mesh, struct state *state, struct kstream *stream,
                int64_t committed, struct err *err)
{
    *keeper =
        (struct keeper){.memory = keeper->memory,
                        .side = keeper->side,
                        .plan = plan,
                        .k = k,
                        .comm = comm,
                        .mesh = mesh,
                        .state = state,
                        .stream = stream,
                        .identity = identity,
                        .shared = {.used = committed >= 0, .flight = -1, .copied = -1, .told = -1},
                        .restoring = true,
                        .partner = {.to = -1, .from = -1},
                        .damaged_file = -1,
                        .troubled = -1,
                        .committed = -1,
                        .saved = -1};
    for (int axis = 0; axis < MESH_AXES; axis++)
        keeper->layout[axis] = mesh->degree[axis];
    keeper->layout[LAYOUT_SIGNATURE] = hash_text(kernels_signature(k));
    keeper->wish.step = -1;
    if (state_table(keeper->state, &keeper->tensors, &keeper->n_tensors, &keeper->names, err) ||
        keeper_memory_open(keeper, err))
        return -1;
    if (!plan->checkpoint.local && !plan->checkpoint.shared)
        return keeper_refuse_wish(keeper, err);
    if (snapshot_open(&keeper->snapshot, k, err) || set_dirs(keeper, err) ||
        keeper_drain_make(keeper, err) || keeper_read_wish(keeper, err))
        return -1;
    return keeper_scan(keeper, err);
}

static int open_files(struct keeper *keeper, struct err *err)
{
    if (!keeper->dir[0])
        return 0;
    if (!keeper->ckpt && (keeper_drain_see(keeper, err) || open_writer(keeper, err)))
        return -1;
    if (partner_open(&keeper->partner, keeper->dir, keeper->plan->resilience.comm_timeout_ms,
                     err) ||
        encode_open(&keeper->encode, keeper->dir, plan_hash(keeper->plan), err))
        return -1;
    if (keeper->shared.dir[0] && !keeper->shared.drain && keeper_drain_open(keeper, err))
        return -1;
    return 0;
}

struct ckpt *keeper_filler(const struct keeper *keeper)
{
    return keeper->ckpt ? keeper->ckpt : keeper->memory.filler;
}

int keeper_restore(struct keeper *keeper, struct keeper_start *start, struct err *err)
{
    *start = (struct keeper_start){0};
    if (open_files(keeper, err) || keeper_memory_fill(keeper, err))
        return -1;
    return keeper->decision.found ? keeper_fill(keeper, start, err) : 0;
}

int keeper_move(struct keeper *keeper, struct err *err)
{
    if (!keeper->decision.found)
        return 0;
    keeper->memory.same_cut = reshard_same_cut(&keeper->reshard);
    int rv = reshard_move(&keeper->reshard, keeper_filler(keeper), err);
    keeper->damaged = keeper->reshard.damaged;
    keeper->damaged_file = keeper->reshard.damaged_file;
    reshard_close(&keeper->reshard);
    return rv;
}

int keeper_finished(struct keeper *keeper, int64_t *step, struct err *err)
{
    int64_t copied, encoded;
    *step = -1;
    if (keeper->ckpt && ckpt_finished(keeper->ckpt, step, err))
        return -1;
    if (keeper->carrier.comm && background_check(&keeper->carrier, err))
        return err_prefix(err, "carrying a checkpoint to other nodes");
    if (keeper->encode.writer) {
        if (ckpt_parity_finished(keeper->encode.writer, &encoded, err))
            return err_prefix(err, "parity of its group's checkpoint");
        if (encoded < *step)
            *step = encoded;
    }
    if (!keeper->partner.copy)
        return 0;
    if (ckpt_copy_finished(keeper->partner.copy, &copied, err))
        return err_prefix(err, "the copy of rank %d's checkpoint", keeper->partner.from);
    if (copied < *step)
        *step = copied;
    return 0;
}

bool keeper_degraded(const struct keeper *keeper)
{
    return (keeper->partner.to >= 0 || keeper->encode.identity) && keeper->identity->generation > 1;
}

int keeper_commit(struct keeper *keeper, int64_t durable, bool *committed, struct err *err)
{
    *committed = false;
    if (!keeper->ckpt || durable < 0 || durable <= keeper->committed)
        return 0;
    int world = keeper->mesh->world, rv = -1;
    void **claims = calloc((size_t)world, sizeof *claims);
    size_t *lengths = calloc((size_t)world, sizeof *lengths);
    char *claim = keeper_claim(keeper, durable, err), *record = NULL;
    if (!claims || !lengths)
        err_set(err, "no memory for the claims of %d ranks", world);
    if (!claims || !lengths || !claim)
        goto done;
    if (comm_host_all_gatherv(keeper->comm, &keeper->mesh->all, claim, strlen(claim),
                              CLAIM_MAX_BYTES, claims, lengths, err))
        goto done;
    record = ckpt_record((const char *const *)claims, world, err);
    if (!record || ckpt_commit(keeper->ckpt, durable, record, err))
        goto done;
    keeper->committed = durable;
    if (keeper->decision.found && durable - keeper->decision.position.step <= CKPT_TRIAL_STEPS &&
        keeper->n_trial_commits < CKPT_TRIAL_STEPS)
        keeper->trial_commits[keeper->n_trial_commits++] = durable;
    *committed = true;
    rv = keeper_drain_committed(keeper, record, err);
    record = NULL;
done:
    for (int i = 0; claims && i < world; i++)
        free(claims[i]);
    free(claims);
    free(lengths);
    free(claim);
    free(record);
    return rv;
}

/* The step whose file has to be committed before another is begun; -1: none. */
static int64_t oldest_ahead(const struct keeper *keeper)
{
    int ahead = plan_files_ahead(&keeper->plan->checkpoint);
    int64_t step = -1;
    if (keeper->n_saves > ahead)
        step = keeper->saves[(keeper->n_saves - 1 - ahead) % KEEPER_SAVES];
    return keeper->ckpt && step > keeper->committed ? step : -1;
}

/* For the files that are being written, and what is made of them on other nodes. */
static int wait_files(struct keeper *keeper, struct err *err)
{
    int64_t patience_ms = keeper->plan->resilience.comm_timeout_ms;
    if (ckpt_wait(keeper->ckpt, clock_ms() + patience_ms, err) ||
        keeper_redundancy_settle(keeper, err))
        return -1;
    int64_t deadline = clock_ms() + patience_ms; /* the way there took what it took */
    return (keeper->partner.copy && ckpt_copy_wait(keeper->partner.copy, deadline, err)) ||
                   (keeper->encode.writer && ckpt_parity_wait(keeper->encode.writer, deadline, err))
               ? -1
               : 0;
}

bool keeper_full(const struct keeper *keeper, int64_t collected)
{
    return oldest_ahead(keeper) > collected;
}

static int commit_oldest(struct keeper *keeper, int64_t *committed, struct err *err)
{
    int64_t target = oldest_ahead(keeper), step;
    bool done;
    if (target < 0)
        return 0;
    if (keeper_finished(keeper, &step, err) ||
        (step < target && (wait_files(keeper, err) || keeper_finished(keeper, &step, err))))
        return -1;
    if (step < target)
        return err_set(err, "the checkpoint of step %lld was not written", (long long)target);
    if (keeper_commit(keeper, target, &done, err))
        return -1;
    *committed = target;
    return 0;
}

int keeper_make_room(struct keeper *keeper, int64_t *committed, struct err *err)
{
    int64_t start = clock_ns();
    *committed = -1;
    int rv = commit_oldest(keeper, committed, err);
    keeper->settle_ns = clock_ns() - start;
    return rv;
}

int keeper_flush(struct keeper *keeper, bool *committed, struct err *err)
{
    *committed = false;
    if (!keeper->ckpt || keeper->saved <= keeper->committed)
        return 0;
    int64_t step, stall_ns;
    if (keeper_save_join(keeper, keeper->stream, &stall_ns, err) || wait_files(keeper, err) ||
        keeper_finished(keeper, &step, err))
        return -1;
    if (step != keeper->saved)
        return err_set(err, "the checkpoint of step %lld was not written",
                       (long long)keeper->saved);
    if (comm_barrier(keeper->comm, &keeper->mesh->all, err))
        return -1;
    return keeper_commit(keeper, keeper->saved, committed, err);
}

void keeper_close(struct keeper *keeper, bool orderly)
{
    keeper_memory_close(keeper, orderly);
    keeper_redundancy_close(keeper, orderly);
    keeper_drain_close(keeper); /* first: it reads what the other may drop */
    if (keeper->ckpt)
        ckpt_close(keeper->ckpt,
                   orderly ? clock_ms() + keeper->plan->resilience.comm_timeout_ms : 0);
    snapshot_close(&keeper->snapshot);
    ckpt_decision_free(&keeper->decision);
    free(keeper->scanned);
    free(keeper->scanned_shared);
    reshard_close(&keeper->reshard);
    free(keeper->tensors);
    free(keeper->names);
    *keeper = (struct keeper){.shared = {.flight = -1, .copied = -1, .told = -1},
                              .partner = {.to = -1, .from = -1},
                              .damaged_file = -1,
                              .troubled = -1,
                              .committed = -1,
                              .saved = -1};
}
