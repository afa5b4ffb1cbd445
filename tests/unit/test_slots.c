/* test_slots.c - the rule by which memory slots are reused, over all interleavings of small
 * systems.
 *
 * The model: ranks in a ring, each the keeper of the copy of the one before it. In a step a rank
 * fills a slot of its own and seals it, takes the copy of its ward and seals that, joins both, and
 * goes through the sum that all ranks need; then its next state is made. Or they are replicas, two
 * and two, and nobody has a ward: a replica's slot is as good as the own. Every order of these of
 * all ranks is tried, a process or a node is killed in every state that comes up, and what is left
 * must hold a state that all can go back to, no more than one completed step old. Then the next
 * generation goes on from it, through the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "slots.h"

/* ---- the rule, case by case ---- */

#define KEY(g, s) ((struct ckpt_key){1, g, s})
#define FULL(g, s)                                                                                 \
    {                                                                                              \
        .valid = true, .key = { 1, g, s }                                                          \
    }
#define USED(g, s)                                                                                 \
    {                                                                                              \
        .valid = true, .pinned = true, .key = { 1, g, s }                                          \
    }
#define EMPTY                                                                                      \
    {                                                                                              \
        .valid = false                                                                             \
    }

static void rule(void **state)
{
    (void)state;
    const struct {
        struct slot_state slots[3];
        int n, kept_generation;
        int64_t kept;
        uint32_t now;
        int chosen;
    } table[] = {
        {{EMPTY, EMPTY}, 2, 0, 0, 1, 0},
        {{FULL(1, 1), EMPTY}, 2, 0, 0, 1, 1},
        /* nothing is confirmed: both may be the only ones */
        {{FULL(1, 1), FULL(1, 2)}, 2, 0, 0, 1, -1},
        {{FULL(1, 1), FULL(1, 2)}, 2, 1, 1, 1, -1}, /* 2 is newer, 1 confirmed */
        {{FULL(1, 1), FULL(1, 2)}, 2, 1, 2, 1, 0},
        {{FULL(1, 3), FULL(1, 2)}, 2, 1, 3, 1, 1},
        {{FULL(1, 1), FULL(1, 2), EMPTY}, 3, 1, 1, 1, 2},
        {{FULL(1, 2), FULL(1, 1), FULL(1, 3)}, 3, 1, 3, 1, 1}, /* the oldest */
        {{USED(1, 1), FULL(1, 2)}, 2, 1, 2, 1, -1},
        /* generation 2 was restored from step 7 of generation 1: that stays, what is newer goes */
        {{FULL(1, 7), FULL(1, 8)}, 2, 1, 7, 2, 1},
        {{FULL(1, 7), FULL(2, 7)}, 2, 1, 7, 2, -1},
        {{FULL(1, 7), FULL(2, 7)}, 2, 2, 7, 2, 0},
        /* restored from elsewhere: what an older generation left is nobody's */
        {{FULL(1, 7), FULL(1, 8)}, 2, 0, 0, 2, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_key kept = KEY((uint32_t)table[i].kept_generation, table[i].kept);
        struct ckpt_key now = KEY(table[i].now, 0);
        int chosen =
            slots_choose(table[i].slots, table[i].n, table[i].kept_generation ? &kept : NULL, &now);
        if (chosen != table[i].chosen)
            fail_msg("case %zu: slot %d, not %d", i, chosen, table[i].chosen);
    }
}

/* ---- the model ---- */

enum { MAX_RANKS = 4, MAX_SLOTS = 3, LAST_STEP = 3, TABLE = 1 << 20 };

enum stage { NOT_BEGUN, FILLING, SEALED };

struct cell { /* a slot */
    uint8_t valid, generation, step, of;
};

struct rank {
    uint8_t step; /* updates done */
    uint8_t own, ward;
    uint8_t arrived, past; /* at the sum of this step; beyond it */
    uint8_t own_slot, ward_slot;
    uint8_t kept_generation, kept;
    struct cell cells[2 * MAX_SLOTS];
};

struct world {
    uint8_t generation, newest;    /* newest: step completed by anybody, in this generation */
    uint8_t from_generation, from; /* the state it was restored from */
    uint8_t lost;                  /* node killed in generation 2, + 1 */
    struct rank ranks[MAX_RANKS];
};

struct model {
    int n, slots;
    bool replicas; /* rank i and rank i + n / 2 hold the same */
    bool late;     /* the join comes after the sum, and is confirmed by the one after that */
    int last_step; /* where it is enough */
    struct world *queue;
    uint32_t *seen; /* index + 1 into queue */
    int64_t n_seen;
    bool stuck;  /* somebody found no slot */
    int worst;   /* most completed steps that had to be done again */
    bool gone;   /* nothing to go back to */
    int checked; /* kills */
};

static void visit(struct model *m, const struct world *w)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *w; i++)
        h = (h ^ ((const unsigned char *)w)[i]) * 1099511628211u;
    for (uint64_t at = h % TABLE;; at = (at + 1) % TABLE) {
        if (!m->seen[at]) {
            assert_true(m->n_seen < TABLE / 2);
            m->queue[m->n_seen++] = *w;
            m->seen[at] = (uint32_t)m->n_seen;
            return;
        }
        if (!memcmp(&m->queue[m->seen[at] - 1], w, sizeof *w))
            return;
    }
}

