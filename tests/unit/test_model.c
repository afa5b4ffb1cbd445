/* test_model.c - the whole model: its parameter table, an independent implementation's loss,
 * gradients and steps, and finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "llama_oracle.h"
#include "model_rig.h"

static const char *const oracle_plan =
    "model: {layers: 2, hidden: 16, ffn: 24, heads: 4, kv_heads: 2, head_dim: 4, vocab: 11,\n"
    "        tied: %s, norm_eps: 1e-5, rope_theta: 500000%s}\n"
    "data: {format: bin, train: /nowhere.bin}\n"
    "training: {steps: 10, global_batch: 2, microbatch: 2, sequence: 6, precision: float64,\n"
    "           lr: 1e-2, lr_schedule: constant, beta1: 0.9, beta2: 0.95, eps: 1e-8,\n"
    "           weight_decay: 0.1, clip: 1.0}\n";

static void near(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s: got %.17g, expected %.17g", what, got, want);
}

static void oracle_weights(struct rig *r)
{
    for (int n = 0; n < r->state.n; n++) {
        struct state_tensor *t = &r->state.tensors[n];
        double *values = malloc(t->param.count * sizeof *values);
        for (size_t e = 0; e < t->param.count; e++) {
            double wave = sin(0.7 * (double)e + 1.3 * n);
            values[e] = t->global.matrix ? 0.3 * wave : 1 + 0.1 * wave;
        }
        rig_put(r, t->param, values);
        free(values);
    }
}

static void oracle_tokens(struct rig *r)
{
    int32_t tokens[ORACLE_BATCH * ORACLE_SEQUENCE], targets[ORACLE_BATCH * ORACLE_SEQUENCE];
    for (int b = 0; b < ORACLE_BATCH; b++)
        for (int t = 0; t < ORACLE_SEQUENCE; t++) {
            int next = t + 1;
            tokens[b * ORACLE_SEQUENCE + t] = (7 * b + 3 * t + t * t) % ORACLE_VOCAB;
            targets[b * ORACLE_SEQUENCE + t] = (7 * b + 3 * next + next * next) % ORACLE_VOCAB;
        }
    rig_tokens(r, tokens, targets);
}

static void check_gradient(struct rig *r, int n, const struct oracle_tensor *want)
{
    struct state_tensor *t = &r->state.tensors[n];
    double *grad = malloc(t->grad.count * sizeof *grad), squares = 0;
    char what[160];
    assert_string_equal(t->global.name, want->name);
    assert_int_equal(t->grad.count, want->count);
    rig_get(r, t->grad, grad);
    for (size_t i = 0; i < t->grad.count; i++)
        squares += grad[i] * grad[i];
    near(sqrt(squares), want->grad_norm, 1e-9, want->name);
    for (int i = 0; i < ORACLE_SAMPLES; i++) {
        snprintf(what, sizeof what, "%s[%d]", want->name, want->samples[i].element);
        near(grad[want->samples[i].element], want->samples[i].grad, 1e-8, what);
    }
    free(grad);
}

static void run_case(const struct oracle_case *c)
{
    char text[2048];
    struct rig r;
    struct step_result result;
    struct err err;
    snprintf(text, sizeof text, oracle_plan, c->tied ? "true" : "false",
             c->rope_scaled ? ", rope_scaling: {factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
                              " original_context: 8}"
                            : "");
    rig_open(&r, text);
    oracle_weights(&r);
    oracle_tokens(&r);
    assert_int_equal(r.state.n, c->n_tensors);
    near(rig_loss(&r, true), c->loss, 1e-12, "loss");
    /* The gradient of a tied embedding is whole after the sum of its two uses. */
    assert_int_equal(step_reduce_tied(&r.step, r.stream, &err), 0);
    for (int n = 0; n < c->n_tensors; n++)
        check_gradient(&r, n, &c->tensors[n]);
    for (int64_t i = 0; i < ORACLE_STEPS; i++) {
        if (i > 0)
            rig_loss(&r, true);
        rig_update(&r, i, &result);
        near(result.norm, c->grad_norms[i], 1e-10, "norm");
        near(rig_loss(&r, false), c->losses[i], 1e-10, "loss after a step");
    }
    rig_close(&r);
}

static void oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ORACLE_CASES / sizeof *ORACLE_CASES; i++)
        run_case(&ORACLE_CASES[i]);
}

/* Each tensor, a few elements: (L(w + h) - L(w - h)) / 2h against the gradient. In f64 with h =
 * 1e-5 the error of the quotient is near h^2 L''' / 6 + eps L / h, about 1e-10. */
static void check_difference(struct rig *r, struct state_tensor *t, size_t element, double gradient)
{
    const double h = 1e-5;
    struct kbuf one = kbuf_slice(t->param, element, 1);
    double was, moved, loss[2];
    rig_get(r, one, &was);
    for (int side = 0; side < 2; side++) {
        moved = was + (side ? -h : h);
        rig_put(r, one, &moved);
        loss[side] = rig_loss(r, false);
    }
    rig_put(r, one, &was);
    double quotient = (loss[0] - loss[1]) / (2 * h);
    if (!(fabs(quotient - gradient) <= 1e-8 + 1e-6 * fabs(gradient)))
        fail_msg("%s[%zu]: gradient %.12g, difference quotient %.12g", t->global.name, element,
                 gradient, quotient);
}

