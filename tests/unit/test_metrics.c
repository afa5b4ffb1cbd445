/* test_metrics.c - metrics.jsonl as JSON readers see it, and the lines for people. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <json-c/json.h>

#include "train/metrics.h"
#include "train/metrics_line.h"
#include "train/peak.h"

struct fixture {
    char dir[64], steps[96], events[96];
    int out[2]; /* pipe: what the person sees */
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    strcpy(f->dir, "/tmp/gtrain-test-metrics.XXXXXX");
    if (!mkdtemp(f->dir) || pipe2(f->out, O_NONBLOCK))
        return -1;
    snprintf(f->steps, sizeof f->steps, "%s/metrics.jsonl", f->dir);
    snprintf(f->events, sizeof f->events, "%s/events.jsonl", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    close(f->out[0]);
    close(f->out[1]);
    unlink(f->steps);
    unlink(f->events);
    int rv = rmdir(f->dir);
    free(f);
    return rv;
}

/* What is in a file, or in the pipe now; NUL-terminated, in a buffer that is good until the next
 * call with it. */
static const char *slurp(int fd, char *buffer, size_t size)
{
    size_t length = 0;
    ssize_t n;
    while (length + 1 < size && (n = read(fd, buffer + length, size - 1 - length)) > 0)
        length += (size_t)n;
    buffer[length] = 0;
    return buffer;
}

static const char *slurp_path(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    slurp(fd, buffer, size);
    close(fd);
    return buffer;
}

static struct metrics *open_metrics(struct fixture *f, int live, int64_t total)
{
    struct metrics *m;
    struct err err = {{0}};
    if (metrics_open(&m, f->dir, f->out[1], live, total, 2048, &err))
        fail_msg("metrics_open: %s", err.text);
    return m;
}

static struct metrics_step sample_step(int64_t step)
{
    return (struct metrics_step){.step = step,
                                 .loss = 1.0 / 3,
                                 .val_loss = NAN,
                                 .grad_norm = 0.1,
                                 .lr = 1e-3,
                                 .tokens = step * 2048,
                                 .step_s = 0.5,
                                 .mfu = NAN,
                                 .stall_ms = 0.25,
                                 .checkpoint_step = -1,
                                 .epoch = 2,
                                 .generation = 1};
}

static double number(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v))
        fail_msg("no %s in the line", key);
    return json_object_get_double(v);
}

static void test_json_line(void **state)
{
    struct fixture *f = *state;
    struct metrics *m = open_metrics(f, 0, 100);
    struct metrics_step s = sample_step(7);
    s.lr = 3e-3;
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    s = sample_step(8);
    s.val_loss = 1.9;
    s.mfu = 0.41;
    s.loss = NAN;
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    metrics_close(m);

    char text[4096];
    slurp_path(f->steps, text, sizeof text);
    char *second = strchr(text, '\n');
    assert_non_null(second);
    *second++ = 0;
    struct json_object *o = json_tokener_parse(text);
    assert_non_null(o);
    assert_int_equal(number(o, "step"), 7);
    assert_true(number(o, "loss") == 1.0 / 3); /* 17 digits give the same bits */
    assert_true(number(o, "grad_norm") == 0.1);
    assert_true(number(o, "lr") == 3e-3);
    assert_non_null(strstr(text, "\"loss\":0.33333333333333331,"));
    assert_non_null(strstr(text, "\"lr\":0.003,"));
    assert_int_equal(number(o, "tokens"), 7 * 2048);
    assert_true(number(o, "tokens_per_s") == 4096);
    assert_true(number(o, "stall_ms") == 0.25);
    assert_int_equal(number(o, "generation"), 1);
    assert_int_equal(number(o, "epoch"), 2);
    assert_false(json_object_object_get_ex(o, "val_loss", NULL));
    assert_false(json_object_object_get_ex(o, "mfu", NULL));
    json_object_put(o);

    assert_int_equal(second[strlen(second) - 1], '\n');
    assert_non_null(strstr(second, "\"loss\":null,"));
    o = json_tokener_parse(second);
    assert_non_null(o);
    assert_true(number(o, "val_loss") == 1.9);
    assert_true(number(o, "mfu") == 0.41);
    json_object_put(o);
}

