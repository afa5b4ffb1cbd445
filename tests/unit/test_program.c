/* Programs: the schedules' orders and figures, and that the checker finds what is wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "train/program.h"

enum { MOST_STAGES = 8 };

struct step {
    struct program stages[MOST_STAGES];
    int n;
};

static void make_plan(struct plan *plan, int stages, int microbatches, enum plan_schedule schedule)
{
    *plan = (struct plan){.accumulation = microbatches, .world = stages};
    plan->model.layers = stages;
    plan->parallel.tensor = plan->parallel.context = plan->parallel.expert = 1;
    plan->parallel.virtual_stages = plan->parallel.data = 1;
    plan->parallel.pipeline = stages;
    plan->parallel.schedule = schedule;
}

static void make_replica(struct step *step, const struct plan *plan, int replica)
{
    struct err err = {""};
    step->n = plan->parallel.pipeline;
    for (int s = 0; s < step->n; s++)
        if (program_make(&step->stages[s], plan, replica, s, &err) < 0)
            fail_msg("%s", err.text);
}

static void make_step(struct step *step, const struct plan *plan)
{
    make_replica(step, plan, 0);
}

static void free_step(struct step *step)
{
    for (int s = 0; s < step->n; s++)
        program_free(&step->stages[s]);
}

/* "F0 F1 B0 ...": forwards and backwards in their order. */
static void order(const struct program *p, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < p->n; i++) {
        enum action_kind kind = p->actions[i].kind;
        if (kind == ACTION_FORWARD || kind == ACTION_BACKWARD_INPUT)
            used += (size_t)snprintf(text + used, size - used, "%s%c%d", used ? " " : "",
                                     kind == ACTION_FORWARD ? 'F' : 'B', p->actions[i].microbatch);
    }
}

/* Narayanan et al. 2021, figures 3 and 4. */
static void test_orders(void **state)
{
    static const struct {
        enum plan_schedule schedule;
        const char *expected[3];
    } cases[] = {
        {PLAN_1F1B,
         {"F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"}},
        {PLAN_GPIPE,
         {"F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan;
        struct step step;
        make_plan(&plan, 3, 4, cases[i].schedule);
        make_step(&step, &plan);
        for (int s = 0; s < 3; s++) {
            char text[200];
            order(&step.stages[s], text, sizeof text);
            assert_string_equal(text, cases[i].expected[s]);
        }
        free_step(&step);
    }
}

static void test_all_are_right(void **state)
{
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = 1; m <= 12; m++)
            for (int variant = 0; variant < 8; variant++) {
                struct plan plan;
                struct step step;
                struct err err = {""};
                make_plan(&plan, stages, m, variant & 1 ? PLAN_GPIPE : PLAN_1F1B);
                plan.model.tied = variant & 2;
                plan.parallel.data = variant & 4 ? 2 : 1;
                make_step(&step, &plan);
                if (program_check(step.stages, stages, &err) < 0)
                    fail_msg("%d stages, %d microbatches: %s", stages, m, err.text);
                free_step(&step);
            }
}

static void test_validation_is_right(void **state)
{
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = 1; m <= 6; m++) {
            struct plan plan;
            struct step step = {.n = stages};
            struct err err = {""};
            make_plan(&plan, stages, m, PLAN_1F1B);
            for (int s = 0; s < stages; s++) {
                if (program_make_validation(&step.stages[s], &plan, 0, s, &err) < 0)
                    fail_msg("%s", err.text);
                assert_true(step.stages[s].slots <= plan_stage_slots(&plan, s));
            }
            if (program_check(step.stages, stages, &err) < 0)
                fail_msg("%d stages, %d microbatches: %s", stages, m, err.text);
            free_step(&step);
        }
}

static int count_kind(const struct step *step, enum action_kind kind)
{
    int n = 0;
    for (int s = 0; s < step->n; s++)
        for (int i = 0; i < step->stages[s].n; i++)
            n += step->stages[s].actions[i].kind == kind;
    return n;
}

/* Each microbatch of a step belongs to one replica, none takes two more than another, and those
 * with fewer meet the others as often. */
static void check_uneven(const struct plan *plan, int64_t all)
{
    int64_t next = 0, replicas = plan->parallel.data;
    for (int r = 0; r < replicas; r++) {
        int64_t first, count;
        struct step step;
        struct err err = {""};
        plan_replica_microbatches(plan, r, &first, &count);
        assert_int_equal(first, next);
        assert_true(count == all / replicas || count == (all + replicas - 1) / replicas);
        next += count;
        make_replica(&step, plan, r);
        assert_int_equal(count_kind(&step, ACTION_FORWARD), count * step.n);
        assert_int_equal(count_kind(&step, ACTION_BACKWARD_WEIGHT), count * step.n);
        assert_int_equal(count_kind(&step, ACTION_REDUCE_GRADS), replicas > 1 ? step.n : 0);
        assert_int_equal(count_kind(&step, ACTION_NORM), step.n);
        for (int s = 0; s < step.n; s++)
            assert_true(step.stages[s].slots <= plan_stage_slots(plan, s));
        if (program_check(step.stages, step.n, &err) < 0)
            fail_msg("replica %d of %d, %d microbatches in all: %s", r, (int)replicas, (int)all,
                     err.text);
        free_step(&step);
    }
    assert_int_equal(next, all);
}

