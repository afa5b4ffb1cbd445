/* pace.c - see pace.h. */
#include "train/pace.h"

void pace_open(struct pace *p, enum pace_of of, const struct plan *plan,
               const struct train_identity *identity)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    int64_t every = of == PACE_CHECKPOINTS ? c->every : c->snapshots;
    int per_node = identity->local_world > 0 ? identity->local_world : 1;
    int nodes = (identity->world + per_node - 1) / per_node;
    *p = (struct pace){.of = of,
                       .automatic = every == PLAN_AUTO,
                       .decides = identity->rank == 0,
                       .every = every,
                       .mtbf_s = interval_mtbf_s(plan->resilience.mtbf_hours, nodes),
                       .counted = -1};
    if (p->automatic)
        p->every = INTERVAL_FIRST;
}

bool pace_due(const struct pace *p, int64_t done, int64_t last)
{
    if (p->automatic)
        return done - last >= p->every;
    return p->every > 0 && done % p->every == 0;
}

int64_t pace_word(const struct pace *p)
{
    return p->decided;
}

/* False: nothing new is known. */
static bool note_checkpoint(struct pace *p, const struct step_result *result)
{
    if (result->finished <= p->counted || result->write_s <= 0)
        return false;
    p->counted = result->finished;
    interval_note(&p->stall_s, result->stall_s);
    interval_note(&p->write_s, result->write_s);
    return true;
}

/* Each cost is told once. */
static bool note_snapshot(struct pace *p, const struct step_result *result)
{
    if (result->snapshot_s <= 0)
        return false;
    interval_note(&p->stall_s, result->snapshot_s);
    return true;
}

static bool decide_checkpoints(struct pace *p, struct err *why)
{
    struct interval_facts facts = {.stall_s = interval_median(&p->stall_s),
                                   .write_s = interval_median(&p->write_s),
                                   .step_s = interval_median(&p->step_s),
                                   .mtbf_s = p->mtbf_s};
    p->decided = interval_steps(&facts);
    interval_text(&facts, p->decided, why->text, sizeof why->text);
    return true;
}

/* True: it is settled; until then it is tried, seldom where it looks dear. */
static bool decide_snapshots(struct pace *p, struct err *why)
{
    double cost_s = interval_median(&p->stall_s), step_s = interval_median(&p->step_s);
    bool settled = p->stall_s.n >= INTERVAL_TRIED;
    p->decided = interval_share_steps(cost_s, step_s);
    if (!settled && p->decided > INTERVAL_FIRST)
        p->decided = INTERVAL_FIRST;
    interval_share_text(cost_s, step_s, p->decided, why->text, sizeof why->text);
    return settled;
}

bool pace_hear(struct pace *p, const struct step_result *result, double step_s, struct err *why)
{
    bool checkpoints = p->of == PACE_CHECKPOINTS;
    int64_t every = checkpoints ? result->every : result->snapshot_every;
    if (!p->automatic)
        return false;
    if (every > 0)
        p->every = every;
    if (!p->decides)
        return false;
    interval_note(&p->step_s, step_s);
    if (!(checkpoints ? note_checkpoint(p, result) : note_snapshot(p, result)))
        return false;
    bool settled = checkpoints ? decide_checkpoints(p, why) : decide_snapshots(p, why);
    bool first = settled && !p->settled;
    p->settled = settled;
    return first;
}
