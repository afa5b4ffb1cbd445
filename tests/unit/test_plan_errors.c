/* Plans that are wrong: each gets one error, with the place and with what would be right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "plan/plan.h"

/* Lines 1 to 3 of most plans here. */
#define MODEL                                                                                      \
    "model: {layers: 4, hidden: 64, ffn: 96, heads: 8, kv_heads: 8, vocab: 256}\n"                 \
    "data: {train: a.txt}\n"                                                                       \
    "training: {steps: 100, global_batch: 16, sequence: 32}\n"

struct bad {
    const char *text, *says;
};

static void expect(const char *text, char *const *overrides, int n, const char *says)
{
    struct err err = {""};
    struct plan *plan = plan_parse(text, strlen(text), "p.yaml", overrides, n, "/base", &err);
    plan_free(plan);
    if (plan)
        fail_msg("no error for:\n%s", text);
    if (strcmp(err.text, says))
        fail_msg("\nplan     %s\nsays     %s\nexpected %s", text, err.text, says);
}

static void expect_all(const struct bad *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect(cases[i].text, NULL, 0, cases[i].says);
}

#define EXPECT_ALL(cases) expect_all(cases, sizeof(cases) / sizeof *(cases))

static void test_form(void **state)
{
    static const struct bad cases[] = {
        {"", "p.yaml: the plan is empty: it needs at least model, data and training"},
        {"# nothing\n", "p.yaml: the plan is empty: it needs at least model, data and training"},
        {"- a\n", "p.yaml:1:1: a plan is sections of keys: use `model:` and so on"},
        {"hello", "p.yaml:1:1: a plan is sections of keys: use `model:` and so on"},
        {"model: 5\n", "p.yaml:1:1: model must hold keys: `gtrain plan keys` lists them"},
        {"model: {layers: 4\ndata: 2\n",
         "p.yaml:2:5: this is not YAML: did not find expected ',' or '}'"},
        {"model:\n\tlayers: 4\n",
         "p.yaml:2:1: this is not YAML: found character that cannot start any token"},
        {MODEL "model: {}\n", "p.yaml:4:1: this key is here twice: keep one: model"},
        {"model:\n  layers: 4\n  hidden: 64\n  layers: 5\n",
         "p.yaml:4:3: this key is here twice: keep one: layers"},
        {"\"a\\e[2Jb\\u009b\": 1\n\"a\\e[2Jb\\u009b\": 2\n",
         "p.yaml:2:1: this key is here twice: keep one: a?[2Jb??"},
        {MODEL "---\n", "p.yaml:4:1: a second document starts here: a plan is one"},
        {"model: &a {layers: 4}\n",
         "p.yaml:1:8: anchors (&), aliases (*) and tags (!) are not used "
         "in plans: write the value"},
        {"model: *a\n", "p.yaml:1:8: anchors (&), aliases (*) and tags (!) are not used in plans: "
                        "write the value"},
        {"model: {layers: !!int 4}\n", "p.yaml:1:17: anchors (&), aliases (*) and tags (!) are not "
                                       "used in plans: write the value"},
        {"model: {[a]: 4}\n", "p.yaml:1:9: a key must be a word"},
        {"model: [[[[[[[[1]]]]]]]]\n", "p.yaml:1:14: nested deeper than a plan can be"},
        {"model: \"a\\0b\"\n", "p.yaml:1:8: a value with a zero byte in it"},
        {"model:\n  layers: \xff\n", "p.yaml:2:11: this is not YAML: invalid leading UTF-8 octet"},
    };
    (void)state;
    EXPECT_ALL(cases);
}

