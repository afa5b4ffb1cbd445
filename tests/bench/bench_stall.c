/* bench_stall.c - what a checkpoint, or a snapshot in memory, at every step costs training: tokens
 * a second with and without, and how long a step is held.
 *
 *   bench_stall [--snapshots | --partners | --redundancy WHAT]
 *               [DIR [PAIRS [STEPS [section.key=value ...]]]]
 *
 * (defaults: a folder below $TMPDIR or /var/tmp, 5, 8). With --snapshots no checkpoints are
 * written, but each step's state is copied into memory that outlives the process; with --partners
 * each rank is on a node of its own, and has a copy of the other's, too. (The two are replicas, so
 * that alone they would send nothing: --partners sets resilience.shrink, under which they do.)
 * checkpoint.snapshots=auto takes them as often as the plan key says. With --redundancy both runs
 * of a pair write checkpoints (at every step, or as the settings say) with each rank on a node of
 * its own, and one of them makes them outlive a node: WHAT is partner, xor:N or rs:P+K. There the
 * mean step is compared, as not every step need have a checkpoint.
 *
 * A model that learns random bytes on ranks that are threads of this process, two with one thread
 * each unless the settings say otherwise. A pair is a run of STEPS steps without checkpoints and
 * one with a checkpoint (or snapshot) at each step, the order changing from pair to pair; what is
 * compared is the median step of each, first two left out, and, as on a busy machine the time of a
 * step is mostly others', the processor time that all threads of the process took for the steps
 * after those. Printed: median, and lowest to highest, over the pairs; and the stalls of all steps
 * with checkpoints. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"
#include "train/state.h"
#include "train/threads.h"

enum { PAIRS_MAX = 200, STEPS_MAX = 1000, WARM_UP = 2, CHANGES_MAX = 32, TEXT_BYTES = 1 << 20 };

static const char *const plan_format =
    "model: {layers: 2, hidden: 192, ffn: 512, heads: 6, vocab: 256}\n"
    "data: {format: text, train: %s/text}\n"
    "training: {steps: %d, global_batch: 64, microbatch: 4, sequence: 256}\n"
    "parallel: {data: 2}\n"
    "checkpoint: {local: %s/checkpoints, every: %d}\n"
    "resilience: {shrink: %s}\n";

/* A file; a snapshot; that, and one of the other rank's; a file that outlives its node. */
enum kind { FILES, SNAPSHOTS, PARTNERS, REDUNDANCY };

static const char *const kind_names[] = {"checkpoint", "snapshot", "snapshot and a partner's copy",
                                         "checkpoint that outlives a node"};

enum { RANKS_MAX = 64 };

struct bench {
    enum kind kind;
    char redundancy[64]; /* the setting of the runs with it */
    int memory[RANKS_MAX * CKPT_MEMORY_SLOTS];
    const char *dir;
    int pairs, steps, n_changes;
    char *changes[CHANGES_MAX];
    double state_bytes; /* of one rank */
    int64_t every;      /* steps from one to the next, as the plan says */
    int64_t tokens;     /* of a step */
    uint32_t epoch;
    double without[PAIRS_MAX], with[PAIRS_MAX], ratio[PAIRS_MAX]; /* tokens/s */
    double cpu_ratio[PAIRS_MAX];                                  /* with / without */
    double *stall_ms;                                             /* of the steps with */
    int n_stalls;
};

struct watch {
    double step_s[STEPS_MAX], stall_ms[STEPS_MAX];
    double cpu_s; /* of the steps after the warm-up */
    int n;
};

static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_step(void *arg, const struct metrics_step *s)
{
    struct watch *w = arg;
    w->step_s[w->n] = s->step_s;
    w->stall_ms[w->n] = s->stall_ms;
    w->n++;
    if (w->n == WARM_UP)
        w->cpu_s = -processor_s();
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The smallest value that `part` of all do not exceed. Sorts. */
static double quantile(double *values, int n, double part)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    int i = (int)(part * n);
    return values[i < n ? i : n - 1];
}

static void print_spread(const char *what, const char *unit, double *values, int n)
{
    double median = quantile(values, n, 0.5);
    printf("%-44s %10.4g %-9s (%.4g to %.4g)\n", what, median, unit, values[0], values[n - 1]);
}

static int make_text(const char *dir)
{
    char path[4200];
    uint64_t random = 1;
    snprintf(path, sizeof path, "%s/text", dir);
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    for (int i = 0; i < TEXT_BYTES; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        fputc((int)(random >> 56), f);
    }
    return fclose(f);
}

