/* simulate.c - `gtrain simulate`: how much of a long run's time would be useful under failures.
 *
 * What the plan says is taken from it, measured values say it better, an option best, and what
 * none says has a default; all of it is printed, so that no number of the result hides where it
 * came from. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/simulate_measured.h"
#include "cli/simulate_svg.h"
#include "plan/plan.h"
#include "plan/simulate.h"

/* The Llama 3 Herd of Models, 2024: 419 unexpected interruptions in 54 days of training on 16,384
 * GPUs, 8 in a node; 400 TFLOP/s a GPU (table 4). */
static const double LLAMA3_FAILURES = 419, LLAMA3_DAYS = 54, LLAMA3_NODES = 2048, TFLOPS = 400;
static const double DAY_S = 86400, HOUR_S = 3600;

/* All numbers are doubles, NAN where nothing was said, so that one table reads them. */
struct arguments {
    double nodes, gpus, gpus_per_node, days, steps, mtbf_hours, node_mtbf_hours;
    double step_s, tflops, stall_s, write_s, shared_every, shared_s;
    double snapshot_stall_s, snapshot_copy_s, detect_s, restart_s;
    double restore_local_s, restore_partner_s, restore_shared_s;
    double spares, repair_hours, requeue_s, runs, seed;
    const char *interval, *redundancy, *snapshots, *trace, *svg, *plan, *measured_in;
    struct measured measured;
};

enum value { POSITIVE, NOT_NEGATIVE, COUNT, COUNT_OR_NONE, TEXT };

static const struct {
    const char *name;
    enum value value;
    size_t at;
    double otherwise; /* of what no plan says */
} options[] = {
#define NUMBER(name, field, value, otherwise)                                                      \
    {                                                                                              \
        name, value, offsetof(struct arguments, field), otherwise                                  \
    }
    NUMBER("nodes", nodes, COUNT, NAN),
    NUMBER("gpus", gpus, COUNT, NAN),
    NUMBER("gpus-per-node", gpus_per_node, COUNT, 8),
    NUMBER("days", days, POSITIVE, NAN),
    NUMBER("steps", steps, COUNT, NAN),
    NUMBER("mtbf-hours", mtbf_hours, POSITIVE, NAN),
    NUMBER("node-mtbf-hours", node_mtbf_hours, POSITIVE, NAN),
    NUMBER("step-s", step_s, POSITIVE, NAN),
    NUMBER("tflops", tflops, POSITIVE, NAN),
    NUMBER("stall-s", stall_s, NOT_NEGATIVE, 0.5),
    NUMBER("write-s", write_s, NOT_NEGATIVE, 20),
    NUMBER("shared-every", shared_every, COUNT, NAN),
    NUMBER("shared-s", shared_s, NOT_NEGATIVE, 120),
    NUMBER("snapshot-stall-s", snapshot_stall_s, NOT_NEGATIVE, 0),
    NUMBER("snapshot-copy-s", snapshot_copy_s, NOT_NEGATIVE, NAN),
    NUMBER("detect-s", detect_s, NOT_NEGATIVE, NAN),
    NUMBER("restart-s", restart_s, NOT_NEGATIVE, 15),
    NUMBER("restore-local-s", restore_local_s, NOT_NEGATIVE, 2),
    NUMBER("restore-partner-s", restore_partner_s, NOT_NEGATIVE, 5),
    NUMBER("restore-shared-s", restore_shared_s, NOT_NEGATIVE, 60),
    NUMBER("spares", spares, COUNT_OR_NONE, NAN),
    NUMBER("repair-hours", repair_hours, NOT_NEGATIVE, 1),
    NUMBER("requeue-s", requeue_s, NOT_NEGATIVE, 60),
    NUMBER("runs", runs, COUNT, 200),
    NUMBER("seed", seed, COUNT_OR_NONE, 1),
#undef NUMBER
    {"interval-s", TEXT, offsetof(struct arguments, interval), 0},
    {"redundancy", TEXT, offsetof(struct arguments, redundancy), 0},
    {"snapshots", TEXT, offsetof(struct arguments, snapshots), 0},
    {"trace", TEXT, offsetof(struct arguments, trace), 0},
    {"svg", TEXT, offsetof(struct arguments, svg), 0},
    {"measured", TEXT, offsetof(struct arguments, measured_in), 0},
};

