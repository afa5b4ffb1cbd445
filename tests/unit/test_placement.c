/* test_placement.c - placements that people agree on, and all small ones against brute force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launch/placement.h"

enum { MAX_NODES = 64 };

struct site {
    int n;
    struct placement_node nodes[MAX_NODES];
    char names[MAX_NODES][16], topology[MAX_NODES][48];
};

/* A regular tree: spines x leaves x nodes a leaf. */
static void build(struct site *s, int spines, const int *leaf_nodes, int leaves)
{
    s->n = 0;
    for (int p = 0; p < spines; p++)
        for (int l = 0; l < leaves; l++)
            for (int k = 0; k < leaf_nodes[l]; k++) {
                int i = s->n++;
                snprintf(s->names[i], sizeof s->names[i], "n%d", i);
                snprintf(s->topology[i], sizeof s->topology[i], "s%d.l%d.n%d", p, p * leaves + l,
                         i);
                s->nodes[i] = (struct placement_node){s->names[i], s->topology[i]};
            }
}

static void place(const struct site *s, const struct placement_shape *shape, int *node_rank)
{
    struct err err;
    if (placement_make(s->nodes, s->n, shape, node_rank, &err))
        fail_msg("%s", err.text);
    /* Ranks 0..used-1 each once, the rest spares. */
    int used = shape->inner * shape->pipeline * shape->data / shape->tasks, seen[MAX_NODES] = {0};
    int spares = 0;
    for (int i = 0; i < s->n; i++) {
        if (node_rank[i] < 0) {
            spares++;
            continue;
        }
        assert_in_range(node_rank[i], 0, used - 1);
        assert_int_equal(seen[node_rank[i]]++, 0);
    }
    assert_int_equal(spares, s->n - used);
}

struct placement_case {
    int leaves, leaf_nodes[6];
    struct placement_shape shape;
    const char *expected; /* node ranks in node order; - is a spare */
};

static const struct placement_case cases[] = {
    /* 6 nodes under two leaves, pipelines of 2: one spare stays under each leaf */
    {2, {3, 3}, {1, 2, 2, 1}, "0 1 - 2 3 -"},
    /* 5 + 5, pipelines of 4 */
    {2, {5, 5}, {1, 4, 2, 1}, "0 1 2 3 - 4 5 6 7 -"},
    /* everything fits under one leaf: the other is all spare */
    {2, {4, 4}, {1, 2, 2, 1}, "0 1 2 3 - - - -"},
    /* single-node replicas, as many as fit under the fuller leaf */
    {2, {2, 4}, {2, 1, 4, 2}, "- - 0 1 2 3"},
    /* a pipeline that no leaf holds takes the biggest remainders */
    {3, {1, 3, 2}, {1, 4, 1, 1}, "- 0 1 2 3 -"},
    /* tensor groups of two nodes first, pipelines out of them: 3 + 3 cannot hold three groups
     * without one that crosses, but two of them can */
    {2, {3, 3}, {2, 2, 1, 1}, "0 1 - 2 3 -"},
    /* two tasks a node and pipelines of 3: a replica ends in the middle of a node, so two replicas
     * of three nodes belong together */
    {2, {4, 3}, {1, 3, 4, 2}, "0 1 2 - 3 4 5"},
    /* one node, all ranks on it */
    {1, {1}, {2, 2, 2, 8}, "0"},
};

static void known_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct site s;
        int node_rank[MAX_NODES];
        char text[256] = "";
        build(&s, 1, cases[c].leaf_nodes, cases[c].leaves);
        place(&s, &cases[c].shape, node_rank);
        for (int i = 0; i < s.n; i++) {
            char one[16];
            snprintf(one, sizeof one, node_rank[i] < 0 ? "%s-" : "%s%d", i ? " " : "",
                     node_rank[i]);
            strncat(text, one, sizeof text - strlen(text) - 1);
        }
        if (strcmp(text, cases[c].expected))
            fail_msg("case %zu: '%s', expected '%s'", c, text, cases[c].expected);
    }
}

