/* alone.c - see alone.h. */
#include "alone.h"

#include <stdlib.h>

#include "base/clock.h"
#include "thin.h"

enum { WRITE_MS = 3600000 }; /* of one file: a slow network disk */
enum { KEEP = 2 };           /* the least there is: it is the only one */

int alone_open(struct alone *a, struct err *err)
{
    a->claims = calloc((size_t)a->world, sizeof *a->claims);
    return a->claims ? 0 : err_set(err, "no memory for %d ranks", a->world);
}

void alone_close(struct alone *a)
{
    for (int i = 0; a->claims && i < a->world; i++)
        free(a->claims[i]);
    free(a->claims);
    a->claims = NULL;
}

static int no_copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                      struct err *err)
{
    (void)arg, (void)index, (void)at, (void)host, (void)bytes;
    return err_set(err, "this writer only writes");
}

static int save(struct ckpt *c, const struct ckpt_position *position, struct err *err)
{
    int64_t step = -1;
    if (thin_save(c, position, err) || ckpt_wait(c, clock_ms() + WRITE_MS, err) ||
        ckpt_finished(c, &step, err))
        return -1;
    return step == position->step ? 0 : err_set(err, "the checkpoint was not written");
}

static int commit(struct alone *a, struct ckpt *c, struct err *err)
{
    char *record = ckpt_record((const char *const *)a->claims, a->world, err);
    int rv = record ? ckpt_commit(c, a->position.step, record, err) : -1;
    free(record);
    return rv;
}

int alone_write(struct alone *a, int rank, const struct ckpt_tensor *tensors, int n,
                int (*copy_out)(void *arg, int index, void *host, struct err *err), void *arg,
                struct err *err)
{
    struct ckpt_options options = {.dir = a->dir,
                                   .node = a->node,
                                   .run_id = a->run_id,
                                   .rank = rank,
                                   .world = a->world,
                                   .epoch = a->epoch,
                                   .generation = 1,
                                   .plan_hash = a->plan_hash,
                                   .keep = KEEP,
                                   .replicated = a->replicated,
                                   .leader = rank == 0};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = no_copy_in, .arg = arg};
    struct ckpt *c = NULL;
    int rv = ckpt_open_thin(&c, &options, tensors, n, &io, err);
    if (!rv)
        rv = save(c, &a->position, err);
    if (!rv && !(a->claims[rank] = ckpt_claim(c, a->position.step, err)))
        rv = -1;
    if (!rv && rank == 0)
        rv = commit(a, c, err);
    ckpt_close(c, clock_ms() + WRITE_MS);
    return rv;
}
