/* yaml.c - libyaml's events made into a tree, see yaml.h. Recursion is bounded by YAML_MAX_DEPTH.
 */
#include "plan/keys.h"
#include "plan/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *text, *place;
    size_t length;
    bool with_position;
    int n_nodes;
    struct err *err;
};

static int fail_at(struct reader *r, size_t line, size_t column, const char *what, const char *more)
{
    const char *gap = more[0] ? " " : "";
    if (!r->with_position)
        return err_set(r->err, "%s: %s%s%s", r->place, what, gap, more);
    return err_set(r->err, "%s:%zu:%zu: %s%s%s", r->place, line + 1, column + 1, what, gap, more);
}

static int fail_parser(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "not enough memory";
    size_t line = p->problem_mark.line, column = p->problem_mark.column;
    if (p->error == YAML_READER_ERROR) {
        /* The reader knows only the offset of the bad byte. */
        line = column = 0;
        for (size_t i = 0; i < p->problem_offset && i < r->length; i++) {
            column = r->text[i] == '\n' ? 0 : column + 1;
            line += r->text[i] == '\n';
        }
    }
    return fail_at(r, line, column, "this is not YAML:", problem);
}

static int next_event(struct reader *r, yaml_event_t *event)
{
    if (!yaml_parser_parse(&r->parser, event))
        return fail_parser(r);
    return 0;
}

static struct ynode *node_new(struct reader *r, enum ynode_kind kind, const yaml_event_t *event)
{
    const yaml_mark_t *at = &event->start_mark;
    if (++r->n_nodes > YAML_MAX_NODES) {
        fail_at(r, at->line, at->column, "more values than a plan can have", "");
        return NULL;
    }
    struct ynode *node = calloc(1, sizeof *node);
    if (!node) {
        fail_at(r, at->line, at->column, "not enough memory", "");
        return NULL;
    }
    node->kind = kind;
    node->line = (int)at->line + 1;
    node->column = (int)at->column + 1;
    return node;
}

static const struct yitem *find(const struct ynode *map, const char *key)
{
    for (int i = 0; i < map->n; i++)
        if (map->items[i].key && !strcmp(map->items[i].key, key))
            return &map->items[i];
    return NULL;
}

static struct yitem *append(struct reader *r, struct ynode *node, const yaml_mark_t *at)
{
    struct yitem *items = realloc(node->items, ((size_t)node->n + 1) * sizeof *items);
    if (!items) {
        fail_at(r, at->line, at->column, "not enough memory", "");
        return NULL;
    }
    node->items = items;
    items[node->n] = (struct yitem){.line = (int)at->line + 1, .column = (int)at->column + 1};
    return &items[node->n++];
}

static struct ynode *read_node(struct reader *r, const yaml_event_t *event, int depth);

/* The key that the event is, into the item; node: the mapping so far. */
static int read_key(struct reader *r, const struct ynode *node, struct yitem *item,
                    const yaml_event_t *event, int depth)
{
    const yaml_mark_t *at = &event->start_mark;
    char shown[60];
    int rc = 0;
    struct ynode *key = read_node(r, event, depth + 1);
    if (!key)
        return -1;
    if (key->kind != YNODE_SCALAR)
        rc = fail_at(r, at->line, at->column, "a key must be a word", "");
    else if (find(node, key->text)) {
        plan_shown(key->text, shown, sizeof shown);
        rc = fail_at(r, at->line, at->column, "this key is here twice: keep one:", shown);
    }
    if (rc == 0) {
        item->key = key->text;
        key->text = NULL;
    }
    ynode_free(key);
    return rc;
}

/* Members of a sequence or mapping up to its end event. */
static int read_members(struct reader *r, struct ynode *node, int depth)
{
    bool mapping = node->kind == YNODE_MAPPING;
    yaml_event_type_t end = mapping ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    for (int rc = 0;;) {
        yaml_event_t event;
        if (next_event(r, &event) < 0)
            return -1;
        bool done = event.type == end;
        struct yitem *item = done ? NULL : append(r, node, &event.start_mark);
        if (item && mapping) {
            rc = read_key(r, node, item, &event, depth);
            yaml_event_delete(&event);
            if (rc < 0 || next_event(r, &event) < 0)
                return -1;
        }
        if (item)
            item->value = read_node(r, &event, depth + 1);
        yaml_event_delete(&event);
        if (done)
            return 0;
        if (!item || !item->value)
            return -1;
    }
}