/* A line that a crash cut keeps its own line, and the next run's first line is whole. */
static void test_torn_line(void **state)
{
    struct fixture *f = *state;
    FILE *out = fopen(f->steps, "w");
    assert_non_null(out);
    fputs("{\"step\":1}\n{\"step\":2,\"lo", out);
    fclose(out);
    for (int i = 0; i < 2; i++) {
        struct metrics *m = open_metrics(f, 0, 100);
        struct metrics_step s = sample_step(2);
        assert_int_equal(metrics_step(m, &s, NULL), 0);
        assert_int_equal(metrics_step(m, &s, NULL), 0);
        metrics_close(m);
    }
    char text[4096];
    slurp_path(f->steps, text, sizeof text);
    assert_memory_equal(text, "{\"step\":1}\n{\"step\":2,\"lo\n{\"step\":2,\"loss\":", 40);
    int lines = 0;
    for (char *c = text; *c; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 6);
    assert_null(strstr(text, "\n\n"));
}

static void test_events(void **state)
{
    struct fixture *f = *state;
    struct metrics *m = open_metrics(f, 0, 100);
    static const char text[] = "from \"n1\\x\"\n\ttab, \xc3\xa9";
    assert_int_equal(metrics_event(m, "restored", 40, text, NULL), 0);
    char *longer = malloc(5000);
    assert_non_null(longer);
    memset(longer, '"', 4999);
    longer[4999] = 0;
    assert_int_equal(metrics_event(m, "long", 41, longer, NULL), 0);
    free(longer);
    metrics_close(m);
    char buffer[8192];
    slurp_path(f->events, buffer, sizeof buffer);
    char *second = strchr(buffer, '\n');
    assert_non_null(second);
    *second++ = 0;
    struct json_object *o = json_tokener_parse(buffer), *v;
    assert_non_null(o);
    assert_true(json_object_object_get_ex(o, "text", &v));
    assert_string_equal(json_object_get_string(v), text);
    assert_true(json_object_object_get_ex(o, "kind", &v));
    assert_string_equal(json_object_get_string(v), "restored");
    assert_int_equal(number(o, "step"), 40);
    json_object_put(o);
    o = json_tokener_parse(second);
    assert_non_null(o);
    assert_int_equal(number(o, "step"), 41);
    json_object_put(o);
}

/* A link in place of a file is not followed out of the folder. */
static void test_link(void **state)
{
    struct err err;
    struct metrics *m;
    char other[512];
    struct stat st;
    struct fixture *f = *state;
    snprintf(other, sizeof other, "%s.other", f->steps);
    fclose(fopen(other, "w"));
    assert_int_equal(symlink(other, f->steps), 0);
    assert_int_equal(metrics_open(&m, f->dir, -1, 0, 10, 1, &err), -1);
    assert_non_null(strstr(err.text, "is a symbolic link"));
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(unlink(f->steps), 0);
    assert_int_equal(unlink(other), 0);
}

/* What the events say of the newest commit: of the run as it last began. */
static void test_committed(void **state)
{
    struct err err;
    struct metrics *m;
    struct fixture *f = *state;
    assert_int_equal(metrics_open(&m, f->dir, -1, 0, 10, 1, &err), 0);
    assert_int_equal(metrics_committed(m), -1);
    const struct {
        const char *kind, *text;
        int64_t step, want;
    } events[] = {
        {"start", "from first weights", 0, -1},
        {"checkpoint", "committed", 3, 3},
        {"note", "\",\"kind\":\"checkpoint\",\"step\":7,\"text\":\"committed\"}", 4, 3},
        {"checkpoint", "copied to the shared folder", 5, 3},
        {"checkpoint", "committed", 6, 6},
        {"restored", "6 steps", 6, 6},
        {"start", "from first weights", 0, -1},
    };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        assert_int_equal(metrics_event(m, events[i].kind, events[i].step, events[i].text, &err), 0);
        assert_int_equal(metrics_committed(m), events[i].want);
    }
    metrics_close(m);
}

