/* plan.c - from a file and overrides to a checked plan.
 *
 * The document becomes a tree (yaml.c). Each key of the tree, then each override, is looked up in
 * the table (keys.c) and noted: the later note wins. Then every key of the table is set, from its
 * note or its default (value.c), and the whole is resolved and checked (check.c). So a bad value
 * that an override replaces does no harm, and a key is never half set. */
#include "plan/internal.h"
#include "plan/keys.h"
#include "plan/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACE_BYTES = 400 };

struct loader {
    struct plan *plan;
    const char *base_dir;
    const struct ynode **notes; /* a node for each key of the table, or NULL */
    struct err *err;
};

/* "FILE:LINE:COLUMN", or "FILE,override". */
static void place(const struct plan *plan, const struct plan_mark *mark, char *text, size_t size)
{
    char shown[120];
    if (mark && mark->override) {
        plan_shown(mark->override, shown, sizeof shown);
        snprintf(text, size, "%s,%s", plan->source, shown);
    } else {
        bool known = mark && mark->line > 0;
        snprintf(text, size, "%s:%d:%d", plan->source, known ? mark->line : 1,
                 known ? mark->column : 1);
    }
}

static struct plan_mark *mark_find(const struct plan *plan, const char *key)
{
    char section[40];
    const char *dot = strchr(key, '.');
    if (!dot || (size_t)(dot - key) >= sizeof section)
        return NULL;
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    int i = plan_key_find(section, dot + 1);
    return i < 0 || i >= plan->n_marks ? NULL : &plan->marks[i];
}

bool plan_given(const struct plan *plan, const char *key)
{
    const struct plan_mark *mark = mark_find(plan, key);
    return mark && mark->given;
}

int plan_error(const struct plan *plan, const char *key, struct err *err, const char *format, ...)
{
    char where[PLACE_BYTES], text[sizeof err->text];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    place(plan, mark_find(plan, key), where, sizeof where);
    return err_set(err, "%s: %s", where, text);
}

/* ---- noting what is given ---- */

static int unknown_key(struct loader *l, const char *section, const char *name, const char *where)
{
    char near[120], shown[60];
    plan_shown(name, shown, sizeof shown);
    const char *home = plan_key_home(name);
    if (home)
        return err_set(l->err, "%s: %s.%s is not a key: did you mean %s.%s?", where, section, shown,
                       home, name);
    if (plan_key_near(section, name, near, sizeof near))
        return err_set(l->err, "%s: %s.%s is not a key: did you mean %s?", where, section, shown,
                       near);
    return err_set(l->err, "%s: %s.%s is not a key: `gtrain plan keys` lists them", where, section,
                   shown);
}

static int unknown_section(struct loader *l, const char *name, const char *where)
{
    char near[120], shown[60];
    plan_shown(name, shown, sizeof shown);
    const char *home = plan_key_home(name);
    if (home)
        return err_set(l->err, "%s: %s is not a section: did you mean the key %s.%s?", where, shown,
                       home, name);
    if (plan_key_near(NULL, name, near, sizeof near))
        return err_set(l->err, "%s: %s is not a section: did you mean %s?", where, shown, near);
    return err_set(l->err,
                   "%s: %s is not a section: use run, model, data, training, parallel, "
                   "checkpoint or resilience",
                   where, shown);
}

static int note(struct loader *l, int key, const struct yitem *item, const char *override)
{
    struct plan_mark *mark = &l->plan->marks[key];
    free(mark->override);
    mark->override = override ? strdup(override) : NULL;
    if (override && !mark->override)
        return err_set(l->err, "%s: not enough memory", l->plan->source);
    mark->given = !ynode_is_null(item->value);
    l->notes[key] = mark->given ? item->value : NULL;
    if (mark->given && strchr(plan_keys[key].name, '.'))
        l->plan->model.rope_scaling.on = true; /* the one group there is */
    if (!override) {
        mark->line = item->line;
        mark->column = item->column;
    }
    return 0;
}

/* One key of a section, or a group of keys in it (rope_scaling). prefix: "" or "rope_scaling.". */
static int note_member(struct loader *l, const char *section, const char *prefix,
                       const struct yitem *item, const char *override)
{
    char name[200], where[PLACE_BYTES];
    struct plan_mark at = {
        .line = item->line, .column = item->column, .override = (char *) override};
    snprintf(name, sizeof name, "%s%s", prefix, item->key);
    place(l->plan, &at, where, sizeof where);
    int key = plan_key_find(section, name);
    if (key >= 0)
        return note(l, key, item, override);
    if (!plan_key_is_group(section, name))
        return unknown_key(l, section, name, where);
    l->plan->model.rope_scaling.on = !ynode_is_null(item->value);
    if (!l->plan->model.rope_scaling.on)
        return 0;
    if (item->value->kind != YNODE_MAPPING)
        return err_set(l->err, "%s: %s.%s must hold keys: use {factor: 8}", where, section, name);
    snprintf(name, sizeof name, "%s.", item->key);
    for (int i = 0; i < item->value->n; i++)
        if (note_member(l, section, name, &item->value->items[i], override) < 0)
            return -1;
    return 0;
}

