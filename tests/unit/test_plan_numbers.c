/* Plans: learning rate, FLOPs, memory, node counts, hash, and taking an option apart. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/number.h"
#include "plan/plan.h"

#define SMALL                                                                                      \
    "model: {layers: 4, hidden: 64, ffn: 96, heads: 8, kv_heads: 4, vocab: 256}\n"                 \
    "data: {train: corpus.txt}\n"                                                                  \
    "training: {steps: 100, global_batch: 16, sequence: 32}\n"

static struct plan *small(const char *const *overrides, int n)
{
    struct err err = {""};
    struct plan *plan =
        plan_parse(SMALL, strlen(SMALL), "small.yaml", (char *const *)overrides, n, "/base", &err);
    if (!plan)
        fail_msg("%s", err.text);
    return plan;
}

static void near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", value, expected);
}

static void test_lr_cosine(void **state)
{
    (void)state;
    const struct plan_training t = {.lr = 1,
                                    .min_lr = 0.1,
                                    .warmup_steps = 10,
                                    .decay_steps = 110,
                                    .steps = 200,
                                    .lr_schedule = PLAN_LR_COSINE};
    near(plan_lr(&t, 0), 0.1);
    near(plan_lr(&t, 4), 0.5);
    near(plan_lr(&t, 9), 1);
    near(plan_lr(&t, 10), 1);
    near(plan_lr(&t, 60), 0.55); /* half way: the mean */
    /* A third of the way: cos 60 degrees = 1/2. */
    const struct plan_training third = {.lr = 3, .decay_steps = 300, .steps = 300};
    near(plan_lr(&third, 100), 2.25);
    near(plan_lr(&t, 110), 0.1);
    near(plan_lr(&t, 199), 0.1);
}

static void test_lr_others(void **state)
{
    (void)state;
    struct plan_training t = {.lr = 1,
                              .min_lr = 0.5,
                              .warmup_steps = 10,
                              .decay_steps = 100,
                              .wsd_decay_steps = 20,
                              .steps = 200,
                              .lr_schedule = PLAN_LR_WSD};
    near(plan_lr(&t, 0), 0.1);
    near(plan_lr(&t, 10), 1);
    near(plan_lr(&t, 80), 1);
    near(plan_lr(&t, 90), 0.75);
    near(plan_lr(&t, 100), 0.5);
    near(plan_lr(&t, 199), 0.5);
    t.lr_schedule = PLAN_LR_CONSTANT;
    near(plan_lr(&t, 9), 1);
    near(plan_lr(&t, 199), 1);
    /* Nothing but warm-up. */
    t.lr_schedule = PLAN_LR_COSINE;
    t.warmup_steps = t.decay_steps;
    near(plan_lr(&t, 99), 1);
    near(plan_lr(&t, 100), 0.5);
}

/* By hand. A layer: q and o 2 x 64 x 64, k and v 2 x 64 x 32, ffn 3 x 64 x 96 = 30,720 weights and
 * two norms of 64. Matrices of the model with its head: 4 x 30,720 + 256 x 64 = 139,264. */
static void test_sizes(void **state)
{
    (void)state;
    const char *tied[] = {"model.tied=true"}, *two[] = {"model.tied=true", "parallel.pipeline=2"};
    struct plan *p = small(NULL, 0), *q = small(tied, 1), *r = small(two, 2);
    assert_int_equal(p->parameters, 4 * (30720 + 128) + 2 * 16384 + 64);
    assert_int_equal(q->parameters, 4 * (30720 + 128) + 16384 + 64);
    assert_int_equal(r->parameters, q->parameters);
    assert_int_equal(plan_stage_parameters(r, 0), 2 * (30720 + 128) + 16384);
    assert_int_equal(plan_stage_parameters(r, 1), 2 * (30720 + 128) + 16384 + 64);
    /* 6 x 139,264 + 12 x 4 layers x 64 x 32 / 2 */
    near(plan_flops_per_token(p), 6.0 * 139264 + 12 * 4 * 64 * 16);
    near(plan_flops_per_token(q), plan_flops_per_token(p));
    plan_free(p);
    plan_free(q);
    plan_free(r);
}

/* 12 bytes a parameter of optimizer state in mixed precision (Rajbhandari et al. 2020), split among
 * the replicas from `shard: optimizer` on. */
static void test_memory(void **state)
{
    (void)state;
    const char *o[] = {"training.precision=bf16", "parallel.data=4", "parallel.shard=optimizer",
                       "parallel.tensor=2"};
    struct plan *p = small(o, 4);
    double n = (double)p->parameters / 2;
    struct plan_memory m = plan_memory(p, 0);
    near(m.weights, 2 * n);
    near(m.gradients, 4 * n);
    near(m.optimizer, 12 * n / 4);
    /* A token and layer: 4 x 64 + (2 x 64 + 2 x 32 + 3 x 96) / 2 + 8 / 2 + 2 = 502 values of 2
     * bytes; 32 tokens; one microbatch in flight; logits 128. */
    near(m.activations, 2.0 * 32 * (4 * 502 + 128));
    plan_free(p);
    p = small(NULL, 0);
    m = plan_memory(p, 0);
    near(m.weights + m.gradients + m.optimizer, 16.0 * (double)p->parameters);
    plan_free(p);
}

