/* keeper_drain.c - the shared tier: which commits are copied there, and when a copy counts.
 *
 * One checkpoint at a time is on its way, the same on all ranks: a copy is started by all at the
 * same commit, and over for all at the same step, when the tally says that no rank is still at it.
 * So what all have needs no exchange of its own, and a slow shared folder delays only the next
 * copy: one that falls due meanwhile is owed, and then of the commit that is the newest by then. */
#include "train/keeper.h"

#include "base/clock.h"
#include "drain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SEE_MS = 90000,   /* a node sees what another made: attribute caches hold for a minute */
    ROUND_MS = 500,   /* between two questions to all ranks while all wait for the last copy */
    PAD_BYTES = 8192, /* of a tensor in a file: alignment, its part of the header */
};

/* A later generation does without the folder where it must, as the nodes have their own: copies
 * fail until it is there (drain.h). */
static bool later(const struct keeper *keeper)
{
    return keeper->identity->generation > 1 && keeper->shared.dir[0];
}

/* Rank 0: the run has used it. A generation that ended at once need not have made it. */
static bool used_before(const struct keeper *keeper)
{
    return later(keeper) && keeper->shared.used;
}

int keeper_drain_make(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    if (!keeper->shared.root[0])
        return 0;
    if (!strcmp(identity->node, CKPT_SHARED_NODE))
        return err_set(err,
                       "checkpoint.shared: a node is called '%s', which is what records call "
                       "the shared folder: give the node another name",
                       CKPT_SHARED_NODE);
    return identity->rank == 0 && !used_before(keeper)
               ? ckpt_shared_make(keeper->shared.root, identity->run_id, err)
               : 0;
}

int keeper_drain_see(struct keeper *keeper, struct err *err)
{
    const char *dir = keeper->shared.dir[0] ? keeper->shared.dir : keeper->dir;
    if (!keeper->shared.root[0] || later(keeper))
        return 0;
    return ckpt_shared_see(dir, clock_ms() + SEE_MS, err);
}

char *keeper_drain_scan(struct keeper *keeper, struct err *err)
{
    const struct keeper_wish *w = &keeper->wish;
    keeper->shared.unread.text[0] = 0;
    if (w->nothing || !w->shared[0] || keeper->identity->rank != 0)
        return strdup("");
    char *text = ckpt_scan(w->shared, CKPT_SHARED_NODE, w->run_id, err);
    if (!used_before(keeper) || (text && !access(w->shared, F_OK)))
        return text;
    if (text)
        err_set_errno(err, errno, "%s", w->shared);
    free(text);
    keeper->shared.unread = *err;
    return strdup("");
}

int64_t keeper_drain_bytes(const struct keeper *keeper)
{
    const struct state *s = keeper->state;
    int64_t bytes = 0;
    for (int i = 0; i < s->n; i++)
        bytes += 3 * ((int64_t)(s->tensors[i].param.count * kdtype_bytes(s->dtype)) + PAD_BYTES);
    return bytes;
}

int keeper_drain_open(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    const struct plan_checkpoint *c = &keeper->plan->checkpoint;
    struct ckpt_drain_options options = {
        .from = keeper->dir,
        .to = keeper->shared.dir,
        .run_id = identity->run_id,
        .rank = identity->rank,
        .world = identity->world,
        .epoch = identity->epoch,
        .generation = identity->generation,
        .keep = c->shared_keep,
        .bytes_per_s = c->shared_bytes_per_s,
        .total_bytes = keeper->shared.total_bytes,
        .leader = identity->rank == 0,
        .later = later(keeper),
    };
    return ckpt_drain_open(&keeper->shared.drain, &options, err);
}

/* ---- what goes, and when ---- */

/* The newest commit; nothing else is on its way. */
static int start(struct keeper *keeper, struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    s->owed = false;
    s->flight = keeper->committed;
    ckpt_hold(keeper->ckpt, s->flight);
    return ckpt_drain_start(s->drain, s->record, err);
}

int keeper_drain_committed(struct keeper *keeper, char *record, struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    int64_t every = keeper->plan->checkpoint.shared_every;
    free(s->record);
    s->record = record;
    s->commits++;
    if (!s->drain || every == 0 || s->commits % every)
        return 0;
    s->owed = true;
    return s->flight < 0 ? start(keeper, err) : 0;
}

