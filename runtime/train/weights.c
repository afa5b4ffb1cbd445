/* weights.c - joins the slices of a checkpoint to whole tensors. See weights.h. */
#include "train/weights.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UPLOAD_MS = 600000 }; /* of one tensor */

/* The whole tensor that is being put together. */
struct joined {
    const struct state_tensor *tensor;
    double *values;         /* rows * cols */
    unsigned char *covered; /* the same, 0 or 1 */
};

static size_t file_bytes(enum ckpt_dtype dtype)
{
    switch (dtype) {
    case CKPT_F32:
        return 4;
    case CKPT_BF16:
        return 2;
    default:
        return 8;
    }
}

static double element(const void *data, enum ckpt_dtype dtype, int64_t i)
{
    if (dtype == CKPT_F64)
        return ((const double *)data)[i];
    if (dtype == CKPT_F32)
        return (double)((const float *)data)[i];
    /* bf16 is the upper half of a float. */
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* A vector counts as one row. */
static void as_matrix(const struct ckpt_tensor *t, const int64_t by_dim[CKPT_MAX_DIMS],
                      int64_t single, int64_t *rows, int64_t *cols)
{
    *rows = t->dims == 2 ? by_dim[0] : single;
    *cols = t->dims == 2 ? by_dim[1] : by_dim[0];
}

static int place(struct joined *j, const struct ckpt_tensor *t, const void *data, struct err *err)
{
    const struct model_tensor *m = &j->tensor->global;
    int64_t rows, cols, row, col, all_rows, all_cols;
    as_matrix(t, t->shape, 1, &rows, &cols);
    as_matrix(t, t->offset, 0, &row, &col);
    as_matrix(t, t->global, 1, &all_rows, &all_cols);
    if (t->dims != (m->matrix ? 2 : 1) || all_rows != m->rows || all_cols != m->cols)
        return err_set(err, "%s has another shape in the checkpoint than in the plan", t->name);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t at = (row + r) * m->cols + col + c;
            j->values[at] = element(data, t->dtype, r * cols + c);
            j->covered[at] = 1;
        }
    return 0;
}

/* What one file holds of the tensor. */
static int take_from(struct joined *j, struct ckpt_file *file, struct err *err)
{
    for (int i = 0; i < ckpt_file_count(file); i++) {
        struct ckpt_tensor t;
        if (ckpt_file_tensor(file, i, &t))
            return err_set(err, "the file's table cannot be read");
        if (strcmp(t.name, j->tensor->global.name) || t.dtype == CKPT_I64)
            continue;
        size_t bytes = file_bytes(t.dtype);
        for (int d = 0; d < t.dims; d++)
            bytes *= (size_t)t.shape[d];
        void *data = malloc(bytes ? bytes : 1);
        if (!data)
            return err_set(err, "no memory for %s (%zu bytes)", t.name, bytes);
        int rv = ckpt_file_read(file, i, data, err);
        if (!rv)
            rv = place(j, &t, data, err);
        free(data);
        if (rv)
            return -1;
    }
    return 0;
}

static int upload(const struct joined *j, struct state *state, struct kstream *stream,
                  struct err *err)
{
    struct kbuf out = j->tensor->param;
    float *narrow = NULL;
    const void *host = j->values;
    if (state->dtype == K_F32) {
        narrow = malloc(out.count * sizeof *narrow);
        if (!narrow)
            return err_set(err, "no memory");
        for (size_t i = 0; i < out.count; i++)
            narrow[i] = (float)j->values[i];
        host = narrow;
    }
    KSUBMIT(state->k, stream, UPLOAD, upload, .out = out, .host = host);
    int rv = kernels_stream_sync(state->k, stream, clock_ms() + UPLOAD_MS, err);
    free(narrow);
    return rv;
}

static int join_tensor(const struct state_tensor *tensor, struct ckpt_file **files, int n,
                       struct state *state, struct kstream *stream, struct err *err)
{
    size_t count = tensor->param.count, missing = 0;
    struct joined j = {
        .tensor = tensor, .values = calloc(count, sizeof *j.values), .covered = calloc(count, 1)};
    int rv = j.values && j.covered ? 0 : err_set(err, "no memory for %s", tensor->global.name);
    for (int i = 0; !rv && i < n; i++)
        rv = take_from(&j, files[i], err);
    for (size_t i = 0; !rv && i < count; i++)
        missing += !j.covered[i];
    if (missing)
        rv = err_set(err, "%s: %zu of its %zu elements are in no file of the checkpoint",
                     tensor->global.name, missing, count);
    if (!rv)
        rv = upload(&j, state, stream, err);
    free(j.values);
    free(j.covered);
    return rv;
}

static int load_files(const struct ckpt_decision *d, struct state *state, struct kstream *stream,
                      struct err *err)
{
    struct ckpt_file **files = calloc((size_t)d->world, sizeof *files);
    int rv = files ? 0 : err_set(err, "no memory for %d files", d->world);
    for (int i = 0; !rv && i < d->world; i++)
        rv = ckpt_file_open(&files[i], d->places[i].path, err);
    for (int i = 0; !rv && i < state->n; i++)
        rv = join_tensor(&state->tensors[i], files, d->world, state, stream, err);
    for (int i = 0; files && i < d->world; i++)
        if (files[i])
            ckpt_file_close(files[i]);
    free(files);
    return rv;
}

/* Each folder is scanned as a node of its own. */
static int decide(const struct weights_source *source, struct ckpt_decision *d, struct err *err)
{
    char **blobs = calloc((size_t)source->n_dirs, sizeof *blobs);
    int rv = blobs ? 0 : err_set(err, "no memory");
    for (int i = 0; !rv && i < source->n_dirs; i++) {
        char node[32];
        snprintf(node, sizeof node, "folder%d", i);
        blobs[i] = ckpt_scan(source->dirs[i], node, source->run_id, err);
        rv = blobs[i] ? 0 : -1;
    }
    if (!rv)
        rv = ckpt_decide((const char *const *)blobs, source->n_dirs, -1, d, err);
    for (int i = 0; blobs && i < source->n_dirs; i++)
        free(blobs[i]);
    free(blobs);
    if (!rv && !d->found)
        rv = err_set(err, "no whole committed checkpoint of run %s in %s%s%s%s", source->run_id,
                     source->dirs[0], source->n_dirs > 1 ? " and the other folders" : "",
                     d->report && *d->report ? ": " : "", d->report ? d->report : "");
    return rv;
}

int weights_load(const struct weights_source *source, struct state *state, struct kstream *stream,
                 struct ckpt_position *position, struct err *err)
{
    struct ckpt_decision d = {0};
    int rv = decide(source, &d, err);
    if (!rv)
        rv = load_files(&d, state, stream, err);
    if (!rv && position)
        *position = d.position;
    ckpt_decision_free(&d);
    return rv;
}
