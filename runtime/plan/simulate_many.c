/* simulate_many.c - many runs: their spread, the closed formula beside them, the best spares and
 * interval. Every configuration meets the same failures (simulate_seed), so a comparison of two is
 * not blurred by chance. */
#include "plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run with more failures than this takes minutes, and trains nothing. */
static const double MOST_FAILURES = 1e6;

int simulate_check(const struct simulate_config *c, const struct simulate_source *source,
                   struct err *err)
{
    double write = c->write_s, every = (double)c->every_steps * c->step_s;
    double length = c->horizon_s > 0 ? c->horizon_s : (double)c->goal_steps * c->step_s;
    if (c->nodes < 1 || c->spares < 0)
        return err_set(err, "%d nodes and %d spares: use at least 1 and 0", c->nodes, c->spares);
    if (!(length > 0))
        return err_set(err, "the run has no length: give days or steps");
    if (!(c->step_s > 0) || c->every_steps < 1 || c->shared_every < 1)
        return err_set(err,
                       "a step takes %g s, a checkpoint comes every %lld steps, to the shared "
                       "folder every %d: all must be more than 0",
                       c->step_s, (long long)c->every_steps, c->shared_every);
    if (write > every)
        return err_set(err,
                       "the interval is %g s, but a checkpoint takes %g s to write: use at least "
                       "that",
                       every, write);
    if (c->shared_s > every * c->shared_every)
        return err_set(err,
                       "a checkpoint goes to the shared folder every %g s, but takes %g s: use at "
                       "least that",
                       every * c->shared_every, c->shared_s);
    if (c->snapshots && c->snapshot_copy_s > c->step_s)
        return err_set(err,
                       "a snapshot takes %g s to reach the partner, longer than a step of %g s: "
                       "it cannot be taken every step",
                       c->snapshot_copy_s, c->step_s);
    if (!source->list && !(source->mean_s > 0))
        return err_set(err, "failures come every %g s: use more than 0", source->mean_s);
    if (!source->list && length / source->mean_s > MOST_FAILURES)
        return err_set(err,
                       "a failure every %.3g s over %.3g days is more than %g failures: use a "
                       "longer time between failures or a shorter run",
                       source->mean_s, length / 86400, MOST_FAILURES);
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values, between the two nearest. */
static double quantile(const double *sorted, int n, double q)
{
    double at = q * (n - 1);
    int i = (int)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

static struct simulate_range range_of(double *values, int n)
{
    struct simulate_range r = {0};
    for (int i = 0; i < n; i++)
        r.mean += values[i] / n;
    qsort(values, (size_t)n, sizeof *values, compare);
    r.low = quantile(values, n, 0.1);
    r.median = quantile(values, n, 0.5);
    r.high = quantile(values, n, 0.9);
    return r;
}

enum { COLUMNS = SIMULATE_PARTS + 5 };

static void note(const struct simulate_run *run, double *values, int runs, int i)
{
    double row[COLUMNS];
    for (int k = 0; k < SIMULATE_PARTS; k++)
        row[k] = run->wall_s > 0 ? run->part_s[k] / run->wall_s : 0;
    row[SIMULATE_PARTS] = (double)run->failures;
    row[SIMULATE_PARTS + 1] = (double)run->requeues;
    row[SIMULATE_PARTS + 2] = (double)run->from_shared;
    row[SIMULATE_PARTS + 3] = run->longest_off_s;
    row[SIMULATE_PARTS + 4] = run->wall_s;
    for (int k = 0; k < COLUMNS; k++)
        values[k * runs + i] = row[k];
}

int simulate_many(const struct simulate_config *config, const struct simulate_source *source,
                  int runs, struct simulate_summary *summary, struct err *err)
{
    *summary = (struct simulate_summary){.runs = runs};
    double *values = calloc((size_t)runs * COLUMNS, sizeof *values);
    if (!values)
        return err_set(err, "out of memory for %d runs", runs);
    for (int i = 0; i < runs; i++) {
        struct simulate_source own = *source;
        struct simulate_run run;
        own.seed = simulate_seed(source->seed, i);
        if (simulate_one(config, &own, NULL, &run, err)) {
            free(values);
            return -1;
        }
        note(&run, values, runs, i);
        summary->unfinished += config->goal_steps && !run.finished;
    }
    struct simulate_range *ranges[COLUMNS] = {[SIMULATE_PARTS] = &summary->failures,
                                              &summary->requeues,
                                              &summary->from_shared,
                                              [SIMULATE_PARTS + 3] = &summary->longest_off_s,
                                              &summary->wall_s};
    for (int k = 0; k < SIMULATE_PARTS; k++)
        ranges[k] = &summary->part[k];
    for (int k = 0; k < COLUMNS; k++)
        *ranges[k] = range_of(values + (size_t)k * (size_t)runs, runs);
    free(values);
    return 0;
}

int64_t simulate_least_interval(const struct simulate_config *c)
{
    double least = ceil(c->write_s / c->step_s - 1e-9);
    least = fmax(least, ceil(c->shared_s / c->shared_every / c->step_s - 1e-9));
    return (int64_t)fmin(fmax(least, 1), 1e15);
}

int64_t simulate_auto_interval(const struct simulate_config *c, double mean_s)
{
    /* With snapshots in the partner's memory only a failure without a spare needs a checkpoint. */
    double needed_s = c->snapshots && c->partner ? mean_s * (c->spares + 1.0) : mean_s;
    double steps = round(sqrt(2 * c->stall_s * needed_s) / c->step_s);
    return (int64_t)fmin(fmax(steps, (double)simulate_least_interval(c)), 1e15);
}

double simulate_formula(const struct simulate_config *c, double mean_s, bool requeues)
{
    double interval = (double)c->every_steps * c->step_s, tau = interval, age = c->write_s;
    double restore = c->partner ? c->restore_partner_s : c->restore_shared_s;
    double stalls = c->stall_s / interval;
    if (!c->partner) {
        tau *= c->shared_every;
        age = c->shared_s;
    } else if (c->snapshots) {
        tau = c->step_s;
        age = c->snapshot_copy_s;
    }
    if (c->snapshots)
        stalls += c->snapshot_stall_s / c->step_s;
    double lost = c->detect_s + c->restart_s + restore + age + tau / 2;
    if (requeues) {
        double further = c->partner && c->snapshots ? c->write_s + interval / 2 - age - tau / 2 : 0;
        lost += (c->requeue_s + further) / (c->spares + 1.0);
    }
    return (1 - lost / mean_s) / (1 + stalls);
}

static int mean_ettr(const struct simulate_config *config, const struct simulate_source *source,
                     int runs, double *ettr, struct err *err)
{
    struct simulate_summary summary;
    if (simulate_many(config, source, runs, &summary, err))
        return -1;
    *ettr = summary.part[SIMULATE_USEFUL].mean;
    return 0;
}

int simulate_spares(const struct simulate_config *config, const struct simulate_source *source,
                    int runs, struct simulate_point points[SIMULATE_POINTS], int *best,
                    struct err *err)
{
    struct simulate_config c = *config;
    int n = 0, beyond = config->spares + 4 < 16 ? 16 : config->spares + 4;
    *best = 0;
    for (; n < SIMULATE_POINTS; n++) {
        c.spares = n;
        double share = (double)c.nodes / (c.nodes + n);
        /* Even without any loss more spares would not pay any more. */
        if (n > beyond && share < points[*best].paid)
            break;
        if (mean_ettr(&c, source, runs, &points[n].ettr, err))
            return -1;
        points[n].x = n;
        points[n].paid = points[n].ettr * share;
        if (points[n].paid > points[*best].paid)
            *best = n;
    }
    return n;
}

int simulate_intervals(const struct simulate_config *config, const struct simulate_source *source,
                       int runs, struct simulate_point points[SIMULATE_POINTS], int *best,
                       struct err *err)
{
    enum { STEPS = 24 };
    /* From the shortest that a write allows to well beyond what anybody would choose. */
    static const double SPAN_S = 6 * 3600.0;
    struct simulate_config c = *config;
    c.stall_s = 0; /* asks for the shortest */
    double least = (double)simulate_auto_interval(&c, 1);
    double most = fmax(SPAN_S / c.step_s, 4 * (double)config->every_steps);
    most = fmax(most, 4 * least);
    c.stall_s = config->stall_s;
    int n = 0;
    *best = 0;
    for (int i = 0; i <= STEPS; i++) {
        c.every_steps = (int64_t)round(least * pow(most / least, (double)i / STEPS));
        if (n && points[n - 1].x == c.every_steps)
            continue;
        if (mean_ettr(&c, source, runs, &points[n].ettr, err))
            return -1;
        points[n].x = c.every_steps;
        points[n].paid = points[n].ettr;
        if (points[n].ettr > points[*best].ettr)
            *best = n;
        n++;
    }
    return n;
}
