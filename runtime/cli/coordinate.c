/* coordinate.c - `gtrain coordinate`: read the plan, lock the run folder, run the step's
 * coordinator. Started by the Slurm plugin in srun; no person types it. */
#include "cli/cli.h"

#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch/coordinator.h"
#include "launch/jobindex.h"
#include "launch/rundir.h"
#include "plan/plan.h"

struct coordinate {
    const char *plan, *restore, *dir, *job_nodes, *step, *hook, *comment;
    int spares, nodes, tasks, ready_fd, life_fd, port_first, port_last, relaunches_left;
};

static int number(const char *name, const char *text, int least, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < least || v > MESSAGE_MAX_WORLD) {
        cli_error("coordinate: --%s is '%s', not a number from %d to %d", name, text, least,
                  MESSAGE_MAX_WORLD);
        return -1;
    }
    *out = (int)v;
    return 0;
}

static int port_range(struct coordinate *o, const char *text)
{
    char extra;
    if (sscanf(text, "%d-%d%c", &o->port_first, &o->port_last, &extra) == 2 && o->port_first > 0 &&
        o->port_first <= o->port_last && o->port_last < 65536)
        return 0;
    cli_error("coordinate: --port-range is '%s', not FIRST-LAST", text);
    return -1;
}

static const struct option long_options[] = {
    {"plan", required_argument, 0, 'p'},
    {"spares", required_argument, 0, 's'},
    {"restore", required_argument, 0, 'r'},
    {"dir", required_argument, 0, 'd'},
    {"nodes", required_argument, 0, 'N'},
    {"ntasks", required_argument, 0, 'n'},
    {"ready-fd", required_argument, 0, 'R'},
    {"life-fd", required_argument, 0, 'L'},
    {"port-range", required_argument, 0, 'P'},
    {"step", required_argument, 0, 'S'},
    {"job-nodes", required_argument, 0, 'J'},
    {"relaunches-left", required_argument, 0, 'l'},
    {"on-failure", required_argument, 0, 'F'},
    {"comment", required_argument, 0, 'C'},
    {"help", no_argument, 0, 'h'},
    {0},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: gtrain coordinate --plan FILE[,KEY=VALUE...] --nodes N --ntasks T\n"
                 "         [--spares N] [--restore latest|none|STEP|PATH] [--dir DIR]\n"
                 "         [--port-range FIRST-LAST] [--ready-fd FD] [--life-fd FD]\n"
                 "         [--step N] [--job-nodes NODE,...] [--relaunches-left N]\n"
                 "         [--on-failure PATH] [--comment on|off]\n"
                 "Runs the coordinator of one job step. The Slurm plugin starts it; see man "
                 "gtrain-coordinate.\n");
}

/* 0, or -1 on a wrong option, or 1 when --help was asked for. */
static int read_options(struct coordinate *o, int argc, char **argv)
{
    int c, index, bad = 0;
    optind = 1;
    while (!bad && (c = getopt_long(argc, argv, "", long_options, &index)) != -1)
        switch (c) {
        case 'p':
            o->plan = optarg;
            break;
        case 'r':
            o->restore = optarg;
            break;
        case 'd':
            o->dir = optarg;
            break;
        case 's':
            bad = number("spares", optarg, 0, &o->spares);
            break;
        case 'N':
            bad = number("nodes", optarg, 1, &o->nodes);
            break;
        case 'n':
            bad = number("ntasks", optarg, 1, &o->tasks);
            break;
        case 'R':
            bad = number("ready-fd", optarg, 0, &o->ready_fd);
            break;
        case 'L':
            bad = number("life-fd", optarg, 0, &o->life_fd);
            break;
        case 'P':
            bad = port_range(o, optarg);
            break;
        case 'S':
            o->step = optarg;
            break;
        case 'J':
            o->job_nodes = optarg;
            break;
        case 'F':
            o->hook = optarg;
            break;
        case 'C':
            o->comment = optarg;
            break;
        case 'l':
            bad = number("relaunches-left", optarg, 0, &o->relaunches_left);
            break;
        case 'h':
            usage(stdout);
            return 1;
        default:
            usage(stderr);
            return -1;
        }
    if (!bad && o->comment && strcmp(o->comment, "on") && strcmp(o->comment, "off")) {
        cli_error("coordinate: --comment is '%s': use on or off", o->comment);
        bad = -1;
    }
    if (bad)
        return -1;
    if (!o->plan || !o->nodes || !o->tasks || optind < argc) {
        usage(stderr);
        return -1;
    }
    return 0;
}

