/* test_launch_start.c - the coordinator's rules: who is waited for before the ranks are given out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run_rig.h"

static void strange_registrations(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(2, 2, 4);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    struct message_register a = rig_node(0, 2), twin = rig_node(0, 2), uneven = rig_node(1, 1);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &twin, 0, &err), -1);
    assert_string_equal(err.text, "node n0 registered twice");
    assert_int_equal(run.phase, RUN_GATHERING);
    assert_int_equal(run_register(&run, &uneven, 0, &err), -1);
    rig_ends_with(&run, 0, 1,
                  "node n1 has 1 tasks, the others 2: use --ntasks-per-node (gtrain needs the same "
                  "number on each node)");
}

static void nodes_that_never_come(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(2, 1, 2);
    struct message_register a = rig_node(0, 1);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    int64_t t = 0;
    for (; t < 10000; t += BEAT) /* before the first there is no hurry: prologs run */
        run_tick(&run, t);
    assert_int_equal(run_register(&run, &a, t, &err), 0);
    for (int64_t until = t + RUN_GATHER_MS; t <= until; t += BEAT) {
        run_heard(&run, 0, t);
        run_tick(&run, t);
        assert_int_equal(run.phase, RUN_GATHERING);
    }
    run_heard(&run, 0, t);
    rig_ends_with(&run, t, 1, "only 1 of 2 nodes have registered within 120 s");
}

/* Some nodes never came: it begins with the replicas that the others hold. */
static void fewer_replicas_from_the_start(void **state)
{
    (void)state;
    struct run run;
    struct run_config c = rig_config(4, 1, 4);
    struct err err;
    c.least_data = 3;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = rig_node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    for (int64_t t = 0; t <= RUN_GATHER_MS + BEAT; t += BEAT) {
        assert_int_equal(run_complete(&run), 0);
        for (int i = 0; i < 3; i++)
            run_heard(&run, i, t);
        run_tick(&run, t);
    }
    assert_int_equal(run_complete(&run), 1);
    assert_int_equal(run_place(&run, &err), 0);
    assert_int_equal(run.world, 3);
    run_close(&run);
}

/* Lost before it was ever given a rank. */
static void lost_at_the_start(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(3, 1, 2);
    struct message_register a = rig_node(0, 1), b = rig_node(1, 1), d = rig_node(2, 1);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &b, 0, &err), 1);
    run_closed(&run, 0, 5);
    run_tick(&run, 5);
    assert_int_equal(run_complete(&run), 0);
    assert_int_equal(run_register(&run, &d, 10, &err), 2);
    assert_int_equal(run_complete(&run), 1);
    assert_int_equal(run_place(&run, &err), 0);
    rig_runs(&run, 10, 1, "n1 n2");
    assert_int_equal(run_spares(&run), 0);
    run_close(&run);
    /* not enough are left */
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct message_register r = rig_node(i, 1);
        assert_int_equal(run_register(&run, &r, 0, &err), i);
    }
    run_closed(&run, 0, 5);
    run_closed(&run, 1, 5);
    assert_int_equal(run_complete(&run), 0);
    rig_ends_with(&run, 5, 1, "node n1 is lost (no ranks yet): its agent is gone");
    /* two of three came; with the time that a third might take it goes on */
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    assert_int_equal(run_register(&run, &b, 0, &err), 1);
    for (int64_t t = 0; t <= RUN_GATHER_MS + BEAT; t += BEAT) {
        assert_int_equal(run_complete(&run), 0);
        run_heard(&run, 0, t);
        run_heard(&run, 1, t);
        run_tick(&run, t);
    }
    assert_int_equal(run_complete(&run), 1);
    run_close(&run);
}

/* Lost before the last has come: then too few are left, and nobody waits for more, but for srun,
 * which may know better who is to blame. */
static void lost_before_all_came(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(3, 1, 2);
    struct message_register a = rig_node(0, 1), b = rig_node(1, 1);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    assert_int_equal(run_register(&run, &a, 0, &err), 0);
    run_closed(&run, 0, 5);
    run_tick(&run, 5);
    assert_int_equal(run.cause, RUN_CAUSE_NONE); /* two may still come */
    assert_int_equal(run_register(&run, &b, 10, &err), 1);
    run_closed(&run, 1, 15);
    run_tick(&run, 15);
    run_tick(&run, 15 + RUN_BLAME_MS - 1);
    assert_int_equal(run.cause, RUN_CAUSE_NONE); /* srun may have ended them, and will say so */
    run_tick(&run, 15 + RUN_BLAME_MS);
    assert_int_equal(run.machine, 1);
    rig_ends_with(&run, 15 + RUN_BLAME_MS, 1, "node n1 is lost (no ranks yet): its agent is gone");
}