static void finite_differences(void **state)
{
    (void)state;
    static const char *const text =
        "model: {layers: 3, hidden: 12, ffn: 20, heads: 6, kv_heads: 2, head_dim: 2, vocab: 13,\n"
        "        tied: true, init_std: 0.4}\n"
        "data: {format: bin, train: /nowhere.bin}\n"
        "training: {steps: 10, global_batch: 3, microbatch: 3, sequence: 7, precision: float64,\n"
        "           seed: 7, lr: 1e-2}\n";
    struct rig r;
    struct err err;
    int32_t tokens[21], targets[21];
    rig_open(&r, text);
    state_init(&r.state, r.stream, 7);
    for (int i = 0; i < 21; i++) {
        tokens[i] = (5 * i + i * i) % 13;
        targets[i] = i % 5 == 4 ? -1 : (3 * i + 1) % 13; /* some are left out of the loss */
    }
    rig_tokens(&r, tokens, targets);
    rig_loss(&r, true);
    assert_int_equal(step_reduce_tied(&r.step, r.stream, &err), 0);
    for (int n = 0; n < r.state.n; n++) {
        struct state_tensor *t = &r.state.tensors[n];
        double *grad = malloc(t->grad.count * sizeof *grad);
        rig_get(&r, t->grad, grad);
        for (size_t i = 0; i < t->grad.count; i += 1 + t->grad.count / 7)
            check_difference(&r, t, i, grad[i]);
        free(grad);
    }
    rig_close(&r);
}

/* Published shapes: Llama 3.1 8B has 291 tensors; parts of any split make up the whole. */
static void table(void **state)
{
    (void)state;
    struct plan_model m = {.layers = 32,
                           .hidden = 4096,
                           .ffn = 14336,
                           .heads = 32,
                           .kv_heads = 8,
                           .head_dim = 128,
                           .vocab = 128256,
                           .init_std = 0.02};
    int64_t parameters = 0;
    assert_int_equal(model_count(&m), 291);
    for (int n = 0; n < model_count(&m); n++) {
        struct model_tensor t;
        model_tensor(&m, n, &t);
        assert_int_equal(t.number, n);
        parameters += t.rows * t.cols;
        for (int parts = 1; parts <= 8; parts++) {
            int64_t elements = 0;
            for (int part = 0; part < parts; part++) {
                struct model_slice s;
                model_slice(&t, part, parts, &s);
                elements += s.rows * s.cols;
            }
            int64_t copies = t.split == MODEL_WHOLE ? parts : 1;
            assert_int_equal(elements, t.rows * t.cols * copies);
        }
    }
    assert_int_equal(parameters, 8030261248);
    m.tied = true;
    assert_int_equal(model_count(&m), 290);
}

static void names(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *name;
        int64_t rows, cols;
        enum model_split split;
    } expected[] = {
        {0, "model.embed_tokens.weight", 11, 16, MODEL_BY_ROWS},
        {1, "model.layers.0.input_layernorm.weight", 1, 16, MODEL_WHOLE},
        {2, "model.layers.0.self_attn.q_proj.weight", 32, 16, MODEL_BY_ROWS},
        {3, "model.layers.0.self_attn.k_proj.weight", 16, 16, MODEL_BY_ROWS},
        {5, "model.layers.0.self_attn.o_proj.weight", 16, 32, MODEL_BY_COLUMNS},
        {15, "model.layers.1.post_attention_layernorm.weight", 1, 16, MODEL_WHOLE},
        {16, "model.layers.1.mlp.gate_proj.weight", 24, 16, MODEL_BY_ROWS},
        {18, "model.layers.1.mlp.down_proj.weight", 16, 24, MODEL_BY_COLUMNS},
        {19, "model.norm.weight", 1, 16, MODEL_WHOLE},
        {20, "lm_head.weight", 11, 16, MODEL_BY_ROWS},
    };
    struct plan_model m = {.layers = 2,
                           .hidden = 16,
                           .ffn = 24,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 8,
                           .vocab = 11};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct model_tensor t;
        model_tensor(&m, expected[i].number, &t);
        assert_string_equal(t.name, expected[i].name);
        assert_int_equal(t.rows, expected[i].rows);
        assert_int_equal(t.cols, expected[i].cols);
        assert_int_equal(t.split, expected[i].split);
    }
}

/* First weights: mean 0, the deviations asked for, residual projections smaller by sqrt(2 layers).
 */
static void first_weights(void **state)
{
    (void)state;
    char text[2048];
    struct rig r;
    snprintf(text, sizeof text, oracle_plan, "false", "");
    rig_open(&r, text);
    state_init(&r.state, r.stream, 1);
    for (int n = 0; n < r.state.n; n++) {
        struct state_tensor *t = &r.state.tensors[n];
        double *values = malloc(t->param.count * sizeof *values), sum = 0, squares = 0;
        rig_get(&r, t->param, values);
        for (size_t i = 0; i < t->param.count; i++) {
            sum += values[i];
            squares += values[i] * values[i];
        }
        double count = (double)t->param.count;
        if (!t->global.matrix) {
            assert_true(sum == count);
        } else {
            bool residual = t->global.role == MODEL_O || t->global.role == MODEL_DOWN;
            double want = residual ? 0.02 / 2 : 0.02, got = sqrt(squares / count);
            /* Five deviations of a sample deviation, 1/sqrt(2 n), and of a mean, 1/sqrt(n). */
            assert_true(fabs(got / want - 1) < 5 / sqrt(2 * count));
            assert_true(fabs(sum / count) < 5 * want / sqrt(count));
        }
        free(values);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(table),
        cmocka_unit_test(first_weights),
        cmocka_unit_test(oracle),
        cmocka_unit_test(finite_differences),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
