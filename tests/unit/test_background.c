/* test_background.c - work that goes on behind its caller, between ranks that are threads here: how
 * it ends well, how it fails, and who hears of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <semaphore.h>
#include <time.h>

#include "train/background.h"

enum { WORLD = 3, ROUNDS = 40, PATIENCE_MS = 60000, TAG = 5 };

/* One rank: what it is to do, and what it saw. */
struct rank {
    struct background b;
    int rank;
    int fails_at; /* round, -1: none */
    int slow_us;  /* a round */
    bool mute;    /* it does nothing, until somebody posts */
    sem_t go;
    long sum;   /* of what came */
    int pieces; /* that a mute one has done */
};

struct world {
    struct comm_hub *hub;
    struct kernels *k;
    struct rank ranks[WORLD];
};

static int in_a_circle(struct background *b, void *arg, struct err *err)
{
    struct rank *r = arg;
    int to = (r->rank + 1) % WORLD, from = (r->rank + WORLD - 1) % WORLD;
    if (r->mute) {
        sem_wait(&r->go);
        r->pieces++;
        return 0;
    }
    for (int i = 0; i < ROUNDS; i++) {
        int64_t out = r->rank * 1000 + i, in = -1;
        if (i == r->fails_at)
            return err_set(err, "the disk of rank %d is gone", r->rank);
        if (r->slow_us)
            nanosleep(&(struct timespec){.tv_nsec = r->slow_us * 1000L}, NULL);
        if (comm_host_exchange(b->comm, &out, sizeof out, to, &in, sizeof in, from, TAG, err))
            return -1;
        r->sum += in;
        background_moved(b);
    }
    return 0;
}

static int make(void **state)
{
    static struct world w;
    struct err err;
    memset(&w, 0, sizeof w);
    w.hub = comm_hub_open(WORLD, &err);
    w.k = kernels_open_cpu(1, &err);
    assert_true(w.hub && w.k);
    for (int i = 0; i < WORLD; i++) {
        struct rank *r = &w.ranks[i];
        r->rank = i;
        r->fails_at = -1;
        sem_init(&r->go, 0, 0);
        struct comm *comm = comm_open_local(w.hub, w.k, i, &err);
        assert_non_null(comm);
        if (background_open(&r->b, comm, in_a_circle, r, &err))
            fail_msg("%s", err.text);
    }
    *state = &w;
    return 0;
}

static int drop(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < WORLD; i++) {
        background_close(&w->ranks[i].b, false, 0);
        sem_destroy(&w->ranks[i].go);
    }
    comm_hub_close(w->hub);
    kernels_close(w->k);
    return 0;
}

static void begin(struct rank *r)
{
    struct err err;
    if (background_begin(&r->b, &err))
        fail_msg("rank %d: %s", r->rank, err.text);
}

static void fails(struct rank *r, int64_t patience_ms, const char *says)
{
    struct err err = {{0}};
    assert_int_equal(background_wait(&r->b, patience_ms, &err), -1);
    if (!strstr(err.text, says))
        fail_msg("rank %d: '%s' does not say '%s'", r->rank, err.text, says);
}

static void ends_well(struct rank *r, int pieces)
{
    struct err err;
    if (background_wait(&r->b, PATIENCE_MS, &err))
        fail_msg("rank %d: %s", r->rank, err.text);
    long from = (r->rank + WORLD - 1) % WORLD;
    assert_int_equal(r->sum, pieces * (from * 1000 * ROUNDS + ROUNDS * (ROUNDS - 1) / 2));
    assert_int_equal(background_check(&r->b, &err), 0);
    assert_true(background_ns(&r->b) > 0);
    assert_false(background_lost_peers(&r->b));
}

/* Ranks of unlike speed that begin at unlike times: each begins the next piece when its own is
 * over, whatever the others do. */
static void unlike_ranks(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < WORLD; i++)
        w->ranks[i].slow_us = i * 200;
    for (int piece = 1; piece <= 4; piece++)
        for (int i = 0; i < WORLD; i++) {
            struct rank *r = &w->ranks[(i + piece) % WORLD];
            if (piece > 1) /* its neighbours may be at the one before still */
                ends_well(r, piece - 1);
            begin(r);
        }
    for (int i = 0; i < WORLD; i++)
        ends_well(&w->ranks[i], 4);
}

