/* test_news.c - what a site is told of a run, and when; and commands that are run for it. */
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

#include "base/clock.h"
#include "launch/command.h"
#include "launch/news.h"

static void words(void **state)
{
    (void)state;
    static const struct {
        const char *state, *text, *without_step;
        int replicas, recovering;
        int64_t furthest, steps;
    } rows[] = {
        {"running", "gtrain: epoch 2, generation 3, step 0 of 150, 1 spare",
         "gtrain: epoch 2, generation 3, 1 spare", 1, 0, -1, 150},
        {"running", "gtrain: epoch 2, generation 3, step 40, 1 spare, 1 of 4 replicas, recovering",
         "gtrain: epoch 2, generation 3, 1 spare, 1 of 4 replicas, recovering", 4, 1, 40, 0},
        {"ended", "gtrain: epoch 2, generation 3, step 150 of 150, ended",
         "gtrain: epoch 2, generation 3, ended", 1, 0, 150, 150},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_node node = {.node_rank = -1};
        struct run run = {.nodes = &node,
                          .n_nodes = 1,
                          .furthest = rows[i].furthest,
                          .replicas = rows[i].replicas};
        struct runstate record = {.begun = -1};
        char text[NEWS_TEXT_BYTES], without[NEWS_TEXT_BYTES];
        run.config.epoch = 2;
        run.config.generation = 3;
        run.config.steps = rows[i].steps;
        run.config.shape.data = 1;
        snprintf(record.state, sizeof record.state, "%s", rows[i].state);
        news_describe(&run, &record, rows[i].recovering, text, without);
        assert_string_equal(text, rows[i].text);
        assert_string_equal(without, rows[i].without_step);
    }
}

static void when(void **state)
{
    (void)state;
    static const struct {
        const char *before, *now;
        int64_t last_at, at;
        int last, due;
    } rows[] = {
        {"", "a", 0, 1, 0, 1},
        {"a", "a", 1000, 1000 + NEWS_EVERY_MS - 1, 0, 0},
        {"a", "a", 1000, 1000 + NEWS_EVERY_MS, 0, 1},
        {"a", "b", 1000, 1000 + NEWS_LEAST_MS - 1, 0, 0},
        {"a", "b", 1000, 1000 + NEWS_LEAST_MS, 0, 1},
        {"a", "b", 1000, 1001, 1, 1}, /* the last word comes at once, */
        {"a", "a", 1000, 1001, 1, 0}, /* and once */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct news n = {.job = "7", .last_at = rows[i].last_at};
        snprintf(n.last, sizeof n.last, "%s", rows[i].before);
        assert_int_equal(news_due(&n, rows[i].now, rows[i].last, rows[i].at), rows[i].due);
        n.job = NULL;
        assert_int_equal(news_due(&n, rows[i].now, rows[i].last, rows[i].at), 0);
    }
}

/* What the user has said of the job stays. */
static void whose_comment(void **state)
{
    (void)state;
    assert_int_equal(news_may_comment("JobId=7 JobName=x Power= \n"), 1);
    assert_int_equal(news_may_comment("JobId=7 JobName=x Comment=gtrain: epoch 1 Power= \n"), 1);
    assert_int_equal(news_may_comment("JobId=7 JobName=x Comment=(null) Power= \n"), 1);
    assert_int_equal(news_may_comment("JobId=7 JobName=x Comment=for gtrain: mine Power= \n"), 0);
    assert_int_equal(news_may_comment("JobId=7 JobName=x AdminComment=a Power= \n"), 1);
}

static void commands(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        int bad;
        const char *text, *error;
    } rows[] = {
        {"echo one; echo two >&2", 0, "one\ntwo\n", ""},
        {"echo no; exit 3", -1, "no\n", "sh -c: no"},
        {"exit 3", -1, "", "sh -c ended with exit code 3"},
        {"kill -KILL $$", -1, "", "sh -c ended with signal 9"},
        {"cat; echo $(ls /proc/self/fd | wc -l)", 0, "4\n", ""}, /* ls has its folder open */
        {"i=0; while [ $i -lt 1000 ]; do echo 0123456789; i=$((i+1)); done", 0, NULL, ""},
        {"sleep 60 & sleep 60", -1, "", "sh -c took more than 1 s"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *argv[] = {"sh", "-c", (char *)rows[i].command, NULL}, text[100];
        struct err err = {""};
        int64_t begin = clock_ms();
        assert_int_equal(command_run(argv, i == 6 ? 1000 : 30000, text, sizeof text, &err),
                         rows[i].bad);
        if (rows[i].text)
            assert_string_equal(text, rows[i].text);
        else
            assert_int_equal(strlen(text), sizeof text - 1);
        assert_string_equal(err.text, rows[i].error);
        assert_true(clock_ms() - begin < 30000);
    }
    char *missing[] = {"/nonexistent/hook", "x", NULL}, text[100];
    struct err err;
    assert_int_equal(command_run(missing, 30000, text, sizeof text, &err), -1);
    assert_string_equal(err.text, "/nonexistent/hook is not found");
}

static void write_where(int fd, void *arg)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%s %d", (const char *)arg, getsid(0) == getpid());
    if (write(fd, text, (size_t)n) < 0)
        _exit(1);
}

static void detached(void **state)
{
    (void)state;
    int end[2];
    char text[64] = "";
    assert_int_equal(pipe(end), 0);
    assert_int_equal(command_detach(end[1], write_where, "mine"), 0);
    close(end[1]);
    assert_int_equal(command_read(end[0], text, sizeof text, clock_ms() + 30000), 0);
    assert_string_equal(text, "mine 1");
    close(end[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words), cmocka_unit_test(when),
                                       cmocka_unit_test(whose_comment), cmocka_unit_test(commands),
                                       cmocka_unit_test(detached)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
