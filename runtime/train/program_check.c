/* program_check.c - is a set of programs right? It knows what actions mean, not how they were made.
 *
 * Three questions, in this order:
 * 1. Form: do indices, slots, streams and peers exist, is each microbatch handled exactly once?
 * 2. Order within a stage: every action reads and writes buffers (the table in `uses`). A read must
 *    find what the same microbatch wrote, and any two uses of a buffer of which one writes must be
 *    ordered by streams and waits, not by luck. For that, each action carries a small vector clock:
 *    per stream, the last action that is sure to have passed when it starts (Lamport 1978; Mattern
 *    1989). A send reads its buffer until a wait says that it is done.
 * 3. Order among stages: a walk (program_walk.c) that must come to its end. */
#include "train/program.h"
#include "train/program_walk.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum buffer {
    BUFFER_TOKENS,
    BUFFER_INPUT,
    BUFFER_SAVED,
    BUFFER_OUTPUT,
    BUFFER_OUTPUT_GRAD,
    BUFFER_INPUT_GRAD,
    SLOT_BUFFERS,
    BUFFER_GRADS = SLOT_BUFFERS, /* from here on one a rank */
    BUFFER_WEIGHTS,
    BUFFER_FACTOR,
    BUFFERS
};

enum {
    READ = 1,
    WRITE = 2,
    UPDATE = READ | WRITE,
    ENDS = 4,
    FIRST = 8,
    NOT_FIRST = 16,
    NOT_LAST = 32
};

/* ENDS: on the first and the last stage only, and so on. */
static const struct use {
    enum action_kind kind;
    enum buffer buffer;
    int how;
} uses[] = {
    {ACTION_LOAD, BUFFER_TOKENS, WRITE},
    {ACTION_RECV_FORWARD, BUFFER_INPUT, WRITE},
    {ACTION_FORWARD, BUFFER_TOKENS, READ | ENDS},
    {ACTION_FORWARD, BUFFER_INPUT, READ | NOT_FIRST},
    {ACTION_FORWARD, BUFFER_WEIGHTS, READ},
    {ACTION_FORWARD, BUFFER_SAVED, WRITE},
    {ACTION_FORWARD, BUFFER_OUTPUT, WRITE | NOT_LAST},
    {ACTION_SEND_FORWARD, BUFFER_OUTPUT, READ},
    {ACTION_RECV_BACKWARD, BUFFER_OUTPUT_GRAD, WRITE},
    {ACTION_BACKWARD_INPUT, BUFFER_OUTPUT_GRAD, READ | NOT_LAST},
    {ACTION_BACKWARD_INPUT, BUFFER_INPUT, READ | NOT_FIRST},
    {ACTION_BACKWARD_INPUT, BUFFER_WEIGHTS, READ},
    {ACTION_BACKWARD_INPUT, BUFFER_SAVED, UPDATE},
    {ACTION_BACKWARD_INPUT, BUFFER_INPUT_GRAD, WRITE},
    {ACTION_SEND_BACKWARD, BUFFER_INPUT_GRAD, READ},
    {ACTION_BACKWARD_WEIGHT, BUFFER_TOKENS, READ | ENDS},
    {ACTION_BACKWARD_WEIGHT, BUFFER_INPUT, READ | NOT_FIRST},
    {ACTION_BACKWARD_WEIGHT, BUFFER_SAVED, READ},
    {ACTION_BACKWARD_WEIGHT, BUFFER_OUTPUT_GRAD, READ | NOT_LAST},
    {ACTION_BACKWARD_WEIGHT, BUFFER_INPUT_GRAD, READ},
    {ACTION_BACKWARD_WEIGHT, BUFFER_GRADS, WRITE},
    {ACTION_REDUCE_TIED, BUFFER_GRADS, UPDATE},
    {ACTION_REDUCE_GRADS, BUFFER_GRADS, UPDATE},
    {ACTION_NORM, BUFFER_GRADS, READ},
    {ACTION_NORM, BUFFER_FACTOR, WRITE},
    {ACTION_OPTIMIZER, BUFFER_FACTOR, READ},
    {ACTION_OPTIMIZER, BUFFER_GRADS, UPDATE},
    {ACTION_OPTIMIZER, BUFFER_WEIGHTS, UPDATE},
    {ACTION_READ_BACK, BUFFER_FACTOR, READ},
};

