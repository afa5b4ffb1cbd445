/* program.c - makes a stage's program from the plan.
 *
 * Both schedules are the same loop: `ahead` forwards, then one forward and one backward in turns,
 * then the backwards that are left. GPipe is the case where all forwards come ahead; 1F1B has as
 * many ahead as there are stages behind this one (Narayanan et al. 2021, figure 4):
 *
 *   3 stages, 4 microbatches     stage 0   F0 F1 F2 B0 F3 B1 B2 B3
 *                                stage 1   F0 F1 B0 F2 B1 F3 B2 B3
 *                                stage 2   F0 B0 F1 B1 F2 B2 F3 B3
 *
 * Where waits come from, for microbatch i in slot k and h = i - slots, which had the slot before:
 *
 * - RECV_FORWARD i overwrites the slot's input: it waits for BACKWARD_WEIGHT h, the last reader;
 * - FORWARD i reads the input and overwrites the output: for RECV_FORWARD i and SEND_FORWARD h;
 * - SEND_FORWARD i reads the output: for FORWARD i;
 * - RECV_BACKWARD i overwrites the output's gradient: for BACKWARD_WEIGHT h;
 * - BACKWARD_INPUT i reads that and overwrites the input's gradient: for RECV_BACKWARD i and
 *   SEND_BACKWARD h;
 * - SEND_BACKWARD i reads the input's gradient: for BACKWARD_INPUT i, not for the weights' part, so
 *   it goes out early;
 * - the reductions wait for the last BACKWARD_WEIGHT, NORM waits for them.
 *
 * Everything else is ordered by its stream: all computing is on one, all messages on the other. */
#include "train/program.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A run of the validation has no backward to bound it; this bounds the program's memory. */
enum { MAX_MICROBATCHES = 1 << 20 };

struct maker {
    struct program *p;
    int room;
    bool forward_only;
    /* Index of the newest action of each kind in each slot; -1: none. [kind * slots + slot] */
    int *newest;
    struct err *err;
};

static int *newest(struct maker *m, enum action_kind kind, int slot)
{
    return &m->newest[kind * m->p->slots + slot];
}

static int stream_of(enum action_kind kind)
{
    switch (kind) {
    case ACTION_RECV_FORWARD:
    case ACTION_SEND_FORWARD:
    case ACTION_RECV_BACKWARD:
    case ACTION_SEND_BACKWARD:
    case ACTION_REDUCE_TIED:
    case ACTION_REDUCE_GRADS:
        return PROGRAM_STREAM_COMM;
    default:
        return PROGRAM_STREAM_COMPUTE;
    }
}

static int add_wait(struct maker *m, struct action *a, int on)
{
    if (on < 0)
        return 0;
    if (a->n_waits == PROGRAM_MAX_WAITS)
        return err_set(m->err, "a %s would wait for more than %d actions", action_name(a->kind),
                       PROGRAM_MAX_WAITS);
    a->waits[a->n_waits++] = on;
    return 0;
}

static struct action *append(struct maker *m, enum action_kind kind, int microbatch, int peer)
{
    struct program *p = m->p;
    if (p->n == m->room) {
        int room = m->room ? 2 * m->room : 64;
        struct action *grown = realloc(p->actions, (size_t)room * sizeof *grown);
        if (!grown) {
            err_set(m->err, "not enough memory for a program of %d actions", room);
            return NULL;
        }
        p->actions = grown;
        m->room = room;
    }
    struct action *a = &p->actions[p->n++];
    *a = (struct action){.kind = kind,
                         .microbatch = microbatch,
                         .slot = microbatch < 0 ? -1 : microbatch % p->slots,
                         .peer_stage = peer,
                         .stream = stream_of(kind)};
    return a;
}

/* An action of a microbatch that waits for what the two kinds last did in its slot. */
static int add(struct maker *m, enum action_kind kind, int microbatch, int peer,
               enum action_kind first, enum action_kind second)
{
    struct action *a = append(m, kind, microbatch, peer);
    if (!a)
        return -1;
    int waits[2] = {first < ACTION_KINDS ? *newest(m, first, a->slot) : -1,
                    second < ACTION_KINDS ? *newest(m, second, a->slot) : -1};
    *newest(m, kind, a->slot) = m->p->n - 1;
    if (add_wait(m, a, waits[0]) < 0 || (waits[1] != waits[0] && add_wait(m, a, waits[1]) < 0))
        return -1;
    return 0;
}

#define NONE ACTION_KINDS

static int add_forward(struct maker *m, int microbatch)
{
    int stage = m->p->stage, last = m->p->stages - 1;
    enum action_kind reader = m->forward_only ? ACTION_FORWARD : ACTION_BACKWARD_WEIGHT;
    if ((stage == 0 || stage == last) && add(m, ACTION_LOAD, microbatch, -1, NONE, NONE) < 0)
        return -1;
    if (stage > 0 && add(m, ACTION_RECV_FORWARD, microbatch, stage - 1, reader, NONE) < 0)
        return -1;
    if (add(m, ACTION_FORWARD, microbatch, -1, ACTION_RECV_FORWARD, ACTION_SEND_FORWARD) < 0)
        return -1;
    if (stage < last &&
        add(m, ACTION_SEND_FORWARD, microbatch, stage + 1, ACTION_FORWARD, NONE) < 0)
        return -1;
    return 0;
}

static int add_backward(struct maker *m, int microbatch)
{
    int stage = m->p->stage, last = m->p->stages - 1;
    if (stage < last &&
        add(m, ACTION_RECV_BACKWARD, microbatch, stage + 1, ACTION_BACKWARD_WEIGHT, NONE) < 0)
        return -1;
    if (add(m, ACTION_BACKWARD_INPUT, microbatch, -1, ACTION_RECV_BACKWARD, ACTION_SEND_BACKWARD) <
        0)
        return -1;
    if (stage > 0 &&
        add(m, ACTION_SEND_BACKWARD, microbatch, stage - 1, ACTION_BACKWARD_INPUT, NONE) < 0)
        return -1;
    return add(m, ACTION_BACKWARD_WEIGHT, microbatch, -1, NONE, NONE);
}