static void test_names(void **state)
{
    static const struct bad cases[] = {
        {MODEL "paralel: {tensor: 2}\n",
         "p.yaml:4:1: paralel is not a section: did you mean parallel?"},
        {MODEL "tensor: 2\n",
         "p.yaml:4:1: tensor is not a section: did you mean the key parallel.tensor?"},
        {MODEL "xyzzy: 2\n", "p.yaml:4:1: xyzzy is not a section: use run, model, data, training, "
                             "parallel, checkpoint or resilience"},
        {MODEL "parallel:\n  tensors: 2\n",
         "p.yaml:5:3: parallel.tensors is not a key: did you mean parallel.tensor?"},
        {MODEL "parallel:\n  data: 2\n  layers: 2\n",
         "p.yaml:6:3: parallel.layers is not a key: did you mean model.layers?"},
        {MODEL "parallel: {x: 2}\n",
         "p.yaml:4:12: parallel.x is not a key: `gtrain plan keys` lists them"},
        {"model: {rope_scaling: {factr: 8}}\n",
         "p.yaml:1:24: model.rope_scaling.factr is not a key: did you mean "
         "model.rope_scaling.factor?"},
        {"model: {rope_scaling: 8}\n",
         "p.yaml:1:9: model.rope_scaling must hold keys: use {factor: 8}"},
        {"model: {layers: 4}\n", "p.yaml:1:1: model.hidden is missing (width of the residual "
                                 "stream): give a whole number from 1 to 1048576"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ntraining:\n",
         "p.yaml:1:1: data.train is missing (file or list of files, read as one in this order): "
         "give a path, or [path, ...]"},
        {"model: {layers: null}\n",
         "p.yaml:1:9: model.layers is missing (transformer layers): give "
         "a whole number from 1 to 10000"},
    };
    (void)state;
    EXPECT_ALL(cases);
}

/* Each as model.layers, a whole number from 1 to 10000. */
static void test_whole_numbers(void **state)
{
    static const char *const values[] = {"0",    "-1",  "10001", "99999999999999999999999",
                                         "0x10", "010", "08",    "1e3",
                                         "4.0",  "4 5", "four",  "nan",
                                         "inf",  "+",   "-x",    "1_000",
                                         "true", "'4 '"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[200], says[300], shown[60];
        snprintf(text, sizeof text, "model:\n  layers: %s\ndata: {train: a}\n", values[i]);
        snprintf(shown, sizeof shown, "%s", strcmp(values[i], "'4 '") ? values[i] : "4 ");
        snprintf(says, sizeof says,
                 "p.yaml:2:3: model.layers is %s: use a whole number from 1 to 10000", shown);
        expect(text, NULL, 0, says);
    }
}

/* Each as training.lr, above 0 and up to 1000. */
static void test_numbers(void **state)
{
    static const char *const values[] = {"0",      "-1",    "0.0",  "-0.0", "1e400", "1e-400",
                                         "-1e400", "nan",   ".nan", "inf",  ".inf",  "0x1p3",
                                         "1e",     "1e+",   ".",    "e5",   "1,5",   "1000.0001",
                                         "1.2.3",  "1e3e3", "lots"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char override[60], says[300];
        char *overrides[] = {override};
        snprintf(override, sizeof override, "training.lr=%s", values[i]);
        snprintf(says, sizeof says,
                 "p.yaml,training.lr=%s: training.lr is %s: use a number above 0 and up to 1000",
                 values[i], values[i]);
        expect(MODEL, overrides, 1, says);
    }
}