/* All weights and both moments, of the whole model, over the ranks that split it. */
static double state_bytes(const struct plan *p)
{
    double share = (double)p->parallel.tensor * p->parallel.pipeline;
    return 3.0 * (double)p->parameters * (double)kdtype_bytes(state_dtype(p)) / share;
}

/* What the steps after the warm-up take. Sorts. */
static double typical_step_s(const struct bench *b, struct watch *w)
{
    double sum = 0;
    if (b->kind != REDUNDANCY)
        return quantile(w->step_s + WARM_UP, w->n - WARM_UP, 0.5);
    for (int i = WARM_UP; i < w->n; i++)
        sum += w->step_s[i];
    return sum / (w->n - WARM_UP);
}

/* Tokens a second; 0 with err on failure. */
static double run(struct bench *b, bool saves, struct watch *w, struct err *err)
{
    char text[9000];
    bool files = b->kind == REDUNDANCY || (saves && b->kind == FILES);
    int changes = b->n_changes + (saves && b->kind == REDUNDANCY); /* the last is that */
    int n = snprintf(text, sizeof text, plan_format, b->dir, b->steps, b->dir, files ? 1 : 0,
                     b->kind == PARTNERS ? "true" : "false");
    struct plan *plan = plan_parse(text, (size_t)n, "bench", b->changes, changes, "/", err);
    if (!plan)
        return 0;
    *w = (struct watch){.n = 0};
    struct threads_options o = {.plan = plan,
                                .identity = {.epoch = ++b->epoch,
                                             .generation = 1,
                                             .node = "bench",
                                             .run_id = "bench",
                                             .restore = "none"},
                                .hooks = {.step = on_step, .arg = w},
                                .out_fd = -1,
                                .threads = plan->training.threads ? plan->training.threads : 1,
                                .memory = saves && !files ? b->memory : NULL,
                                .node_ranks = b->kind >= PARTNERS ? 1 : 0};
    if (plan->world > RANKS_MAX) {
        err_set(err, "more than %d ranks", RANKS_MAX);
        plan_free(plan);
        return 0;
    }
    enum train_end end = threads_run(&o, err); /* the last file's write included */
    w->cpu_s += processor_s();
    b->tokens = plan->training.global_batch * plan->training.sequence;
    b->state_bytes = state_bytes(plan);
    if (saves)
        b->every = files ? plan->checkpoint.every : plan->checkpoint.snapshots;
    plan_free(plan);
    if (end != TRAIN_DONE)
        return 0;
    return (double)b->tokens / typical_step_s(b, w);
}

static int run_pair(struct bench *b, int pair, struct err *err)
{
    struct watch without, with;
    for (int i = 0; i < 2; i++) {
        if ((i + pair) % 2 == 0 && (b->without[pair] = run(b, false, &without, err)) <= 0)
            return -1;
        if ((i + pair) % 2 == 1 && (b->with[pair] = run(b, true, &with, err)) <= 0)
            return -1;
    }
    b->ratio[pair] = b->with[pair] / b->without[pair];
    b->cpu_ratio[pair] = with.cpu_s / without.cpu_s;
    for (int i = WARM_UP; i < with.n; i++)
        b->stall_ms[b->n_stalls++] = with.stall_ms[i];
    return 0;
}

