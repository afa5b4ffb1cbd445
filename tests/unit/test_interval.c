/* test_interval.c - how often checkpoints and snapshots are made where the plan says auto: the
 * formulas, that all ranks take it over at the same step, and a run that does it. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt.h"
#include "memory.h"
#include "train/pace.h"
#include "train_rig.h"

#define DAY 86400.0

static void decision(void **state)
{
    (void)state;
    static const struct {
        struct interval_facts facts;
        int64_t steps;
    } cases[] = {
        /* sqrt(2 * 0.0021 * 12.4 days) = 67.1 s */
        {{0.0021, 1.3, 1.813, 12.4 * DAY}, 37},
        /* sqrt(2 * 30 s * 1 day) = 2276.8 s: the textbook's half a minute and a failure a day */
        {{30, 0, 10, DAY}, 228},
        {{30, 0, 1000, DAY}, 2},
        {{30, 0, 100000, DAY}, 1}, /* never less than one */
        /* four times the cost or four times as rare: twice as far apart */
        {{120, 0, 10, DAY}, 455},
        {{30, 0, 10, 4 * DAY}, 455},
        /* a copy that costs nothing: as fast as the disk takes it, up to the next whole step */
        {{0, 1.3, 0.5, DAY}, 3},
        {{0, 1.0, 0.5, DAY}, 2},
        {{0, 0, 0.5, DAY}, 1},
        /* a slow disk outweighs a cheap copy */
        {{1e-6, 600, 2, DAY}, 300},
        /* nothing overflows */
        {{1e9, 1e9, 1e-9, 1e18}, 1000000000},
        {{1, 1, 0, DAY}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t got = interval_steps(&cases[i].facts);
        if (got != cases[i].steps)
            fail_msg("case %zu: %lld steps, not %lld", i, (long long)got,
                     (long long)cases[i].steps);
    }
}

static void share(void **state)
{
    (void)state;
    static const struct {
        double cost_s, step_s;
        int64_t steps;
    } cases[] = {
        {0.004, 0.66, 2},  /* 0.61 % of each step; of every second one 0.30 % */
        {0.0033, 0.66, 1}, /* 0.5 % */
        {0.010, 0.18, 12}, /* 5.6 %; 0.46 % */
        {0.010, 60, 1},
        {2, 0.1, 4000}, /* 20 steps' time: as rare */
        {0, 0.1, 1},
        {0.001, 0, 1},           /* a step that took no time says nothing */
        {1e9, 1e-9, 1000000000}, /* as many steps as a plan may have */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t got = interval_share_steps(cases[i].cost_s, cases[i].step_s);
        if (got != cases[i].steps)
            fail_msg("case %zu: %lld steps, not %lld", i, (long long)got,
                     (long long)cases[i].steps);
    }
    char text[200];
    interval_share_text(0.010, 0.18, 12, text, sizeof text);
    assert_string_equal(text, "snapshot every 12 steps: 10 ms each, a step 180 ms");
    interval_share_text(2, 1000, 1, text, sizeof text);
    assert_string_equal(text, "snapshot every 1 step: 2 s each, a step 16.7 min");
}

/* 419 failures in 54 days on 2,048 nodes, as the default was made; one node alone: 264 days. */
static void failures(void **state)
{
    (void)state;
    struct err err = {{0}};
    static const char text[] = "model: {layers: 1, hidden: 8, ffn: 8, heads: 1, vocab: 8}\n"
                               "data: {train: /x}\n"
                               "training: {steps: 1, global_batch: 1, sequence: 1}\n";
    struct plan *plan = plan_parse(text, sizeof text - 1, "p.yaml", NULL, 0, "/", &err);
    if (!plan)
        fail_msg("%s", err.text);
    double hours = plan->resilience.mtbf_hours;
    plan_free(plan);
    assert_int_equal(lround(54 * DAY / interval_mtbf_s(hours, 2048)), 419);
    assert_int_equal(lround(interval_mtbf_s(hours, 1) / DAY), 264);
    assert_true(interval_mtbf_s(hours, 0) == interval_mtbf_s(hours, 1));
}

static void text(void **state)
{
    (void)state;
    char got[200];
    struct interval_facts facts = {0.0021, 1.3, 1.813, 12.4 * DAY};
    interval_text(&facts, 37, got, sizeof got);
    assert_string_equal(got, "checkpoint every 37 steps: stall 2.1 ms, write 1.3 s, one failure "
                             "per 12.4 days expected");
    facts = (struct interval_facts){1.5, 240, 1, 3.1 * 3600};
    interval_text(&facts, 1, got, sizeof got);
    assert_string_equal(got, "checkpoint every 1 step: stall 1.5 s, write 4 min, one failure per "
                             "3.1 h expected");
}

