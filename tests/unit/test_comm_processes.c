/* The UCX backend with ranks as processes: shared memory between them, and death by SIGKILL. This
 * process itself only forks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ucx_world.h"

/* Only a hang gets that far. */
#define PATIENCE_S 120

#define WORLDS(name, ...)                                                                          \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        static const int sizes[] = {__VA_ARGS__};                                                  \
        (void)state;                                                                               \
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)                                \
            assert_int_equal(run_processes(sizes[i], case_##name, PATIENCE_S, -1), 0);             \
    }

WORLDS(all_reduce, 2, 3, 8)
WORLDS(reduce_scatter, 3)
WORLDS(all_to_all, 3)
WORLDS(host, 2, 5)
WORLDS(mesh_groups, 8)
WORLDS(soak, 2, 8)
WORLDS(size_mismatch, 2)
WORLDS(deadline, 2, 3)
WORLDS(abort, 3)
WORLDS(peer_closes, 4)

/* Rank 1 dies in the middle of all-reduces. Every other rank must get an error, long before its
 * deadline of a minute, and be able to close. */
static int case_killed(struct rank *r)
{
    int ranks[16];
    for (int i = 0; i < r->world; i++)
        ranks[i] = i;
    struct comm_group g = {5, r->world, r->rank, ranks};
    struct kbuf buf;
    if (kernels_alloc(r->k, K_F32, 100000, &buf, &r->err))
        return -1;
    int64_t start_ms = clock_ms();
    for (int i = 0; clock_ms() - start_ms < 50000; i++) {
        if (r->rank == 1 && i == 10)
            raise(SIGKILL);
        if (comm_all_reduce(r->comm, &g, r->stream, buf, COMM_SUM, &r->err))
            return strstr(r->err.text, "rank ") ? 0 : -1;
    }
    return err_set(&r->err, "no error after rank 1 was killed");
}

static void test_killed_peer(void **state)
{
    (void)state;
    assert_int_equal(run_processes(2, case_killed, PATIENCE_S, 1), 0);
    assert_int_equal(run_processes(5, case_killed, PATIENCE_S, 1), 0);
}

/* The same while the others only receive from it: nothing of theirs is on its way to the dead. */
static int case_killed_silent(struct rank *r)
{
    char byte = 0;
    if (r->rank != 1)
        return comm_host_recv(r->comm, &byte, 1, 1, 8, &r->err) == -1 ? 0 : -1;
    for (int i = 0; i < r->world; i++) /* connected, but nothing that they wait for */
        if (i != 1 && comm_host_send(r->comm, &byte, 1, i, 7, &r->err))
            return -1;
    usleep(200000);
    raise(SIGKILL);
    return 0;
}

static void test_killed_silent_peer(void **state)
{
    (void)state;
    assert_int_equal(run_processes(3, case_killed_silent, PATIENCE_S, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),    cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_to_all),    cmocka_unit_test(test_host),
        cmocka_unit_test(test_mesh_groups),   cmocka_unit_test(test_soak),
        cmocka_unit_test(test_size_mismatch), cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_abort),         cmocka_unit_test(test_peer_closes),
        cmocka_unit_test(test_killed_peer),   cmocka_unit_test(test_killed_silent_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
