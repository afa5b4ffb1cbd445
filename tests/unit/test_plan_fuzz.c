/* Damaged plans: whatever is done to the text, there is a plan that holds together or one error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "plan/plan.h"

static const char good[] = "run: {name: fuzz, dir: /runs/fuzz}\n"
                           "model:\n"
                           "  layers: 6\n"
                           "  hidden: 64\n"
                           "  ffn: 96\n"
                           "  heads: 8\n"
                           "  kv_heads: 4\n"
                           "  vocab: 256\n"
                           "  tied: true\n"
                           "  rope_scaling: {factor: 8, low_freq_factor: 1}\n"
                           "data:\n"
                           "  format: bin\n"
                           "  train: [a.bin, \"b c.bin\", 'd.bin']\n"
                           "  val_fraction: 0.01\n"
                           "training:\n"
                           "  steps: 100\n"
                           "  warmup_steps: 10\n"
                           "  global_batch: 16\n"
                           "  microbatch: 2\n"
                           "  sequence: 32\n"
                           "  lr: 1.5e-3\n"
                           "  lr_schedule: wsd\n"
                           "parallel: {tensor: 2, pipeline: 3, data: 2, schedule: 1f1b}\n"
                           "checkpoint:\n"
                           "  local: /tmp/ckpt\n"
                           "  every: 10\n"
                           "resilience: {spares: 1, patience_ms: 4000}\n";

static const char *const pieces[] = {
    "0",    "-1",    "1e400", "nan",  "0x7f", "99999999999999999999",
    "null", "~",     "[]",    "{}",   ": ",   "- ",
    "\n",   "\t",    "'",     "\"",   "#",    "&a ",
    "*a",   "!t ",   "{",     "}",    "[",    "]",
    ",",    "---\n", "...",   "\xff", "\xc3", "\xe2\x80\xa8",
    "|",    ">\n ",  "%",     "@",    "1",    "2147483647",
    "?",    "\\",    "\x7f",  "true",
};

static uint64_t state = 88172645463325252u;

/* xorshift64 (Marsaglia 2003). */
static size_t below(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % n);
}

static const char *const values[] = {
    "0",      "1",       "2",    "3",     "4",    "8",           "16",       "12",    "-1",
    "0.5",    "1e-3",    "true", "false", "none", "cosine",      "constant", "text",  "bf16",
    "[a, b]", "1000000", "null", "auto",  "'7'",  "{factor: 2}", "wsd",      "gpipe",
};

/* Put another value where one stands: what is still YAML reaches the checks. */
static size_t replace_value(char *text, size_t n, size_t room)
{
    size_t from = below(n + 1), end;
    const char *value = values[below(sizeof values / sizeof *values)];
    size_t length = strlen(value);
    while (from + 1 < n && !(text[from] == ':' && text[from + 1] == ' '))
        from++;
    from = from + 2 > n ? n : from + 2;
    for (end = from; end < n && !strchr(",}\n", text[end]); end++)
        ;
    if (n + length > room)
        return n;
    memmove(text + from + length, text + end, n - end);
    memcpy(text + from, value, length);
    return n - (end - from) + length;
}

/* One change: a byte, a cut, a copy of another part, one of the pieces, or (half of the time) a
 * value. Keeps it below room. */
static size_t mutate(char *text, size_t n, size_t room)
{
    const char *piece = pieces[below(sizeof pieces / sizeof *pieces)];
    size_t at = below(n + 1), length = strlen(piece), cut = below(12);
    switch (below(8)) {
    case 0:
        if (at < n)
            text[at] = (char)below(256);
        return n;
    case 1:
        cut = at + cut > n ? n - at : cut;
        memmove(text + at, text + at + cut, n - at - cut);
        return n - cut;
    case 2:
        piece = good + below(sizeof good - 20);
        length = below(20);
        break;
    case 3:
        cut = at + cut > n ? n - at : cut;
        memmove(text + at, text + at + cut, n - at - cut);
        n -= cut;
        break;
    default:
        return replace_value(text, n, room);
    }
    if (n + length > room)
        return n;
    memmove(text + at + length, text + at, n - at);
    memcpy(text + at, piece, length);
    return n + length;
}

/* A plan that is given out keeps what plan.h promises. */
static void check_plan(const struct plan *p)
{
    struct err err = {""};
    int64_t product = (int64_t)p->parallel.tensor * p->parallel.context * p->parallel.expert *
                      p->parallel.pipeline * p->parallel.data;
    assert_int_equal(p->world, product);
    assert_int_equal(p->model.heads % p->parallel.tensor, 0);
    assert_int_equal(p->model.heads % p->model.kv_heads, 0);
    assert_int_equal(p->accumulation * p->training.microbatch * p->parallel.data,
                     p->training.global_batch);
    assert_true(p->parameters > 0);
    assert_true(plan_lr(&p->training, p->training.steps - 1) >= 0);
    struct plan *q = plan_parse(p->text, strlen(p->text), "wire", NULL, 0, "/base", &err);
    if (!q)
        fail_msg("%s\n%s", err.text, p->text);
    assert_string_equal(p->text, q->text);
    plan_free(q);
}

static void test_mutations(void **unused)
{
    (void)unused;
    char text[2048];
    int plans = 0, errors = 0;
    for (int i = 0; i < 5000; i++) {
        struct err err = {""};
        size_t n = sizeof good - 1;
        memcpy(text, good, n);
        for (size_t k = i ? 1 + below(3) : 0; k > 0; k--)
            n = mutate(text, n, sizeof text);
        struct plan *p = plan_parse(text, n, "p.yaml", NULL, 0, "/base", &err);
        if (p) {
            plans++;
            check_plan(p);
        } else {
            errors++;
            if (strncmp(err.text, "p.yaml:", 7) || strchr(err.text, '\n'))
                fail_msg("not one error with its place: %s", err.text);
        }
        plan_free(p);
    }
    /* Most damage is seen, some is a comment or a name. */
    if (plans < 200 || errors < 1000)
        fail_msg("%d plans and %d errors: the changes are too weak or too strong", plans, errors);
}

static void test_overrides(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2000; i++) {
        struct err err = {""};
        char option[256] = "p.yaml,parallel.tensor=4,data.train=[a.bin, b.bin],training.lr=1e-3";
        char *path, **overrides;
        int n_overrides;
        size_t n = strlen(option);
        for (size_t k = 1 + below(3); k > 0; k--)
            n = mutate(option, n, sizeof option - 1);
        option[n] = 0;
        if (plan_split(option, &path, &overrides, &n_overrides, &err) < 0) {
            assert_true(err.text[0] != 0);
            continue;
        }
        struct plan *p =
            plan_parse(good, sizeof good - 1, "p.yaml", overrides, n_overrides, "/base", &err);
        if (p)
            check_plan(p);
        else if (strncmp(err.text, "p.yaml", 6) || strchr(err.text, '\n'))
            fail_msg("not one error with its place: %s", err.text);
        plan_free(p);
        plan_split_free(path, overrides, n_overrides);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_overrides),
    };
    return cmocka_run_group_tests_name("plan fuzz", tests, NULL, NULL);
}
