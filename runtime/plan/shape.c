/* shape.c - what follows from the numbers of a plan: stages, sizes, memory, learning rate. Pure. */
#include "plan/internal.h"

#include <math.h>

void plan_stage_layers(const struct plan *plan, int stage, int64_t *first, int64_t *count)
{
    /* 126 layers in 16 stages: 7 each and 14 left, which go to the 14 stages in the middle. With
     * one more left than there are stages in the middle, the first stage takes it: an embedding is
     * cheaper than a head. */
    int stages = plan->parallel.pipeline;
    int64_t base = plan->model.layers / stages, left = plan->model.layers % stages;
    *first = 0;
    for (int s = 0;; s++) {
        bool middle = s > 0 && s < stages - 1;
        bool extra = middle ? s <= left : s == 0 && left > 0 && left > stages - 2;
        *count = base + extra;
        if (s == stage)
            return;
        *first += *count;
    }
}

/* Weights of one layer: attention's four matrices, the feed-forward layer's three, two norms. */
static int64_t layer_parameters(const struct plan_model *m)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    return m->hidden * (2 * q + 2 * kv + 3 * m->ffn) + 2 * m->hidden;
}

int64_t plan_stage_parameters(const struct plan *plan, int stage)
{
    const struct plan_model *m = &plan->model;
    int64_t first, layers, table = m->vocab * m->hidden, n;
    bool last = stage == plan->parallel.pipeline - 1;
    plan_stage_layers(plan, stage, &first, &layers);
    n = layers * layer_parameters(m);
    if (stage == 0)
        n += table;
    if (last)
        n += m->hidden; /* final norm */
    if (last && !(m->tied && stage == 0))
        n += table;
    return n;
}

double plan_flops_per_token(const struct plan *plan)
{
    const struct plan_model *m = &plan->model;
    double q = (double)(m->heads * m->head_dim), kv = (double)(m->kv_heads * m->head_dim);
    double hidden = (double)m->hidden, layers = (double)m->layers;
    double matrices =
        layers * hidden * (2 * q + 2 * kv + 3 * (double)m->ffn) + (double)m->vocab * hidden;
    double attention = 12 * layers * q * (double)plan->training.sequence / 2;
    return 6 * matrices + attention;
}

void plan_replica_microbatches(const struct plan *plan, int replica, int64_t *first, int64_t *count)
{
    int64_t more = replica < plan->extra ? replica : plan->extra;
    *first = replica * plan->accumulation + more;
    *count = plan->accumulation + (replica < plan->extra);
}

int64_t plan_most_microbatches(const struct plan *plan)
{
    return plan->accumulation + (plan->extra > 0);
}

int64_t plan_stage_slots(const struct plan *plan, int stage)
{
    int64_t depth = plan->parallel.pipeline - stage, most = plan_most_microbatches(plan);
    return plan->parallel.schedule == PLAN_GPIPE || depth > most ? most : depth;
}

/* Weights, gradients, optimizer: bytes per parameter. bf16 is mixed precision: bf16 weights, and in
 * float32 the gradients that are summed (Llama 3 herd, section 3.3.2), a master copy and AdamW's
 * two moments (Rajbhandari et al. 2020, ZeRO, section 3.1: K = 12). float32 and float64 keep one
 * copy. shard divides by the replicas what the replicas split (ZeRO stages 1, 2, 3).
 *
 * Activations: what backward reads, counted from the tensors of one Llama layer with attention
 * recomputed block by block (as Korthikanti et al. 2022 section 4 count GPT's). Per token, C =
 * hidden, q = heads * head_dim, kv likewise, F = ffn, t = tensor: input, first norm's output, sum
 * after attention, second norm's output (4 C); queries and attention's output (2 q / t); keys and
 * values (2 kv / t); gate, up and their product (3 F / t); log-sum-exp and two norms' factors
 * (heads / t + 2). Times the tokens of a microbatch, the layers and the microbatches in flight; and
 * on the last stage the logits of one microbatch. Work space of a single operation is not in it. */
struct plan_memory plan_memory(const struct plan *plan, int stage)
{
    static const struct {
        double weight, gradient, optimizer, activation;
    } bytes_of[] = {
        [PLAN_F32] = {4, 4, 8, 4}, [PLAN_F64] = {8, 8, 16, 8}, [PLAN_BF16] = {2, 4, 12, 2}};
    const struct plan_model *m = &plan->model;
    const struct plan_parallel *p = &plan->parallel;
    double t = p->tensor, q = (double)(m->heads * m->head_dim);
    double kv = (double)(m->kv_heads * m->head_dim);
    double n = (double)plan_stage_parameters(plan, stage) / t;
    double tokens =
        (double)plan->training.microbatch * (double)plan->training.sequence / p->context;
    double a = bytes_of[plan->training.precision].activation;
    int64_t first, layers;
    plan_stage_layers(plan, stage, &first, &layers);
    double layer = 4 * (double)m->hidden + (2 * q + 2 * kv + 3 * (double)m->ffn) / t +
                   (double)m->heads / t + 2;
    double activations =
        a * tokens * (double)layers * layer * (double)plan_stage_slots(plan, stage);
    if (stage == p->pipeline - 1)
        activations += a * tokens * ceil((double)m->vocab / t);
    return (struct plan_memory){
        .weights = n * bytes_of[plan->training.precision].weight /
                   (p->shard >= PLAN_SHARD_WEIGHTS ? p->data : 1),
        .gradients = n * bytes_of[plan->training.precision].gradient /
                     (p->shard >= PLAN_SHARD_GRADIENTS ? p->data : 1),
        .optimizer = n * bytes_of[plan->training.precision].optimizer /
                     (p->shard >= PLAN_SHARD_OPTIMIZER ? p->data : 1),
        .activations = activations,
    };
}