int64_t keeper_copied(struct keeper *keeper)
{
    struct keeper_shared *s = &keeper->shared;
    if (!s->drain || s->flight < 0)
        return 0;
    switch (ckpt_drain_poll(s->drain, NULL, NULL, NULL)) {
    case CKPT_DRAIN_DONE:
        return 1 + s->flight;
    case CKPT_DRAIN_FAILED:
        return -(1 + s->flight);
    default:
        return 0;
    }
}

/* The copy is over on all ranks, well or not. */
static int land(struct keeper *keeper, bool well, struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    int64_t step = s->flight;
    s->flight = -1;
    ckpt_hold(keeper->ckpt, -1);
    if (!well) {
        ckpt_drain_abandon(s->drain);
        return 0;
    }
    s->copied = step;
    return keeper->identity->rank == 0 ? ckpt_drain_commit(s->drain, err) : 0;
}

/* A folder that fails does so at each try: only another reason than the last is worth a line, until
 * a copy is committed. The reason is what stands behind the last colon; before it, names differ. */
static bool new_trouble(struct keeper_shared *s, const char *text)
{
    const char *colon = strrchr(text, ':'), *why = colon ? colon + 1 : text;
    if (!strncmp(s->trouble, why, sizeof s->trouble - 1))
        return false;
    snprintf(s->trouble, sizeof s->trouble, "%s", why);
    return true;
}

int keeper_heard(struct keeper *keeper, int64_t copied, int rank, struct keeper_news *news,
                 struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    struct err why = {""};
    *news = (struct keeper_news){.step = -1};
    if (!s->drain || s->flight < 0 || (copied != 1 + s->flight && copied != -(1 + s->flight)))
        return 0;
    if (copied < 0) {
        ckpt_drain_poll(s->drain, NULL, NULL, &why);
        if (comm_host_broadcast(keeper->comm, &keeper->mesh->all, &why, sizeof why, rank, err))
            return -1;
        why.text[sizeof why.text - 1] = 0;
        if (new_trouble(s, why.text))
            news->step = s->flight;
        err_set(&news->text, "the copy of step %lld to the shared folder failed on rank %d: %s",
                (long long)s->flight, rank, why.text);
    }
    if (land(keeper, copied > 0, err))
        return -1;
    return s->owed ? start(keeper, err) : 0;
}

bool keeper_told(struct keeper *keeper, struct keeper_news *news)
{
    struct keeper_shared *s = &keeper->shared;
    int64_t step;
    *news = (struct keeper_news){.step = -1};
    if (!s->drain || keeper->identity->rank != 0)
        return false;
    if (ckpt_drain_committed(s->drain, &step, &news->text)) {
        news->step = s->copied;
        err_prefix(&news->text, "the shared folder");
        return new_trouble(s, news->text.text);
    }
    if (step <= s->told)
        return false;
    s->trouble[0] = 0;
    s->told = news->step = step;
    return true;
}

bool keeper_drain_lacks(const struct keeper *keeper, int64_t step)
{
    const struct keeper_shared *s = &keeper->shared;
    return s->drain && !keeper->saved_here && s->copied != step;
}

/* ---- the last one: all wait for it ---- */

struct word {
    int over; /* the copy is, well or not */
    int well;
    int stuck; /* not a byte was copied for a long time */
    struct err why;
};

/* How the copy stands on this rank after a short wait. */
static struct word ask(struct keeper *keeper, int64_t *bytes, int64_t *moved_ms)
{
    struct word w = {0};
    int64_t now_bytes;
    ckpt_drain_wait(keeper->shared.drain, clock_ms() + ROUND_MS);
    enum ckpt_drain_state state = ckpt_drain_poll(keeper->shared.drain, NULL, &now_bytes, &w.why);
    if (now_bytes != *bytes)
        *moved_ms = clock_ms();
    *bytes = now_bytes;
    w.over = state != CKPT_DRAIN_COPYING;
    w.well = state == CKPT_DRAIN_DONE;
    w.stuck = clock_ms() - *moved_ms > keeper->plan->resilience.comm_timeout_ms;
    return w;
}

