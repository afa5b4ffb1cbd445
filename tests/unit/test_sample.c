/* test_sample.c - what a checkpoint has learnt can be read back whole, whatever layout wrote it,
 * and drawn from; and the same through the public library. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "gtrain.h"
#include "train/sample.h"
#include "train_rig.h"

enum { STEPS = 5, TOKENS = 24 };

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    rig_folder_make(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

/* ---- drawing ---- */

static void draws(void **state)
{
    (void)state;
    static const double logits[4] = {0.0, 2.0, 1.0, -1.0};
    static const struct {
        double temperature;
        int64_t top_k;
        double uniform;
        int32_t token;
    } cases[] = {
        {0, 0, 0.999, 1}, {1, 1, 0.999, 1}, {1, 1, 0.0, 1},    {1, 0, 0.0, 0}, {1, 0, 0.99999, 3},
        {1, 2, 0.0, 1},   {1, 2, 0.999, 2}, {1e-3, 0, 0.5, 1}, /* cold: the likeliest */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double copy[4];
        memcpy(copy, logits, sizeof copy);
        int32_t token =
            sample_draw(copy, 4, cases[i].temperature, cases[i].top_k, cases[i].uniform);
        if (token != cases[i].token)
            fail_msg("case %zu: drew %d, expected %d", i, token, cases[i].token);
    }
}

/* Over an even grid of uniform numbers each token comes as often as softmax says, give or take one
 * grid step at each of its two borders. */
static void draws_as_often_as_softmax_says(void **state)
{
    (void)state;
    enum { GRID = 10000 };
    static const double logits[4] = {0.0, 2.0, 1.0, -1.0};
    int count[4] = {0};
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += exp(logits[i] / 0.5);
    for (int i = 0; i < GRID; i++) {
        double copy[4];
        memcpy(copy, logits, sizeof copy);
        count[sample_draw(copy, 4, 0.5, 0, (i + 0.5) / GRID)]++;
    }
    for (int i = 0; i < 4; i++)
        assert_true(fabs(count[i] - GRID * exp(logits[i] / 0.5) / sum) <= 2);
}

/* ---- from checkpoints ---- */

static void write_text(char path[300])
{
    snprintf(path, 300, "%s/text", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 400; i++)
        fprintf(f, "%d bottles of beer on the wall, ", 99 - i % 99);
    assert_int_equal(fclose(f), 0);
}

static void text_keys(char train[320], char local[320], const char *name)
{
    char text[300];
    write_text(text);
    snprintf(train, 320, "data.train=%s", text);
    snprintf(local, 320, "checkpoint.local=%s/%s", folder, name);
}

/* A short run on text, with its last state in a checkpoint below `name`. */
static void train_text(const char *name, const char *layout, const char *more)
{
    char train[320], local[320];
    struct rig_result r;
    text_keys(train, local, name);
    struct rig_run run = {.folder = folder,
                          .steps = STEPS,
                          .changes = {"data.format=text", "model.vocab=256", train, local,
                                      "checkpoint.every=5", layout, more}};
    rig_train_well(&run, &r);
}

struct text {
    int n;
    int32_t tokens[TOKENS];
};

static void take_token(void *arg, int32_t token)
{
    struct text *t = arg;
    assert_in_range(t->n, 0, TOKENS - 1);
    t->tokens[t->n++] = token;
}

static int sample(const char *name, uint64_t seed, struct text *out, struct err *err)
{
    static const char *const plan_text =
        "model: {layers: 4, hidden: 32, ffn: 48, heads: 4, kv_heads: 2, head_dim: 8, vocab: 256}\n"
        "data: {format: text, train: /nowhere}\n"
        "training: {steps: 5, global_batch: 8, microbatch: 2, sequence: 16, lr: 1e-2,\n"
        "           precision: float64}\n";
    char dir[600];
    const char *dirs[] = {dir};
    struct ckpt_position position;
    struct plan *plan = plan_parse(plan_text, strlen(plan_text), "test", NULL, 0, "/", err);
    if (!plan)
        fail_msg("%s", err->text);
    snprintf(dir, sizeof dir, "%s/%s/0123456789abcdef", folder, name);
    *out = (struct text){0};
    struct sample_options o = {
        .plan = plan,
        .source = {.dirs = dirs, .n_dirs = 1, .run_id = "0123456789abcdef"},
        .prompt = "12 bottles of beer on the",
        .tokens = TOKENS,
        .temperature = 0.8,
        .seed = seed,
        .threads = 1,
        .token = take_token,
        .arg = out,
    };
    int rv = sample_run(&o, &position, err);
    if (!rv)
        assert_int_equal(position.step, STEPS);
    plan_free(plan);
    return rv;
}

/* Pipeline layouts have the very bits of one rank; a tensor split differs by rounding, which does
 * not move a draw but by a chance of about 1e-12. */
