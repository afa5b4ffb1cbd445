/* sample.c - one rank holds the whole model and runs its forward over the last `sequence` tokens,
 * once for each new token, or once for each window of a text that is scored. Attention is causal,
 * so what stands behind the last token (zeros) does not matter to its logits. Nothing is cached
 * between tokens: at the sizes one process can hold, a few hundred tokens take a second. See
 * sample.h. */
#include "train/sample.h"

#include "base/clock.h"
#include "train/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARD_MS = 600000 };

struct sampler {
    int threads;
    struct plan plan; /* the caller's, as one rank with one sample */
    struct kernels *k;
    struct comm_hub *hub;
    struct comm *comm;
    struct kstream *stream;
    struct mesh mesh;
    struct state state;
    struct stage stage;
    struct kbuf losses;
    int32_t *tokens, *targets; /* sequence */
    int64_t length;            /* of the context in tokens */
    double *logits;            /* vocab */
    void *raw;                 /* the same in the model's dtype */
};

static int open_device(struct sampler *s, struct err *err)
{
    int degree[MESH_AXES] = {1, 1, 1, 1, 1};
    s->k = kernels_open_cpu(s->threads, err);
    s->hub = s->k ? comm_hub_open(1, err) : NULL;
    s->comm = s->hub ? comm_open_local(s->hub, s->k, 0, err) : NULL;
    s->stream = s->comm ? kernels_stream_open(s->k, err) : NULL;
    if (!s->stream || mesh_open(&s->mesh, degree, 0, err) ||
        state_open(&s->state, s->k, &s->plan, &s->mesh, err))
        return -1;
    if (stage_open(&s->stage, &s->state, &s->plan, &s->mesh, s->comm, 1, s->stream, err))
        return -1;
    return kernels_alloc(s->k, K_F64, 1, &s->losses, err);
}

static int open_context(struct sampler *s, struct err *err)
{
    size_t sequence = (size_t)s->plan.training.sequence, vocab = (size_t)s->plan.model.vocab;
    s->tokens = calloc(sequence, sizeof *s->tokens);
    s->targets = calloc(sequence, sizeof *s->targets);
    s->logits = calloc(vocab, sizeof *s->logits);
    s->raw = calloc(vocab, sizeof(double));
    if (!s->tokens || !s->targets || !s->logits || !s->raw)
        return err_set(err, "no memory to sample");
    for (size_t i = 0; i < sequence; i++)
        s->targets[i] = -1; /* no loss is wanted */
    return 0;
}

static void append(struct sampler *s, int32_t token)
{
    int64_t sequence = s->plan.training.sequence;
    if (s->length == sequence) {
        memmove(s->tokens, s->tokens + 1, (size_t)(sequence - 1) * sizeof *s->tokens);
        s->length--;
    }
    s->tokens[s->length++] = token;
}

/* Of all tokens that stand in the context. */
static int forward(struct sampler *s, struct err *err)
{
    struct stage_slot *slot = &s->stage.slots[0];
    KSUBMIT(s->k, s->stream, UPLOAD, upload, .out = slot->tokens, .host = s->tokens);
    KSUBMIT(s->k, s->stream, UPLOAD, upload, .out = slot->targets, .host = s->targets);
    return stage_forward(&s->stage, 0, s->stream, s->losses, 0, err);
}

/* Into s->logits: of the token after the one at `at`. */
static int read_logits(struct sampler *s, int64_t at, struct err *err)
{
    size_t vocab = (size_t)s->plan.model.vocab;
    KSUBMIT(s->k, s->stream, DOWNLOAD, download,
            .in = kbuf_slice(s->stage.slots[0].head.logits, (size_t)at * vocab, vocab),
            .host = s->raw);
    if (kernels_stream_sync(s->k, s->stream, clock_ms() + FORWARD_MS, err))
        return -1;
    for (size_t i = 0; i < vocab; i++)
        s->logits[i] = s->state.dtype == K_F64 ? ((double *)s->raw)[i] : ((float *)s->raw)[i];
    return 0;
}

static int64_t likeliest(const double *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Everything below the k-th largest becomes impossible. */
static void keep_top(double *logits, int64_t vocab, int64_t k)
{
    double *sorted = malloc((size_t)vocab * sizeof *sorted);
    if (!sorted)
        return;
    memcpy(sorted, logits, (size_t)vocab * sizeof *sorted);
    qsort(sorted, (size_t)vocab, sizeof *sorted, descending);
    double least = sorted[k - 1];
    free(sorted);
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] < least)
            logits[i] = -INFINITY;
}

