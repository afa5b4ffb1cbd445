/* print.c - the resolved plan for people. */
#include "plan/internal.h"

#include <stdio.h>

/* More ranks than this are summarised: a map of them is for nobody. */
enum { MAP_RANKS = 64, STAGE_LINES = 32 };

static void print_bytes(double bytes, FILE *out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    fprintf(out, bytes >= 100 || unit == 0 ? "%7.0f %-3s" : "%7.1f %-3s", bytes, units[unit]);
}

static void print_count(double n, FILE *out)
{
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    int unit = 0;
    while (n >= 1000 && unit < 4) {
        n /= 1000;
        unit++;
    }
    fprintf(out, unit ? "%.2f%s" : "%.0f%s", n, units[unit]);
}

/* Where they do not divide, the replicas with fewer wait for the others. */
static void print_microbatches(const struct plan *plan, FILE *out)
{
    long long m = plan->accumulation, samples = plan->training.microbatch;
    int n = plan->parallel.data;
    if (!plan->extra) {
        fprintf(out, "# microbatches     %lld of %lld samples, a step and replica\n", m, samples);
        return;
    }
    double idle = (double)(n - plan->extra) / ((double)n * (double)(m + 1));
    fprintf(out,
            "# microbatches     of %lld samples, a step: %lld on %d of %d replicas, %lld on the "
            "others, %.1f%% idle\n",
            samples, m + 1, plan->extra, n, m, 100 * idle);
}

static void print_sums(const struct plan *plan, FILE *out)
{
    double tokens = (double)plan->training.global_batch * (double)plan->training.sequence;
    double flops = plan_flops_per_token(plan);
    fprintf(out, "# parameters       ");
    print_count((double)plan->parameters, out);
    fprintf(out, " (%lld)\n# tokens a step    ", (long long)plan->parameters);
    print_count(tokens, out);
    fprintf(out, ", in all ");
    print_count(tokens * (double)plan->training.steps, out);
    fprintf(out, "\n# FLOPs a token    %.3g, in all %.3g\n", flops,
            flops * tokens * (double)plan->training.steps);
    fprintf(out,
            "# ranks            %d = tensor %d x context %d x expert %d x pipeline %d x data %d\n",
            plan->world, plan->parallel.tensor, plan->parallel.context, plan->parallel.expert,
            plan->parallel.pipeline, plan->parallel.data);
    print_microbatches(plan, out);
    fprintf(out, "# plan hash        %016llx\n", (unsigned long long)plan_hash(plan));
}

static void print_stage(const struct plan *plan, int stage, FILE *out)
{
    int64_t first, count;
    struct plan_memory m = plan_memory(plan, stage);
    plan_stage_layers(plan, stage, &first, &count);
    fprintf(out, "# %5d  %4lld - %-4lld  ", stage, (long long)first,
            (long long)(first + count - 1));
    print_bytes(m.weights, out);
    print_bytes(m.gradients, out);
    print_bytes(m.optimizer, out);
    print_bytes(m.activations, out);
    print_bytes(m.weights + m.gradients + m.optimizer + m.activations, out);
    fputc('\n', out);
}

/* One line a stage; of very many the first and the last ones. */
static void print_stages(const struct plan *plan, FILE *out)
{
    int stages = plan->parallel.pipeline;
    fprintf(out,
            "#\n# memory a rank, estimated\n"
            "# stage  layers           weights  gradients  optimizer activations      total\n");
    for (int s = 0; s < stages; s++) {
        if (stages > STAGE_LINES && s == STAGE_LINES / 2) {
            fprintf(out, "#   ... %d more stages ...\n", stages - STAGE_LINES);
            s = stages - STAGE_LINES / 2;
        }
        print_stage(plan, s, out);
    }
}

