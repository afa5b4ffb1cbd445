/* Plans: what a file resolves to, and the numbers that follow from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "plan/keys.h"
#include "plan/plan.h"

/* The smallest plan, to which each test adds. */
#define SMALL                                                                                      \
    "model: {layers: 4, hidden: 64, ffn: 96, heads: 8, kv_heads: 4, vocab: 256}\n"                 \
    "data: {train: corpus.txt}\n"                                                                  \
    "training: {steps: 100, global_batch: 16, sequence: 32}\n"

static struct plan *small(char *const *overrides, int n)
{
    struct err err = {""};
    struct plan *plan = plan_parse(SMALL, strlen(SMALL), "small.yaml", overrides, n, "/base", &err);
    if (!plan)
        fail_msg("%s", err.text);
    return plan;
}

static struct plan *shipped(const char *name, char *const *overrides, int n)
{
    char path[4096];
    struct err err = {""};
    const char *source = getenv("GTRAIN_SOURCE");
    snprintf(path, sizeof path, "%s/contrib/plans/%s", source ? source : ".", name);
    struct plan *plan = plan_load(path, overrides, n, "/base", &err);
    if (!plan)
        fail_msg("%s", err.text);
    return plan;
}

static void test_defaults(void **state)
{
    (void)state;
    struct plan *p = small(NULL, 0);
    assert_int_equal(p->model.head_dim, 8);
    assert_false(p->model.tied);
    assert_false(p->model.rope_scaling.on);
    assert_true(p->model.rope_theta == 500000);
    assert_true(p->model.norm_eps == 1e-5);
    assert_int_equal(p->training.decay_steps, 100);
    assert_true(p->training.lr == 3e-4);
    assert_true(p->training.min_lr == 3e-5); /* 3e-4 / 10 is a little less */
    assert_non_null(strstr(p->text, "  min_lr: 3e-05\n"));
    assert_int_equal(p->training.wsd_decay_steps, 10);
    assert_int_equal(p->parallel.schedule, PLAN_1F1B);
    assert_int_equal(p->world, 1);
    assert_int_equal(p->accumulation, 16);
    assert_int_equal(p->checkpoint.keep, 2);
    assert_string_equal(p->name, "small");
    assert_string_equal(p->run_dir, "/base/small.run");
    assert_int_equal(p->data.n_files, 1);
    assert_string_equal(p->data.files[0], "/base/corpus.txt");
    plan_free(p);
}

static void test_overrides(void **state)
{
    (void)state;
    char *overrides[] = {
        "training.steps=200",         "training.steps=300",          "parallel.data=2",
        "data.train=[a.txt, /b.txt]", "model.rope_scaling.factor=2", "model.kv_heads=null"};
    struct plan *p = small(overrides, 6);
    assert_int_equal(p->training.steps, 300);
    assert_int_equal(p->training.decay_steps, 300);
    assert_int_equal(p->world, 2);
    assert_int_equal(p->accumulation, 8);
    assert_int_equal(p->data.n_files, 2);
    assert_string_equal(p->data.files[0], "/base/a.txt");
    assert_string_equal(p->data.files[1], "/b.txt");
    assert_true(p->model.rope_scaling.on);
    assert_true(p->model.rope_scaling.factor == 2);
    assert_true(p->model.rope_scaling.high_freq_factor == 4);
    assert_int_equal(p->model.kv_heads, 8);
    plan_free(p);
}

