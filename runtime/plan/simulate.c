/* simulate.c - one run, event by event; see simulate.h.
 *
 * Training between two failures is not walked step by step: its time repeats in cycles (every_steps
 * steps, then a stall), so where a failure falls, and what is saved by then, is arithmetic. A run
 * costs as much as it has failures, whatever its length. */
#include "plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const simulate_part_names[SIMULATE_PARTS] = {
    "useful work", "work done again", "checkpoint stalls", "detection",
    "restart",     "restore",         "waiting for nodes"};

/* A run that needs so many times its useful work is given up: it does not get on. */
static const double GIVE_UP = 100;

/* A node that was lost. Both times only grow along the list. */
struct loss {
    int place;
    double back_s;  /* repaired */
    double whole_s; /* two copies again of what it held; infinity while training is off */
};

/* What there is to go back to, in steps. */
struct saved {
    int64_t snapshot, local, shared;
};

/* How far a recovery has to go. */
struct outage {
    bool node, both, requeued; /* lost a node; a node and its partner; memory */
    bool short_of_nodes;
    double requeue_s; /* when no spare was left */
};

struct simulation {
    const struct simulate_config *c;
    const struct simulate_source *source;
    const struct simulate_watch *watch;
    struct simulate_run *run;
    struct err *err;
    uint64_t random;
    size_t drawn; /* failures taken from the source */
    struct simulate_failure next;

    double now, end;
    int64_t step;
    struct saved saved;
    int spares;
    struct loss *losses;
    size_t n_losses, room, broken, exposed; /* the first not yet repaired; not yet whole again */
};

/* ---- failures ---- */

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t simulate_seed(uint64_t seed, int run)
{
    uint64_t state = seed ^ (uint64_t)run * 0xD1342543DE82EF95u;
    return draw(&state);
}

static void draw_next(struct simulation *s)
{
    if (s->source->list) {
        s->next = s->drawn < s->source->n ? s->source->list[s->drawn]
                                          : (struct simulate_failure){.at_s = INFINITY};
    } else {
        double uniform = (double)((draw(&s->random) >> 11) + 1) * 0x1p-53; /* (0, 1] */
        s->next.at_s -= s->source->mean_s * log(uniform);
        s->next.place = (int)((draw(&s->random) >> 32) * (uint64_t)s->c->nodes >> 32);
        s->next.kind = SIMULATE_NODE;
    }
    s->drawn++;
}

/* ---- training ---- */