static void test_fifo(void **state)
{
    struct fixture *f = *state;
    struct metrics *m = NULL;
    struct err err;
    assert_int_equal(mkfifo(f->steps, 0600), 0);
    assert_int_equal(metrics_open(&m, f->dir, 1, 0, 1, 1, &err), -1);
    assert_non_null(strstr(err.text, "is a FIFO"));
    assert_null(m);
}

static void test_bad_folder(void **state)
{
    struct fixture *f = *state;
    struct metrics *m;
    struct err err;
    char path[128];
    snprintf(path, sizeof path, "%s/no/such", f->dir);
    assert_int_equal(metrics_open(&m, path, 1, 0, 1, 1, &err), -1);
    assert_null(m);
    char expected[256];
    snprintf(expected, sizeof expected, "%s: No such file or directory", path);
    assert_string_equal(err.text, expected);
}

/* A batch log has the first and the last step and no colours or returns. */
static void test_plain_log(void **state)
{
    struct fixture *f = *state;
    struct metrics *m = open_metrics(f, 0, 1000);
    for (int64_t i = 1; i <= 1000; i += 333) {
        struct metrics_step s = sample_step(i);
        assert_int_equal(metrics_step(m, &s, NULL), 0);
    }
    metrics_close(m);
    char text[4096];
    slurp(f->out[0], text, sizeof text);
    assert_non_null(
        strstr(text, "step    1/1000  loss 0.3333  grad 0.1  lr 0.001  4.10k tokens/s\n"));
    assert_non_null(strstr(text, "\nstep 1000/1000  loss 0.3333"));
    assert_null(strpbrk(text, "\r\033"));
}

static void test_live_line(void **state)
{
    struct fixture *f = *state;
    struct metrics *m = open_metrics(f, 1, 10);
    struct metrics_step s = sample_step(1);
    s.spares = 2;
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    assert_int_equal(metrics_event(m, "checkpoint", 1, "committed", NULL), 0);
    s = sample_step(10);
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    metrics_close(m);
    char text[4096];
    slurp(f->out[0], text, sizeof text);
    static const char begin[] =
        "\rstep  1/10  loss 0.3333  grad 0.1  lr 0.001  4.10k tokens/s  2 spares\033[K"
        "\rstep 1: checkpoint: committed\033[K\n"
        "\rstep  1/10  loss 0.3333  grad 0.1  lr 0.001  4.10k tokens/s  2 spares\033[K"
        "\rstep 10/10  loss 0.3333";
    assert_memory_equal(text, begin, sizeof begin - 1);
    assert_string_equal(text + strlen(text) - 4, "\033[K\n");
}

/* A terminal that is not the display itself: a pipe leads to it. */
static void test_told_columns(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    struct metrics *m = open_metrics(f, 31, 10);
    struct metrics_step s = sample_step(1);
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    metrics_close(m);
    slurp(f->out[0], text, sizeof text);
    assert_string_equal(text, "\rstep  1/10  loss 0.3333\033[K\n");
}

