/* check.c - what no single key can know: defaults that depend on other keys, and whether the keys
 * fit together. The first thing that does not fit is the error; the order is that of the file. */
#include "plan/internal.h"
#include "plan/keys.h"

#include <stdlib.h>
#include <string.h>

/* The program of a step holds every microbatch (runtime/train/program.h): 65,536 of them are some
 * megabytes, and far more than any batch needs. */
enum { MAX_ACCUMULATION = 65536, MAX_WORLD = 1048576 };

/* Tokens are counted in 64 bits; this leaves room for a factor on top. */
#define MAX_TOKENS 1e18

/* "1, 2, 4 or 8", appended to at most ROOM listed values. */
struct list {
    char *text;
    size_t size;
    int n, used;
    long long last;
};

enum { LIST_VALUES = 12 };

static void list_add(struct list *l, long long value)
{
    if (l->n > 0 && l->n <= LIST_VALUES)
        l->used += snprintf(l->text + l->used, l->size - (size_t)l->used, "%s%lld",
                            l->n > 1 ? ", " : "", l->last);
    l->last = value;
    l->n++;
}

static void list_end(struct list *l)
{
    const char *gap = l->n <= 1 ? "" : l->n - 1 > LIST_VALUES ? ", ... or " : " or ";
    snprintf(l->text + l->used, l->size - (size_t)l->used, "%s%lld", gap, l->last);
}

void plan_divisors(int64_t n, char *text, size_t size)
{
    struct list list = {.text = text, .size = size};
    text[0] = 0;
    for (int64_t d = 1; d <= n / d; d++)
        if (n % d == 0)
            list_add(&list, d);
    int64_t root = 0;
    while ((root + 1) <= n / (root + 1))
        root++;
    for (int64_t d = root; d >= 1; d--)
        if (n % d == 0 && n / d != d)
            list_add(&list, n / d);
    list_end(&list);
}

/* ---- defaults ---- */

/* The plan file's name without folder and extension, as a run.name may be. */
static int default_name(struct plan *plan, struct err *err)
{
    const char *slash = strrchr(plan->path, '/');
    const char *base = slash ? slash + 1 : plan->path;
    const char *dot = strrchr(base, '.');
    size_t length = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    plan->name = strndup(base, length < 100 ? length : 100);
    if (!plan->name)
        return err_set(err, "%s: not enough memory", plan->source);
    for (char *s = plan->name; *s; s++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *s) ||
            (*s == '.' && s == plan->name))
            *s = '_';
    if (plan->name[0])
        return 0;
    return plan_error(plan, "run.name", err, "the file has no name: give run.name");
}

static int default_run_dir(struct plan *plan, const char *base_dir, struct err *err)
{
    char text[128];
    const struct plan_key *key = &plan_keys[plan_key_find("run", "dir")];
    snprintf(text, sizeof text, "%s.run", plan->name);
    struct ynode node = {.kind = YNODE_SCALAR, .text = text};
    return plan_key_set(plan, key, &node, plan->source, base_dir, err);
}

/* A tenth as a person writes it: 3e-5 of 3e-4, where binary division gives 2.9999999999999997e-05.
 * The caller has the C locale set. */
static double tenth(double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", value / 10);
    return strtod(text, NULL);
}

static int defaults(struct plan *plan, const char *base_dir, struct err *err)
{
    struct plan_model *m = &plan->model;
    struct plan_training *t = &plan->training;
    char text[200];

    if (!plan->name && default_name(plan, err) < 0)
        return -1;
    if (!plan->run_dir && default_run_dir(plan, base_dir, err) < 0)
        return -1;
    if (!plan_given(plan, "model.kv_heads"))
        m->kv_heads = m->heads;
    if (!plan_given(plan, "model.head_dim")) {
        m->head_dim = m->hidden / m->heads;
        if (m->hidden % m->heads) {
            plan_divisors(m->hidden, text, sizeof text);
            return plan_error(plan, "model.heads", err,
                              "model.heads is %lld, but hidden is %lld: use %s, "
                              "or give model.head_dim",
                              (long long)m->heads, (long long)m->hidden, text);
        }
    }
    if (!plan_given(plan, "training.decay_steps"))
        t->decay_steps = t->steps;
    if (!plan_given(plan, "training.min_lr"))
        t->min_lr = tenth(t->lr);
    if (!plan_given(plan, "training.wsd_decay_steps"))
        t->wsd_decay_steps = t->decay_steps < 10 ? 1 : t->decay_steps / 10;
    return 0;
}

