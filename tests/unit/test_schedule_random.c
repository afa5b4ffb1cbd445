/* Programs run in random order, as late and as mixed as streams and waits allow.
 *
 * program_check reasons about order; this does not: it runs. Every buffer holds the number of the
 * microbatch whose values it has, every action reads and writes these numbers at a random moment at
 * which it may run, and a message is read from the sender's buffer only when it arrives. A missing
 * wait is then a wrong number, sooner or later, for some seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "train/program.h"

enum { MOST_STAGES = 5, MOST_ACTIONS = 256, MOST_SLOTS = 16 };

struct rank {
    struct program p;
    int done[MOST_ACTIONS], delivered[MOST_ACTIONS];
    /* A slot's buffers: the microbatch whose values they hold. */
    int tokens[MOST_SLOTS], input[MOST_SLOTS], saved[MOST_SLOTS], output[MOST_SLOTS],
        output_grad[MOST_SLOTS], input_grad[MOST_SLOTS];
    int grads; /* microbatches in them */
    int normed, updated;
};

struct run {
    struct rank ranks[MOST_STAGES];
    int n;
    uint64_t random;
    char wrong[200]; /* the first wrong number */
};

static size_t below(struct run *r, size_t n)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return (size_t)(r->random % n);
}

static int is_send(enum action_kind kind)
{
    return kind == ACTION_SEND_FORWARD || kind == ACTION_SEND_BACKWARD;
}

static int is_receive(enum action_kind kind)
{
    return kind == ACTION_RECV_FORWARD || kind == ACTION_RECV_BACKWARD;
}

static void expect(struct run *r, int stage, const struct action *a, const char *buffer, int has)
{
    char text[100];
    if (has == a->microbatch || r->wrong[0])
        return;
    action_text(a, text, sizeof text);
    snprintf(r->wrong, sizeof r->wrong, "stage %d: %s finds %d in %s", stage, text, has, buffer);
}

/* The send whose message this receive gets: the peer's for the same microbatch. */
static int partner(const struct run *r, const struct action *a)
{
    const struct program *p = &r->ranks[a->peer_stage].p;
    enum action_kind kind =
        a->kind == ACTION_RECV_FORWARD ? ACTION_SEND_FORWARD : ACTION_SEND_BACKWARD;
    for (int i = 0; i < p->n; i++)
        if (p->actions[i].kind == kind && p->actions[i].microbatch == a->microbatch)
            return i;
    return -1;
}

static int may_run(const struct run *r, int stage, int index)
{
    const struct rank *rank = &r->ranks[stage];
    const struct action *a = &rank->p.actions[index];
    if (rank->done[index])
        return 0;
    for (int i = 0; i < index; i++)
        if (rank->p.actions[i].stream == a->stream && !rank->done[i])
            return 0;
    for (int i = 0; i < a->n_waits; i++) {
        int on = a->waits[i];
        if (!(is_send(rank->p.actions[on].kind) ? rank->delivered[on] : rank->done[on]))
            return 0;
    }
    return !is_receive(a->kind) || r->ranks[a->peer_stage].done[partner(r, a)];
}

static void receive(struct run *r, int stage, const struct action *a)
{
    struct rank *from = &r->ranks[a->peer_stage], *to = &r->ranks[stage];
    int index = partner(r, a), slot = from->p.actions[index].slot;
    from->delivered[index] = 1;
    if (a->kind == ACTION_RECV_FORWARD) {
        to->input[a->slot] = from->output[slot];
        expect(r, stage, a, "the output it is sent", to->input[a->slot]);
    } else {
        to->output_grad[a->slot] = from->input_grad[slot];
        expect(r, stage, a, "the gradient it is sent", to->output_grad[a->slot]);
    }
}

static void backward_weight(struct run *r, int stage, const struct action *a)
{
    struct rank *k = &r->ranks[stage];
    int first = stage == 0, last = stage == r->n - 1;
    expect(r, stage, a, "saved", k->saved[a->slot]);
    expect(r, stage, a, "input's gradient", k->input_grad[a->slot]);
    if (!first)
        expect(r, stage, a, "input", k->input[a->slot]);
    if (!last)
        expect(r, stage, a, "output's gradient", k->output_grad[a->slot]);
    if (first || last)
        expect(r, stage, a, "tokens", k->tokens[a->slot]);
    k->grads++;
}

/* The gradients are whole, and what comes before this kind of action has been done. */
static void update(struct run *r, int stage, const struct action *a)
{
    struct rank *k = &r->ranks[stage];
    int late = k->grads != k->p.microbatches;
    for (int i = 0; i < k->p.n; i++)
        late |= k->p.actions[i].microbatch < 0 && k->p.actions[i].kind < a->kind && !k->done[i];
    if (late && !r->wrong[0])
        snprintf(r->wrong, sizeof r->wrong, "stage %d: %s of gradients that are not whole", stage,
                 action_name(a->kind));
    k->normed |= a->kind == ACTION_NORM;
}