static void test_other_values(void **state)
{
    static const struct bad cases[] = {
        {MODEL "parallel:\n  schedule: zb\n",
         "p.yaml:5:3: parallel.schedule is zb: use gpipe or 1f1b"},
        {MODEL "resilience: {shrink: yes}\n",
         "p.yaml:4:14: resilience.shrink is yes: use true or false"},
        {MODEL "checkpoint: {keep: 1}\n",
         "p.yaml:4:14: checkpoint.keep is 1: use a whole number from 2 to 1000"},
        {MODEL "checkpoint: {keep: [2]}\n",
         "p.yaml:4:14: checkpoint.keep is a list: use a whole number from 2 to 1000"},
        {MODEL "checkpoint: {keep: {a: 2}}\n",
         "p.yaml:4:14: checkpoint.keep is a mapping: use a whole number from 2 to 1000"},
        {MODEL "checkpoint: {local: ''}\n", "p.yaml:4:14: checkpoint.local is '': use a path"},
        {MODEL "checkpoint: {local: \"a\\nb\"}\n",
         "p.yaml:4:14: checkpoint.local has a control character, or bytes that are not UTF-8: use "
         "another path"},
        {MODEL "run: {name: a/b}\n",
         "p.yaml:4:7: run.name is a/b: use letters, digits, dots, dashes and underscores"},
        {MODEL "run: {name: ..}\n",
         "p.yaml:4:7: run.name is ..: use letters, digits, dots, dashes and underscores"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\n"
         "data: {train: [a, [b]]}\ntraining: {steps: 1, global_batch: 1, sequence: 1}\n",
         "p.yaml:2:8: data.train is a list with something else in it: use a path, or [path, ...]"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\n"
         "data: {train: []}\ntraining: {steps: 1, global_batch: 1, sequence: 1}\n",
         "p.yaml:2:8: data.train is []: use a path, or [path, ...]"},
    };
    (void)state;
    EXPECT_ALL(cases);
}

static void test_model(void **state)
{
    static const struct {
        const char *override, *says;
    } cases[] = {
        {"model.heads=7",
         "model.heads is 7, but hidden is 64: use 1, 2, 4, 8, 16, 32 or 64, or give "
         "model.head_dim"},
        {"model.head_dim=7", "model.head_dim is 7, but rotary embedding turns pairs: use an even "
                             "number from 2 to 4096"},
        {"model.kv_heads=3", "model.kv_heads is 3, but attention has 8 heads: use 1, 2, 4 or 8"},
        {"model.rope_scaling={low_freq_factor: 4}",
         "model.rope_scaling.high_freq_factor is 4, but "
         "low_freq_factor is 4: use a number above that"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *overrides[] = {(char *)cases[i].override};
        char says[400];
        snprintf(says, sizeof says, "p.yaml,%s: %s", cases[i].override, cases[i].says);
        if (i == 3) /* the key that is not given: its section's place */
            snprintf(says, sizeof says, "p.yaml:1:1: %s", cases[i].says);
        expect(MODEL, overrides, 1, says);
    }
}

static void test_training(void **state)
{
    static const struct bad cases[] = {
        {MODEL "parallel: {data: 3}\n",
         "p.yaml:3:24: training.global_batch is 16, but 3 replicas "
         "(parallel.data) take microbatches "
         "of 1: use a multiple of 3, such as 15 or 18, or parallel.uneven: true"},
        {MODEL "parallel: {data: 32, uneven: true}\n",
         "p.yaml:3:24: training.global_batch is 16, but 32 replicas (parallel.data) take "
         "microbatches of 1: use a multiple of 1, such as 32"},
        {MODEL "parallel: {data: 32}\n",
         "p.yaml:3:24: training.global_batch is 16, but 32 replicas (parallel.data) take "
         "microbatches of 1: use a multiple of 32, such as 32"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 100\n  global_batch: 16\n  sequence: 32\n  warmup_steps: 101\n",
         "p.yaml:7:3: training.warmup_steps is 101, but the schedule ends at step 100 (steps): use "
         "100 or less"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 100\n  global_batch: 16\n  sequence: 32\n  warmup_steps: 51\n"
         "  decay_steps: 50\n",
         "p.yaml:7:3: training.warmup_steps is 51, but the schedule ends at step 50 (decay_steps): "
         "use 50 or less"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 100\n  global_batch: 16\n  sequence: 32\n  lr: 0.001\n  min_lr: "
         "0.1\n",
         "p.yaml:8:3: training.min_lr is 0.1, but lr is 0.001: use 0.001 or less"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 100\n  global_batch: 16\n  sequence: 32\n  lr_schedule: wsd\n"
         "  warmup_steps: 95\n",
         "p.yaml:8:3: training.warmup_steps is 95, but wsd decays in the last 10 of 100 steps: use "
         "90 or less"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\n"
         "data: {train: a, validation: b, val_fraction: 0.1}\n"
         "training: {steps: 100, global_batch: 16, sequence: 32}\n",
         "p.yaml:2:33: data.val_fraction is 0.1, but data.validation names files: use one of the "
         "two"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 1\n  sequence: 1\n  global_batch: 1000000\n  microbatch: 1\n",
         "p.yaml:7:3: training.microbatch is 1, but that makes 1000000 microbatches a step: use 16 "
         "or more"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 256}\ndata: {train: a}\n"
         "training:\n  steps: 1000000000\n  sequence: 16777216\n  global_batch: 65536\n",
         "p.yaml:4:3: training.steps is 1000000000, but steps of 1099511627776 tokens can be "
         "counted "
         "up to 1e+18 tokens: use fewer steps, samples or tokens"},
    };
    (void)state;
    EXPECT_ALL(cases);
}