static void order_of_nodes_is_nothing(void **state)
{
    (void)state;
    struct site s;
    int leaf_nodes[] = {5, 7, 3}, first[MAX_NODES], again[MAX_NODES];
    struct placement_shape shape = {2, 3, 2, 1};
    build(&s, 2, leaf_nodes, 3);
    place(&s, &shape, first);
    uint32_t random = 1;
    for (int round = 0; round < 50; round++) {
        struct site t = s;
        int from[MAX_NODES];
        for (int i = 0; i < s.n; i++)
            from[i] = i;
        for (int i = s.n - 1; i > 0; i--) {
            random = random * 1664525 + 1013904223;
            int j = (int)((random >> 8) % (uint32_t)(i + 1)), k = from[i];
            from[i] = from[j];
            from[j] = k;
        }
        for (int i = 0; i < s.n; i++)
            t.nodes[i] = s.nodes[from[i]];
        place(&t, &shape, again);
        for (int i = 0; i < s.n; i++)
            assert_int_equal(again[i], first[from[i]]);
    }
}

static void names_count_as_people_do(void **state)
{
    (void)state;
    struct placement_node nodes[] = {{"n10", ""}, {"n9", ""}, {"n1", ""}};
    struct placement_shape shape = {1, 1, 3, 1};
    int node_rank[3];
    assert_int_equal(placement_make(nodes, 3, &shape, node_rank, NULL), 0);
    assert_int_equal(node_rank[2], 0);
    assert_int_equal(node_rank[1], 1);
    assert_int_equal(node_rank[0], 2);
}

static void distances(void **state)
{
    (void)state;
    struct placement_node a = {"a", "s.l0.a"}, b = {"b", "s.l0.b"}, c = {"c", "s.l1.c"},
                          d = {"d", "t.l9.d"}, e = {"e", ""}, f = {"f", ""};
    assert_int_equal(placement_distance(&a, &a), 0);
    assert_int_equal(placement_distance(&a, &b), 1);
    assert_int_equal(placement_distance(&a, &c), 2);
    assert_int_equal(placement_distance(&a, &d), 3);
    assert_int_equal(placement_distance(&e, &f), 1);
}

static void refusals(void **state)
{
    (void)state;
    struct placement_node nodes[] = {{"a", ""}, {"b", ""}};
    int node_rank[2];
    struct err err;
    struct placement_shape uneven = {1, 3, 1, 2}, many = {1, 3, 1, 1};
    assert_int_equal(placement_make(nodes, 2, &uneven, node_rank, &err), -1);
    assert_non_null(strstr(err.text, "3 ranks do not fill nodes of 2 tasks"));
    assert_int_equal(placement_make(nodes, 2, &many, node_rank, &err), -1);
    assert_non_null(strstr(err.text, "need 3 nodes, there are 2"));
}

/* ---- brute force ---- */

static int less(struct placement_cost a, struct placement_cost b)
{
    if (a.inner != b.inner)
        return a.inner < b.inner;
    if (a.pipeline != b.pipeline)
        return a.pipeline < b.pipeline;
    return a.data < b.data;
}

struct search {
    const struct site *site;
    const struct placement_shape *shape;
    int used, node_rank[MAX_NODES];
    struct placement_cost best;
};

/* Give rank `next` to every node that is free, in turn. */
static void try_all(struct search *s, int next)
{
    if (next == s->used) {
        struct placement_cost cost =
            placement_cost(s->site->nodes, s->site->n, s->shape, s->node_rank);
        if (less(cost, s->best))
            s->best = cost;
        return;
    }
    for (int i = 0; i < s->site->n; i++) {
        if (s->node_rank[i] >= 0)
            continue;
        s->node_rank[i] = next;
        try_all(s, next + 1);
        s->node_rank[i] = -1;
    }
}

/* Under up to three leaves of any size (6 nodes in all), for every shape that fits: tensor and
 * pipeline neighbours cross as seldom as in the best of all placements. */
