/* weights.c - joins the slices of a checkpoint to whole tensors. See weights.h. */
#include "train/weights.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UPLOAD_MS = 600000 }; /* of one tensor */

/* ---- which checkpoint ---- */

/* Each folder is scanned as a node of its own. */
int weights_decide(const struct weights_source *source, int64_t max_step, struct ckpt_decision *d,
                   struct err *err)
{
    char **blobs = calloc((size_t)source->n_dirs, sizeof *blobs);
    *d = (struct ckpt_decision){.found = false};
    int rv = blobs ? 0 : err_set(err, "no memory");
    for (int i = 0; !rv && i < source->n_dirs; i++) {
        char node[32];
        snprintf(node, sizeof node, "folder%d", i);
        blobs[i] = ckpt_scan(source->dirs[i], node, source->run_id, err);
        rv = blobs[i] ? 0 : -1;
    }
    if (!rv)
        rv = max_step >= 0
                 ? ckpt_decide_named((const char *const *)blobs, source->n_dirs, max_step, d, err)
                 : ckpt_decide((const char *const *)blobs, source->n_dirs, max_step, d, err);
    for (int i = 0; blobs && i < source->n_dirs; i++)
        free(blobs[i]);
    free(blobs);
    if (!rv && !d->found)
        rv = err_set(err, "no whole committed checkpoint of run %s in %s%s%s%s", source->run_id,
                     source->dirs[0], source->n_dirs > 1 ? " and the other folders" : "",
                     d->report && *d->report ? ": " : "", d->report ? d->report : "");
    return rv;
}

/* ---- where each tensor is ---- */

static int open_file(struct weights *w, int number, struct err *err)
{
    const struct ckpt_place *place = &w->decision.places[number];
    if (w->file && w->file_number == number)
        return 0;
    ckpt_file_close(w->file);
    w->file = NULL;
    w->file_number = number;
    if (ckpt_file_open(&w->file, place->path, err))
        return -1;
    if (ckpt_file_digest(w->file) == place->digest)
        return 0;
    return err_set(err, "%s is not the file that the commit record names", place->path);
}

/* What element() reads. */
static bool is_float(enum ckpt_dtype dtype)
{
    return dtype == CKPT_F64 || dtype == CKPT_F32 || dtype == CKPT_BF16;
}

/* The dtype that the file has the first of these names in, if it has one. */
static bool find_dtype(struct weights *w, const char *name)
{
    for (int i = 0; i < ckpt_file_count(w->file); i++) {
        struct ckpt_tensor t;
        if (ckpt_file_tensor(w->file, i, &t) || strcmp(t.name, name) || !is_float(t.dtype))
            continue;
        w->dtype = t.dtype;
        return true;
    }
    return false;
}

static int list_wanted(struct weights *w, struct err *err)
{
    enum { NAME_BYTES = sizeof((struct model_tensor *)0)->name };
    int n = model_count(w->model);
    w->wanted = calloc((size_t)n, sizeof *w->wanted);
    w->names = calloc((size_t)n, NAME_BYTES);
    if (!w->wanted || !w->names)
        return err_set(err, "no memory for %d tensors", n);
    for (int i = 0; i < n; i++) {
        struct model_tensor t;
        struct ckpt_tensor *to = &w->wanted[i];
        model_tensor(w->model, i, &t);
        memcpy(w->names + (size_t)i * NAME_BYTES, t.name, NAME_BYTES);
        *to = (struct ckpt_tensor){.name = w->names + (size_t)i * NAME_BYTES,
                                   .dims = t.matrix ? 2 : 1,
                                   .global = {t.matrix ? t.rows : t.cols, t.matrix ? t.cols : 0}};
        memcpy(to->shape, to->global, sizeof to->shape);
    }
    return 0;
}

/* One table for each way in which files are cut, and the first file of each. */
struct cuts {
    char **tables;
    int *files, n;
    bool dtype_known;
};

static int add_file(struct weights *w, struct cuts *cuts, int number, struct err *err)
{
    char *table = open_file(w, number, err) ? NULL : ckpt_file_table(w->file, err);
    if (!table)
        return -1;
    cuts->dtype_known = cuts->dtype_known || find_dtype(w, w->wanted[0].name);
    for (int i = 0; i < cuts->n; i++)
        if (!strcmp(cuts->tables[i], table)) {
            free(table);
            return 0;
        }
    cuts->files[cuts->n] = number;
    cuts->tables[cuts->n++] = table;
    return 0;
}

static int find_pieces(struct weights *w, struct err *err)
{
    int world = w->decision.world, n = model_count(w->model);
    struct cuts cuts = {.tables = calloc((size_t)world, sizeof *cuts.tables),
                        .files = calloc((size_t)world, sizeof *cuts.files)};
    int rv = cuts.tables && cuts.files ? 0 : err_set(err, "no memory for %d files", world);
    for (int i = 0; !rv && i < world; i++)
        rv = add_file(w, &cuts, i, err);
    for (int i = 0; i < n; i++)
        w->wanted[i].dtype = w->dtype;
    if (!rv)
        rv = ckpt_pieces(w->wanted, n, (const char *const *)cuts.tables, cuts.n, &w->pieces,
                         &w->n_pieces, err);
    for (int i = 0; i < w->n_pieces; i++)
        w->pieces[i].source = cuts.files[w->pieces[i].source];
    for (int i = 0; i < cuts.n; i++)
        free(cuts.tables[i]);
    free(cuts.tables);
    free(cuts.files);
    return rv;
}

int weights_open(struct weights *w, const struct weights_source *source,
                 const struct plan_model *model, int64_t max_step, struct err *err)
{
    *w = (struct weights){.model = model};
    return weights_decide(source, max_step, &w->decision, err) || list_wanted(w, err) ||
                   find_pieces(w, err)
               ? -1
               : 0;
}

