/* pace.c - see pace.h. */
#include "train/pace.h"

void pace_open(struct pace *p, const struct plan *plan, const struct train_identity *identity)
{
    int per_node = identity->local_world > 0 ? identity->local_world : 1;
    int nodes = (identity->world + per_node - 1) / per_node;
    *p = (struct pace){.automatic = plan->checkpoint.every == PLAN_AUTO,
                       .decides = identity->rank == 0,
                       .every = plan->checkpoint.every,
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

bool pace_hear(struct pace *p, const struct step_result *result, double step_s, struct err *why)
{
    if (!p->automatic)
        return false;
    if (result->every > 0)
        p->every = result->every;
    if (!p->decides)
        return false;
    interval_note(&p->step_s, step_s);
    if (result->finished <= p->counted || result->write_s <= 0)
        return false;
    p->counted = result->finished;
    interval_note(&p->stall_s, result->stall_s);
    interval_note(&p->write_s, result->write_s);
    struct interval_facts facts = {.stall_s = interval_median(&p->stall_s),
                                   .write_s = interval_median(&p->write_s),
                                   .step_s = interval_median(&p->step_s),
                                   .mtbf_s = p->mtbf_s};
    bool first = p->decided == 0;
    p->decided = interval_steps(&facts);
    if (first)
        interval_text(&facts, p->decided, why->text, sizeof why->text);
    return first;
}
