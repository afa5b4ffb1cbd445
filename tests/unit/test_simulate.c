/* Failures replayed: tiny traces whose every part is worked out by hand, and long runs against the
 * closed formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "plan/simulate.h"

/* Steps of 10 s; a checkpoint each 5 of them, 2 s of stall, so a cycle is 52 s: number i begins at
 * 52 i - 2 and counts 8 s later; the even ones are shared 20 s after their begin. */
static const struct simulate_config small = {
    .nodes = 4,
    .spares = 2,
    .horizon_s = 500,
    .step_s = 10,
    .every_steps = 5,
    .stall_s = 2,
    .write_s = 8,
    .shared_every = 2,
    .shared_s = 20,
    .partner = true,
    .detect_s = 10,
    .restart_s = 5,
    .restore_local_s = 1,
    .restore_partner_s = 3,
    .restore_shared_s = 30,
    .repair_s = 1000,
    .requeue_s = 100,
};

static void close_to(double got, double expected, const char *what, const char *name)
{
    if (fabs(got - expected) > 1e-9)
        fail_msg("%s: %s is %.12g, expected %.12g", name, what, got, expected);
}

struct totals {
    double all;
};

static void add_stretch(void *arg, enum simulate_part part, double from, double to)
{
    (void)part;
    assert_true(to > from);
    ((struct totals *)arg)->all += to - from;
}

enum { NO_PARTNER = 1, NO_SPARES = 2, QUICK_REPAIR = 4, SNAPSHOTS = 8, GOAL = 16, ONE_SPARE = 32 };

static struct simulate_config config_with(int flags)
{
    struct simulate_config c = small;
    c.partner = !(flags & NO_PARTNER);
    c.spares = flags & NO_SPARES ? 0 : flags & ONE_SPARE ? 1 : 2;
    c.repair_s = flags & QUICK_REPAIR ? 50 : 1000;
    if (flags & SNAPSHOTS) {
        c.snapshots = true;
        c.snapshot_stall_s = 1;
        c.snapshot_copy_s = 4;
    }
    if (flags & GOAL) {
        c.horizon_s = 0;
        c.goal_steps = 12;
    }
    return c;
}

/* useful, again, stall, detect, restart, restore, wait; then counts. */
struct hand_case {
    const char *name;
    int flags;
    struct simulate_failure failures[3];
    int n;
    double parts[SIMULATE_PARTS];
    int64_t steps;
    int requeues, from_shared;
};

