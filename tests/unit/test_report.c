/* test_report.c - reading a run's records, thinning curves, axes, and the page's safety. */
#include <math.h>
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

#include "cli/chart.h"
#include "cli/report_html.h"
#include "cli/report_read.h"

static const char *const FILES[] = {"metrics.jsonl", "events.jsonl", "plan.yaml"};

static int setup(void **state)
{
    char *dir = strdup("/tmp/gtrain-test-report.XXXXXX");
    *state = dir;
    return dir && mkdtemp(dir) ? 0 : -1;
}

static void path_of(char *path, size_t size, const char *dir, const char *name)
{
    snprintf(path, size, "%s/%s", dir, name);
}

static int teardown(void **state)
{
    char path[128];
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        path_of(path, sizeof path, *state, FILES[i]);
        unlink(path);
    }
    int rv = rmdir(*state);
    free(*state);
    return rv;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[128];
    path_of(path, sizeof path, dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void read_run(struct run *run, const char *dir)
{
    struct err err = {{0}};
    if (run_read(run, dir, &err))
        fail_msg("run_read: %s", err.text);
}

static void test_last_line_wins(void **state)
{
    put(*state, "metrics.jsonl",
        "{\"step\":1,\"loss\":5.5,\"tokens\":64,\"generation\":1,\"epoch\":1,\"time\":10}\n"
        "{\"step\":2,\"loss\":4.5,\"val_loss\":4.25,\"generation\":1,\"epoch\":1,\"time\":11}\n"
        "{\"step\":3,\"loss\":3.5,\"generation\":1,\"epoch\":1,\"time\":12}\n"
        "{\"step\":4,\"lo\n" /* torn by a crash, healed by the next start */
        "{\"step\":2,\"loss\":4.5,\"generation\":2,\"epoch\":1,\"time\":20}\n"
        "{\"step\":3,\"loss\":3.25,\"generation\":2,\"epoch\":1,\"time\":21}\n"
        "{\"step\":4,\"loss\":null,\"generation\":2,\"epoch\":1,\"time\":22}\n"
        "{\"step\":5,\"loss\":2"); /* being written now */
    put(*state, "events.jsonl",
        "{\"time\":15,\"kind\":\"lost\",\"step\":3,\"text\":\"n\\u00e4 \\\"x\\\"\\n<b>\"}\n"
        "{\"time\":16,\"kind\":\"no text\",\"step\":3}\n");
    struct run run;
    read_run(&run, *state);
    assert_int_equal(run.n_steps, 4);
    static const double losses[] = {5.5, 4.5, 3.25, NAN};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(run.steps[i].step, i + 1);
        assert_true(run.steps[i].loss == losses[i] || i == 3);
    }
    assert_true(isnan(run.steps[3].loss));
    assert_true(run.steps[0].tokens == 64);
    assert_true(isnan(run.steps[1].val_loss)); /* the later line has none */
    assert_int_equal(run.lines, 10);
    assert_int_equal(run.malformed, 3);
    assert_int_equal(run.repeated, 2);
    assert_int_equal(run.differing, 1);
    assert_int_equal(run.first_differing, 3);
    assert_int_equal(run.n_spans, 2);
    assert_int_equal(run.spans[0].last_step, 3);
    assert_true(run.spans[0].last_time == 12);
    assert_int_equal(run.spans[1].first_step, 2);
    assert_int_equal(run.n_events, 1);
    assert_string_equal(run.events[0].text, "n\xc3\xa4 \"x\"\n<b>");
    assert_int_equal(run.events[0].step, 3);
    run_free(&run);
}

static void test_lines_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"loss\":1}",
        "{\"step\":-1,\"loss\":1}",
        "{\"step\":1e300,\"loss\":1}",
        "{\"step\":\"1\",\"loss\":1}",
        "{\"step\":1,\"loss\":1",
        "{\"step\":1,\"loss\":1}}",
        "{\"step\":1,\"loss\":1} {\"step\":2,\"loss\":1}",
        "{\"step\":1,\"loss\":nan}",
        "{\"step\":1,\"loss\":1e999}",
        "{\"step\":1,\"loss\":{}}",
        "{\"step\":1,,}",
        "{\"step\":1,\"a\":\"\\u12g4\"}",
        "{\"step\":1,\"a\":\"\\x\"}",
        "{\"step\":1,\"a\":\"open}",
        "{\"a key that is longer than any that was ever written\":1,\"step\":1}",
    };
    char text[4096] = "{\"step\":7,\"loss\":1}\n";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcat(text, bad[i]);
        strcat(text, "\n");
    }
    put(*state, "metrics.jsonl", text);
    struct run run;
    read_run(&run, *state);
    assert_int_equal(run.n_steps, 1);
    assert_int_equal(run.steps[0].step, 7);
    assert_int_equal(run.malformed, sizeof bad / sizeof *bad);
    run_free(&run);
}

