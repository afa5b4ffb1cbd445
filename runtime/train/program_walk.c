/* program_walk.c - see program_walk.h. */
#include "train/program_walk.h"

#include <stdbool.h>
#include <stdlib.h>

enum direction { FORWARD, BACKWARD, DIRECTIONS };

/* The messages one stage sends in one direction, in their order. */
struct messages {
    int *sends; /* indices in the sender's program */
    int n, sent, received;
};

struct walker {
    const struct program *stages;
    int n_stages;
    struct messages *messages; /* [stage * DIRECTIONS + direction], by sender */
    int **order;               /* of each action of each stage: which message it sends; or -1 */
    int *next;                 /* of each stage: the action it stands at */
    bool *look;                /* of each stage: something it may wait for has happened */
    bool *at_norm;             /* of each stage: it has come to its NORM */
    int n_at_norm;
    struct err *err;
};

static bool is_send(enum action_kind kind)
{
    return kind == ACTION_SEND_FORWARD || kind == ACTION_SEND_BACKWARD;
}

static bool is_receive(enum action_kind kind)
{
    return kind == ACTION_RECV_FORWARD || kind == ACTION_RECV_BACKWARD;
}

static struct messages *sent_by(struct walker *w, int stage, enum action_kind kind)
{
    bool back = kind == ACTION_SEND_BACKWARD || kind == ACTION_RECV_BACKWARD;
    return &w->messages[stage * DIRECTIONS + (back ? BACKWARD : FORWARD)];
}

static int open_stage(struct walker *w, int stage)
{
    const struct program *p = &w->stages[stage];
    size_t room = (size_t)p->n + 1;
    w->order[stage] = malloc(room * sizeof **w->order);
    for (int d = 0; d < DIRECTIONS; d++)
        if (!(w->messages[stage * DIRECTIONS + d].sends = malloc(room * sizeof(int))))
            return -1;
    if (!w->order[stage])
        return -1;
    for (int i = 0; i < p->n; i++) {
        w->order[stage][i] = -1;
        if (!is_send(p->actions[i].kind))
            continue;
        struct messages *m = sent_by(w, stage, p->actions[i].kind);
        w->order[stage][i] = m->n;
        m->sends[m->n++] = i;
    }
    return 0;
}

static void walker_close(struct walker *w)
{
    for (int i = 0; w->messages && i < w->n_stages * DIRECTIONS; i++)
        free(w->messages[i].sends);
    for (int i = 0; w->order && i < w->n_stages; i++)
        free(w->order[i]);
    free(w->messages);
    free(w->order);
    free(w->next);
    free(w->look);
    free(w->at_norm);
}

static int walker_open(struct walker *w)
{
    size_t n = (size_t)w->n_stages;
    w->messages = calloc(n * DIRECTIONS, sizeof *w->messages);
    w->order = calloc(n, sizeof *w->order);
    w->next = calloc(n, sizeof *w->next);
    w->look = calloc(n, sizeof *w->look);
    w->at_norm = calloc(n, sizeof *w->at_norm);
    if (!w->messages || !w->order || !w->next || !w->look || !w->at_norm)
        return err_set(w->err, "not enough memory to run %d stages side by side", w->n_stages);
    for (int stage = 0; stage < w->n_stages; stage++)
        if (open_stage(w, stage) < 0)
            return err_set(w->err, "not enough memory to run %d stages side by side", w->n_stages);
    return 0;
}

static bool stands_at(const struct walker *w, int stage, enum action_kind kind)
{
    const struct program *p = &w->stages[stage];
    return w->next[stage] < p->n && p->actions[w->next[stage]].kind == kind;
}

static bool passed(const struct walker *w, int stage, enum action_kind kind)
{
    const struct program *p = &w->stages[stage];
    for (int i = w->next[stage] - 1; i >= 0; i--) {
        if (p->actions[i].kind == kind)
            return true;
        if (p->actions[i].microbatch >= 0)
            break; /* meetings come after all microbatches */
    }
    return false;
}