static const char *const buffer_names[BUFFERS] = {
    [BUFFER_TOKENS] = "tokens",
    [BUFFER_INPUT] = "input",
    [BUFFER_SAVED] = "saved values",
    [BUFFER_OUTPUT] = "output",
    [BUFFER_OUTPUT_GRAD] = "output's gradient",
    [BUFFER_INPUT_GRAD] = "input's gradient",
    [BUFFER_GRADS] = "weights' gradients",
    [BUFFER_WEIGHTS] = "weights",
    [BUFFER_FACTOR] = "clip factor",
};

/* Who used a buffer since it was last written. */
struct state {
    int writer;                   /* -1: nobody yet */
    int readers[PROGRAM_STREAMS]; /* the newest of each stream: it stands for the older ones */
    int send;                     /* a send that reads it, -1 */
};

struct checker {
    const struct program *p;
    int (*passed)[PROGRAM_STREAMS]; /* of each action: its vector clock */
    int *waiter;                    /* of each send: the first action that waits for it, -1 */
    struct state *states;           /* slot buffers by slot, then the others */
    unsigned char *count;           /* [kind * microbatches + microbatch] */
    struct err *err;
};

static int fail(const struct checker *c, int index, const char *what)
{
    char text[120];
    action_text(&c->p->actions[index], text, sizeof text);
    return err_set(c->err, "stage %d, action %d (%s): %s", c->p->stage, index, text, what);
}

static bool is_send(enum action_kind kind)
{
    return kind == ACTION_SEND_FORWARD || kind == ACTION_SEND_BACKWARD;
}

/* ---- form ---- */

static int expected_peer(const struct program *p, enum action_kind kind)
{
    switch (kind) {
    case ACTION_RECV_FORWARD:
    case ACTION_SEND_BACKWARD:
        return p->stage - 1;
    case ACTION_SEND_FORWARD:
    case ACTION_RECV_BACKWARD:
        return p->stage + 1;
    case ACTION_REDUCE_TIED:
        return p->stages == 1 ? -1 : p->stages - 1 - p->stage;
    default:
        return -1;
    }
}

static int check_action(struct checker *c, int index)
{
    const struct program *p = c->p;
    const struct action *a = &p->actions[index];
    if ((unsigned)a->kind >= ACTION_KINDS)
        return err_set(c->err, "stage %d, action %d: no such kind of action", p->stage, index);
    bool of_one = a->kind <= ACTION_BACKWARD_WEIGHT;
    if (a->stream < 0 || a->stream >= PROGRAM_STREAMS)
        return fail(c, index, "no such stream");
    if (of_one && (a->microbatch < 0 || a->microbatch >= p->microbatches || a->slot < 0 ||
                   a->slot >= p->slots))
        return fail(c, index, "no such microbatch or slot");
    if (!of_one && (a->microbatch >= 0 || a->slot >= 0))
        return fail(c, index, "is not about one microbatch");
    int peer = expected_peer(p, a->kind);
    if (a->peer_stage != peer || peer >= p->stages)
        return fail(c, index, "the wrong peer");
    if (a->n_waits < 0 || a->n_waits > PROGRAM_MAX_WAITS)
        return fail(c, index, "too many waits");
    for (int i = 0; i < a->n_waits; i++)
        if (a->waits[i] < 0 || a->waits[i] >= index)
            return fail(c, index, "waits for what does not come before it");
    if (of_one && c->count[(size_t)a->kind * (size_t)p->microbatches + (size_t)a->microbatch]++)
        return fail(c, index, "is there twice");
    return 0;
}

/* Must this kind be there for each microbatch? */
static bool is_due(const struct program *p, enum action_kind kind, bool training)
{
    bool first = p->stage == 0, last = p->stage == p->stages - 1;
    switch (kind) {
    case ACTION_LOAD:
        return first || last;
    case ACTION_FORWARD:
        return true;
    case ACTION_RECV_FORWARD:
        return !first;
    case ACTION_SEND_FORWARD:
        return !last;
    case ACTION_RECV_BACKWARD:
        return training && !last;
    case ACTION_SEND_BACKWARD:
        return training && !first;
    case ACTION_BACKWARD_INPUT:
    case ACTION_BACKWARD_WEIGHT:
        return training;
    default:
        return false;
    }
}

