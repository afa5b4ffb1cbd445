/* interval.c - see interval.h. */
#include "train/interval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 1e9 /* as many as a plan may have */

double interval_mtbf_s(double node_hours, int nodes)
{
    return node_hours * 3600 / (nodes > 1 ? nodes : 1);
}

int64_t interval_steps(const struct interval_facts *f)
{
    if (!(f->step_s > 0))
        return 1;
    double best = round(sqrt(2 * f->stall_s * f->mtbf_s) / f->step_s);
    double least = ceil(f->write_s / f->step_s);
    double steps = fmax(1, fmax(best, least));
    return (int64_t)fmin(steps, STEPS_MAX);
}

int64_t interval_share_steps(double cost_s, double step_s)
{
    if (!(step_s > 0))
        return 1;
    double steps = ceil(cost_s / (INTERVAL_SHARE * step_s));
    return (int64_t)fmin(fmax(1, steps), STEPS_MAX);
}

/* "2.1 ms", "1.3 s", "5.2 min", "3.1 h", "12.4 days" */
static void print_time(double s, char *text, size_t size)
{
    static const struct {
        double below, unit;
        const char *name;
    } scale[] = {
        {1, 1e-3, "ms"}, {120, 1, "s"}, {7200, 60, "min"}, {172800, 3600, "h"}, {0, 86400, "days"}};
    int i = 0;
    while (scale[i].below > 0 && s >= scale[i].below)
        i++;
    snprintf(text, size, "%.3g %s", s / scale[i].unit, scale[i].name);
}

void interval_text(const struct interval_facts *f, int64_t steps, char *text, size_t size)
{
    char stall[32], write[32], mtbf[32];
    print_time(f->stall_s, stall, sizeof stall);
    print_time(f->write_s, write, sizeof write);
    print_time(f->mtbf_s, mtbf, sizeof mtbf);
    snprintf(text, size,
             "checkpoint every %lld step%s: stall %s, write %s, one failure per %s expected",
             (long long)steps, steps == 1 ? "" : "s", stall, write, mtbf);
}

void interval_share_text(double cost_s, double step_s, int64_t steps, char *text, size_t size)
{
    char cost[32], step[32];
    print_time(cost_s, cost, sizeof cost);
    print_time(step_s, step, sizeof step);
    snprintf(text, size, "snapshot every %lld step%s: %s each, a step %s", (long long)steps,
             steps == 1 ? "" : "s", cost, step);
}

void interval_note(struct interval_window *w, double value)
{
    w->value[w->n++ % INTERVAL_WINDOW] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double interval_median(const struct interval_window *w)
{
    double sorted[INTERVAL_WINDOW];
    int n = w->n < INTERVAL_WINDOW ? w->n : INTERVAL_WINDOW;
    if (n == 0)
        return 0;
    memcpy(sorted, w->value, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}