/* Whoever started us waits for one line; without a descriptor for it, stdout has it. */
static void say_ready(struct coordinate *o, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say_ready(struct coordinate *o, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vdprintf(o->ready_fd >= 0 ? o->ready_fd : STDOUT_FILENO, format, ap);
    va_end(ap);
    if (o->ready_fd >= 0)
        close(o->ready_fd);
    o->ready_fd = -1;
}

static int fail(struct coordinate *o, const struct err *err, int code)
{
    cli_error("%s", err->text);
    if (o->ready_fd >= 0)
        say_ready(o, "error %s\n", err->text);
    return code;
}

static struct plan *read_plan(const struct coordinate *o, struct err *err)
{
    char *path, **overrides;
    int n;
    if (plan_split(o->plan, &path, &overrides, &n, err))
        return NULL;
    struct plan *plan = plan_load(path, overrides, n, NULL, err);
    plan_split_free(path, overrides, n);
    return plan;
}

/* A step that is launched again has fewer nodes: those that were spare. */
static int least_spares(const struct coordinate *o, const struct plan *plan)
{
    if (o->relaunches_left >= 0)
        return 0;
    return o->spares > plan->resilience.spares ? o->spares : plan->resilience.spares;
}

static struct run_config run_config(const struct coordinate *o, const struct plan *plan)
{
    const struct plan_parallel *p = &plan->parallel;
    return (struct run_config){
        .nodes = o->nodes,
        .tasks = o->tasks,
        .spares = least_spares(o, plan),
        .shape = {.inner = p->tensor * p->context * p->expert,
                  .pipeline = p->pipeline,
                  .data = p->data,
                  .tasks = o->tasks / o->nodes > 0 ? o->tasks / o->nodes : 1},
        .least_data = plan->resilience.shrink ? plan->resilience.min_data : 0,
        .heartbeat_ms = plan->resilience.heartbeat_ms,
        .patience_ms = plan->resilience.patience_ms,
        .start_patience_ms = plan->resilience.start_patience_ms,
        .restarts = plan->resilience.restarts,
        .stall_ms = plan->resilience.stall_ms,
        .steps = plan->training.steps,
        .generation = 1,
    };
}

/* How often Slurm has started this job again. */
static int restarts(void)
{
    const char *count = getenv("SLURM_RESTART_COUNT");
    return count ? atoi(count) : 0;
}

/* For `gtrain status JOBID`, which is all that is missed without. */
static void index_job(const struct coordinator_options *options)
{
    char folder[PATH_MAX];
    if (options->job && *options->job && !jobindex_folder("", folder, sizeof folder))
        jobindex_add(folder, options->job, options->run_dir);
}

/* Lock, epoch, listen, say so, run. */
static int coordinate(struct coordinate *o, const struct plan *plan)
{
    struct err err;
    const char *dir = o->dir ? o->dir : plan->run_dir;
    char *full = NULL;
    int lock = rundir_lock(dir, &err);
    if (lock < 0)
        return fail(o, &err, EXIT_USAGE);
    full = realpath(dir, NULL);
    struct coordinator_options options = {
        .run = run_config(o, plan),
        .plan_text = plan->text,
        .plan_bytes = strlen(plan->text),
        .follows = restarts() > 0 || o->relaunches_left >= 0,
        .restore = o->restore ? o->restore : "",
        .run_dir = full ? full : dir,
        .port_first = o->port_first,
        .port_last = o->port_last,
        .job = getenv("SLURM_JOB_ID"),
        .step = o->step,
        .restarts = restarts(),
        .requeues = plan->resilience.requeues,
        .job_nodes = o->job_nodes,
        .relaunches = plan->resilience.relaunches,
        .relaunches_left = o->relaunches_left,
        .hook = o->hook,
        .comment = o->comment && !strcmp(o->comment, "on"),
        .life_fd = o->life_fd,
    };
    struct coordinator *c;
    struct coordinator_door door;
    int code = EXIT_FAILED;
    if (rundir_next_epoch(dir, options.run_id, &options.run.epoch, &err) ||
        coordinator_open(&c, &options, &door, &err)) {
        code = fail(o, &err, EXIT_USAGE);
    } else {
        index_job(&options);
        say_ready(o, "%s %u %s\n", door.address, door.port, door.secret);
        code = coordinator_run(c);
        coordinator_close(c);
    }
    free(full);
    close(lock);
    return code;
}

int cli_coordinate(int argc, char **argv)
{
    struct coordinate o = {.ready_fd = -1, .life_fd = -1, .relaunches_left = -1};
    int bad = read_options(&o, argc, argv);
    if (bad)
        return bad > 0 ? EXIT_OK : EXIT_USAGE;
    struct err err;
    struct plan *plan = read_plan(&o, &err);
    if (!plan)
        return fail(&o, &err, EXIT_USAGE);
    int code = coordinate(&o, plan);
    plan_free(plan);
    return code;
}
