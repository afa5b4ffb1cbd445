/* import.c - a Hugging Face folder becomes a run folder with a checkpoint of step 0.
 *
 * The checkpoint is written a file after the other, as if ranks, each with some whole tensors, had
 * saved one by one; memory is that of the largest tensor (alone.h). */
#include "hf/hf.h"

#include "alone.h"
#include "drain.h"
#include "hf/config.h"
#include "hf/new_folder.h"
#include "hf/source.h"
#include "hf/watch.h"
#include "launch/rundir.h"
#include "train/model.h"
#include "train/reshard.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of one file, unless one tensor is larger. */
#define FILE_BYTES (INT64_C(4) << 30)

enum { PIECE_VALUES = 1 << 20 }; /* read at once: between two a stop is seen */

enum { SEQUENCE_MOST = 4096 }; /* tokens: where the plan starts; the model may see more */

struct import {
    const struct hf_watch *watch;
    struct hf_config config;
    struct hf_source source;
    int n;                          /* tensors of the model */
    const struct hf_tensor **found; /* by number */
    struct ckpt_tensor *list;       /* for the engine, by number; gtrain.layout last */
    char (*names)[sizeof((struct model_tensor *)0)->name];
    int64_t parameters;
    char *plan;                                  /* its text */
    char dir[PATH_MAX], run_id[RUNDIR_ID_BYTES]; /* of the checkpoint */
    uint32_t epoch;
    int first, end; /* the file that is written: its first tensor, behind its last */
};

/* ---- is all there, and no more ---- */

static int check_shape(const struct hf_tensor *found, const struct model_tensor *t, struct err *err)
{
    const struct st_tensor *is = found->tensor;
    int64_t rows = t->matrix ? t->rows : t->cols, cols = t->matrix ? t->cols : 1;
    char shape[256] = "";
    if (is->dims == (t->matrix ? 2 : 1) && is->shape[0] == rows &&
        (!t->matrix || is->shape[1] == cols)) {
        if (hf_dtype_find(is->type->name) >= 0)
            return 0;
        return err_set(err, "%s: %s is %s: F32, BF16 or F16 is expected", found->file->path,
                       t->name, is->type->name);
    }
    for (int d = 0, n = 0; d < is->dims; d++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRId64, d ? ", " : "",
                      is->shape[d]);
    if (t->matrix)
        return err_set(err,
                       "%s: %s has shape [%s]; config.json makes it [%" PRId64 ", %" PRId64 "]",
                       found->file->path, t->name, shape, rows, cols);
    return err_set(err, "%s: %s has shape [%s]; config.json makes it [%" PRId64 "]",
                   found->file->path, t->name, shape, rows);
}

/* A tied model's files may hold the head too, if it is the embedding. */
static int compare_head(const struct import *m, const struct hf_tensor *head, float *a, float *b,
                        struct err *err)
{
    const struct hf_tensor *embedding = m->found[0];
    int64_t count = hf_source_count(embedding);
    for (int64_t at = 0; at < count; at += PIECE_VALUES) {
        int64_t n = count - at < PIECE_VALUES ? count - at : PIECE_VALUES;
        if (watch_stopped(m->watch, err) || hf_source_read(head, at, n, a, err) ||
            hf_source_read(embedding, at, n, b, err))
            return -1;
        if (memcmp(a, b, (size_t)n * sizeof *a))
            return err_set(err,
                           "tie_word_embeddings is true, but lm_head.weight in %s is not the "
                           "embedding",
                           head->file->path);
    }
    return 0;
}

static int check_tied_head(const struct import *m, const struct hf_tensor *head, struct err *err)
{
    struct model_tensor t;
    model_tensor(&m->config.model, 0, &t);
    if (check_shape(head, &t, err))
        return -1;
    float *values = malloc(2 * PIECE_VALUES * sizeof *values);
    int rv = values ? compare_head(m, head, values, values + PIECE_VALUES, err)
                    : err_set(err, "no memory to compare the head");
    free(values);
    return rv;
}

/* What is no tensor of the model. */
static int check_extra(const struct import *m, const struct hf_tensor *t, struct err *err)
{
    const char *name = t->tensor->name;
    if (hf_is_table(name))
        return 0;
    if (m->config.model.tied && !strcmp(name, "lm_head.weight"))
        return check_tied_head(m, t, err);
    return err_set(err, "%s: %.200s is no tensor of the model that config.json describes",
                   t->file->path, name);
}