void weights_close(struct weights *w)
{
    ckpt_file_close(w->file);
    ckpt_decision_free(&w->decision);
    free(w->wanted);
    free(w->names);
    free(w->pieces);
    *w = (struct weights){0};
}

/* ---- reading ---- */

/* A piece on its way into a whole tensor. */
struct joining {
    enum ckpt_dtype dtype;
    double *values;                /* of the whole tensor */
    int64_t cols, row, col, width; /* the piece: its first element, elements a row */
    int64_t at;                    /* elements of it that are there */
};

static size_t element_bytes(enum ckpt_dtype dtype)
{
    return dtype == CKPT_F32 ? 4 : dtype == CKPT_BF16 ? 2 : 8;
}

/* A NaN keeps its bits: an instruction that converts would make a signalling one quiet. */
static double widen(uint32_t bits)
{
    double wide;
    float value;
    memcpy(&value, &bits, sizeof value);
    if ((bits & 0x7fffffff) <= 0x7f800000)
        return (double)value;
    uint64_t nan =
        (uint64_t)(bits >> 31) << 63 | UINT64_C(0x7ff) << 52 | (uint64_t)(bits & 0x7fffff) << 29;
    memcpy(&wide, &nan, sizeof wide);
    return wide;
}

static double element(const unsigned char *p, enum ckpt_dtype dtype)
{
    double wide;
    uint32_t bits;
    uint16_t half;
    if (dtype == CKPT_F64) {
        memcpy(&wide, p, sizeof wide);
        return wide;
    }
    if (dtype == CKPT_F32) {
        memcpy(&bits, p, sizeof bits);
        return widen(bits);
    }
    memcpy(&half, p, sizeof half);
    return widen((uint32_t)half << 16); /* bf16 is the upper half of a float */
}

static int take(void *arg, const void *p, size_t n, struct err *err)
{
    struct joining *j = arg;
    const unsigned char *from = p;
    size_t bytes = element_bytes(j->dtype);
    if (n % bytes) /* a writer of this format never does it */
        return err_set(err, "a tensor that does not start at a multiple of its elements");
    for (; n; n -= bytes, from += bytes, j->at++)
        j->values[(j->row + j->at / j->width) * j->cols + j->col + j->at % j->width] =
            element(from, j->dtype);
    return 0;
}

/* What of the piece is in n rows from `first`; false: nothing. */
static bool cut_rows(struct ckpt_piece *piece, int64_t first, int64_t n)
{
    int64_t begin = piece->offset[0], end = begin + piece->shape[0];
    if (begin < first)
        begin = first;
    if (end > first + n)
        end = first + n;
    piece->offset[0] = begin;
    piece->shape[0] = end - begin;
    return begin < end;
}

/* A vector is a matrix of one column. */
static int read_piece(struct weights *w, const struct ckpt_piece *piece, int64_t first,
                      double *values, struct err *err)
{
    const struct ckpt_tensor *t = &w->wanted[piece->to];
    bool matrix = t->dims == 2;
    struct joining j = {.dtype = t->dtype,
                        .values = values,
                        .cols = matrix ? t->global[1] : 1,
                        .row = piece->offset[0] - first,
                        .col = matrix ? piece->offset[1] : 0,
                        .width = matrix ? piece->shape[1] : 1};
    return open_file(w, piece->source, err) || ckpt_file_read_piece(w->file, piece, take, &j, err)
               ? -1
               : 0;
}

int weights_read_rows(struct weights *w, int number, int64_t first, int64_t n, double *values,
                      struct err *err)
{
    for (int i = 0; i < w->n_pieces; i++) {
        struct ckpt_piece piece = w->pieces[i];
        if (piece.to == number && cut_rows(&piece, first, n) &&
            read_piece(w, &piece, first, values, err))
            return -1;
    }
    return 0;
}

int weights_read(struct weights *w, int number, double *values, struct err *err)
{
    return weights_read_rows(w, number, 0, w->wanted[number].global[0], values, err);
}

/* ---- into a state ---- */

static int upload(const double *values, struct kbuf out, struct state *state,
                  struct kstream *stream, struct err *err)
{
    float *narrow = NULL;
    const void *host = values;
    if (state->dtype == K_F32) {
        narrow = malloc(out.count * sizeof *narrow);
        if (!narrow)
            return err_set(err, "no memory");
        for (size_t i = 0; i < out.count; i++)
            narrow[i] = (float)values[i];
        host = narrow;
    }
    KSUBMIT(state->k, stream, UPLOAD, upload, .out = out, .host = host);
    int rv = kernels_stream_sync(state->k, stream, clock_ms() + UPLOAD_MS, err);
    free(narrow);
    return rv;
}

static int load_tensor(struct weights *w, const struct state_tensor *t, struct state *state,
                       struct kstream *stream, struct err *err)
{
    double *values = malloc(t->param.count * sizeof *values);
    int rv = values ? 0 : err_set(err, "no memory for %s", t->global.name);
    if (!rv)
        rv = weights_read(w, t->global.number, values, err);
    if (!rv)
        rv = upload(values, t->param, state, stream, err);
    free(values);
    return rv;
}

int weights_load(const struct weights_source *source, const struct plan_model *model,
                 struct state *state, struct kstream *stream, struct ckpt_position *position,
                 struct err *err)
{
    struct weights w;
    int rv = weights_open(&w, source, model, -1, err);
    for (int i = 0; !rv && i < state->n; i++)
        rv = load_tensor(&w, &state->tensors[i], state, stream, err);
    if (!rv && position)
        *position = w.decision.position;
    weights_close(&w);
    return rv;
}
