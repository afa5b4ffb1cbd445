/* step.c - reductions, norm, update and the tally of a training step. See step.h. */
#include "train/step.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

/* Gradients are reduced in pieces: large enough that latency does not count, small enough that the
 * collective's scratch stays small beside the model. */
enum { BUCKET_BYTES = 32 << 20 };
enum { TIED_TAG = 1 << 23 }; /* beyond the tags of activations (execute.c) */

static int open_host(struct step *s, struct err *err)
{
    s->validated = calloc((size_t)s->n_samples, sizeof *s->validated);
    if (!s->validated)
        return err_set(err, "no memory for losses");
    for (int i = 0; i < 2; i++) {
        struct step_host *h = &s->host[i];
        h->tally = calloc(s->tally.count, sizeof *h->tally);
        if (!h->tally)
            return err_set(err, "no memory for the step's tally");
        h->filled = kernels_event_open(s->k, err);
        h->read = kernels_event_open(s->k, err);
        if (!h->filled || !h->read)
            return -1;
    }
    return 0;
}

static void cut_tally(struct step *s)
{
    size_t at = (size_t)s->n_tensors + (size_t)s->n_samples;
    s->sums = kbuf_slice(s->tally, 0, (size_t)s->n_tensors);
    s->losses = kbuf_slice(s->tally, (size_t)s->n_tensors, (size_t)s->n_samples);
    for (int i = 0; i < STEP_WORDS; i++) {
        bool by_rank = i < STEP_BY_RANK;
        s->word[i] = kbuf_slice(s->tally, at + (by_rank ? (size_t)s->mesh->rank : 0), 1);
        at += by_rank ? (size_t)s->world : 1;
    }
    s->reduced = kbuf_slice(s->tally, 0, at);
    s->norm = kbuf_slice(s->tally, at, 1);
    s->factor = kbuf_slice(s->tally, at + 1, 1);
}

int step_open(struct step *s, struct kernels *k, struct comm *comm, const struct mesh *mesh,
              const struct plan *plan, struct state *state, struct err *err)
{
    *s = (struct step){.plan = plan,
                       .k = k,
                       .comm = comm,
                       .mesh = mesh,
                       .state = state,
                       .n_tensors = model_count(&plan->model),
                       .n_samples = (int)plan->training.global_batch,
                       .world = mesh->world};
    size_t count = (size_t)s->n_tensors + (size_t)s->n_samples + STEP_BY_RANK * (size_t)s->world +
                   (STEP_WORDS - STEP_BY_RANK) + 2;
    if (kernels_alloc(k, K_F64, count, &s->tally, err) ||
        kernels_alloc(k, K_F64, KSTEP_COUNT, &s->values, err) ||
        kernels_alloc(k, K_F64, (size_t)plan->training.microbatch, &s->spare_losses, err))
        goto fail;
    cut_tally(s);
    if (open_host(s, err))
        goto fail;
    return 0;
fail:
    step_close(s);
    return -1;
}

static int64_t deadline(const struct step *s)
{
    return clock_ms() + s->plan->resilience.comm_timeout_ms;
}

int step_begin(struct step *s, struct kstream *stream, int64_t number, const struct step_word *word,
               struct err *err)
{
    const struct plan_training *t = &s->plan->training;
    struct step_host *h = &s->host[number & 1];
    if (kernels_event_sync(s->k, h->filled, deadline(s), err))
        return -1;
    s->number = number;
    h->values[KSTEP_LR] = plan_lr(t, number);
    h->values[KSTEP_CORRECTION1] = 1 - pow(t->beta1, (double)(number + 1));
    h->values[KSTEP_CORRECTION2] = 1 - pow(t->beta2, (double)(number + 1));
    h->word[STEP_FINISHED] = (double)(word->finished + 1);
    h->word[STEP_COPIED] = (double)word->copied;
    h->word[STEP_STALL] = word->stall_s;
    h->word[STEP_WRITE] = word->write_s;
    h->word[STEP_SNAPSHOT] = word->snapshot_s;
    h->word[STEP_EVERY] = (double)word->every;
    h->word[STEP_SNAPSHOT_EVERY] = (double)word->snapshot_every;
    h->word[STEP_STOP] = word->stop ? 1 : 0;
    KSUBMIT(s->k, stream, UPLOAD, upload, .out = s->values, .host = h->values);
    for (int i = 0; i < STEP_WORDS; i++)
        KSUBMIT(s->k, stream, UPLOAD, upload, .out = s->word[i], .host = &h->word[i]);
    kernels_event_record(s->k, h->filled, stream);
    return 0;
}