/* It was never begun: there is nothing to wait for. */
static void nothing_under_way(void **state)
{
    struct world *w = *state;
    struct err err;
    assert_int_equal(background_wait(&w->ranks[0].b, 0, &err), 0);
    assert_int_equal(background_check(&w->ranks[0].b, &err), 0);
    assert_int_equal(background_ns(&w->ranks[0].b), 0);
    background_close(&w->ranks[0].b, true, PATIENCE_MS);
}

/* Those that are begun meanwhile come after it. */
static void one_piece_at_a_time(void **state)
{
    struct world *w = *state;
    struct err err = {{0}};
    struct rank *r = &w->ranks[0];
    r->mute = true;
    for (int i = 0; i < 3; i++)
        begin(r);
    fails(r, 1, "nothing has moved for 1 ms");
    for (int i = 0; i < 3; i++)
        sem_post(&r->go);
    assert_int_equal(background_wait(&r->b, PATIENCE_MS, &err), 0);
    assert_int_equal(r->pieces, 3);
}

/* What waits behind a piece that fails, or that nobody waits for any more, is not done. */
static void what_waits_is_given_up(void **state)
{
    struct world *w = *state;
    struct rank *failing = &w->ranks[0], *closed = &w->ranks[1];
    failing->fails_at = 0;
    begin(failing);
    struct err unused;
    background_begin(&failing->b, &unused); /* too late, or in vain */
    fails(failing, PATIENCE_MS, "the disk of rank 0 is gone");
    assert_int_equal(failing->sum, 0);
    closed->mute = true;
    begin(closed);
    begin(closed);
    sem_post(&closed->go); /* for the first; close would hang in the second */
    while (!background_ns(&closed->b))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    sem_post(&closed->go);
    background_close(&closed->b, false, 0);
    assert_in_range(closed->pieces, 1, 2);
}

/* Who fails says why, and nobody who waits for it is left waiting; it knows that it was itself, and
 * they that it was not they. */
static void failure_is_told(void **state)
{
    struct world *w = *state;
    struct err err = {{0}};
    w->ranks[1].fails_at = ROUNDS / 2;
    for (int i = 0; i < WORLD; i++)
        begin(&w->ranks[i]);
    for (int i = 0; i < WORLD; i++)
        fails(&w->ranks[i], PATIENCE_MS, "the disk of rank 1 is gone");
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(background_lost_peers(&w->ranks[i].b), i != 1);
        assert_int_equal(background_check(&w->ranks[i].b, &err), -1);
        assert_int_equal(background_begin(&w->ranks[i].b, &err), -1);
        assert_non_null(strstr(err.text, "the disk of rank 1 is gone"));
    }
}

/* A rank that ends while the others wait for it, and one that ends while it waits itself. */
static void ending_lets_others_go(void **state)
{
    struct world *w = *state;
    begin(&w->ranks[0]); /* waits for the other two */
    begin(&w->ranks[1]);
    background_close(&w->ranks[0].b, false, 0);
    fails(&w->ranks[1], PATIENCE_MS, "rank 0");
    assert_true(background_lost_peers(&w->ranks[1].b));
}

/* An orderly end waits for what is under way. */
static void orderly_end(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < WORLD; i++)
        begin(&w->ranks[i]);
    for (int i = 0; i < WORLD; i++) {
        background_close(&w->ranks[i].b, true, PATIENCE_MS);
        long from = (i + WORLD - 1) % WORLD;
        assert_int_equal(w->ranks[i].sum, from * 1000 * ROUNDS + ROUNDS * (ROUNDS - 1) / 2);
    }
}

#define world_test(f) cmocka_unit_test_setup_teardown(f, make, drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        world_test(unlike_ranks),        world_test(nothing_under_way),
        world_test(one_piece_at_a_time), world_test(what_waits_is_given_up),
        world_test(failure_is_told),     world_test(ending_lets_others_go),
        world_test(orderly_end),
    };
    return cmocka_run_group_tests_name("background", tests, NULL, NULL);
}