enum { N_OPTIONS = sizeof options / sizeof *options, OPT_FIRST = 256, MOST_RUNS = 100000 };

static const char usage_text[] =
    "usage: gtrain simulate [PLAN[,section.key=value...]] [OPTION...]\n"
    "\n"
    "Replays failures of a long training run, and prints how much of its time is useful (ETTR).\n"
    "The size of the job, its spares, steps and checkpoints come from the plan or from options:\n"
    "  --nodes N | --gpus N   --gpus-per-node N (8)   --spares N (8)\n"
    "  --days D (54) | --steps N   --step-s S, or --tflops T a GPU (400) with a plan\n"
    "Failures: Llama 3's 419 in 54 days on 2,048 nodes, for as many nodes as there are, or\n"
    "  --mtbf-hours H of the job | --node-mtbf-hours H of one node\n"
    "  --trace llama3 | FILE  lines of time_hours,node[,kind], kind node or worker\n"
    "Checkpoints (all times in seconds):\n"
    "  --interval-s S|auto   --stall-s S (0.5)   --write-s S (20)   --redundancy none|partner\n"
    "  --shared-every N (10)   --shared-s S (120)\n"
    "  --snapshots on|off   --snapshot-stall-s S (0)   --snapshot-copy-s S (1)\n"
    "Recovery:\n"
    "  --detect-s S (10)   --restart-s S (15)   --restore-local-s S (2)\n"
    "  --restore-partner-s S (5)   --restore-shared-s S (60)\n"
    "  --repair-hours H (1)   --requeue-s S (60)\n"
    "  --measured FILE|DIR    lines of option, value, where from; or a run's folder\n"
    "The simulation:\n"
    "  --runs N (200)   --seed N (1)   --svg OUT\n"
    "gtrain-simulate(1) says where each default comes from.\n";

/* ---- options ---- */

static int read_number(const char *name, enum value value, const char *text, double *out)
{
    static const char *const right[] = {[POSITIVE] = "a number above 0",
                                        [NOT_NEGATIVE] = "a number, 0 or more",
                                        [COUNT] = "a whole number from 1",
                                        [COUNT_OR_NONE] = "a whole number from 0"};
    char *end;
    double x = strtod(text, &end);
    bool counts = value == COUNT || value == COUNT_OR_NONE;
    bool from_one = value == POSITIVE || value == COUNT;
    if (end == text || *end || !isfinite(x) || x < 0 || (from_one && x <= 0) ||
        (counts && (x != floor(x) || x > INT_MAX))) {
        cli_error("--%s is '%s': use %s", name, text, right[value]);
        return -1;
    }
    *out = x;
    return 0;
}

static int set_option(struct arguments *a, int i, const char *text)
{
    void *to = (char *)a + options[i].at;
    if (options[i].value == TEXT) {
        memcpy(to, &text, sizeof text);
        return 0;
    }
    return read_number(options[i].name, options[i].value, text, to);
}

/* Texts in a first pass, numbers in a second, which so overrule what a text has led to. Returns as
 * parse does. */
static int read_options(int argc, char **argv, const struct option *all, struct arguments *a,
                        bool texts)
{
    optind = 1;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", all, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage_text, stdout);
            return 1;
        }
        if (c == '?' || c == ':') {
            cli_error("simulate: %s %s: `gtrain simulate --help` shows the options",
                      argv[optind - 1], c == ':' ? "needs a value" : "is not an option");
            return -1;
        }
        if ((options[c - OPT_FIRST].value == TEXT) == texts && set_option(a, c - OPT_FIRST, optarg))
            return -1;
    }
    return 0;
}

/* Put the measured values where options put theirs. */
static int take_measured(struct arguments *a)
{
    struct err err = {""};
    if (!a->measured_in)
        return 0;
    if (measured_read(&a->measured, a->measured_in, &err)) {
        cli_error("--measured: %s", err.text);
        return -1;
    }
    for (int k = 0; k < a->measured.n; k++) {
        const struct measured_value *v = &a->measured.values[k];
        int i = 0;
        while (i < N_OPTIONS && (options[i].value == TEXT || strcmp(options[i].name, v->name)))
            i++;
        if (i == N_OPTIONS) {
            cli_error("--measured: %s: '%s' is no option with a number: `gtrain simulate --help` "
                      "shows them",
                      a->measured_in, v->name);
            return -1;
        }
        if (set_option(a, i, v->value))
            return -1;
    }
    return 0;
}