/* Weights and moments of the stage that has most, as often as they lie on a node's disk. */
static void print_checkpoints(const struct plan *plan, FILE *out)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    int ahead = plan_files_ahead(c);
    double file = 0, files = (double)c->keep + 1 + ahead;
    for (int s = 0; s < plan->parallel.pipeline; s++) {
        struct plan_memory m = plan_memory(plan, s);
        if (m.weights + m.optimizer > file)
            file = m.weights + m.optimizer;
    }
    double more = c->redundancy == PLAN_REDUNDANCY_PARTNER ? file
                  : c->group_files ? file * c->group_parities / c->group_files
                                   : 0;
    if (!c->local)
        return;
    fprintf(out, "#\n# disk a rank, estimated: keep + %d checkpoints\n# ", 1 + ahead);
    print_bytes(files * file, out);
    fprintf(out, " its own, each ");
    print_bytes(file, out);
    if (more > 0) {
        fprintf(out, "\n# ");
        print_bytes(files * more, out);
        if (c->group_files)
            fprintf(out, " parity; any %d of a group of %d nodes may be lost", c->group_parities,
                    plan_redundancy_nodes(c));
        else
            fputs(" copies of its partner's", out);
    }
    fputc('\n', out);
}

static void print_host_line(double bytes, const char *what, FILE *out)
{
    fprintf(out, "# ");
    print_bytes(bytes, out);
    fprintf(out, " %s\n", what);
}

/* Of the stage that needs most. The state itself is beside it where the device is the host. */
static void print_host_memory(const struct plan *plan, int tasks_per_node, FILE *out)
{
    struct plan_host_memory most = {0};
    double sum = 0;
    char text[64];
    for (int s = 0; s < plan->parallel.pipeline; s++) {
        struct plan_host_memory m = plan_host_memory(plan, s);
        if (m.copy + m.own + m.wards > sum)
            most = m;
        sum = most.copy + most.own + most.wards;
    }
    if (sum <= 0)
        return;
    fprintf(out, "#\n# host memory a rank for checkpoints, estimated, beside the above\n");
    if (most.copy > 0)
        print_host_line(most.copy, "a copy that files are written from", out);
    if (most.own > 0)
        print_host_line(most.own, "two snapshots (checkpoint.snapshots)", out);
    if (most.wards > 0)
        print_host_line(most.wards, "two of a rank's on another node, if there are more", out);
    print_host_line(sum, "in all", out);
    snprintf(text, sizeof text, "a node of %d ranks", tasks_per_node);
    if (tasks_per_node > 1)
        print_host_line(sum * tasks_per_node, text, out);
}

/* Rank = (((data * pipeline + stage) * expert + e) * context + c) * tensor + t: a row a replica, a
 * cell a stage, in it the stage's ranks. */
static void print_map(const struct plan *plan, FILE *out)
{
    const struct plan_parallel *p = &plan->parallel;
    int cell = p->tensor * p->context * p->expert;
    bool all = plan->world <= MAP_RANKS;
    int rows = all || p->data <= 2 ? p->data : 2;
    int columns = all || p->pipeline <= 8 ? p->pipeline : 8;
    fprintf(out, "#\n# rank map: tensor innermost%s, then pipeline, then data\n",
            p->context * p->expert > 1 ? ", then context and expert" : "");
    for (int d = 0; d < rows; d++) {
        fprintf(out, "# data %-4d", d);
        for (int s = 0; s < columns; s++) {
            int first = (d * p->pipeline + s) * cell;
            fprintf(out, "  stage %d: ", s);
            if (cell == 1)
                fprintf(out, "%d", first);
            else
                fprintf(out, "%d-%d", first, first + cell - 1);
        }
        fputs(columns < p->pipeline ? "  ...\n" : "\n", out);
    }
    if (rows < p->data)
        fprintf(out, "# ... and %d more replicas, each %d ranks further on\n", p->data - rows,
                p->pipeline * cell);
}

int plan_print(const struct plan *plan, int tasks_per_node, FILE *out)
{
    fprintf(out, "# %s, resolved\n", plan->path);
    fputs(plan->text, out);
    print_sums(plan, out);
    print_stages(plan, out);
    print_host_memory(plan, tasks_per_node, out);
    print_checkpoints(plan, out);
    print_map(plan, out);
    return ferror(out) ? -1 : 0;
}
