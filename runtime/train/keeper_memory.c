/* keeper_memory.c - see keeper_memory.h. */
#include "train/keeper.h"

#include "base/clock.h"
#include "train/second_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCAN_MAX_BYTES = 16384 }; /* a rank's slots, a line each */

/* ---- opening ---- */

/* In the mirror's thread, or in keeper_memory_join. */
static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct keeper *keeper = arg;
    return keeper_copy_out(keeper, &keeper->memory.snapshot, index, host, err);
}

static const void *where(void *arg, int index)
{
    return keeper_where(arg, index);
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    (void)arg, (void)index, (void)at, (void)host, (void)bytes;
    return err_set(err, "a snapshot is read like a file");
}

static int flush(void *arg, struct err *err)
{
    struct keeper *keeper = arg;
    return snapshot_sync(&keeper->memory.snapshot,
                         clock_ms() + keeper->plan->resilience.comm_timeout_ms, err);
}

/* Ranks that are the same number modulo this are replicas. */
static int state_parts(const struct keeper *keeper)
{
    return keeper->identity->world / keeper->plan->parallel.data;
}

int keeper_memory_open(struct keeper *keeper, struct err *err)
{
    const struct train_identity *id = keeper->identity;
    struct keeper_memory *m = &keeper->memory;
    m->partner = m->ward = -1;
    if (!keeper->plan->checkpoint.snapshots || !id->memory)
        return 0;
    struct ckpt_memory_options options = {.fds = id->memory,
                                          .where = where,
                                          .node = id->node,
                                          .run_id = id->run_id,
                                          .rank = id->rank,
                                          .world = id->world,
                                          .epoch = id->epoch,
                                          .generation = id->generation,
                                          .plan_hash = plan_hash(keeper->plan),
                                          .parts = state_parts(keeper)};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .flush = flush, .arg = keeper};
    if (snapshot_open(&m->snapshot, keeper->k, err) ||
        ckpt_memory_open(&m->slots, &options, keeper->tensors, keeper->n_tensors, &io, err))
        return -1;
    return 0;
}

void keeper_memory_close(struct keeper *keeper, bool orderly)
{
    struct keeper_memory *m = &keeper->memory;
    int64_t deadline = clock_ms();
    if (keeper->plan) /* it was opened */
        deadline += keeper->plan->resilience.comm_timeout_ms;
    mirror_close(&m->mirror, orderly, deadline);
    side_close(&m->side);
    if (m->snapshot.k) {
        flush(keeper, NULL);
        snapshot_close(&m->snapshot);
    }
    if (m->filler)
        ckpt_close(m->filler, 0);
    if (m->forget && m->slots)
        ckpt_memory_forget(m->slots);
    ckpt_memory_close(m->slots);
    ckpt_decision_free(&m->recorded);
    *m = (struct keeper_memory){.partner = -1, .ward = -1};
}

/* ---- restore ---- */

static int decide(struct keeper *keeper, struct ckpt_decision *out, struct err *err)
{
    int world = keeper->mesh->world, rv = -1;
    void **scans = calloc((size_t)world, sizeof *scans);
    size_t *lengths = calloc((size_t)world, sizeof *lengths);
    char *mine = keeper->memory.slots ? ckpt_memory_scan(keeper->memory.slots, err) : strdup("");
    if (!scans || !lengths || !mine)
        err_set(err, "no memory to look for snapshots");
    else if (!comm_host_all_gatherv(keeper->comm, &keeper->mesh->all, mine, strlen(mine),
                                    SCAN_MAX_BYTES, scans, lengths, err))
        rv = ckpt_memory_decide((const char *const *)scans, world, out, err);
    for (int i = 0; scans && i < world; i++)
        free(scans[i]);
    free(scans);
    free(lengths);
    free(mine);
    return rv;
}

static struct ckpt_key key_of(const struct ckpt_decision *d)
{
    return (struct ckpt_key){d->written_epoch, d->written_generation, d->position.step};
}

/* Only a launch's own later generations find anything: with the agents the memory goes. An older
 * step that is asked for (wish.step) is older than what memory has. */
static bool may_look(const struct keeper *keeper)
{
    return keeper->plan->checkpoint.snapshots && keeper->identity->generation > 1 &&
           !keeper->widened && keeper->wish.step < 0 && keeper->memory.retries <= CKPT_MEMORY_SLOTS;
}

int keeper_memory_find(struct keeper *keeper, struct err *err)
{
    struct ckpt_decision found, *d = &keeper->decision;
    ckpt_decision_free(&keeper->memory.recorded);
    if (!may_look(keeper))
        return 0;
    if (decide(keeper, &found, err))
        return -1;
    struct ckpt_key in_memory = key_of(&found), on_disk = key_of(d);
    if (!found.found || (d->found && key_compare(&in_memory, &on_disk) < 0)) {
        ckpt_decision_free(&found);
        return 0;
    }
    keeper->memory.recorded = *d;
    *d = found;
    return 0;
}