/* After the last backward: gradients together, norm, new weights. */
static int add_update(struct maker *m, const struct plan *plan)
{
    int stage = m->p->stage, last = m->p->stages - 1;
    int before = m->p->n - 1; /* the last BACKWARD_WEIGHT */
    struct action *a;
    if (plan->model.tied && (stage == 0 || stage == last)) {
        int peer = last == 0 ? -1 : last - stage;
        if (!(a = append(m, ACTION_REDUCE_TIED, -1, peer)) || add_wait(m, a, before) < 0)
            return -1;
        before = m->p->n - 1;
    }
    if (plan->parallel.data > 1) {
        if (!(a = append(m, ACTION_REDUCE_GRADS, -1, -1)) || add_wait(m, a, before) < 0)
            return -1;
        before = m->p->n - 1;
    }
    if (!(a = append(m, ACTION_NORM, -1, -1)) || add_wait(m, a, before) < 0)
        return -1;
    if (!append(m, ACTION_OPTIMIZER, -1, -1) || !append(m, ACTION_READ_BACK, -1, -1))
        return -1;
    return 0;
}

static int maker_open(struct maker *m, const struct plan *plan, int replica, int stage)
{
    int stages = plan->parallel.pipeline;
    int64_t first, microbatches;
    plan_replica_microbatches(plan, replica, &first, &microbatches);
    if (replica < 0 || replica >= plan->parallel.data)
        return err_set(m->err, "there is no replica %d of %d", replica, plan->parallel.data);
    if (stage < 0 || stage >= stages)
        return err_set(m->err, "there is no stage %d in a pipeline of %d", stage, stages);
    if (microbatches < 1 || microbatches > MAX_MICROBATCHES)
        return err_set(m->err, "a program of %lld microbatches: use 1 to %d",
                       (long long)microbatches, MAX_MICROBATCHES);
    if (plan->parallel.virtual_stages > 1)
        return plan_error(plan, "parallel.virtual", m->err,
                          "parallel.virtual is %d, but this version has no interleaved schedule: "
                          "use 1",
                          plan->parallel.virtual_stages);
    int64_t slots = plan_stage_slots(plan, stage);
    m->p->stage = stage;
    m->p->stages = stages;
    m->p->microbatches = microbatches;
    m->p->slots = (int)(slots < microbatches ? slots : microbatches);
    size_t n = (size_t)ACTION_KINDS * (size_t)m->p->slots;
    m->newest = malloc(n * sizeof *m->newest);
    if (!m->newest)
        return err_set(m->err, "not enough memory for a program");
    for (size_t i = 0; i < n; i++)
        m->newest[i] = -1;
    return 0;
}

int program_make(struct program *p, const struct plan *plan, int replica, int stage,
                 struct err *err)
{
    struct maker m = {.p = p, .err = err};
    *p = (struct program){0};
    if (maker_open(&m, plan, replica, stage) < 0)
        goto fail;
    /* slots = the forwards ahead + the one that its own backward follows. */
    int n = (int)p->microbatches, ahead = p->slots - 1;
    for (int i = 0; i < ahead; i++)
        if (add_forward(&m, i) < 0)
            goto fail;
    for (int i = 0; i < n; i++)
        if ((ahead + i < n && add_forward(&m, ahead + i) < 0) || add_backward(&m, i) < 0)
            goto fail;
    if (add_update(&m, plan) < 0)
        goto fail;
    free(m.newest);
    return 0;
fail:
    free(m.newest);
    program_free(p);
    return -1;
}

int program_make_validation(struct program *p, const struct plan *plan, int replica, int stage,
                            struct err *err)
{
    struct maker m = {.p = p, .forward_only = true, .err = err};
    *p = (struct program){0};
    if (maker_open(&m, plan, replica, stage) < 0)
        goto fail;
    for (int i = 0; i < (int)p->microbatches; i++)
        if (add_forward(&m, i) < 0)
            goto fail;
    free(m.newest);
    return 0;
fail:
    free(m.newest);
    program_free(p);
    return -1;
}

void program_free(struct program *p)
{
    free(p->actions);
    *p = (struct program){0};
}

const char *action_name(enum action_kind kind)
{
    static const char *const names[ACTION_KINDS] = {
        [ACTION_LOAD] = "load",
        [ACTION_RECV_FORWARD] = "receive forward",
        [ACTION_FORWARD] = "forward",
        [ACTION_SEND_FORWARD] = "send forward",
        [ACTION_RECV_BACKWARD] = "receive backward",
        [ACTION_BACKWARD_INPUT] = "backward input",
        [ACTION_SEND_BACKWARD] = "send backward",
        [ACTION_BACKWARD_WEIGHT] = "backward weight",
        [ACTION_REDUCE_TIED] = "reduce tied",
        [ACTION_REDUCE_GRADS] = "reduce grads",
        [ACTION_NORM] = "norm",
        [ACTION_OPTIMIZER] = "optimizer",
        [ACTION_READ_BACK] = "read back",
    };
    return (unsigned)kind < ACTION_KINDS ? names[kind] : "unknown action";
}

void action_text(const struct action *a, char *text, size_t size)
{
    if (a->microbatch < 0)
        snprintf(text, size, "%s", action_name(a->kind));
    else
        snprintf(text, size, "%s of microbatch %d in slot %d", action_name(a->kind), a->microbatch,
                 a->slot);
}
