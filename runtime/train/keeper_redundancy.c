/* keeper_redundancy.c - copies at partners and parity of groups as the keeper uses them: made while
 * training goes on, by a thread of its own; parity is used when a checkpoint is looked for. See
 * keeper.h. */
#include "train/keeper.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "drain.h"
#include "layout.h"
#include "train/rebuild.h"

/* ---- making ---- */

int keeper_redundancy_find(struct keeper *keeper, struct err *err)
{
    const struct plan_checkpoint *c = &keeper->plan->checkpoint;
    bool partners = c->redundancy == PLAN_REDUNDANCY_PARTNER;
    struct layout layout;
    if ((!partners && !c->group_files) || keeper->partner.identity || keeper->encode.identity)
        return 0;
    if (layout_make(&layout, keeper->tensors, keeper->n_tensors, err))
        return -1;
    int64_t header_bytes = layout.header_bytes, bytes = header_bytes + layout.data_bytes;
    layout_free(&layout);
    if (partners)
        return partner_find(&keeper->partner, keeper->comm, keeper->mesh, keeper->identity, err) ||
                       partner_tell_bytes(&keeper->partner, keeper->comm, bytes, err)
                   ? -1
                   : 0;
    return encode_find(&keeper->encode, keeper->comm, keeper->mesh, keeper->identity, keeper->plan,
                       bytes, header_bytes, err);
}

/* In the carrier's thread. */
static int carry(struct background *carrier, void *arg, struct err *err)
{
    struct keeper *keeper = arg;
    struct ckpt_image image = keeper->image;
    int rv = keeper->encode.writer
                 ? encode_run(&keeper->encode, keeper->ckpt, &image, carrier, err)
                 : partner_run(&keeper->partner, keeper->ckpt, &image, carrier, err);
    if (rv)
        ckpt_image_share(keeper->ckpt, NULL, NULL); /* nobody will carry the next */
    ckpt_image_release(keeper->ckpt);
    return rv;
}

/* In the writer's thread. The image before has been released, so it is not looked at any more. */
static bool on_image(void *arg, const struct ckpt_image *image)
{
    struct keeper *keeper = arg;
    struct err told_elsewhere; /* keeper_finished asks the carrier */
    keeper->image = *image;
    return !background_begin(&keeper->carrier, &told_elsewhere);
}

int keeper_redundancy_start(struct keeper *keeper, struct err *err)
{
    int to[PARITY_MEMBERS_MAX] = {keeper->partner.to, keeper->partner.from};
    int from[PARITY_MEMBERS_MAX] = {keeper->partner.from, keeper->partner.to};
    int n = keeper->partner.to >= 0 ? 2 : 0;
    if (keeper->encode.writer)
        n = encode_peers(&keeper->encode, to, from);
    if (!keeper->ckpt || !n)
        return 0;
    if (!keeper->side.comm)
        return err_set(err, "checkpoint.redundancy needs a comm of its own, and there is none");
    if (side_connect(&keeper->side, keeper->comm, to, from, n,
                     keeper->plan->resilience.comm_timeout_ms, err) ||
        background_open(&keeper->carrier, side_take(&keeper->side), carry, keeper, err))
        return -1;
    ckpt_image_share(keeper->ckpt, on_image, keeper);
    return 0;
}

int keeper_redundancy_settle(struct keeper *keeper, struct err *err)
{
    int64_t patience_ms = keeper->plan->resilience.comm_timeout_ms;
    if (keeper->carrier.comm && background_wait(&keeper->carrier, patience_ms, err))
        return err_prefix(err, "carrying a checkpoint to other nodes");
    return 0;
}

void keeper_redundancy_close(struct keeper *keeper, bool orderly)
{
    int64_t patience_ms = keeper->plan ? keeper->plan->resilience.comm_timeout_ms : 0;
    if (keeper->ckpt)
        ckpt_image_share(keeper->ckpt, NULL, NULL);
    background_close(&keeper->carrier, orderly, patience_ms);
    if (keeper->ckpt) /* of a piece that was begun too late */
        ckpt_image_release(keeper->ckpt);
    side_close(&keeper->side);
    partner_close(&keeper->partner);
    encode_close(&keeper->encode);
}

bool keeper_lost_peers(const struct keeper *keeper)
{
    return keeper_memory_lost_peers(keeper) ||
           (keeper->carrier.comm && background_lost_peers(&keeper->carrier));
}

char *keeper_claim(struct keeper *keeper, int64_t step, struct err *err)
{
    const struct encode *e = &keeper->encode;
    char *claim = ckpt_claim(keeper->ckpt, step, err);
    if (!claim || !e->identity)
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
