/* The UCX backend with ranks as processes: shared memory between them, and death by SIGKILL. This
 * process itself only forks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
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

/* Rank 1 dies before anybody has a connection to it: what they would share is gone. */
static int case_killed_early(struct rank *r)
{
    char byte = 0;
    if (r->rank == 1)
        raise(SIGKILL);
    usleep(200000);
    int rv = comm_host_send(r->comm, &byte, 1, 1, 7, &r->err);
    return rv || comm_host_recv(r->comm, &byte, 1, 1, 8, &r->err) ? 0 : -1;
}

/* What the ranks write while this is on goes to a file; stop() hands back its bytes. */
static int saved[2];

static FILE *capture(void)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(1 + i);
        assert_int_not_equal(dup2(fileno(f), 1 + i), -1);
    }
    return f;
}

static size_t stop(FILE *f, char *text, size_t size)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], 1 + i);
        close(saved[i]);
    }
    rewind(f);
    size_t n = fread(text, 1, size - 1, f);
    text[n] = 0;
    fclose(f);
    return n;
}

/* And not a word of UCX about it: a program's output is its own. */
static void test_killed_early_peer(void **state)
{
    char text[4096];
    (void)state;
    FILE *f = capture();
    int rv = run_processes(3, case_killed_early, PATIENCE_S, 1);
    if (stop(f, text, sizeof text) || rv)
        fail_msg("%d, and these lines: %s", rv, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_mesh_groups),
        cmocka_unit_test(test_soak),
        cmocka_unit_test(test_size_mismatch),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_peer_closes),
        cmocka_unit_test(test_killed_peer),
        cmocka_unit_test(test_killed_silent_peer),
        cmocka_unit_test(test_killed_early_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