static int find_tensors(struct import *m, const char *dir, struct err *err)
{
    bool *known = calloc((size_t)m->source.n_tensors + 1, sizeof *known);
    int rv = known ? 0 : err_set(err, "no memory");
    for (int i = 0; !rv && i < m->n; i++) {
        struct model_tensor t;
        model_tensor(&m->config.model, i, &t);
        m->found[i] = hf_source_find(&m->source, t.name);
        if (!m->found[i] && i == 0 && m->config.model.tied) /* of two names for it one was kept */
            m->found[i] = hf_source_find(&m->source, "lm_head.weight");
        m->parameters += t.rows * t.cols;
        if (!m->found[i])
            rv = err_set(err, "%s: %s is missing", dir, t.name);
        else
            rv = check_shape(m->found[i], &t, err);
        if (!rv)
            known[m->found[i] - m->source.tensors] = true;
    }
    for (int64_t i = 0; !rv && i < m->source.n_tensors; i++)
        if (!known[i])
            rv = check_extra(m, &m->source.tensors[i], err);
    free(known);
    return rv;
}

static void list_tensors(struct import *m)
{
    for (int i = 0; i < m->n; i++) {
        struct model_tensor t;
        struct ckpt_tensor *to = &m->list[i];
        model_tensor(&m->config.model, i, &t);
        memcpy(m->names[i], t.name, sizeof t.name);
        *to = (struct ckpt_tensor){.name = m->names[i], .dtype = CKPT_F32, .dims = 1};
        to->global[0] = t.cols;
        if (t.matrix) {
            to->dims = 2;
            to->global[0] = t.rows;
            to->global[1] = t.cols;
        }
        memcpy(to->shape, to->global, sizeof to->shape);
    }
}

/* ---- plan.yaml ---- */

static void print_plan(FILE *out, const struct hf_config *config)
{
    const struct plan_model *m = &config->model;
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];
    fprintf(out,
            "# Made by `gtrain ckpt import`. The model section is that of the weights: keep it.\n"
            "# Before you train, name your data and set training to your purpose.\n"
            "model:\n"
            "  layers: %" PRId64 "\n  hidden: %" PRId64 "\n  ffn: %" PRId64 "\n  heads: %" PRId64
            "\n  kv_heads: %" PRId64 "\n  head_dim: %" PRId64 "\n  vocab: %" PRId64
            "\n  tied: %s\n  norm_eps: %s\n  init_std: %s\n  rope_theta: %s\n",
            m->layers, m->hidden, m->ffn, m->heads, m->kv_heads, m->head_dim, m->vocab,
            m->tied ? "true" : "false", hf_real(m->norm_eps, a), hf_real(m->init_std, b),
            hf_real(m->rope_theta, c));
    if (m->rope_scaling.on)
        fprintf(out,
                "  rope_scaling: {factor: %s, low_freq_factor: %s, high_freq_factor: %s,\n"
                "                 original_context: %" PRId64 "}\n",
                hf_real(m->rope_scaling.factor, a), hf_real(m->rope_scaling.low_freq_factor, b),
                hf_real(m->rope_scaling.high_freq_factor, c), m->rope_scaling.original_context);
    fprintf(out,
            "data: {format: bin, train: tokens.bin}\n"
            "training: {steps: 1000, global_batch: 8, sequence: %" PRId64 ", lr: 1e-5}\n"
            "checkpoint: {shared: checkpoints, every: 100}\n",
            config->positions < SEQUENCE_MOST ? config->positions : SEQUENCE_MOST);
}

/* m->plan: its text, which makes a plan that is trained. */
static int make_plan(struct import *m, struct err *err)
{
    size_t bytes;
    FILE *out = open_memstream(&m->plan, &bytes);
    if (out)
        print_plan(out, &m->config);
    if (!out || fclose(out))
        return err_set(err, "no memory for a plan");
    struct plan *plan = plan_parse(m->plan, bytes, "plan.yaml", NULL, 0, NULL, err);
    plan_free(plan);
    return plan ? 0 : err_prefix(err, "config.json makes a plan that gtrain does not train");
}

static int write_plan(const struct import *m, const char *folder, struct err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    FILE *out = fopen(path, "wxe");
    if (!out)
        return err_set_errno(err, errno, "%s", path);
    fputs(m->plan, out);
    int rv = fflush(out) || ferror(out) || fsync(fileno(out))
                 ? err_set_errno(err, errno, "%s", path)
                 : 0;
    fclose(out);
    return rv;
}

/* ---- the checkpoint ---- */

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    const struct import *m = arg;
    int number = m->first + index;
    const int64_t layout[LAYOUT_WORDS] = {1, 1, 1, 1, 1}; /* whole tensors, by no arithmetic */
    if (number == m->end) {
        memcpy(host, layout, sizeof layout);
        return 0;
    }
    int64_t count = hf_source_count(m->found[number]);
    for (int64_t at = 0; at < count; at += PIECE_VALUES) {
        int64_t n = count - at < PIECE_VALUES ? count - at : PIECE_VALUES;
        if (watch_stopped(m->watch, err) ||
            hf_source_read(m->found[number], at, n, (float *)host + at, err))
            return -1;
    }
    return 0;
}

