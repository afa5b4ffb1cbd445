/* The UCX backend over loopback, ranks as threads of this process, each with its own worker: so
 * nothing in it may be global. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "ucx_world.h"

static void worlds(comm_case run, const int *sizes, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(run_threads(&ucx_backend, sizes[i], run), 0);
}

#define WORLDS(name, ...)                                                                          \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        static const int sizes[] = {__VA_ARGS__};                                                  \
        (void)state;                                                                               \
        worlds(case_##name, sizes, (int)(sizeof sizes / sizeof sizes[0]));                         \
    }

WORLDS(all_reduce, 1, 2, 3, 4, 5, 6, 7, 8)
WORLDS(reduce_scatter, 1, 2, 3, 5, 8)
WORLDS(all_gather, 1, 2, 3, 5, 8)
WORLDS(all_to_all, 1, 2, 3, 5, 8)
WORLDS(broadcast, 1, 2, 3, 5, 8)
WORLDS(host, 1, 2, 3, 5, 8)
WORLDS(two_streams, 2, 5)
WORLDS(mesh_groups, 8)
WORLDS(soak, 2, 3, 8)
WORLDS(size_mismatch, 2, 3)
WORLDS(deadline, 2, 4)
WORLDS(abort, 2, 4)
WORLDS(peer_closes, 2, 4)
WORLDS(bad_arguments, 1, 3)

/* Addresses when they are needed, or from a peer's hello, whichever is first. */
static void test_addresses_are_found(void **state)
{
    (void)state;
    static const comm_case cases[] = {case_all_reduce, case_host,  case_soak,
                                      case_deadline,   case_abort, case_peer_closes};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int world = 2; world <= 5; world += 3)
            assert_int_equal(run_threads(&ucx_find_backend, world, cases[i]), 0);
}

/* Nobody tells: an error that names the rank, and no wait. */
static void test_address_is_unknown(void **state)
{
    (void)state;
    struct err err = {""};
    const void *address;
    size_t bytes[2];
    unsigned char copy[4096];
    void *known[2] = {copy, NULL};
    struct kernels *k = kernels_open_cpu(1, &err);
    struct comm *c = comm_open_ucx(k, 0, 2, 1, "127.0.0.1", &address, &bytes[0], &err);
    assert_non_null(c);
    memcpy(copy, address, bytes[0]);
    assert_int_equal(comm_connect_ucx(c, known, bytes, &err), 0);
    assert_int_equal(comm_host_send(c, "x", 1, 1, 3, &err), -1);
    assert_string_equal(err.text, "rank 0: no address of rank 1: nobody has told it");
    comm_close(c);
    kernels_close(k);
}

/* Two ranks by hand, which think themselves in these generations. */
struct two {
    struct kernels *k;
    struct comm *comm[2];
};

static void open_two(struct two *t, uint32_t generation0, uint32_t generation1)
{
    struct err err = {""};
    const void *address[2];
    size_t bytes[2];
    t->k = kernels_open_cpu(1, &err);
    t->comm[0] = comm_open_ucx(t->k, 0, 2, generation0, "127.0.0.1", &address[0], &bytes[0], &err);
    t->comm[1] = comm_open_ucx(t->k, 1, 2, generation1, "127.0.0.1", &address[1], &bytes[1], &err);
    assert_non_null(t->comm[0]);
    assert_non_null(t->comm[1]);
    unsigned char copies[2][4096];
    void *copy[2] = {copies[0], copies[1]};
    memcpy(copies[0], address[0], bytes[0]);
    memcpy(copies[1], address[1], bytes[1]);
    for (int r = 0; r < 2; r++)
        assert_int_equal(comm_connect_ucx(t->comm[r], copy, bytes, &err), 0);
}

static void close_two(struct two *t)
{
    comm_close(t->comm[0]);
    comm_close(t->comm[1]);
    kernels_close(t->k);
}

/* A message of an older generation is not taken for one of this, short or long. */
static void test_older_generation_is_dropped(void **state)
{
    (void)state;
    struct two t;
    struct err err = {""};
    char out[100] = "old", in[100] = "";
    open_two(&t, 6, 7);
    assert_int_equal(comm_host_send(t.comm[0], out, sizeof out, 1, 3, &err), 0);
    comm_set_timeout_ms(t.comm[1], 1500); /* longer than it takes to sweep */
    assert_int_equal(comm_host_recv(t.comm[1], in, sizeof in, 0, 3, &err), -1);
    assert_non_null(strstr(err.text, "rank 1: no message from rank 0 (host tag 3, 100 bytes)"));
    assert_string_equal(in, "");
    close_two(&t);
}

