/* placement.c - groups are formed as deep in the switch tree as they fit.
 *
 * Three rounds of one idea. A unit is an ordered list of nodes with a home, the deepest switch that
 * holds them all; at first each node is a unit. To form groups of k units: under each leaf take as
 * many whole groups as there are; what is left over goes one level up, biggest remainder first, and
 * forms groups there; and so on to the root. Round one makes tensor-context-expert groups out of
 * nodes, round two pipelines out of those. Round three chooses as many pipelines as there are
 * replicas, those that stay lowest, under as few switches as possible, and leaves the spares spread
 * over these switches. In a regular tree no other choice has fewer crossings.
 * Where groups do not fit the tree, swaps of two nodes may still save some.
 *
 * Example: 2 leaves of 5 nodes, pipelines of 4 nodes, 2 replicas: each leaf gives one pipeline, and
 * one spare stays under each. */
#include "launch/placement.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 16,
    SWAP_NODES = 64, /* at most so many nodes are tried in pairs: time grows with the third power */
    SWAP_ROUNDS = 16, /* each makes the cost smaller; two or three do in practice */
};

struct unit {
    int first, n; /* its nodes: places in `order` */
    int depth;    /* how many parts of its nodes' addresses are common */
    int worst;    /* depth of the worst of the units it was formed of: less is dearer */
};

/* Everything one call works on; nodes are in `sorted` order, so that neighbours share a beginning.
 */
struct tree {
    const struct placement_node *nodes;
    int n;
    const struct placement_node **sorted;
};

/* The next part of an address: its length; *at goes behind it and its dot. */
static size_t next_part(const char **at)
{
    size_t length = strcspn(*at, ".");
    *at += length + ((*at)[length] == '.');
    return length;
}

/* As people count: n9 before n10. Equal texts only are equal. */
static int compare_natural(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t i = 0, j = 0;
    while (i < a_length && j < b_length) {
        size_t p = i, q = j;
        while (p < a_length && a[p] >= '0' && a[p] <= '9')
            p++;
        while (q < b_length && b[q] >= '0' && b[q] <= '9')
            q++;
        if (p > i && q > j) {
            while (i < p - 1 && a[i] == '0')
                i++;
            while (j < q - 1 && b[j] == '0')
                j++;
            if (p - i != q - j)
                return p - i < q - j ? -1 : 1;
            int c = memcmp(a + i, b + j, p - i);
            if (c)
                return c;
            i = p;
            j = q;
        } else {
            if (a[i] != b[j])
                return (unsigned char)a[i] < (unsigned char)b[j] ? -1 : 1;
            i++;
            j++;
        }
    }
    size_t left_a = a_length - i, left_b = b_length - j;
    return left_a == left_b ? 0 : left_a < left_b ? -1 : 1;
}

static int compare_nodes(const void *x, const void *y)
{
    const struct placement_node *a = *(const struct placement_node *const *)x;
    const struct placement_node *b = *(const struct placement_node *const *)y;
    const char *p = a->topology, *q = b->topology;
    while (*p && *q) {
        const char *from_p = p, *from_q = q;
        size_t m = next_part(&p), n = next_part(&q);
        int c = compare_natural(from_p, m, from_q, n);
        if (!c && (m != n || memcmp(from_p, from_q, m))) /* "n01" and "n1" */
            c = strcmp(from_p, from_q);
        if (c)
            return c;
    }
    if (*p || *q)
        return *p ? 1 : -1;
    int c = compare_natural(a->name, strlen(a->name), b->name, strlen(b->name));
    return c ? c : strcmp(a->name, b->name);
}

/* How many switches from the root the two have in common; the last part of an address is the node
 * itself and never counts. */
static int common_depth(const struct placement_node *a, const struct placement_node *b)
{
    const char *p = a->topology, *q = b->topology;
    int depth = 0;
    while (strchr(p, '.') && strchr(q, '.')) {
        const char *from_p = p, *from_q = q;
        size_t m = next_part(&p), n = next_part(&q);
        if (m != n || memcmp(from_p, from_q, m))
            break;
        depth++;
    }
    return depth;
}

static int own_depth(const struct placement_node *a)
{
    int depth = 0;
    for (const char *c = a->topology; *c; c++)
        depth += *c == '.';
    return depth;
}

int placement_distance(const struct placement_node *a, const struct placement_node *b)
{
    if (a == b || !strcmp(a->name, b->name))
        return 0;
    int deep = own_depth(a) > own_depth(b) ? own_depth(a) : own_depth(b);
    return 1 + deep - common_depth(a, b);
}

