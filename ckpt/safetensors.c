/* safetensors.c - the strict reader: a cursor over the bytes, one function per rule. */
#include "safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static const struct st_type types[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},    {"I64", 8},
    {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},     {"U32", 4},
    {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

const struct st_type *st_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name))
            return &types[i];
    return NULL;
}

struct cursor {
    const char *text;
    size_t at, bytes;
    struct err *err;
};

static int bad(struct cursor *c, const char *what)
{
    return err_set(c->err, "safetensors header, byte %zu: %s", c->at, what);
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->bytes && strchr(" \t\n\r", c->text[c->at]) && c->text[c->at])
        c->at++;
}

/* Skips blanks; true and moves on if the next byte is `wanted`. */
static bool next_is(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at >= c->bytes || c->text[c->at] != wanted)
        return false;
    c->at++;
    return true;
}

static int expect(struct cursor *c, char wanted)
{
    if (next_is(c, wanted))
        return 0;
    char text[] = "'?' is missing";
    text[1] = wanted;
    return bad(c, text);
}

static int take_hex4(struct cursor *c, unsigned *out)
{
    if (c->bytes - c->at < 4)
        return bad(c, "\\u needs four hex digits");
    *out = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        char d = c->text[c->at];
        unsigned v;
        if (d >= '0' && d <= '9')
            v = (unsigned)(d - '0');
        else if ((d | 32) >= 'a' && (d | 32) <= 'f')
            v = (unsigned)((d | 32) - 'a') + 10;
        else
            return bad(c, "\\u needs four hex digits");
        *out = *out << 4 | v;
    }
    return 0;
}