static void test_uneven_replicas(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 4; stages++)
        for (int replicas = 1; replicas <= 7; replicas++)
            for (int all = replicas; all <= 17; all++) {
                struct plan plan;
                make_plan(&plan, stages, all / replicas, all % 2 ? PLAN_GPIPE : PLAN_1F1B);
                plan.parallel.data = replicas;
                plan.extra = all % replicas;
                check_uneven(&plan, all);
            }
}

/* Microbatches in flight: Narayanan et al. 2021, section 2.2. Counted from the actions, not read
 * from `slots` alone. */
static void test_peak_slots(void **state)
{
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = 1; m <= 12; m++) {
            struct plan plan;
            struct step step;
            make_plan(&plan, stages, m, PLAN_1F1B);
            make_step(&step, &plan);
            for (int s = 0; s < stages; s++) {
                int alive = 0, peak = 0, depth = stages - s;
                for (int i = 0; i < step.stages[s].n; i++) {
                    alive += step.stages[s].actions[i].kind == ACTION_FORWARD;
                    peak = alive > peak ? alive : peak;
                    alive -= step.stages[s].actions[i].kind == ACTION_BACKWARD_WEIGHT;
                }
                assert_int_equal(peak, m < depth ? m : depth);
                assert_int_equal(step.stages[s].slots, peak);
            }
            free_step(&step);
        }
}

static double simulated(const struct step *step, const struct program_costs *costs)
{
    double **start, **end, length;
    struct err err = {""};
    if (program_simulate(step->stages, step->n, costs, &start, &end, &length, &err) < 0)
        fail_msg("%s", err.text);
    program_times_free(start, step->n);
    program_times_free(end, step->n);
    return length;
}

/* Idle part of a step: (p-1)/(m+p-1) for both schedules, where backward is one piece. */
static void test_bubble(void **state)
{
    static const struct program_costs whole = {1, 2, 0};
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = 1; m <= 16; m++)
            for (int schedule = 0; schedule < 2; schedule++) {
                struct plan plan;
                struct step step;
                make_plan(&plan, stages, m, schedule ? PLAN_1F1B : PLAN_GPIPE);
                make_step(&step, &plan);
                double length = simulated(&step, &whole);
                double bubble = (length - 3.0 * m) / length;
                assert_true(fabs(bubble - (stages - 1.0) / (m + stages - 1.0)) < 1e-12);
                free_step(&step);
            }
}

/* With backward in two, the gradient of the input travels a unit earlier at each of the p - 1 hops
 * of the drain: 3 m + 2 (p - 1) units instead of 3 m + 3 (p - 1). */
static void test_split_backward_is_shorter(void **state)
{
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = stages; m <= 16; m++) {
            struct plan plan;
            struct step step;
            make_plan(&plan, stages, m, PLAN_1F1B);
            make_step(&step, &plan);
            assert_true(simulated(&step, NULL) == 3.0 * m + 2.0 * (stages - 1));
            free_step(&step);
        }
}

/* ---- what is wrong is found ---- */

static struct action *find(struct program *p, enum action_kind kind, int microbatch)
{
    for (int i = 0; i < p->n; i++)
        if (p->actions[i].kind == kind && p->actions[i].microbatch == microbatch)
            return &p->actions[i];
    fail_msg("no %s %d", action_name(kind), microbatch);
    return NULL;
}

static void drop_wait(struct program *p, enum action_kind kind, int microbatch, enum action_kind on)
{
    struct action *a = find(p, kind, microbatch);
    int kept = 0;
    for (int i = 0; i < a->n_waits; i++)
        if (p->actions[a->waits[i]].kind != on)
            a->waits[kept++] = a->waits[i];
    assert_true(kept < a->n_waits);
    a->n_waits = kept;
}

/* Each edge of the program that is needed: without it the checker says which buffer is in danger.
 */
