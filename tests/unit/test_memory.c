/* test_memory.c - states in memory slots: what is whole, what stays, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "memory_rig.h"

enum { WAIT_MS = 60000 };

/* ---- the rank's own ---- */

static char *read_file(const char *path, size_t bytes)
{
    char *data = malloc(bytes + 1);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(data, 1, bytes + 1, f), bytes);
    fclose(f);
    return data;
}

static void same_as_file(bool stands)
{
    static struct rig r;
    struct err err;
    struct ckpt *c;
    struct ckpt_place place;
    struct ckpt_memory_head head;
    char dir[] = "/tmp/gtrain-memory-XXXXXX", command[64];
    rig_begin(&r, 1);
    r.stands = stands;
    rig_take(&r, 1, 5);
    assert_non_null(mkdtemp(dir));
    struct ckpt_options o = {.dir = dir,
                             .node = "n0",
                             .run_id = "run",
                             .rank = 1,
                             .world = WORLD,
                             .epoch = 3,
                             .generation = 1,
                             .plan_hash = 77,
                             .keep = 2,
                             .leader = true};
    struct ckpt_io io = rig_io(&r);
    rig_check(ckpt_open(&c, &o, rig_tensors, RIG_TENSORS, &io, &err), &err);
    rig_check(ckpt_save(c, &(struct ckpt_position){5, 40}, NULL, &err), &err);
    rig_check(ckpt_wait(c, clock_ms() + WAIT_MS, &err), &err);
    rig_check(ckpt_own_file(c, 5, &place, &err), &err);
    const void *image = ckpt_memory_image(r.m, &head);
    assert_int_equal(head.bytes, place.bytes);
    assert_int_equal(head.digest, place.digest);
    char *data = read_file(place.path, (size_t)place.bytes);
    assert_memory_equal(data, image, (size_t)place.bytes);
    free(data);
    free(place.node);
    free(place.path);
    ckpt_close(c, clock_ms() + WAIT_MS);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    rig_end(&r);
}

static void image_is_the_file(void **state)
{
    (void)state;
    same_as_file(false);
    same_as_file(true);
}

/* Killed between any two calls: what was whole before is so still, what was being filled is not. */
static void killed_while_filling(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++) {
        int calls = way / 2;
        static struct rig r;
        struct err err;
        struct ckpt_key key = {3, 1, 7};
        rig_begin(&r, 0);
        r.stands = way % 2;
        rig_take(&r, 1, 5);
        rig_confirm(&r, 1, 5, -1);
        rig_take(&r, 1, 6);
        rig_confirm(&r, 1, 6, -1);
        rig_check(ckpt_memory_begin(r.m, &key, 56, &err), &err);
        for (int i = 0; i < calls && i < 2; i++)
            rig_check(ckpt_memory_copy(r.m, i, &err), &err);
        if (calls == 3)
            rig_check(ckpt_memory_seal(r.m, "", &err), &err);
        rig_reopen(&r, 0, 2);
        assert_int_equal(rig_lines(&r), calls == 3 ? 2 : 1);
        assert_true(rig_has(&r, 1, 6));
        assert_false(ckpt_memory_find(r.m, &(struct ckpt_key){3, 1, 5}));
        rig_end(&r);
    }
}

static void what_is_needed_stays(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    rig_take(&r, 1, 6);
    assert_int_equal(rig_try_take(&r, 1, 7, "", &err), -1); /* nothing is confirmed */
    assert_string_equal(err.text, "no slot is free for a snapshot of step 7");
    assert_true(rig_has(&r, 1, 5) && rig_has(&r, 1, 6));
    rig_confirm(&r, 1, 6, -1);
    rig_take(&r, 1, 7);
    assert_true(rig_has(&r, 1, 6) && rig_has(&r, 1, 7));
    /* the next generation was restored from 6 */
    rig_reopen(&r, 0, 2);
    ckpt_memory_keep(r.m, &(struct ckpt_key){3, 1, 6});
    rig_take(&r, 2, 7);
    assert_true(rig_has(&r, 1, 6) && rig_has(&r, 2, 7));
    rig_end(&r);
}

/* Another run's, another launch's, another plan's; and none of them is touched by looking. */
static void strangers(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    struct ckpt_memory_options o = {.fds = r.fds,
                                    .node = "n0",
                                    .run_id = "run",
                                    .world = WORLD,
                                    .epoch = 4,
                                    .generation = 2,
                                    .plan_hash = 77};
    struct ckpt_io io = rig_io(&r);
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    ckpt_memory_close(r.m);
    rig_check(ckpt_memory_open(&r.m, &o, rig_tensors, RIG_TENSORS, &io, &err), &err);
    assert_int_equal(rig_lines(&r), 0); /* memory does not outlive a launch */
    ckpt_memory_close(r.m);
    o.epoch = 3;
    o.run_id = "other";
    rig_check(ckpt_memory_open(&r.m, &o, rig_tensors, RIG_TENSORS, &io, &err), &err);
    assert_int_equal(rig_lines(&r), 0);
    rig_reopen(&r, 1, 2); /* as another rank: it is there, but not as the own */
    assert_int_equal(rig_lines(&r), 1);
    assert_false(ckpt_memory_find(r.m, &(struct ckpt_key){3, 1, 5}));
    rig_reopen(&r, 0, 2);
    assert_true(rig_has(&r, 1, 5));
    rig_end(&r);
}

static void forgotten(void **state)
{
    (void)state;
    static struct rig r;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    rig_take(&r, 1, 6);
    ckpt_memory_forget(r.m);
    rig_reopen(&r, 0, 2);
    assert_int_equal(rig_lines(&r), 0);
    rig_end(&r);
}

/* ---- the ward's ---- */

