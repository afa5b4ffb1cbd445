/* execute.c - runs a step program. See execute.h. */
#include "train/execute.h"

#include "base/clock.h"

#include <stdlib.h>

/* Tags of activations: direction, then microbatch; below 2^23. */
enum { TAG_FORWARD = 1 << 20, TAG_BACKWARD = 2 << 20, TAG_MICROBATCHES = 1 << 20 };

int streams_open(struct streams *s, struct kernels *k, struct err *err)
{
    *s = (struct streams){.k = k};
    for (int i = 0; i < PROGRAM_STREAMS; i++) {
        s->stream[i] = kernels_stream_open(k, err);
        s->end[i] = s->stream[i] ? kernels_event_open(k, err) : NULL;
        if (!s->end[i]) {
            streams_close(s);
            return -1;
        }
    }
    return 0;
}

void streams_join(struct streams *s)
{
    for (int i = 0; i < PROGRAM_STREAMS; i++)
        kernels_event_record(s->k, s->end[i], s->stream[i]);
    for (int i = 0; i < PROGRAM_STREAMS; i++)
        for (int j = 0; j < PROGRAM_STREAMS; j++)
            if (i != j)
                kernels_event_wait(s->k, s->stream[i], s->end[j]);
}

int streams_sync(struct streams *s, int64_t deadline_ms, struct err *err)
{
    for (int i = 0; i < PROGRAM_STREAMS; i++)
        if (kernels_stream_sync(s->k, s->stream[i], deadline_ms, err))
            return -1;
    return 0;
}

void streams_close(struct streams *s)
{
    for (int i = 0; s->k && i < PROGRAM_STREAMS; i++) {
        if (s->end[i])
            kernels_event_close(s->k, s->end[i]);
        if (s->stream[i])
            kernels_stream_close(s->k, s->stream[i]);
    }
    *s = (struct streams){0};
}

static int open_staging(struct executor *x, struct err *err)
{
    size_t rows = (size_t)(x->plan->training.microbatch * x->plan->training.sequence);
    x->staging = calloc((size_t)x->stage->n_slots, sizeof *x->staging);
    x->window = malloc((size_t)(x->plan->training.sequence + 1) * sizeof *x->window);
    if (!x->staging || !x->window)
        return err_set(err, "no memory to stage tokens");
    for (int i = 0; i < x->stage->n_slots; i++) {
        struct staging *g = &x->staging[i];
        g->tokens = malloc(rows * sizeof *g->tokens);
        g->targets = malloc(rows * sizeof *g->targets);
        g->read = kernels_event_open(x->stage->k, err);
        if (!g->read)
            return -1;
        if (!g->tokens || !g->targets)
            return err_set(err, "no memory to stage tokens");
    }
    return 0;
}

int executor_open(struct executor *x, const struct plan *plan, const struct mesh *mesh,
                  struct comm *comm, struct streams *streams, struct stage *stage,
                  struct step *step, int actions, struct err *err)
{
    *x = (struct executor){.plan = plan,
                           .mesh = mesh,
                           .comm = comm,
                           .streams = streams,
                           .stage = stage,
                           .step = step,
                           .capacity = actions};
    x->events = calloc((size_t)actions, sizeof *x->events);
    x->requests = calloc((size_t)actions, sizeof *x->requests);
    if (!x->events || !x->requests) {
        err_set(err, "no memory for a program of %d actions", actions);
        goto fail;
    }
    for (int i = 0; i < actions; i++) {
        x->events[i] = kernels_event_open(stage->k, err);
        if (!x->events[i])
            goto fail;
    }
    if (open_staging(x, err))
        goto fail;
    return 0;
fail:
    executor_close(x);
    return -1;
}

/* Global index of a local microbatch's first sample: replicas take consecutive parts of the batch.
 */
static int64_t first_sample(const struct executor *x, const struct pass *pass, int microbatch)
{
    const struct plan_training *t = &x->plan->training;
    int64_t first, count;
    plan_replica_microbatches(x->plan, x->mesh->coord[MESH_DATA], &first, &count);
    return pass->first_sample + (first + microbatch) * t->microbatch;
}

static int load(struct executor *x, const struct action *a, const struct pass *pass,
                struct kstream *stream, struct err *err)
{
    struct staging *g = &x->staging[a->slot];
    struct stage_slot *slot = &x->stage->slots[a->slot];
    const struct plan_training *t = &x->plan->training;
    int64_t deadline = clock_ms() + x->plan->resilience.comm_timeout_ms;
    if (kernels_event_sync(x->stage->k, g->read, deadline, err))
        return -1;
    int64_t first = first_sample(x, pass, a->microbatch);
    for (int64_t s = 0; s < t->microbatch; s++) {
        data_sample(pass->data, first + s, x->window);
        for (int64_t i = 0; i < t->sequence; i++) {
            g->tokens[s * t->sequence + i] = x->window[i];
            g->targets[s * t->sequence + i] = x->window[i + 1];
        }
    }
    KSUBMIT(x->stage->k, stream, UPLOAD, upload, .out = slot->tokens, .host = g->tokens);
    KSUBMIT(x->stage->k, stream, UPLOAD, upload, .out = slot->targets, .host = g->targets);
    kernels_event_record(x->stage->k, g->read, stream);
    return 0;
}