static void test_missing_waits(void **state)
{
    static const struct {
        int stage;
        enum action_kind kind;
        int microbatch;
        enum action_kind on;
        const char *says;
    } cases[] = {
        {1, ACTION_FORWARD, 0, ACTION_RECV_FORWARD, "which writes the input"},
        {1, ACTION_FORWARD, 2, ACTION_SEND_FORWARD, "overwrites the output"},
        {1, ACTION_SEND_FORWARD, 0, ACTION_FORWARD, "which writes the output"},
        {1, ACTION_RECV_FORWARD, 2, ACTION_BACKWARD_WEIGHT, "overwrites the input"},
        {2, ACTION_RECV_FORWARD, 1, ACTION_BACKWARD_WEIGHT, "overwrites the input"},
        {1, ACTION_BACKWARD_INPUT, 0, ACTION_RECV_BACKWARD, "which writes the output's gradient"},
        {1, ACTION_BACKWARD_INPUT, 2, ACTION_SEND_BACKWARD, "overwrites the input's gradient"},
        {2, ACTION_BACKWARD_INPUT, 1, ACTION_SEND_BACKWARD, "overwrites the input's gradient"},
        {1, ACTION_SEND_BACKWARD, 0, ACTION_BACKWARD_INPUT, "which writes the input's gradient"},
        {0, ACTION_REDUCE_TIED, -1, ACTION_BACKWARD_WEIGHT, "which writes the weights' gradients"},
        {1, ACTION_REDUCE_GRADS, -1, ACTION_BACKWARD_WEIGHT, "which writes the weights' gradients"},
        {1, ACTION_NORM, -1, ACTION_REDUCE_GRADS, "which writes the weights' gradients"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan;
        struct step step;
        struct err err = {""};
        make_plan(&plan, 3, 4, PLAN_1F1B);
        plan.model.tied = true;
        plan.parallel.data = 2;
        make_step(&step, &plan);
        drop_wait(&step.stages[cases[i].stage], cases[i].kind, cases[i].microbatch, cases[i].on);
        if (program_check(step.stages, 3, &err) == 0)
            fail_msg("case %zu was not found", i);
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: '%s' does not say '%s'", i, err.text, cases[i].says);
        free_step(&step);
    }
}

/* Exchange two neighbouring actions' places; nothing waits for them across. */
static void swap(struct program *p, int first, int second)
{
    struct action a = p->actions[first];
    p->actions[first] = p->actions[second];
    p->actions[second] = a;
}

static void test_deadlock(void **state)
{
    (void)state;
    struct plan plan;
    struct step step;
    struct err err = {""};
    make_plan(&plan, 2, 2, PLAN_GPIPE);
    make_step(&step, &plan);
    struct program *p = &step.stages[0];
    /* load 0, forward 0, send 0, load 1, forward 1, send 1, receive backward 0: the receive moves
     * in front of both sends, so that the second stage never gets anything. */
    assert_int_equal(p->actions[6].kind, ACTION_RECV_BACKWARD);
    for (int i = 6; i > 2; i--)
        swap(p, i, i - 1);
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->actions[i].n_waits; k++) {
            int *on = &p->actions[i].waits[k];
            *on = *on == 6 ? 2 : *on >= 2 && *on < 6 ? *on + 1 : *on;
        }
    assert_int_equal(program_check(step.stages, 2, &err), -1);
    assert_string_equal(err.text, "stage 0, action 2 (receive backward of microbatch 0 in slot 0): "
                                  "waits for ever, and so do all others");
    free_step(&step);
}

static void test_wrong_forms(void **state)
{
    static const char *const says[] = {
        "is there twice",           "no such microbatch or slot",
        "the wrong peer",           "waits for what does not come before it",
        "no such stream",           "the output's gradient in its slot: another microbatch's",
        "comes too late, or twice",
    };
    (void)state;
    for (int i = 0; i < (int)(sizeof says / sizeof *says); i++) {
        struct plan plan;
        struct step step;
        struct err err = {""};
        make_plan(&plan, 2, 3, PLAN_1F1B);
        make_step(&step, &plan);
        struct program *p = &step.stages[0];
        struct action *a = find(p, ACTION_BACKWARD_INPUT, 0);
        if (i == 0)
            a->microbatch = 1;
        else if (i == 1)
            a->slot = p->slots;
        else if (i == 2)
            find(p, ACTION_RECV_BACKWARD, 0)->peer_stage = 0;
        else if (i == 3)
            a->waits[0] = (int)(a - p->actions);
        else if (i == 4)
            a->stream = PROGRAM_STREAMS;
        else if (i == 5)
            a->slot = 1;
        else
            swap(p, p->n - 1, p->n - 2);
        assert_int_equal(program_check(step.stages, 2, &err), -1);
        if (!strstr(err.text, says[i]))
            fail_msg("case %d: '%s' does not say '%s'", i, err.text, says[i]);
        free_step(&step);
    }
}

static void test_refused(void **state)
{
    (void)state;
    struct plan plan;
    struct program p;
    struct err err = {""};
    make_plan(&plan, 2, 4, PLAN_1F1B);
    plan.source = (char *)"plan.yaml";
    plan.parallel.virtual_stages = 2;
    assert_int_equal(program_make(&p, &plan, 0, 0, &err), -1);
    assert_string_equal(err.text, "plan.yaml:1:1: parallel.virtual is 2, but this version has no "
                                  "interleaved schedule: use 1");
    assert_null(p.actions);
    plan.parallel.virtual_stages = 1;
    assert_int_equal(program_make(&p, &plan, 0, 2, &err), -1);
    assert_string_equal(err.text, "there is no stage 2 in a pipeline of 2");
    assert_int_equal(program_make(&p, &plan, 1, 0, &err), -1);
    assert_string_equal(err.text, "there is no replica 1 of 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_all_are_right),
        cmocka_unit_test(test_validation_is_right),
        cmocka_unit_test(test_uneven_replicas),
        cmocka_unit_test(test_peak_slots),
        cmocka_unit_test(test_bubble),
        cmocka_unit_test(test_split_backward_is_shorter),
        cmocka_unit_test(test_missing_waits),
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_wrong_forms),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
