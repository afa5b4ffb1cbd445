/* plan.c - `gtrain plan check | nodes | show | keys`: plan files for people, and for the Slurm
 * plugin. */
#include "cli/cli.h"
#include "cli/plan_svg.h"
#include "plan/keys.h"
#include "plan/plan.h"
#include "train/program.h"
#include "train/train.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Microbatches times stages: beyond it a schedule is not simulated, let alone drawn. */
enum { MAX_DRAWN = 500000 };

struct arguments {
    const char *plan; /* FILE[,key=value...] */
    const char *svg;
    int spares, nodes, tasks_per_node; /* -1, 0, 0: not said */
    int stage;                         /* of --actions; -1: not said */
    bool for_train;                    /* the program is gtrain train */
    bool spares_added;                 /* a filter adds them to --nodes, or will */
};

static const char usage_text[] =
    "usage: gtrain plan check FILE[,section.key=value...] [--spares N] [--nodes N]\n"
    "                         [--tasks-per-node N] [--spares-added] [--for-train]\n"
    "       gtrain plan nodes FILE[,section.key=value...] [--spares N] [--tasks-per-node N]\n"
    "       gtrain plan show FILE[,section.key=value...] [--svg OUT] [--actions STAGE]\n"
    "                        [--tasks-per-node N]\n"
    "       gtrain plan keys [--man]\n"
    "\n"
    "check  says nothing and ends with 0 if the plan is right and fits the nodes; otherwise it\n"
    "       says what is wrong, where, and what would be right, and ends with 2; --for-train: "
    "what\n"
    "       this version of `gtrain train` cannot do is wrong too\n"
    "nodes  prints how many nodes the ranks fill, and how many that is with spares\n"
    "show   prints the plan with every default filled in, sizes and memory, the map of ranks and\n"
    "       the pipeline schedule; --svg draws the last two; --actions lists one stage's program;\n"
    "       --tasks-per-node: the host memory that checkpoints need on such a node, too\n"
    "keys   lists what a plan file can say; --man as a part of gtrain-plan(5)\n";

enum {
    OPT_SPARES = 1,
    OPT_NODES,
    OPT_TASKS,
    OPT_ADDED,
    OPT_FOR_TRAIN,
    OPT_SVG,
    OPT_ACTIONS,
    OPT_HELP
};

static const struct option check_options[] = {
    {"spares", required_argument, NULL, OPT_SPARES},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"tasks-per-node", required_argument, NULL, OPT_TASKS},
    {"spares-added", no_argument, NULL, OPT_ADDED},
    {"for-train", no_argument, NULL, OPT_FOR_TRAIN},
    {"help", no_argument, NULL, OPT_HELP},
    {0}};
static const struct option nodes_options[] = {
    {"spares", required_argument, NULL, OPT_SPARES},
    {"tasks-per-node", required_argument, NULL, OPT_TASKS},
    {"help", no_argument, NULL, OPT_HELP},
    {0}};
static const struct option show_options[] = {{"svg", required_argument, NULL, OPT_SVG},
                                             {"actions", required_argument, NULL, OPT_ACTIONS},
                                             {"tasks-per-node", required_argument, NULL, OPT_TASKS},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {0}};

static int whole(const char *option, const char *text, int least, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < least || value > INT_MAX || text[0] == ' ' ||
        text[0] == '+') {
        cli_error("--%s is '%s': use a whole number from %d", option, text, least);
        return -1;
    }
    *out = (int)value;
    return 0;
}

static int set_option(struct arguments *args, int which)
{
    switch (which) {
    case OPT_SPARES:
        return whole("spares", optarg, 0, &args->spares);
    case OPT_NODES:
        return whole("nodes", optarg, 1, &args->nodes);
    case OPT_TASKS:
        return whole("tasks-per-node", optarg, 1, &args->tasks_per_node);
    case OPT_ADDED:
        args->spares_added = true;
        return 0;
    case OPT_FOR_TRAIN:
        args->for_train = true;
        return 0;
    case OPT_ACTIONS:
        return whole("actions", optarg, 0, &args->stage);
    case OPT_SVG:
        args->svg = optarg;
        return 0;
    default:
        return -1;
    }
}

/* 0, 1 after --help, or -1 after an error that is told. */
static int parse(int argc, char **argv, const struct option *options, struct arguments *args)
{
    *args = (struct arguments){.spares = -1, .stage = -1};
    optind = 1;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":", options, NULL)) != -1;) {
        if (c == OPT_HELP) {
            fputs(usage_text, stdout);
            return 1;
        }
        if (c == '?' || c == ':') {
            cli_error("plan %s: %s %s: `gtrain plan --help` shows the options", argv[0],
                      argv[optind - 1], c == ':' ? "needs a value" : "is not an option");
            return -1;
        }
        if (set_option(args, c) < 0)
            return -1;
    }
    if (optind != argc - 1) {
        cli_error("plan %s: %s: `gtrain plan --help` shows the use", argv[0],
                  optind == argc ? "no plan file" : "more than one plan file");
        return -1;
    }
    args->plan = argv[optind];
    return 0;
}

static int check(int argc, char **argv)
{
    struct arguments args;
    struct err err = {""};
    int rc = parse(argc, argv, check_options, &args);
    if (rc)
        return rc < 0 ? EXIT_USAGE : EXIT_OK;
    struct plan *plan = cli_load_plan(args.plan);
    if (!plan)
        return EXIT_USAGE;
    if (args.spares_added && (int64_t)args.nodes * args.tasks_per_node == plan->world)
        args.nodes = 0; /* as many as the ranks need: it will be more */
    rc = plan_check_counts(plan, args.nodes, args.tasks_per_node, args.spares, &err);
    if (rc == 0 && args.for_train)
        rc = train_check(plan, &err);
    if (rc < 0)
        cli_error("%s", err.text);
    plan_free(plan);
    return rc < 0 ? EXIT_USAGE : EXIT_OK;
}

