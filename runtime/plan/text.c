/* text.c - the plan as text a machine reads: canonical YAML, and what the hash is over. */
#include "plan/internal.h"
#include "plan/keys.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static bool is_rope_scaling(const struct plan_key *key)
{
    return strchr(key->name, '.') != NULL;
}

/* Every key in the table's order, whether it was given or not; keys of a group inside its braces.
 * Reading it gives the same plan: all defaults are written out and all paths absolute. */
static void write_canonical(const struct plan *plan, FILE *out)
{
    const char *section = "";
    bool in_group = false;
    for (int i = 0; i < plan_n_keys; i++) {
        const struct plan_key *key = &plan_keys[i];
        bool grouped = is_rope_scaling(key);
        if (grouped && !plan->model.rope_scaling.on)
            continue;
        if (in_group && !grouped)
            fputs("}\n", out);
        if (strcmp(section, key->section)) {
            section = key->section;
            fprintf(out, "%s:\n", section);
        }
        if (grouped) {
            int group = (int)(strchr(key->name, '.') - key->name);
            if (in_group)
                fputs(", ", out);
            else
                fprintf(out, "  %.*s: {", group, key->name);
            fprintf(out, "%s: ", key->name + group + 1);
        } else {
            fprintf(out, "  %s: ", key->name);
        }
        plan_key_write(plan, key, out);
        if (!grouped)
            fputc('\n', out);
        in_group = grouped;
    }
}

char *plan_canonical(const struct plan *plan)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    write_canonical(plan, out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* Data files by their names alone: the same files may lie in another folder on another day. */
static void write_base_names(const struct plan *plan, FILE *out)
{
    for (int i = 0; i < plan->data.n_files; i++) {
        const char *slash = strrchr(plan->data.files[i], '/');
        fprintf(out, "%s\"%s\"", i ? ", " : "", slash ? slash + 1 : plan->data.files[i]);
    }
}

/* Does the learning rate hang on this key? A constant one has no end, and only wsd has a last part:
 * such a run may be made longer without a word about where its schedule ends. */
static bool decides(const struct plan *plan, const struct plan_key *key)
{
    enum plan_lr schedule = plan->training.lr_schedule;
    if (key->offset == offsetof(struct plan, training.wsd_decay_steps))
        return schedule == PLAN_LR_WSD;
    if (key->offset == offsetof(struct plan, training.decay_steps) ||
        key->offset == offsetof(struct plan, training.min_lr))
        return schedule != PLAN_LR_CONSTANT;
    return !is_rope_scaling(key) || plan->model.rope_scaling.on;
}

static void write_hashed(const struct plan *plan, FILE *out)
{
    for (int i = 0; i < plan_n_keys; i++) {
        const struct plan_key *key = &plan_keys[i];
        if (!(key->flags & KEY_HASH) || !decides(plan, key))
            continue;
        fprintf(out, "%s.%s: ", key->section, key->name);
        if (key->type == KEY_PATHS)
            write_base_names(plan, out);
        else
            plan_key_write(plan, key, out);
        fputc('\n', out);
    }
}

char *plan_hash_text(const struct plan *plan)
{
    char *text = NULL;
    size_t size = 0;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = c ? uselocale(c) : (locale_t)0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
        write_hashed(plan, out);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    if (c) {
        uselocale(before);
        freelocale(c);
    }
    return text;
}

/* FNV-1a, 64 bits (Fowler, Noll, Vo): it tells plans apart, it guards against nobody. */
uint64_t plan_hash(const struct plan *plan)
{
    uint64_t hash = 0xcbf29ce484222325u;
    char *text = plan_hash_text(plan);
    for (const char *s = text; s && *s; s++)
        hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
    free(text);
    return hash;
}

/* The value of "SECTION.KEY: VALUE\n" in a text of such lines, its length; NULL: no such key. */
static const char *find_value(const char *text, const char *line, size_t key_bytes, size_t *bytes)
{
    for (; *text; text = strchrnul(text, '\n'), text += *text == '\n')
        if (!strncmp(text, line, key_bytes)) {
            *bytes = strcspn(text, "\n") - key_bytes;
            return text + key_bytes;
        }
    return NULL;
}

/* The lines of one text whose key has another value in the other, or (lacking) is not there. */
static void write_difference(const char *lines, const char *other, bool lacking, FILE *out)
{
    for (const char *line = lines; *line; line = strchrnul(line, '\n'), line += *line == '\n') {
        size_t key = (size_t)(strstr(line, ": ") + 2 - line), bytes = strcspn(line, "\n") - key, n;
        const char *value = find_value(other, line, key, &n);
        if (lacking ? value != NULL : value && n == bytes && !memcmp(value, line + key, n))
            continue;
        fprintf(out, "%s%.*s", ftell(out) ? "; " : "", (int)key, line);
        if (lacking)
            fprintf(out, "not there, now %.*s", (int)bytes, line + key);
        else if (value)
            fprintf(out, "%.*s, now %.*s", (int)bytes, line + key, (int)n, value);
        else
            fprintf(out, "%.*s, now not there", (int)bytes, line + key);
    }
}

char *plan_difference(const struct plan *was, const struct plan *now)
{
    char *text = NULL, *a = plan_hash_text(was), *b = plan_hash_text(now);
    size_t size = 0;
    FILE *out = a && b ? open_memstream(&text, &size) : NULL;
    if (out) {
        write_difference(a, b, false, out);
        write_difference(b, a, true, out);
        if (fclose(out) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(a);
    free(b);
    return text;
}