static void as_good_as_brute_force(void **state)
{
    (void)state;
    static const int leaves[][3] = {{6, 0, 0}, {3, 3, 0}, {4, 2, 0}, {5, 1, 0},
                                    {2, 2, 2}, {3, 2, 1}, {4, 1, 1}};
    static const int shapes[][3] = {{1, 1, 4}, {1, 2, 2}, {1, 2, 3}, {1, 3, 1}, {1, 3, 2},
                                    {1, 4, 1}, {2, 1, 2}, {2, 2, 1}, {2, 1, 3}, {2, 3, 1},
                                    {1, 5, 1}, {3, 1, 1}, {3, 2, 1}, {1, 1, 6}};
    for (size_t l = 0; l < sizeof leaves / sizeof *leaves; l++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct site site;
            struct placement_shape shape = {shapes[k][0], shapes[k][1], shapes[k][2], 1};
            struct search s = {.site = &site, .shape = &shape, .best = {999, 999, 999}};
            int node_rank[MAX_NODES];
            build(&site, 1, leaves[l], 3);
            place(&site, &shape, node_rank);
            s.used = shape.inner * shape.pipeline * shape.data;
            memset(s.node_rank, -1, sizeof s.node_rank);
            try_all(&s, 0);
            struct placement_cost got = placement_cost(site.nodes, site.n, &shape, node_rank);
            if (got.inner != s.best.inner || got.pipeline != s.best.pipeline)
                fail_msg("leaves %d %d %d, shape %d x %d x %d: crossings %d %d %d, best %d %d %d",
                         leaves[l][0], leaves[l][1], leaves[l][2], shape.inner, shape.pipeline,
                         shape.data, got.inner, got.pipeline, got.data, s.best.inner,
                         s.best.pipeline, s.best.data);
        }
}

/* 4 spines of 4 leaves of 4 nodes: pipelines of 4 never leave their leaf. */
static void regular_tree(void **state)
{
    (void)state;
    struct site s;
    int leaf_nodes[] = {4, 4, 4, 4}, node_rank[MAX_NODES];
    struct placement_shape shape = {8, 4, 15, 8};
    build(&s, 4, leaf_nodes, 4);
    place(&s, &shape, node_rank);
    struct placement_cost cost = placement_cost(s.nodes, s.n, &shape, node_rank);
    assert_int_equal(cost.inner, 0);
    assert_int_equal(cost.pipeline, 0);
}

/* Ranks of lost nodes go to spares, nothing else moves. */
static void replacements(void **state)
{
    (void)state;
    static const struct {
        struct placement_shape shape;
        const char *before; /* L: lost, its rank is next in `lost`; x: a spare that is not usable */
        int n_lost, lost[2];
        const char *after; /* NULL: too few spares */
    } table[] = {
        /* leaves of 3: the spare under the same leaf, though not the first */
        {{1, 2, 2, 1}, "0 1 - L 2 -", 1, {3}, "0 1 - - 2 3"},
        {{1, 2, 2, 1}, "0 L - 3 2 -", 1, {1}, "0 - 1 3 2 -"},
        /* not usable: the other one */
        {{1, 2, 2, 1}, "0 L x 3 2 -", 1, {1}, "0 - - 3 2 1"},
        {{1, 2, 2, 1}, "0 L x 3 2 x", 1, {1}, NULL},
        /* two at once */
        {{1, 2, 2, 1}, "0 L - L 2 -", 2, {1, 3}, "0 - 1 - 2 3"},
        {{1, 2, 2, 1}, "0 L - L 2 -", 2, {3, 1}, "0 - 1 - 2 3"},
        {{1, 2, 2, 1}, "0 L - L 2 x", 2, {1, 3}, NULL},
    };
    for (size_t c = 0; c < sizeof table / sizeof *table; c++) {
        struct site s;
        int leaf_nodes[] = {3, 3}, node_rank[6], usable[6];
        char text[64] = "";
        build(&s, 1, leaf_nodes, 2);
        for (int i = 0; i < 6; i++) {
            char mark = table[c].before[2 * i];
            node_rank[i] = mark >= '0' && mark <= '9' ? mark - '0' : -1;
            usable[i] = mark != 'L' && mark != 'x';
        }
        int bad = placement_replace(s.nodes, s.n, &table[c].shape, table[c].lost, table[c].n_lost,
                                    usable, node_rank);
        assert_int_equal(bad, table[c].after ? 0 : -1);
        for (int i = 0; i < 6 && !bad; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%c", i ? " " : "",
                     node_rank[i] < 0 ? '-' : '0' + node_rank[i]);
        if (!bad)
            assert_string_equal(text, table[c].after);
    }
}

static int cost_order(struct placement_cost a, struct placement_cost b)
{
    if (a.inner != b.inner)
        return a.inner - b.inner;
    return a.pipeline != b.pipeline ? a.pipeline - b.pipeline : a.data - b.data;
}

