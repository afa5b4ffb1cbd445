/* keeper_wish.c - what identity->restore asks for, and where that lies. */
#include "train/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A folder of checkpoints, called after its run. Whether all nodes see the same one is not known:
 * each looks. */
static int read_path(struct keeper_wish *w, const char *path, struct err *err)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= sizeof w->dir)
        return err_set(err, "restore: the path %.64s... is too long", path);
    memcpy(w->dir, path, length);
    w->dir[length] = 0;
    w->shared[0] = 0;
    const char *last = strrchr(w->dir, '/');
    if (snprintf(w->run_id, sizeof w->run_id, "%s", last + 1) >= (int)sizeof w->run_id || !last[1])
        return err_set(err,
                       "restore: %s is neither a run folder (no run.json in it) nor a folder of "
                       "checkpoints, whose name is a run id",
                       path);
    return 0;
}

/* A run folder, read by who started us. */
static void take_run(struct keeper_wish *w, const struct train_identity *from)
{
    snprintf(w->run_id, sizeof w->run_id, "%s", from->from_run_id);
    snprintf(w->dir, sizeof w->dir, "%s", from->from_local);
    snprintf(w->shared, sizeof w->shared, "%s", from->from_shared);
}

/* This run's own folders. Where there is one tier, it is the shared one: one rank scans it. */
static void take_own(struct keeper *keeper)
{
    struct keeper_wish *w = &keeper->wish;
    bool local = keeper->plan->checkpoint.local != NULL;
    memcpy(w->dir, keeper->dir, sizeof w->dir);
    memcpy(w->shared, local ? keeper->shared.dir : keeper->dir, sizeof w->shared);
    if (!local)
        w->dir[0] = 0;
    snprintf(w->run_id, sizeof w->run_id, "%s", keeper->identity->run_id);
}

static bool takes_what_is_there(const char *restore)
{
    return !restore || !*restore || !strcmp(restore, "latest");
}

int keeper_refuse_wish(const struct keeper *keeper, struct err *err)
{
    const char *restore = keeper->identity->restore;
    if (takes_what_is_there(restore) || !strcmp(restore, "none") ||
        keeper->identity->generation > 1)
        return 0;
    return err_set(err,
                   "restore is '%.200s', but the plan has no checkpoints: give checkpoint.local or "
                   "checkpoint.shared, or use latest or none",
                   restore);
}

/* What identity->restore says. */
static int read_asked(struct keeper *keeper, struct err *err)
{
    const char *restore = keeper->identity->restore ? keeper->identity->restore : "";
    struct keeper_wish *w = &keeper->wish;
    *w = (struct keeper_wish){.step = -1, .nothing = !strcmp(restore, "none")};
    take_own(keeper);
    if (w->nothing || takes_what_is_there(restore))
        return 0;
    w->exact = true;
    if (keeper->identity->from_run_id) {
        take_run(w, keeper->identity);
        return 0;
    }
    if (strchr(restore, '/'))
        return read_path(w, restore, err);
    char *end;
    errno = 0;
    w->step = strtoll(restore, &end, 10);
    if (*end || errno || w->step < 0)
        return err_set(err,
                       "restore is '%s': use latest, none, a step, or the path (with a '/') of a "
                       "run folder or of a run's checkpoint folder",
                       restore);
    return 0;
}

int keeper_read_wish(struct keeper *keeper, struct err *err)
{
    const struct train_identity *identity = keeper->identity;
    bool first_launch = !identity->since || identity->since >= identity->epoch;
    if (identity->generation <= 1 && first_launch)
        return read_asked(keeper, err);
    keeper->wish =
        (struct keeper_wish){.step = -1, .epoch = first_launch ? identity->epoch : identity->since};
    take_own(keeper);
    return 0;
}

bool keeper_found_nothing_own(const struct keeper *keeper)
{
    return keeper->wish.epoch && !keeper->decision.found;
}

int keeper_widen(struct keeper *keeper, struct err *err)
{
    keeper->widened = true;
    ckpt_decision_free(&keeper->decision);
    free(keeper->scanned);
    free(keeper->scanned_shared);
    free(keeper->shared.blob);
    keeper->scanned = keeper->scanned_shared = keeper->shared.blob = NULL;
    return read_asked(keeper, err) || keeper_scan(keeper, err) ? -1 : 0;
}