/* ---- the model ---- */

static int check_model(const struct plan *plan, struct err *err)
{
    const struct plan_model *m = &plan->model;
    char text[200];
    if (m->head_dim < 2 || m->head_dim % 2 || m->head_dim > 4096)
        return plan_error(
            plan, plan_given(plan, "model.head_dim") ? "model.head_dim" : "model.heads", err,
            "model.head_dim is %lld%s, but rotary embedding turns pairs: "
            "use an even number from 2 to 4096",
            (long long)m->head_dim, plan_given(plan, "model.head_dim") ? "" : " (hidden / heads)");
    if (m->heads % m->kv_heads) {
        plan_divisors(m->heads, text, sizeof text);
        return plan_error(plan, "model.kv_heads", err,
                          "model.kv_heads is %lld, but attention has %lld heads: use %s",
                          (long long)m->kv_heads, (long long)m->heads, text);
    }
    if (m->rope_scaling.on && m->rope_scaling.high_freq_factor <= m->rope_scaling.low_freq_factor)
        return plan_error(plan, "model.rope_scaling.high_freq_factor", err,
                          "model.rope_scaling.high_freq_factor is %g, but low_freq_factor is %g: "
                          "use a number above that",
                          m->rope_scaling.high_freq_factor, m->rope_scaling.low_freq_factor);
    return 0;
}

static int check_data(const struct plan *plan, struct err *err)
{
    if (plan->data.n_val_files > 0 && plan->data.val_fraction > 0)
        return plan_error(plan, "data.val_fraction", err,
                          "data.val_fraction is %g, but data.validation names files: "
                          "use one of the two",
                          plan->data.val_fraction);
    return 0;
}

/* ---- training ---- */

static int check_schedule(const struct plan *plan, struct err *err)
{
    const struct plan_training *t = &plan->training;
    if (t->warmup_steps > t->decay_steps)
        return plan_error(plan, "training.warmup_steps", err,
                          "training.warmup_steps is %lld, but the schedule ends at step %lld (%s): "
                          "use %lld or less",
                          (long long)t->warmup_steps, (long long)t->decay_steps,
                          plan_given(plan, "training.decay_steps") ? "decay_steps" : "steps",
                          (long long)t->decay_steps);
    if (t->min_lr > t->lr)
        return plan_error(plan, "training.min_lr", err,
                          "training.min_lr is %g, but lr is %g: use %g or less", t->min_lr, t->lr,
                          t->lr);
    int64_t left = t->decay_steps - t->warmup_steps;
    if (t->lr_schedule != PLAN_LR_WSD || t->wsd_decay_steps <= left)
        return 0;
    if (left > 0 && plan_given(plan, "training.wsd_decay_steps"))
        return plan_error(plan, "training.wsd_decay_steps", err,
                          "training.wsd_decay_steps is %lld, but %lld steps follow the warm-up: "
                          "use %lld or less",
                          (long long)t->wsd_decay_steps, (long long)left, (long long)left);
    return plan_error(
        plan, "training.warmup_steps", err,
        "training.warmup_steps is %lld, but wsd decays in the last %lld of %lld steps: "
        "use %lld or less",
        (long long)t->warmup_steps, (long long)t->wsd_decay_steps, (long long)t->decay_steps,
        (long long)(t->decay_steps > t->wsd_decay_steps ? t->decay_steps - t->wsd_decay_steps : 0));
}

/* The step's microbatches to the replicas. */
static int share_batch(struct plan *plan, struct err *err)
{
    const struct plan_training *t = &plan->training;
    int replicas = plan->parallel.data;
    bool uneven = plan->parallel.uneven;
    int64_t all = t->global_batch / t->microbatch;
    int64_t unit = uneven ? t->microbatch : replicas * t->microbatch;
    char near[60];
    if (t->global_batch % unit || all < replicas) {
        int64_t above = (t->global_batch / unit + 1) * unit, below = above - unit;
        if (uneven && above < replicas * t->microbatch)
            above = replicas * t->microbatch, below = 0;
        snprintf(near, sizeof near, below ? "%lld or %lld" : "%lld",
                 (long long)(below ? below : above), (long long)above);
        return plan_error(plan, "training.global_batch", err,
                          "training.global_batch is %lld, but %d replicas (parallel.data) take "
                          "microbatches of %lld: use a multiple of %lld, such as %s%s",
                          (long long)t->global_batch, replicas, (long long)t->microbatch,
                          (long long)unit, near,
                          !uneven && t->global_batch % t->microbatch == 0 && all >= replicas
                              ? ", or parallel.uneven: true"
                              : "");
    }
    plan->accumulation = all / replicas;
    plan->extra = (int)(all % replicas);
    return 0;
}

