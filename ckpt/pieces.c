/* pieces.c - which parts of which files make up a rank's tensors: ckpt_table, ckpt_pieces. Pure.
 *
 * A wanted slice starts as one box that is still open. Each file that holds a part of the tensor
 * takes out what it has; what is left of a box is cut into at most two boxes a dimension. So every
 * element is read once, from the first file in the order given, and what stays open is a hole. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

/* ---- tables ---- */

/* "1,2,3"; "-" for a scalar */
static void print_dims(FILE *out, int dims, const int64_t *values)
{
    fputc(' ', out);
    if (dims)
        dims_print(out, dims, values);
    else
        fputc('-', out);
}

static void print_tensor(FILE *out, const struct ckpt_tensor *t)
{
    fprintf(out, "%s %s", t->name, dtype_name(t->dtype));
    print_dims(out, t->dims, t->global);
    print_dims(out, t->dims, t->offset);
    print_dims(out, t->dims, t->shape);
    fputc('\n', out);
}

/* tensors, or where NULL those of file */
static char *print_table(const struct ckpt_tensor *tensors, const struct ckpt_file *file, int n,
                         struct err *err)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; out && i < n; i++)
        print_tensor(out, tensors ? &tensors[i] : &file->tensors[i].tensor);
    if (out && !fclose(out))
        return text;
    free(text);
    err_set(err, "out of memory for a table of %d tensors", n);
    return NULL;
}

char *ckpt_table(const struct ckpt_tensor *tensors, int n, struct err *err)
{
    return print_table(tensors, NULL, n, err);
}

char *ckpt_file_table(const struct ckpt_file *f, struct err *err)
{
    return print_table(NULL, f, f->n, err);
}

/* FNV-1a, after the length. */
uint64_t ckpt_cut(const char *table)
{
    uint64_t h = 1469598103934665603u ^ strlen(table);
    for (; *table; table++)
        h = (h ^ (unsigned char)*table) * 1099511628211u;
    return h ? h : 1;
}

static int take_word(char **line, char **word)
{
    *word = strsep(line, " ");
    return *word && **word ? 0 : -1;
}

/* *dims: -1: not known yet. */
static int take_dims(const char *text, int *dims, int64_t *values)
{
    int n = 0;
    if (strcmp(text, "-"))
        for (;;) {
            if (n == CKPT_MAX_DIMS || !take_number(&text, INT64_MAX, &values[n++]))
                return -1;
            if (!*text)
                break;
            if (*text++ != ',')
                return -1;
        }
    if (*dims >= 0 && *dims != n)
        return -1;
    *dims = n;
    return 0;
}

static int parse_line(char *line, struct ckpt_tensor *t)
{
    char *name, *dtype, *global, *offset, *shape;
    if (take_word(&line, &name) || take_word(&line, &dtype) || take_word(&line, &global) ||
        take_word(&line, &offset) || take_word(&line, &shape) || line)
        return -1;
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dims = -1;
    while (dtype_name(t->dtype) && strcmp(dtype_name(t->dtype), dtype))
        t->dtype++;
    if (!dtype_name(t->dtype) || take_dims(global, &t->dims, t->global) ||
        take_dims(offset, &t->dims, t->offset) || take_dims(shape, &t->dims, t->shape))
        return -1;
    for (int d = 0; d < t->dims; d++)
        if (t->offset[d] > t->global[d] || t->shape[d] > t->global[d] - t->offset[d])
            return -1;
    return shape_bytes(t->dtype, t->dims, t->global) < 0 ? -1 : 0;
}

/* ---- what is where ---- */

struct entry {
    struct ckpt_tensor tensor; /* its name lies in index.texts */
    int source, number;        /* which table, which line of it */
};

struct index {
    char **texts;
    struct entry *entries; /* by name, then source */
    int n;
};