/* Registers node i, or is refused. */
static void comes(struct run *run, int i, int64_t now)
{
    struct err err;
    struct message_register r = rig_node(i, 1);
    if (run_register(run, &r, now, &err) < 0)
        fail_msg("%s", err.text);
}

/* Beats of all that are there, until `until`, or it can begin: returns when. */
static int64_t waits(struct run *run, int64_t now, int64_t until)
{
    for (;; now += BEAT) {
        for (int i = 0; i < run->n_nodes; i++)
            run_heard(run, i, now);
        run_tick(run, now);
        if (run_complete(run) || now >= until)
            return now;
    }
}

/* Three nodes are needed and two are spares: who is there when, and when it begins; -1: it does not
 * within the time that nodes have that are needed. */
static void spares_have_their_time(void **state)
{
    (void)state;
    enum { SHORT = 3000, LONG = RUN_GATHER_MS + BEAT };
    static const struct {
        int64_t comes[5]; /* -1: never */
        int64_t patience;
        int least_data;
        int64_t begins;
    } table[] = {
        {{0, 0, 0, 0, 0}, SHORT, 0, 0},
        {{0, 0, 0, 0, -1}, SHORT, 0, SHORT},
        {{0, 0, 0, -1, -1}, SHORT, 0, SHORT},
        {{0, 0, 20000, -1, -1},
         SHORT,
         0,
         20000 + SHORT}, /* it counts from the last that is needed */
        {{0, 0, 0, 2000, -1}, SHORT, 0, SHORT},
        {{0, 0, 0, 2000, 2500}, SHORT, 0, 2500},
        {{0, 0, -1, -1, -1}, SHORT, 0, -1},
        {{0, 0, -1, -1, -1}, SHORT, 1, LONG}, /* fewer replicas never begin so soon */
        {{0, 0, 0, 0, -1}, 0, 0, LONG},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct run run;
        struct err err;
        struct run_config c = rig_config(5, 1, 3);
        int64_t begins = -1;
        c.start_patience_ms = table[i].patience;
        c.least_data = table[i].least_data;
        assert_int_equal(run_open(&run, &c, 0, &err), 0);
        for (int64_t t = 0; t <= LONG && begins < 0; t += BEAT) {
            for (int k = 0; k < 5; k++)
                if (table[i].comes[k] == t)
                    comes(&run, k, t);
            waits(&run, t, t);
            if (run_complete(&run))
                begins = t;
        }
        if (begins != table[i].begins)
            fail_msg("row %zu: it begins at %lld, not %lld", i, (long long)begins,
                     (long long)table[i].begins);
        run_close(&run);
    }
}

/* Three nodes are needed of five: how many have come, what srun answers each time it is asked, and
 * what becomes of it. */