/* The canonical text is a plan, it is the same plan, and its own canonical text. */
static void test_canonical(void **state)
{
    (void)state;
    char *overrides[] = {"data.train=[\"a \\\"b\\\" \\\\.txt\", 'it''s #1.txt', ünï.txt]",
                         "training.lr=0.1",
                         "training.min_lr=1.2345678901234567e-5",
                         "training.seed=18446744073709551615",
                         "model.rope_scaling={factor: 3.7}",
                         "checkpoint.local=/x",
                         "checkpoint.every=7"};
    struct plan *p = small(overrides, 7);
    struct err err = {""};
    struct plan *q = plan_parse(p->text, strlen(p->text), "wire", NULL, 0, "/elsewhere", &err);
    if (!q)
        fail_msg("%s", err.text);
    assert_string_equal(p->text, q->text);
    assert_int_equal(plan_hash(p), plan_hash(q));
    assert_string_equal(q->data.files[0], "/base/a \"b\" \\.txt");
    assert_string_equal(q->data.files[1], "/base/it's #1.txt");
    assert_string_equal(q->name, "small");
    assert_string_equal(q->run_dir, "/base/small.run");
    assert_true(q->training.seed == UINT64_MAX);
    assert_true(q->training.min_lr == 1.2345678901234567e-5);
    assert_int_equal(p->parameters, q->parameters);
    plan_free(p);
    plan_free(q);
}

/* Llama Team 2024, table 3 and the published weights: 8.03, 70.6 and 405.9 billion. */
static void test_llama_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int64_t parameters;
        int world;
    } cases[] = {
        {"llama3-8b.yaml", 8030261248, 128},
        {"llama3-70b.yaml", 70553706496, 1024},
        {"llama3-405b.yaml", 405853388800, 16384},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan *p = shipped(cases[i].file, NULL, 0);
        assert_int_equal(p->parameters, cases[i].parameters);
        assert_int_equal(p->world, cases[i].world);
        plan_free(p);
    }
}

/* 16 stages of 126 layers: a layer less at both ends (Llama Team 2024, section 3.3.2). */
static void test_stage_layers(void **state)
{
    (void)state;
    struct plan *p = shipped("llama3-405b.yaml", NULL, 0);
    for (int stage = 0; stage < 16; stage++) {
        int64_t first, count;
        plan_stage_layers(p, stage, &first, &count);
        assert_int_equal(count, stage == 0 || stage == 15 ? 7 : 8);
        assert_int_equal(first, stage == 0 ? 0 : 7 + 8 * (stage - 1));
    }
    plan_free(p);
}

/* Any number of layers and stages: all layers once, counts differ by at most one, the last stage
 * has none of the larger counts unless all are equal. */
static void test_stage_layers_cover(void **state)
{
    (void)state;
    struct plan plan = {0};
    for (int layers = 1; layers <= 40; layers++)
        for (int stages = 1; stages <= layers; stages++) {
            int64_t next = 0, first, count = 0, base = layers / stages;
            plan.model.layers = layers;
            plan.parallel.pipeline = stages;
            for (int s = 0; s < stages; s++) {
                plan_stage_layers(&plan, s, &first, &count);
                assert_int_equal(first, next);
                assert_true(count == base || count == base + 1);
                next += count;
            }
            assert_int_equal(next, layers);
            assert_int_equal(count, base);
        }
}

/* The manual's list of keys is the table's own: regenerate it with `gtrain plan keys --man`. */
static void test_manual(void **state)
{
    (void)state;
    static const char begin[] = ".\\\" gtrain plan keys --man: begin\n";
    static const char end[] = ".\\\" gtrain plan keys --man: end\n";
    char path[4096], *table = NULL, *page = calloc(1, 1 << 18);
    size_t size = 0;
    const char *source = getenv("GTRAIN_SOURCE");
    snprintf(path, sizeof path, "%s/doc/gtrain-plan.5", source ? source : ".");
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_true(fread(page, 1, (1 << 18) - 1, in) > 0);
    fclose(in);
    FILE *out = open_memstream(&table, &size);
    assert_non_null(out);
    plan_keys_print_man(out);
    assert_int_equal(fclose(out), 0);
    char *from = strstr(page, begin), *to = strstr(page, end);
    assert_true(from && to);
    from += strlen(begin);
    *to = 0;
    assert_string_equal(from, table);
    free(table);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_canonical),    cmocka_unit_test(test_llama_sizes),
        cmocka_unit_test(test_stage_layers), cmocka_unit_test(test_stage_layers_cover),
        cmocka_unit_test(test_manual),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
