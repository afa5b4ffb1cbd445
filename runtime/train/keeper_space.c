/* keeper_space.c - see keeper_space.h. Each rank's writer has found room for its own files, and has
 * reserved the first; what is free now, and what goes in exchange, must take the rest of all of
 * them. */
#include "train/keeper_space.h"

#include "base/clock.h"
#include "base/number.h"
#include "train/keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* It is on the node of the rank before, which has been looked at. */
static bool looked_at(const struct space_need *ranks, int rank)
{
    return rank && ranks[rank - 1].writes && !strcmp(ranks[rank].node, ranks[rank - 1].node);
}

/* Of all ranks of a node: sums, and the least that one of them sees. */
static struct ckpt_space add_up(const struct space_need *ranks, int world, int of, int *n)
{
    struct ckpt_space all = {.there = INT64_MAX, .loose = INT64_MAX, .available = INT64_MAX};
    *n = 0;
    for (int r = 0; r < world; r++) {
        const struct ckpt_space *s = &ranks[r].space;
        if (!ranks[r].writes || strcmp(ranks[r].node, ranks[of].node))
            continue;
        if (__builtin_add_overflow(all.all, s->all, &all.all))
            all.all = INT64_MAX;
        if (__builtin_add_overflow(all.first, s->first, &all.first))
            all.first = INT64_MAX;
        all.there = s->there < all.there ? s->there : all.there;
        all.loose = s->loose < all.loose ? s->loose : all.loose;
        all.available = s->available < all.available ? s->available : all.available;
        ++*n;
    }
    return all;
}

static int refuse(const struct space_need *need, int ranks, const char *when, int64_t needed,
                  int64_t there, const char *dir, struct err *err)
{
    char needs[NUMBER_BYTES], has[NUMBER_BYTES], lacks[NUMBER_BYTES];
    return err_set(
        err,
        "checkpoint folder %s%s%s: the %d rank%s there need%s %s beside what is there%s, "
        "%s are free, %s too few: choose another folder or a lower keep",
        dir, *need->node ? " on " : "", need->node, ranks, ranks == 1 ? "" : "s",
        ranks == 1 ? "s" : "", number_size((double)needed, needs), when,
        number_size((double)there, has), number_size((double)(needed - there), lacks));
}

int keeper_space_fits(const struct space_need *ranks, int world, const char *dir, int *first,
                      struct err *err)
{
    for (*first = 0; *first < world; ++*first) {
        const struct space_need *f = &ranks[*first];
        int n;
        if (looked_at(ranks, *first))
            continue;
        struct ckpt_space s = add_up(ranks, world, *first, &n);
        if (n && s.all - s.there > s.available)
            return refuse(f, n, "", s.all - s.there, s.available, dir, err);
        if (n && s.first - s.loose > s.available)
            return refuse(f, n, " and is kept until the first commit", s.first - s.loose,
                          s.available, dir, err);
    }
    return 0;
}

bool keeper_space_tight(const struct space_need *ranks, int world, int rank)
{
    int n;
    struct ckpt_space s = add_up(ranks, world, rank, &n);
    return n && s.first > s.available;
}

/* All know whether anybody has to make room: then nobody goes on before that is done. */
static int make_room(struct keeper *keeper, const struct space_need *ranks, struct err *err)
{
    int world = keeper->mesh->world, self = keeper->mesh->rank;
    int64_t deadline = clock_ms() + keeper->plan->resilience.comm_timeout_ms;
    bool any = false;
    for (int r = 0; r < world && !any; r++)
        any = !looked_at(ranks, r) && keeper_space_tight(ranks, world, r);
    if (!any)
        return 0;
    if (keeper->ckpt && keeper_space_tight(ranks, world, self) &&
        ckpt_tighten(keeper->ckpt, deadline, err))
        return -1;
    return comm_barrier(keeper->comm, &keeper->mesh->all, err);
}

static int decide(struct keeper *keeper, const struct space_need *ranks, bool *common, bool *unfit,
                  struct err *err)
{
    struct err why;
    int first, world = keeper->mesh->world;
    if (!keeper_space_fits(ranks, world, keeper->dir, &first, &why))
        return make_room(keeper, ranks, err);
    /* The first generation's nodes are those that were asked for. */
    *common = keeper->identity->generation == 1;
    *unfit = !*common && !strcmp(ranks[first].node, ranks[keeper->mesh->rank].node);
    if (!*common && !*unfit)
        return 0; /* the node's ranks will say so */
    *err = why;
    return -1;
}

int keeper_space_check(struct keeper *keeper, bool *common, bool *unfit, struct err *err)
{
    int world = keeper->mesh->world;
    struct space_need mine, *ranks;
    if (!keeper->dir[0])
        return 0;
    memset(&mine, 0, sizeof mine); /* it travels whole */
    mine.writes = keeper->ckpt != NULL;
    if (keeper->ckpt && ckpt_space(keeper->ckpt, &mine.space, err))
        return -1;
    if (keeper->plan->checkpoint.local)
        snprintf(mine.node, sizeof mine.node, "%s", keeper->identity->node);
    if (!(ranks = calloc((size_t)world, sizeof *ranks)))
        return err_set(err, "no memory to plan checkpoints");
    int rv = comm_host_all_gather(keeper->comm, &keeper->mesh->all, &mine, sizeof mine, ranks, err);
    if (!rv)
        rv = decide(keeper, ranks, common, unfit, err);
    free(ranks);
    return rv;
}