static int peer_of(const struct executor *x, const struct action *a)
{
    return mesh_neighbour(x->mesh, MESH_PIPELINE, a->peer_stage - x->mesh->coord[MESH_PIPELINE]);
}

static int send(struct executor *x, int index, const struct action *a, struct kbuf buf,
                uint32_t tag, struct kstream *stream, struct err *err)
{
    tag += (uint32_t)a->microbatch % TAG_MICROBATCHES;
    return comm_send(x->comm, stream, buf, peer_of(x, a), tag, &x->requests[index], err);
}

static int receive(struct executor *x, const struct action *a, struct kbuf buf, uint32_t tag,
                   struct kstream *stream, struct err *err)
{
    struct comm_request *request = NULL;
    tag += (uint32_t)a->microbatch % TAG_MICROBATCHES;
    if (comm_recv(x->comm, stream, buf, peer_of(x, a), tag, &request, err))
        return -1;
    return comm_wait(x->comm, &request, err);
}

static int run_action(struct executor *x, int index, const struct action *a,
                      const struct pass *pass, struct kstream *stream, struct err *err)
{
    struct stage_slot *slot = a->slot >= 0 ? &x->stage->slots[a->slot] : NULL;
    switch (a->kind) {
    case ACTION_LOAD:
        return load(x, a, pass, stream, err);
    case ACTION_RECV_FORWARD:
        return receive(x, a, slot->input, TAG_FORWARD, stream, err);
    case ACTION_FORWARD:
        return stage_forward(x->stage, a->slot, stream, step_losses(x->step, a->microbatch),
                             pass->scale, err);
    case ACTION_SEND_FORWARD:
        return send(x, index, a, slot->output, TAG_FORWARD, stream, err);
    case ACTION_RECV_BACKWARD:
        return receive(x, a, slot->doutput, TAG_BACKWARD, stream, err);
    case ACTION_BACKWARD_INPUT:
        return stage_backward_input(x->stage, a->slot, stream, err);
    case ACTION_SEND_BACKWARD:
        return send(x, index, a, slot->dinput, TAG_BACKWARD, stream, err);
    case ACTION_BACKWARD_WEIGHT:
        stage_backward_weight(x->stage, a->slot, stream);
        return 0;
    case ACTION_REDUCE_TIED:
        return step_reduce_tied(x->step, stream, err);
    case ACTION_REDUCE_GRADS:
        return step_reduce_grads(x->step, stream, err);
    case ACTION_NORM:
        return step_norm(x->step, stream, err);
    case ACTION_OPTIMIZER:
        return step_optimizer(x->step, stream, err);
    case ACTION_READ_BACK:
        step_read_back(x->step, stream);
        return 0;
    case ACTION_KINDS:
        break;
    }
    return err_set(err, "a program holds an action of kind %d, which the executor does not know",
                   (int)a->kind);
}

static int run_program(struct executor *x, const struct program *program, const struct pass *pass,
                       struct err *err)
{
    struct kernels *k = x->stage->k;
    for (int i = 0; i < program->n; i++) {
        const struct action *a = &program->actions[i];
        struct kstream *stream = x->streams->stream[a->stream];
        for (int w = 0; w < a->n_waits; w++) {
            if (comm_wait(x->comm, &x->requests[a->waits[w]], err))
                return -1;
            kernels_event_wait(k, stream, x->events[a->waits[w]]);
        }
        if (run_action(x, i, a, pass, stream, err))
            return err_prefix(err, "%s, microbatch %d", action_name(a->kind), a->microbatch);
        kernels_event_record(k, x->events[i], stream);
    }
    for (int i = 0; i < program->n; i++)
        if (comm_wait(x->comm, &x->requests[i], err))
            return -1;
    return 0;
}

int execute(struct executor *x, const struct program *program, const struct pass *pass,
            struct err *err)
{
    if (program->n > x->capacity || program->slots > x->stage->n_slots)
        return err_set(err, "a program of %d actions and %d slots for an executor of %d and %d",
                       program->n, program->slots, x->capacity, x->stage->n_slots);
    if (!run_program(x, program, pass, err))
        return 0;
    /* Our caller frees the buffers of the sends that are under way. */
    comm_abort(x->comm, err->text);
    return -1;
}

void executor_close(struct executor *x)
{
    struct kernels *k = x->stage ? x->stage->k : NULL;
    for (int i = 0; x->events && i < x->capacity; i++)
        if (x->events[i])
            kernels_event_close(k, x->events[i]);
    for (int i = 0; x->staging && i < x->stage->n_slots; i++) {
        free(x->staging[i].tokens);
        free(x->staging[i].targets);
        if (x->staging[i].read)
            kernels_event_close(k, x->staging[i].read);
    }
    free(x->events);
    free(x->requests);
    free(x->staging);
    free(x->window);
    *x = (struct executor){0};
}