static void test_parallel(void **state)
{
    static const struct bad cases[] = {
        {MODEL "parallel:\n  tensor: 6\n",
         "p.yaml:5:3: parallel.tensor is 6, but attention has 8 heads: use 1, 2, 4 or 8"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, kv_heads: 2, vocab: 256}\n"
         "data: {train: a}\ntraining: {steps: 100, global_batch: 16, sequence: 32}\n"
         "parallel:\n  tensor: 4\n",
         "p.yaml:5:3: parallel.tensor is 4, but attention has 2 kv_heads: use 1 or 2"},
        {"model: {layers: 4, hidden: 64, ffn: 98, heads: 8, vocab: 256}\n"
         "data: {train: a}\ntraining: {steps: 100, global_batch: 16, sequence: 32}\n"
         "parallel:\n  tensor: 4\n",
         "p.yaml:5:3: parallel.tensor is 4, but the feed-forward layer is 98 wide: use 1 or 2"},
        {"model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 3}\n"
         "data: {train: a}\ntraining: {steps: 100, global_batch: 16, sequence: 32}\n"
         "parallel:\n  tensor: 4\n",
         "p.yaml:5:3: parallel.tensor is 4, but a vocabulary of 3 tokens leaves a rank without "
         "one: "
         "use 1 or 2"},
        {MODEL "parallel:\n  context: 3\n",
         "p.yaml:5:3: parallel.context is 3, but a sequence has 32 tokens: use 1, 2, 4, 8, 16 or "
         "32"},
        {MODEL "parallel:\n  expert: 2\n",
         "p.yaml:5:3: parallel.expert is 2, but the model has no experts: use 1"},
        {MODEL "parallel:\n  pipeline: 5\n",
         "p.yaml:5:3: parallel.pipeline is 5, but the model has 4 layers: use 4 or less"},
        {MODEL "parallel:\n  pipeline: 2\n  virtual: 3\n",
         "p.yaml:6:3: parallel.virtual is 3, but 2 stages of as many chunks need more than the "
         "model's 4 layers: use 2 or less"},
        {MODEL "parallel:\n  virtual: 2\n",
         "p.yaml:5:3: parallel.virtual is 2, but there is one pipeline stage: use 1"},
        {MODEL "parallel:\n  shard: weights\n",
         "p.yaml:5:3: parallel.shard splits among replicas, but parallel.data is 1: use none"},
        {MODEL "parallel:\n  tensor: 8\n  data: 1048576\n",
         "p.yaml:6:3: parallel.data is 1048576, but the degrees multiply to 8388608 ranks: use "
         "degrees of at most 1048576 ranks in all"},
    };
    /* 1, 1, 1 and 2 tokens: nobody is without one. */
    static const char uneven[] =
        "model: {layers: 4, hidden: 64, ffn: 96, heads: 8, vocab: 5}\n"
        "data: {train: a}\ntraining: {steps: 100, global_batch: 16, sequence: 32}\n"
        "parallel: {tensor: 4}\n";
    struct err err = {""};
    (void)state;
    EXPECT_ALL(cases);
    struct plan *plan = plan_parse(uneven, strlen(uneven), "p.yaml", NULL, 0, "/base", &err);
    if (!plan)
        fail_msg("%s", err.text);
    plan_free(plan);
}