static double file_bytes(const struct plan *plan, int stage)
{
    struct plan_memory m = plan_memory(plan, stage);
    return m.weights + m.optimizer;
}

struct plan_host_memory plan_host_memory(const struct plan *plan, int stage)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    struct plan_host_memory out = {0};
    double most = 0;
    for (int s = 0; s < plan->parallel.pipeline; s++)
        most = fmax(most, file_bytes(plan, s));
    if ((c->local || c->shared) && c->every)
        out.copy = file_bytes(plan, stage);
    if (c->snapshots)
        out.own = 2 * file_bytes(plan, stage);
    if (c->snapshots && plan->world > 1)
        out.wards = 2 * most;
    return out;
}

int plan_nodes(const struct plan *plan, int tasks_per_node, int spares, struct err *err)
{
    char text[200];
    if (tasks_per_node >= 1 && plan->world % tasks_per_node == 0)
        return plan->world / tasks_per_node + spares;
    plan_divisors(plan->world, text, sizeof text);
    return err_set(err, "%s: %d rank%s do not fill nodes of %d tasks: use --ntasks-per-node=%s",
                   plan->source, plan->world, plan->world == 1 ? "" : "s", tasks_per_node, text);
}

/* So many nodes hold ranks: are they enough for checkpoint.redundancy? Partners that have no other
 * node do without, as when a plan is tried on one machine. */
static int check_group(const struct plan *plan, int nodes, struct err *err)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    char text[PLAN_REDUNDANCY_BYTES];
    if (!c->group_files || nodes >= plan_redundancy_nodes(c))
        return 0;
    plan_redundancy_text(c, text);
    return plan_error(
        plan, "checkpoint.redundancy", err,
        "checkpoint.redundancy is %s, which needs ranks on %d nodes, but %d ranks are "
        "to be on %d: use more nodes with fewer tasks each, or smaller groups",
        text, plan_redundancy_nodes(c), plan->world, nodes);
}

int plan_check_counts(const struct plan *plan, int nodes, int tasks_per_node, int spares,
                      struct err *err)
{
    char with[60] = "";
    if (spares < 0)
        spares = plan->resilience.spares;
    if (spares > 0)
        snprintf(with, sizeof with, " and %d spare node%s", spares, spares == 1 ? "" : "s");
    if (tasks_per_node == 0) {
        /* One rank a node is the most nodes the ranks can use, one node with all of them the least.
         */
        if (nodes == 0)
            return 0;
        if (nodes > spares)
            return check_group(plan, nodes - spares, err);
        return err_set(err, "%s: %d ranks%s need %d nodes or more, but -N is %d: use -N%d or more",
                       plan->source, plan->world, with, spares + 1, nodes, spares + 1);
    }
    int needed = plan_nodes(plan, tasks_per_node, spares, err);
    if (needed < 0)
        return -1;
    if (nodes == 0 || nodes >= needed)
        return check_group(plan, needed - spares, err);
    return err_set(err,
                   "%s: %d ranks, %d on a node,%s need %d nodes, but -N is %d: "
                   "use -N%d --ntasks-per-node=%d",
                   plan->source, plan->world, tasks_per_node, with, needed, nodes, needed,
                   tasks_per_node);
}

/* From lr down to min_lr, `done` in 0..1, along half a cosine (Loshchilov and Hutter 2017). */
static double cosine(const struct plan_training *t, double done)
{
    return t->min_lr + (t->lr - t->min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * done));
}

double plan_lr(const struct plan_training *t, int64_t step)
{
    if (step < t->warmup_steps)
        return (double)(step + 1) / (double)t->warmup_steps * t->lr;
    if (t->lr_schedule == PLAN_LR_CONSTANT)
        return t->lr;
    if (step >= t->decay_steps)
        return t->min_lr;
    if (t->lr_schedule == PLAN_LR_COSINE)
        return cosine(t, (double)(step - t->warmup_steps) /
                             (double)(t->decay_steps - t->warmup_steps));
    int64_t start = t->decay_steps - t->wsd_decay_steps;
    if (step < start)
        return t->lr;
    return t->lr + (t->min_lr - t->lr) * (double)(step - start) / (double)t->wsd_decay_steps;
}
