/* export.c - a committed checkpoint becomes a folder that transformers and others load. */
#include "hf/hf.h"

#include "hf/config.h"
#include "hf/like.h"
#include "hf/new_folder.h"
#include "hf/watch.h"
#include "train/run_folder.h"
#include "train/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW_VALUES = 2 << 20 }; /* 16 MiB as double, or a row */

struct export
{
    const struct hf_export_options *options;
    const struct plan *plan;
    struct hf_config like; /* zero: none */
    bool unfit;            /* a value, not the machine, ended it */
    int copied;
    struct weights weights;
    int n;       /* tensors */
    int *begins; /* of each file: its first tensor; n behind the last */
    int n_files;
    const char *folder;
};

static int64_t elements(const struct export *x, int number)
{
    const struct ckpt_tensor *t = &x->weights.wanted[number];
    return t->global[0] * (t->dims == 2 ? t->global[1] : 1);
}

static int64_t bytes_of(const struct export *x, int number)
{
    return elements(x, number) * (int64_t)hf_dtype_bytes(x->options->dtype);
}

/* Of tensors [first, end). */
static int64_t bytes_between(const struct export *x, int first, int end)
{
    int64_t bytes = 0;
    for (int i = first; i < end; i++)
        bytes += bytes_of(x, i);
    return bytes;
}

static int cut_files(struct export *x, struct err *err)
{
    x->begins = calloc((size_t)x->n + 2, sizeof *x->begins);
    if (!x->begins)
        return err_set(err, "no memory");
    int64_t bytes = 0;
    for (int i = 0; i < x->n; i++) {
        if (i && bytes + bytes_of(x, i) > x->options->shard_bytes) {
            x->begins[++x->n_files] = i;
            bytes = 0;
        }
        bytes += bytes_of(x, i);
    }
    x->begins[++x->n_files] = x->n;
    return 0;
}

static void file_name(const struct export *x, int file, char name[64])
{
    if (x->n_files == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, x->n_files);
}

/* ---- one file of tensors ---- */

static void print_header(const struct export *x, int file, FILE *out)
{
    int64_t at = 0;
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = x->begins[file]; i < x->begins[file + 1]; i++) {
        const struct ckpt_tensor *t = &x->weights.wanted[i];
        fprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name,
                hf_dtype_tag(x->options->dtype), t->global[0]);
        if (t->dims == 2)
            fprintf(out, ",%" PRId64, t->global[1]);
        fprintf(out, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", at, at + bytes_of(x, i));
        at += bytes_of(x, i);
    }
    fputc('}', out);
}

/* Length, JSON, spaces up to a multiple of 8, as the format's own library writes it. */
static int write_header(const struct export *x, int file, FILE *out, struct err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory) {
        print_header(x, file, memory);
        while (ftell(memory) % 8)
            fputc(' ', memory);
    }
    if (!memory || fclose(memory)) {
        free(text);
        return err_set(err, "no memory for a header");
    }
    uint64_t length = bytes;
    int rv = 0;
    if (fwrite(&length, sizeof length, 1, out) != 1 || fwrite(text, 1, bytes, out) != bytes)
        rv = err_set_errno(err, errno, "writing the header");
    free(text);
    return rv;
}

/* Rows of a tensor, on their way. */
struct rows {
    int64_t first, n; /* of the tensor; of a vector, elements */
    int64_t cols;
    double *values;
    void *narrow;
};

static int write_rows(struct export *x, int number, const struct rows *rows, FILE *out,
                      struct err *err)
{
    const char *name = x->weights.wanted[number].name;
    enum hf_dtype dtype = x->options->dtype;
    size_t n = (size_t)(rows->n * rows->cols);
    if (watch_stopped(&x->options->watch, err) ||
        weights_read_rows(&x->weights, number, rows->first, rows->n, rows->values, err))
        return -1;
    size_t good = hf_narrow(dtype, rows->values, n, rows->narrow);
    if (good < n) {
        x->unfit = true;
        return err_set(err, "%s, element %" PRId64 ": %g is too large for %s: use another dtype",
                       name, rows->first * rows->cols + (int64_t)good, rows->values[good],
                       hf_dtype_name(dtype));
    }
    if (fwrite(rows->narrow, hf_dtype_bytes(dtype), n, out) != n)
        return err_set_errno(err, errno, "writing %s", name);
    return 0;
}

/* Some rows at a time: memory does not depend on the tensor. */
static int write_tensor(struct export *x, int number, FILE *out, struct err *err)
{
    const struct ckpt_tensor *t = &x->weights.wanted[number];
    struct rows rows = {.cols = t->dims == 2 ? t->global[1] : 1};
    int64_t together = rows.cols < WINDOW_VALUES ? WINDOW_VALUES / rows.cols : 1;
    if (together > t->global[0])
        together = t->global[0];
    size_t values = (size_t)(together * rows.cols);
    rows.values = malloc(values * sizeof *rows.values);
    rows.narrow = malloc(values * hf_dtype_bytes(x->options->dtype));
    int rv = rows.values && rows.narrow ? 0 : err_set(err, "no memory for rows of %s", t->name);
    for (; !rv && rows.first < t->global[0]; rows.first += rows.n) {
        rows.n = t->global[0] - rows.first < together ? t->global[0] - rows.first : together;
        rv = write_rows(x, number, &rows, out, err);
    }
    free(rows.values);
    free(rows.narrow);
    return rv;
}

/* ---- the folder ---- */

static int open_new(const struct export *x, const char *name, char path[PATH_MAX], FILE **out,
                    struct err *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", x->folder, name) >= PATH_MAX)
        return err_set(err, "the path %.64s... is too long", x->folder);
    *out = fopen(path, "wxe");
    return *out ? 0 : err_set_errno(err, errno, "%s", path);
}