/* One byte of a line changed, to each of a few values: whatever becomes of it, reading ends, and
 * the line after it is read. */
static void test_lines_spoiled(void **state)
{
    static const char line[] = "{\"step\":2,\"loss\":1.5e0,\"a\":\"\\u00e4\\n\",\"b\":null}\n";
    static const char values[] = {0, '"', '\\', '{', '}', ',', ':', '9', 'e', '-', '\n', 'u', -1};
    char path[128];
    path_of(path, sizeof path, *state, "metrics.jsonl");
    for (size_t at = 0; at + 1 < sizeof line - 1; at++) {
        for (size_t v = 0; v < sizeof values; v++) {
            char text[sizeof line];
            memcpy(text, line, sizeof line);
            text[at] = values[v];
            FILE *out = fopen(path, "w");
            assert_non_null(out);
            fwrite(text, 1, sizeof line - 1, out);
            fputs("{\"step\":9,\"loss\":1}\n", out);
            fclose(out);
            struct run run;
            read_run(&run, *state);
            assert_int_equal(run.steps[run.n_steps - 1].loss == 1, 1);
            run_free(&run);
        }
    }
}

/* A line longer than any that is written is one malformed line, and the next is read. */
static void test_long_line(void **state)
{
    char path[128];
    path_of(path, sizeof path, *state, "metrics.jsonl");
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "{\"step\":1,\"a\":\"");
    for (int i = 0; i < 100000; i++)
        fputc('x', out);
    fprintf(out, "\"}\n{\"step\":2,\"loss\":1}\n");
    fclose(out);
    struct run run;
    read_run(&run, *state);
    assert_int_equal(run.lines, 2);
    assert_int_equal(run.malformed, 1);
    assert_int_equal(run.n_steps, 1);
    run_free(&run);
}

static void test_nothing_to_report(void **state)
{
    struct run run;
    struct err err;
    char expected[256];
    assert_int_equal(run_read(&run, *state, &err), -1);
    snprintf(expected, sizeof expected, "%s/metrics.jsonl: No such file or directory",
             (char *)*state);
    assert_string_equal(err.text, expected);
    run_free(&run);
    snprintf(expected, sizeof expected, "%s/metrics.jsonl", (char *)*state);
    assert_int_equal(mkfifo(expected, 0600), 0);
    assert_int_equal(run_read(&run, *state, &err), -1);
    assert_non_null(strstr(err.text, "nothing to report"));
    run_free(&run);
    assert_int_equal(unlink(expected), 0);
    put(*state, "metrics.jsonl", "{\"step\":1,\"lo");
    assert_int_equal(run_read(&run, *state, &err), -1);
    snprintf(expected, sizeof expected,
             "%s/metrics.jsonl: has no whole line yet: nothing to report", (char *)*state);
    assert_string_equal(err.text, expected);
    run_free(&run);
}

/* The highest and the lowest value of each column survive, in the order of x. */
static void test_decimate(void **state)
{
    (void)state;
    enum { N = 10000, COLUMNS = 50 };
    struct chart_point *in = malloc(N * sizeof *in), out[2 * COLUMNS];
    assert_non_null(in);
    for (int i = 0; i < N; i++)
        in[i] = (struct chart_point){i + 1, sin(i * 0.01)};
    in[4321].y = 1000; /* one spike up, one down, one hole */
    in[4322].y = -1000;
    in[77].y = NAN;
    size_t n = chart_decimate(in, N, 1, N, COLUMNS, out);
    assert_int_equal(n, 2 * COLUMNS);
    int up = 0, down = 0;
    for (size_t i = 0; i < n; i++) {
        up += out[i].x == 4322 && out[i].y == 1000;
        down += out[i].x == 4323 && out[i].y == -1000;
        assert_true(i == 0 || out[i].x > out[i - 1].x);
        assert_true(isfinite(out[i].y));
    }
    assert_int_equal(up, 1);
    assert_int_equal(down, 1);
    n = chart_decimate(in, 100, 1, 100, COLUMNS, out);
    assert_int_equal(n, 99); /* all but the hole */
    assert_true(out[98].x == 100);
    for (int i = 0; i < N; i++)
        in[i].y = NAN;
    assert_int_equal(chart_decimate(in, N, 1, N, COLUMNS, out), 0);
    free(in);
}

