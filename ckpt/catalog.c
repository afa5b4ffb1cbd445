/* catalog.c - parses the scans, sorts, joins. */
#include "catalog.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drain.h"
#include "parity.h"

void scan_print_escaped(FILE *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p <= 0x20 || *p == '%' || *p == 0x7f)
            fprintf(out, "%%%02X", *p);
        else
            fputc(*p, out);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* malloc'ed; NULL: malformed or no memory */
static char *unescape(const char *text, size_t n)
{
    char *out = malloc(n + 1), *to = out;
    for (size_t i = 0; out && i < n; i++) {
        if (text[i] != '%') {
            *to++ = text[i];
            continue;
        }
        int high = i + 2 < n ? hex_digit(text[i + 1]) : -1;
        int low = i + 2 < n ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0 || (high | low) == 0) {
            free(out);
            return NULL;
        }
        *to++ = (char)(high << 4 | low);
        i += 2;
    }
    if (out)
        *to = 0;
    return out;
}

/* Room for one more in a growing array. */
static int grow(void *array_pointer, int n, size_t size)
{
    void **array = array_pointer;
    if (n & (n - 1))
        return 0;
    void *more = reallocarray(*array, n ? (size_t)n * 2 : 1, size);
    if (!more)
        return -1;
    *array = more;
    return 0;
}

static int add_note(struct catalog *c, const char *text, size_t n, struct err *err)
{
    size_t old = c->notes ? strlen(c->notes) : 0;
    char *notes = realloc(c->notes, old + n + 2);
    if (!notes)
        return err_set(err, "out of memory");
    memcpy(notes + old, text, n);
    strcpy(notes + old + n, "\n");
    c->notes = notes;
    return 0;
}

static int add_record(struct catalog *c, const char *text, size_t n, struct err *err)
{
    struct record r;
    struct err why;
    if (record_parse(text, (int64_t)n, RECORD_COMMIT, &r, &why)) {
        /* A later version's record checks by its CRC but cannot be read: passed over, and said. */
        err_prefix(&why, "a record could not be read");
        return add_note(c, why.text, strlen(why.text), err);
    }
    char *copy = strndup(text, n);
    if (!copy || grow(&c->records, c->n_records, sizeof *c->records) ||
        grow(&c->texts, c->n_records, sizeof *c->texts)) {
        free(copy);
        record_free(&r);
        return err_set(err, "out of memory for %d records", c->n_records);
    }
    if (r.meta.key.epoch > c->epoch)
        c->epoch = r.meta.key.epoch;
    c->texts[c->n_records] = copy;
    c->records[c->n_records++] = r;
    return 0;
}

/* Of another spelling, by a later version: passed over, like its records. */
static int add_mark(struct catalog *c, const char *text, size_t n, struct err *err)
{
    static const char odd[] = "a mark could not be read";
    struct mark m;
    if (!mark_parse(text, (int64_t)n, &m))
        return add_note(c, odd, sizeof odd - 1, err);
    return marks_add(&c->marks, &m) ? err_set(err, "out of memory for %d marks", c->marks.n) : 0;
}

/* "NAME BYTES" */
static int add_file(struct catalog *c, const char *text, size_t n, bool damaged, struct err *err)
{
    struct catalog_file f = {.source = c->n_sources - 1, .damaged = damaged};
    const char *space = memchr(text, ' ', n);
    size_t length = space ? (size_t)(space - text) : 0;
    const char *p = space ? space + 1 : text;
    if (!length || length >= sizeof f.path)
        return err_set(err, "a scan: '%.*s' is no file", (int)(n < 200 ? n : 200), text);
    memcpy(f.path, text, length);
    name_parse(f.path, &f.name);
    if (!name_complete(f.name.kind) || !take_number(&p, INT64_MAX, &f.bytes) || p != text + n)
        return err_set(err, "a scan: '%.*s' is no file", (int)(n < 200 ? n : 200), text);
    if (grow(&c->files, c->n_files, sizeof *c->files))
        return err_set(err, "out of memory for %d files", c->n_files);
    if (f.name.key.epoch > c->epoch)
        c->epoch = f.name.key.epoch;
    c->files[c->n_files++] = f;
    return 0;
}

static int add_line(struct catalog *c, const char *line, size_t n, struct err *err)
{
    struct catalog_source *source = &c->sources[c->n_sources - 1];
    const char *space = memchr(line, ' ', n);
    size_t word = space ? (size_t)(space - line) : n;
    const char *rest = space ? space + 1 : line + n;
    size_t left = (size_t)(line + n - rest);
#define IS(name) (word == sizeof name - 1 && !memcmp(line, name, word))
    if (IS("record"))
        return add_record(c, rest, left, err);
    if (IS("mark"))
        return add_mark(c, rest, left, err);
    if (IS("file"))
        return add_file(c, rest, left, false, err);
    if (IS("damaged"))
        return add_file(c, rest, left, true, err);
    if (IS("note"))
        return add_note(c, rest, left, err);
    if (IS("scan"))
        return left == 1 && *rest == '1' ? 0 : err_set(err, "a scan of another version");
    if (IS("node") && !source->node) {
        source->node = strndup(rest, left);
        return source->node && name_node_valid(source->node) ? 0 : err_set(err, "a scan: bad node");
    }
    if (IS("dir") && !source->dir)
        return (source->dir = unescape(rest, left)) ? 0 : err_set(err, "a scan: bad dir");
    if (IS("epoch")) {
        int64_t epoch;
        if (!take_number(&rest, UINT32_MAX, &epoch) || rest != line + n)
            return err_set(err, "a scan: bad epoch");
        if (epoch > c->epoch)
            c->epoch = (uint32_t)epoch;
        return 0;
    }
#undef IS
    return err_set(err, "a scan: '%.*s' is no line of one", (int)(n < 80 ? n : 80), line);
}

