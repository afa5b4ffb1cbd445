/* trainer.c - opens what a rank needs, and submits steps and validations. See trainer.h. */
#include "train/trainer.h"

#include "base/clock.h"

int train_check(const struct plan *plan, struct err *err)
{
    const struct plan_parallel *p = &plan->parallel;
    const char *later = "use 1: this version does not build it yet";
    if (p->context > 1)
        return plan_error(plan, "parallel.context", err, "parallel.context is %d: %s", p->context,
                          later);
    if (p->expert > 1)
        return plan_error(plan, "parallel.expert", err, "parallel.expert is %d: %s", p->expert,
                          later);
    if (p->virtual_stages > 1)
        return plan_error(plan, "parallel.virtual", err, "parallel.virtual is %d: %s",
                          p->virtual_stages, later);
    if (p->shard != PLAN_SHARD_NONE)
        return plan_error(
            plan, "parallel.shard", err,
            "parallel.shard: this version does not shard the optimizer yet: use none");
    if (plan->training.precision == PLAN_BF16)
        return plan_error(plan, "training.precision", err,
                          "training.precision is bfloat16, which the CPU backend does not compute "
                          "in: use float32 or float64");
    return 0;
}

static int open_data(struct trainer *r, struct err *err)
{
    if (data_open(&r->data, r->plan, DATA_TRAIN, err) ||
        data_open(&r->held_out, r->plan, DATA_VALIDATION, err))
        return -1;
    if (!r->data)
        return plan_error(r->plan, "data.train", err, "data.train is empty: name a file");
    if (r->plan->training.val_batches == 0 && r->held_out) {
        data_close(r->held_out);
        r->held_out = NULL;
    }
    return 0;
}

static int open_programs(struct trainer *r, struct err *err)
{
    int replica = r->mesh.coord[MESH_DATA], stage = r->mesh.coord[MESH_PIPELINE];
    if (program_make(&r->program, r->plan, replica, stage, err))
        return -1;
    if (!r->held_out)
        return 0;
    return program_make_validation(&r->validation, r->plan, replica, stage, err);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int open_device(struct trainer *r, struct err *err)
{
    struct kernels *k = r->options->k;
    struct comm *comm = r->options->comm;
    const struct plan *plan = r->plan;
    int slots = larger(r->program.slots, r->validation.slots);
    int actions = larger(r->program.n, r->validation.n);
    if (streams_open(&r->streams, k, err) || state_open(&r->state, k, plan, &r->mesh, err))
        return -1;
    struct kstream *compute = r->streams.stream[PROGRAM_STREAM_COMPUTE];
    if (stage_open(&r->stage, &r->state, plan, &r->mesh, comm, slots, compute, err) ||
        step_open(&r->step, k, comm, &r->mesh, plan, &r->state, err) ||
        executor_open(&r->executor, plan, &r->mesh, comm, &r->streams, &r->stage, &r->step, actions,
                      err))
        return -1;
    state_init(&r->state, compute, plan->training.seed);
    return 0;
}

int trainer_mesh(struct trainer *r, const struct train_options *options, struct err *err)
{
    const struct plan_parallel *p = &options->plan->parallel;
    int degree[MESH_AXES] = {[MESH_TENSOR] = p->tensor,
                             [MESH_CONTEXT] = p->context,
                             [MESH_EXPERT] = p->expert,
                             [MESH_PIPELINE] = p->pipeline,
                             [MESH_DATA] = p->data};
    *r = (struct trainer){.options = options, .plan = options->plan};
    if (train_check(r->plan, err))
        return -1;
    if (r->plan->world != options->identity.world)
        return err_set(err, "the plan's degrees make %d ranks, but %d were started", r->plan->world,
                       options->identity.world);
    comm_set_timeout_ms(options->comm, r->plan->resilience.comm_timeout_ms);
    return mesh_open(&r->mesh, degree, options->identity.rank, err);
}

int trainer_open(struct trainer *r, enum train_end *end, struct err *err)
{
    *end = TRAIN_REFUSED;
    if (open_data(r, err) || open_programs(r, err))
        return -1;
    *end = TRAIN_FAILED;
    if (open_device(r, err))
        return -1;
    *end = TRAIN_DONE;
    return 0;
}

int trainer_step(struct trainer *r, int64_t number, const struct step_word *word, struct err *err)
{
    const struct plan_training *t = &r->plan->training;
    struct pass pass = {.data = r->data,
                        .first_sample = number * t->global_batch,
                        .scale = 1.0 / ((double)t->global_batch * (double)t->sequence)};
    streams_join(&r->streams);
    if (step_begin(&r->step, r->streams.stream[PROGRAM_STREAM_COMPUTE], number, word, err))
        return -1;
    /* What step_begin put on one stream is used on either. */
    streams_join(&r->streams);
    return execute(&r->executor, &r->program, &pass, err);
}

int trainer_validate(struct trainer *r, double *loss, struct err *err)
{
    const struct plan_training *t = &r->plan->training;
    double total = 0;
    for (int64_t batch = 0; batch < t->val_batches; batch++) {
        struct pass pass = {.data = r->held_out, .first_sample = batch * t->global_batch};
        double sum;
        streams_join(&r->streams);
        if (execute(&r->executor, &r->validation, &pass, err))
            return err_prefix(err, "validation");
        streams_join(&r->streams);
        if (step_sum_losses(&r->step, r->streams.stream[PROGRAM_STREAM_COMPUTE], &sum, err))
            return -1;
        total += sum;
        if (r->options->hooks.progress) /* a sign of life: this may take longer than steps do */
            r->options->hooks.progress(r->options->hooks.arg, r->step.number);
    }
    double tokens = (double)t->val_batches * (double)t->global_batch * (double)t->sequence;
    *loss = total / tokens;
    return 0;
}

void trainer_close(struct trainer *r)
{
    executor_close(&r->executor);
    step_close(&r->step);
    stage_close(&r->stage);
    state_close(&r->state);
    streams_close(&r->streams);
    program_free(&r->program);
    program_free(&r->validation);
    if (r->data)
        data_close(r->data);
    if (r->held_out)
        data_close(r->held_out);
    mesh_close(&r->mesh);
    *r = (struct trainer){0};
}
