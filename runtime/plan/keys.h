/* keys.h - the one table of what a plan file can say.
 *
 * Reader, checker, canonical text, hash, `gtrain plan keys` and the man page all come from it: a
 * new key is one line here and one field in plan.h. */
#ifndef GTRAIN_PLAN_KEYS_H
#define GTRAIN_PLAN_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "plan/plan.h"
#include "plan/yaml.h"

enum key_type {
    KEY_INT64,
    KEY_INT,    /* int */
    KEY_UINT64, /* 0 to 2^64 - 1 */
    KEY_REAL,
    KEY_BOOL,
    KEY_CHOICE,     /* an enum: int */
    KEY_NAME,       /* char *: letters, digits, . _ - */
    KEY_PATH,       /* char *: made absolute */
    KEY_RUN_PATH,   /* char *: as it is; a relative one counts from the run folder */
    KEY_REDUNDANCY, /* checkpoint.redundancy and the numbers behind it */
    KEY_PATHS       /* char ** and the int behind it: one path or a list */
};

enum key_flags {
    KEY_REQUIRED = 1,
    KEY_ABOVE = 2,     /* real: greater than min, not equal */
    KEY_BELOW = 4,     /* real: less than max, not equal */
    KEY_HASH = 8,      /* decides the bits of a run */
    KEY_OPTIONAL = 16, /* no default: stays 0 or NULL */
    KEY_AUTO = 32      /* int64: `auto` will do, which is PLAN_AUTO */
};

struct plan_key {
    const char *section, *name; /* "model", "rope_scaling.factor" */
    enum key_type type;
    size_t offset;        /* in struct plan */
    double min, max;      /* integers: both are exact */
    const char *fallback; /* default as YAML; NULL: required, optional or computed */
    const char *computed; /* how a default that depends on other keys is found, in words */
    const char *const *choices;
    unsigned flags;
    const char *doc;
};

extern const struct plan_key plan_keys[];
extern const int plan_n_keys;

/* Index of "section.name", or -1. */
int plan_key_find(const char *section, const char *name);
/* Does a section, or a group of keys inside one ("model.rope_scaling"), have this name? */
bool plan_key_is_section(const char *section);
bool plan_key_is_group(const char *section, const char *group);
/* The known word nearest to `name`: of a section's keys, or (section NULL) of the sections. NULL if
 * none is near. text: room for the answer. */
const char *plan_key_near(const char *section, const char *name, char *text, size_t size);
/* The section in which `name` is a key, or NULL. */
const char *plan_key_home(const char *name);

/* What the key takes, in words: "a whole number from 1 to 4096". */
void plan_key_range(const struct plan_key *key, char *text, size_t size);

/* Set the field from a node. where: "FILE:LINE:COLUMN"; base_dir: for paths. A field that was set
 * before is replaced. */
int plan_key_set(struct plan *plan, const struct plan_key *key, const struct ynode *node,
                 const char *where, const char *base_dir, struct err *err);
/* The field as YAML, as it can be read back. */
void plan_key_write(const struct plan *plan, const struct plan_key *key, FILE *out);

/* The table for people, as text and as the part of gtrain-plan(5) that it is. */
void plan_keys_print(FILE *out);
void plan_keys_print_man(FILE *out);

/* A value from outside, cut and without control characters, so that it can stand in an error. */
void plan_shown(const char *value, char *text, size_t size);

#endif