static const struct hand_case cases[] = {
    /* 9 cycles are 468 s; then 3 steps and 2 s. */
    {"no failure", 0, {{1e9, 0, 0}}, 1, {482, 0, 18, 0, 0, 0, 0}, 48, 0, 0},
    /* At 200: 194 s of work, number 3 (begun at 154) saved 150. On at 218, 282 s more: 5 cycles
     * and 22 s. */
    {"one node", 0, {{200, 0, 0}}, 1, {422, 44, 16, 10, 5, 3, 0}, 42, 0, 0},
    {"a worker", 0, {{200, 0, 1}}, 1, {424, 44, 16, 10, 5, 1, 0}, 42, 0, 0},
    /* At 158 number 3 is not written yet: back to 100 of 152 s. On at 176: 6 cycles, 12 s. */
    {"a write cut short", 0, {{158, 0, 0}}, 1, {412, 52, 18, 10, 5, 3, 0}, 41, 0, 0},
    /* At 162 it just is: back to 150 of 156. On at 180: 6 cycles, 8 s. */
    {"a write just done", 0, {{162, 0, 0}}, 1, {458, 6, 18, 10, 5, 3, 0}, 45, 0, 0},
    /* At 155, in the stall of number 3: 150 s of work, 5 s of stalls. On at 173: 6 cycles, 15 s. */
    {"in a stall", 0, {{155, 0, 0}}, 1, {415, 50, 17, 10, 5, 3, 0}, 41, 0, 0},
    /* The partner follows during detection, which begins anew: the shared folder has number 2. On
     * at 250: 4 cycles, 42 s. */
    {"a pair", 0, {{200, 0, 0}, {205, 1, 0}}, 2, {342, 94, 14, 15, 5, 30, 0}, 34, 0, 1},
    /* Two that are not partners: as one node, 5 s later. */
    {"two", 0, {{200, 0, 0}, {205, 2, 0}}, 2, {417, 44, 16, 15, 5, 3, 0}, 41, 0, 0},
    {"two at once", 0, {{200, 0, 0}, {200, 3, 0}}, 2, {422, 44, 16, 10, 5, 3, 0}, 42, 0, 0},
    /* On at 218, whole again at 226. At 225: 7 s more are lost, and all since number 2. On at 270:
     * 4 cycles, 22 s. */
    {"the partner before it is whole",
     0,
     {{200, 0, 0}, {225, 1, 0}},
     2,
     {322, 101, 14, 20, 10, 33, 0},
     32,
     0,
     1},
    /* At 226: 8 s more are lost. On at 244: 4 cycles, 48 s. */
    {"the partner after it is whole",
     0,
     {{200, 0, 0}, {226, 1, 0}},
     2,
     {398, 52, 14, 20, 10, 6, 0},
     39,
     0,
     0},
    /* During the restart: 3 s of it were in vain. On at 231: 5 cycles, 9 s. */
    {"during the restart", 0, {{200, 0, 0}, {213, 2, 0}}, 2, {409, 44, 16, 20, 8, 3, 0}, 40, 0, 0},
    /* Without copies number 2 in the shared folder is left. On at 245: 4 cycles, 47 s. */
    {"no copies", NO_PARTNER, {{200, 0, 0}}, 1, {347, 94, 14, 10, 5, 30, 0}, 34, 0, 1},
    {"no copies, a worker", NO_PARTNER, {{200, 0, 1}}, 1, {424, 44, 16, 10, 5, 1, 0}, 42, 0, 0},
    /* The node is back at 1200, past the end: 290 s of waiting. */
    {"no spare", NO_SPARES, {{200, 0, 0}}, 1, {150, 44, 6, 10, 0, 0, 290}, 15, 0, 0},
    /* It is back at 250; the requeue takes until 310. On at 318: 3 cycles, 26 s. */
    {"no spare, requeue",
     NO_SPARES | QUICK_REPAIR,
     {{200, 0, 0}},
     1,
     {326, 44, 12, 10, 5, 3, 100},
     32,
     1,
     0},
    /* A worker needs no spare. */
    {"no spare, a worker", NO_SPARES, {{200, 0, 1}}, 1, {424, 44, 16, 10, 5, 1, 0}, 42, 0, 0},
    /* The only spare is gone at 100 (50 s of 98 again, on at 118); at 300 (182 s: 3 cycles and 26
     * s, 150 + 50 saved, 26 again) the first is long repaired, so the requeue ends at 410, on at
     * 418: 1 cycle, 30 s. */
    {"a spare comes back with the requeue",
     ONE_SPARE | QUICK_REPAIR,
     {{100, 0, 0}, {300, 2, 0}},
     2,
     {280, 74, 10, 20, 10, 6, 100},
     28,
     1,
     0},
    /* With a snapshot a step takes 11 s, a cycle 57. At 50: 4 steps, the last copied at 48; 46 s of
     * work. On at 68: 432 s. 1 step and its checkpoint: 13; 7 cycles are 399; 20: a step and 9 s.
     */
    {"snapshots", SNAPSHOTS, {{50, 0, 0}}, 1, {419, 6, 57, 10, 5, 3, 0}, 41, 0, 0},
    /* At 58: 5 steps, the last copied only at 59: one step and 1 s again (11 s of 51). On at 76:
     * 424 s: 13, 7 cycles, 12: a step and 1 s. */
    {"a copy cut short", SNAPSHOTS, {{58, 0, 0}}, 1, {411, 11, 60, 10, 5, 3, 0}, 41, 0, 0},
};

static void test_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct hand_case *k = &cases[i];
        struct simulate_config c = config_with(k->flags);
        struct simulate_source source = {.list = k->failures, .n = (size_t)k->n};
        struct totals totals = {0};
        struct simulate_watch watch = {add_stretch, &totals};
        struct simulate_run run;
        struct err err = {""};
        assert_int_equal(simulate_check(&c, &source, &err), 0);
        assert_int_equal(simulate_one(&c, &source, &watch, &run, &err), 0);
        for (int p = 0; p < SIMULATE_PARTS; p++)
            close_to(run.part_s[p], k->parts[p], simulate_part_names[p], k->name);
        close_to(run.wall_s, 500, "wall", k->name);
        close_to(totals.all, 500, "the sum of stretches", k->name);
        close_to((double)run.steps, (double)k->steps, "steps", k->name);
        close_to((double)run.requeues, k->requeues, "requeues", k->name);
        close_to((double)run.from_shared, k->from_shared, "from shared", k->name);
    }
}

