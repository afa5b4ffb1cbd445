/* model_rig.c - see model_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "model_rig.h"

static void check(int failed, const struct err *err)
{
    if (failed)
        fail_msg("%s", err->text);
}

static void sync_stream(struct rig *r)
{
    struct err err = {{0}};
    check(kernels_stream_sync(r->k, r->stream, clock_ms() + 60000, &err), &err);
}

void rig_open(struct rig *r, const char *plan_text)
{
    struct err err = {{0}};
    int degree[MESH_AXES] = {1, 1, 1, 1, 1};
    *r = (struct rig){0};
    r->plan = plan_parse(plan_text, strlen(plan_text), "test", NULL, 0, "/", &err);
    check(!r->plan, &err);
    r->k = kernels_open_cpu(1, &err);
    check(!r->k, &err);
    r->hub = comm_hub_open(1, &err);
    check(!r->hub, &err);
    r->comm = comm_open_local(r->hub, r->k, 0, &err);
    check(!r->comm, &err);
    r->stream = kernels_stream_open(r->k, &err);
    check(!r->stream, &err);
    check(mesh_open(&r->mesh, degree, 0, &err), &err);
    check(state_open(&r->state, r->k, r->plan, &r->mesh, &err), &err);
    check(stage_open(&r->stage, &r->state, r->plan, &r->mesh, r->comm, 1, r->stream, &err), &err);
    check(step_open(&r->step, r->k, r->comm, &r->mesh, r->plan, &r->state, &err), &err);
}

void rig_close(struct rig *r)
{
    step_close(&r->step);
    stage_close(&r->stage);
    state_close(&r->state);
    mesh_close(&r->mesh);
    kernels_stream_close(r->k, r->stream);
    comm_close(r->comm);
    comm_hub_close(r->hub);
    kernels_close(r->k);
    plan_free(r->plan);
}

void rig_put(struct rig *r, struct kbuf buf, const double *values)
{
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = buf, .host = values);
    sync_stream(r);
}

void rig_get(struct rig *r, struct kbuf buf, double *values)
{
    KSUBMIT(r->k, r->stream, DOWNLOAD, download, .in = buf, .host = values);
    sync_stream(r);
}

void rig_tokens(struct rig *r, const int32_t *tokens, const int32_t *targets)
{
    struct stage_slot *slot = &r->stage.slots[0];
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = slot->tokens, .host = tokens);
    KSUBMIT(r->k, r->stream, UPLOAD, upload, .out = slot->targets, .host = targets);
    sync_stream(r);
}

double rig_loss(struct rig *r, bool backward)
{
    const struct plan_training *t = &r->plan->training;
    double tokens = (double)(t->microbatch * t->sequence), sum = 0;
    double *losses = calloc((size_t)t->microbatch, sizeof *losses);
    struct kbuf out = step_losses(&r->step, 0);
    struct err err = {{0}};
    check(stage_forward(&r->stage, 0, r->stream, out, backward ? 1 / tokens : 0, &err), &err);
    if (backward) {
        check(stage_backward_input(&r->stage, 0, r->stream, &err), &err);
        stage_backward_weight(&r->stage, 0, r->stream);
    }
    rig_get(r, out, losses);
    for (int64_t i = 0; i < t->microbatch; i++)
        sum += losses[i];
    free(losses);
    return sum / tokens;
}

void rig_update(struct rig *r, int64_t number, struct step_result *result)
{
    struct err err = {{0}};
    struct step_word word = {.finished = -1};
    check(step_begin(&r->step, r->stream, number, &word, &err), &err);
    check(step_reduce_tied(&r->step, r->stream, &err), &err);
    check(step_reduce_grads(&r->step, r->stream, &err), &err);
    check(step_norm(&r->step, r->stream, &err), &err);
    check(step_optimizer(&r->step, r->stream, &err), &err);
    step_read_back(&r->step, r->stream);
    check(step_collect(&r->step, number, result, &err), &err);
}