void keeper_memory_step_back(struct keeper *keeper)
{
    struct keeper_memory *m = &keeper->memory;
    m->retries++;
    if (m->slots)
        ckpt_memory_verify(m->slots);
    ckpt_decision_free(&m->recorded);
    m->recorded = (struct ckpt_decision){0};
}

int keeper_memory_fill(struct keeper *keeper, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    struct ckpt_io io = keeper_io(keeper);
    if (keeper->ckpt || m->filler || !keeper->decision.found)
        return 0;
    return ckpt_open_filler(&m->filler, keeper->tensors, keeper->n_tensors, &io, err);
}

/* ---- partners and room ---- */

/* What all ranks of a node need, and the least that one of them sees there. */
struct node_need {
    int64_t live, copy, own, wards, lacks, available;
    const char *why;
    int ranks;
};

static int refuse_node(const char *node, const struct node_need *n, struct err *err)
{
    char slots[128] = "";
    const char *advice = "";
    if (n->own) {
        snprintf(slots, sizeof slots,
                 ", %.3f GB for two copies in memory and %.3f GB for two of another node's",
                 (double)n->own / 1e9, (double)n->wards / 1e9);
        advice = ", or checkpoint.snapshots=0 and do the work since the newest checkpoint again "
                 "after a failure";
    }
    return err_set(
        err,
        "checkpoints do not fit into the memory of node %s: its %d rank%s hold%s %.3f GB "
        "of training state and need%s %.3f GB for a copy that files are written "
        "from%s, of which %.3f GB are still to be taken; %.3f GB are free (%s): use more "
        "nodes, so that each holds less%s",
        node, n->ranks, n->ranks == 1 ? "" : "s", n->ranks == 1 ? "s" : "", (double)n->live / 1e9,
        n->ranks == 1 ? "s" : "", (double)n->copy / 1e9, slots, (double)n->lacks / 1e9,
        (double)n->available / 1e9, n->why, advice);
}

int keeper_memory_fits(const struct memory_need *ranks, int world, const char **where,
                       struct err *err)
{
    for (int first = 0; first < world; first++) {
        const struct memory_need *f = &ranks[first];
        struct node_need node = {.available = f->available, .why = f->why};
        for (int r = 0; r < world; r++) {
            if (strcmp(ranks[r].node, f->node))
                continue;
            if (r < first)
                break; /* this node has been looked at */
            node.live += ranks[r].live;
            node.copy += ranks[r].copy;
            node.own += 2 * ranks[r].image;
            node.wards += 2 * ranks[r].ward;
            node.lacks += ranks[r].lacks;
            if (ranks[r].available < node.available) {
                node.available = ranks[r].available;
                node.why = ranks[r].why;
            }
            node.ranks++;
        }
        if (!node.ranks || node.lacks <= node.available)
            continue;
        *where = f->node;
        return refuse_node(f->node, &node, err);
    }
    return 0;
}

/* Where replicas may be lost for good (resilience.shrink) the last one needs its copies at once,
 * and the memory for them. */
static int find_partner(struct keeper *keeper, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    int world = keeper->mesh->world;
    int parts = keeper->plan->resilience.shrink ? world : state_parts(keeper);
    if (!m->side.comm)
        return 0;
    if (second_copy_find(keeper->comm, keeper->mesh, keeper->identity, parts, &m->partner, &m->ward,
                         err))
        return -1;
    int to[2] = {m->partner, m->ward}, from[2] = {m->ward, m->partner};
    return side_connect(&m->side, keeper->comm, to, from, m->partner >= 0 || m->ward >= 0 ? 2 : 0,
                        keeper->plan->resilience.comm_timeout_ms, err);
}

/* Where one rank has no memory, nobody takes snapshots. images: of all ranks. */
static int agree(struct keeper *keeper, int64_t *images, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    int64_t mine = m->slots ? ckpt_memory_bytes(m->slots) : 0;
    if (comm_host_all_gather(keeper->comm, &keeper->mesh->all, &mine, sizeof mine, images, err))
        return -1;
    for (int i = 0; i < keeper->mesh->world; i++) {
        if (images[i])
            continue;
        ckpt_memory_close(m->slots);
        m->slots = NULL;
    }
    return 0;
}

/* Weights, moments and gradients. */
static int64_t live_bytes(const struct keeper *keeper)
{
    const struct kbuf *grads = &keeper->state->grads;
    return (int64_t)(grads->count * kdtype_bytes(grads->dtype)) * (KEEPER_PARTS + 1);
}

static bool writes_files(const struct keeper *keeper)
{
    return keeper->ckpt && keeper->plan->checkpoint.every;
}