static int send_as(struct rig *from, struct rig *to, const struct ckpt_memory_head *head,
                   const struct ckpt_key *key, int64_t flip, int64_t cut, struct err *err)
{
    struct ckpt_memory_head unused;
    const char *image = ckpt_memory_image(from->m, &unused);
    int64_t bytes = unused.bytes - cut;
    int rv = ckpt_memory_ward_begin(to->m, head, 1, key, err);
    for (int64_t at = 0; !rv && at < bytes; at += 100000) {
        int64_t n = bytes - at < 100000 ? bytes - at : 100000;
        char *piece = ckpt_memory_ward_next(to->m, n, err);
        if (!piece) {
            rv = -1;
            break;
        }
        memcpy(piece, image + at, (size_t)n);
        if (flip >= at && flip < at + n)
            piece[flip - at] ^= 1;
    }
    return rv ? rv : ckpt_memory_ward_end(to->m, err);
}

static void copies(void **state)
{
    (void)state;
    static struct rig a, b; /* a is rank 1, b keeps its copies */
    struct err err;
    struct ckpt_memory_head head;
    struct ckpt_key key = {3, 1, 5};
    rig_begin(&a, 1);
    rig_begin(&b, 0);
    rig_check(rig_try_take(&a, 1, 5, "5:ab,c-d", &err), &err);
    ckpt_memory_image(a.m, &head);
    rig_check(send_as(&a, &b, &head, &key, -1, 0, &err), &err);
    assert_true(ckpt_memory_find_ward(b.m, &key, 1));
    rig_reopen(&b, 0, 2); /* as somebody else finds it */
    assert_true(ckpt_memory_find_ward(b.m, &key, 1));
    assert_false(ckpt_memory_find_ward(b.m, &key, 0));
    char *text = ckpt_memory_scan(b.m, &err);
    assert_non_null(strstr(text, " rank=1 node=n0 "));
    assert_non_null(strstr(text, " note=5:ab,c-d\n"));
    free(text);
    rig_end(&a);
    rig_end(&b);
}

static void wrong_copies_are_refused(void **state)
{
    (void)state;
    static struct rig a, b;
    struct err err;
    struct ckpt_memory_head good, h;
    struct ckpt_key key = {3, 1, 5};
    rig_begin(&a, 1);
    rig_begin(&b, 0);
    rig_take(&a, 1, 5);
    ckpt_memory_image(a.m, &good);
#define REFUSED(change)                                                                            \
    h = good;                                                                                      \
    change;                                                                                        \
    assert_int_equal(send_as(&a, &b, &h, &key, -1, 0, &err), -1);                                  \
    assert_int_equal(rig_lines(&b), 0)
    REFUSED(h.rank = 0);
    REFUSED(h.world = 3);
    REFUSED(h.epoch = 2);
    REFUSED(h.generation = 2);
    REFUSED(h.step = 4);
    REFUSED(h.samples = -1);
    REFUSED(h.samples = 41); /* not what the image says */
    REFUSED(h.plan_hash = 78);
    REFUSED(h.digest ^= 1);
    REFUSED(h.bytes = 0);
    REFUSED(h.bytes = -1);
    REFUSED(h.bytes = INT64_MAX);
    REFUSED(h.bytes = good.bytes - 1);
    REFUSED(h.bytes = good.bytes + 1);
    REFUSED(memset(h.note, 'a', sizeof h.note));
    REFUSED(strcpy(h.note, "a b"));
    REFUSED(strcpy(h.note, "a\nb"));
    const int64_t flips[] = {0, 8, 300, 5000, good.bytes / 2, good.bytes - 1};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        assert_int_equal(send_as(&a, &b, &good, &key, flips[i], 0, &err), -1);
        assert_int_equal(rig_lines(&b), 0);
    }
    assert_int_equal(send_as(&a, &b, &good, &key, -1, 4096, &err), -1);
    assert_int_equal(rig_lines(&b), 0);
    rig_check(send_as(&a, &b, &good, &key, -1, 0, &err), &err);
    assert_int_equal(rig_lines(&b), 1);
    rig_end(&a);
    rig_end(&b);
}

/* A rank that keeps copies for another one now: both copies of the restored state are needed until
 * all have confirmed it, then the old one goes. */
static void another_ward(void **state)
{
    (void)state;
    static struct rig a, b;
    struct err err;
    struct ckpt_memory_head head;
    struct ckpt_key old = {3, 1, 5}, next = {3, 2, 6};
    rig_begin(&a, 1);
    rig_begin(&b, 0);
    rig_take(&a, 1, 5);
    ckpt_memory_image(a.m, &head);
    rig_check(send_as(&a, &b, &head, &old, -1, 0, &err), &err);
    rig_reopen(&b, 0, 2);
    ckpt_memory_keep(b.m, &old);
    /* the same state again, into the other slot: as if it came from another rank */
    rig_check(send_as(&a, &b, &head, &old, -1, 0, &err), &err);
    assert_int_equal(rig_lines(&b), 2);
    rig_reopen(&a, 1, 2);
    rig_take(&a, 2, 6);
    ckpt_memory_image(a.m, &head);
    assert_int_equal(send_as(&a, &b, &head, &next, -1, 0, &err), -1); /* both are needed */
    ckpt_memory_confirm(b.m, &old, 9);                                /* no ward of ours */
    assert_int_equal(rig_lines(&b), 0);
    rig_check(send_as(&a, &b, &head, &next, -1, 0, &err), &err);
    rig_end(&a);
    rig_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_is_the_file),
        cmocka_unit_test(killed_while_filling),
        cmocka_unit_test(what_is_needed_stays),
        cmocka_unit_test(strangers),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(copies),
        cmocka_unit_test(wrong_copies_are_refused),
        cmocka_unit_test(another_ward),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