struct kbuf step_losses(const struct step *s, int64_t microbatch)
{
    const struct mesh *mesh = s->mesh;
    size_t samples = (size_t)s->plan->training.microbatch;
    int64_t first, count;
    plan_replica_microbatches(s->plan, mesh->coord[MESH_DATA], &first, &count);
    if (mesh->coord[MESH_TENSOR] != 0)
        return s->spare_losses;
    return kbuf_slice(s->losses, (size_t)(first + microbatch) * samples, samples);
}

/* The other stage's gradient of the shared tensor comes into tied_grad, ours goes there. */
static int exchange_tied(struct step *s, struct kstream *stream, struct kbuf mine, struct err *err)
{
    int stages = s->mesh->degree[MESH_PIPELINE];
    int by = s->mesh->coord[MESH_PIPELINE] == 0 ? stages - 1 : 1 - stages;
    int peer = mesh_neighbour(s->mesh, MESH_PIPELINE, by);
    struct comm_request *send = NULL, *receive = NULL;
    if (comm_send(s->comm, stream, mine, peer, TIED_TAG, &send, err) ||
        comm_recv(s->comm, stream, s->state->tied_grad, peer, TIED_TAG, &receive, err) ||
        comm_wait(s->comm, &receive, err) || comm_wait(s->comm, &send, err))
        return err_prefix(err, "exchanging the tied embedding's gradients");
    return 0;
}

int step_reduce_tied(struct step *s, struct kstream *stream, struct err *err)
{
    struct state *state = s->state;
    if (!state->tied_grad.mem)
        return 0;
    int index = state->embedding >= 0 ? state->embedding : state->head;
    struct kbuf mine = state->tensors[index].grad;
    if (s->mesh->degree[MESH_PIPELINE] > 1 && exchange_tied(s, stream, mine, err))
        return -1;
    /* Two terms: their order does not matter to the bits. */
    KSUBMIT(s->k, stream, ADD, add, .out = mine, .a = mine, .b = state->tied_grad);
    KSUBMIT(s->k, stream, FILL, fill, .out = state->tied_grad, .value = 0);
    return 0;
}

int step_reduce_grads(struct step *s, struct kstream *stream, struct err *err)
{
    const struct comm_group *group = &s->mesh->axis[MESH_DATA];
    struct kbuf grads = s->state->grads;
    size_t bucket = BUCKET_BYTES / kdtype_bytes(grads.dtype);
    if (group->size == 1)
        return 0;
    for (size_t at = 0; at < grads.count; at += bucket) {
        size_t left = grads.count - at;
        struct kbuf part = kbuf_slice(grads, at, left < bucket ? left : bucket);
        if (comm_all_reduce(s->comm, group, stream, part, COMM_SUM, err))
            return err_prefix(err, "summing gradients over replicas");
    }
    return 0;
}

/* Over all ranks, an axis after the other, so that no rank needs a connection to all others. Each
 * entry of the tally comes from one rank, or (a split tensor's square sum) from the ranks of one
 * tensor group, which are added first and in their order: so the bits are those of a sum in rank
 * order. */
static int sum_tally(struct step *s, struct kstream *stream, struct kbuf part, struct err *err)
{
    for (int axis = 0; axis < MESH_AXES; axis++)
        if (comm_all_reduce(s->comm, &s->mesh->axis[axis], stream, part, COMM_SUM, err))
            return -1;
    return 0;
}

int step_norm(struct step *s, struct kstream *stream, struct err *err)
{
    struct state *state = s->state;
    for (int i = 0; i < state->n; i++) {
        struct state_tensor *t = &state->tensors[i];
        if (t->counted)
            KSUBMIT(s->k, stream, SUM_SQUARES, sum_squares,
                    .out = kbuf_slice(s->sums, (size_t)t->global.number, 1), .x = t->grad);
    }
    if (s->guard.before_sum && s->guard.before_sum(s->guard.arg, stream, err))
        return -1;
    if (sum_tally(s, stream, s->reduced, err))
        return err_prefix(err, "summing the gradient norm");
    KSUBMIT(s->k, stream, CLIP_FACTOR, clip_factor, .norm = s->norm, .factor = s->factor,
            .sums = s->sums, .max_norm = s->plan->training.clip);
    return 0;
}

