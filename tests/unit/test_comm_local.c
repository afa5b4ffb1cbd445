/* The local backend: ranks as threads of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm_cases.h"

static void *hub_open(int world)
{
    struct err err;
    return comm_hub_open(world, &err);
}

static void hub_close(void *hub)
{
    comm_hub_close(hub);
}

static struct comm *hub_join(void *hub, struct kernels *k, int rank, int world, struct err *err)
{
    (void)world;
    return comm_open_local(hub, k, rank, err);
}

static const struct backend local = {hub_open, hub_close, hub_join, 0};

static void all_worlds(comm_case run, int from)
{
    for (int world = from; world <= 8; world++)
        assert_int_equal(run_threads(&local, world, run), 0);
}

#define ALL_WORLDS(name, from)                                                                     \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        all_worlds(case_##name, from);                                                             \
    }

ALL_WORLDS(all_reduce, 1)
ALL_WORLDS(reduce_scatter, 1)
ALL_WORLDS(all_gather, 1)
ALL_WORLDS(all_to_all, 1)
ALL_WORLDS(broadcast, 1)
ALL_WORLDS(host, 1)
ALL_WORLDS(two_streams, 1)
ALL_WORLDS(soak, 2)
ALL_WORLDS(size_mismatch, 2)
ALL_WORLDS(abort, 2)
ALL_WORLDS(peer_closes, 2)
ALL_WORLDS(bad_arguments, 1)

static void test_mesh_groups(void **state)
{
    (void)state;
    assert_int_equal(run_threads(&local, 8, case_mesh_groups), 0);
}

/* A device that keeps operations back until it must not: a missing sync is a wrong number. */
static void test_deferred_device(void **state)
{
    (void)state;
    static const comm_case cases[] = {case_all_reduce, case_reduce_scatter, case_all_gather,
                                      case_all_to_all, case_broadcast,      case_two_streams,
                                      case_soak};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct backend deferred = {hub_open, hub_close, hub_join, seed * 1000};
            assert_int_equal(run_threads(&deferred, 3, cases[i]), 0);
        }
}

static void test_deadline(void **state)
{
    (void)state;
    assert_int_equal(run_threads(&local, 2, case_deadline), 0);
    assert_int_equal(run_threads(&local, 5, case_deadline), 0);
}

static void test_rank_opened_twice(void **state)
{
    (void)state;
    struct err err = {""};
    struct comm_hub *hub = comm_hub_open(2, &err);
    struct kernels *k = kernels_open_cpu(1, &err);
    struct comm *c = comm_open_local(hub, k, 1, &err);
    assert_non_null(c);
    assert_null(comm_open_local(hub, k, 1, &err));
    assert_string_equal(err.text, "comm: rank 1 of this hub is open already");
    assert_null(comm_open_local(hub, k, 2, &err));
    assert_string_equal(err.text, "comm: rank 2 is not in a world of 2");
    comm_close(c);
    kernels_close(k);
    comm_hub_close(hub);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_broadcast),         cmocka_unit_test(test_host),
        cmocka_unit_test(test_two_streams),       cmocka_unit_test(test_soak),
        cmocka_unit_test(test_mesh_groups),       cmocka_unit_test(test_size_mismatch),
        cmocka_unit_test(test_deadline),          cmocka_unit_test(test_abort),
        cmocka_unit_test(test_peer_closes),       cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_rank_opened_twice), cmocka_unit_test(test_deferred_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
