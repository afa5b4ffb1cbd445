/* Coordinates and groups of the mesh against brute force, and the worked example of mesh.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/mesh.h"

static void test_worked_example(void **state)
{
    (void)state;
    struct err err = {""};
    struct mesh m;
    const int degree[MESH_AXES] = {[MESH_TENSOR] = 2,
                                   [MESH_CONTEXT] = 1,
                                   [MESH_EXPERT] = 1,
                                   [MESH_PIPELINE] = 2,
                                   [MESH_DATA] = 2};
    assert_int_equal(mesh_open(&m, degree, 5, &err), 0);
    assert_int_equal(m.coord[MESH_DATA], 1);
    assert_int_equal(m.coord[MESH_PIPELINE], 0);
    assert_int_equal(m.coord[MESH_TENSOR], 1);
    static const struct {
        enum mesh_axis axis;
        int ranks[2], me;
    } expected[] = {{MESH_TENSOR, {4, 5}, 1}, {MESH_PIPELINE, {5, 7}, 0}, {MESH_DATA, {1, 5}, 1}};
    for (size_t i = 0; i < 3; i++) {
        const struct comm_group *g = &m.axis[expected[i].axis];
        assert_int_equal(g->size, 2);
        assert_int_equal(g->me, expected[i].me);
        assert_memory_equal(g->ranks, expected[i].ranks, sizeof expected[i].ranks);
    }
    static const int stage[] = {0, 1, 4, 5};
    assert_int_equal(m.stage.size, 4);
    assert_int_equal(m.stage.me, 3);
    assert_memory_equal(m.stage.ranks, stage, sizeof stage);
    assert_int_equal(mesh_neighbour(&m, MESH_PIPELINE, 1), 7);
    assert_int_equal(mesh_neighbour(&m, MESH_PIPELINE, -1), -1);
    assert_int_equal(mesh_neighbour(&m, MESH_DATA, -1), 1);
    mesh_close(&m);
}

/* The group along an axis must be all ranks, ascending, whose other coordinates are mine. */
static void check_axis(const struct mesh *m, int axis, int coords[][MESH_AXES])
{
    const struct comm_group *g = &m->axis[axis];
    int found = 0;
    for (int r = 0; r < m->world; r++) {
        int same = 1;
        for (int a = 0; a < MESH_AXES; a++)
            same &= a == axis || coords[r][a] == m->coord[a];
        if (!same)
            continue;
        assert_true(found < g->size);
        assert_int_equal(g->ranks[found], r);
        if (r == m->rank)
            assert_int_equal(g->me, found);
        found++;
    }
    assert_int_equal(found, g->size);
}

static void check_mesh(const int degree[MESH_AXES])
{
    /* Brute force: count through the coordinates, tensor fastest. */
    static int coords[1024][MESH_AXES];
    int world = 0;
    for (int d = 0; d < degree[MESH_DATA]; d++)
        for (int p = 0; p < degree[MESH_PIPELINE]; p++)
            for (int e = 0; e < degree[MESH_EXPERT]; e++)
                for (int c = 0; c < degree[MESH_CONTEXT]; c++)
                    for (int t = 0; t < degree[MESH_TENSOR]; t++)
                        memcpy(coords[world++], (int[]){t, c, e, p, d}, sizeof coords[0]);

    for (int r = 0; r < world; r++) {
        struct err err = {""};
        struct mesh m;
        assert_int_equal(mesh_open(&m, degree, r, &err), 0);
        assert_int_equal(m.world, world);
        assert_memory_equal(m.coord, coords[r], sizeof m.coord);
        assert_int_equal(mesh_rank(degree, coords[r]), r);
        for (int a = 0; a < MESH_AXES; a++)
            check_axis(&m, a, coords);
        int in_stage = 0;
        for (int o = 0; o < world; o++) {
            assert_int_equal(m.all.ranks[o], o);
            if (coords[o][MESH_PIPELINE] != coords[r][MESH_PIPELINE])
                continue;
            assert_int_equal(m.stage.ranks[in_stage], o);
            if (o == r)
                assert_int_equal(m.stage.me, in_stage);
            in_stage++;
        }
        assert_int_equal(m.stage.size, in_stage);
        assert_int_equal(m.all.me, r);
        mesh_close(&m);
    }
}

static void test_brute_force(void **state)
{
    (void)state;
    static const int degrees[][MESH_AXES] = {{1, 1, 1, 1, 1}, {8, 1, 1, 1, 1}, {1, 1, 1, 1, 7},
                                             {2, 3, 1, 4, 5}, {3, 2, 2, 3, 2}, {1, 2, 3, 2, 1},
                                             {4, 1, 2, 3, 3}, {2, 2, 2, 2, 2}};
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++)
        check_mesh(degrees[i]);
}

/* 16,384 ranks as Llama 3 405B had them: 7 + 15 + 127 along the axes, and those 2^k away. Whoever
 * is named names back. */
static void test_peers(void **state)
{
    (void)state;
    static const int degree[MESH_AXES] = {8, 1, 1, 16, 128};
    static int peers[16384], theirs[16384];
    static const int some[] = {0, 1, 5000, 16383};
    struct err err;
    struct mesh m, o;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        assert_int_equal(mesh_open(&m, degree, some[i], &err), 0);
        int n = mesh_peers(&m, peers);
        assert_in_range(n, 7 + 15 + 127, 7 + 15 + 127 + 28 + 20);
        for (int p = 0; p < n; p += 17) {
            int back = 0;
            assert_int_equal(mesh_open(&o, degree, peers[p], &err), 0);
            for (int k = mesh_peers(&o, theirs); k-- > 0;)
                back |= theirs[k] == some[i];
            assert_true(back);
            mesh_close(&o);
        }
        mesh_close(&m);
    }
    /* In a small world it is everybody. */
    assert_int_equal(mesh_open(&m, (const int[MESH_AXES]){2, 1, 1, 2, 8}, 3, &err), 0);
    assert_int_equal(mesh_peers(&m, peers), 31);
    mesh_close(&m);
}

static void test_ids_differ(void **state)
{
    (void)state;
    struct err err = {""};
    struct mesh m;
    assert_int_equal(mesh_open(&m, (const int[MESH_AXES]){2, 1, 1, 2, 2}, 0, &err), 0);
    int ids[MESH_AXES + 2];
    for (int a = 0; a < MESH_AXES; a++)
        ids[a] = m.axis[a].id;
    ids[MESH_AXES] = m.all.id;
    ids[MESH_AXES + 1] = m.stage.id;
    for (int i = 0; i < MESH_AXES + 2; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(ids[i], ids[j]);
    mesh_close(&m);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        int degree[MESH_AXES], rank;
        const char *text;
    } bad[] = {
        {{2, 1, 1, 0, 2}, 0, "mesh: degree 0 along pipeline: must be at least 1"},
        {{2, 1, 1, 2, 2}, 8, "mesh: rank 8 is not in a world of 8"},
        {{2, 1, 1, 2, 2}, -1, "mesh: rank -1 is not in a world of 8"},
        {{65536, 1, 1, 65536, 1}, 0, "mesh: the degrees multiply to more than 2147483647 ranks"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {""};
        struct mesh m;
        assert_int_equal(mesh_open(&m, bad[i].degree, bad[i].rank, &err), -1);
        assert_string_equal(err.text, bad[i].text);
        mesh_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example), cmocka_unit_test(test_brute_force),
        cmocka_unit_test(test_peers),          cmocka_unit_test(test_ids_differ),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