static void test_line_width(void **state)
{
    (void)state;
    struct metrics_view v = {.step = sample_step(120),
                             .total_steps = 2000,
                             .tokens_per_s = 12345,
                             .val_loss = 1.79,
                             .left_s = 5430};
    v.step.loss = 1.84321;
    v.mfu = 0.4123;
    v.step.checkpoint_step = 100;
    v.step.spares = 1;
    static const struct {
        int width;
        const char *text;
    } table[] = {
        {0, "step  120/2000  loss 1.8432  val 1.7900  grad 0.1  lr 0.001  12.3k tokens/s  MFU "
            "41.2 %  checkpoint 20 steps ago  1 spare  ETA 1h30m"},
        {130, "step  120/2000  loss 1.8432  val 1.7900  grad 0.1  12.3k tokens/s  MFU 41.2 %  "
              "checkpoint 20 steps ago  1 spare  ETA 1h30m"},
        {92, "step  120/2000  loss 1.8432  12.3k tokens/s  MFU 41.2 %  checkpoint 20 steps ago"
             "  ETA 1h30m"},
        {56, "step  120/2000  loss 1.8432  12.3k tokens/s  ETA 1h30m"},
        {30, "step  120/2000  loss 1.8432"},
        {15, "step  120/2000"},
        {6, "step  "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char line[256];
        size_t n = metrics_line(line, sizeof line, table[i].width, &v);
        assert_string_equal(line, table[i].text);
        assert_int_equal(n, strlen(line));
    }
}

/* A machine that was busy while it was measured: said in words, and never more than all of it. */
static void test_utilisation(void **state)
{
    (void)state;
    struct peak peak = {.flops = 8e9};
    assert_true(peak_share(&peak, 2e9) == 0.25);
    assert_false(peak.about);
    assert_true(peak_share(&peak, 1e10) == 1);
    assert_true(peak.about);
    assert_true(peak_share(&peak, 2e9) == 0.2);
    assert_true(isnan(peak_share(&peak, INFINITY)));
    peak = (struct peak){.flops = 0};
    assert_true(isnan(peak_share(&peak, 2e9)));

    char line[256];
    struct metrics_view v = {.step = sample_step(3),
                             .total_steps = 3,
                             .tokens_per_s = NAN,
                             .mfu = 0.4123,
                             .val_loss = NAN,
                             .left_s = NAN};
    v.step.mfu_about = true;
    metrics_line(line, sizeof line, 0, &v);
    assert_string_equal(line, "step 3/3  loss 0.3333  grad 0.1  lr 0.001  MFU about 41 %");
}

static void test_line_numbers(void **state)
{
    (void)state;
    static const struct {
        double rate, left;
        const char *text;
    } table[] = {
        {7.4, 59.4, "7 tokens/s  ETA 59s"},
        {999, 59.6, "999 tokens/s  ETA 1m00s"},
        {999.6, 3599, "1.00k tokens/s  ETA 59m59s"},
        {9996, 86399, "10.0k tokens/s  ETA 23h59m"},
        {123456, 90000, "123k tokens/s  ETA 1d01h"},
        {2.5e6, 1e9, "2.50M tokens/s"},
        {3e12, NAN, "3000G tokens/s"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct metrics_view v = {.step = sample_step(1),
                                 .total_steps = 2,
                                 .tokens_per_s = table[i].rate,
                                 .mfu = NAN,
                                 .val_loss = NAN,
                                 .left_s = table[i].left};
        v.step.grad_norm = v.step.lr = NAN;
        char line[256], expected[256];
        metrics_line(line, sizeof line, 0, &v);
        snprintf(expected, sizeof expected, "step 1/2  loss 0.3333  %s", table[i].text);
        assert_string_equal(line, expected);
    }
}

static void test_line_due(void **state)
{
    (void)state;
    static const struct {
        int64_t step, total;
        bool validated;
        int64_t last;
        int64_t since_ms;
        bool due;
    } table[] = {
        {1, 1000, false, 0, 0, true},      /* first */
        {1000, 1000, false, 999, 1, true}, /* last */
        {2, 1000, true, 1, 1, true},       /* a validation */
        {50, 1000, false, 1, 999, false},  /* within a second */
        {10, 1000, false, 1, 5000, false}, /* within a hundredth of the run */
        {11, 1000, false, 1, 1000, true},
        {2, 1000, false, 1, 60000, true}, /* a minute at any rate */
        {2, 30, false, 1, 2000, true},
        {5, 1000, false, 9, 10, true}, /* went back: restored */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (metrics_line_due(table[i].step, table[i].total, table[i].validated, table[i].last,
                             table[i].since_ms) != table[i].due)
            fail_msg("row %zu: not %d", i, table[i].due);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_json_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_torn_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fifo, setup, teardown),
        cmocka_unit_test_setup_teardown(test_link, setup, teardown),
        cmocka_unit_test_setup_teardown(test_committed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plain_log, setup, teardown),
        cmocka_unit_test_setup_teardown(test_live_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_told_columns, setup, teardown),
        cmocka_unit_test(test_line_width),
        cmocka_unit_test(test_line_numbers),
        cmocka_unit_test(test_utilisation),
        cmocka_unit_test(test_line_due),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