#define REDUNDANCIES                                                                               \
    "use none, partner, xor:N (N from 2 to 64) or rs:P+K (K from 1 to 16, P + K up to 64)"

static void test_checkpoint(void **state)
{
    static const struct bad cases[] = {
        {MODEL "checkpoint:\n  every: 10\n",
         "p.yaml:5:3: checkpoint.every is 10, but there is no folder to write to: give "
         "checkpoint.local or checkpoint.shared"},
        {MODEL "checkpoint:\n  every: auto\n",
         "p.yaml:5:3: checkpoint.every is auto, but there is no folder to write to: give "
         "checkpoint.local or checkpoint.shared"},
        {MODEL "checkpoint:\n  every: often\n",
         "p.yaml:5:3: checkpoint.every is often: use a whole number from 0 to 1000000000, or "
         "auto"},
        {MODEL "checkpoint:\n  every: -1\n",
         "p.yaml:5:3: checkpoint.every is -1: use a whole number from 0 to 1000000000, or auto"},
        {MODEL "checkpoint:\n  redundancy: xor:3\n",
         "p.yaml:5:3: checkpoint.redundancy guards local checkpoints, but checkpoint.local is not "
         "given: use none, or give it"},
        {MODEL "checkpoint:\n  local: /x\n  redundancy: partner\n",
         "p.yaml:6:3: checkpoint.redundancy needs another rank, but the plan has one: use none"},
        {MODEL "checkpoint:\n  redundancy: xor\n",
         "p.yaml:5:3: checkpoint.redundancy is xor: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: xor:1\n",
         "p.yaml:5:3: checkpoint.redundancy is xor:1: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: xor:65\n",
         "p.yaml:5:3: checkpoint.redundancy is xor:65: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: xor:04\n",
         "p.yaml:5:3: checkpoint.redundancy is xor:04: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: rs:4\n",
         "p.yaml:5:3: checkpoint.redundancy is rs:4: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: rs:4+0\n",
         "p.yaml:5:3: checkpoint.redundancy is rs:4+0: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: rs:4+17\n",
         "p.yaml:5:3: checkpoint.redundancy is rs:4+17: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: rs:63+2\n",
         "p.yaml:5:3: checkpoint.redundancy is rs:63+2: " REDUNDANCIES},
        {MODEL "checkpoint:\n  redundancy: rs:4+2x\n",
         "p.yaml:5:3: checkpoint.redundancy is rs:4+2x: " REDUNDANCIES},
        {MODEL "parallel: {data: 4}\ncheckpoint:\n  local: /x\n  redundancy: rs:4+2\n",
         "p.yaml:7:3: checkpoint.redundancy is rs:4+2, which needs ranks on 6 nodes, but the plan "
         "has 4 ranks: use partner, or a group of 4 at most"},
        {MODEL "checkpoint:\n  block_bytes: 10000\n",
         "p.yaml:5:3: checkpoint.block_bytes is 10000, but disks are written in blocks of 4096: "
         "use "
         "a multiple of 4096, such as 8192"},
        {MODEL "resilience:\n  patience_ms: 1000\n",
         "p.yaml:5:3: resilience.patience_ms is 1000, but a heartbeat comes every 1000 ms: use "
         "2000 "
         "or more"},
    };
    (void)state;
    EXPECT_ALL(cases);
}

