/* keeper_redundancy.c - parity of groups as the keeper uses it: made while training goes on, used
 * when a checkpoint is looked for. See keeper.h. */
#include "train/keeper.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "drain.h"
#include "layout.h"
#include "train/rebuild.h"

/* ---- making ---- */

int keeper_encode_find(struct keeper *keeper, struct err *err)
{
    struct layout layout;
    if (!keeper->plan->checkpoint.group_files || keeper->encode.comm)
        return 0;
    if (layout_make(&layout, keeper->tensors, keeper->n_tensors, err))
        return -1;
    int64_t bytes = layout.header_bytes + layout.data_bytes;
    layout_free(&layout);
    return encode_find(&keeper->encode, keeper->comm, keeper->mesh, keeper->identity, keeper->plan,
                       bytes, err);
}

static struct ckpt_position position_of(const struct keeper *keeper, int64_t step)
{
    return (struct ckpt_position){.step = step,
                                  .samples = step * keeper->plan->training.global_batch};
}

int keeper_written(struct keeper *keeper, int64_t step, struct err *err)
{
    struct ckpt_position position = position_of(keeper, step);
    if (!keeper->encode.comm || !keeper->ckpt || step < 0)
        return 0;
    return encode_begin(&keeper->encode, keeper->ckpt, &position, err);
}

int keeper_encode_settle(struct keeper *keeper, struct err *err)
{
    int64_t deadline = clock_ms() + keeper->plan->resilience.comm_timeout_ms, step;
    if (!keeper->encode.comm || !keeper->saved_here)
        return 0;
    if (ckpt_wait(keeper->ckpt, deadline, err) || ckpt_finished(keeper->ckpt, &step, err) ||
        keeper_written(keeper, keeper->saved, err))
        return -1;
    return encode_settle(&keeper->encode, err);
}

char *keeper_claim(struct keeper *keeper, int64_t step, struct err *err)
{
    const struct encode *e = &keeper->encode;
    char *claim = ckpt_claim(keeper->ckpt, step, err);
    if (!claim || !e->comm)
        return claim;
    char *with = ckpt_parity_claim(e->writer, step, e->group, claim, err);
    free(claim);
    return with;
}

/* ---- using ---- */

/* What the scans say of a file; all ranks call. Of a node its speaker has the scan, of the shared
 * folder everybody. */
static int mark(struct keeper *keeper, const struct ckpt_place *place, bool damaged,
                struct err *err)
{
    const struct train_identity *id = keeper->identity;
    const char *name = strrchr(place->path, '/') + 1;
    char **scan = NULL;
    if (!strcmp(place->node, CKPT_SHARED_NODE))
        scan = &keeper->shared.blob;
    else if (id->local_rank == 0 && !strcmp(place->node, id->node))
        scan = &keeper->scanned;
    if (!scan || !*scan || !**scan)
        return 0;
    *scan = ckpt_scan_mark(*scan, name, place->bytes, damaged);
    return *scan ? 0 : err_set(err, "no memory to mark a checkpoint file");
}

int keeper_mark_damaged(struct keeper *keeper, int file, struct err *err)
{
    if (file < 0 || file >= keeper->decision.world || keeper->decision.memory)
        return 0;
    return mark(keeper, &keeper->decision.places[file], true, err);
}

static int on_damaged(void *arg, const struct ckpt_place *place, struct err *err)
{
    return mark(arg, place, true, err);
}

static int on_built(void *arg, const struct ckpt_place *place, struct err *err)
{
    return mark(arg, place, false, err);
}

int keeper_rebuild(struct keeper *keeper, struct err *err)
{
    struct rebuild r = {.comm = keeper->comm,
                        .mesh = keeper->mesh,
                        .identity = keeper->identity,
                        .dir = keeper->dir,
                        .decision = &keeper->decision,
                        .damaged = on_damaged,
                        .built = on_built,
                        .arg = keeper,
                        .troubled = &keeper->troubled};
    int lost = keeper->decision.lost;
    if (!lost)
        return 0;
    int rv = rebuild_lost(&r, err);
    if (!rv)
        keeper->rebuilt = lost;
    return rv;
}