/* What comes once a step stands after all microbatches, in the order of the kinds. */
static int check_update(struct checker *c, bool training)
{
    const struct program *p = c->p;
    int last = -1;
    bool norm = false, optimizer = false;
    for (int i = 0; i < p->n; i++) {
        int kind = (int)p->actions[i].kind;
        if (kind <= ACTION_BACKWARD_WEIGHT ? last >= 0 : kind <= last)
            return fail(c, i, "comes too late, or twice");
        if (kind > ACTION_BACKWARD_WEIGHT)
            last = kind;
        norm |= kind == ACTION_NORM;
        optimizer |= kind == ACTION_OPTIMIZER;
    }
    if (norm != training || optimizer != training)
        return err_set(c->err, "stage %d: %s", p->stage,
                       training ? "no norm or no optimizer after the backwards"
                                : "an update without backwards");
    return 0;
}

static int check_form(struct checker *c)
{
    const struct program *p = c->p;
    bool training = false;
    for (int i = 0; i < p->n; i++) {
        if (check_action(c, i) < 0)
            return -1;
        training |= p->actions[i].kind == ACTION_BACKWARD_INPUT;
    }
    for (int kind = 0; kind <= ACTION_BACKWARD_WEIGHT; kind++)
        for (int64_t i = 0; i < p->microbatches; i++)
            if (c->count[kind * p->microbatches + i] != is_due(p, (enum action_kind)kind, training))
                return err_set(c->err, "stage %d: %s of microbatch %lld is %s", p->stage,
                               action_name((enum action_kind)kind), (long long)i,
                               is_due(p, (enum action_kind)kind, training) ? "missing"
                                                                           : "not its to do");
    return check_update(c, training);
}

/* ---- order within a stage ---- */

static void later(int *clock, const int *other)
{
    for (int s = 0; s < PROGRAM_STREAMS; s++)
        if (other[s] > clock[s])
            clock[s] = other[s];
}

static void set_clocks(struct checker *c)
{
    int newest[PROGRAM_STREAMS] = {-1, -1};
    for (int i = 0; i < c->p->n; i++) {
        const struct action *a = &c->p->actions[i];
        int *clock = c->passed[i];
        int before = newest[a->stream];
        c->waiter[i] = -1;
        clock[0] = clock[1] = -1;
        if (before >= 0) {
            later(clock, c->passed[before]);
            clock[a->stream] = before;
        }
        for (int k = 0; k < a->n_waits; k++) {
            int on = a->waits[k], stream = c->p->actions[on].stream;
            later(clock, c->passed[on]);
            if (on > clock[stream])
                clock[stream] = on;
            if (c->waiter[on] < 0)
                c->waiter[on] = i;
        }
        newest[a->stream] = i;
    }
}

/* Has `first` surely passed when `second` starts? */
static bool ordered(const struct checker *c, int first, int second)
{
    return first < 0 || c->passed[second][c->p->actions[first].stream] >= first;
}

static bool send_done(const struct checker *c, int send, int by)
{
    const struct action *a = &c->p->actions[by];
    if (send < 0)
        return true;
    for (int i = 0; i < a->n_waits; i++)
        if (a->waits[i] == send)
            return true;
    return c->waiter[send] >= 0 && c->waiter[send] < by && ordered(c, c->waiter[send], by);
}