/* The state after `step` steps has the name that it was restored under. */
static uint8_t generation_of(const struct world *w, int step)
{
    return step == w->from ? w->from_generation : w->generation;
}

/* A slot of the half that begins at `first`, or -1. */
static int take(struct model *m, const struct world *w, struct rank *r, int first)
{
    struct slot_state states[MAX_SLOTS];
    for (int i = 0; i < m->slots; i++) {
        const struct cell *c = &r->cells[first + i];
        states[i] = (struct slot_state){.valid = c->valid, .key = KEY(c->generation, c->step)};
    }
    struct ckpt_key kept = KEY(r->kept_generation, r->kept), now = KEY(w->generation, 0);
    int chosen = slots_choose(states, m->slots, r->kept_generation ? &kept : NULL, &now);
    if (chosen < 0) {
        m->stuck = true;
        return -1;
    }
    r->cells[first + chosen].valid = 0;
    return first + chosen;
}

static void seal(const struct world *w, struct rank *r, int slot, int of)
{
    r->cells[slot] = (struct cell){1, generation_of(w, r->step), r->step, (uint8_t)of};
}

static bool joined(const struct rank *r)
{
    return r->own == SEALED && r->ward == SEALED;
}

static void update(struct model *m, struct world *w, int i)
{
    struct rank *r = &w->ranks[i];
    if (!m->late) {
        r->kept = r->step;
        r->kept_generation = generation_of(w, r->step);
    } else if (r->step > 0) {
        r->kept = (uint8_t)(r->step - 1);
        r->kept_generation = generation_of(w, r->kept);
    }
    r->step++;
    r->own = NOT_BEGUN;
    r->ward = m->replicas ? SEALED : NOT_BEGUN;
    r->arrived = r->past = 0;
    if (r->step > w->newest)
        w->newest = r->step;
}

static bool all_arrived(const struct model *m, const struct world *w, int step)
{
    for (int i = 0; i < m->n; i++)
        if (w->ranks[i].step < step || (w->ranks[i].step == step && !w->ranks[i].arrived))
            return false;
    return true;
}

/* What rank i can do next. */
static void act(struct model *m, const struct world *from, int i)
{
    int before = (i + m->n - 1) % m->n;
    struct world w = *from;
    struct rank *r = &w.ranks[i];
    const struct rank *ward = &from->ranks[before];
    if (r->step == m->last_step)
        return;
    if (r->own == NOT_BEGUN) {
        int slot = take(m, from, r, 0);
        r->own = FILLING;
        r->own_slot = (uint8_t)slot;
        if (slot >= 0)
            visit(m, &w);
    } else if (r->own == FILLING) {
        seal(from, r, r->own_slot, i);
        r->own = SEALED;
        visit(m, &w);
    }
    w = *from;
    bool sent = (ward->step == r->step && ward->own == SEALED) || ward->step > r->step;
    if (r->ward == NOT_BEGUN && sent) {
        int slot = take(m, from, r, m->slots);
        r->ward = FILLING;
        r->ward_slot = (uint8_t)slot;
        if (slot >= 0)
            visit(m, &w);
    } else if (r->ward == FILLING) {
        seal(from, r, r->ward_slot, before);
        r->ward = SEALED;
        visit(m, &w);
    }
    w = *from;
    if (!r->arrived && (m->late || joined(r))) {
        r->arrived = 1;
        visit(m, &w);
    } else if (r->arrived && !r->past && all_arrived(m, from, r->step)) {
        r->past = 1;
        visit(m, &w);
    } else if (r->past && joined(r)) {
        update(m, &w, i);
        visit(m, &w);
    }
}

static bool holds(const struct model *m, const struct rank *r, int first, int of, int generation,
                  int step)
{
    for (int i = first; i < first + m->slots; i++) {
        const struct cell *c = &r->cells[i];
        if (c->valid && c->of == of && c->generation == generation && c->step == step)
            return true;
    }
    return false;
}

/* The other rank that has rank i's state. */
static int second(const struct model *m, int i)
{
    return (i + (m->replicas ? m->n / 2 : 1)) % m->n;
}

/* Everybody's image of that state, with node `dead` (-1: none) gone. */
static bool whole(const struct model *m, const struct world *w, int dead, int generation, int step)
{
    for (int i = 0; i < m->n; i++) {
        int other = second(m, i), first = m->replicas ? 0 : m->slots, of = m->replicas ? other : i;
        if (!(i != dead && holds(m, &w->ranks[i], 0, i, generation, step)) &&
            !(other != dead && holds(m, &w->ranks[other], first, of, generation, step)))
            return false;
    }
    return true;
}

static bool newest_whole(const struct model *m, const struct world *w, int dead, int *generation,
                         int *step)
{
    for (*generation = w->generation; *generation > 0; --*generation)
        for (*step = m->last_step; *step >= 0; --*step)
            if (whole(m, w, dead, *generation, *step))
                return true;
    return false;
}