/* 0, 1 after --help, or -1 after an error that is told. */
static int parse(int argc, char **argv, struct arguments *a)
{
    struct option all[N_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
    *a = (struct arguments){.plan = NULL};
    for (int i = 0; i < N_OPTIONS; i++) {
        all[i + 1] = (struct option){options[i].name, required_argument, NULL, OPT_FIRST + i};
        if (options[i].value != TEXT)
            memcpy((char *)a + options[i].at, &options[i].otherwise, sizeof(double));
    }
    int rc = read_options(argc, argv, all, a, true);
    if (!rc)
        rc = take_measured(a);
    if (!rc)
        rc = read_options(argc, argv, all, a, false);
    if (rc)
        return rc;
    if (optind + 1 < argc) {
        cli_error("simulate: more than one plan file: `gtrain simulate --help` shows the use");
        return -1;
    }
    a->plan = argv[optind];
    return 0;
}

static double or_else(double said, double otherwise)
{
    return isnan(said) ? otherwise : said;
}

/* "on" or "off" of two words; -1 after an error that is told. */
static int choice(const char *name, const char *text, const char *yes, const char *no, bool *out)
{
    if (!text)
        return 0;
    if (strcmp(text, yes) && strcmp(text, no)) {
        cli_error("--%s is '%s': use %s or %s", name, text, yes, no);
        return -1;
    }
    *out = !strcmp(text, yes);
    return 0;
}

/* ---- from plan and options to a configuration ---- */

struct study {
    struct simulate_config config;
    struct simulate_source source;
    double mean_s; /* between failures of the job */
    char failures[160];
    struct simulate_failure *list;
    bool interval_is_auto;
    int64_t planned_steps; /* between checkpoints, as the plan has it; 0: it is not the plan's */
};

static int set_size(struct study *s, const struct arguments *a, const struct plan *plan)
{
    double per_node = a->gpus_per_node, gpus = or_else(a->gpus, plan ? plan->world : NAN);
    if (!isnan(a->nodes) && !isnan(a->gpus)) {
        cli_error("--nodes and --gpus say the same: use one");
        return -1;
    }
    double nodes = or_else(a->nodes, isnan(gpus) ? LLAMA3_NODES : gpus / per_node);
    if (nodes != floor(nodes)) {
        cli_error("%.0f GPUs do not fill nodes of %.0f: use a --gpus-per-node that divides them",
                  gpus, per_node);
        return -1;
    }
    s->config.nodes = (int)nodes;
    s->config.spares = (int)or_else(a->spares, plan ? plan->resilience.spares : 8);
    return 0;
}

static int set_length(struct study *s, const struct arguments *a, const struct plan *plan)
{
    struct simulate_config *c = &s->config;
    if (!isnan(a->days) && !isnan(a->steps)) {
        cli_error("--days and --steps both say how long the run is: use one");
        return -1;
    }
    c->goal_steps =
        isnan(a->steps) ? (isnan(a->days) && plan ? plan->training.steps : 0) : (int64_t)a->steps;
    c->horizon_s = c->goal_steps ? 0 : or_else(a->days, LLAMA3_DAYS) * DAY_S;
    double model = NAN; /* 6 s: Llama 3 405B, 16 million tokens a step on 16,384 GPUs */
    if (plan)
        model = plan_flops_per_token(plan) * (double)plan->training.global_batch *
                (double)plan->training.sequence / (or_else(a->tflops, TFLOPS) * 1e12) /
                (c->nodes * a->gpus_per_node);
    else if (!isnan(a->tflops)) {
        cli_error("--tflops needs a plan, which says how much a step computes: give one, or use "
                  "--step-s");
        return -1;
    }
    c->step_s = or_else(a->step_s, or_else(model, 6));
    return 0;
}

static int set_checkpoints(struct study *s, const struct arguments *a, const struct plan *plan)
{
    struct simulate_config *c = &s->config;
    c->partner = !plan || plan->checkpoint.redundancy != PLAN_REDUNDANCY_NONE;
    if (choice("redundancy", a->redundancy, "partner", "none", &c->partner))
        return -1;
    c->snapshots = c->partner;
    if (choice("snapshots", a->snapshots, "on", "off", &c->snapshots))
        return -1;
    if (c->snapshots && !c->partner) {
        cli_error("--snapshots on needs --redundancy partner: without a copy on another node a "
                  "lost node's snapshot is lost with it");
        return -1;
    }
    if (!c->partner && plan && !plan->checkpoint.shared) {
        cli_error("%s: checkpoint.redundancy is none and there is no checkpoint.shared: a lost "
                  "node would end the run: set one of them, or use --redundancy partner",
                  plan->source);
        return -1;
    }
    int planned = plan ? (int)plan->checkpoint.shared_every : 0;
    c->stall_s = a->stall_s;
    c->write_s = a->write_s;
    c->shared_every = (int)or_else(a->shared_every, planned > 0 ? planned : 10);
    c->shared_s = a->shared_s;
    c->snapshot_stall_s = a->snapshot_stall_s;
    c->snapshot_copy_s = or_else(a->snapshot_copy_s, fmin(1, c->step_s));
    return 0;
}

static void set_recovery(struct study *s, const struct arguments *a, const struct plan *plan)
{
    struct simulate_config *c = &s->config;
    c->detect_s = or_else(a->detect_s, plan ? (double)plan->resilience.patience_ms / 1000 : 10);
    c->restart_s = a->restart_s;
    c->restore_local_s = a->restore_local_s;
    c->restore_partner_s = a->restore_partner_s;
    c->restore_shared_s = a->restore_shared_s;
    c->repair_s = a->repair_hours * HOUR_S;
    c->requeue_s = a->requeue_s;
}

static int read_trace(struct study *s, const char *path)
{
    struct err err = {""};
    FILE *in = fopen(path, "re");
    long n = -1;
    if (in) {
        n = simulate_read_trace(in, path, s->config.nodes, &s->list, &err);
        fclose(in);
    } else {
        err_set_errno(&err, errno, "%s", path);
    }
    if (n < 0) {
        cli_error("%s", err.text);
        return -1;
    }
    double last = s->list[n - 1].at_s;
    s->source.list = s->list;
    s->source.n = (size_t)n;
    s->mean_s = last > 0 ? last / (double)n : 1;
    snprintf(s->failures, sizeof s->failures, "%ld failure%s within %.3g h", n, n == 1 ? "" : "s",
             last / HOUR_S);
    return 0;
}

static int set_failures(struct study *s, const struct arguments *a)
{
    int said = !isnan(a->mtbf_hours) + !isnan(a->node_mtbf_hours) + (a->trace != NULL);
    if (said > 1) {
        cli_error("--mtbf-hours, --node-mtbf-hours and --trace each say when nodes fail: use one");
        return -1;
    }
    s->source.seed = (uint64_t)a->seed;
    if (a->trace && strcmp(a->trace, "llama3"))
        return read_trace(s, a->trace);
    const char *whose = "";
    if (!isnan(a->mtbf_hours)) {
        s->mean_s = a->mtbf_hours * HOUR_S;
    } else if (!isnan(a->node_mtbf_hours)) {
        s->mean_s = a->node_mtbf_hours * HOUR_S / s->config.nodes;
    } else {
        s->mean_s = LLAMA3_DAYS * DAY_S / LLAMA3_FAILURES * LLAMA3_NODES / s->config.nodes;
        whose = ": Llama 3's rate, 419 in 54 days on 2048 nodes";
    }
    s->source.mean_s = s->mean_s;
    snprintf(s->failures, sizeof s->failures, "a failure every %.3g h%s", s->mean_s / HOUR_S,
             whose);
    return 0;
}

/* "auto", a number of seconds, or the plan's checkpoint.every. */
static int set_interval(struct study *s, const struct arguments *a, const struct plan *plan)
{
    struct simulate_config *c = &s->config;
    double seconds;
    if (a->interval && strcmp(a->interval, "auto")) {
        if (read_number("interval-s", POSITIVE, a->interval, &seconds))
            return -1;
        double steps = round(seconds / c->step_s);
        c->every_steps = steps < 1 ? 1 : (int64_t)fmin(steps, 1e15);
    } else if (!a->interval && plan && plan->checkpoint.every > 0) {
        /* A run begins no write before the last one is over. */
        int64_t least = simulate_least_interval(c);
        s->planned_steps = plan->checkpoint.every;
        c->every_steps = s->planned_steps < least ? least : s->planned_steps;
    } else {
        c->every_steps = simulate_auto_interval(c, s->mean_s);
        s->interval_is_auto = true;
    }
    return 0;
}

/* A plan for trying things out has steps so short, by its FLOPs, that the times of a large run mean
 * nothing for it. */
static int check_length(const struct study *s, const struct arguments *a, const struct plan *plan)
{
    const struct simulate_config *c = &s->config;
    double length = c->horizon_s > 0 ? c->horizon_s : (double)c->goal_steps * c->step_s;
    if (!plan || length >= c->write_s)
        return 0;
    cli_error(
        "%s: the run is over in %.3g s, before one checkpoint is written in %g s: a step takes "
        "%.3g s%s; say what steps and checkpoints take with --step-s and --write-s, or with "
        "--measured and the folder of a run",
        plan->source, length, c->write_s, c->step_s,
        isnan(a->step_s) ? " by the plan's FLOPs" : "");
    return -1;
}

static int set_all(struct study *s, const struct arguments *a, const struct plan *plan)
{
    struct err err = {""};
    if (a->runs > MOST_RUNS) {
        cli_error("--runs is %.0f: use 1 to %d", a->runs, MOST_RUNS);
        return -1;
    }
    if (set_size(s, a, plan) || set_length(s, a, plan) || set_checkpoints(s, a, plan))
        return -1;
    set_recovery(s, a, plan);
    if (set_failures(s, a) || set_interval(s, a, plan))
        return -1;
    if (check_length(s, a, plan))
        return -1;
    if (simulate_check(&s->config, &s->source, &err)) {
        cli_error("simulate: %s", err.text);
        return -1;
    }
    return 0;
}

/* ---- output ---- */

static void print_measured(const struct arguments *a)
{
    for (int i = 0; i < a->measured.n; i++) {
        const struct measured_value *v = &a->measured.values[i];
        printf("measured: %s %s: %s\n", v->name, v->value, v->from);
    }
}

static double percent(double share)
{
    return 100 * share;
}

static void describe_length(const struct simulate_config *c, char *text, size_t room)
{
    if (c->goal_steps)
        snprintf(text, room, "%lld steps", (long long)c->goal_steps);
    else
        snprintf(text, room, "%.4g days", c->horizon_s / DAY_S);
}

static void print_setting(const struct study *s, double per_node)
{
    const struct simulate_config *c = &s->config;
    char length[64];
    describe_length(c, length, sizeof length);
    printf("%d nodes of %.0f GPUs and %d spare, %s, %s\n", c->nodes, per_node, c->spares, length,
           s->failures);
    printf(
        "a step %.3g s; a checkpoint every %lld steps (%.4g s%s), %g s of stall, written in %g s, "
        "every %d%s shared in %g s\n",
        c->step_s, (long long)c->every_steps, (double)c->every_steps * c->step_s,
        s->interval_is_auto ? ", auto" : "", c->stall_s, c->write_s, c->shared_every,
        c->shared_every == 1 ? "st" : "th", c->shared_s);
    if (s->planned_steps && s->planned_steps < c->every_steps)
        printf("the plan's checkpoint.every is %lld, but no write begins before the last is over\n",
               (long long)s->planned_steps);
    if (c->snapshots)
        printf("a snapshot every step, %g s of stall, in the partner's memory after %g s\n",
               c->snapshot_stall_s, c->snapshot_copy_s);
    else
        printf("no snapshots; %s\n", c->partner ? "checkpoints have a copy on a partner node"
                                                : "a lost node goes back to the shared folder");
    printf(
        "detection %g s, restart %g s, restore %g s locally, %g s from the partner, %g s from the "
        "shared folder\n",
        c->detect_s, c->restart_s, c->restore_local_s, c->restore_partner_s, c->restore_shared_s);
    printf("a node is repaired in %g h; without a spare the job is requeued in %g s\n\n",
           c->repair_s / HOUR_S, c->requeue_s);
}

static void print_parts(const struct simulate_summary *m)
{
    printf("%-20s %9s   10 %% to 90 %% of %d run%s\n", "share of the time", "mean", m->runs,
           m->runs == 1 ? "" : "s");
    for (int p = 0; p < SIMULATE_PARTS; p++)
        printf("  %-18s %8.3f %%  %8.3f to %.3f\n", simulate_part_names[p],
               percent(m->part[p].mean), percent(m->part[p].low), percent(m->part[p].high));
    printf(
        "\na run: %.4g days, %.4g failures, %.3g requeues, %.2g recoveries from the shared folder, "
        "longest outage %.3g s (median)\n\n",
        m->wall_s.mean / DAY_S, m->failures.mean, m->requeues.mean, m->from_shared.mean,
        m->longest_off_s.median);
}

static void print_ettr(const struct study *s, const struct simulate_summary *m)
{
    const struct simulate_range *r = &m->part[SIMULATE_USEFUL];
    double plain = simulate_formula(&s->config, s->mean_s, false);
    double with = simulate_formula(&s->config, s->mean_s, true);
    printf("ETTR %.2f %% (median; 10 %% to 90 %% of runs %.2f to %.2f)\n", percent(r->median),
           percent(r->low), percent(r->high));
    printf("closed formula %.2f %% (%+.2f points), with requeues %.2f %% (%+.2f points)\n",
           percent(plain), percent(plain - r->mean), percent(with), percent(with - r->mean));
}

static void print_best(const struct simulate_picture *p)
{
    const struct simulate_point *s = &p->spares[p->best_spares];
    const struct simulate_point *i = &p->intervals[p->best_interval];
    printf("best number of spares %lld: ETTR %.2f %%, %.2f %% of what all nodes held could do\n",
           (long long)s->x, percent(s->ettr), percent(s->paid));
    printf("best interval %lld steps (%.4g s): ETTR %.2f %%\n", (long long)i->x,
           (double)i->x * p->config->step_s, percent(i->ettr));
}

static int write_svg(const struct simulate_picture *picture, const char *path, struct err *err)
{
    FILE *out = fopen(path, "we");
    if (!out)
        return err_set_errno(err, errno, "%s", path);
    int rc = simulate_svg(picture, out, err);
    if (fclose(out) != 0 && rc == 0)
        rc = err_set_errno(err, errno, "%s", path);
    return rc;
}

static int run_study(struct study *s, const struct arguments *a, struct err *err)
{
    /* A trace leaves nothing to chance. */
    int runs = s->source.list ? 1 : (int)a->runs;
    struct simulate_summary summary;
    struct simulate_source first = s->source;
    char title[256], length[64];
    describe_length(&s->config, length, sizeof length);
    snprintf(title, sizeof title, "%d nodes of %.0f GPUs and %d spare, %s", s->config.nodes,
             a->gpus_per_node, s->config.spares, length);
    struct simulate_picture picture = {.config = &s->config,
                                       .source = &first,
                                       .summary = &summary,
                                       .mean_s = s->mean_s,
                                       .title = title};
    first.seed = simulate_seed(s->source.seed, 0);
    if (simulate_many(&s->config, &s->source, runs, &summary, err))
        return -1;
    picture.n_spares =
        simulate_spares(&s->config, &s->source, runs, picture.spares, &picture.best_spares, err);
    if (picture.n_spares < 0)
        return -1;
    picture.n_intervals = simulate_intervals(&s->config, &s->source, runs, picture.intervals,
                                             &picture.best_interval, err);
    if (picture.n_intervals < 0)
        return -1;
    print_measured(a);
    print_setting(s, a->gpus_per_node);
    print_parts(&summary);
    if (summary.unfinished)
        printf("%d of %d runs did not reach %lld steps in 100 times the time they take\n",
               summary.unfinished, runs, (long long)s->config.goal_steps);
    print_ettr(s, &summary);
    print_best(&picture);
    if (fflush(stdout) != 0 || ferror(stdout))
        return err_set(err, "the output could not be written");
    return a->svg ? write_svg(&picture, a->svg, err) : 0;
}

int cli_simulate(int argc, char **argv)
{
    struct arguments arguments;
    struct study study = {.list = NULL};
    struct err err = {""};
    struct plan *plan = NULL;
    int rc = parse(argc, argv, &arguments), exit_code = EXIT_USAGE;
    if (rc)
        return rc < 0 ? EXIT_USAGE : EXIT_OK;
    if (arguments.plan && !(plan = cli_load_plan(arguments.plan)))
        return EXIT_USAGE;
    if (set_all(&study, &arguments, plan) == 0) {
        exit_code = EXIT_OK;
        if (run_study(&study, &arguments, &err)) {
            cli_error("%s", err.text);
            exit_code = EXIT_FAILED;
        }
    }
    free(study.list);
    plan_free(plan);
    return exit_code;
}
