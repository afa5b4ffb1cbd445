/* status.c - `gtrain status DIR|JOBID`: where a run is, who has which ranks, what failed and what
 * was done.
 *
 * All of it lies in the run folder, so it can be asked from anywhere and after the end. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/control.h"
#include "cli/cli.h"
#include "cli/report_read.h"
#include "cli/status_job.h"
#include "launch/rundir.h"
#include "launch/runstate.h"

enum {
    PATH_BYTES = 4096,
    EVENTS_SHOWN = 20, /* the last ones: a line each */
};

static const char USAGE[] =
    "usage: gtrain status DIR|JOBID\n"
    "\n"
    "Says where the run in the run folder DIR, or of the Slurm job JOBID, is: whether it runs, "
    "epoch, generation, step and "
    "loss,\n"
    "which node has which ranks, the spares, and the last failures and takeovers.\n";

/* What others wrote goes to a terminal: no control characters. */
static void print_text(const char *text)
{
    for (size_t i = 0; text[i]; i++)
        putchar(text_is_control(text, i) ? '?' : text[i]);
}

static void print_time(double seconds)
{
    /* A line that somebody has damaged may say anything, or nothing. */
    bool known = fabs(seconds) < 1e11;
    time_t t = known ? (time_t)seconds : 0;
    struct tm tm;
    char text[32];
    if (!known || !localtime_r(&t, &tm) || !strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm))
        snprintf(text, sizeof text, "?");
    fputs(text, stdout);
}

static int print_run(const char *dir)
{
    char id[RUNDIR_ID_BYTES], holder[512];
    struct err err;
    if (rundir_read_id(dir, id, &err)) {
        cli_error("status: %s", err.text);
        return -1;
    }
    printf("run %s: ", id);
    if (rundir_holder(dir, holder, sizeof holder) > 0) {
        printf("running (");
        print_text(holder);
        puts(")");
    } else {
        puts("not running");
    }
    return 0;
}

static void print_step(const struct run *run)
{
    if (!run->n_steps) {
        puts("no step has been made yet");
        return;
    }
    const struct run_step *s = &run->steps[0];
    for (size_t i = 1; i < run->n_steps; i++)
        if (run->steps[i].order > s->order)
            s = &run->steps[i]; /* the newest line: after a restore not the highest step */
    printf("epoch %d, generation %d, step %lld, loss %.6g", s->epoch, s->generation,
           (long long)s->step, s->loss);
    if (isfinite(s->tokens_per_s))
        printf(", %.0f tokens/s", s->tokens_per_s);
    if (isfinite(s->time)) {
        fputs(", at ", stdout);
        print_time(s->time);
    }
    putchar('\n');
}

/* The newest that is committed. */
static void print_checkpoint(const struct run *run)
{
    for (size_t i = run->n_events; i-- > 0;)
        if (!strcmp(run->events[i].kind, "checkpoint") &&
            strstr(run->events[i].text, "committed")) {
            printf("newest checkpoint: step %lld, at ", (long long)run->events[i].step);
            print_time(run->events[i].time);
            putchar('\n');
            return;
        }
}

/* Fewer replicas than the plan has. */
static void print_shrunk(const char *dir)
{
    struct runstate r;
    struct err unused;
    if (runstate_read(&r, dir, &unused) < 1)
        return;
    if (r.replicas < r.planned_replicas)
        printf("shrunk: %d of %d replicas are left, which share the whole batch\n", r.replicas,
               r.planned_replicas);
    runstate_free(&r);
}

/* How often Slurm's job was requeued, and the nodes that failed it. */
static void print_job(const char *dir)
{
    struct runstate r;
    struct err unused; /* without a coordinator there is none */
    if (runstate_read(&r, dir, &unused) < 1 || !*r.job)
        return;
    fputs("job ", stdout);
    print_text(r.job);
    fputs(": ", stdout);
    print_text(r.state);
    printf(", requeued %d times, launched again %d times\n", r.requeues, r.relaunches);
    for (int i = 0; i < r.n_failed; i++) {
        fputs("  failed ", stdout);
        print_time(r.failed[i].time);
        putchar(' ');
        print_text(r.failed[i].node);
        fputs(": ", stdout);
        print_text(r.failed[i].reason);
        putchar('\n');
    }
    runstate_free(&r);
}

/* As the coordinator wrote it. */
static void print_placement(const char *dir)
{
    char path[PATH_BYTES], line[2048];
    if (snprintf(path, sizeof path, "%s/placement.txt", dir) >= (int)sizeof path)
        return;
    FILE *in = fopen(path, "re");
    if (!in) {
        puts("\nno coordinator has placed ranks here");
        return;
    }
    putchar('\n');
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        print_text(line);
        putchar('\n');
    }
    fclose(in);
}

static bool is_shown(const struct run_event *e)
{
    static const char *const kinds[] = {"failure",  "takeover", "shrink", "slow",
                                        "restored", "note",     "stop",   "end"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(e->kind, kinds[i]))
            return true;
    return false;
}

static void print_events(const struct run *run)
{
    size_t first = run->n_events, shown = 0;
    while (first > 0 && shown < EVENTS_SHOWN)
        shown += is_shown(&run->events[--first]);
    if (shown)
        putchar('\n');
    for (size_t i = first; i < run->n_events; i++) {
        const struct run_event *e = &run->events[i];
        if (!is_shown(e))
            continue;
        print_time(e->time);
        printf("  step %-8lld %-9s ", (long long)e->step, e->kind);
        print_text(e->text);
        putchar('\n');
    }
}

int cli_status(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    struct run run;
    struct err unused; /* a run that has made no step yet has no metrics */
    optind = 1;
    int c = getopt_long(argc, argv, "h", options, NULL);
    if (c == 'h') {
        fputs(USAGE, stdout);
        return EXIT_OK;
    }
    if (c != -1 || optind != argc - 1) {
        fputs(USAGE, stderr);
        return EXIT_USAGE;
    }
    const char *dir = argv[optind];
    char found[PATH_BYTES];
    struct err err;
    if (status_is_job(dir)) {
        if (status_find_job(dir, found, sizeof found, &err)) {
            cli_error("status: %s", err.text);
            return EXIT_USAGE;
        }
        dir = found;
        fputs("folder ", stdout);
        print_text(dir);
        putchar('\n');
    }
    if (print_run(dir))
        return EXIT_USAGE;
    run_read(&run, dir, &unused);
    print_step(&run);
    print_checkpoint(&run);
    print_shrunk(dir);
    print_job(dir);
    print_placement(dir);
    print_events(&run);
    run_free(&run);
    if (!fflush(stdout) && !ferror(stdout))
        return EXIT_OK;
    cli_error("status: %s", strerror(errno));
    return EXIT_FAILED;
}