static void print_figures(struct bench *b)
{
    double per_100mb = 1e8 / b->state_bytes;
    printf("%.1f MB of state a rank, %lld tokens a step, %d pairs of %d steps\n",
           b->state_bytes / 1e6, (long long)b->tokens, b->pairs, b->steps);
    print_spread(b->kind == REDUNDANCY ? "with files on their nodes alone" : "step without",
                 "tokens/s", b->without, b->pairs);
    printf("%-44s %10.4g s\n", "  one step", (double)b->tokens / b->without[b->pairs / 2]);
    char with[96];
    int n = snprintf(with, sizeof with, "with a %s ", kind_names[b->kind]);
    if (b->every == PLAN_AUTO)
        snprintf(with + n, sizeof with - (size_t)n, "as often as is cheap");
    else if (b->every == 1)
        snprintf(with + n, sizeof with - (size_t)n, "at every step");
    else
        snprintf(with + n, sizeof with - (size_t)n, "every %lld steps", (long long)b->every);
    print_spread(with, "tokens/s", b->with, b->pairs);
    print_spread("with / without", "", b->ratio, b->pairs);
    print_spread("processor time, with / without", "", b->cpu_ratio, b->pairs);
    double p50 = quantile(b->stall_ms, b->n_stalls, 0.5);
    double p99 = quantile(b->stall_ms, b->n_stalls, 0.99);
    printf("%-44s %10.4g ms        (%.4g at the 99th percentile)\n", "stall of a step", p50, p99);
    printf("%-44s %10.4g ms        (%.4g at the 99th percentile)\n", "  per 100 MB of state",
           p50 * per_100mb, p99 * per_100mb);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static const char *const usage_text =
    "usage: bench_stall [--snapshots | --partners | --redundancy WHAT]\n"
    "                   [DIR [PAIRS [STEPS [section.key=value ...]]]]\n"
    "What a checkpoint at every step costs training, against none; --snapshots: a copy in memory\n"
    "instead; --partners: and one in another node's; --redundancy partner|xor:N|rs:P+K: files "
    "that\n"
    "outlive their node against files that do not. DIR: for what is written (default $TMPDIR or\n"
    "/var/tmp); PAIRS: runs with and without, in turn, 1 to 200 (5); STEPS: of each run, 4 to "
    "1000,\n"
    "the first two of which do not count (8). Two ranks of one thread each, a step of 16384 "
    "tokens.\n"
    "The README's rows:\n"
    "  bench_stall DIR 4 9\n"
    "  bench_stall --snapshots DIR 7 9                            a step of 0.7 s\n"
    "  bench_stall --snapshots DIR 5 40 training.global_batch=16  0.17 s\n"
    "  bench_stall --partners DIR 14 9\n"
    "  bench_stall --partners DIR 5 40 training.global_batch=16\n"
    "  bench_stall --partners DIR 5 40 training.global_batch=16 checkpoint.snapshots=auto\n"
    "  bench_stall --redundancy xor:2 DIR 4 24 training.global_batch=16 checkpoint.every=5\n"
    "To be judged: 'with / without' of the tokens a second (0.995 is half a percent), which on a\n"
    "busy machine is noise by more than that: then the processor time; and the stall per 100 MB "
    "of\n"
    "state at the 99th percentile.\n";

static int refuse(void)
{
    fputs(usage_text, stderr);
    return 2;
}

/* Somebody who outlives the ranks: this process. */
static int hold_memory(struct bench *b)
{
    for (int i = 0;
         (b->kind == SNAPSHOTS || b->kind == PARTNERS) && i < RANKS_MAX * CKPT_MEMORY_SLOTS; i++)
        if ((b->memory[i] = memfd_create("bench", MFD_CLOEXEC)) < 0)
            return -1;
    return 0;
}

/* The option in front, if there is one; returns how many arguments it takes. */
static int take_option(struct bench *b, int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--redundancy")) {
        b->kind = REDUNDANCY;
        snprintf(b->redundancy, sizeof b->redundancy, "checkpoint.redundancy=%s", argv[2]);
        return 2;
    }
    if (argc > 1 && !strcmp(argv[1], "--snapshots"))
        b->kind = SNAPSHOTS;
    else if (argc > 1 && !strcmp(argv[1], "--partners"))
        b->kind = PARTNERS;
    return b->kind == FILES ? 0 : 1;
}

int main(int argc, char **argv)
{
    char dir[4096];
    static struct bench b;
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        fputs(usage_text, stdout);
        return 0;
    }
    int taken = take_option(&b, argc, argv);
    argc -= taken;
    argv += taken;
    if (argc > 1 && argv[1][0] == '-')
        return refuse();
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/bench-stall-XXXXXX", argc > 1 ? argv[1] : tmp ? tmp : "/var/tmp");
    struct err err = {{0}};
    b.dir = dir;
    b.pairs = argc > 2 ? atoi(argv[2]) : 5;
    b.steps = argc > 3 ? atoi(argv[3]) : 8;
    for (int i = 4; i < argc && b.n_changes < CHANGES_MAX - 1; i++)
        b.changes[b.n_changes++] = argv[i];
    b.changes[b.n_changes] = b.redundancy;
    if (b.pairs < 1 || b.pairs > PAIRS_MAX || b.steps <= WARM_UP + 1 || b.steps > STEPS_MAX)
        return refuse();
    b.stall_ms = calloc((size_t)b.pairs * (size_t)b.steps, sizeof *b.stall_ms);
    if (!b.stall_ms || !mkdtemp(dir) || make_text(dir) || hold_memory(&b)) {
        perror(dir);
        return 1;
    }
    int rc = 0;
    for (int pair = 0; pair < b.pairs && !rc; pair++)
        rc = run_pair(&b, pair, &err);
    if (rc)
        fprintf(stderr, "bench_stall: %s\n", err.text);
    else
        print_figures(&b);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(b.stall_ms);
    return rc ? 1 : 0;
}
