/* progress.c - see progress.h. */
#include "launch/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/takeover.h"

/* A running mean over about so many reports. */
static const double BUSY_WEIGHT = 1.0 / 8;
/* A rank that computes for ever, on a machine where others want the cores, too, gets at least so
 * much between two looks; one that waits for a message sleeps. */
enum { BUSY_LOOK_MS = PROGRESS_LOOK_MS / 10 };
/* Nobody is heard for so many heartbeats: it is no rank's doing. */
enum { QUIET_BEATS = 3 };
/* A rank is slow whose own time is more than so many times the median of all, */
static const double SLOW_RATIO = 1.5;
/* and by more than timers and schedulers can make it, */
static const double SLOW_LEAST_MS = 5;
/* so many looks in a row. */
enum { SLOW_LOOKS = 3 };

void progress_note(struct run *run, uint32_t rank, int64_t step, uint32_t busy_us, int64_t now)
{
    struct progress *p = &run->progress;
    struct progress_rank *r = &run->ranks[rank].progress;
    double busy_ms = (double)busy_us * 1e-3;
    if (busy_us && step > run->ranks[rank].step)
        r->busy_ms = r->busy_ms > 0 ? r->busy_ms + BUSY_WEIGHT * (busy_ms - r->busy_ms) : busy_ms;
    p->at = now;
    p->looks = p->asked = 0;
    if (p->step >= 0 && step > p->step && p->step_at)
        p->took_ms[p->n++ % PROGRESS_STEPS] = (now - p->step_at) / (step - p->step);
    if (step > p->step) {
        p->step = step;
        p->step_at = now;
    }
}