struct progress {
    int64_t steps;  /* complete */
    double stall_s; /* of the time given */
    struct saved saved;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Checkpoints are numbered by the step they follow: number i is begun at the end of step i * every.
 * The newest of numbers in (before, last] that divide by `each` and were begun `age` ago; else
 * `old`. begun(i) = first + (i - before - 1) * cycle. */
static int64_t newest(const struct simulate_config *c, int64_t before, int64_t last, int each,
                      double first, double cycle, double passed, double age, int64_t old)
{
    for (int64_t i = last / each * each; i > before; i -= each)
        if (first + (double)(i - before - 1) * cycle + age <= passed)
            return i * c->every_steps;
    return old;
}

/* The stall inside the first `within` seconds of steps that follow each other, of `most` at most:
 * each step's snapshot comes after its work. */
static double stall_within(const struct simulate_config *c, double within, int64_t most)
{
    double each = c->step_s + c->snapshot_stall_s;
    int64_t whole = smaller(most, (int64_t)floor(within / each));
    double rest = within - (double)whole * each;
    double stall = (double)whole * c->snapshot_stall_s;
    if (whole == most)
        return stall + rest; /* the checkpoint's own */
    return rest > c->step_s ? stall + rest - c->step_s : stall;
}

/* Where training is `passed` seconds after it went on behind step `from`. */
static struct progress progress_after(const struct simulate_config *c, int64_t from,
                                      const struct saved *old, double passed)
{
    double each = c->step_s + c->snapshot_stall_s;
    double cycle = (double)c->every_steps * each + c->stall_s;
    int64_t before = from / c->every_steps; /* checkpoints with this number or less are past */
    int64_t lead = c->every_steps - from % c->every_steps; /* steps to the first */
    double first = (double)lead * each;                    /* when it is begun */
    struct progress p = {.steps = from, .saved = *old};
    double start = 0; /* of the cycle we are in */
    int64_t most = lead, cycles = 0;
    if (passed >= first + c->stall_s) {
        cycles = (int64_t)floor((passed - first - c->stall_s) / cycle);
        start = first + c->stall_s + (double)cycles * cycle;
        p.steps += lead + cycles * c->every_steps;
        p.stall_s = (double)(lead + cycles * c->every_steps) * c->snapshot_stall_s +
                    (double)(cycles + 1) * c->stall_s;
        most = c->every_steps;
    }
    int64_t done = smaller(most, (int64_t)floor((passed - start) / each));
    p.steps += done;
    p.stall_s += stall_within(c, passed - start, most);
    int64_t last = p.steps / c->every_steps;
    p.saved.local = newest(c, before, last, 1, first, cycle, passed, c->write_s, old->local);
    p.saved.shared =
        newest(c, before, last, c->shared_every, first, cycle, passed, c->shared_s, old->shared);
    /* A copy is no longer than a step, so the last snapshot or the one before is whole. */
    double taken = start + (double)done * each - (start > 0 && !done ? c->stall_s : 0);
    bool whole = taken + c->snapshot_copy_s <= passed;
    p.saved.snapshot = p.steps == from || whole ? p.steps : p.steps - 1;
    return p;
}

/* How long from behind step `from` until step `to` is done. */
static double time_to(const struct simulate_config *c, int64_t from, int64_t to)
{
    int64_t stalls = to > from ? (to - 1) / c->every_steps - from / c->every_steps : 0;
    return (double)(to - from) * (c->step_s + c->snapshot_stall_s) + (double)stalls * c->stall_s;
}

static void stretch(struct simulation *s, enum simulate_part part, double from, double to)
{
    if (to <= from)
        return;
    s->run->part_s[part] += to - from;
    if (s->watch)
        s->watch->stretch(s->watch->arg, part, from, to);
}

/* Account for training from `from` to now, of which `lost` seconds at the end will be done again.
 */
static void account(struct simulation *s, double from, double stall, double lost)
{
    double useful = s->now - from - stall - lost;
    s->run->part_s[SIMULATE_STALL] += stall;
    s->run->part_s[SIMULATE_AGAIN] += lost;
    s->run->part_s[SIMULATE_USEFUL] += useful; /* negative: what earlier stretches did is lost */
    if (!s->watch)
        return;
    double turn = s->now - lost > from ? s->now - lost : from; /* stalls are too short to be seen */
    if (turn > from)
        s->watch->stretch(s->watch->arg, SIMULATE_USEFUL, from, turn);
    if (s->now > turn)
        s->watch->stretch(s->watch->arg, SIMULATE_AGAIN, turn, s->now);
}

/* ---- recovery ---- */

static int lose(struct simulation *s, int place, struct outage *o)
{
    if (s->n_losses == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        struct loss *more = realloc(s->losses, room * sizeof *more);
        if (!more)
            return err_set(s->err, "out of memory for %zu failures", room);
        s->losses = more;
        s->room = room;
    }
    while (s->exposed < s->n_losses && s->losses[s->exposed].whole_s <= s->now)
        s->exposed++;
    for (size_t i = s->exposed; i < s->n_losses; i++)
        o->both |= s->losses[i].place == (place ^ 1);
    s->losses[s->n_losses++] = (struct loss){place, s->now + s->c->repair_s, INFINITY};
    o->node = true;
    if (s->spares > 0) {
        s->spares--;
    } else if (!o->short_of_nodes) {
        o->short_of_nodes = true;
        o->requeue_s = INFINITY; /* set when it is noticed */
    }
    return 0;
}

/* The failure that is next happens now. */
static int strike(struct simulation *s, struct outage *o)
{
    struct simulate_failure f = s->next;
    s->run->failures++;
    draw_next(s);
    return f.kind == SIMULATE_NODE ? lose(s, f.place, o) : 0;
}

static int broken_nodes(struct simulation *s)
{
    while (s->broken < s->n_losses && s->losses[s->broken].back_s <= s->now)
        s->broken++;
    return (int)(s->n_losses - s->broken);
}

/* When a requeued job can start: after the requeue, with no more broken than there are spares. */
static double nodes_at(const struct simulation *s, const struct outage *o)
{
    double at = o->requeue_s + s->c->requeue_s;
    if (s->n_losses > (size_t)s->c->spares) {
        double back = s->losses[s->n_losses - (size_t)s->c->spares - 1].back_s;
        at = back > at ? back : at;
    }
    return at;
}

static bool only_shared(const struct simulation *s, const struct outage *o)
{
    return o->both || (o->node && !s->c->partner);
}

static double restore_time(const struct simulation *s, const struct outage *o)
{
    if (only_shared(s, o))
        return s->c->restore_shared_s;
    return o->node ? s->c->restore_partner_s : s->c->restore_local_s;
}

static int64_t restored_step(const struct simulation *s, const struct outage *o)
{
    if (only_shared(s, o))
        return s->saved.shared;
    if (!s->c->snapshots || o->requeued || s->saved.local > s->saved.snapshot)
        return s->saved.local;
    return s->saved.snapshot;
}

/* The phase after this one, and how long it takes. */
static enum simulate_part next_phase(struct simulation *s, enum simulate_part phase,
                                     struct outage *o, double *until)
{
    if (phase == SIMULATE_DETECT && o->short_of_nodes) {
        o->requeue_s = s->now;
        *until = nodes_at(s, o);
        return SIMULATE_WAIT;
    }
    if (phase == SIMULATE_WAIT) {
        s->spares = s->c->spares - broken_nodes(s);
        o->short_of_nodes = false;
        o->requeued = true;
        s->run->requeues++;
    }
    if (phase == SIMULATE_DETECT || phase == SIMULATE_WAIT) {
        *until = s->now + s->c->restart_s;
        return SIMULATE_RESTART;
    }
    *until = s->now + restore_time(s, o);
    return SIMULATE_RESTORE;
}

/* From a failure, which is next and now, until training can go on or the run is over. */
static int recover(struct simulation *s, struct outage *o)
{
    enum simulate_part phase = SIMULATE_DETECT;
    if (strike(s, o))
        return -1;
    double until = s->now + s->c->detect_s;
    for (;;) {
        double stop = fmin(fmin(until, s->end), s->next.at_s);
        stretch(s, phase, s->now, stop);
        s->now = stop;
        if (stop == s->end)
            return 0;
        if (stop == s->next.at_s) {
            if (strike(s, o))
                return -1;
            if (phase == SIMULATE_WAIT) {
                until = nodes_at(s, o);
                continue;
            }
            phase = SIMULATE_DETECT;
            until = s->now + s->c->detect_s;
        } else if (phase == SIMULATE_RESTORE) {
            return 0;
        } else {
            phase = next_phase(s, phase, o, &until);
        }
    }
}

static void go_on(struct simulation *s, const struct outage *o)
{
    int64_t step = restored_step(s, o);
    s->step = step;
    s->saved = (struct saved){step, smaller(s->saved.local, step), smaller(s->saved.shared, step)};
    s->run->from_shared += only_shared(s, o);
    for (size_t i = s->n_losses; i > s->exposed && isinf(s->losses[i - 1].whole_s); i--)
        s->losses[i - 1].whole_s = s->now + s->c->write_s;
}

/* Train until the next failure, and recover from it. 1: the run is over. */
static int turn(struct simulation *s)
{
    const struct simulate_config *c = s->c;
    double from = s->now, failed = s->next.at_s;
    double goal = c->goal_steps ? from + time_to(c, s->step, c->goal_steps) : INFINITY;
    bool over = goal <= failed || s->end <= failed;
    s->run->finished = goal <= failed && goal <= s->end;
    s->now = fmin(fmin(goal, s->end), failed);
    struct progress p = progress_after(c, s->step, &s->saved, s->now - from);
    if (over) {
        account(s, from, p.stall_s, 0);
        s->step = s->run->finished ? c->goal_steps : p.steps;
        return 1;
    }
    double trained = s->now - from, work = (double)s->step * c->step_s + trained - p.stall_s;
    struct outage o = {0};
    s->saved = p.saved;
    if (recover(s, &o))
        return -1;
    double on = s->now;
    s->now = failed;
    account(s, from, p.stall_s, work - (double)restored_step(s, &o) * c->step_s);
    s->now = on;
    s->run->longest_off_s = fmax(s->run->longest_off_s, on - failed);
    go_on(s, &o);
    return on >= s->end;
}

int simulate_one(const struct simulate_config *config, const struct simulate_source *source,
                 const struct simulate_watch *watch, struct simulate_run *run, struct err *err)
{
    *run = (struct simulate_run){0};
    struct simulation s = {.c = config,
                           .source = source,
                           .watch = watch,
                           .run = run,
                           .err = err,
                           .random = source->seed,
                           .spares = config->spares};
    s.end = config->horizon_s > 0 ? config->horizon_s
                                  : GIVE_UP * (double)config->goal_steps * config->step_s;
    draw_next(&s);
    int over = 0;
    while (over == 0)
        over = turn(&s);
    run->steps = s.step;
    run->wall_s = s.now;
    free(s.losses);
    return over < 0 ? -1 : 0;
}