static void test_overrides(void **state)
{
    static const struct {
        const char *override, *says;
    } cases[] = {
        {"parallel.tensor", "this is not a setting: use section.key=value"},
        {"tensor=2", "this is not a setting: use section.key=value"},
        {"=2", "this is not a setting: use section.key=value"},
        {".a=2", "this is not a setting: use section.key=value"},
        {"a.=2", "this is not a setting: use section.key=value"},
        {"paralel.tensor=2", "paralel is not a section: did you mean parallel?"},
        {"parallel.tensr=2", "parallel.tensr is not a key: did you mean parallel.tensor?"},
        {"parallel.tensor=6", "parallel.tensor is 6, but attention has 8 heads: use 1, 2, 4 or 8"},
        {"parallel.tensor={", "this is not YAML: did not find expected node content"},
        {"parallel.tensor=[2]", "parallel.tensor is a list: use a whole number from 1 to 1048576"},
        {"parallel.tensor=2\x01", "this is not YAML: control characters are not allowed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *overrides[] = {(char *)cases[i].override};
        char says[400];
        snprintf(says, sizeof says, "p.yaml,%s: %s", cases[i].override, cases[i].says);
        for (char *s = says; *s; s++)
            *s = *s == 1 ? '?' : *s;
        expect(MODEL, overrides, 1, says);
    }
}

/* The file's value is wrong, the override's is right: the plan is. */
static void test_override_mends(void **state)
{
    (void)state;
    char *overrides[] = {"parallel.tensor=2"};
    struct err err = {""};
    const char *text = MODEL "parallel: {tensor: many}\n";
    struct plan *plan = plan_parse(text, strlen(text), "p.yaml", overrides, 1, "/base", &err);
    if (!plan)
        fail_msg("%s", err.text);
    assert_int_equal(plan->parallel.tensor, 2);
    plan_free(plan);
}

static void test_files(void **state)
{
    (void)state;
    struct err err = {""};
    char folder[] = "/tmp/gtrain-plan-XXXXXX", path[100], says[300];
    assert_non_null(mkdtemp(folder));
    assert_null(plan_load("/nowhere/p.yaml", NULL, 0, NULL, &err));
    assert_string_equal(err.text,
                        "/nowhere/p.yaml: the plan file cannot be read: No such file or directory");
    assert_null(plan_load(folder, NULL, 0, NULL, &err));
    snprintf(says, sizeof says, "%s: a plan must be a regular file", folder);
    assert_string_equal(err.text, says);
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(plan_load(path, NULL, 0, NULL, &err)); /* and it does not block */
    snprintf(says, sizeof says, "%s: a plan must be a regular file", path);
    assert_string_equal(err.text, says);
    unlink(path);
    snprintf(path, sizeof path, "%s/large", folder);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    for (int i = 0; i < 1 << 20; i++)
        fputs("#\n", out);
    assert_int_equal(fclose(out), 0);
    assert_null(plan_load(path, NULL, 0, NULL, &err));
    snprintf(says, sizeof says, "%s: 1048577 bytes are more than a plan can have: at most 1048576",
             path);
    assert_string_equal(err.text, says);
    unlink(path);
    rmdir(folder);
}

/* An error found later, by whoever uses the plan, still says where. */
static void test_plan_error(void **state)
{
    (void)state;
    struct err err = {""};
    char *overrides[] = {"training.steps=7"};
    struct plan *p = plan_parse(MODEL, strlen(MODEL), "p.yaml", overrides, 1, "/base", &err);
    assert_non_null(p);
    assert_int_equal(plan_error(p, "data.train", &err, "a.txt has %d tokens", 3), -1);
    assert_string_equal(err.text, "p.yaml:2:8: a.txt has 3 tokens");
    plan_error(p, "training.steps", &err, "too few");
    assert_string_equal(err.text, "p.yaml,training.steps=7: too few");
    plan_error(p, "training.seed", &err, "odd");
    assert_string_equal(err.text, "p.yaml:3:1: odd");
    plan_error(p, "parallel.tensor", &err, "odd");
    assert_string_equal(err.text, "p.yaml:1:1: odd");
    plan_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_form),           cmocka_unit_test(test_names),
        cmocka_unit_test(test_whole_numbers),  cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_other_values),   cmocka_unit_test(test_model),
        cmocka_unit_test(test_training),       cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_checkpoint),     cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_override_mends), cmocka_unit_test(test_files),
        cmocka_unit_test(test_plan_error),
    };
    return cmocka_run_group_tests_name("plan errors", tests, NULL, NULL);
}
