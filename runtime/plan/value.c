/* value.c - one key's value: text to field and back. See keys.h.
 *
 * Numbers are read by their written form first (no hex, no octal, no inf or nan, no blanks) and
 * only then by the C library, so that its wider taste never shows. The caller has the C locale set.
 */
#include "base/control.h"
#include "base/number.h"
#include "plan/keys.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void plan_shown(const char *value, char *text, size_t size)
{
    size_t n = 0;
    for (; value[n] && n + 4 < size; n++)
        text[n] = text_is_control(value, n) ? '?' : value[n];
    /* Not in the middle of a UTF-8 sequence. */
    while (value[n] && n > 0 && ((unsigned char)value[n] & 0xC0) == 0x80)
        n--;
    snprintf(text + n, size - n, "%s", value[n] ? "..." : "");
}

static int fail(const struct plan_key *key, const char *value, const char *where, struct err *err)
{
    char shown[60], range[200];
    plan_shown(value, shown, sizeof shown);
    plan_key_range(key, range, sizeof range);
    return err_set(err, "%s: %s.%s is %s%s%s: use %s", where, key->section, key->name,
                   shown[0] ? "" : "'", shown, shown[0] ? "" : "'", range);
}

static const char *digits(const char *s)
{
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

/* [-]digits, no leading zero (in C and YAML 1.1 it would mean octal). */
static bool is_whole(const char *s)
{
    s += *s == '-' || *s == '+';
    const char *end = digits(s);
    return end > s && !*end && (s[0] != '0' || end == s + 1);
}

static bool is_real(const char *s)
{
    s += *s == '-' || *s == '+';
    const char *end = digits(s);
    int n = (int)(end - s);
    if (*end == '.') {
        s = end + 1;
        end = digits(s);
        n += (int)(end - s);
    }
    if (n == 0)
        return false;
    if (*end == 'e' || *end == 'E') {
        s = end + 1;
        s += *s == '-' || *s == '+';
        end = digits(s);
        if (end == s)
            return false;
    }
    return !*end;
}

static int set_whole(void *field, const struct plan_key *key, const char *s)
{
    if (key->flags & KEY_AUTO && !strcmp(s, "auto")) {
        *(int64_t *)field = PLAN_AUTO;
        return 0;
    }
    if (!is_whole(s))
        return -1;
    errno = 0;
    if (key->type == KEY_UINT64) {
        unsigned long long value = strtoull(s, NULL, 10);
        if (errno || s[0] == '-')
            return -1;
        *(uint64_t *)field = value;
        return 0;
    }
    long long value = strtoll(s, NULL, 10);
    if (errno || value < (long long)key->min || value > (long long)key->max)
        return -1;
    if (key->type == KEY_INT)
        *(int *)field = (int)value;
    else
        *(int64_t *)field = value;
    return 0;
}

static int set_real(double *field, const struct plan_key *key, const char *s)
{
    if (!is_real(s))
        return -1;
    double value = strtod(s, NULL);
    if (!isfinite(value) || value < key->min || value > key->max)
        return -1;
    if (((key->flags & KEY_ABOVE) && value == key->min) ||
        ((key->flags & KEY_BELOW) && value == key->max))
        return -1;
    *field = value == 0 ? 0 : value; /* no -0 */
    return 0;
}

static int set_word(void *field, const struct plan_key *key, const char *s)
{
    if (key->type == KEY_BOOL) {
        if (strcmp(s, "true") && strcmp(s, "false"))
            return -1;
        *(bool *)field = s[0] == 't';
        return 0;
    }
    for (int i = 0; key->choices[i]; i++)
        if (!strcmp(key->choices[i], s)) {
            /* An enum of ours has the size of int. */
            *(int *)field = i;
            return 0;
        }
    return -1;
}

/* A number from 1 to most, whole and without leading zero; *s moves past it. 0: none. */
static int take_small(const char **s, int most)
{
    int value = 0;
    for (; **s >= '0' && **s <= '9' && value <= most; (*s)++)
        value = value == 0 && **s == '0' ? most + 1 : value * 10 + (**s - '0');
    return value <= most ? value : 0;
}

static int set_redundancy(struct plan_checkpoint *c, const char *s)
{
    int files = 0, parities = 0;
    enum plan_redundancy which = PLAN_REDUNDANCY_NONE;
    if (!strcmp(s, "partner")) {
        which = PLAN_REDUNDANCY_PARTNER;
    } else if (!strncmp(s, "xor:", 4)) {
        which = PLAN_REDUNDANCY_XOR;
        s += 4;
        files = take_small(&s, PLAN_GROUP_MAX) - 1;
        parities = 1;
        if (*s || files < 1)
            return -1;
    } else if (!strncmp(s, "rs:", 3)) {
        which = PLAN_REDUNDANCY_RS;
        s += 3;
        files = take_small(&s, PLAN_GROUP_MAX);
        if (*s++ != '+')
            return -1;
        parities = take_small(&s, PLAN_PARITIES_MAX);
        if (*s || files < 1 || parities < 1 || files + parities > PLAN_GROUP_MAX)
            return -1;
    } else if (strcmp(s, "none")) {
        return -1;
    }
    c->redundancy = which;
    c->group_files = files;
    c->group_parities = parities;
    return 0;
}

void plan_redundancy_text(const struct plan_checkpoint *c, char text[PLAN_REDUNDANCY_BYTES])
{
    switch (c->redundancy) {
    case PLAN_REDUNDANCY_NONE:
        snprintf(text, PLAN_REDUNDANCY_BYTES, "none");
        break;
    case PLAN_REDUNDANCY_PARTNER:
        snprintf(text, PLAN_REDUNDANCY_BYTES, "partner");
        break;
    case PLAN_REDUNDANCY_XOR:
        snprintf(text, PLAN_REDUNDANCY_BYTES, "xor:%d", c->group_files + 1);
        break;
    case PLAN_REDUNDANCY_RS:
        snprintf(text, PLAN_REDUNDANCY_BYTES, "rs:%d+%d", c->group_files, c->group_parities);
        break;
    }
}

int plan_files_ahead(const struct plan_checkpoint *c)
{
    if (c->every == 1)
        return PLAN_FILES_AHEAD_MOST;
    return c->every == 2 || c->every == 3 || c->every == PLAN_AUTO;
}

int plan_redundancy_nodes(const struct plan_checkpoint *c)
{
    if (c->redundancy == PLAN_REDUNDANCY_NONE)
        return 1;
    return c->redundancy == PLAN_REDUNDANCY_PARTNER ? 2 : c->group_files + c->group_parities;
}

static bool is_name(const char *s)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return *s && *s != '.' && strlen(s) <= 100 && !s[strspn(s, ok)];
}