static int nodes(int argc, char **argv)
{
    struct arguments args;
    struct err err = {""};
    int rc = parse(argc, argv, nodes_options, &args);
    if (rc)
        return rc < 0 ? EXIT_USAGE : EXIT_OK;
    struct plan *plan = cli_load_plan(args.plan);
    if (!plan)
        return EXIT_USAGE;
    int tasks = args.tasks_per_node ? args.tasks_per_node : 1;
    int spares = plan->resilience.spares;
    int all = plan_nodes(plan, tasks, args.spares > spares ? args.spares : spares, &err);
    if (all < 0)
        cli_error("%s", err.text);
    else
        printf("%d %d\n", plan->world / tasks, all);
    rc = all < 0 ? -1 : 0;
    plan_free(plan);
    return rc < 0 ? EXIT_USAGE : EXIT_OK;
}

/* ---- show ---- */

static void programs_free(struct program *stages, int n)
{
    for (int i = 0; stages && i < n; i++)
        program_free(&stages[i]);
    free(stages);
}

/* All stages' programs, or NULL: of the first replica, which none has more to do than. */
static struct program *programs_make(const struct plan *plan, struct err *err)
{
    int n = plan->parallel.pipeline;
    if ((int64_t)n * plan_most_microbatches(plan) > MAX_DRAWN) {
        err_set(err, "%lld microbatches in %d stages are too many to draw",
                (long long)plan_most_microbatches(plan), n);
        return NULL;
    }
    struct program *stages = calloc((size_t)n, sizeof *stages);
    if (!stages) {
        err_set(err, "not enough memory for %d programs", n);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        if (program_make(&stages[i], plan, 0, i, err) < 0) {
            programs_free(stages, n);
            return NULL;
        }
    return stages;
}

/* Behind "# ", as all that is not the plan itself: the output of show is a plan file. */
static int print_schedule(const struct program *stages, int n, FILE *out, struct err *err)
{
    char *text = NULL, *rest, *line;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory)
        return err_set_errno(err, errno, "the schedule");
    int rc = program_print(stages, n, memory, err);
    if (fclose(memory) != 0)
        rc = err_set(err, "not enough memory for the schedule");
    for (line = rc == 0 ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        fprintf(out, "# %s\n", line);
    free(text);
    return rc;
}

static int print_actions(const struct plan *plan, const struct program *stages, int stage,
                         struct err *err)
{
    if (stage >= plan->parallel.pipeline)
        return err_set(err, "--actions is %d, but the pipeline has %d stages: use 0 to %d", stage,
                       plan->parallel.pipeline, plan->parallel.pipeline - 1);
    return program_print_actions(&stages[stage], stdout);
}

static int write_svg(const struct plan *plan, const struct program *stages, const char *path,
                     struct err *err)
{
    FILE *out = fopen(path, "we");
    if (!out)
        return err_set_errno(err, errno, "%s", path);
    int rc = plan_svg(plan, stages, out, err);
    if (fclose(out) != 0 && rc == 0)
        rc = err_set_errno(err, errno, "%s", path);
    return rc;
}

static int show_parts(const struct plan *plan, const struct arguments *args, struct err *err)
{
    struct err why = {""};
    int rc = 0, n = plan->parallel.pipeline;
    struct program *stages = programs_make(plan, &why);
    if (args->stage >= 0) {
        rc = stages ? print_actions(plan, stages, args->stage, err) : err_set(err, "%s", why.text);
    } else {
        plan_print(plan, args->tasks_per_node, stdout);
        printf("#\n# pipeline schedule\n");
        if (stages)
            rc = print_schedule(stages, n, stdout, err);
        else
            printf("# not shown: %s\n", why.text);
    }
    if (rc == 0 && args->svg)
        rc = stages ? write_svg(plan, stages, args->svg, err) : err_set(err, "%s", why.text);
    programs_free(stages, n);
    return rc;
}

static int show(int argc, char **argv)
{
    struct arguments args;
    struct err err = {""};
    int rc = parse(argc, argv, show_options, &args);
    if (rc)
        return rc < 0 ? EXIT_USAGE : EXIT_OK;
    struct plan *plan = cli_load_plan(args.plan);
    if (!plan)
        return EXIT_USAGE;
    rc = show_parts(plan, &args, &err);
    if (rc < 0)
        cli_error("%s", err.text);
    plan_free(plan);
    return rc < 0 ? EXIT_USAGE : EXIT_OK;
}

int cli_plan(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "check"))
        return check(argc - 1, argv + 1);
    if (!strcmp(what, "nodes"))
        return nodes(argc - 1, argv + 1);
    if (!strcmp(what, "show"))
        return show(argc - 1, argv + 1);
    if (!strcmp(what, "keys") && argc == 2) {
        plan_keys_print(stdout);
        return EXIT_OK;
    }
    if (!strcmp(what, "keys") && argc == 3 && !strcmp(argv[2], "--man")) {
        plan_keys_print_man(stdout);
        return EXIT_OK;
    }
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        fputs(usage_text, stdout);
        return EXIT_OK;
    }
    cli_error("plan: use check, nodes, show or keys: `gtrain plan --help` says more");
    return EXIT_USAGE;
}