/* Every node lost in turn, in sites of several shapes with their nodes mixed up: no other spare
 * would have made the whole placement cheaper. */
static void no_spare_is_cheaper(void **state)
{
    (void)state;
    static const struct placement_shape shapes[] = {{1, 2, 4, 1},  {8, 1, 4, 4}, {4, 2, 4, 4},
                                                    {16, 1, 2, 4}, {2, 4, 2, 2}, {1, 1, 8, 1},
                                                    {2, 2, 4, 4},  {1, 8, 1, 1}, {1, 2, 8, 2}};
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
        const struct placement_shape *shape = &shapes[c];
        int used = shape->inner * shape->pipeline * shape->data / shape->tasks;
        int leaf_nodes[] = {3, 4, 5}, before[MAX_NODES], usable[MAX_NODES];
        struct site s;
        build(&s, 1, leaf_nodes, 3);
        for (int i = 0; i < s.n; i++)
            before[i] = -1;
        for (int r = 0; r < used; r++)
            before[(r * 5 + 2) % s.n] = r;
        for (int lost = 0; lost < used; lost++) {
            int after[MAX_NODES], chosen = -1;
            memcpy(after, before, sizeof after);
            for (int i = 0; i < s.n; i++) {
                usable[i] = before[i] != lost;
                after[i] = usable[i] ? before[i] : -1;
            }
            assert_int_equal(placement_replace(s.nodes, s.n, shape, &lost, 1, usable, after), 0);
            for (int i = 0; i < s.n; i++)
                chosen = after[i] == lost ? i : chosen;
            struct placement_cost got = placement_cost(s.nodes, s.n, shape, after);
            for (int i = 0; i < s.n; i++) {
                if (!usable[i] || before[i] != -1)
                    continue;
                after[chosen] = -1;
                after[i] = lost;
                struct placement_cost other = placement_cost(s.nodes, s.n, shape, after);
                if (cost_order(other, got) < 0)
                    fail_msg("shape %zu, node rank %d: n%d instead of n%d", c, lost, i, chosen);
                after[i] = -1;
            }
        }
    }
}

/* ---- fewer replicas ---- */

struct shrink_case {
    const char *what;
    int n;
    struct placement_shape shape;
    const char *before, *after; /* node ranks in node order; - a spare, x lost */
    int least, data;            /* data: replicas then; -1: refused */
};

static const struct shrink_case shrink_cases[] = {
    {"a node a replica: the others stay", 4, {1, 1, 4, 1}, "0 1 x3 2", "0 1 - 2", 1, 3},
    {"the last takes the lost one's place", 4, {1, 1, 4, 1}, "0 x1 2 3", "0 - 2 1", 1, 3},
    {"one is left", 4, {1, 1, 4, 1}, "x0 x1 2 x3", "- - 0 -", 1, 1},
    {"none is left", 2, {1, 1, 2, 1}, "x0 x1", "", 1, -1},
    {"fewer than allowed", 4, {1, 1, 4, 1}, "0 x1 x2 3", "", 3, -1},
    {"as few as allowed", 4, {1, 1, 4, 1}, "0 x1 2 3", "0 - 2 1", 3, 3},
    {"the mate of a lost node is a spare", 6, {1, 2, 3, 1}, "0 1 2 3 x4 5", "0 1 2 3 - -", 1, 2},
    {"a whole replica changes its number", 6, {1, 2, 3, 1}, "x0 1 2 3 4 5", "- - 2 3 0 1", 1, 2},
    {"two half ones make a whole", 6, {1, 2, 3, 1}, "0 x1 2 3 x4 5", "0 - 2 3 - 1", 1, 2},
    {"two of the same stage: one has to learn the other",
     4,
     {1, 2, 2, 1},
     "0 x1 2 x3",
     "0 - 1 -",
     1,
     1},
    {"a spare helps", 5, {1, 2, 2, 1}, "0 x1 x2 3 -", "0 - - 1 -", 1, 1},
    {"some replicas on each node", 3, {1, 1, 12, 4}, "0 x1 2", "0 - 1", 1, 8},
    {"two replicas on three nodes go together",
     6,
     {1, 3, 4, 2},
     "0 1 2 3 x4 5",
     "0 1 2 - - -",
     1,
     2},
    {"... and count as two", 6, {1, 3, 4, 2}, "0 1 2 3 x4 5", "", 3, -1},
};