static const struct placement_node *unit_node(const struct tree *t, const int *order,
                                              const struct unit *u)
{
    return t->sorted[order[u->first]];
}

/* The pieces that a switch could not make a whole group of. */
struct piece {
    int first, n; /* units, places in a list */
};

struct former {
    const struct tree *tree;
    const int *order;         /* of the units' nodes */
    const struct unit *units; /* in address order */
    int k;                    /* units a group */
    int *made;                /* units in the order of the groups that were formed, k each */
    int *made_depth;          /* by group */
    int groups;
};

static int compare_pieces(const void *x, const void *y)
{
    const struct piece *a = x, *b = y;
    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Put the units of one group in address order, by their first nodes: a unit that crosses a switch
 * then stands between those on its two sides. Mostly in order already. */
static void sort_group(const struct former *f, int *group)
{
    for (int i = 1; i < f->k; i++) {
        int u = group[i], j = i;
        for (; j > 0 && f->order[f->units[group[j - 1]].first] > f->order[f->units[u].first]; j--)
            group[j] = group[j - 1];
        group[j] = u;
    }
}

/* Form groups of the units list[0..n), all under one switch `depth` parts deep. Whole groups go to
 * f->made; list keeps the rest at its front. Returns how many that is: fewer than k. */
static int form(struct former *f, int *list, int n, int depth)
{
    struct piece *pieces = calloc((size_t)n + 1, sizeof *pieces);
    int *joined = calloc((size_t)n + 1, sizeof *joined);
    int n_pieces = 0, left = 0;
    if (!pieces || !joined) {
        free(pieces);
        free(joined);
        return -1;
    }
    for (int i = 0; i < n && left >= 0;) {
        const struct unit *u = &f->units[list[i]];
        int j = i + 1;
        while (u->depth > depth && j < n && f->units[list[j]].depth > depth &&
               common_depth(unit_node(f->tree, f->order, u),
                            unit_node(f->tree, f->order, &f->units[list[j]])) > depth)
            j++;
        int rest = j - i;
        if (u->depth > depth && depth < MAX_DEPTH)
            rest = form(f, list + i, j - i, depth + 1);
        if (rest > 0)
            pieces[n_pieces++] = (struct piece){.first = i, .n = rest};
        left = rest < 0 ? -1 : left;
        i = j;
    }
    /* Units whose home is this very switch are pieces of one: sorting keeps them last, and in
     * order. */
    qsort(pieces, (size_t)n_pieces, sizeof *pieces, compare_pieces);
    for (int p = 0; p < n_pieces && left >= 0; p++)
        for (int i = 0; i < pieces[p].n; i++)
            joined[left++] = list[pieces[p].first + i];
    if (left >= 0) {
        int whole = left / f->k;
        for (int g = 0; g < whole; g++) {
            memcpy(f->made + (size_t)f->groups * (size_t)f->k, joined + g * f->k,
                   (size_t)f->k * sizeof *joined);
            sort_group(f, f->made + (size_t)f->groups * (size_t)f->k);
            f->made_depth[f->groups++] = depth;
        }
        left -= whole * f->k;
        memcpy(list, joined + whole * f->k, (size_t)left * sizeof *list);
    }
    free(pieces);
    free(joined);
    return left;
}

/* One round: units -> units of k units each, in *out (malloc'ed, with a new *order_out). Returns
 * how many, or -1 when memory is out. */
static int form_round(const struct tree *t, const int *order, const struct unit *units, int n,
                      int k, struct unit **out, int **order_out)
{
    struct former f = {.tree = t, .order = order, .units = units, .k = k};
    int *list = calloc((size_t)n + 1, sizeof *list);
    f.made = calloc((size_t)n + 1, sizeof *f.made);
    f.made_depth = calloc((size_t)n + 1, sizeof *f.made_depth);
    *out = calloc((size_t)n + 1, sizeof **out);
    *order_out = calloc((size_t)t->n + 1, sizeof **order_out);
    int good = list && f.made && f.made_depth && *out && *order_out;
    for (int i = 0; good && i < n; i++)
        list[i] = i;
    if (good && form(&f, list, n, 0) < 0)
        good = 0;
    int used = 0;
    for (int g = 0; good && g < f.groups; g++) {
        struct unit *u = &(*out)[g];
        *u = (struct unit){.first = used, .depth = f.made_depth[g], .worst = f.made_depth[g]};
        for (int i = 0; i < k; i++) {
            const struct unit *part = &units[f.made[g * k + i]];
            memcpy(*order_out + used, order + part->first, (size_t)part->n * sizeof *order);
            used += part->n;
            u->n += part->n;
            if (part->worst < u->worst)
                u->worst = part->worst;
        }
    }
    free(list);
    free(f.made);
    free(f.made_depth);
    return good ? f.groups : -1;
}

struct choice {
    const struct tree *tree;
    const int *order;
    const struct unit *unit;
    int home;  /* number of its home switch */
    int crowd; /* how many units have that home */
    int turn;  /* 0 for the first of its home, 1 for the second, ... */
};

/* Lowest first (units that were formed without crossing a switch), then fullest home first. */
static int compare_choices(const void *x, const void *y)
{
    const struct choice *a = x, *b = y;
    if (a->unit->worst != b->unit->worst)
        return a->unit->worst > b->unit->worst ? -1 : 1;
    if (a->unit->depth != b->unit->depth)
        return a->unit->depth > b->unit->depth ? -1 : 1;
    if (a->crowd != b->crowd)
        return a->crowd > b->crowd ? -1 : 1;
    if (a->home != b->home)
        return a->home < b->home ? -1 : 1;
    return a->turn < b->turn ? -1 : a->turn > b->turn;
}

static int compare_first(const void *x, const void *y)
{
    const struct choice *a = x, *b = y;
    int p = a->order[a->unit->first], q = b->order[b->unit->first];
    return p < q ? -1 : p > q;
}

/* Number homes and count who shares them. choices are in address order. */
static void count_homes(struct choice *c, int n)
{
    for (int i = 0; i < n; i++) {
        c[i].home = i;
        c[i].turn = 0;
        for (int j = i - 1; j >= 0; j--) {
            const struct unit *u = c[i].unit, *v = c[j].unit;
            if (u->depth == v->depth &&
                common_depth(unit_node(c[i].tree, c[i].order, u),
                             unit_node(c[j].tree, c[j].order, v)) >= u->depth) {
                c[i].home = c[j].home;
                c[i].turn = c[j].turn + 1;
                break;
            }
        }
    }
    /* A home's number is the place of its first unit. */
    for (int i = 0; i < n; i++)
        c[c[i].home].crowd++;
    for (int i = 0; i < n; i++)
        c[i].crowd = c[c[i].home].crowd;
}

/* The chosen ones' homes are settled; what is too many is taken evenly from all of them, so that
 * each keeps a spare near: drop the last of the home with the most, again and again. */
static void drop_surplus(struct choice *c, int *n, int wanted)
{
    while (*n > wanted) {
        const struct unit *dearest = c[*n - 1].unit;
        int most = 0, at = -1;
        for (int i = 0, next; i < *n; i = next) {
            for (next = i + 1; next < *n && c[next].home == c[i].home;)
                next++;
            /* Only among the dearest: a cheap one is never given up for a dear one. */
            if (c[i].unit->worst == dearest->worst && c[i].unit->depth == dearest->depth &&
                next - i >= most) {
                most = next - i;
                at = next - 1;
            }
        }
        memmove(c + at, c + at + 1, (size_t)(*n - at - 1) * sizeof *c);
        --*n;
    }
}

static int choose(const struct tree *t, const int *order, const struct unit *units, int n,
                  int wanted, int *node_rank)
{
    struct choice *c = calloc((size_t)n + 1, sizeof *c);
    if (!c)
        return -1;
    for (int i = 0; i < n; i++)
        c[i] = (struct choice){.tree = t, .order = order, .unit = &units[i]};
    qsort(c, (size_t)n, sizeof *c, compare_first);
    count_homes(c, n);
    qsort(c, (size_t)n, sizeof *c, compare_choices);
    int kept = wanted;
    while (kept < n && kept > 0 && c[kept].home == c[kept - 1].home)
        kept++;
    drop_surplus(c, &kept, wanted);
    qsort(c, (size_t)kept, sizeof *c, compare_first);
    int next = 0;
    for (int i = 0; i < kept; i++)
        for (int j = 0; j < c[i].unit->n; j++) {
            const struct placement_node *node = t->sorted[order[c[i].unit->first + j]];
            node_rank[node - t->nodes] = next++;
        }
    free(c);
    return 0;
}

static int gcd(int a, int b)
{
    return b ? gcd(b, a % b) : a;
}

/* The fewest nodes that hold whole groups of `size` ranks. */
static int nodes_of(int size, int tasks)
{
    return size / gcd(size, tasks);
}

static int place_sorted(const struct tree *t, const struct placement_shape *s, int *node_rank)
{
    int cell_nodes = nodes_of(s->inner, s->tasks);
    int block_nodes = nodes_of(s->inner * s->pipeline, s->tasks);
    int wanted = s->inner * s->pipeline * s->data / s->tasks / block_nodes;
    struct unit *single = calloc((size_t)t->n, sizeof *single), *cells = NULL, *blocks = NULL;
    int *order = calloc((size_t)t->n, sizeof *order), *cell_order = NULL, *block_order = NULL;
    int bad = -1;
    if (!single || !order)
        goto out;
    for (int i = 0; i < t->n; i++) {
        order[i] = i;
        int depth = own_depth(t->sorted[i]);
        single[i] = (struct unit){.first = i, .n = 1, .depth = depth, .worst = MAX_DEPTH};
    }
    int n_cells = form_round(t, order, single, t->n, cell_nodes, &cells, &cell_order);
    if (n_cells < 0)
        goto out;
    int n_blocks =
        form_round(t, cell_order, cells, n_cells, block_nodes / cell_nodes, &blocks, &block_order);
    if (n_blocks >= wanted)
        bad = choose(t, block_order, blocks, n_blocks, wanted, node_rank);
out:
    free(single);
    free(order);
    free(cells);
    free(cell_order);
    free(blocks);
    free(block_order);
    return bad;
}

static int cheaper(struct placement_cost a, struct placement_cost b)
{
    if (a.inner != b.inner)
        return a.inner < b.inner;
    return a.pipeline != b.pipeline ? a.pipeline < b.pipeline : a.data < b.data;
}

/* One round over all pairs. 1 if anything became cheaper. */
static int swap_round(const struct tree *t, const struct placement_shape *shape, int *node_rank,
                      struct placement_cost *cost)
{
    int better = 0;
    for (int i = 0; i < t->n; i++)
        for (int j = i + 1; j < t->n; j++) {
            int *a = &node_rank[t->sorted[i] - t->nodes], *b = &node_rank[t->sorted[j] - t->nodes];
            int before = *a;
            *a = *b;
            *b = before;
            struct placement_cost now = placement_cost(t->nodes, t->n, shape, node_rank);
            if (cheaper(now, *cost)) {
                *cost = now;
                better = 1;
            } else {
                *b = *a;
                *a = before;
            }
        }
    return better;
}

static void swap(const struct tree *t, const struct placement_shape *shape, int *node_rank)
{
    struct placement_cost cost = placement_cost(t->nodes, t->n, shape, node_rank);
    if (t->n > SWAP_NODES)
        return;
    for (int round = 0; round < SWAP_ROUNDS && (cost.inner || cost.pipeline); round++)
        if (!swap_round(t, shape, node_rank, &cost))
            return;
}

int placement_make(const struct placement_node *nodes, int n, const struct placement_shape *shape,
                   int *node_rank, struct err *err)
{
    int world = shape->inner * shape->pipeline * shape->data;
    if (world % shape->tasks)
        return err_set(err,
                       "%d ranks do not fill nodes of %d tasks: use a number of tasks a node that "
                       "divides %d",
                       world, shape->tasks, world);
    if (world / shape->tasks > n)
        return err_set(err, "%d ranks at %d a node need %d nodes, there are %d", world,
                       shape->tasks, world / shape->tasks, n);
    struct tree t = {.nodes = nodes, .n = n, .sorted = calloc((size_t)n, sizeof *t.sorted)};
    if (!t.sorted)
        return err_set(err, "out of memory placing %d nodes", n);
    for (int i = 0; i < n; i++) {
        t.sorted[i] = &nodes[i];
        node_rank[i] = -1;
    }
    qsort(t.sorted, (size_t)n, sizeof *t.sorted, compare_nodes);
    int bad = place_sorted(&t, shape, node_rank);
    if (!bad)
        swap(&t, shape, node_rank);
    free(t.sorted);
    return bad ? err_set(err, "out of memory placing %d nodes", n) : 0;
}

/* Whether two neighbours need a switch; ranks that no node has (yet) cost nothing. */
static int crosses(const struct placement_node *a, const struct placement_node *b)
{
    return a && b && placement_distance(a, b) > 1;
}

/* The node of every rank, NULL where none has it; malloc'ed, NULL when memory is out. */
static const struct placement_node **seats(const struct placement_node *nodes, int n,
                                           const struct placement_shape *s, const int *node_rank)
{
    int world = s->inner * s->pipeline * s->data;
    const struct placement_node **at = calloc((size_t)world, sizeof *at);
    for (int i = 0; at && i < n; i++)
        for (int k = 0; node_rank[i] >= 0 && k < s->tasks; k++)
            at[node_rank[i] * s->tasks + k] = &nodes[i];
    return at;
}

/* Between a rank and the next one of each kind. */
static int inner_cost(const struct placement_node *const *at, const struct placement_shape *s,
                      int r)
{
    return r % s->inner + 1 < s->inner && crosses(at[r], at[r + 1]);
}

static int pipeline_cost(const struct placement_node *const *at, const struct placement_shape *s,
                         int r)
{
    int replica = s->inner * s->pipeline;
    return r % replica + s->inner < replica && crosses(at[r], at[r + s->inner]);
}

static int data_cost(const struct placement_node *const *at, const struct placement_shape *s, int r)
{
    int replica = s->inner * s->pipeline;
    return s->data > 1 && crosses(at[r], at[(r + replica) % (replica * s->data)]);
}

struct placement_cost placement_cost(const struct placement_node *nodes, int n,
                                     const struct placement_shape *s, const int *node_rank)
{
    struct placement_cost cost = {0, 0, 0};
    int world = s->inner * s->pipeline * s->data;
    const struct placement_node **at = seats(nodes, n, s, node_rank);
    for (int r = 0; at && r < world; r++) {
        cost.inner += inner_cost(at, s, r);
        cost.pipeline += pipeline_cost(at, s, r);
        cost.data += data_cost(at, s, r);
    }
    free(at);
    return cost;
}

static void sit(const struct placement_node **at, const struct placement_shape *s, int node_rank,
                const struct placement_node *node)
{
    for (int k = 0; k < s->tasks; k++)
        at[node_rank * s->tasks + k] = node;
}

/* What that node would cost as this node rank, but for what all candidates cost alike: only the
 * neighbours of its ranks are looked at (and a few more, that are the same for all). */
static struct placement_cost cost_with(const struct placement_node **at,
                                       const struct placement_shape *s, int node_rank,
                                       const struct placement_node *node)
{
    struct placement_cost cost = {0, 0, 0};
    int first = node_rank * s->tasks, end = first + s->tasks, replica = s->inner * s->pipeline;
    sit(at, s, node_rank, node);
    for (int r = first > 0 ? first - 1 : 0; r < end; r++)
        cost.inner += inner_cost(at, s, r);
    for (int r = first > s->inner ? first - s->inner : 0; r < end; r++)
        cost.pipeline += pipeline_cost(at, s, r);
    for (int r = first; r < end; r++) {
        int before = (r + replica * (s->data - 1)) % (replica * s->data);
        cost.data += data_cost(at, s, r);
        if (before < first || before >= end)
            cost.data += data_cost(at, s, before);
    }
    sit(at, s, node_rank, NULL);
    return cost;
}

int placement_replace(const struct placement_node *nodes, int n,
                      const struct placement_shape *shape, const int *lost, int n_lost,
                      const int *usable, int *node_rank)
{
    int spares = 0;
    for (int i = 0; i < n; i++)
        spares += usable[i] && node_rank[i] == -1;
    const struct placement_node **at = NULL;
    if (spares < n_lost || !(at = seats(nodes, n, shape, node_rank)))
        return -1;
    for (int k = 0; k < n_lost; k++) {
        int best = -1;
        struct placement_cost least = {0, 0, 0};
        for (int i = 0; i < n; i++) {
            if (!usable[i] || node_rank[i] != -1)
                continue;
            struct placement_cost cost = cost_with(at, shape, lost[k], &nodes[i]);
            const struct placement_node *a = &nodes[i], *b = best < 0 ? NULL : &nodes[best];
            if (b && !cheaper(cost, least) && (cheaper(least, cost) || compare_nodes(&a, &b) > 0))
                continue;
            best = i;
            least = cost;
        }
        node_rank[best] = lost[k];
        sit(at, shape, lost[k], &nodes[best]);
    }
    free(at);
    return 0;
}