/* A file that was written is durable, or an error. */
static int close_new(FILE *out, const char *path, int rv, struct err *err)
{
    errno = 0;
    if (!rv && (fflush(out) || ferror(out) || fsync(fileno(out))))
        rv = err_set_errno(err, errno ? errno : EIO, "writing %s", path);
    fclose(out);
    return rv;
}

static int write_file(struct export *x, int file, struct err *err)
{
    char path[PATH_MAX], name[64];
    FILE *out;
    file_name(x, file, name);
    if (open_new(x, name, path, &out, err))
        return -1;
    int rv = write_header(x, file, out, err);
    for (int i = x->begins[file]; !rv && i < x->begins[file + 1]; i++)
        rv = write_tensor(x, i, out, err);
    return close_new(out, path, rv, err);
}

static int write_index(const struct export *x, struct err *err)
{
    char path[PATH_MAX], name[64];
    FILE *out;
    if (x->n_files == 1)
        return 0;
    if (open_new(x, "model.safetensors.index.json", path, &out, err))
        return -1;
    fprintf(out, "{\n  \"metadata\": {\"total_size\": %" PRId64 "},\n  \"weight_map\": {",
            bytes_between(x, 0, x->n));
    for (int file = 0; file < x->n_files; file++)
        for (int i = x->begins[file]; i < x->begins[file + 1]; i++) {
            file_name(x, file, name);
            fprintf(out, "%s\n    \"%s\": \"%s\"", i ? "," : "", x->weights.wanted[i].name, name);
        }
    fprintf(out, "\n  }\n}\n");
    return close_new(out, path, 0, err);
}

/* The longest context that the model is known to be made for. */
static int64_t positions_of(const struct export *x)
{
    const struct plan *plan = x->plan;
    int64_t sequence = plan->training.sequence, known = x->like.positions;
    if (!known && plan->model.rope_scaling.on)
        known = (int64_t)(plan->model.rope_scaling.factor *
                          (double)plan->model.rope_scaling.original_context);
    return known > sequence ? known : sequence;
}

static int write_config(const struct export *x, struct err *err)
{
    char path[PATH_MAX];
    FILE *out;
    if (open_new(x, "config.json", path, &out, err))
        return -1;
    hf_config_write(out, &x->plan->model, positions_of(x), x->options->dtype, &x->like.tokens);
    return close_new(out, path, 0, err);
}

static int write_folder(struct export *x, struct err *err)
{
    if (write_config(x, err) || write_index(x, err))
        return -1;
    if (x->options->like && like_copy(x->options->like, x->folder, &x->copied, err))
        return -1;
    for (int i = 0; i < x->n_files; i++) {
        if (write_file(x, i, err))
            return -1;
        watch_tell(&x->options->watch, i + 1, x->n_files,
                   bytes_between(x, x->begins[i], x->begins[i + 1]));
    }
    return 0;
}

static int open_weights(struct export *x, const struct run_folder *f, struct err *err)
{
    const char *dirs[2];
    struct weights_source source = {.dirs = dirs, .run_id = f->run_id};
    if (*f->shared)
        dirs[source.n_dirs++] = f->shared;
    if (*f->local)
        dirs[source.n_dirs++] = f->local;
    if (!source.n_dirs)
        return err_set(err, "the plan of %s keeps no checkpoints (checkpoint.local or shared)",
                       x->options->run_dir);
    if (weights_open(&x->weights, &source, &f->plan->model, x->options->step, err))
        return -1;
    int64_t step = x->weights.decision.position.step;
    if (x->options->step < 0 || step == x->options->step)
        return 0;
    return err_set(err,
                   "there is no committed checkpoint of step %" PRId64 "; the newest before it "
                   "is of step %" PRId64,
                   x->options->step, step);
}

static int export_to_new(struct export *x, struct err *err)
{
    struct new_folder folder;
    if (new_folder_begin(&folder, x->options->out, err))
        return HF_UNFIT;
    x->folder = folder.temp;
    if (!new_folder_room(&folder, bytes_between(x, 0, x->n), err) && !write_folder(x, err))
        return new_folder_commit(&folder, err) ? HF_FAILED : 0;
    new_folder_abort(&folder);
    return x->unfit ? HF_UNFIT : HF_FAILED;
}

static int open_all(struct export *x, struct run_folder *f, struct err *err)
{
    if (run_folder_open(f, x->options->run_dir, NULL, err))
        return -1;
    x->plan = f->plan;
    x->n = model_count(&f->plan->model);
    if (x->options->like && like_open(x->options->like, &f->plan->model, &x->like, err))
        return -1;
    return open_weights(x, f, err) || cut_files(x, err) ? -1 : 0;
}

/* gtrain trains it, and config.json has a key for it. */
static const char *note_of(const struct plan_model *m)
{
    return m->hidden % m->heads ? "transformers from version 5 on refuses a hidden_size that is no "
                                  "multiple of num_attention_heads"
                                : NULL;
}

int hf_export(const struct hf_export_options *options, struct hf_exported *done, struct err *err)
{
    struct export x = {.options = options};
    struct run_folder f;
    int rv = open_all(&x, &f, err) ? HF_UNFIT : export_to_new(&x, err);
    if (!rv && done)
        *done = (struct hf_exported){.position = x.weights.decision.position,
                                     .positions = positions_of(&x),
                                     .copied = x.copied,
                                     .note = note_of(&f.plan->model)};
    weights_close(&x.weights);
    run_folder_close(&f);
    hf_config_free(&x.like);
    free(x.begins);
    return rv;
}
