/* yaml.h - a small YAML document as a tree of nodes that know where they stand.
 *
 * Wraps libyaml's events. It takes what a plan needs and refuses the rest with one error each:
 * anchors, aliases and tags, several documents, duplicate keys, more than YAML_MAX_BYTES bytes,
 * YAML_MAX_NODES values or YAML_MAX_DEPTH levels. So the work is bounded by the size of the text,
 * whoever wrote it. */
#ifndef GTRAIN_PLAN_YAML_H
#define GTRAIN_PLAN_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* A plan is a page or two. These are far above it, and far below what costs time or memory. */
enum { YAML_MAX_BYTES = 1 << 20, YAML_MAX_NODES = 20000, YAML_MAX_DEPTH = 6 };

enum ynode_kind { YNODE_SCALAR, YNODE_SEQUENCE, YNODE_MAPPING };

struct ynode {
    enum ynode_kind kind;
    int line, column; /* 1-based */
    char *text;       /* scalar; no NUL inside */
    bool plain;       /* scalar written without quotes */
    int n;            /* sequence, mapping: members */
    struct yitem *items;
};

struct yitem {
    char *key;        /* mapping only */
    int line, column; /* where the key (or the element) stands */
    struct ynode *value;
};

/* The document in text[0..length), or NULL with err = "place:LINE:COLUMN: what". An empty document
 * is a plain empty scalar. with_position false leaves ":LINE:COLUMN" out of errors. */
struct ynode *ynode_parse(const char *text, size_t length, const char *place, bool with_position,
                          struct err *err);
void ynode_free(struct ynode *node);

/* null, ~ or nothing at all, unquoted: as if the key were not there. */
bool ynode_is_null(const struct ynode *node);

#endif