static int compare_i64(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

int64_t progress_deadline_ms(const struct run *run)
{
    const struct progress *p = &run->progress;
    int n = p->n < PROGRESS_STEPS ? p->n : PROGRESS_STEPS;
    int64_t sorted[PROGRESS_STEPS], deadline = run->config.stall_ms;
    if (!n || !deadline || p->signalled || (run->config.steps && p->step >= run->config.steps))
        return INT64_MAX;
    for (int i = 0; i < run->world; i++)
        if (run->ranks[i].done)
            return INT64_MAX;
    memcpy(sorted, p->took_ms, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_i64);
    if (PROGRESS_MEDIANS * sorted[n / 2] > deadline)
        deadline = PROGRESS_MEDIANS * sorted[n / 2];
    if (PROGRESS_LONGEST * sorted[n - 1] > deadline)
        deadline = PROGRESS_LONGEST * sorted[n - 1];
    return deadline;
}

void progress_seen(struct run *run, uint32_t rank, char state, int64_t cpu_ms)
{
    struct progress_rank *r = &run->ranks[rank].progress;
    if (r->looks >= 2)
        return;
    r->state = state;
    r->cpu_ms[r->looks++] = cpu_ms;
}

/* ---- who it is ---- */

/* What it has used between the looks. */
static int64_t used_ms(const struct progress_rank *r)
{
    return r->looks == 2 ? r->cpu_ms[1] - r->cpu_ms[0] : 0;
}

/* How strange it is while all others wait; 0: it waits like them. */
static int strangeness(const struct progress_rank *r)
{
    if (!r->looks)
        return 4; /* not even its agent answers */
    if (r->state == 'T' || r->state == 't')
        return 3;
    if (used_ms(r) > BUSY_LOOK_MS)
        return 2;
    return r->state == 'D';
}

/* Of two equally strange ones: which computes more, else which is further behind? */
static int is_worse(const struct run_rank *a, const struct run_rank *b)
{
    if (used_ms(&a->progress) > BUSY_LOOK_MS || used_ms(&b->progress) > BUSY_LOOK_MS)
        return used_ms(&a->progress) > used_ms(&b->progress);
    return a->step < b->step;
}

/* The strangest; of equals the first. */
static int find_culprit(const struct run *run)
{
    int worst = 0;
    for (int i = 1; i < run->world; i++) {
        const struct run_rank *a = &run->ranks[i], *b = &run->ranks[worst];
        int more = strangeness(&a->progress) - strangeness(&b->progress);
        if (more > 0 || (!more && is_worse(a, b)))
            worst = i;
    }
    return worst;
}

static void describe(const struct progress_rank *r, char *text, size_t room)
{
    switch (strangeness(r)) {
    case 4:
        snprintf(text, room, "its agent does not answer");
        break;
    case 3:
        snprintf(text, room, "it is stopped by a signal");
        break;
    case 2:
        snprintf(text, room, "it computes, while the others wait");
        break;
    case 1:
        snprintf(text, room, "it waits for a disk or a device");
        break;
    default:
        snprintf(text, room, "all ranks wait, and it is the furthest behind");
    }
}

static void judge(struct run *run, int64_t now)
{
    struct progress *p = &run->progress;
    int rank = find_culprit(run);
    const struct run_rank *r = &run->ranks[rank];
    struct run_failure f = {.cause = RUN_CAUSE_SURE,
                            .rank = rank,
                            .code = 1,
                            .silent_ms = now - p->at,
                            .noticed = now,
                            .act_at = now};
    char why[128];
    describe(&r->progress, why, sizeof why);
    snprintf(f.text, sizeof f.text,
             "rank %d on node %s hangs after step %" PRId64
             ": %s; no rank has made a step for %.1f s (the deadline was %.1f s)",
             rank, run->nodes[r->node].info.node, r->step < 0 ? 0 : r->step, why,
             (double)f.silent_ms * 1e-3, (double)progress_deadline_ms(run) * 1e-3);
    p->looks = p->asked = 0;
    p->at = now; /* whatever comes of it, from anew */
    if (strangeness(&r->progress) == 4)
        run_lose(run, r->node, f.text, f.silent_ms, now);
    else
        takeover_fail(run, &f);
}

/* ---- slow ranks ---- */

static int compare_double(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median_busy(const struct run *run)
{
    double *all = calloc((size_t)run->world, sizeof *all), median = 0;
    int n = 0;
    for (int i = 0; all && i < run->world; i++)
        if (run->ranks[i].progress.busy_ms > 0)
            all[n++] = run->ranks[i].progress.busy_ms;
    if (n > 2) { /* of two nobody can say which is slow */
        qsort(all, (size_t)n, sizeof *all, compare_double);
        median = all[n / 2];
    }
    free(all);
    return median;
}

static void find_slow(struct run *run)
{
    struct progress *p = &run->progress;
    double median = median_busy(run);
    p->checked = p->step;
    for (int i = 0; i < run->world && median > 0; i++) {
        struct progress_rank *r = &run->ranks[i].progress;
        if (r->busy_ms <= SLOW_RATIO * median || r->busy_ms - median <= SLOW_LEAST_MS)
            r->slow = 0;
        else if (++r->slow == SLOW_LOOKS)
            snprintf(
                p->slow, sizeof p->slow,
                "rank %d on node %.64s is slow: a step costs it %.1f ms of its own, the median "
                "of all ranks is %.1f ms",
                i, run->nodes[run->ranks[i].node].info.node, r->busy_ms, median);
    }
}

/* The job is suspended, or our own network down: nobody is heard. */
static int all_quiet(const struct run *run, int64_t now)
{
    int64_t quiet_ms = QUIET_BEATS * run->config.heartbeat_ms;
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].state == RUN_NODE_UP && now - run->nodes[i].heard <= quiet_ms)
            return 0;
    return 1;
}

void progress_tick(struct run *run, int64_t now)
{
    struct progress *p = &run->progress;
    if (run->phase != RUN_RUNNING || run->cause || run->failure.cause || run->ordered)
        return;
    if (all_quiet(run, now)) {
        p->at = now; /* time stands still for all of them */
        p->looks = p->asked = 0;
        return;
    }
    if (p->step >= p->checked + PROGRESS_SLOW_EVERY)
        find_slow(run);
    int64_t deadline = progress_deadline_ms(run);
    if (deadline == INT64_MAX || now - p->at <= deadline) {
        p->looks = p->asked = 0;
        return;
    }
    if (p->looks && now - p->looked_at < PROGRESS_LOOK_MS)
        return;
    if (p->looks == 2) {
        judge(run, now);
        return;
    }
    for (int i = 0; !p->looks && i < run->world; i++)
        run->ranks[i].progress.looks = 0;
    p->looks++;
    p->looked_at = now;
}