/* float32: a file holds 12 bytes a parameter; it is copied once to be written, and twice into the
 * memory of its node and of another. */
static void test_host_memory(void **state)
{
    (void)state;
    static const char *const files[] = {"training.precision=float32", "parallel.pipeline=2",
                                        "checkpoint.local=/scratch", "checkpoint.every=5"};
    static const char *const memory[] = {"training.precision=float32", "checkpoint.local=/scratch",
                                         "checkpoint.every=0"};
    static const char *const none[] = {"checkpoint.snapshots=0"};
    struct plan *p = small(files, 4);
    double first = 12 * (double)plan_stage_parameters(p, 0),
           last = 12 * (double)plan_stage_parameters(p, 1);
    double t = p->parallel.tensor;
    struct plan_host_memory m = plan_host_memory(p, 0);
    assert_true(first != last);
    near(m.copy, first / t);
    near(m.own, 2 * first / t);
    near(m.wards, 2 * fmax(first, last) / t);
    plan_free(p);
    p = small(memory, 3); /* nothing is written */
    m = plan_host_memory(p, 0);
    near(m.copy, 0);
    near(m.own, 24.0 * (double)p->parameters / p->parallel.tensor);
    near(m.wards, p->world > 1 ? m.own : 0);
    plan_free(p);
    p = small(none, 1);
    m = plan_host_memory(p, 0);
    near(m.copy + m.own + m.wards, 0);
    plan_free(p);
}

/* Saves at steps s, s + every, ...: at the end of step n, the tallies up to that of n - 2 have been
 * read; that of step t tells of files begun at t - 2 and before. So the files of the steps after
 * n - 4 are not known to be finished. */
static void test_files_ahead(void **state)
{
    (void)state;
    for (int64_t every = 1; every < 10; every++) {
        struct plan_checkpoint c = {.every = every};
        int waiting = 0;
        for (int64_t n = 1000 * every, s = n - every; s > n - 4; s -= every)
            waiting++;
        assert_int_equal(plan_files_ahead(&c), waiting);
        assert_true(waiting <= PLAN_FILES_AHEAD_MOST);
    }
    assert_int_equal(plan_files_ahead(&(struct plan_checkpoint){.every = PLAN_AUTO}), 1);
    assert_int_equal(plan_files_ahead(&(struct plan_checkpoint){.every = 0}), 0);
}

static void test_counts(void **state)
{
    /* 8 ranks. nodes, tasks per node, spares (-1: the plan's, 2), and the error. */
    static const struct {
        int nodes, tasks, spares;
        const char *says;
    } cases[] = {
        {0, 0, -1, NULL},
        {5, 2, 1, NULL},
        {6, 2, 1, NULL}, /* one node more: a second spare */
        {6, 2, -1, NULL},
        {1, 8, 0, NULL},
        {8, 0, 0, NULL},
        {0, 4, 0, NULL},
        {4, 2, 1,
         "s.yaml: 8 ranks, 2 on a node, and 1 spare node need 5 nodes, but -N is 4: use "
         "-N5 --ntasks-per-node=2"},
        {5, 2, -1,
         "s.yaml: 8 ranks, 2 on a node, and 2 spare nodes need 6 nodes, but -N is 5: use "
         "-N6 --ntasks-per-node=2"},
        {3, 2, 0,
         "s.yaml: 8 ranks, 2 on a node, need 4 nodes, but -N is 3: use -N4 "
         "--ntasks-per-node=2"},
        {0, 3, 0,
         "s.yaml: 8 ranks do not fill nodes of 3 tasks: use --ntasks-per-node=1, 2, 4 or "
         "8"},
        {2, 0, -1,
         "s.yaml: 8 ranks and 2 spare nodes need 3 nodes or more, but -N is 2: use -N3 or "
         "more"},
    };
    struct plan plan = {.world = 8, .source = (char *)"s.yaml", .resilience = {.spares = 2}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {""};
        int rc = plan_check_counts(&plan, cases[i].nodes, cases[i].tasks, cases[i].spares, &err);
        assert_string_equal(err.text, cases[i].says ? cases[i].says : "");
        assert_int_equal(rc, cases[i].says ? -1 : 0);
    }
}