/* After "\u": the code point, a surrogate pair joined. */
static int take_code_point(struct cursor *c, unsigned *out)
{
    unsigned low;
    if (take_hex4(c, out))
        return -1;
    if (!*out)
        return bad(c, "a NUL in a string");
    if (*out >= 0xdc00 && *out < 0xe000)
        return bad(c, "half of a surrogate pair");
    if (*out < 0xd800 || *out >= 0xdc00)
        return 0;
    if (c->bytes - c->at < 2 || c->text[c->at] != '\\' || c->text[c->at + 1] != 'u')
        return bad(c, "half of a surrogate pair");
    c->at += 2;
    if (take_hex4(c, &low))
        return -1;
    if (low < 0xdc00 || low >= 0xe000)
        return bad(c, "half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return 0;
}

static int take_escape(struct cursor *c, char **to)
{
    if (c->at >= c->bytes)
        return bad(c, "the header ends in a string");
    char kind = c->text[c->at++];
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    const char *known = kind ? strchr(from, kind) : NULL;
    if (known) {
        *(*to)++ = into[known - from];
        return 0;
    }
    if (kind != 'u')
        return bad(c, "an escape that JSON does not have");
    unsigned code;
    if (take_code_point(c, &code))
        return -1;
    *to += utf8_put(*to, code);
    return 0;
}

/* A string, decoded into *out (malloc'ed). */
static int take_string(struct cursor *c, char **out, size_t *raw_at, size_t *raw_bytes)
{
    *out = NULL;
    if (expect(c, '"'))
        return -1;
    size_t start = c->at, end = start;
    while (end < c->bytes && c->text[end] != '"')
        end += c->text[end] == '\\' ? 2 : 1;
    if (end >= c->bytes)
        return bad(c, "the header ends in a string");
    char *text = malloc(end - start + 1), *to = text; /* decoding never lengthens */
    if (!text)
        return err_set(c->err, "safetensors header: out of memory");
    while (c->at < end) {
        unsigned char byte = (unsigned char)c->text[c->at];
        size_t n = byte == '\\' ? 0 : utf8_length(c->text + c->at, end - c->at);
        if (byte < 0x20 || (byte != '\\' && !n)) {
            free(text);
            return bad(c, byte < 0x20 ? "a control character in a string" : "not UTF-8");
        }
        if (byte == '\\') {
            c->at++;
            if (take_escape(c, &to)) {
                free(text);
                return -1;
            }
            continue;
        }
        memcpy(to, c->text + c->at, n);
        to += n;
        c->at += n;
    }
    *to = 0;
    c->at = end + 1;
    if (raw_at)
        *raw_at = start;
    if (raw_bytes)
        *raw_bytes = end - start;
    *out = text;
    return 0;
}

static int take_whole(struct cursor *c, int64_t *out)
{
    skip_space(c);
    size_t start = c->at;
    int64_t v = 0;
    while (c->at < c->bytes && c->text[c->at] >= '0' && c->text[c->at] <= '9') {
        int digit = c->text[c->at] - '0';
        if (v > (INT64_MAX - digit) / 10)
            return bad(c, "a number of 2^63 or more");
        v = v * 10 + digit;
        c->at++;
    }
    if (c->at == start)
        return bad(c, "a whole number is missing");
    if (c->text[start] == '0' && c->at - start > 1)
        return bad(c, "a number with leading zeros");
    if (c->at < c->bytes && strchr(".eE", c->text[c->at]) && c->text[c->at])
        return bad(c, "a number that is not whole");
    *out = v;
    return 0;
}

static int take_list(struct cursor *c, int most, int64_t *values, int *n)
{
    *n = 0;
    if (expect(c, '['))
        return -1;
    if (next_is(c, ']'))
        return 0;
    do {
        if (*n == most)
            return bad(c, "a list that is too long");
        if (take_whole(c, &values[(*n)++]))
            return -1;
    } while (next_is(c, ','));
    return expect(c, ']');
}

static int take_type(struct cursor *c, const struct st_type **out)
{
    char *name;
    if (take_string(c, &name, NULL, NULL))
        return -1;
    *out = st_type_find(name);
    free(name);
    return *out ? 0 : bad(c, "an unknown dtype");
}

/* The object after a tensor's name. */
static int take_tensor(struct cursor *c, struct st_tensor *t)
{
    enum { TYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    int seen = 0;
    if (expect(c, '{'))
        return -1;
    do {
        char *key;
        if (take_string(c, &key, NULL, NULL))
            return -1;
        int which = !strcmp(key, "dtype")          ? TYPE
                    : !strcmp(key, "shape")        ? SHAPE
                    : !strcmp(key, "data_offsets") ? OFFSETS
                                                   : 0;
        free(key);
        if (!which || seen & which)
            return bad(c, which ? "a key twice in a tensor" : "an unknown key in a tensor");
        seen |= which;
        int64_t offsets[2];
        int n;
        if (expect(c, ':') || (which == TYPE && take_type(c, &t->type)) ||
            (which == SHAPE && take_list(c, ST_MAX_DIMS, t->shape, &t->dims)))
            return -1;
        if (which == OFFSETS) {
            if (take_list(c, 2, offsets, &n))
                return -1;
            if (n != 2 || offsets[0] > offsets[1])
                return bad(c, "data_offsets must be [begin, end] with begin <= end");
            t->begin = offsets[0];
            t->end = offsets[1];
        }
    } while (next_is(c, ','));
    if (expect(c, '}'))
        return -1;
    if (seen != ALL)
        return bad(c, "a tensor lacks dtype, shape or data_offsets");
    int64_t bytes = t->type->bytes;
    bool empty = false;
    for (int d = 0; d < t->dims; d++)
        empty |= !t->shape[d];
    for (int d = 0; d < t->dims && !empty; d++)
        if (__builtin_mul_overflow(bytes, t->shape[d], &bytes))
            return bad(c, "a tensor of 2^63 bytes or more");
    if (empty)
        bytes = 0;
    return bytes == t->end - t->begin ? 0 : bad(c, "shape, dtype and data_offsets disagree");
}

/* Room for one more of `size` bytes in a growing array. */
static void *grow(void *array, int64_t n, size_t size)
{
    if (n & (n - 1))
        return array;
    return reallocarray(array, n ? (size_t)n * 2 : 1, size);
}

static int take_metadata(struct cursor *c, struct st_header *h)
{
    if (expect(c, '{'))
        return -1;
    if (next_is(c, '}'))
        return 0;
    do {
        struct st_pair *more = grow(h->metadata, h->n_metadata, sizeof *more);
        if (!more)
            return err_set(c->err, "safetensors header: out of memory");
        h->metadata = more;
        struct st_pair *p = &h->metadata[h->n_metadata];
        memset(p, 0, sizeof *p);
        h->n_metadata++;
        if (take_string(c, &p->key, NULL, NULL) || expect(c, ':') ||
            take_string(c, &p->value, &p->raw_at, &p->raw_bytes))
            return -1;
    } while (next_is(c, ','));
    return expect(c, '}');
}

static int take_entry(struct cursor *c, struct st_header *h, bool *had_metadata)
{
    char *name;
    if (take_string(c, &name, NULL, NULL))
        return -1;
    if (!strcmp(name, "__metadata__")) {
        free(name);
        if (*had_metadata)
            return bad(c, "__metadata__ twice");
        *had_metadata = true;
        return expect(c, ':') ? -1 : take_metadata(c, h);
    }
    struct st_tensor *more = grow(h->tensors, h->n_tensors, sizeof *more);
    if (!more) {
        free(name);
        return err_set(c->err, "safetensors header: out of memory");
    }
    h->tensors = more;
    struct st_tensor *t = &h->tensors[h->n_tensors++];
    memset(t, 0, sizeof *t);
    t->name = name;
    return expect(c, ':') ? -1 : take_tensor(c, t);
}

static int take_header(struct cursor *c, struct st_header *h)
{
    bool had_metadata = false;
    if (!c->bytes || c->text[0] != '{')
        return bad(c, "it must start with '{'");
    c->at = 1;
    if (!next_is(c, '}')) {
        do
            if (take_entry(c, h, &had_metadata))
                return -1;
        while (next_is(c, ','));
        if (expect(c, '}'))
            return -1;
    }
    skip_space(c);
    return c->at == c->bytes ? 0 : bad(c, "something stands behind the closing brace");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_data(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct st_pair *)a)->key, ((const struct st_pair *)b)->key);
}

