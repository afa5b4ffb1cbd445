/* internal.h - what the files of this room share. */
#ifndef GTRAIN_PLAN_INTERNAL_H
#define GTRAIN_PLAN_INTERNAL_H

#include <stdbool.h>

#include "base/err.h"
#include "plan/plan.h"

/* plan->marks has one a key, in the order of plan_keys. */
struct plan_mark {
    bool given;       /* in the file or by an override */
    int line, column; /* of the key; of its section where the key is not there; 0: neither is */
    char *override;   /* "section.key=value", where that set it; owned */
};

/* Is this key ("training.min_lr") in the file or in an override? */
bool plan_given(const struct plan *plan, const char *key);

/* Fill in the defaults that depend on other keys, and the derived fields; check keys against each
 * other. check.c */
int plan_resolve(struct plan *plan, const char *base_dir, struct err *err);

/* "1, 2, 4 or 8": the divisors of n (the largest ones cut where there are many). text.c */
void plan_divisors(int64_t n, char *text, size_t size);

/* The resolved plan as canonical YAML, malloc'ed; NULL: no memory. text.c */
char *plan_canonical(const struct plan *plan);

#endif