static int add_blob(struct catalog *c, const char *blob, struct err *err)
{
    if (grow(&c->sources, c->n_sources, sizeof *c->sources))
        return err_set(err, "out of memory for %d scans", c->n_sources);
    memset(&c->sources[c->n_sources++], 0, sizeof *c->sources);
    for (const char *line = blob; *line;) {
        const char *end = strchrnul(line, '\n');
        if (!*end)
            return err_set(err, "a scan is cut in its last line");
        if (end > line && add_line(c, line, (size_t)(end - line), err))
            return -1;
        line = end + 1;
    }
    struct catalog_source *s = &c->sources[c->n_sources - 1];
    return s->node && s->dir ? 0 : err_set(err, "a scan lacks node or dir");
}

struct indexed {
    struct record record;
    char *text;
};

static bool is_shared(const struct record *r)
{
    return !strcmp(r->ranks[0].node, CKPT_SHARED_NODE);
}

static int newest_first(const void *a, const void *b)
{
    const struct indexed *x = a, *y = b;
    int order = key_compare(&y->record.meta.key, &x->record.meta.key);
    if (order)
        return order;
    /* of one that lies on nodes and, copied, in the shared folder: what is nearer first */
    order = is_shared(&x->record) - is_shared(&y->record);
    return order ? order : strcmp(x->text, y->text);
}

static int sort_records(struct catalog *c, struct err *err)
{
    struct indexed *all = calloc((size_t)c->n_records + 1, sizeof *all);
    if (!all)
        return err_set(err, "out of memory for %d records", c->n_records);
    for (int i = 0; i < c->n_records; i++)
        all[i] = (struct indexed){c->records[i], c->texts[i]};
    qsort(all, (size_t)c->n_records, sizeof *all, newest_first);
    int kept = 0;
    for (int i = 0; i < c->n_records; i++) {
        if (kept && !strcmp(c->texts[kept - 1], all[i].text)) { /* on several nodes */
            record_free(&all[i].record);
            free(all[i].text);
            continue;
        }
        c->records[kept] = all[i].record;
        c->texts[kept++] = all[i].text;
    }
    c->n_records = kept;
    free(all);
    return 0;
}

static int by_path(const void *a, const void *b)
{
    const struct catalog_file *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order ? order : x->source - y->source;
}

int catalog_make(struct catalog *out, const char *const *blobs, int n, struct err *err)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++)
        if (add_blob(out, blobs[i], err)) {
            err_prefix(err, "node %d of %d", i, n);
            goto fail;
        }
    if (sort_records(out, err))
        goto fail;
    if (out->n_files)
        qsort(out->files, (size_t)out->n_files, sizeof *out->files, by_path);
    marks_settle(&out->marks);
    return 0;
fail:
    catalog_free(out);
    return -1;
}

void catalog_free(struct catalog *c)
{
    for (int i = 0; i < c->n_sources; i++) {
        free(c->sources[i].node);
        free(c->sources[i].dir);
    }
    for (int i = 0; i < c->n_records; i++) {
        record_free(&c->records[i]);
        free(c->texts[i]);
    }
    marks_free(&c->marks);
    free(c->sources);
    free(c->records);
    free(c->texts);
    free(c->files);
    free(c->notes);
    memset(c, 0, sizeof *c);
}

/* Index of the first file whose path is not before this one. */
static int lower_bound(const struct catalog *c, const char *path)
{
    int low = 0, high = c->n_files;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(c->files[middle].path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct catalog_file *find(const struct catalog *c, const char *wanted_node,
                                       const char *path, int64_t bytes, const char **why)
{
    const struct catalog_file *found = NULL;
    const char *reason = "is missing";
    for (int i = lower_bound(c, path); i < c->n_files && !strcmp(c->files[i].path, path); i++) {
        const struct catalog_file *f = &c->files[i];
        if (f->bytes != bytes || f->damaged) {
            reason = f->damaged ? "is damaged" : "has the wrong length";
            continue;
        }
        const char *node = c->sources[f->source].node;
        if (!strcmp(node, wanted_node)) {
            found = f;
            break;
        }
        if (!found || strcmp(node, c->sources[found->source].node) < 0)
            found = f;
    }
    if (why)
        *why = found ? NULL : reason;
    return found;
}

const struct catalog_file *catalog_find(const struct catalog *c, const struct record *r, int rank,
                                        const char **why)
{
    const struct record_rank *k = &r->ranks[rank];
    return find(c, k->node, k->path, k->bytes, why);
}

const struct catalog_file *catalog_find_parity(const struct catalog *c, const struct record *r,
                                               int rank)
{
    const struct record_rank *k = &r->ranks[rank];
    return k->parity.path ? find(c, k->node, k->parity.path, k->parity.bytes, NULL) : NULL;
}

bool catalog_can_rebuild(const struct catalog *c, const struct record *r, int rank)
{
    bool files[PARITY_MEMBERS_MAX], parities[PARITY_MEMBERS_MAX];
    struct parity_code code = {.keeps = r->ranks[rank].parity.keeps};
    if (!r->ranks[rank].parity.path)
        return false;
    for (int i = 0; i < r->n; i++) {
        const struct record_parity *p = &r->ranks[i].parity;
        if (!p->path || p->group != r->ranks[rank].parity.group)
            continue;
        files[p->member] = catalog_find(c, r, i, NULL) != NULL;
        parities[p->member] = catalog_find_parity(c, r, i) != NULL;
        code.members++;
    }
    return parity_suffices(&code, files, parities);
}