static int add_table(struct index *x, char *text, int source, struct err *err)
{
    int number = 0;
    for (char *next; *text; text = next) {
        next = strchrnul(text, '\n');
        if (*next)
            *next++ = 0;
        if (!(x->n & (x->n - 1))) {
            void *more = reallocarray(x->entries, x->n ? (size_t)x->n * 2 : 1, sizeof *x->entries);
            if (!more)
                return err_set(err, "out of memory for %d tensors", x->n);
            x->entries = more;
        }
        struct entry *e = &x->entries[x->n];
        *e = (struct entry){.source = source, .number = number++};
        if (parse_line(text, &e->tensor))
            return err_set(err, "table %d, line %d: '%.80s' is no tensor", source, number, text);
        x->n++;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    return order ? order : x->source - y->source;
}

static int index_make(struct index *x, const char *const *tables, int n, struct err *err)
{
    x->texts = calloc((size_t)n + 1, sizeof *x->texts);
    for (int i = 0; i < n; i++) {
        if (!x->texts || !(x->texts[i] = strdup(tables[i])))
            return err_set(err, "out of memory for %d tables", n);
        if (add_table(x, x->texts[i], i, err))
            return -1;
    }
    if (x->n)
        qsort(x->entries, (size_t)x->n, sizeof *x->entries, by_name);
    return 0;
}

static void index_free(struct index *x, int n)
{
    for (int i = 0; x->texts && i < n; i++)
        free(x->texts[i]);
    free(x->texts);
    free(x->entries);
}

static int first_of(const struct index *x, const char *name)
{
    int low = 0, high = x->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(x->entries[middle].tensor.name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- boxes ---- */

struct box {
    int64_t offset[CKPT_MAX_DIMS], shape[CKPT_MAX_DIMS];
};

struct boxes {
    struct box *all;
    int n, room;
};

static int push(struct boxes *b, const struct box *box)
{
    if (b->n == b->room) {
        int room = b->room ? b->room * 2 : 16;
        void *more = reallocarray(b->all, (size_t)room, sizeof *b->all);
        if (!more)
            return -1;
        b->all = more;
        b->room = room;
    }
    b->all[b->n++] = *box;
    return 0;
}

static bool intersect(int dims, const struct box *a, const struct ckpt_tensor *t, struct box *out)
{
    for (int d = 0; d < dims; d++) {
        int64_t a_end = a->offset[d] + a->shape[d], t_end = t->offset[d] + t->shape[d];
        int64_t from = a->offset[d] > t->offset[d] ? a->offset[d] : t->offset[d];
        int64_t end = a_end < t_end ? a_end : t_end;
        if (from >= end)
            return false;
        out->offset[d] = from;
        out->shape[d] = end - from;
    }
    return true;
}

/* What of box is not in `taken`, which is inside it. */
static int push_rest(struct boxes *open, int dims, struct box box, const struct box *taken)
{
    for (int d = 0; d < dims; d++) {
        struct box before = box, behind = box;
        int64_t end = box.offset[d] + box.shape[d], taken_end = taken->offset[d] + taken->shape[d];
        before.shape[d] = taken->offset[d] - box.offset[d];
        behind.offset[d] = taken_end;
        behind.shape[d] = end - taken_end;
        if ((before.shape[d] && push(open, &before)) || (behind.shape[d] && push(open, &behind)))
            return -1;
        box.offset[d] = taken->offset[d];
        box.shape[d] = taken->shape[d];
    }
    return 0;
}

struct pieces {
    struct ckpt_piece *all;
    int n;
};

static int add_piece(struct pieces *p, const struct entry *e, int to, const struct box *box)
{
    if (!(p->n & (p->n - 1))) {
        void *more = reallocarray(p->all, p->n ? (size_t)p->n * 2 : 1, sizeof *p->all);
        if (!more)
            return -1;
        p->all = more;
    }
    struct ckpt_piece *piece = &p->all[p->n++];
    *piece = (struct ckpt_piece){.source = e->source, .from = e->number, .to = to};
    memcpy(piece->offset, box->offset, sizeof piece->offset);
    memcpy(piece->shape, box->shape, sizeof piece->shape);
    return 0;
}

/* One entry's part of the open boxes; -1: no memory. */
static int take_part(struct boxes *open, const struct entry *e, int to, struct pieces *out)
{
    int dims = e->tensor.dims, n = open->n;
    for (int i = 0; i < n;) {
        struct box box = open->all[i], taken = {.shape = {0}};
        if (!intersect(dims, &box, &e->tensor, &taken)) {
            i++;
            continue;
        }
        /* the last of those not looked at yet takes its place, what is left goes behind */
        open->all[i] = open->all[--n];
        open->all[n] = open->all[--open->n];
        if (add_piece(out, e, to, &taken) || push_rest(open, dims, box, &taken))
            return -1;
    }
    return 0;
}

/* "1,2,3" */
static const char *dims_text(int dims, const int64_t *values, char text[96])
{
    int n = 0;
    *text = 0;
    for (int d = 0; d < dims; d++)
        n += snprintf(text + n, 96 - (size_t)n, "%s%" PRId64, d ? "," : "", values[d]);
    return text;
}

static int check_same(const struct ckpt_tensor *want, const struct ckpt_tensor *have,
                      struct err *err)
{
    char is[96], asked[96];
    if (want->dtype == have->dtype && want->dims == have->dims &&
        !memcmp(want->global, have->global, sizeof *want->global * (size_t)want->dims))
        return 0;
    return err_set(err, "%s is %s of shape %s in the checkpoint; %s of shape %s is wanted",
                   want->name, dtype_name(have->dtype), dims_text(have->dims, have->global, is),
                   dtype_name(want->dtype), dims_text(want->dims, want->global, asked));
}

static int hole(const struct ckpt_tensor *want, const struct box *box, struct err *err)
{
    char offset[96], shape[96];
    return err_set(err, "%s: its part of shape %s at %s is in no file of the checkpoint",
                   want->name, dims_text(want->dims, box->shape, shape),
                   dims_text(want->dims, box->offset, offset));
}

static int find_tensor(const struct index *x, const struct ckpt_tensor *want, int to,
                       struct boxes *open, struct pieces *out, struct err *err)
{
    struct box all = {.shape = {0}};
    memcpy(all.offset, want->offset, sizeof *want->offset * (size_t)want->dims);
    memcpy(all.shape, want->shape, sizeof *want->shape * (size_t)want->dims);
    open->n = 0;
    if (!shape_bytes(want->dtype, want->dims, want->shape))
        return 0;
    if (push(open, &all))
        return err_set(err, "out of memory");
    for (int i = first_of(x, want->name);
         open->n && i < x->n && !strcmp(x->entries[i].tensor.name, want->name); i++) {
        if (check_same(want, &x->entries[i].tensor, err))
            return -1;
        if (take_part(open, &x->entries[i], to, out))
            return err_set(err, "out of memory");
    }
    return open->n ? hole(want, &open->all[0], err) : 0;
}

int ckpt_pieces(const struct ckpt_tensor *wanted, int n, const char *const *tables, int n_tables,
                struct ckpt_piece **pieces, int *n_pieces, struct err *err)
{
    struct index x = {.n = 0};
    struct boxes open = {.n = 0};
    struct pieces out = {.n = 0};
    int rv = index_make(&x, tables, n_tables, err);
    for (int i = 0; !rv && i < n; i++)
        rv = find_tensor(&x, &wanted[i], i, &open, &out, err);
    index_free(&x, n_tables);
    free(open.all);
    *pieces = rv ? NULL : out.all;
    *n_pieces = rv ? 0 : out.n;
    if (rv)
        free(out.all);
    return rv;
}