/* "0 x1 -": what is lost is not usable. */
static void read_ranks(const char *text, int n, int *node_rank, int *usable)
{
    char copy[128], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (int i = 0; i < n; i++) {
        char *word = strsep(&rest, " ");
        assert_non_null(word);
        usable[i] = *word != 'x';
        node_rank[i] = *word == '-' ? -1 : atoi(word + !usable[i]);
    }
}

static void shrink_known(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof shrink_cases / sizeof *shrink_cases; c++) {
        const struct shrink_case *k = &shrink_cases[c];
        struct site s;
        struct placement_shape shape = k->shape;
        int before[MAX_NODES], after[MAX_NODES], wanted[MAX_NODES], usable[MAX_NODES], unused[64];
        build(&s, 1, &k->n, 1);
        read_ranks(k->before, k->n, before, usable);
        int bad = placement_shrink(s.nodes, k->n, &shape, k->least, usable, before, after);
        if ((k->data < 0) != (bad != 0))
            fail_msg("%s: %s", k->what, bad ? "refused" : "not refused");
        assert_int_equal(shape.data, bad ? k->shape.data : k->data);
        if (bad)
            continue;
        read_ranks(k->after, k->n, wanted, unused);
        for (int i = 0; i < k->n; i++)
            if (after[i] != wanted[i])
                fail_msg("%s: node %d has node rank %d, not %d", k->what, i, after[i], wanted[i]);
    }
}

/* Every way to lose nodes of small jobs: the new world is as large as it can be, nobody who is left
 * out or lost has a rank, and as few nodes as possible get a part of the model that they had not:
 * of p positions and b blocks left, what the live nodes of a position cannot fill. */
static void shrink_any(void **state)
{
    (void)state;
    static const struct placement_shape shapes[] = {
        {1, 1, 6, 1}, {1, 2, 3, 1}, {2, 3, 2, 2}, {1, 3, 4, 2}, {1, 1, 12, 2}, {4, 1, 2, 1},
    };
    static const int block_nodes[] = {1, 2, 3, 3, 1, 4};
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
        int world = shapes[c].inner * shapes[c].pipeline * shapes[c].data;
        int used = world / shapes[c].tasks, n = used + 1, k = block_nodes[c];
        struct site s;
        build(&s, 1, &n, 1);
        for (int mask = 0; mask < 1 << n; mask++) {
            struct placement_shape shape = shapes[c];
            int before[MAX_NODES], after[MAX_NODES], usable[MAX_NODES], at[MAX_NODES] = {0};
            int live = 0, moved = 0, least_moved = 0, seen[MAX_NODES] = {0};
            for (int i = 0; i < n; i++) {
                before[i] = i < used ? i : -1;
                usable[i] = mask >> i & 1;
                live += usable[i];
                if (usable[i] && i < used)
                    at[i % k]++;
            }
            int blocks = live / k < used / k ? live / k : used / k;
            int bad = placement_shrink(s.nodes, n, &shape, 1, usable, before, after);
            assert_int_equal(bad, blocks ? 0 : -1);
            if (bad)
                continue;
            assert_int_equal(shape.inner * shape.pipeline * shape.data, blocks * k * shape.tasks);
            for (int i = 0; i < n; i++) {
                assert_in_range(after[i] + 1, 0, blocks * k);
                assert_true(usable[i] || after[i] == -1);
                if (after[i] < 0)
                    continue;
                assert_int_equal(seen[after[i]]++, 0);
                moved += before[i] < 0 || before[i] % k != after[i] % k;
            }
            for (int r = 0; r < blocks * k; r++)
                assert_int_equal(seen[r], 1);
            for (int p = 0; p < k; p++)
                least_moved += at[p] < blocks ? blocks - at[p] : 0;
            assert_int_equal(moved, least_moved);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(order_of_nodes_is_nothing),
        cmocka_unit_test(names_count_as_people_do),
        cmocka_unit_test(distances),
        cmocka_unit_test(refusals),
        cmocka_unit_test(as_good_as_brute_force),
        cmocka_unit_test(regular_tree),
        cmocka_unit_test(replacements),
        cmocka_unit_test(no_spare_is_cheaper),
        cmocka_unit_test(shrink_known),
        cmocka_unit_test(shrink_any),
    };
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