static int note_document(struct loader *l, const struct ynode *root)
{
    char where[PLACE_BYTES];
    if (ynode_is_null(root))
        return err_set(l->err, "%s: the plan is empty: it needs at least model, data and training",
                       l->plan->source);
    if (root->kind != YNODE_MAPPING)
        return err_set(l->err, "%s:%d:%d: a plan is sections of keys: use `model:` and so on",
                       l->plan->source, root->line, root->column);
    for (int i = 0; i < root->n; i++) {
        const struct yitem *section = &root->items[i];
        struct plan_mark at = {.line = section->line, .column = section->column};
        place(l->plan, &at, where, sizeof where);
        if (!plan_key_is_section(section->key))
            return unknown_section(l, section->key, where);
        for (int k = 0; k < plan_n_keys; k++)
            if (!strcmp(plan_keys[k].section, section->key)) {
                l->plan->marks[k].line = section->line;
                l->plan->marks[k].column = section->column;
            }
        if (ynode_is_null(section->value))
            continue;
        if (section->value->kind != YNODE_MAPPING)
            return err_set(l->err, "%s: %s must hold keys: `gtrain plan keys` lists them", where,
                           section->key);
        for (int k = 0; k < section->value->n; k++)
            if (note_member(l, section->key, "", &section->value->items[k], NULL) < 0)
                return -1;
    }
    return 0;
}

/* "section.key=value". *value becomes the parsed value, which the notes point into. */
static int note_override(struct loader *l, const char *override, struct ynode **value)
{
    char section[60], key[120], where[PLACE_BYTES];
    struct plan_mark at = {.override = (char *) override};
    place(l->plan, &at, where, sizeof where);
    const char *equals = strchr(override, '=');
    const char *dot = strchr(override, '.');
    if (!equals || !dot || dot > equals || dot == override || dot + 1 == equals ||
        (size_t)(dot - override) >= sizeof section || (size_t)(equals - dot) >= sizeof key)
        return err_set(l->err, "%s: this is not a setting: use section.key=value", where);
    snprintf(section, sizeof section, "%.*s", (int)(dot - override), override);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1), dot + 1);
    if (!plan_key_is_section(section))
        return unknown_section(l, section, where);
    *value = ynode_parse(equals + 1, strlen(equals + 1), where, false, l->err);
    if (!*value)
        return -1;
    struct yitem item = {.key = key, .value = *value};
    return note_member(l, section, "", &item, override);
}

/* ---- setting ---- */

static int set_default(struct loader *l, const struct plan_key *key)
{
    struct ynode node = {
        .kind = YNODE_SCALAR, .plain = true, .text = (char *)(key->fallback ? key->fallback : "")};
    return plan_key_set(l->plan, key, &node, "default", l->base_dir, l->err);
}

static int set_all(struct loader *l)
{
    char where[PLACE_BYTES], range[200];
    for (int k = 0; k < plan_n_keys; k++) {
        const struct plan_key *key = &plan_keys[k];
        place(l->plan, &l->plan->marks[k], where, sizeof where);
        if (l->notes[k]) {
            if (plan_key_set(l->plan, key, l->notes[k], where, l->base_dir, l->err) < 0)
                return -1;
        } else if (key->flags & KEY_REQUIRED) {
            plan_key_range(key, range, sizeof range);
            return err_set(l->err, "%s: %s.%s is missing (%s): give %s", where, key->section,
                           key->name, key->doc, range);
        } else if (key->fallback && set_default(l, key) < 0) {
            return -1;
        }
    }
    return 0;
}