/* Names and keys unique, the data filled without hole or overlap. Leaves both lists sorted. */
static int check_whole(struct st_header *h, int64_t data_bytes, struct err *err)
{
    if (h->n_tensors)
        qsort(h->tensors, (size_t)h->n_tensors, sizeof *h->tensors, by_name);
    for (int64_t i = 1; i < h->n_tensors; i++)
        if (!strcmp(h->tensors[i - 1].name, h->tensors[i].name))
            return err_set(err, "safetensors header: tensor '%.200s' twice", h->tensors[i].name);
    if (h->n_metadata)
        qsort(h->metadata, (size_t)h->n_metadata, sizeof *h->metadata, by_key);
    for (int64_t i = 1; i < h->n_metadata; i++)
        if (!strcmp(h->metadata[i - 1].key, h->metadata[i].key))
            return err_set(err, "safetensors header: metadata key '%.200s' twice",
                           h->metadata[i].key);
    if (h->n_tensors)
        qsort(h->tensors, (size_t)h->n_tensors, sizeof *h->tensors, by_data);
    int64_t at = 0;
    for (int64_t i = 0; i < h->n_tensors; at = h->tensors[i++].end)
        if (h->tensors[i].begin != at)
            return err_set(err,
                           "safetensors header: tensor '%.200s' begins at byte %" PRId64
                           " of the data, the one before ends at %" PRId64,
                           h->tensors[i].name, h->tensors[i].begin, at);
    if (at != data_bytes)
        return err_set(err,
                       "safetensors header: the tensors end at byte %" PRId64
                       " of the data, the file holds %" PRId64,
                       at, data_bytes);
    return 0;
}

int st_parse(const char *json, size_t bytes, int64_t data_bytes, struct st_header *out,
             struct err *err)
{
    struct cursor c = {.text = json, .bytes = bytes, .err = err};
    memset(out, 0, sizeof *out);
    if (bytes > ST_MAX_HEADER)
        return err_set(err, "safetensors header: %zu bytes; at most %d are accepted", bytes,
                       ST_MAX_HEADER);
    if (!take_header(&c, out) && !check_whole(out, data_bytes, err))
        return 0;
    st_free(out);
    return -1;
}

void st_free(struct st_header *h)
{
    for (int64_t i = 0; i < h->n_tensors; i++)
        free(h->tensors[i].name);
    for (int64_t i = 0; i < h->n_metadata; i++) {
        free(h->metadata[i].key);
        free(h->metadata[i].value);
    }
    free(h->tensors);
    free(h->metadata);
    memset(h, 0, sizeof *h);
}

const struct st_pair *st_metadata(const struct st_header *h, const char *key)
{
    struct st_pair wanted = {.key = (char *)key};
    if (!h->n_metadata)
        return NULL;
    return bsearch(&wanted, h->metadata, (size_t)h->n_metadata, sizeof *h->metadata, by_key);
}