/* Of tensors [first, end). */
static int64_t bytes_of(const struct import *m, int first, int end)
{
    int64_t bytes = 0;
    for (int i = first; i < end; i++)
        bytes += hf_source_count(m->found[i]) * (int64_t)sizeof(float);
    return bytes;
}

/* Tensors from first to before this one go into one file. */
static int end_of_file(const struct import *m, int first)
{
    int end = first + 1;
    while (end < m->n && bytes_of(m, first, end + 1) <= FILE_BYTES)
        end++;
    return end;
}

static int write_rank(struct import *m, struct alone *to, int rank, struct err *err)
{
    int n = m->end - m->first;
    struct ckpt_tensor *list = calloc((size_t)n + 1, sizeof *list);
    if (!list)
        return err_set(err, "no memory");
    memcpy(list, m->list + m->first, (size_t)n * sizeof *list);
    list[n] = m->list[m->n];
    int rv = alone_write(to, rank, list, n + 1, copy_out, m, err);
    free(list);
    return rv;
}

static int write_checkpoint(struct import *m, struct err *err)
{
    struct alone to = {
        .dir = m->dir, .node = CKPT_SHARED_NODE, .run_id = m->run_id, .epoch = m->epoch};
    int *begins = calloc((size_t)m->n + 1, sizeof *begins);
    if (!begins)
        return err_set(err, "no memory");
    for (int at = 0; at < m->n; at = begins[to.world])
        begins[++to.world] = end_of_file(m, at);
    int rv = alone_open(&to, err);
    for (int rank = to.world - 1; !rv && rank >= 0; rank--) {
        m->first = begins[rank];
        m->end = begins[rank + 1];
        rv = write_rank(m, &to, rank, err);
        if (!rv)
            watch_tell(m->watch, to.world - rank, to.world, bytes_of(m, m->first, m->end));
    }
    alone_close(&to);
    free(begins);
    return rv;
}

/* ---- */

static int fill_folder(struct import *m, const char *folder, struct err *err)
{
    int lock = rundir_lock(folder, err);
    if (lock < 0)
        return -1;
    int rv = write_plan(m, folder, err) || rundir_next_epoch(folder, m->run_id, &m->epoch, err);
    if (!rv && snprintf(m->dir, sizeof m->dir, "%s/checkpoints/%s", folder, m->run_id) >=
                   (int)sizeof m->dir)
        rv = err_set(err, "the path %.64s... is too long", folder);
    if (!rv)
        rv = write_checkpoint(m, err);
    close(lock);
    return rv ? -1 : 0;
}

static int read_folder(struct import *m, const char *hf_dir, struct err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/config.json", hf_dir) >= (int)sizeof path)
        return err_set(err, "the path %.64s... is too long", hf_dir);
    if (hf_config_read(path, &m->config, err) || make_plan(m, err) ||
        hf_source_open(&m->source, hf_dir, err))
        return -1;
    m->n = model_count(&m->config.model);
    m->found = calloc((size_t)m->n, sizeof *m->found);
    m->list = calloc((size_t)m->n + 1, sizeof *m->list);
    m->names = calloc((size_t)m->n, sizeof *m->names);
    if (!m->found || !m->list || !m->names)
        return err_set(err, "no memory for %d tensors", m->n);
    list_tensors(m);
    m->list[m->n] = (struct ckpt_tensor){.name = RESHARD_LAYOUT_NAME,
                                         .dtype = CKPT_I64,
                                         .dims = 1,
                                         .global = {LAYOUT_WORDS},
                                         .shape = {LAYOUT_WORDS}};
    return find_tensors(m, hf_dir, err);
}

static int make_folder(struct import *m, const char *out, struct err *err)
{
    struct new_folder folder;
    if (new_folder_begin(&folder, out, err))
        return HF_UNFIT;
    if (!new_folder_room(&folder, bytes_of(m, 0, m->n), err) && !fill_folder(m, folder.temp, err))
        return new_folder_commit(&folder, err) ? HF_FAILED : 0;
    new_folder_abort(&folder);
    return HF_FAILED;
}

int hf_import(const char *hf_dir, const char *out, const struct hf_watch *watch,
              int64_t *parameters, struct err *err)
{
    static const struct hf_watch nobody = {.stop = NULL};
    struct import *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, "no memory");
    m->watch = watch ? watch : &nobody;
    int rv = read_folder(m, hf_dir, err) ? HF_UNFIT : make_folder(m, out, err);
    if (parameters)
        *parameters = m->parameters;
    hf_config_free(&m->config);
    hf_source_close(&m->source);
    free(m->plan);
    free(m->found);
    free(m->list);
    free(m->names);
    free(m);
    return rv;
}