/* Takes nothing: no rank may before all have seen what is free. */
static int check_room(struct keeper *keeper, const int64_t *images, bool *common, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    int world = keeper->mesh->world;
    struct memory_need mine, *ranks = calloc((size_t)world, sizeof *ranks);
    const char *where = "";
    if (!ranks)
        return err_set(err, "no memory to plan checkpoints");
    memset(&mine, 0, sizeof mine); /* it travels whole */
    snprintf(mine.node, sizeof mine.node, "%s", keeper->identity->node);
    mine.image = images[keeper->mesh->rank];
    mine.ward = m->ward >= 0 ? images[m->ward] : 0;
    mine.live = live_bytes(keeper);
    mine.copy = writes_files(keeper) ? ckpt_buffer_bytes(keeper->ckpt) : 0;
    mine.lacks = mine.copy + (m->slots ? ckpt_memory_lacks(m->slots, mine.ward) : 0);
    mine.available = memory_room("/proc", "/sys/fs/cgroup", mine.why);
    int rv = comm_host_all_gather(keeper->comm, &keeper->mesh->all, &mine, sizeof mine, ranks, err);
    if (!rv) {
        rv = keeper_memory_fits(ranks, world, &where, err);
        /* The first generation's nodes are those that were asked for. */
        *common = rv && keeper->identity->generation == 1;
        m->unfit = rv && !*common && !strcmp(where, keeper->identity->node);
    }
    free(ranks);
    return rv ? -1 : 0;
}

static int take_room(struct keeper *keeper, const int64_t *images, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    if (m->slots && ckpt_memory_take(m->slots, m->ward >= 0 ? images[m->ward] : 0, err))
        return -1;
    return writes_files(keeper) ? ckpt_buffer_take(keeper->ckpt, err) : 0;
}

static int open_mirror(struct keeper *keeper, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    struct mirror_options options = {.memory = m->slots,
                                     .comm = side_take(&m->side),
                                     .to = m->partner,
                                     .from = m->ward,
                                     .note = m->note,
                                     .arg = m->note_arg,
                                     .epoch = keeper->identity->epoch,
                                     .generation = keeper->identity->generation};
    return mirror_open(&m->mirror, &options, err);
}

static int start_slots(struct keeper *keeper, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    if (keeper->decision.memory) {
        struct ckpt_key key = key_of(&keeper->decision);
        ckpt_memory_keep(m->slots, &key);
    }
    return open_mirror(keeper, err);
}

int keeper_memory_start(struct keeper *keeper, bool *common, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    bool snapshots = keeper->plan->checkpoint.snapshots;
    if (!snapshots && !writes_files(keeper))
        return 0;
    int64_t *images = calloc((size_t)keeper->mesh->world, sizeof *images);
    int rv = images ? 0 : err_set(err, "no memory to plan checkpoints");
    if (!rv && snapshots)
        rv = agree(keeper, images, err);
    if (!rv && m->slots)
        rv = find_partner(keeper, err);
    if (!rv && (m->slots || writes_files(keeper)))
        rv = check_room(keeper, images, common, err) || take_room(keeper, images, err) ? -1 : 0;
    if (!rv && m->slots)
        rv = start_slots(keeper, err);
    free(images);
    return rv;
}

/* ---- while training ---- */

static int begin(struct keeper *keeper, const struct ckpt_key *key, struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    m->newest = key->step;
    if (!m->slots)
        return 0;
    snapshot_begin(&m->snapshot, keeper->stream);
    if (mirror_begin(&m->mirror, key, key->step * keeper->plan->training.global_batch, err))
        return err_prefix(err, "snapshot of step %lld", (long long)key->step);
    return 0;
}

int keeper_memory_begin(struct keeper *keeper, int64_t step, struct err *err)
{
    struct ckpt_key key = {keeper->identity->epoch, keeper->identity->generation, step};
    return begin(keeper, &key, err);
}

int keeper_memory_begin_restored(struct keeper *keeper, int64_t step, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    keeper->memory.newest = step;
    if (!d->found)
        return 0; /* first weights can be made again */
    if (!d->memory || !keeper->memory.same_cut)
        return keeper_memory_begin(keeper, step, err);
    struct ckpt_key key = key_of(d); /* where it is already it need not be copied */
    return begin(keeper, &key, err);
}

int keeper_memory_join(struct keeper *keeper, struct kstream *stream, int64_t *stall_ns,
                       struct err *err)
{
    struct keeper_memory *m = &keeper->memory;
    bool begun = m->mirror.begun;
    int64_t deadline = clock_ms() + keeper->plan->resilience.comm_timeout_ms;
    if (mirror_join(&m->mirror, deadline, stall_ns, err))
        return err_prefix(err, "snapshot of step %lld", (long long)m->mirror.key.step);
    if (begun)
        snapshot_join(&m->snapshot, stream);
    m->joined = begun;
    return 0;
}

double keeper_memory_cost(struct keeper *keeper)
{
    double cost_s = (double)keeper->memory.mirror.cost_ns * 1e-9;
    keeper->memory.mirror.cost_ns = 0;
    return cost_s;
}

void keeper_memory_confirm(struct keeper *keeper)
{
    struct keeper_memory *m = &keeper->memory;
    if (m->joined)
        ckpt_memory_confirm(m->slots, &m->mirror.key, m->ward);
    m->joined = false;
}

bool keeper_memory_lost_peers(const struct keeper *keeper)
{
    const struct comm *comm = keeper->memory.mirror.o.comm;
    return comm && comm_failed(comm);
}