int32_t sample_draw(double *logits, int64_t vocab, double temperature, int64_t top_k,
                    double uniform)
{
    int64_t best = likeliest(logits, vocab);
    if (temperature <= 0)
        return (int32_t)best;
    double most = logits[best], sum = 0;
    if (top_k > 0 && top_k < vocab)
        keep_top(logits, vocab, top_k);
    for (int64_t i = 0; i < vocab; i++) {
        logits[i] = exp((logits[i] - most) / temperature);
        sum += logits[i];
    }
    double left = uniform * sum;
    for (int64_t i = 0; i < vocab; i++) {
        if (left < logits[i])
            return (int32_t)i;
        left -= logits[i];
    }
    return (int32_t)best; /* only rounding can lead here */
}

/* splitmix64 (Steele, Lea and Flood 2014). */
static double next_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int generate(struct sampler *s, const struct sample_options *o, struct err *err)
{
    uint64_t random = o->seed;
    for (const char *c = o->prompt; *c; c++)
        append(s, (unsigned char)*c);
    for (int64_t i = 0; i < o->tokens; i++) {
        if (forward(s, err) || read_logits(s, s->length - 1, err))
            return -1;
        int32_t token = sample_draw(s->logits, s->plan.model.vocab, o->temperature, o->top_k,
                                    next_uniform(&random));
        append(s, token);
        o->token(o->arg, token);
    }
    return 0;
}

static double log_probability(const double *logits, int64_t vocab, int32_t token)
{
    double most = logits[likeliest(logits, vocab)], sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - most);
    return logits[token] - most - log(sum);
}

static int score(struct sampler *s, const struct score_options *o, struct err *err)
{
    int64_t sequence = s->plan.training.sequence, vocab = s->plan.model.vocab;
    for (int64_t i = 0; i < o->n; i++)
        if (o->tokens[i] < 0 || o->tokens[i] >= vocab)
            return err_set(err, "token %lld is %d; the model knows 0 to %lld", (long long)i,
                           (int)o->tokens[i], (long long)vocab - 1);
    for (int64_t first = 0; first + 1 < o->n; first += sequence) {
        int64_t n = o->n - first < sequence ? o->n - first : sequence;
        memcpy(s->tokens, o->tokens + first, (size_t)n * sizeof *s->tokens);
        if (forward(s, err))
            return -1;
        for (int64_t i = 0; i < n && first + i + 1 < o->n; i++) {
            int32_t token = o->tokens[first + i + 1];
            if (read_logits(s, i, err))
                return -1;
            o->score(o->arg, token, log_probability(s->logits, vocab, token));
        }
    }
    return 0;
}

static void close_sampler(struct sampler *s)
{
    if (s->k)
        kernels_free(s->k, &s->losses);
    stage_close(&s->stage);
    state_close(&s->state);
    mesh_close(&s->mesh);
    if (s->stream)
        kernels_stream_close(s->k, s->stream);
    if (s->comm)
        comm_close(s->comm);
    comm_hub_close(s->hub);
    if (s->k)
        kernels_close(s->k);
    free(s->tokens);
    free(s->targets);
    free(s->logits);
    free(s->raw);
}

/* The caller's plan on one rank, with a checkpoint's weights. close_sampler after either. */
static int open_sampler(struct sampler *s, const struct plan *plan, int threads,
                        const struct weights_source *source, struct ckpt_position *position,
                        struct err *err)
{
    *s = (struct sampler){.threads = threads, .plan = *plan};
    s->plan.parallel.tensor = s->plan.parallel.pipeline = s->plan.parallel.data = 1;
    s->plan.training.microbatch = 1;
    /* A model trained in bf16 is run in f32, which holds its weights exactly. */
    if (s->plan.training.precision == PLAN_BF16)
        s->plan.training.precision = PLAN_F32;
    return open_device(s, err) || open_context(s, err) ||
                   weights_load(source, &s->plan.model, &s->state, s->stream, position, err)
               ? -1
               : 0;
}

int sample_run(const struct sample_options *options, struct ckpt_position *position,
               struct err *err)
{
    struct sampler s;
    if (!*options->prompt)
        return err_set(err, "the prompt is empty: give at least one byte");
    if (options->plan->data.format != PLAN_DATA_TEXT)
        return err_set(err, "the plan's tokens are not bytes (data.format is not text), so a text "
                            "cannot be turned into them");
    int rv = open_sampler(&s, options->plan, options->threads, &options->source, position, err) ||
             generate(&s, options, err);
    close_sampler(&s);
    return rv ? -1 : 0;
}

int sample_score(const struct score_options *options, struct ckpt_position *position,
                 struct err *err)
{
    struct sampler s;
    if (options->n < 2)
        return err_set(err, "there is nothing to score: at least 2 tokens are needed");
    int rv = open_sampler(&s, options->plan, options->threads, &options->source, position, err) ||
             score(&s, options, err);
    close_sampler(&s);
    return rv ? -1 : 0;
}