static int check_batch(struct plan *plan, struct err *err)
{
    const struct plan_training *t = &plan->training;
    if (share_batch(plan, err) < 0)
        return -1;
    int64_t most = plan_most_microbatches(plan);
    if (most > MAX_ACCUMULATION)
        return plan_error(plan, "training.microbatch", err,
                          "training.microbatch is %lld, but that makes %lld microbatches a step: "
                          "use %lld or more",
                          (long long)t->microbatch, (long long)most,
                          (long long)((most - 1) / MAX_ACCUMULATION + 1) *
                              (long long)t->microbatch);
    double tokens = (double)t->global_batch * (double)t->sequence;
    if (tokens * (double)t->steps > MAX_TOKENS)
        return plan_error(plan, "training.steps", err,
                          "training.steps is %lld, but steps of %.0f tokens can be counted up to "
                          "%.0g tokens: use fewer steps, samples or tokens",
                          (long long)t->steps, tokens, MAX_TOKENS);
    return 0;
}

/* ---- parallel ---- */

/* Can the model be split among this many tensor ranks? If not, why says what is in the way. The
 * vocabulary may be uneven: parts differ by one token at most (model_slice in train/model.c), so
 * with a token for each rank none is left without. */
static bool tensor_fits(const struct plan_model *m, int64_t tensor, char *why, size_t size)
{
    if (m->heads % tensor)
        snprintf(why, size, "attention has %lld heads", (long long)m->heads);
    else if (m->kv_heads % tensor)
        snprintf(why, size, "attention has %lld kv_heads", (long long)m->kv_heads);
    else if (m->ffn % tensor)
        snprintf(why, size, "the feed-forward layer is %lld wide", (long long)m->ffn);
    else if (m->vocab < tensor)
        snprintf(why, size, "a vocabulary of %lld tokens leaves a rank without one",
                 (long long)m->vocab);
    else
        return true;
    return false;
}

static int check_tensor(const struct plan *plan, struct err *err)
{
    char fit[200] = "", why[120], unused[120];
    struct list list = {.text = fit, .size = sizeof fit};
    if (tensor_fits(&plan->model, plan->parallel.tensor, why, sizeof why))
        return 0;
    for (int64_t tensor = 1; tensor <= plan->model.kv_heads; tensor++)
        if (tensor_fits(&plan->model, tensor, unused, sizeof unused))
            list_add(&list, tensor);
    list_end(&list);
    return plan_error(plan, "parallel.tensor", err, "parallel.tensor is %d, but %s: use %s",
                      plan->parallel.tensor, why, fit);
}

static int check_stages(const struct plan *plan, struct err *err)
{
    const struct plan_parallel *p = &plan->parallel;
    long long layers = plan->model.layers;
    if (p->pipeline > layers)
        return plan_error(
            plan, "parallel.pipeline", err,
            "parallel.pipeline is %d, but the model has %lld layers: use %lld or less", p->pipeline,
            layers, layers);
    if ((long long)p->pipeline * p->virtual_stages > layers)
        return plan_error(plan, "parallel.virtual", err,
                          "parallel.virtual is %d, but %d stages of as many chunks need more than "
                          "the model's %lld layers: use %lld or less",
                          p->virtual_stages, p->pipeline, layers, layers / p->pipeline);
    if (p->virtual_stages > 1 && p->pipeline == 1)
        return plan_error(plan, "parallel.virtual", err,
                          "parallel.virtual is %d, but there is one pipeline stage: use 1",
                          p->virtual_stages);
    return 0;
}

static int check_parallel(struct plan *plan, struct err *err)
{
    const struct plan_parallel *p = &plan->parallel;
    char text[200];
    if (check_tensor(plan, err) < 0)
        return -1;
    if (plan->training.sequence % p->context) {
        plan_divisors(plan->training.sequence, text, sizeof text);
        return plan_error(plan, "parallel.context", err,
                          "parallel.context is %d, but a sequence has %lld tokens: use %s",
                          p->context, (long long)plan->training.sequence, text);
    }
    if (p->expert > 1)
        return plan_error(plan, "parallel.expert", err,
                          "parallel.expert is %d, but the model has no experts: use 1", p->expert);
    if (check_stages(plan, err) < 0)
        return -1;
    double world = (double)p->tensor * p->context * p->expert * p->pipeline * p->data;
    if (world > MAX_WORLD)
        return plan_error(plan, "parallel.data", err,
                          "parallel.data is %d, but the degrees multiply to %.0f ranks: "
                          "use degrees of at most %d ranks in all",
                          p->data, world, MAX_WORLD);
    plan->world = (int)world;
    if (p->shard != PLAN_SHARD_NONE && p->data == 1)
        return plan_error(plan, "parallel.shard", err,
                          "parallel.shard splits among replicas, but parallel.data is 1: use none");
    return 0;
}