/* What all ranks said: 1 when all copies are over, -1 when one is stuck. *why: of the first that
 * did not go well. */
static int hear(struct keeper *keeper, const struct word *all, bool *well, struct err *why,
                struct err *err)
{
    int over = 0, world = keeper->mesh->world;
    *well = true;
    for (int i = world - 1; i >= 0; i--) {
        over += all[i].over;
        if (all[i].stuck && !all[i].over) {
            keeper->shared.common = true;
            return err_set(err, "the shared folder has taken nothing from rank %d for %lld ms", i,
                           (long long)keeper->plan->resilience.comm_timeout_ms);
        }
        if (all[i].well)
            continue;
        *well = false;
        err_set(why, "rank %d: %.*s", i, (int)sizeof all[i].why.text - 1, all[i].why.text);
    }
    return over == world;
}

/* All ranks' copies are over. */
static int settle(struct keeper *keeper, struct word *all, bool *well, struct err *why,
                  struct err *err)
{
    int64_t bytes = 0, moved_ms = clock_ms();
    int over;
    do {
        struct word mine = ask(keeper, &bytes, &moved_ms);
        if (comm_host_all_gather(keeper->comm, &keeper->mesh->all, &mine, sizeof mine, all, err))
            return -1;
        over = hear(keeper, all, well, why, err);
    } while (!over);
    return over < 0 ? -1 : land(keeper, *well, err);
}

/* Rank 0's record is durable; all hear. */
static int settle_record(struct keeper *keeper, struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    struct verdict {
        int failed;
        struct err why;
    } v = {0};
    if (keeper->identity->rank == 0) {
        int64_t step, half = keeper->plan->resilience.comm_timeout_ms / 2;
        bool idle = ckpt_drain_wait(s->drain, clock_ms() + half);
        v.failed = ckpt_drain_committed(s->drain, &step, &v.why);
        if (!v.failed && (!idle || step != s->copied))
            v.failed =
                err_set(&v.why, "the record was not written within %lld ms", (long long)half);
    }
    if (comm_host_broadcast(keeper->comm, &keeper->mesh->all, &v, sizeof v, 0, err))
        return -1;
    v.why.text[sizeof v.why.text - 1] = 0;
    keeper->shared.common = v.failed;
    return v.failed ? err_set(err, "%s", v.why.text) : 0;
}

static int flush(struct keeper *keeper, struct word *all, struct err *err)
{
    struct keeper_shared *s = &keeper->shared;
    struct err why = {""};
    bool well = true;
    ckpt_drain_hurry(s->drain);
    /* An older one first; how it goes does not matter any more. */
    if (s->flight >= 0 && settle(keeper, all, &well, &why, err))
        return -1;
    if (!s->record)
        return 0; /* nothing new since the shared folder had it */
    if (s->copied != keeper->committed &&
        (start(keeper, err) || settle(keeper, all, &well, &why, err)))
        return -1;
    s->common = s->copied != keeper->committed;
    if (s->common)
        return err_set(err, "%s", why.text);
    return settle_record(keeper, err);
}

int keeper_drain_flush(struct keeper *keeper, struct err *err)
{
    if (!keeper->shared.drain)
        return 0;
    struct word *all = calloc((size_t)keeper->mesh->world, sizeof *all);
    int rv = all ? flush(keeper, all, err) : err_set(err, "no memory");
    free(all);
    if (rv && keeper->shared.common) /* all have heard it before anybody leaves */
        comm_barrier(keeper->comm, &keeper->mesh->all, NULL);
    if (rv)
        err_prefix(err,
                   "the checkpoint of step %lld is on the nodes' disks, but could not be "
                   "copied to checkpoint.shared",
                   (long long)keeper->committed);
    return rv;
}

void keeper_drain_close(struct keeper *keeper)
{
    ckpt_drain_close(keeper->shared.drain);
    free(keeper->shared.record);
    free(keeper->shared.blob);
    keeper->shared = (struct keeper_shared){.flight = -1, .copied = -1, .told = -1};
}