static void median(void **state)
{
    (void)state;
    struct interval_window w = {.n = 0};
    assert_true(interval_median(&w) == 0);
    interval_note(&w, 5);
    assert_true(interval_median(&w) == 5);
    for (int i = 0; i < 20; i++)
        interval_note(&w, i % 9 == 4 ? 1e6 : i); /* holds 11..19, one of them odd */
    assert_true(interval_median(&w) == 16);
}

/* Two ranks see the same tallies and other times: they agree after every step. */
static void ranks_agree(void **state)
{
    (void)state;
    struct plan plan = {.checkpoint = {.every = PLAN_AUTO}, .resilience = {.mtbf_hours = 100}};
    struct pace pace[2];
    struct step_result result = {.finished = -1};
    int told = 0;
    int64_t last = 0;
    for (int r = 0; r < 2; r++) {
        struct train_identity identity = {.rank = r, .world = 2, .local_world = 1};
        pace_open(&pace[r], PACE_CHECKPOINTS, &plan, &identity);
    }
    for (int64_t step = 1; step <= 400; step++) {
        struct err why;
        assert_int_equal(pace_due(&pace[0], step, last), pace_due(&pace[1], step, last));
        if (pace_due(&pace[0], step, last))
            last = step;
        result.every = pace_word(&pace[0]) + pace_word(&pace[1]); /* as the reduction adds */
        result.finished = last;
        result.stall_s = last ? 1e-3 * (double)(1 + step % 3) : 0;
        result.write_s = last ? 0.1 : 0;
        told += pace_hear(&pace[0], &result, 0.5, &why);
        told += pace_hear(&pace[1], &result, 0.9, &why);
        assert_int_equal(pace[0].every, pace[1].every);
        if (step == INTERVAL_FIRST)
            assert_int_equal(last, INTERVAL_FIRST);
    }
    assert_int_equal(told, 1);
    /* 2 ms, two nodes that fail every 100 h: sqrt(2 * 0.002 * 180000) = 26.8 s = 54 steps */
    assert_int_equal(pace[0].every, 54);
}

/* Two ranks, where the first snapshot costs so much and the others so much; a rank tells what one
 * has cost with the step after the next. */
struct course {
    double first_s, cost_s;
    int steps, taken, told_at, taken_until_told;
    int64_t every;
};

static void run_course(struct course *c)
{
    struct plan plan = {.checkpoint = {.snapshots = PLAN_AUTO}};
    struct pace pace[2];
    double costs[2] = {0};
    int64_t last = 0;
    int told = 0;
    for (int r = 0; r < 2; r++) {
        struct train_identity identity = {.rank = r, .world = 2, .local_world = 1};
        pace_open(&pace[r], PACE_SNAPSHOTS, &plan, &identity);
    }
    c->taken = 0;
    for (int step = 1; step <= c->steps; step++) {
        struct err why;
        struct step_result result = {.finished = -1,
                                     .snapshot_s = costs[step % 2],
                                     .snapshot_every = pace_word(&pace[0]) + pace_word(&pace[1])};
        costs[step % 2] = 0;
        assert_int_equal(pace_due(&pace[0], step, last), pace_due(&pace[1], step, last));
        if (pace_due(&pace[0], step, last)) {
            assert_in_range(step - last, 1, told ? c->steps : INTERVAL_FIRST);
            costs[step % 2] = c->taken++ ? c->cost_s : c->first_s;
            last = step;
        }
        if (pace_hear(&pace[0], &result, 0.5, &why)) {
            told++;
            c->told_at = step;
            c->taken_until_told = c->taken;
        }
        assert_false(pace_hear(&pace[1], &result, 0.9, &why));
        assert_int_equal(pace[0].every, pace[1].every);
    }
    assert_int_equal(told, 1);
    c->every = pace[0].every;
}