/* Valid UTF-8 without control characters and line breaks (ASCII's, U+0080 to U+009F, U+2028,
 * U+2029, U+FEFF): what stands in double quotes in YAML as it is. */
static bool is_clean(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        uint32_t c = *s;
        int more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : 3;
        if (more == 3 && (c < 0xF0 || c > 0xF4))
            return false;
        if (more)
            c &= 0x3Fu >> more;
        for (int i = 1; i <= more; i++) {
            if ((s[i] & 0xC0) != 0x80)
                return false;
            c = c << 6 | (s[i] & 0x3F);
        }
        if (c < 32 || (c >= 127 && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF ||
            (c >= 0xD800 && c < 0xE000) || c == 0xFFFE || c == 0xFFFF || c > 0x10FFFF ||
            (more == 2 && c < 0x800) || (more == 3 && c < 0x10000))
            return false;
        s += more + 1;
    }
    return true;
}

/* PATH_MAX on Linux; longer ones no system call takes. */
enum { PATH_BYTES = 4096 };

static char *path_absolute(const char *path, const char *base_dir)
{
    char *out = NULL;
    while (path[0] == '.' && path[1] == '/')
        path += 2;
    if (path[0] == '/')
        return strdup(path);
    if (asprintf(&out, "%s/%s", strcmp(base_dir, "/") ? base_dir : "", path) < 0)
        return NULL;
    return out;
}

static int set_text(char **field, const struct plan_key *key, const struct ynode *node,
                    const char *where, const char *base_dir, struct err *err)
{
    const char *s = node->text;
    if (key->type == KEY_NAME ? !is_name(s) : !*s)
        return fail(key, s, where, err);
    if (!is_clean(s) || !is_clean(base_dir))
        return err_set(err,
                       "%s: %s.%s has a control character, or bytes that are not UTF-8: "
                       "use another path",
                       where, key->section, key->name);
    if (key->type != KEY_NAME && (strlen(s) + strlen(base_dir) + 2 > PATH_BYTES))
        return err_set(err, "%s: %s.%s is longer than a path can be: %d bytes", where, key->section,
                       key->name, PATH_BYTES - 1);
    char *value =
        key->type == KEY_PATH || key->type == KEY_PATHS ? path_absolute(s, base_dir) : strdup(s);
    if (!value)
        return err_set(err, "%s: not enough memory", where);
    free(*field);
    *field = value;
    return 0;
}