static void absent_ones_are_not_waited_for(void **state)
{
    (void)state;
    enum { PATIENCE = 4000, ASKED = 6 };
    static const struct {
        int come, least_data, lost;
        int absent[ASKED];    /* -1: no answer */
        int64_t begins, ends; /* -1: not within all this */
        const char *text;
    } table[] = {
        {4, 0, 0, {1}, 2 * PATIENCE / 2, -1, NULL}, /* as without: enough have come */
        {2, 0, 0, {3, 3}, -1, PATIENCE, "node n9 and 2 more did not answer"},
        {2, 0, 0, {3, 0, 3, 2, 2}, -1, -1, NULL}, /* one may still come */
        {2, 0, 0, {0, 3, 3}, -1, 3 * PATIENCE / 2, "node n9 and 2 more did not answer"},
        {2, 0, 0, {3, -1}, -1, -1, NULL}, /* one question at a time, and not for ever */
        {2, 0, 0, {3, -1, 3}, -1, 2 * PATIENCE, "node n9 and 2 more did not answer"},
        {2, 0, 0, {9, 9}, -1, PATIENCE, "node n9 and 2 more did not answer"},
        {2, 1, 0, {3, 3}, PATIENCE, -1, NULL}, /* fewer replicas will do */
        {2, 1, 0, {3, 2, 3, 2, 3}, -1, -1, NULL},
        {3, 0, 1, {1, 1}, -1, -1, NULL},
        {3, 0, 1, {2, 2}, -1, PATIENCE, "node n9 and 1 more did not answer"},
        {0, 0, 0, {3, 3}, -1, PATIENCE, "node n9 and 2 more did not answer"},
        {0, 0, 0, {2, 2}, -1, -1, NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct run run;
        struct err err;
        struct run_config c = rig_config(5, 1, 3);
        int64_t begins = -1, ends = -1;
        int asked = 0;
        c.start_patience_ms = PATIENCE;
        c.least_data = table[i].least_data;
        assert_int_equal(run_open(&run, &c, 0, &err), 0);
        for (int k = 0; k < table[i].come; k++)
            comes(&run, k, 0);
        if (table[i].lost)
            run_closed(&run, 0, 0);
        for (int64_t t = 0; t < ASKED * PATIENCE / 2 && begins < 0 && ends < 0; t += BEAT) {
            waits(&run, t, t);
            if (run.asked > asked && table[i].absent[asked++] >= 0)
                run_absent(&run, "n9", table[i].absent[asked - 1], t);
            run_tick(&run, t);
            if (run_complete(&run))
                begins = t;
            if (run.phase == RUN_ENDED)
                ends = t;
        }
        if (begins != table[i].begins || ends != table[i].ends)
            fail_msg("row %zu: begins %lld, ends %lld, not %lld, %lld", i, (long long)begins,
                     (long long)ends, (long long)table[i].begins, (long long)table[i].ends);
        assert_int_equal(run.machine, table[i].ends >= 0);
        if (table[i].text)
            assert_non_null(strstr(run.text, table[i].text));
        run_close(&run);
    }
}

/* Nobody is asked where nobody is missing, or no such time is set; each that comes has its own. */
static void who_is_asked_for(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(3, 1, 3);
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    comes(&run, 0, 0);
    assert_int_equal(waits(&run, 0, 60000), 60000);
    assert_int_equal(run.asked, 0);
    run_close(&run);
    c.start_patience_ms = 4000;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    comes(&run, 0, 0);
    assert_int_equal(waits(&run, 0, 1900), 1900);
    comes(&run, 1, 1900);
    assert_int_equal(waits(&run, 1900, 3800), 3800);
    assert_int_equal(run.asked, 0);
    waits(&run, 3800, 3900);
    assert_int_equal(run.asked, 1);
    run_absent(&run, "n2", 1, 3900);
    comes(&run, 2, 5000); /* it was only slow */
    assert_int_equal(waits(&run, 5000, 60000), 5000);
    assert_int_equal(run_complete(&run), 1);
    run_absent(&run, "n2", 1, 5000);
    run_absent(&run, "n2", 1, 5000);
    assert_int_equal(run.cause, RUN_CAUSE_NONE);
    run_close(&run);
}

/* A node is lost again while the others are waited for: with too few it does not begin. */
static void never_with_too_few(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(4, 1, 2);
    c.start_patience_ms = 3000;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    comes(&run, 0, 0);
    comes(&run, 1, 0);
    assert_int_equal(waits(&run, 0, 2000), 2000);
    run_closed(&run, 1, 2000);
    assert_int_equal(waits(&run, 2000, 10000), 10000);
    comes(&run, 2, 10000); /* enough again, and the time begins anew */
    assert_int_equal(waits(&run, 10000, 20000), 13000);
    assert_int_equal(run_place(&run, &err), 0);
    rig_runs(&run, 13000, 1, "n0 n2");
    run_close(&run);
}

/* Who comes after all is a spare, and takes over. */
static void late_ones_are_spares(void **state)
{
    (void)state;
    struct run run;
    struct err err;
    struct run_config c = rig_config(3, 1, 2);
    struct message_register wrong = rig_node(2, 4), more = rig_node(3, 1);
    c.start_patience_ms = 3000;
    assert_int_equal(run_open(&run, &c, 0, &err), 0);
    comes(&run, 0, 0);
    comes(&run, 1, 0);
    assert_int_equal(waits(&run, 0, 9000), 3000);
    assert_int_equal(run_place(&run, &err), 0);
    assert_int_equal(run_spares(&run), 0);
    assert_int_equal(run_register(&run, &wrong, 3500, &err), -1); /* and the run goes on */
    comes(&run, 2, 3600);
    assert_int_equal(run_spares(&run), 1);
    assert_int_equal(run_register(&run, &more, 3600, &err), -1);
    assert_string_equal(err.text, "node n3 is one too many: the step has 3");
    rig_runs(&run, 3600, 1, "n0 n1");
    run_closed(&run, 0, 3700);
    rig_runs(&run, 3700, 2, "n2 n1");
    run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strange_registrations),
        cmocka_unit_test(nodes_that_never_come),
        cmocka_unit_test(fewer_replicas_from_the_start),
        cmocka_unit_test(lost_at_the_start),
        cmocka_unit_test(lost_before_all_came),
        cmocka_unit_test(spares_have_their_time),
        cmocka_unit_test(never_with_too_few),
        cmocka_unit_test(absent_ones_are_not_waited_for),
        cmocka_unit_test(who_is_asked_for),
        cmocka_unit_test(late_ones_are_spares),
    };
    return cmocka_run_group_tests_name("launch start", tests, NULL, NULL);
}
