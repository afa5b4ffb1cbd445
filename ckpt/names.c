/* names.c - file names: format, parse by formatting again and comparing. */
#include "names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int key_compare(const struct ckpt_key *a, const struct ckpt_key *b)
{
    if (a->epoch != b->epoch)
        return a->epoch < b->epoch ? -1 : 1;
    if (a->generation != b->generation)
        return a->generation < b->generation ? -1 : 1;
    return a->step < b->step ? -1 : a->step > b->step;
}

bool name_complete(enum name_kind kind)
{
    return kind == NAME_FILE || kind == NAME_PARITY;
}

bool name_run_valid(const char *run)
{
    size_t n = run ? strspn(run, "0123456789abcdefghijklmnopqrstuvwxyz-") : 0;
    return n >= 1 && n <= CKPT_RUN_MAX && !run[n];
}

bool name_node_valid(const char *node)
{
    static const char allowed[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
    size_t n = node ? strspn(node, allowed) : 0;
    return n >= 1 && n <= CKPT_NODE_MAX && !node[n] && node[0] != '.';
}

bool take_number(const char **p, int64_t most, int64_t *out)
{
    const char *s = *p;
    int64_t v = 0;
    if (*s < '0' || *s > '9' || (*s == '0' && s[1] >= '0' && s[1] <= '9'))
        return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        int digit = *s - '0';
        if (v > (most - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *p = s;
    *out = v;
    return true;
}

bool take_hex(const char **p, int digits, uint64_t *out)
{
    uint64_t v = 0;
    const char *s = *p;
    for (int i = 0; i < digits; i++, s++) {
        if (*s >= '0' && *s <= '9')
            v = v << 4 | (uint64_t)(*s - '0');
        else if (*s >= 'a' && *s <= 'f')
            v = v << 4 | (uint64_t)(*s - 'a' + 10);
        else
            return false;
    }
    *p = s;
    *out = v;
    return true;
}

/* In front of the rank. */
static char letter(enum name_kind kind)
{
    if (kind == NAME_COPY_PART)
        return 'c';
    return kind == NAME_PARITY || kind == NAME_PARITY_PART ? 'p' : 'r';
}

void name_format(const struct ckpt_name *name, char out[CKPT_NAME_ROOM])
{
    out[0] = 0;
    switch (name->kind) {
    case NAME_FOREIGN:
        break;
    case NAME_LOG:
        snprintf(out, CKPT_NAME_ROOM, "%s.%s.commits", name->run, name->node);
        break;
    case NAME_RESERVE:
        snprintf(out, CKPT_NAME_ROOM, "%s.e%" PRIu32 ".g%" PRIu32 ".r%d.reserve", name->run,
                 name->key.epoch, name->key.generation, name->rank);
        break;
    case NAME_FILE:
    case NAME_PART:
    case NAME_COPY_PART:
    case NAME_PARITY:
    case NAME_PARITY_PART:
        snprintf(out, CKPT_NAME_ROOM, "%s.e%" PRIu32 ".g%" PRIu32 ".s%" PRId64 ".%c%d.%s",
                 name->run, name->key.epoch, name->key.generation, name->key.step,
                 letter(name->kind), name->rank,
                 name_complete(name->kind) ? "safetensors" : "part");
        break;
    }
}

/* ".X" + number; false leaves *p anywhere. */
static bool take_field(const char **p, char letter, int64_t most, int64_t *out)
{
    if ((*p)[0] != '.' || (*p)[1] != letter)
        return false;
    *p += 2;
    return take_number(p, most, out);
}

static enum name_kind parse_state(const char *p, struct ckpt_name *out)
{
    int64_t epoch, generation, rank;
    if (!take_field(&p, 'e', UINT32_MAX, &epoch) || !take_field(&p, 'g', UINT32_MAX, &generation))
        return NAME_FOREIGN;
    out->key = (struct ckpt_key){(uint32_t)epoch, (uint32_t)generation, -1};
    bool step = p[0] == '.' && p[1] == 's';
    if (step && !take_field(&p, 's', INT64_MAX, &out->key.step))
        return NAME_FOREIGN;
    char of = step && p[0] == '.' && (p[1] == 'p' || p[1] == 'c') ? p[1] : 'r';
    if (!take_field(&p, of, CKPT_WORLD_MAX - 1, &rank))
        return NAME_FOREIGN;
    out->rank = (int)rank;
    if (!step)
        return strcmp(p, ".reserve") ? NAME_FOREIGN : NAME_RESERVE;
    if (!strcmp(p, ".safetensors"))
        return of == 'p' ? NAME_PARITY : of == 'r' ? NAME_FILE : NAME_FOREIGN;
    if (strcmp(p, ".part"))
        return NAME_FOREIGN;
    return of == 'p' ? NAME_PARITY_PART : of == 'r' ? NAME_PART : NAME_COPY_PART;
}

void name_parse(const char *text, struct ckpt_name *out)
{
    memset(out, 0, sizeof *out);
    const char *dot = strchr(text, '.');
    if (!dot || dot == text || dot - text > CKPT_RUN_MAX)
        return;
    memcpy(out->run, text, (size_t)(dot - text));
    if (!name_run_valid(out->run))
        return;
    out->kind = parse_state(dot, out);
    if (out->kind != NAME_FOREIGN)
        return;
    static const char suffix[] = ".commits";
    size_t left = strlen(dot + 1), tail = sizeof suffix - 1;
    if (left <= tail || left - tail > CKPT_NODE_MAX || strcmp(dot + 1 + left - tail, suffix))
        return;
    memcpy(out->node, dot + 1, left - tail);
    out->node[left - tail] = 0;
    if (name_node_valid(out->node))
        out->kind = NAME_LOG;
}
