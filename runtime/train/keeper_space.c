/* keeper_space.c - see keeper_space.h. Each rank's writer has found room for its own files, and has
 * reserved the first; what is free now must take the rest of all of them. */
#include "train/keeper_space.h"

#include "base/number.h"
#include "train/keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const struct space_need *need, int ranks, int64_t to_come, int64_t available,
                  const char *dir, struct err *err)
{
    char needs[NUMBER_BYTES], has[NUMBER_BYTES], lacks[NUMBER_BYTES];
    return err_set(err,
                   "checkpoint folder %s%s%s: the %d ranks that write there need %s beside what is "
                   "there, %s are free, %s too few: choose another folder or a lower keep",
                   dir, *need->node ? " on " : "", need->node, ranks,
                   number_size((double)to_come, needs), number_size((double)available, has),
                   number_size((double)(to_come - available), lacks));
}

int keeper_space_fits(const struct space_need *ranks, int world, const char *dir, struct err *err)
{
    for (int first = 0; first < world; first++) {
        const struct space_need *f = &ranks[first];
        int64_t to_come = 0, available = INT64_MAX;
        int n = 0;
        for (int r = 0; r < world; r++) {
            if (!ranks[r].writes || strcmp(ranks[r].node, f->node))
                continue;
            if (r < first)
                break; /* this node has been looked at */
            if (__builtin_add_overflow(to_come, ranks[r].to_come, &to_come))
                to_come = INT64_MAX;
            if (ranks[r].available < available)
                available = ranks[r].available;
            n++;
        }
        if (n && to_come > available)
            return refuse(f, n, to_come, available, dir, err);
    }
    return 0;
}

int keeper_space_check(struct keeper *keeper, bool *common, struct err *err)
{
    int world = keeper->mesh->world;
    struct space_need mine, *ranks;
    if (keeper->identity->generation > 1 || !keeper->dir[0])
        return 0;
    memset(&mine, 0, sizeof mine); /* it travels whole */
    mine.writes = keeper->ckpt != NULL;
    if (keeper->ckpt && ckpt_space(keeper->ckpt, &mine.to_come, &mine.available, err))
        return -1;
    if (keeper->plan->checkpoint.local)
        snprintf(mine.node, sizeof mine.node, "%s", keeper->identity->node);
    if (!(ranks = calloc((size_t)world, sizeof *ranks)))
        return err_set(err, "no memory to plan checkpoints");
    int rv = comm_host_all_gather(keeper->comm, &keeper->mesh->all, &mine, sizeof mine, ranks, err);
    if (!rv) {
        rv = keeper_space_fits(ranks, world, keeper->dir, err);
        *common = rv != 0;
    }
    free(ranks);
    return rv;
}