/* ---- checkpoint, resilience ---- */

static int check_checkpoint(const struct plan *plan, struct err *err)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    char every[24] = "auto";
    if (c->every != PLAN_AUTO)
        snprintf(every, sizeof every, "%lld", (long long)c->every);
    if (c->every != 0 && !c->local && !c->shared)
        return plan_error(plan, "checkpoint.every", err,
                          "checkpoint.every is %s, but there is no folder to write to: "
                          "give checkpoint.local or checkpoint.shared",
                          every);
    if (c->shared_every > 0 && !(c->local && c->shared))
        return plan_error(plan, "checkpoint.shared_every", err,
                          "checkpoint.shared_every is %lld, but checkpoint.%s is not given: local "
                          "checkpoints are copied to shared; give both, or leave shared_every out",
                          (long long)c->shared_every, c->local ? "shared" : "local");
    if (c->redundancy != PLAN_REDUNDANCY_NONE && !c->local)
        return plan_error(plan, "checkpoint.redundancy", err,
                          "checkpoint.redundancy guards local checkpoints, but checkpoint.local is "
                          "not given: use none, or give it");
    if (c->redundancy != PLAN_REDUNDANCY_NONE && plan->world == 1)
        return plan_error(
            plan, "checkpoint.redundancy", err,
            "checkpoint.redundancy needs another rank, but the plan has one: use none");
    /* A run that has shrunk goes on with a group of the nodes that are left. */
    if (plan->world < plan_redundancy_nodes(c) && !plan->parallel.uneven) {
        char text[PLAN_REDUNDANCY_BYTES];
        plan_redundancy_text(c, text);
        return plan_error(plan, "checkpoint.redundancy", err,
                          "checkpoint.redundancy is %s, which needs ranks on %d nodes, but the "
                          "plan has %d ranks: use partner, or a group of %d at most",
                          text, plan_redundancy_nodes(c), plan->world, plan->world);
    }
    if (c->block_bytes % 4096)
        return plan_error(
            plan, "checkpoint.block_bytes", err,
            "checkpoint.block_bytes is %lld, but disks are written in blocks of 4096: "
            "use a multiple of 4096, such as %lld",
            (long long)c->block_bytes, (long long)(c->block_bytes / 4096 * 4096));
    return 0;
}

static int check_resilience(const struct plan *plan, struct err *err)
{
    const struct plan_resilience *r = &plan->resilience;
    if (r->patience_ms < 2 * r->heartbeat_ms)
        return plan_error(plan, "resilience.patience_ms", err,
                          "resilience.patience_ms is %lld, but a heartbeat comes every %lld ms: "
                          "use %lld or more",
                          (long long)r->patience_ms, (long long)r->heartbeat_ms,
                          2 * (long long)r->heartbeat_ms);
    if (r->min_data > plan->parallel.data)
        return plan_error(plan, "resilience.min_data", err,
                          "resilience.min_data is %d, but parallel.data is %d: use %d or less",
                          r->min_data, plan->parallel.data, plan->parallel.data);
    return 0;
}

int plan_resolve(struct plan *plan, const char *base_dir, struct err *err)
{
    if (defaults(plan, base_dir, err) < 0 || check_model(plan, err) < 0 ||
        check_data(plan, err) < 0 || check_schedule(plan, err) < 0 ||
        check_parallel(plan, err) < 0 || check_batch(plan, err) < 0 ||
        check_checkpoint(plan, err) < 0 || check_resilience(plan, err) < 0)
        return -1;
    plan->parameters = 0;
    for (int stage = 0; stage < plan->parallel.pipeline; stage++)
        plan->parameters += plan_stage_parameters(plan, stage);
    if (plan->model.tied && plan->parallel.pipeline > 1)
        plan->parameters -= plan->model.vocab * plan->model.hidden; /* the last stage's copy */
    return 0;
}