/* A message that was sent goes out while its sender computes: it is not in a call of comm.h. */
static void test_send_progresses_without_its_sender(void **state)
{
    (void)state;
    struct two t;
    struct err err = {""};
    struct comm_request *req;
    struct kbuf out, in;
    open_two(&t, 1, 1);
    assert_int_equal(kernels_alloc(t.k, K_F32, 1 << 20, &out, &err), 0);
    assert_int_equal(kernels_alloc(t.k, K_F32, 1 << 20, &in, &err), 0);
    assert_int_equal(comm_send(t.comm[0], NULL, out, 1, 2, &req, &err), 0);
    struct comm_request *arrived;
    assert_int_equal(comm_recv(t.comm[1], NULL, in, 0, 2, &arrived, &err), 0);
    assert_int_equal(comm_wait(t.comm[1], &arrived, &err), 0);
    assert_int_equal(comm_wait(t.comm[0], &req, &err), 0);
    close_two(&t);
}

/* A message is coming in, and its receiver gives up, frees the buffer and closes. Large, so that it
 * takes long, and is memory that is unmapped when it is freed. */
static void give_up_what_is_coming(void)
{
    enum { COUNT = 32 << 20 };
    struct two t;
    struct err err = {""};
    struct comm_request *sent, *coming;
    struct kbuf out, in;
    open_two(&t, 1, 1);
    struct kstream *stream = kernels_stream_open(t.k, &err);
    assert_int_equal(kernels_alloc(t.k, K_F32, COUNT, &out, &err), 0);
    assert_int_equal(kernels_alloc(t.k, K_F32, COUNT, &in, &err), 0);
    KSUBMIT(t.k, stream, FILL, fill, .out = out, .value = 1);
    assert_int_equal(comm_recv(t.comm[1], stream, in, 0, 2, &coming, &err), 0);
    assert_int_equal(comm_send(t.comm[0], stream, out, 1, 2, &sent, &err), 0);
    const volatile float *first = kernels_address(t.k, in); /* memory of a CPU */
    int64_t deadline_ms = clock_ms() + 60000;
    while (*first != 1)
        assert_true(clock_ms() < deadline_ms);
    comm_abort(t.comm[1], "enough");
    kernels_free(t.k, &in);
    comm_close(t.comm[1]);
    comm_abort(t.comm[0], "enough");
    kernels_free(t.k, &out);
    comm_close(t.comm[0]);
    kernels_stream_close(t.k, stream);
    kernels_close(t.k);
}

/* In a process of its own, which ends as a failed rank's does: what UCX will not give back goes
 * with it. These are the first tests, as UCX has no threads yet. */
static void in_a_child(void (*run)(void))
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Nothing is written there any more. */
static void test_gives_up_what_is_coming(void **state)
{
    (void)state;
    in_a_child(give_up_what_is_coming);
}

/* Ranks that fail while they are still being connected, at various moments, over TCP, where that
 * takes longest. */
static void give_up_while_connecting(void)
{
    enum { TRIES = 20, STEP_NS = 300000, COUNT = 1 << 20 };
    setenv("UCX_TLS", "tcp,self", 1);
    for (int i = 0; i < TRIES; i++) {
        struct two t;
        struct err err = {""};
        struct comm_request *sent, *coming;
        struct kbuf out, in;
        open_two(&t, 1, 1);
        assert_int_equal(kernels_alloc(t.k, K_F32, COUNT, &out, &err), 0);
        assert_int_equal(kernels_alloc(t.k, K_F32, COUNT, &in, &err), 0);
        assert_int_equal(comm_recv(t.comm[1], NULL, in, 0, 2, &coming, &err), 0);
        assert_int_equal(comm_send(t.comm[0], NULL, out, 1, 2, &sent, &err), 0);
        nanosleep(&(struct timespec){.tv_nsec = i * STEP_NS}, NULL);
        for (int r = 1; r >= 0; r--) {
            comm_abort(t.comm[r], "enough");
            comm_close(t.comm[r]);
        }
        kernels_close(t.k);
    }
}

static void test_gives_up_while_connecting(void **state)
{
    (void)state;
    in_a_child(give_up_while_connecting);
}

static void test_listen_address(void **state)
{
    (void)state;
    static const struct {
        const char *address, *text;
    } bad[] = {
        {"203.0.113.77", "comm: no network device of this host has the address 203.0.113.77"},
        {"::1", "comm: listen address '::1' is not an IPv4 address"},
    };
    for (size_t i = 0; i < 2; i++) {
        struct err err = {""};
        const void *address;
        size_t bytes;
        struct kernels *k = kernels_open_cpu(1, &err);
        assert_null(comm_open_ucx(k, 0, 2, 1, bad[i].address, &address, &bytes, &err));
        assert_string_equal(err.text, bad[i].text);
        kernels_close(k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gives_up_what_is_coming),
        cmocka_unit_test(test_gives_up_while_connecting),
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_mesh_groups),
        cmocka_unit_test(test_soak),
        cmocka_unit_test(test_size_mismatch),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_peer_closes),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_older_generation_is_dropped),
        cmocka_unit_test(test_send_progresses_without_its_sender),
        cmocka_unit_test(test_addresses_are_found),
        cmocka_unit_test(test_address_is_unknown),
        cmocka_unit_test(test_listen_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