/* 12 steps and two stalls; the third checkpoint is not begun. */
static void test_goal(void **state)
{
    static const struct simulate_failure none = {1e9, 0, 0}, one = {110, 0, 0};
    (void)state;
    struct simulate_config c = config_with(GOAL);
    struct simulate_source source = {.list = &none, .n = 1};
    struct simulate_run run;
    struct err err = {""};
    assert_int_equal(simulate_one(&c, &source, NULL, &run, &err), 0);
    close_to(run.wall_s, 124, "wall", "goal");
    assert_int_equal(run.steps, 12);
    assert_true(run.finished);
    /* At 110 number 2, begun at 102, just counts: on at 128 with 10 steps, 2 to do. */
    source.list = &one;
    assert_int_equal(simulate_one(&c, &source, NULL, &run, &err), 0);
    close_to(run.wall_s, 148, "wall", "goal after a failure");
    close_to(run.part_s[SIMULATE_USEFUL], 120, "useful", "goal after a failure");
    close_to(run.part_s[SIMULATE_AGAIN], 6, "again", "goal after a failure");
    assert_true(run.finished);
}

/* A run that never saves anything ends too. */
static void test_no_progress(void **state)
{
    (void)state;
    struct simulate_config c = config_with(GOAL);
    struct simulate_source source = {.mean_s = 10, .seed = 1};
    struct simulate_run run;
    struct err err = {""};
    assert_int_equal(simulate_one(&c, &source, NULL, &run, &err), 0);
    assert_false(run.finished);
    close_to(run.wall_s, 100 * 120, "wall", "no progress");
}

/* Llama 3's failures, in the form of 16,384 GPUs. */
static const struct simulate_config large = {
    .nodes = 2048,
    .spares = 2048,
    .horizon_s = 54 * 86400.0,
    .step_s = 6,
    .every_steps = 18,
    .stall_s = 0.5,
    .write_s = 20,
    .shared_every = 10,
    .shared_s = 120,
    .partner = true,
    .detect_s = 10,
    .restart_s = 15,
    .restore_local_s = 2,
    .restore_partner_s = 5,
    .restore_shared_s = 60,
    .repair_s = 3600,
    .requeue_s = 60,
};
static const double MEAN_S = 54 * 86400.0 / 419;

static double ettr(const struct simulate_config *c, int runs, struct simulate_summary *summary)
{
    struct simulate_source source = {.mean_s = MEAN_S, .seed = 1};
    struct err err = {""};
    assert_int_equal(simulate_check(c, &source, &err), 0);
    assert_int_equal(simulate_many(c, &source, runs, summary, &err), 0);
    return summary->part[SIMULATE_USEFUL].mean;
}

static void test_formula(void **state)
{
    (void)state;
    /* 10 + 5 + 3 + 8 + 25 = 51 s a failure; 2 s a 50 s of work. */
    close_to(simulate_formula(&small, 10000, false), (1 - 0.0051) / 1.04, "formula", "small");
    struct simulate_config with = config_with(SNAPSHOTS);
    /* 10 + 5 + 3 + 4 + 5 = 27 s; 1 s a 10 s, 2 s a 50 s. */
    close_to(simulate_formula(&with, 10000, false), (1 - 0.0027) / 1.14, "formula", "snapshots");
    with = config_with(NO_PARTNER);
    /* 10 + 5 + 30 + 20 + 50 = 115 s. */
    close_to(simulate_formula(&with, 10000, false), (1 - 0.0115) / 1.04, "formula", "no copies");

    /* Every third failure also takes 100 s, and loses 8 + 25 s instead of 4 + 5: 41.33 s more. */
    with = config_with(SNAPSHOTS);
    close_to(simulate_formula(&with, 10000, true), (1 - 0.0027 - 0.0124 / 3) / 1.14, "formula",
             "requeues");

    /* Where a spare is always there and recoveries are short, the runs agree with it. */
    for (int i = 0; i < 4; i++) {
        struct simulate_config c = large;
        struct simulate_summary summary;
        c.snapshots = i & 1;
        c.snapshot_copy_s = 2;
        c.partner = !(i & 2);
        if (!c.partner)
            c.snapshots = false;
        double got = ettr(&c, 100, &summary), formula = simulate_formula(&c, MEAN_S, false);
        /* Without copies a failure costs 7 % of the time between two: the square of it shows. */
        if (fabs(got - formula) > (c.partner ? 0.001 : 0.003))
            fail_msg("case %d: %.5f, the formula %.5f", i, got, formula);
        /* Poisson: 419 a run, so the mean of 100 runs is within 5 deviations of 2.05. */
        assert_true(fabs(summary.failures.mean - 419) < 10.3);
    }
}

