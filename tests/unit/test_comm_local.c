/* The local backend: ranks as threads of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <string.h>

#include <cmocka.h>

#include "comm/transport.h"
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

/* ---- large worlds: no rank talks to all ---- */

enum { LARGE = 48 };

static const int large_degree[MESH_AXES] = {2, 1, 1, 3, 8};
static bool talked[LARGE][LARGE];
static const struct transport_ops *plain_ops;

static int noting_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                       struct comm_request **req, struct err *err)
{
    talked[c->rank][peer] = true;
    return plain_ops->send(c, data, bytes, peer, tag, req, err);
}

static int noting_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                       struct comm_request **req, struct err *err)
{
    talked[c->rank][peer] = true;
    return plain_ops->recv(c, data, bytes, peer, tag, req, err);
}

/* Gatherings of parts of one size and of any, some of them empty: the byte 'a' + member. */
static int gather_large(struct rank *r, const struct comm_group *g)
{
    unsigned char mine[100], all[LARGE * sizeof mine];
    void *parts[LARGE];
    size_t lengths[LARGE], bytes = (size_t)(g->me * 7 % 50);
    memset(mine, 'a' + g->me, sizeof mine);
    if (comm_host_all_gather(r->comm, g, mine, sizeof mine, all, &r->err) ||
        comm_host_all_gatherv(r->comm, g, mine, bytes, sizeof mine, parts, lengths, &r->err))
        return -1;
    int rv = 0;
    for (int m = 0; m < g->size; m++) {
        unsigned char expected[sizeof mine];
        memset(expected, 'a' + m, sizeof expected);
        if (memcmp(all + (size_t)m * sizeof mine, expected, sizeof mine) ||
            lengths[m] != (size_t)(m * 7 % 50) || memcmp(parts[m], expected, lengths[m]))
            rv = err_set(&r->err, "part %d of %d is wrong", m, g->size);
        free(parts[m]);
    }
    return rv;
}

static int case_large(struct rank *r)
{
    static struct transport_ops noting[LARGE];
    struct mesh m;
    int number = r->rank, peers[LARGE], n, next = 0;
    struct kbuf one;
    if (mesh_open(&m, large_degree, r->rank, &r->err) ||
        kernels_alloc(r->k, K_F64, 1, &one, &r->err))
        return -1;
    noting[r->rank] = *r->comm->ops;
    noting[r->rank].send = noting_send;
    noting[r->rank].recv = noting_recv;
    r->comm->ops = &noting[r->rank];
    int rv = gather_large(r, &m.all) || comm_barrier(r->comm, &m.all, &r->err) ||
             comm_host_broadcast(r->comm, &m.all, &number, sizeof number, 5, &r->err) ||
             comm_barrier(r->comm, &m.stage, &r->err);
    for (int axis = 0; axis < MESH_AXES && !rv; axis++)
        rv = comm_all_reduce(r->comm, &m.axis[axis], r->stream, one, COMM_SUM, &r->err);
    if (!rv && number != 5)
        rv = err_set(&r->err, "%d was broadcast, not 5", number);
    n = mesh_peers(&m, peers);
    for (int p = 0; p < LARGE && !rv; p++) {
        bool listed = next < n && peers[next] == p;
        next += listed;
        if (talked[r->rank][p] && !listed)
            rv = err_set(&r->err, "rank %d talks to rank %d, which mesh_peers does not name",
                         r->rank, p);
    }
    if (!rv && (next != n || n > 25))
        rv = err_set(&r->err, "%d peers", n);
    r->comm->ops = plain_ops;
    kernels_free(r->k, &one);
    mesh_close(&m);
    return rv ? -1 : 0;
}

static void test_large_world(void **state)
{
    (void)state;
    struct err err;
    struct comm_hub *hub = comm_hub_open(1, &err);
    struct kernels *k = kernels_open_cpu(1, &err);
    struct comm *c = comm_open_local(hub, k, 0, &err);
    plain_ops = c->ops;
    comm_close(c);
    kernels_close(k);
    comm_hub_close(hub);
    assert_int_equal(run_threads(&local, LARGE, case_large), 0);
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
        cmocka_unit_test(test_large_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