static void any_layout_gives_the_same_text(void **state)
{
    (void)state;
    struct text one, again, other;
    struct err err;
    train_text("one", "parallel.data=1", NULL);
    train_text("pipeline", "parallel.pipeline=2", NULL);
    train_text("mixed", "parallel.tensor=2", "parallel.pipeline=2");
    assert_int_equal(sample("one", 1, &one, &err), 0);
    assert_int_equal(one.n, TOKENS);
    assert_int_equal(sample("one", 1, &again, &err), 0);
    assert_memory_equal(&again, &one, sizeof one);
    assert_int_equal(sample("one", 2, &again, &err), 0);
    assert_memory_not_equal(&again, &one, sizeof one);
    assert_int_equal(sample("pipeline", 1, &other, &err), 0);
    assert_memory_equal(&other, &one, sizeof one);
    assert_int_equal(sample("mixed", 1, &other, &err), 0);
    assert_memory_equal(&other, &one, sizeof one);
}

static void no_checkpoint_is_said(void **state)
{
    (void)state;
    struct text none;
    struct err err;
    assert_int_equal(sample("nothing", 1, &none, &err), -1);
    assert_non_null(strstr(err.text, "no whole committed checkpoint"));
    assert_int_equal(none.n, 0);
}

/* ---- the public library ---- */

static void write_plan(char path[300])
{
    char text[300];
    write_text(text);
    snprintf(path, 300, "%s/plan.yaml", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "model: {layers: 2, hidden: 16, ffn: 24, heads: 2, vocab: 256}\n"
            "data: {format: text, train: %s}\n"
            "training: {steps: 4, global_batch: 4, microbatch: 2, sequence: 16, lr: 1e-2}\n"
            "parallel: {tensor: 2, pipeline: 2}\n",
            text);
    assert_int_equal(fclose(f), 0);
}

struct seen {
    int64_t steps;
    double loss;
};

static void on_step(void *arg, int64_t step, double loss)
{
    struct seen *s = arg;
    assert_int_equal(step, s->steps + 1);
    s->steps = step;
    s->loss = loss;
}

static void library_trains(void **state)
{
    (void)state;
    char path[300], dir[300], error[512];
    struct seen seen = {0};
    int speak;
    write_plan(path);
    snprintf(dir, sizeof dir, "%s/run", folder);
    struct gtrain_train_options o = {.plan = path,
                                     .dir = dir,
                                     .local = 1,
                                     .threads = 1,
                                     .out_fd = -1,
                                     .step = on_step,
                                     .arg = &seen};
    if (gtrain_train(NULL, &o, &speak, error, sizeof error) != GTRAIN_DONE)
        fail_msg("%s", error);
    assert_int_equal(seen.steps, 4);
    assert_true(seen.loss > 4 && seen.loss < log(256) + 0.1); /* first steps: near uniform */
}

static void library_reads_plans(void **state)
{
    (void)state;
    char path[300], with[400], error[512];
    write_plan(path);
    snprintf(with, sizeof with, "%s,training.steps=9", path);
    struct gtrain_plan *plan = gtrain_plan_load(with, error, sizeof error);
    if (!plan)
        fail_msg("%s", error);
    assert_int_equal(gtrain_plan_world(plan), 4);
    assert_int_equal(gtrain_plan_steps(plan), 9);
    assert_int_equal(gtrain_plan_global_batch(plan), 4);
    assert_int_equal(gtrain_plan_sequence(plan), 16);
    assert_non_null(strstr(gtrain_plan_yaml(plan), "steps: 9"));
    gtrain_plan_free(plan);
    snprintf(with, sizeof with, "%s,training.steps=none", path);
    assert_null(gtrain_plan_load(with, error, sizeof error));
    assert_non_null(strstr(error, "training.steps"));
}

static void library_says_what_is_wrong(void **state)
{
    (void)state;
    char error[512];
    int speak = 0;
    struct gtrain_train_options o = {.plan = "/nowhere/plan.yaml", .local = 1, .out_fd = -1};
    assert_int_equal(gtrain_train(NULL, &o, &speak, error, sizeof error), GTRAIN_REFUSED);
    assert_int_equal(speak, 1);
    assert_non_null(strstr(error, "/nowhere/plan.yaml"));
    o.plan = NULL;
    assert_int_equal(gtrain_train(NULL, &o, &speak, error, sizeof error), GTRAIN_REFUSED);
    assert_non_null(strstr(error, "--plan"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws),
        cmocka_unit_test(draws_as_often_as_softmax_says),
        cmocka_unit_test(any_layout_gives_the_same_text),
        cmocka_unit_test(no_checkpoint_is_said),
        cmocka_unit_test(library_trains),
        cmocka_unit_test(library_reads_plans),
        cmocka_unit_test(library_says_what_is_wrong),
    };
    return cmocka_run_group_tests_name("sample", tests, make_folder, remove_folder);
}