/* Generation 3 begins: a killed process finds its memory, a new node has none. Copies of the state
 * that it goes on from are made where there are none. */
static void restart(struct model *m, const struct world *from, int dead, int generation, int step)
{
    struct world w = {.generation = (uint8_t)(from->generation + 1),
                      .newest = (uint8_t)step,
                      .from_generation = (uint8_t)generation,
                      .from = (uint8_t)step,
                      .lost = (uint8_t)(dead + 1)};
    for (int i = 0; i < m->n; i++) {
        struct rank *r = &w.ranks[i];
        r->step = (uint8_t)step;
        r->kept_generation = (uint8_t)generation;
        r->kept = (uint8_t)step;
        if (i != dead)
            memcpy(r->cells, from->ranks[i].cells, sizeof r->cells);
        if (holds(m, r, 0, i, generation, step))
            r->own = SEALED;
        if (m->replicas || holds(m, r, m->slots, (i + m->n - 1) % m->n, generation, step))
            r->ward = SEALED;
    }
    visit(m, &w);
}

/* The pair of the node that was lost in generation 2, before its copies are whole again: then
 * memory may be gone, and the files on disk are what is left. */
static bool pair_of_lost(const struct model *m, const struct world *w, int dead)
{
    int lost = w->lost - 1;
    if (m->replicas)
        return lost >= 0 && dead == second(m, lost);
    return lost >= 0 && dead >= 0 &&
           (dead == (lost + 1) % m->n || dead == (lost + m->n - 1) % m->n || dead == lost);
}

static void kill_one(struct model *m, const struct world *w, int dead, bool again)
{
    int generation, step;
    m->checked++;
    if (!newest_whole(m, w, dead, &generation, &step)) {
        m->gone |= !pair_of_lost(m, w, dead);
        return;
    }
    if (w->newest - step > m->worst)
        m->worst = w->newest - step;
    if (again)
        restart(m, w, dead, generation, step);
}

static void explore(struct model *m, bool again)
{
    m->queue = calloc(TABLE / 2, sizeof *m->queue);
    m->seen = calloc(TABLE, sizeof *m->seen);
    assert_true(m->queue && m->seen);
    struct world first = {.generation = 2, .from_generation = 1};
    for (int i = 0; i < m->n; i++) {
        /* As a restore leaves it: the state of step 0 is everywhere, of generation 1. */
        first.ranks[i].cells[0] = (struct cell){1, 1, 0, (uint8_t)i};
        if (!m->replicas)
            first.ranks[i].cells[m->slots] =
                (struct cell){1, 1, 0, (uint8_t)((i + m->n - 1) % m->n)};
        first.ranks[i].kept_generation = 1;
        first.ranks[i].own = first.ranks[i].ward = SEALED;
    }
    visit(m, &first);
    for (int64_t at = 0; at < m->n_seen; at++) {
        struct world w = m->queue[at];
        for (int dead = -1; dead < m->n; dead++)
            kill_one(m, &w, dead, again && w.generation == 2);
        for (int i = 0; i < m->n; i++)
            act(m, &w, i);
    }
    free(m->queue);
    free(m->seen);
}

/* Two slots, and a join before the sum: what the run does. */
static void always_a_common_state(void **state)
{
    (void)state;
    for (int n = 2; n <= MAX_RANKS; n++) {
        struct model m = {.n = n, .slots = 2, .last_step = n < 4 ? LAST_STEP : 2};
        explore(&m, true);
        print_message("%d ranks: %lld states, %d kills\n", n, (long long)m.n_seen, m.checked);
        assert_false(m.stuck);
        assert_false(m.gone);
        assert_int_equal(m.worst, 1);
    }
}

/* The same for replicas, without a copy sent. */
static void replicas_are_copies(void **state)
{
    (void)state;
    for (int n = 2; n <= MAX_RANKS; n += 2) {
        struct model m = {.n = n, .slots = 2, .replicas = true, .last_step = LAST_STEP};
        explore(&m, true);
        print_message("%d ranks: %lld states, %d kills\n", n, (long long)m.n_seen, m.checked);
        assert_false(m.stuck);
        assert_false(m.gone);
        assert_int_equal(m.worst, 1);
    }
}

/* Two slots with a confirmation that comes a step late: no slot is left to fill. */
static void late_confirmation_needs_three(void **state)
{
    (void)state;
    struct model two = {.n = 2, .slots = 2, .late = true, .last_step = LAST_STEP};
    explore(&two, false);
    assert_true(two.stuck);
    struct model three = {.n = 2, .slots = 3, .late = true, .last_step = LAST_STEP};
    explore(&three, false);
    assert_false(three.stuck);
    assert_false(three.gone);
    assert_int_equal(three.worst, 2); /* and it costs a step */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule),
        cmocka_unit_test(always_a_common_state),
        cmocka_unit_test(replicas_are_copies),
        cmocka_unit_test(late_confirmation_needs_three),
    };
    return cmocka_run_group_tests_name("slots", tests, NULL, NULL);
}