static void test_target(void **state)
{
    (void)state;
    struct simulate_config c = large;
    struct simulate_summary summary;
    c.spares = 8;
    c.snapshots = true;
    c.snapshot_copy_s = 2;
    c.every_steps = simulate_auto_interval(&c, MEAN_S);
    double got = ettr(&c, 100, &summary), formula = simulate_formula(&c, MEAN_S, false);
    if (!(got >= 0.99 && fabs(got - formula) < 0.003))
        fail_msg("16,384 GPUs, 8 spares: %.5f, the formula %.5f", got, formula);
    formula = simulate_formula(&c, MEAN_S, true);
    if (!(fabs(got - formula) < 0.0005))
        fail_msg("16,384 GPUs, 8 spares: %.5f, the formula with requeues %.5f", got, formula);
}

static void test_spares_help(void **state)
{
    (void)state;
    struct simulate_config c = large;
    struct simulate_source source = {.mean_s = MEAN_S, .seed = 3};
    struct simulate_point points[SIMULATE_POINTS];
    struct err err = {""};
    int best, n;
    c.spares = 8;
    n = simulate_spares(&c, &source, 50, points, &best, &err);
    assert_true(n > 16);
    /* One more moves the moments of the requeues, which is chance: a hundredth of a point. */
    for (int i = 1; i < n; i++)
        if (points[i].ettr < points[i - 1].ettr - 1e-4)
            fail_msg("%d spares: %.6f, %d: %.6f", i, points[i].ettr, i - 1, points[i - 1].ettr);
    for (int i = 1; 2 * i < n; i *= 2)
        assert_true(points[2 * i].ettr > points[i].ettr);
    assert_true(points[1].ettr > points[0].ettr);
    for (int i = 0; i < n; i++)
        assert_true(points[i].paid <= points[best].paid);
}

static void test_interval(void **state)
{
    (void)state;
    struct simulate_config c = large;
    struct simulate_source source = {.mean_s = MEAN_S, .seed = 3};
    struct simulate_point points[SIMULATE_POINTS];
    struct err err = {""};
    int best, n;
    /* sqrt(2 x 0.5 x 11135) = 105.5 s are 17.6 steps. */
    assert_int_equal(simulate_auto_interval(&c, MEAN_S), 18);
    c.stall_s = 0; /* the write is left: 20 s */
    assert_int_equal(simulate_auto_interval(&c, MEAN_S), 4);
    c.write_s = 24;
    assert_int_equal(simulate_auto_interval(&c, MEAN_S), 4);
    c.write_s = 25;
    assert_int_equal(simulate_auto_interval(&c, MEAN_S), 5);
    /* With snapshots only every 9th failure goes back to a checkpoint: 3 times 105.5 s. */
    c = large;
    c.snapshots = true;
    c.spares = 8;
    assert_int_equal(simulate_auto_interval(&c, MEAN_S), 53);
    /* The best of the search is near the formula's: the curve is flat there. */
    c = large;
    n = simulate_intervals(&c, &source, 50, points, &best, &err);
    assert_true(n > 10 && points[0].x == 4);
    if (points[best].x < 9 || points[best].x > 36)
        fail_msg("the best interval is %lld steps, the formula's 18", (long long)points[best].x);
}