static void ranks_agree_on_snapshots(void **state)
{
    (void)state;
    /* 9 ms of steps of 0.5 s: every fourth; the first costs 100 times that. All cost the same, and
     * each counts. */
    struct course dear_first = {.first_s = 0.9, .cost_s = 9e-3, .steps = 60};
    run_course(&dear_first);
    assert_int_equal(dear_first.every, 4);
    assert_in_range(dear_first.told_at, 3 * INTERVAL_FIRST, 3 * INTERVAL_FIRST + 4);
    assert_int_equal(dear_first.taken_until_told, INTERVAL_TRIED);
    /* Nearly free: at each step as soon as the first has been seen. */
    struct course cheap = {.first_s = 1e-3, .cost_s = 1e-3, .steps = 60};
    run_course(&cheap);
    assert_int_equal(cheap.every, 1);
    assert_in_range(cheap.taken, 60 - INTERVAL_FIRST - 5, 60 - INTERVAL_FIRST);
    /* 2 s: one in 800 steps, and three until that is known. */
    struct course dear = {.first_s = 2, .cost_s = 2, .steps = 700};
    run_course(&dear);
    assert_int_equal(dear.every, 800);
    assert_int_equal(dear.taken, INTERVAL_TRIED);
    /* 3.5 ms of 0.5 s: 0.35 % were they at every second step; also while it is tried they keep to
     * their share. */
    struct course fair = {.first_s = 3.5e-3, .cost_s = 3.5e-3, .steps = 60};
    run_course(&fair);
    assert_int_equal(fair.every, 2);
    assert_true(fair.taken * fair.cost_s <= INTERVAL_SHARE * 60 * 0.5);
}

static void check_fixed(enum pace_of of)
{
    struct plan plan = {.checkpoint = {.every = 3, .snapshots = 3}};
    struct train_identity identity = {.world = 1, .local_world = 1};
    struct step_result result = {.finished = 3,
                                 .stall_s = 1,
                                 .write_s = 1,
                                 .snapshot_s = 1,
                                 .every = 7,
                                 .snapshot_every = 7};
    struct pace pace;
    struct err why;
    pace_open(&pace, of, &plan, &identity);
    assert_false(pace_hear(&pace, &result, 1, &why));
    assert_int_equal(pace_word(&pace), 0);
    for (int64_t done = 1; done < 10; done++)
        assert_int_equal(pace_due(&pace, done, 0), done % 3 == 0);
}

static void as_the_plan_says(void **state)
{
    (void)state;
    check_fixed(PACE_CHECKPOINTS);
    check_fixed(PACE_SNAPSHOTS);
}

/* ---- a run ---- */

enum { STEPS = 40 };

static int count_in(const char *path, const char *word)
{
    char line[2048];
    int n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, word) != NULL;
    fclose(f);
    return n;
}

static void run_finds_it(void **state)
{
    (void)state;
    char folder[256], key[300], events[300];
    struct rig_result r;
    rig_folder_make(folder);
    snprintf(key, sizeof key, "checkpoint.local=%s/checkpoints", folder);
    snprintf(events, sizeof events, "%s/events.jsonl", folder);
    struct rig_run run = {.folder = folder,
                          .steps = STEPS,
                          .records = true,
                          .changes = {key, "checkpoint.every=auto", "parallel.tensor=2"}};
    rig_train_well(&run, &r);
    assert_int_equal(count_in(events, "checkpoint every "), 1);
    assert_in_range(count_in(events, "committed"), 2, STEPS);
    rig_folder_remove(folder);
}

/* With memory that outlives the ranks: one event says how often, and the losses are those of a run
 * that takes none. */
static void run_takes_snapshots(void **state)
{
    (void)state;
    char folder[256], events[300];
    int fds[2 * CKPT_MEMORY_SLOTS];
    struct rig_result with, without;
    rig_folder_make(folder);
    snprintf(events, sizeof events, "%s/events.jsonl", folder);
    for (int i = 0; i < 2 * CKPT_MEMORY_SLOTS; i++)
        assert_true((fds[i] = memfd_create("snapshots", MFD_CLOEXEC)) >= 0);
    struct rig_run run = {.folder = folder,
                          .steps = STEPS,
                          .changes = {"checkpoint.snapshots=auto", "parallel.data=2"},
                          .node_ranks = 1};
    rig_train_well(&run, &without);
    run.memory = fds;
    run.records = true;
    rig_train_well(&run, &with);
    assert_int_equal(count_in(events, "snapshot every "), 1);
    assert_memory_equal(with.loss, without.loss, (size_t)with.n * sizeof *with.loss);
    for (int i = 0; i < 2 * CKPT_MEMORY_SLOTS; i++)
        close(fds[i]);
    rig_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decision),     cmocka_unit_test(failures),
        cmocka_unit_test(text),         cmocka_unit_test(median),
        cmocka_unit_test(ranks_agree),  cmocka_unit_test(as_the_plan_says),
        cmocka_unit_test(run_finds_it), cmocka_unit_test(run_takes_snapshots),
        cmocka_unit_test(share),        cmocka_unit_test(ranks_agree_on_snapshots),
    };
    return cmocka_run_group_tests_name("interval", tests, NULL, NULL);
}