/* The hash is over what decides the bits, and over nothing else. */
static void test_hash(void **state)
{
    static const struct {
        const char *override;
        int changes;
    } cases[] = {
        {"training.seed=2", 1},
        {"training.lr=0.0003000000000000001", 1},
        {"training.precision=float64", 1},
        {"model.tied=true", 1},
        {"model.rope_scaling.factor=8", 1},
        {"data.train=other.txt", 1},
        {"data.train=[corpus.txt, corpus.txt]", 1},
        {"training.decay_steps=50", 1},
        {"data.train=/elsewhere/corpus.txt", 0},
        {"model.kv_heads=4", 0},
        {"training.microbatch=4", 0},
        {"parallel.tensor=2", 0},
        {"parallel.data=4", 0},
        {"parallel.pipeline=2", 0},
        {"training.threads=3", 0},
        {"checkpoint.keep=5", 0},
        {"run.dir=/somewhere", 0},
    };
    (void)state;
    struct plan *p = small(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan *q = small(&cases[i].override, 1);
        if ((plan_hash(p) != plan_hash(q)) != cases[i].changes)
            fail_msg("%s: the hash %s", cases[i].override, cases[i].changes ? "stays" : "changes");
        char *difference = plan_difference(p, q);
        assert_non_null(difference);
        if ((*difference != 0) != cases[i].changes)
            fail_msg("%s: the difference is '%s'", cases[i].override, difference);
        free(difference);
        plan_free(q);
    }
    /* More steps with the same end of the schedule: the first ones are the same run. */
    const char *longer[] = {"training.steps=200", "training.decay_steps=100"};
    struct plan *q = small(longer, 2);
    assert_int_equal(plan_hash(p), plan_hash(q));
    plan_free(q);
    /* Where the learning rate has no end, its place does not matter. */
    const char *constant[] = {"training.lr_schedule=constant", "training.steps=200"};
    struct plan *r = small(constant, 1);
    q = small(constant, 2);
    assert_int_equal(plan_hash(r), plan_hash(q));
    assert_int_not_equal(plan_hash(p), plan_hash(q));
    char *difference = plan_difference(p, r);
    assert_non_null(difference);
    assert_non_null(strstr(difference, "training.lr_schedule: cosine, now constant"));
    assert_non_null(strstr(difference, "training.decay_steps: 100, now not there"));
    free(difference);
    difference = plan_difference(r, p);
    assert_non_null(strstr(difference, "training.decay_steps: not there, now 100"));
    free(difference);
    plan_free(p);
    plan_free(q);
    plan_free(r);
}

static void test_split(void **state)
{
    static const struct {
        const char *option, *path, *parts[3];
        const char *says;
    } cases[] = {
        {"p.yaml", "p.yaml", {0}, NULL},
        {"/a b/p.yaml,a.b=1", "/a b/p.yaml", {"a.b=1"}, NULL},
        {"p[1.yaml,a.b=1", "p[1.yaml", {"a.b=1"}, NULL},
        {"p,a.b=[1,[2,3],4],c.d=5", "p", {"a.b=[1,[2,3],4]", "c.d=5"}, NULL},
        {"", NULL, {0}, "'': an empty part: use FILE[,section.key=value...]"},
        {"p,", NULL, {0}, "'p,': an empty part: use FILE[,section.key=value...]"},
        {"p,,a.b=1", NULL, {0}, "'p,,a.b=1': an empty part: use FILE[,section.key=value...]"},
        {"p,a.b=[1,2", NULL, {0}, "p,a.b=[1,2: a [ or ] has no partner in a.b=[1,2"},
        {"p,a.b=1],c", NULL, {0}, "p,a.b=1],c: a [ or ] has no partner in a.b=1],c"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {""};
        char *path, **parts;
        int n;
        int rc = plan_split(cases[i].option, &path, &parts, &n, &err);
        assert_int_equal(rc, cases[i].says ? -1 : 0);
        assert_string_equal(err.text, cases[i].says ? cases[i].says : "");
        if (rc < 0)
            continue;
        assert_string_equal(path, cases[i].path);
        for (int k = 0; k < n; k++)
            assert_string_equal(parts[k], cases[i].parts[k]);
        assert_null(cases[i].parts[n]);
        plan_split_free(path, parts, n);
    }
}

static void test_bytes(void **state)
{
    static const struct {
        double bytes;
        const char *text;
    } cases[] = {{0, "0 B"},          {999, "999 B"},        {1000, "1.0 kB"},  {1234567, "1.2 MB"},
                 {4.86e12, "4.9 TB"}, {3.11e14, "311.0 TB"}, {9.2e18, "9.2 EB"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[NUMBER_BYTES];
        assert_string_equal(number_size(cases[i].bytes, text), cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lr_cosine),   cmocka_unit_test(test_lr_others),
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_hash),        cmocka_unit_test(test_split),
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_files_ahead),
    };
    return cmocka_run_group_tests_name("plan numbers", tests, NULL, NULL);
}