static struct ynode *read_scalar(struct reader *r, const yaml_event_t *event)
{
    const yaml_mark_t *at = &event->start_mark;
    size_t length = event->data.scalar.length;
    const char *value = (const char *)event->data.scalar.value;
    if (memchr(value, 0, length)) {
        fail_at(r, at->line, at->column, "a value with a zero byte in it", "");
        return NULL;
    }
    struct ynode *node = node_new(r, YNODE_SCALAR, event);
    if (!node)
        return NULL;
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->text = strndup(value, length);
    if (node->text)
        return node;
    fail_at(r, at->line, at->column, "not enough memory", "");
    ynode_free(node);
    return NULL;
}

static struct ynode *read_node(struct reader *r, const yaml_event_t *event, int depth)
{
    const yaml_mark_t *at = &event->start_mark;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    struct ynode *node = NULL;

    if (depth > YAML_MAX_DEPTH) {
        fail_at(r, at->line, at->column, "nested deeper than a plan can be", "");
        return NULL;
    }
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    default:
        anchor = (const yaml_char_t *)"";
        break;
    }
    if (anchor || tag) {
        fail_at(r, at->line, at->column,
                "anchors (&), aliases (*) and tags (!) are not used in plans: write the value", "");
        return NULL;
    }
    if (event->type == YAML_SCALAR_EVENT)
        return read_scalar(r, event);
    node = node_new(r, event->type == YAML_MAPPING_START_EVENT ? YNODE_MAPPING : YNODE_SEQUENCE,
                    event);
    if (node && read_members(r, node, depth) < 0) {
        ynode_free(node);
        return NULL;
    }
    return node;
}

/* One document: stream start, document start, a node, document end, stream end. */
static struct ynode *read_document(struct reader *r)
{
    struct ynode *node = NULL;
    for (;;) {
        yaml_event_t event;
        if (next_event(r, &event) < 0)
            goto fail;
        yaml_event_type_t type = event.type;
        const yaml_mark_t at = event.start_mark;
        bool content = type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                       type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT;
        bool second = type == YAML_DOCUMENT_START_EVENT && node;
        if (content)
            node = read_node(r, &event, 0);
        yaml_event_delete(&event);
        if (second) {
            fail_at(r, at.line, at.column, "a second document starts here: a plan is one", "");
            goto fail;
        }
        if (content && !node)
            return NULL;
        if (type == YAML_STREAM_END_EVENT)
            break;
    }
    if (node)
        return node;
    node = calloc(1, sizeof *node);
    if (node && (node->text = strdup("")) != NULL) {
        node->kind = YNODE_SCALAR;
        node->plain = true;
        node->line = node->column = 1;
        return node;
    }
    fail_at(r, 0, 0, "not enough memory", "");
fail:
    ynode_free(node);
    return NULL;
}

struct ynode *ynode_parse(const char *text, size_t length, const char *place, bool with_position,
                          struct err *err)
{
    struct reader r = {
        .text = text, .length = length, .place = place, .with_position = with_position, .err = err};
    if (length > YAML_MAX_BYTES) {
        err_set(err, "%s: %zu bytes are more than a plan can have: at most %d", place, length,
                YAML_MAX_BYTES);
        return NULL;
    }
    if (!yaml_parser_initialize(&r.parser)) {
        err_set(err, "%s: not enough memory", place);
        return NULL;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    struct ynode *node = read_document(&r);
    yaml_parser_delete(&r.parser);
    return node;
}

void ynode_free(struct ynode *node)
{
    if (!node)
        return;
    for (int i = 0; i < node->n; i++) {
        free(node->items[i].key);
        ynode_free(node->items[i].value);
    }
    free(node->items);
    free(node->text);
    free(node);
}

bool ynode_is_null(const struct ynode *node)
{
    return node->kind == YNODE_SCALAR && node->plain &&
           (!node->text[0] || !strcmp(node->text, "~") || !strcmp(node->text, "null"));
}
