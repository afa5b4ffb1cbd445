/* retain.c - the retention rule. */
#include "retain.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

/* More than any `keep`; what is older than so many commits has long gone. */
enum { COMMITS_MOST = 4096 };
/* Fewer are not safe to drop from (retain.h). */
enum { OWN_ON_TRIAL = 2 };

int commits_add(struct commits *c, const struct ckpt_key *key)
{
    int at = 0;
    while (at < c->n && key_compare(&c->keys[at], key) > 0)
        at++;
    if (at == COMMITS_MOST || (at < c->n && !key_compare(&c->keys[at], key)))
        return 0;
    struct ckpt_key *more = reallocarray(c->keys, (size_t)c->n + 1, sizeof *more);
    if (!more)
        return -1;
    c->keys = more;
    memmove(more + at + 1, more + at, (size_t)(c->n - at) * sizeof *more);
    more[at] = *key;
    if (c->n < COMMITS_MOST)
        c->n++;
    return 0;
}

bool commits_has(const struct commits *c, const struct ckpt_key *key)
{
    for (int i = 0; i < c->n; i++)
        if (!key_compare(&c->keys[i], key))
            return true;
    return false;
}

void commits_free(struct commits *c)
{
    free(c->keys);
    memset(c, 0, sizeof *c);
}

/* This writer's newest commit is so near to what the run went on from that that may yet prove bad.
 */
static bool on_trial(const struct commits *c)
{
    return c->restored && !c->tight && !c->no_trial &&
           (!c->own || c->keys[0].step - c->trial_step < CKPT_TRIAL_STEPS);
}

/* Is it among the first `keep` that one restore after the other would take, if each proved bad? */
static bool is_fallback(const struct commits *c, int keep, const struct ckpt_key *file)
{
    for (int i = 0, before = 0; i < c->n && before < keep; i++) {
        int order = key_compare(&c->keys[i], &c->restored_from);
        if (order > 0 || (order < 0 && c->keys[i].step >= c->restored_from.step))
            continue;
        if (!key_compare(file, &c->keys[i]))
            return true;
        before++;
    }
    return false;
}

/* It was committed by an earlier start, but something before it was restored. */
static bool passed_over(const struct commits *c, int i)
{
    return c->restored && i >= c->own && key_compare(&c->keys[i], &c->restored_from) > 0;
}

static bool among_newest(const struct commits *c, int newest, const struct ckpt_key *file)
{
    for (int i = 0, before = 0; i < c->n && before < newest; i++) {
        if (c->tight && passed_over(c, i))
            continue;
        if (!key_compare(file, &c->keys[i]))
            return true;
        before++;
    }
    return false;
}

bool retain_file(const struct commits *c, int keep, const struct ckpt_key *file)
{
    bool trial = on_trial(c);
    int newest = trial && c->own > 0 && keep > OWN_ON_TRIAL ? OWN_ON_TRIAL : keep;
    if (!c->n || key_compare(file, &c->keys[0]) > 0)
        return true;
    if (among_newest(c, newest, file))
        return true;
    if (c->held && !key_compare(file, &c->held_key))
        return true;
    if (trial && is_fallback(c, keep, file))
        return true;
    return c->restored && c->own < keep && !key_compare(file, &c->restored_from);
}