static void act(struct run *r, int stage, int index)
{
    struct rank *k = &r->ranks[stage];
    const struct action *a = &k->p.actions[index];
    int first = stage == 0, last = stage == r->n - 1;
    switch (a->kind) {
    case ACTION_LOAD:
        k->tokens[a->slot] = a->microbatch;
        break;
    case ACTION_RECV_FORWARD:
    case ACTION_RECV_BACKWARD:
        receive(r, stage, a);
        break;
    case ACTION_FORWARD:
        if (first || last)
            expect(r, stage, a, "tokens", k->tokens[a->slot]);
        if (!first)
            expect(r, stage, a, "input", k->input[a->slot]);
        k->saved[a->slot] = k->output[a->slot] = a->microbatch;
        break;
    case ACTION_BACKWARD_INPUT:
        expect(r, stage, a, "saved", k->saved[a->slot]);
        if (!last)
            expect(r, stage, a, "output's gradient", k->output_grad[a->slot]);
        k->input_grad[a->slot] = a->microbatch;
        break;
    case ACTION_BACKWARD_WEIGHT:
        backward_weight(r, stage, a);
        break;
    case ACTION_REDUCE_TIED:
    case ACTION_REDUCE_GRADS:
    case ACTION_NORM:
        update(r, stage, a);
        break;
    case ACTION_OPTIMIZER:
        k->updated = k->normed;
        break;
    default:
        break; /* sends are read when they arrive */
    }
    k->done[index] = 1;
}

/* Pick among all that may run. Biased to one stage and stream for a while, so that one runs far
 * ahead of the others. Returns the number of actions run. */
static int run_all(struct run *r)
{
    int total = 0, done = 0;
    size_t favourite = 0;
    for (int s = 0; s < r->n; s++)
        total += r->ranks[s].p.n;
    while (done < total && !r->wrong[0]) {
        int stages[MOST_STAGES * PROGRAM_STREAMS], indices[MOST_STAGES * PROGRAM_STREAMS];
        size_t n = 0;
        for (int s = 0; s < r->n; s++)
            for (int i = 0; i < r->ranks[s].p.n; i++)
                if (may_run(r, s, i)) {
                    stages[n] = s;
                    indices[n++] = i;
                }
        if (n == 0)
            break;
        if (below(r, 6) == 0)
            favourite = below(r, sizeof stages / sizeof *stages);
        size_t pick = below(r, 3) == 0 ? below(r, n) : favourite % n;
        act(r, stages[pick], indices[pick]);
        done++;
    }
    return done == total;
}

static void run_open(struct run *r, int stages, int m, enum plan_schedule schedule, uint64_t seed)
{
    struct plan plan = {.accumulation = m, .model = {.layers = stages, .tied = true}};
    struct err err = {""};
    memset(r, 0, sizeof *r);
    r->n = stages;
    r->random = seed * 0x9e3779b97f4a7c15u + 1;
    plan.parallel.pipeline = stages;
    plan.parallel.virtual_stages = 1;
    plan.parallel.data = 2;
    plan.parallel.schedule = schedule;
    for (int s = 0; s < stages; s++) {
        struct rank *k = &r->ranks[s];
        if (program_make(&k->p, &plan, 0, s, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(k->p.n <= MOST_ACTIONS && k->p.slots <= MOST_SLOTS);
        memset(k->tokens, 0xff, 6 * sizeof k->tokens);
    }
}

static void run_close(struct run *r)
{
    for (int s = 0; s < r->n; s++)
        program_free(&r->ranks[s].p);
}

static void test_any_order_is_right(void **state)
{
    static struct run r;
    (void)state;
    for (int stages = 1; stages <= MOST_STAGES; stages++)
        for (int m = 1; m <= 9; m += 2)
            for (uint64_t seed = 0; seed < 24; seed++) {
                run_open(&r, stages, m, seed % 2 ? PLAN_GPIPE : PLAN_1F1B, seed + 1);
                int whole = run_all(&r);
                if (r.wrong[0] || !whole)
                    fail_msg("%d stages, %d microbatches, seed %d: %s", stages, m, (int)seed,
                             whole ? r.wrong : "stands still");
                for (int s = 0; s < stages; s++)
                    assert_true(r.ranks[s].updated);
                run_close(&r);
            }
}

/* The checker and this test hold each other: taking a wait out of the middle stage's program leads
 * to a wrong number under some seed if, and only if, the checker refuses it. Waits for sends are
 * the exception: mostly another stage's program implies that the message has arrived (a later
 * message from there would not be here otherwise), yet the request is still to be waited for, and
 * so the checker, which looks at one stage, refuses. At the end of a step nothing implies it. */
static void test_agrees_with_checker(void **state)
{
    static struct run r;
    int needed = 0, needed_sends = 0;
    (void)state;
    run_open(&r, 3, 5, PLAN_1F1B, 1);
    int actions = r.ranks[1].p.n;
    run_close(&r);
    for (int index = 0; index < actions; index++)
        for (int wait = 0; wait < PROGRAM_MAX_WAITS; wait++) {
            int wrong = 0, refused = 0, send = 0;
            for (uint64_t seed = 1; seed <= 300 && !wrong; seed++) {
                run_open(&r, 3, 5, PLAN_1F1B, seed);
                struct action *a = &r.ranks[1].p.actions[index];
                if (wait >= a->n_waits) {
                    run_close(&r);
                    break;
                }
                send = is_send(r.ranks[1].p.actions[a->waits[wait]].kind);
                a->waits[wait] = a->waits[--a->n_waits];
                struct program p[3] = {r.ranks[0].p, r.ranks[1].p, r.ranks[2].p};
                refused = program_check(p, 3, NULL) < 0;
                run_all(&r);
                wrong = r.wrong[0] != 0;
                run_close(&r);
            }
            if (wrong && !refused)
                fail_msg("action %d, wait %d: %s, but the checker is content", index, wait,
                         r.wrong);
            if (refused && !wrong && !send)
                fail_msg("action %d, wait %d: the checker sees danger that never comes", index,
                         wait);
            needed += refused;
            needed_sends += send && wrong;
        }
    assert_true(needed > 20);
    assert_true(needed_sends > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order_is_right),
        cmocka_unit_test(test_agrees_with_checker),
    };
    return cmocka_run_group_tests_name("schedule in random order", tests, NULL, NULL);
}
