/* keeper_restore.c - decides on a checkpoint with all ranks, and brings each its file.
 *
 * A rank opens its file where it lies. If that is on another node, the lowest rank there sends it,
 * rank after rank in the same order everywhere, so nobody waits for somebody who waits. */
#include "train/keeper.h"

#include "drain.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SCAN_MAX_BYTES = 64 << 20 }; /* of one node's log: far more than retention leaves */
enum { PIECE_BYTES = 4 << 20 };     /* of a file on its way: bounds the sender's memory */
enum { FILE_TAG = 3 << 20 };        /* beside the tags of activations (execute.c) */
enum { NODE_BYTES = 256 };

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
    keeper->scanned_shared = !w->nothing && w->shared[0] && identity->rank == 0
                                 ? ckpt_scan(w->shared, CKPT_SHARED_NODE, w->run_id, err)
                                 : strdup("");
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
        return err_set(err, "restore: %s holds no committed checkpoint that is whole%s%s", w->dir,
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
    if (!blob || !*blob || !d->found || ckpt_decide(&blob, 1, d->position.step, &there, &unused))
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
        if (strcmp(p->node, CKPT_SHARED_NODE))
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
    int n = keeper->shared.alone ? 0 : spoken(blobs, keeper->mesh->world);
    void *first = blobs[n];
    if (shared && *shared)
        blobs[n++] = shared;
    int rv = ckpt_decide((const char *const *)blobs, n, keeper->wish.step, &keeper->decision, err);
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

/* ---- a file from another node ---- */

static int send_file(struct keeper *keeper, const struct ckpt_place *place, int to, struct err *err)
{
    int fd = open(place->path, O_RDONLY | O_CLOEXEC);
    char *piece = malloc(PIECE_BYTES);
    int rv = -1;
    if (fd < 0 || !piece) {
        err_set_errno(err, errno, "%s", place->path);
        goto done;
    }
    for (int64_t at = 0; at < place->bytes;) {
        int64_t left = place->bytes - at;
        size_t want = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        ssize_t got = pread(fd, piece, want, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != (ssize_t)want) {
            err_set_errno(err, got < 0 ? errno : EIO, "reading %s at %lld", place->path,
                          (long long)at);
            goto done;
        }
        if (comm_host_send(keeper->comm, piece, want, to, FILE_TAG, err))
            goto done;
        at += (int64_t)want;
    }
    rv = 0;
done:
    if (fd >= 0)
        close(fd);
    free(piece);
    return rv;
}

static void *receive_file(struct keeper *keeper, const struct ckpt_place *place, int from,
                          struct err *err)
{
    char *data = malloc((size_t)place->bytes);
    if (!data) {
        err_set(err, "no memory for a checkpoint file of %lld bytes", (long long)place->bytes);
        return NULL;
    }
    for (int64_t at = 0; at < place->bytes;) {
        int64_t left = place->bytes - at;
        size_t want = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        if (comm_host_recv(keeper->comm, data + at, want, from, FILE_TAG, err)) {
            free(data);
            return NULL;
        }
        at += (int64_t)want;
    }
    return data;
}

struct presence {
    char node[NODE_BYTES];
    int has; /* this rank's file can be opened where it runs */
};

static int sender_of(const struct presence *all, int world, const char *node)
{
    for (int i = 0; i < world; i++)
        if (!strcmp(all[i].node, node))
            return i;
    return -1;
}

/* Files that must travel do. */
static int move_files(struct keeper *keeper, const struct presence *all, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    int rank = keeper->mesh->rank;
    for (int to = 0; to < d->world; to++) {
        if (all[to].has)
            continue;
        int from = sender_of(all, d->world, d->places[to].node);
        if (from < 0)
            return err_set(err,
                           "restore: rank %d's file of step %lld lies on node %s (%s), which is "
                           "not part of this job",
                           to, (long long)d->position.step, d->places[to].node, d->places[to].path);
        if (rank == from && send_file(keeper, &d->places[to], to, err))
            return -1;
        if (rank == to && !(keeper->fetched = receive_file(keeper, &d->places[to], from, err)))
            return -1;
    }
    return 0;
}

static int fetch_file(struct keeper *keeper, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    const struct ckpt_place *mine = &d->places[keeper->mesh->rank];
    const char *node = keeper->identity->node;
    struct presence me = {0}, *all = calloc((size_t)d->world, sizeof *all);
    struct stat st;
    if (!all)
        return err_set(err, "no memory to restore");
    snprintf(me.node, sizeof me.node, "%s", node);
    /* Of the shared folder length and bytes are what counts, and they are checked when it is read:
     * what stat says may be old. */
    me.has = !strcmp(mine->node, CKPT_SHARED_NODE) ||
             (!stat(mine->path, &st) && st.st_size == mine->bytes);
    int rv = comm_host_all_gather(keeper->comm, &keeper->mesh->all, &me, sizeof me, all, err);
    if (!rv)
        rv = move_files(keeper, all, err);
    free(all);
    return rv;
}

/* ---- is it ours, and does it fit ---- */

static int read_layout(struct ckpt_file *file, int64_t layout[LAYOUT_WORDS], struct err *err)
{
    for (int i = 0; i < ckpt_file_count(file); i++) {
        struct ckpt_tensor t;
        ckpt_file_tensor(file, i, &t);
        if (!strcmp(t.name, KEEPER_LAYOUT_NAME) && t.dtype == CKPT_I64 && t.dims == 1 &&
            t.shape[0] == LAYOUT_WORDS)
            return ckpt_file_read(file, i, layout, err);
    }
    return err_set(err, "the checkpoint file has no tensor %s: it was not written by gtrain train",
                   KEEPER_LAYOUT_NAME);
}

static void layout_text(const int64_t layout[LAYOUT_WORDS], char *text, size_t size)
{
    snprintf(text, size, "tensor %lld, context %lld, expert %lld, pipeline %lld, data %lld",
             (long long)layout[MESH_TENSOR], (long long)layout[MESH_CONTEXT],
             (long long)layout[MESH_EXPERT], (long long)layout[MESH_PIPELINE],
             (long long)layout[MESH_DATA]);
}

static int check_layout(const struct keeper *keeper, const int64_t was[LAYOUT_WORDS],
                        struct keeper_start *start, struct err *err)
{
    if (memcmp(was, keeper->layout, LAYOUT_SIGNATURE * sizeof *was)) {
        char old[128], now[128];
        layout_text(was, old, sizeof old);
        layout_text(keeper->layout, now, sizeof now);
        return err_set(err,
                       "restore: the checkpoint was written with parallel degrees %s; the plan has "
                       "%s: use the same degrees, or --restore none",
                       old, now);
    }
    if (was[LAYOUT_SIGNATURE] != keeper->layout[LAYOUT_SIGNATURE])
        snprintf(start->note, sizeof start->note,
                 "the checkpoint was written by another arithmetic than this machine's (%s): "
                 "losses will not be bit for bit those of the run it continues",
                 kernels_signature(keeper->k));
    return 0;
}

static int check_decision(const struct keeper *keeper, const struct ckpt_decision *d,
                          struct err *err)
{
    uint64_t hash = plan_hash(keeper->plan);
    if (d->world != keeper->mesh->world)
        return err_set(err,
                       "restore: the checkpoint of step %lld was written by %d ranks; the plan's "
                       "degrees make %d: use the same degrees, or --restore none",
                       (long long)d->position.step, d->world, keeper->mesh->world);
    if (d->plan_hash != hash)
        return err_set(err,
                       "restore: the checkpoint of step %lld belongs to another plan (hash "
                       "%016llx; this plan's model, data and training: %016llx): use that plan, "
                       "another run folder, or --restore none",
                       (long long)d->position.step, (unsigned long long)d->plan_hash,
                       (unsigned long long)hash);
    return 0;
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

int keeper_find(struct keeper *keeper, struct err *err)
{
    if (!keeper->dir[0])
        return 0;
    if (decide(keeper, err) || check_wish(keeper, err))
        return -1;
    if (!keeper->decision.found)
        return check_nothing_lost(keeper, err);
    if (check_decision(keeper, &keeper->decision, err))
        return -1;
    return fetch_file(keeper, err);
}

/* First the same step from the shared folder, then an older one from anywhere. */
bool keeper_step_back(struct keeper *keeper)
{
    struct ckpt_decision *d = &keeper->decision;
    bool copy = !keeper->shared.alone && shared_has(keeper, d);
    bool may = d->found && (copy || (!keeper->wish.exact && d->position.step > 0));
    keeper->shared.alone = copy;
    keeper->wish.step = copy ? d->position.step : d->position.step - 1;
    keeper->stepped_back = true;
    ckpt_decision_free(d);
    *d = (struct ckpt_decision){0};
    keeper->damaged = false;
    free(keeper->fetched);
    keeper->fetched = NULL;
    return may;
}

/* The record's file, and no other: its digest stands for every byte. */
static int open_file(struct keeper *keeper, struct ckpt_file **file, struct err *err)
{
    const struct ckpt_place *place = &keeper->decision.places[keeper->mesh->rank];
    int rv = keeper->fetched
                 ? ckpt_file_open_memory(file, keeper->fetched, (size_t)place->bytes, err)
                 : ckpt_file_open(file, place->path, err);
    if (!rv && ckpt_file_digest(*file) != place->digest)
        rv = err_set(err, "%s is not the file that the commit record names", place->path);
    return rv;
}

int keeper_adopt(struct keeper *keeper, struct err *err)
{
    const struct ckpt_decision *d = &keeper->decision;
    if (!d->found)
        return 0;
    /* From another run it was only read. */
    if (strcmp(keeper->wish.run_id, keeper->identity->run_id))
        return 0;
    keeper->saved = keeper->committed = d->position.step;
    if (shared_has(keeper, d))
        keeper->shared.copied = keeper->shared.told = d->position.step;
    if (keeper->shared.drain && ckpt_drain_adopt(keeper->shared.drain, d->record, err))
        return -1;
    return ckpt_adopt(keeper->ckpt, d->record, err);
}

static int fill_from(struct keeper *keeper, struct ckpt_file *file, struct keeper_start *start,
                     struct err *err)
{
    int64_t layout[LAYOUT_WORDS];
    keeper->damaged = true; /* until its bytes have proved to be right */
    if (read_layout(file, layout, err))
        return -1;
    keeper->damaged = false;
    if (check_layout(keeper, layout, start, err))
        return -1;
    keeper->damaged = ckpt_restore(keeper->ckpt, file, &start->position, err) != 0;
    return keeper->damaged ? -1 : 0;
}

int keeper_fill(struct keeper *keeper, struct keeper_start *start, struct err *err)
{
    const char *report = keeper->decision.report;
    struct ckpt_file *file = NULL;
    int rv = open_file(keeper, &file, err);
    keeper->damaged = rv != 0;
    if (report && *report)
        snprintf(start->note, sizeof start->note, "%s", report);
    if (!rv)
        rv = fill_from(keeper, file, start, err);
    start->restored = !rv;
    if (file)
        ckpt_file_close(file);
    free(keeper->fetched);
    keeper->fetched = NULL;
    return rv;
}