static bool has_come(const struct walker *w, int stage, enum action_kind kind)
{
    return stands_at(w, stage, kind) || passed(w, stage, kind);
}

static bool can_run(struct walker *w, int stage, const struct action *a)
{
    for (int i = 0; i < a->n_waits; i++) {
        const struct action *on = &w->stages[stage].actions[a->waits[i]];
        if (is_send(on->kind) &&
            w->order[stage][a->waits[i]] >= sent_by(w, stage, on->kind)->received)
            return false;
    }
    if (is_receive(a->kind)) {
        const struct messages *m = sent_by(w, a->peer_stage, a->kind);
        return m->received < m->sent;
    }
    if (a->kind == ACTION_REDUCE_TIED && a->peer_stage >= 0)
        return has_come(w, a->peer_stage, a->kind);
    return a->kind != ACTION_NORM || w->n_at_norm == w->n_stages;
}

/* After a stage has moved: who may go on? */
static void wake(struct walker *w, int stage)
{
    if (stage > 0)
        w->look[stage - 1] = true;
    if (stage + 1 < w->n_stages)
        w->look[stage + 1] = true;
    w->look[w->n_stages - 1 - stage] = true; /* the tied embedding's other end */
}

static void come_to_norm(struct walker *w, int stage)
{
    if (!stands_at(w, stage, ACTION_NORM) || w->at_norm[stage])
        return;
    w->at_norm[stage] = true;
    if (++w->n_at_norm == w->n_stages)
        for (int i = 0; i < w->n_stages; i++)
            w->look[i] = true;
}

/* Run what the stage can run now. */
static int advance(struct walker *w, int stage, program_visit *visit, void *arg)
{
    const struct program *p = &w->stages[stage];
    int done = 0;
    for (; w->next[stage] < p->n; done++) {
        int index = w->next[stage], from = -1;
        const struct action *a = &p->actions[index];
        if (!can_run(w, stage, a))
            break;
        if (is_send(a->kind))
            sent_by(w, stage, a->kind)->sent++;
        if (is_receive(a->kind)) {
            struct messages *m = sent_by(w, a->peer_stage, a->kind);
            from = m->sends[m->received++];
        }
        if (visit)
            visit(arg, stage, index, from);
        w->next[stage]++;
    }
    return done;
}

/* Nobody can go on: name the first stage that stands still. */
static int stuck(struct walker *w)
{
    for (int stage = 0; stage < w->n_stages; stage++) {
        char text[120];
        if (w->next[stage] == w->stages[stage].n)
            continue;
        action_text(&w->stages[stage].actions[w->next[stage]], text, sizeof text);
        return err_set(w->err, "stage %d, action %d (%s): waits for ever, and so do all others",
                       stage, w->next[stage], text);
    }
    for (int i = 0; i < w->n_stages * DIRECTIONS; i++)
        if (w->messages[i].received < w->messages[i].sent)
            return err_set(w->err, "stage %d, action %d: a send that nobody receives",
                           i / DIRECTIONS, w->messages[i].sends[w->messages[i].received]);
    return 0;
}

int program_walk(const struct program *stages, int n_stages, program_visit *visit, void *arg,
                 struct err *err)
{
    struct walker w = {.stages = stages, .n_stages = n_stages, .err = err};
    int rc = walker_open(&w);
    for (int i = 0; rc == 0 && i < n_stages; i++)
        w.look[i] = true;
    for (int looked = 1; rc == 0 && looked;) {
        looked = 0;
        for (int stage = 0; stage < n_stages; stage++) {
            if (!w.look[stage])
                continue;
            looked = 1;
            w.look[stage] = false;
            if (advance(&w, stage, visit, arg) > 0)
                wake(&w, stage);
            come_to_norm(&w, stage);
        }
    }
    if (rc == 0)
        rc = stuck(&w);
    walker_close(&w);
    return rc;
}