static void test_ticks(void **state)
{
    (void)state;
    static const struct {
        double low, high;
        int most, n;
        double ticks[8];
    } table[] = {
        {0, 10, 6, 6, {0, 2, 4, 6, 8, 10}},
        {0, 0.003, 6, 4, {0, 0.001, 0.002, 0.003}},
        {1.42, 1.71, 6, 6, {1.45, 1.5, 1.55, 1.6, 1.65, 1.7}},
        {-3, 3, 5, 3, {-2, 0, 2}},
        {5, 5, 6, 0, {0}},
        {-1e308, 1e308, 6, 0, {0}}, /* the width overflows: no ticks, but an end */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double ticks[16];
        int n = chart_ticks(table[i].low, table[i].high, table[i].most, ticks);
        if (n != table[i].n)
            fail_msg("row %zu: %d ticks, not %d", i, n, table[i].n);
        for (int k = 0; k < n; k++)
            if (fabs(ticks[k] - table[i].ticks[k]) > 1e-9)
                fail_msg("row %zu: tick %d is %.17g, not %g", i, k, ticks[k], table[i].ticks[k]);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } table[] = {{0, "0"},           {0.00012, "0.00012"}, {9990, "9990"},      {10000, "10k"},
                 {123456, "123.5k"}, {1.5e6, "1.5M"},      {-2.25e9, "-2.25G"}, {15.6e12, "15.6T"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[32];
        assert_string_equal(chart_number(table[i].value, text, sizeof text), table[i].text);
    }
}

/* Whatever the records say, it is text in the page, and the page names nothing outside itself. */
static void test_page_is_safe(void **state)
{
    put(*state, "metrics.jsonl",
        "{\"step\":1,\"loss\":5.5,\"lr\":0,\"grad_norm\":0,\"stall_ms\":1,\"time\":100}\n"
        "{\"step\":2,\"loss\":-1,\"val_loss\":2,\"lr\":0,\"tokens_per_s\":5,\"time\":101}\n");
    put(*state, "events.jsonl",
        "{\"time\":100,\"kind\":\"<i>\",\"step\":1,\"text\":\"</td><script>alert(1)</script>\"}\n");
    put(*state, "plan.yaml", "# </pre><img src=http://x>\n");
    struct run run;
    read_run(&run, *state);
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    assert_int_equal(report_html(out, &run, "a<b>&\"c"), 0);
    fclose(out);
    assert_non_null(strstr(page, "<h1>a&lt;b&gt;&amp;&quot;c</h1>"));
    assert_non_null(strstr(page, "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert_non_null(strstr(page, "&lt;/pre&gt;&lt;img src=http://x&gt;"));
    assert_null(strstr(page, "<script>alert"));
    assert_null(strstr(page, "<i>"));
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<link"));
    assert_null(strstr(page, "@import"));
    assert_null(strstr(page, "url("));
    assert_null(strstr(page, "nan"));
    run_free(&run);
    free(page);
}

/* Values at the ends of what a double can be: the page is finished, whatever it looks like. */
static void test_page_of_extremes(void **state)
{
    put(*state, "metrics.jsonl",
        "{\"step\":0,\"loss\":1e308,\"lr\":-1e308,\"grad_norm\":4e-324,\"time\":-1e308}\n"
        "{\"step\":9007199254740992,\"loss\":1e-308,\"lr\":1e308,\"grad_norm\":1e300,"
        "\"time\":1e308,\"generation\":1}\n"
        "{\"step\":9007199254740991,\"loss\":1,\"lr\":1e308,\"grad_norm\":1e300}\n");
    struct run run;
    read_run(&run, *state);
    assert_int_equal(run.n_steps, 3);
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    assert_int_equal(report_html(out, &run, "extremes"), 0);
    fclose(out);
    assert_non_null(strstr(page, "</html>"));
    run_free(&run);
    free(page);
}

/* One step, one value: still a page without NaN in its pictures. */
static void test_page_of_one_step(void **state)
{
    put(*state, "metrics.jsonl", "{\"step\":1,\"loss\":5.5,\"lr\":0.001,\"grad_norm\":2}\n");
    struct run run;
    read_run(&run, *state);
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    assert_int_equal(report_html(out, &run, "one"), 0);
    fclose(out);
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf"));
    assert_non_null(strstr(page, "<circle class=\"line\""));
    assert_non_null(strstr(page, "</html>"));
    run_free(&run);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_last_line_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines_spoiled, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_report, setup, teardown),
        cmocka_unit_test(test_decimate),
        cmocka_unit_test(test_ticks),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test_setup_teardown(test_page_is_safe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_of_one_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_of_extremes, setup, teardown),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