static int set_paths(struct plan *plan, const struct plan_key *key, const struct ynode *node,
                     const char *where, const char *base_dir, struct err *err)
{
    /* Which count goes with which list. */
    bool train = key->offset == offsetof(struct plan, data.files);
    char ***list = train ? &plan->data.files : &plan->data.val_files;
    int *count = train ? &plan->data.n_files : &plan->data.n_val_files;
    const struct yitem single = {.value = (struct ynode *)node};
    const struct yitem *items = node->kind == YNODE_SEQUENCE ? node->items : &single;
    int n = node->kind == YNODE_SEQUENCE ? node->n : 1;

    for (int i = 0; i < *count; i++)
        free((*list)[i]);
    free(*list);
    *count = 0;
    *list = NULL;
    if (n == 0)
        return fail(key, "[]", where, err);
    *list = calloc((size_t)n, sizeof **list);
    if (!*list)
        return err_set(err, "%s: not enough memory", where);
    for (int i = 0; i < n; i++) {
        if (items[i].value->kind != YNODE_SCALAR)
            return fail(key, "a list with something else in it", where, err);
        if (set_text(&(*list)[i], key, items[i].value, where, base_dir, err) < 0)
            return -1;
        *count = i + 1;
    }
    return 0;
}

int plan_key_set(struct plan *plan, const struct plan_key *key, const struct ynode *node,
                 const char *where, const char *base_dir, struct err *err)
{
    void *field = (char *)plan + key->offset;
    if (key->type == KEY_PATHS && node->kind != YNODE_MAPPING)
        return set_paths(plan, key, node, where, base_dir, err);
    if (node->kind != YNODE_SCALAR)
        return fail(key, node->kind == YNODE_MAPPING ? "a mapping" : "a list", where, err);
    int rc = -1;
    switch (key->type) {
    case KEY_INT64:
    case KEY_INT:
    case KEY_UINT64:
        rc = set_whole(field, key, node->text);
        break;
    case KEY_REAL:
        rc = set_real(field, key, node->text);
        break;
    case KEY_BOOL:
    case KEY_CHOICE:
        rc = set_word(field, key, node->text);
        break;
    case KEY_REDUNDANCY:
        rc = set_redundancy(&plan->checkpoint, node->text);
        break;
    case KEY_NAME:
    case KEY_PATH:
    case KEY_RUN_PATH:
        return set_text(field, key, node, where, base_dir, err);
    case KEY_PATHS:
        break;
    }
    return rc < 0 ? fail(key, node->text, where, err) : 0;
}

/* In double quotes. set_text has refused what would need more than these two escapes. */
static void write_text(const char *s, FILE *out)
{
    fputc('"', out);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fputc('\\', out);
        fputc(*s, out);
    }
    fputc('"', out);
}

void plan_key_write(const struct plan *plan, const struct plan_key *key, FILE *out)
{
    const void *field = (const char *)plan + key->offset;
    char *const *list = NULL;
    char number[NUMBER_BYTES];
    int n = 0;
    switch (key->type) {
    case KEY_INT64:
        if (key->flags & KEY_AUTO && *(const int64_t *)field == PLAN_AUTO) {
            fputs("auto", out);
            break;
        }
        fprintf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case KEY_INT:
        fprintf(out, "%d", *(const int *)field);
        break;
    case KEY_UINT64:
        fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case KEY_REAL:
        number_text(*(const double *)field, number);
        fputs(number, out);
        break;
    case KEY_BOOL:
        fputs(*(const bool *)field ? "true" : "false", out);
        break;
    case KEY_CHOICE:
        fputs(key->choices[*(const int *)field], out);
        break;
    case KEY_REDUNDANCY:
        plan_redundancy_text(&plan->checkpoint, number);
        fputs(number, out);
        break;
    case KEY_NAME:
    case KEY_PATH:
    case KEY_RUN_PATH:
        if (*(char *const *)field)
            write_text(*(char *const *)field, out);
        else
            fputs("null", out);
        break;
    case KEY_PATHS:
        list = *(char **const *)field;
        n = key->offset == offsetof(struct plan, data.files) ? plan->data.n_files
                                                             : plan->data.n_val_files;
        if (n == 0) {
            fputs("null", out);
            break;
        }
        fputc('[', out);
        for (int i = 0; i < n; i++) {
            fputs(i ? ", " : "", out);
            write_text(list[i], out);
        }
        fputc(']', out);
        break;
    }
}
