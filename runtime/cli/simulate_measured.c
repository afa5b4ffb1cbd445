/* simulate_measured.c - see simulate_measured.h. A run's takeovers are events like
 * "generation 2 goes on from step 7: detect 2.001 s, decide 0.000 s, restart 0.040 s, communicate
 * 0.030 s, restore 0.500 s, first step 0.120 s: 2.691 s in all". */
#include "cli/simulate_measured.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/report_read.h"

enum { LINE_BYTES = 1024, MOST_TAKEOVERS = 1024 };

static void add(struct measured *m, const char *name, double value, const char *from)
{
    struct measured_value *v = &m->values[m->n++];
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->value, sizeof v->value, "%.6g", value);
    snprintf(v->from, sizeof v->from, "%s", from);
}

/* ---- a file ---- */

/* 0, also for a line that says nothing; -1: it is not "NAME VALUE WHERE-FROM". */
static int take_line(struct measured *m, char *line)
{
    struct measured_value v = {.from = ""};
    int at = 0;
    line[strcspn(line, "#\r\n")] = 0;
    if (!line[strspn(line, " \t")])
        return 0;
    if (m->n == MEASURED_MOST || sscanf(line, "%31s %31s %n", v.name, v.value, &at) != 2 || !at ||
        !line[at])
        return -1;
    snprintf(v.from, sizeof v.from, "%s", line + at);
    m->values[m->n++] = v;
    return 0;
}

static int read_file(struct measured *m, const char *path, struct err *err)
{
    char line[LINE_BYTES];
    FILE *in = fopen(path, "re");
    int number = 0, bad = 0;
    if (!in)
        return err_set_errno(err, errno, "%s", path);
    while (!bad && fgets(line, sizeof line, in)) {
        number++;
        bad = take_line(m, line);
    }
    fclose(in);
    if (bad)
        return err_set(err,
                       "%s:%d: no measured value: use lines of NAME VALUE WHERE-FROM, at most %d, "
                       "NAME an option such as restart-s",
                       path, number, MEASURED_MOST);
    return m->n ? 0 : err_set(err, "%s: no measured value in it", path);
}

/* ---- a run's folder ---- */

struct takeovers {
    double detect[MOST_TAKEOVERS], restart[MOST_TAKEOVERS], restore[MOST_TAKEOVERS];
    int n;
};

static int phase(const char *text, const char *name, double *seconds)
{
    const char *at = strstr(text, name);
    return at && sscanf(at + strlen(name), " %lf s", seconds) == 1;
}

static void take_event(struct takeovers *t, const char *text)
{
    double detect, decide, restart, communicate, restore;
    if (t->n == MOST_TAKEOVERS || !phase(text, ": detect", &detect) ||
        !phase(text, ", decide", &decide) || !phase(text, ", restart", &restart) ||
        !phase(text, ", communicate", &communicate) || !phase(text, ", restore", &restore))
        return;
    t->detect[t->n] = detect + decide;
    t->restart[t->n] = restart + communicate;
    t->restore[t->n++] = restore;
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void add_takeovers(struct measured *m, struct takeovers *t)
{
    char from[MEASURED_FROM_BYTES];
    snprintf(from, sizeof from, "median of %d takeover%s", t->n, t->n == 1 ? "" : "s");
    add(m, "detect-s", median(t->detect, t->n), from);
    add(m, "restart-s", median(t->restart, t->n), from);
    add(m, "restore-local-s", median(t->restore, t->n), from);
    add(m, "restore-partner-s", median(t->restore, t->n), from);
}

static void add_stall(struct measured *m, const struct run *run)
{
    double sum = 0;
    size_t n = 0;
    char from[MEASURED_FROM_BYTES];
    for (size_t i = 0; i < run->n_steps; i++)
        if (run->steps[i].stall_ms > 0) {
            sum += run->steps[i].stall_ms / 1000;
            n++;
        }
    if (!n)
        return;
    snprintf(from, sizeof from, "mean of %zu steps that waited for a checkpoint", n);
    add(m, "stall-s", sum / (double)n, from);
}

static int read_run(struct measured *m, const char *dir, struct err *err)
{
    struct run run;
    struct takeovers *t = calloc(1, sizeof *t);
    int rv = t ? run_read(&run, dir, err) : err_set(err, "no memory");
    if (!t)
        return -1;
    for (size_t i = 0; !rv && i < run.n_events; i++)
        if (!strcmp(run.events[i].kind, "takeover"))
            take_event(t, run.events[i].text);
    if (!rv && t->n)
        add_takeovers(m, t);
    if (!rv)
        add_stall(m, &run);
    if (!rv && !m->n)
        rv = err_set(err,
                     "%s: this run has neither a takeover nor a step that waited for a checkpoint",
                     dir);
    run_free(&run);
    free(t);
    return rv;
}

int measured_read(struct measured *m, const char *path, struct err *err)
{
    struct stat st;
    m->n = 0;
    if (stat(path, &st))
        return err_set_errno(err, errno, "%s", path);
    return S_ISDIR(st.st_mode) ? read_run(m, path, err) : read_file(m, path, err);
}