int step_optimizer(struct step *s, struct kstream *stream, struct err *err)
{
    const struct plan_training *t = &s->plan->training;
    struct state *state = s->state;
    if (s->guard.before_update && s->guard.before_update(s->guard.arg, stream, err))
        return -1;
    for (int i = 0; i < state->n; i++) {
        struct state_tensor *x = &state->tensors[i];
        KSUBMIT(s->k, stream, ADAMW, adamw, .param = x->param, .grad = x->grad, .m = x->m,
                .v = x->v, .step = s->values, .factor = s->factor, .beta1 = t->beta1,
                .beta2 = t->beta2, .eps = t->eps, .decay = x->global.matrix ? t->weight_decay : 0);
    }
    KSUBMIT(s->k, stream, FILL, fill, .out = state->grads, .value = 0);
    return 0;
}

void step_read_back(struct step *s, struct kstream *stream)
{
    struct step_host *h = &s->host[s->number & 1];
    KSUBMIT(s->k, stream, DOWNLOAD, download, .in = s->tally, .host = h->tally);
    kernels_event_record(s->k, h->read, stream);
    KSUBMIT(s->k, stream, FILL, fill, .out = s->tally, .value = 0);
}

/* Nothing is known before each rank's copy is over, one way or the other. */
static void read_copied(const double *copied, int world, struct step_result *out)
{
    out->copied = (int64_t)copied[0];
    out->copied_rank = 0;
    for (int i = 1; i < world; i++)
        if (out->copied && (copied[i] == 0 || (int64_t)copied[i] < out->copied)) {
            out->copied = (int64_t)copied[i];
            out->copied_rank = i;
        }
}

static double least_of(const double *values, int n)
{
    double least = values[0];
    for (int i = 1; i < n; i++)
        least = fmin(least, values[i]);
    return least;
}

static double most_of(const double *values, int n)
{
    double most = values[0];
    for (int i = 1; i < n; i++)
        most = fmax(most, values[i]);
    return most;
}

int step_collect(struct step *s, int64_t number, struct step_result *out, struct err *err)
{
    struct step_host *h = &s->host[number & 1];
    if (kernels_event_sync(s->k, h->read, deadline(s), err))
        return -1;
    const double *losses = h->tally + s->n_tensors, *words = losses + s->n_samples;
    const double *once = words + STEP_BY_RANK * s->world; /* entries that are there once */
    double sum = 0;
    for (int i = 0; i < s->n_samples; i++)
        sum += losses[i];
    *out = (struct step_result){
        .loss = sum / ((double)s->n_samples * (double)s->plan->training.sequence),
        .norm = once[STEP_WORDS - STEP_BY_RANK],
        .finished = (int64_t)least_of(words + STEP_FINISHED * s->world, s->world) - 1,
        .stall_s = most_of(words + STEP_STALL * s->world, s->world),
        .write_s = most_of(words + STEP_WRITE * s->world, s->world),
        .snapshot_s = most_of(words + STEP_SNAPSHOT * s->world, s->world),
        .every = (int64_t)once[STEP_EVERY - STEP_BY_RANK],
        .snapshot_every = (int64_t)once[STEP_SNAPSHOT_EVERY - STEP_BY_RANK],
        .stop = once[STEP_STOP - STEP_BY_RANK] > 0,
    };
    read_copied(words + STEP_COPIED * s->world, s->world, out);
    return 0;
}

int step_sum_losses(struct step *s, struct kstream *stream, double *sum, struct err *err)
{
    double *losses = s->validated;
    if (sum_tally(s, stream, s->losses, err))
        return err_prefix(err, "summing the validation loss");
    KSUBMIT(s->k, stream, DOWNLOAD, download, .in = s->losses, .host = losses);
    KSUBMIT(s->k, stream, FILL, fill, .out = s->losses, .value = 0);
    if (kernels_stream_sync(s->k, stream, deadline(s), err))
        return -1;
    *sum = 0;
    for (int i = 0; i < s->n_samples; i++)
        *sum += losses[i];
    return 0;
}

void step_close(struct step *s)
{
    if (!s->k)
        return;
    kernels_free(s->k, &s->tally);
    kernels_free(s->k, &s->values);
    kernels_free(s->k, &s->spare_losses);
    free(s->validated);
    for (int i = 0; i < 2; i++) {
        free(s->host[i].tally);
        if (s->host[i].filled)
            kernels_event_close(s->k, s->host[i].filled);
        if (s->host[i].read)
            kernels_event_close(s->k, s->host[i].read);
    }
    *s = (struct step){0};
}
