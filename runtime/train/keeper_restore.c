/* keeper_restore.c - decides on a checkpoint with all ranks, and brings each its file.
 *
 * A rank opens its file where it lies. If that is on another node, the lowest rank there sends it,
 * rank after rank in the same order everywhere, so nobody waits for somebody who waits. */
#include "train/keeper.h"

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

static int read_path(struct keeper_wish *w, const char *path, struct err *err)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= sizeof w->dir)
        return err_set(err, "restore: the path %.64s... is too long", path);
    memcpy(w->dir, path, length);
    w->dir[length] = 0;
    const char *last = strrchr(w->dir, '/');
    if (snprintf(w->run_id, sizeof w->run_id, "%s", last + 1) >= (int)sizeof w->run_id || !last[1])
        return err_set(err, "restore: %s is not a run's checkpoint folder, whose name is a run id",
                       path);
    return 0;
}

static int read_wish(struct keeper *keeper, struct err *err)
{
    const char *restore = keeper->identity->restore ? keeper->identity->restore : "";
    struct keeper_wish *w = &keeper->wish;
    *w = (struct keeper_wish){.step = -1, .nothing = !strcmp(restore, "none")};
    snprintf(w->dir, sizeof w->dir, "%s", keeper->dir);
    snprintf(w->run_id, sizeof w->run_id, "%s", keeper->identity->run_id);
    if (w->nothing || !*restore || !strcmp(restore, "latest"))
        return 0;
    w->exact = true;
    if (strchr(restore, '/'))
        return read_path(w, restore, err);
    char *end;
    errno = 0;
    w->step = strtoll(restore, &end, 10);
    if (*end || errno || w->step < 0)
        return err_set(err,
                       "restore is '%s': use latest, none, a step, or the path of a run's "
                       "checkpoint folder (with a '/')",
                       restore);
    return 0;
}

/* One rank of a node speaks for it. */
int keeper_scan(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    if (read_wish(keeper, err))
        return -1;
    if (!keeper->wish.nothing && identity->local_rank == 0) {
        keeper->scanned = ckpt_scan(keeper->wish.dir, identity->node, keeper->wish.run_id, err);
        return keeper->scanned ? 0 : -1;
    }
    keeper->scanned = strdup("");
    return keeper->scanned ? 0 : err_set(err, "no memory");
}

static int check_wish(const struct keeper *keeper, struct err *err)
{
    const struct keeper_wish *w = &keeper->wish;
    const struct ckpt_decision *d = &keeper->decision;
    if (!w->exact || (d->found && (w->step < 0 || d->position.step == w->step)))
        return 0;
    if (w->step < 0)
        return err_set(err, "restore: %s holds no committed checkpoint that is whole%s%s", w->dir,
                       d->report && *d->report ? ": " : "", d->report ? d->report : "");
    if (!d->found)
        return err_set(err, "restore: %s holds no committed checkpoint of step %lld or before",
                       w->dir, (long long)w->step);
    return err_set(
        err,
        "restore: %s holds no committed checkpoint of step %lld; the newest before it is "
        "of step %lld",
        w->dir, (long long)w->step, (long long)d->position.step);
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

static int decide(struct keeper *keeper, struct err *err)
{
    int world = keeper->mesh->world, rv = -1;
    void **blobs = calloc((size_t)world, sizeof *blobs);
    size_t *lengths = calloc((size_t)world, sizeof *lengths);
    if (!blobs || !lengths)
        err_set(err, "no memory to look for checkpoints");
    else if (!comm_host_all_gatherv(keeper->comm, &keeper->mesh->all, keeper->scanned,
                                    strlen(keeper->scanned), SCAN_MAX_BYTES, blobs, lengths, err))
        rv = ckpt_decide((const char *const *)blobs, spoken(blobs, world), keeper->wish.step,
                         &keeper->decision, err);
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
    me.has = !strcmp(mine->node, node) && !stat(mine->path, &st) && st.st_size == mine->bytes;
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

int keeper_find(struct keeper *keeper, struct err *err)
{
    if (!keeper->plan->checkpoint.local || keeper->wish.nothing)
        return 0;
    if (decide(keeper, err) || check_wish(keeper, err))
        return -1;
    if (!keeper->decision.found)
        return 0;
    if (check_decision(keeper, &keeper->decision, err))
        return -1;
    return fetch_file(keeper, err);
}

bool keeper_step_back(struct keeper *keeper)
{
    bool may = keeper->decision.found && !keeper->wish.exact && keeper->decision.position.step > 0;
    keeper->wish.step = keeper->decision.position.step - 1;
    ckpt_decision_free(&keeper->decision);
    keeper->decision = (struct ckpt_decision){0};
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
    keeper->saved = d->position.step;
    /* From another run it was only read. */
    if (strcmp(keeper->wish.run_id, keeper->identity->run_id))
        return 0;
    keeper->committed = d->position.step;
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