static void test_determinism(void **state)
{
    (void)state;
    struct simulate_source source = {.mean_s = MEAN_S, .seed = 5};
    struct simulate_run a, b, other;
    struct err err = {""};
    assert_int_equal(simulate_one(&large, &source, NULL, &a, &err), 0);
    assert_int_equal(simulate_one(&large, &source, NULL, &b, &err), 0);
    source.seed = 6;
    assert_int_equal(simulate_one(&large, &source, NULL, &other, &err), 0);
    assert_memory_equal(a.part_s, b.part_s, sizeof a.part_s);
    assert_int_equal(a.failures, b.failures);
    assert_true(a.part_s[SIMULATE_AGAIN] != other.part_s[SIMULATE_AGAIN]);
}

static void test_refuse(void **state)
{
    static const struct {
        size_t at; /* of a double in the configuration */
        double value;
        const char *says;
    } bad[] = {
        {offsetof(struct simulate_config, write_s), 60,
         "the interval is 50 s, but a checkpoint takes 60 s to write: use at least that"},
        {offsetof(struct simulate_config, shared_s), 101,
         "a checkpoint goes to the shared folder every 100 s, but takes 101 s: use at least that"},
        {offsetof(struct simulate_config, snapshot_copy_s), 11,
         "a snapshot takes 11 s to reach the partner, longer than a step of 10 s: it cannot be "
         "taken every step"},
        {offsetof(struct simulate_config, horizon_s), 0,
         "the run has no length: give days or steps"},
        {offsetof(struct simulate_config, horizon_s), 1e12,
         "a failure every 100 s over 1.16e+07 days is more than 1e+06 failures: use a longer time "
         "between failures or a shorter run"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct simulate_config c = config_with(SNAPSHOTS);
        struct simulate_source source = {.mean_s = 100};
        struct err err = {""};
        memcpy((char *)&c + bad[i].at, &bad[i].value, sizeof bad[i].value);
        assert_int_equal(simulate_check(&c, &source, &err), -1);
        assert_string_equal(err.text, bad[i].says);
    }
}

static long read_text(const char *text, struct simulate_failure **list, struct err *err)
{
    FILE *in = fmemopen((void *)text, strlen(text), "r");
    assert_non_null(in);
    long n = simulate_read_trace(in, "t.csv", 4, list, err);
    fclose(in);
    return n;
}

static void test_trace(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"1\n", "t.csv:1: not 2 or 3 fields: use time_hours,node[,kind]"},
        {"1,2,node,4\n", "t.csv:1: not 2 or 3 fields: use time_hours,node[,kind]"},
        {"time_hours,node\nx,2\n", "t.csv:2: the time is 'x': use hours from the start, 0 or more"},
        {"-1,2\n", "t.csv:1: the time is '-1': use hours from the start, 0 or more"},
        {"1,2\n1,4\n", "t.csv:2: the node is '4': use 0 to 3"},
        {"1,2.5\n", "t.csv:1: the node is '2.5': use 0 to 3"},
        {"1,2,disk\n", "t.csv:1: the kind is 'disk': use node or worker"},
        {"# nothing\n", "t.csv: no failure in it: use lines of time_hours,node[,kind]"},
    };
    (void)state;
    struct simulate_failure *list;
    struct err err = {""};
    long n = read_text(
        "# a comment\n time_hours, node, kind\n\n2, 3, worker\n0.5,1 # why\n1,0,node", &list, &err);
    if (n != 3)
        fail_msg("%ld failures: %s", n, err.text);
    assert_true(list[0].at_s == 1800 && list[0].place == 1 && list[0].kind == SIMULATE_NODE);
    assert_true(list[1].at_s == 3600 && list[1].place == 0 && list[1].kind == SIMULATE_NODE);
    assert_true(list[2].at_s == 7200 && list[2].place == 3 && list[2].kind == SIMULATE_WORKER);
    free(list);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_text(bad[i].text, &list, &err), -1);
        assert_string_equal(err.text, bad[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hand),        cmocka_unit_test(test_goal),
        cmocka_unit_test(test_no_progress), cmocka_unit_test(test_formula),
        cmocka_unit_test(test_target),      cmocka_unit_test(test_spares_help),
        cmocka_unit_test(test_interval),    cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_refuse),      cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
