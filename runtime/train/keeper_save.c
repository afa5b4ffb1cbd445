/* keeper_save.c - a rank's state out to its checkpoint's buffer, and back in. See keeper.h. */
#include "train/keeper.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

static struct kbuf part_buffer(const struct keeper *keeper, int index)
{
    const struct state_tensor *t = &keeper->state->tensors[index / KEEPER_PARTS];
    switch (index % KEEPER_PARTS) {
    case 0:
        return t->param;
    case 1:
        return t->m;
    default:
        return t->v;
    }
}

static bool is_layout(const struct keeper *keeper, int index)
{
    return index == keeper->state->n * KEEPER_PARTS;
}

int keeper_copy_out(struct keeper *keeper, struct snapshot *snapshot, int index, void *host,
                    struct err *err)
{
    (void)err;
    if (is_layout(keeper, index))
        memcpy(host, keeper->layout, sizeof keeper->layout);
    else
        snapshot_copy(snapshot, part_buffer(keeper, index), host);
    return 0;
}

const void *keeper_where(const struct keeper *keeper, int index)
{
    if (is_layout(keeper, index))
        return keeper->layout;
    return kernels_host(keeper->k, part_buffer(keeper, index));
}

/* In the writer's thread, or in keeper_save_join. */
static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct keeper *keeper = arg;
    return keeper_copy_out(keeper, &keeper->snapshot, index, host, err);
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    struct keeper *keeper = arg;
    (void)err;
    if (is_layout(keeper, index))
        return 0;
    struct kbuf all = part_buffer(keeper, index);
    size_t each = kdtype_bytes(all.dtype);
    KSUBMIT(keeper->k, keeper->stream, UPLOAD, upload,
            .out = kbuf_slice(all, (size_t)at / each, (size_t)bytes / each), .host = host);
    return 0;
}

/* Of either: what the other did has been waited for, or was nothing. */
static int flush(void *arg, struct err *err)
{
    struct keeper *keeper = arg;
    int64_t deadline = clock_ms() + keeper->plan->resilience.comm_timeout_ms;
    if (keeper->restoring)
        return kernels_stream_sync(keeper->k, keeper->stream, deadline, err);
    return snapshot_sync(&keeper->snapshot, deadline, err);
}

struct ckpt_io keeper_io(struct keeper *keeper)
{
    return (struct ckpt_io){
        .copy_out = copy_out, .copy_in = copy_in, .flush = flush, .arg = keeper};
}

int keeper_save_begin(struct keeper *keeper, int64_t step, struct err *err)
{
    struct ckpt_position position = {.step = step,
                                     .samples = step * keeper->plan->training.global_batch};
    if (keeper->restoring) /* else the writer may be about to flush the one before, and reads it */
        keeper->restoring = false;
    keeper->saving = true;
    keeper->saves[keeper->n_saves++ % KEEPER_SAVES] = step;
    keeper->saved = step;
    keeper->saved_here = true;
    if (keeper->committed >= step)
        keeper->committed = step - 1; /* what was restored is written once more, as this start's */
    snapshot_begin(&keeper->snapshot, keeper->stream);
    return ckpt_save_begin(keeper->ckpt, &position, err);
}

int keeper_save_join(struct keeper *keeper, struct kstream *stream, int64_t *stall_ns,
                     struct err *err)
{
    *stall_ns = 0;
    if (!keeper->saving)
        return 0;
    keeper->saving = false;
    if (ckpt_save_join(keeper->ckpt, stall_ns, err))
        return err_prefix(err, "checkpoint of step %lld", (long long)keeper->saved);
    *stall_ns += keeper->settle_ns;
    keeper->stall_ns = *stall_ns;
    snapshot_join(&keeper->snapshot, stream);
    return 0;
}

void keeper_cost(const struct keeper *keeper, double *stall_s, double *write_s)
{
    *stall_s = (double)keeper->stall_ns * 1e-9;
    *write_s = keeper->ckpt ? (double)ckpt_write_ns(keeper->ckpt) * 1e-9 : 0;
    if (*write_s > 0 && keeper->carrier.comm) /* at the same time, and a little longer */
        *write_s = fmax(*write_s, (double)background_ns(&keeper->carrier) * 1e-9);
}