static int check_use(struct checker *c, int index, enum buffer buffer, int how)
{
    const struct action *a = &c->p->actions[index];
    char what[160];
    size_t at = buffer < SLOT_BUFFERS ? (size_t)a->slot * SLOT_BUFFERS + buffer
                                      : (size_t)c->p->slots * SLOT_BUFFERS + buffer - SLOT_BUFFERS;
    struct state *s = &c->states[at];
    const char *name = buffer_names[buffer];
    bool stale = buffer < SLOT_BUFFERS &&
                 (s->writer < 0 || c->p->actions[s->writer].microbatch != a->microbatch);

    if ((how & READ) && stale) {
        snprintf(what, sizeof what, "the %s in its slot: another microbatch's, or nobody's", name);
        return fail(c, index, what);
    }
    if (!ordered(c, s->writer, index)) {
        snprintf(what, sizeof what, "does not wait for action %d, which writes the %s", s->writer,
                 name);
        return fail(c, index, what);
    }
    if (!(how & WRITE)) {
        s->readers[a->stream] = index;
        if (is_send(a->kind))
            s->send = index;
        return 0;
    }
    for (int r = 0; r < PROGRAM_STREAMS; r++)
        if (!ordered(c, s->readers[r], index)) {
            snprintf(what, sizeof what, "overwrites the %s that action %d still reads", name,
                     s->readers[r]);
            return fail(c, index, what);
        }
    if (!send_done(c, s->send, index)) {
        snprintf(what, sizeof what, "overwrites the %s that action %d may still be sending", name,
                 s->send);
        return fail(c, index, what);
    }
    *s = (struct state){.writer = index, .readers = {-1, -1}, .send = -1};
    return 0;
}

static int check_order(struct checker *c)
{
    bool first = c->p->stage == 0, last = c->p->stage == c->p->stages - 1;
    size_t n_states = (size_t)c->p->slots * SLOT_BUFFERS + BUFFERS - SLOT_BUFFERS;
    for (size_t i = 0; i < n_states; i++)
        c->states[i] = (struct state){.writer = -1, .readers = {-1, -1}, .send = -1};
    set_clocks(c);
    for (int i = 0; i < c->p->n; i++)
        for (size_t u = 0; u < sizeof uses / sizeof *uses; u++) {
            int how = uses[u].how;
            if (uses[u].kind != c->p->actions[i].kind || ((how & ENDS) && !first && !last) ||
                ((how & NOT_FIRST) && first) || ((how & NOT_LAST) && last))
                continue;
            if (check_use(c, i, uses[u].buffer, how) < 0)
                return -1;
        }
    return 0;
}

static int check_stage(const struct program *p, struct err *err)
{
    struct checker c = {.p = p, .err = err};
    size_t n = (size_t)p->n, m = (size_t)p->microbatches, slots = (size_t)p->slots;
    int rc = -1;
    c.passed = calloc(n + 1, sizeof *c.passed);
    c.waiter = calloc(n + 1, sizeof *c.waiter);
    c.states = calloc(slots * SLOT_BUFFERS + BUFFERS, sizeof *c.states);
    c.count = calloc(m * ACTION_KINDS + 1, sizeof *c.count);
    if (!c.passed || !c.waiter || !c.states || !c.count)
        err_set(err, "not enough memory to check a program of %d actions", p->n);
    else if (check_form(&c) == 0)
        rc = check_order(&c);
    free(c.passed);
    free(c.waiter);
    free(c.states);
    free(c.count);
    return rc;
}

/* ---- among stages ---- */

struct meeting {
    const struct program *stages;
    int wrong_stage, wrong_index; /* first receive that gets another microbatch; -1 */
};

static void see(void *arg, int stage, int index, int from)
{
    struct meeting *m = arg;
    const struct action *a = &m->stages[stage].actions[index];
    if (from < 0 || m->wrong_stage >= 0)
        return;
    if (m->stages[a->peer_stage].actions[from].microbatch != a->microbatch) {
        m->wrong_stage = stage;
        m->wrong_index = index;
    }
}

int program_check(const struct program *stages, int n_stages, struct err *err)
{
    struct meeting meeting = {.stages = stages, .wrong_stage = -1};
    for (int i = 0; i < n_stages; i++) {
        const struct program *p = &stages[i];
        if (p->stage != i || p->stages != n_stages || p->n < 1 || p->slots < 1 ||
            p->microbatches < 1 || p->microbatches != stages[0].microbatches)
            return err_set(err,
                           "program %d of %d is not that stage's, or counts its microbatches "
                           "differently",
                           i, n_stages);
        if (check_stage(p, err) < 0)
            return -1;
    }
    if (program_walk(stages, n_stages, see, &meeting, err) < 0)
        return -1;
    if (meeting.wrong_stage < 0)
        return 0;
    char text[120];
    action_text(&stages[meeting.wrong_stage].actions[meeting.wrong_index], text, sizeof text);
    return err_set(err, "stage %d, action %d (%s): the message it gets is another microbatch's",
                   meeting.wrong_stage, meeting.wrong_index, text);
}
