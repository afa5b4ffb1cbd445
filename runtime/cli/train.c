/* train.c - `gtrain train`: options, signals, exit codes around gtrain_train(). */
#include "cli/cli.h"

#include "gtrain.h"

#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Slurm and the agent may both pass on what was one signal: within this time it is one. A loaded
 * machine takes a moment to wake the agent; a person who means it twice does not hurry so. */
#define SAME_SIGNAL_MS 1000

static volatile sig_atomic_t stop_signal;

/* The first signal asks for an orderly end, a later one ends the process at once. */
static void on_stop(int signal_number)
{
    static int64_t first_ms;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (!stop_signal)
        first_ms = now_ms;
    else if (now_ms - first_ms > SAME_SIGNAL_MS) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    stop_signal = signal_number;
}

static int stop_asked(void *arg)
{
    (void)arg;
    return stop_signal != 0;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    /* One at a time: the handler looks at what it left behind. */
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    /* Nobody reads the progress any more (`gtrain train | head`): no reason to stop training. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is an error that is told */
}

/* The launcher ends everybody when the first rank has failed. A rank that has nothing to say of its
 * own lets the one that has go first: with its text, and its exit code. */
enum { OTHERS_FIRST_MS = 3000 };

static void let_others_speak(void)
{
    struct timespec pause = {OTHERS_FIRST_MS / 1000, OTHERS_FIRST_MS % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void usage(FILE *out)
{
    fputs("usage: gtrain train [--plan FILE[,key=value...]] [--dir DIR]\n"
          "                    [--restore latest|none|STEP|PATH] [--local] [--threads N]\n"
          "\n"
          "Train what a plan describes, as one rank of a launch (srun --gtrain-plan, srun\n"
          "--mpi=pmix, mpirun), or alone.\n"
          "\n"
          "  --plan FILE[,key=value...]  the plan; values after the file override it\n"
          "  --dir DIR       run folder: metrics.jsonl, events.jsonl, plan.yaml\n"
          "  --restore WHAT  latest (default), none, a step, or the folder of a run (or of its "
          "checkpoints)\n"
          "  --local         all ranks of the plan as threads of this one process\n"
          "  --threads N     threads of each rank (default: cores / ranks)\n"
          "\n"
          "SIGTERM or SIGINT: finish the step, write a checkpoint, exit 0.\n"
          "Exit: 0 done; 1 the machine or a peer failed; 2 plan, data or checkpoint do not fit;\n"
          "3 the loss is not a number; 4 after a takeover: this node is not fit to go on;\n"
          "5 (to srun) what was restored is no good, go on from an older checkpoint.\n",
          out);
}

static int read_threads(const char *text, int *threads)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || end == text || n < 1 || n > 4096) {
        cli_error("train: --threads is %s: use a number from 1 to 4096", text);
        return -1;
    }
    *threads = (int)n;
    return 0;
}

/* Standard output may be a pipe whose other end, srun, writes to a terminal: then the plugin has
 * found out, and the agent says so. */
static int columns_told(void)
{
    const char *text = getenv("GTRAIN_COLUMNS");
    long columns = text ? strtol(text, NULL, 10) : 0;
    if (!text)
        return 0;
    return columns > 0 && columns < 10000 ? (int)columns : -1;
}

/* 0: go on; else: exit with *code. */
static int read_options(int argc, char **argv, struct gtrain_train_options *o, int *code)
{
    enum { PLAN = 256, DIR, RESTORE, LOCAL, THREADS };
    static const struct option options[] = {{"plan", required_argument, NULL, PLAN},
                                            {"dir", required_argument, NULL, DIR},
                                            {"restore", required_argument, NULL, RESTORE},
                                            {"local", no_argument, NULL, LOCAL},
                                            {"threads", required_argument, NULL, THREADS},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int option;
    *code = EXIT_USAGE;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (option) {
        case PLAN:
            o->plan = optarg;
            break;
        case DIR:
            o->dir = optarg;
            break;
        case RESTORE:
            o->restore = optarg;
            break;
        case LOCAL:
            o->local = 1;
            break;
        case THREADS:
            if (read_threads(optarg, &o->threads))
                return -1;
            break;
        case 'h':
            usage(stdout);
            *code = EXIT_OK;
            return -1;
        default:
            usage(stderr);
            return -1;
        }
    }
    if (optind == argc)
        return 0;
    cli_error("train: '%s' is not an option: `gtrain train --help` lists them", argv[optind]);
    return -1;
}

int cli_train(int argc, char **argv)
{
    struct gtrain_train_options options = {
        .out_fd = STDOUT_FILENO, .columns = columns_told(), .stop_asked = stop_asked};
    char error[1024];
    int code, speak;
    if (read_options(argc, argv, &options, &code))
        return code;
    catch_signals();
    enum gtrain_end end = gtrain_train(NULL, &options, &speak, error, sizeof error);
    if (end != GTRAIN_DONE && speak)
        cli_error("%s", error);
    else if (end != GTRAIN_DONE)
        let_others_speak();
    return (int)end;
}