static int load_text(struct loader *l, const char *text, size_t length, char *const *overrides,
                     int n_overrides)
{
    int rc = -1;
    struct ynode **values = calloc((size_t)n_overrides + 1, sizeof *values);
    struct ynode *root = NULL;
    l->notes = calloc((size_t)plan_n_keys, sizeof *l->notes);
    l->plan->marks = calloc((size_t)plan_n_keys, sizeof *l->plan->marks);
    if (!values || !l->notes || !l->plan->marks) {
        err_set(l->err, "%s: not enough memory", l->plan->source);
        goto end;
    }
    l->plan->n_marks = plan_n_keys;
    root = ynode_parse(text, length, l->plan->source, true, l->err);
    if (!root || note_document(l, root) < 0)
        goto end;
    for (int i = 0; i < n_overrides; i++)
        if (note_override(l, overrides[i], &values[i]) < 0)
            goto end;
    if (set_all(l) < 0 || plan_resolve(l->plan, l->base_dir, l->err) < 0)
        goto end;
    l->plan->text = plan_canonical(l->plan);
    if (!l->plan->text)
        err_set(l->err, "%s: not enough memory", l->plan->source);
    else
        rc = 0;
end:
    for (int i = 0; values && i < n_overrides; i++)
        ynode_free(values[i]);
    free(values);
    free(l->notes);
    ynode_free(root);
    return rc;
}

/* Under the C locale: numbers have points, whatever the program around us has set. */
static int load_in_c_locale(struct loader *l, const char *text, size_t length,
                            char *const *overrides, int n_overrides)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0)
        return err_set_errno(l->err, errno, "%s: no C locale", l->plan->source);
    locale_t before = uselocale(c);
    int rc = load_text(l, text, length, overrides, n_overrides);
    uselocale(before);
    freelocale(c);
    return rc;
}

/* base_dir, or the current folder; malloc'ed. */
static char *folder(const char *base_dir, struct err *err)
{
    char *dir = base_dir ? strdup(base_dir) : getcwd(NULL, 0);
    if (!dir)
        err_set_errno(err, errno, "the current folder");
    return dir;
}

static struct plan *parse_named(const char *text, size_t length, const char *source,
                                const char *path, char *const *overrides, int n_overrides,
                                const char *base_dir, struct err *err)
{
    struct plan *plan = calloc(1, sizeof *plan);
    struct loader l = {.plan = plan, .base_dir = base_dir, .err = err};
    if (!plan || !(plan->source = strdup(source)) || !(plan->path = strdup(path)))
        err_set(err, "%s: not enough memory", source);
    else if (load_in_c_locale(&l, text, length, overrides, n_overrides) == 0)
        return plan;
    plan_free(plan);
    return NULL;
}

struct plan *plan_parse(const char *text, size_t length, const char *name, char *const *overrides,
                        int n_overrides, const char *base_dir, struct err *err)
{
    char *dir = folder(base_dir, err);
    struct plan *plan =
        dir ? parse_named(text, length, name, name, overrides, n_overrides, dir, err) : NULL;
    free(dir);
    return plan;
}

/* The whole file, malloc'ed. Only a regular file: others can be without end, or block. */
static char *read_file(const char *path, size_t *length, struct err *err)
{
    struct stat st;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_set_errno(err, errno, "%s: the plan file cannot be read", path);
        goto end;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(err, "%s: a plan must be a regular file", path);
        goto end;
    }
    /* One byte more than is allowed, so that ynode_parse can say that there is more. */
    size_t room = YAML_MAX_BYTES + 1;
    text = malloc(room);
    for (*length = 0; text && *length < room;) {
        ssize_t n = read(fd, text + *length, room - *length);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err_set_errno(err, errno, "%s: the plan file cannot be read", path);
            free(text);
            text = NULL;
            goto end;
        }
        *length += (size_t)n;
    }
    if (!text)
        err_set(err, "%s: not enough memory", path);
end:
    if (fd >= 0)
        close(fd);
    return text;
}

struct plan *plan_load(const char *path, char *const *overrides, int n_overrides,
                       const char *base_dir, struct err *err)
{
    size_t length = 0;
    char *absolute = NULL;
    struct plan *plan = NULL;
    char *text = read_file(path, &length, err);
    char *dir = text ? folder(base_dir, err) : NULL;
    if (!text || !dir)
        goto end;
    absolute = realpath(path, NULL);
    if (!absolute)
        err_set_errno(err, errno, "%s: the plan file cannot be read", path);
    else
        plan = parse_named(text, length, path, absolute, overrides, n_overrides, dir, err);
end:
    free(text);
    free(dir);
    free(absolute);
    return plan;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->data.n_files; i++)
        free(plan->data.files[i]);
    for (int i = 0; i < plan->data.n_val_files; i++)
        free(plan->data.val_files[i]);
    for (int i = 0; i < plan->n_marks; i++)
        free(plan->marks[i].override);
    free(plan->data.files);
    free(plan->data.val_files);
    free(plan->checkpoint.local);
    free(plan->checkpoint.shared);
    free(plan->marks);
    free(plan->path);
    free(plan->source);
    free(plan->name);
    free(plan->run_dir);
    free(plan->text);
    free(plan);
}
