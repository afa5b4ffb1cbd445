/* file_header.c - what the header of a rank's file means, beyond being valid safetensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "file.h"

static const char *metadata(const struct ckpt_file *f, const char *key, struct err *err)
{
    const struct st_pair *p = st_metadata(&f->header, key);
    if (p)
        return p->value;
    err_set(err, "__metadata__ has no %s: this is not a gtrain checkpoint", key);
    return NULL;
}

static int take_meta(const struct ckpt_file *f, const char *key, int64_t most, int64_t *out,
                     struct err *err)
{
    const char *text = metadata(f, key, err), *p = text;
    if (!text)
        return -1;
    if (!take_number(&p, most, out) || *p)
        return err_set(err, "%s is '%.40s', no number up to %" PRId64, key, text, most);
    return 0;
}

static int take_position(struct ckpt_file *f, struct err *err)
{
    struct file_meta *m = &f->meta;
    int64_t epoch, generation, rank, world;
    const char *run = metadata(f, "gtrain.run", err), *plan;
    if (!run || !(plan = metadata(f, "gtrain.plan_hash", err)))
        return -1;
    if (!name_run_valid(run))
        return err_set(err, "gtrain.run is '%.80s', no run id", run);
    strcpy(m->run, run);
    if (!take_hex(&plan, 16, &m->plan_hash) || *plan)
        return err_set(err, "gtrain.plan_hash is not 16 hex digits");
    if (take_meta(f, "gtrain.epoch", UINT32_MAX, &epoch, err) ||
        take_meta(f, "gtrain.generation", UINT32_MAX, &generation, err) ||
        take_meta(f, "gtrain.step", INT64_MAX, &m->key.step, err) ||
        take_meta(f, "gtrain.samples", INT64_MAX, &m->samples, err) ||
        take_meta(f, "gtrain.rank", CKPT_WORLD_MAX - 1, &rank, err) ||
        take_meta(f, "gtrain.world", CKPT_WORLD_MAX, &world, err))
        return -1;
    if (rank >= world)
        return err_set(err, "rank %" PRId64 " in a world of %" PRId64, rank, world);
    m->key.epoch = (uint32_t)epoch;
    m->key.generation = (uint32_t)generation;
    m->rank = (int)rank;
    m->world = (int)world;
    return 0;
}

/* The header's own checksum: over all of it, with its 8 digits read as '0'. */
static int check_header_crc(struct ckpt_file *f, const unsigned char *raw, struct err *err)
{
    const struct st_pair *p = st_metadata(&f->header, CKPT_META_HEADER);
    uint64_t wanted;
    const char *digits = p ? p->value : "";
    if (!p)
        return err_set(err, "__metadata__ has no %s: this is not a gtrain checkpoint",
                       CKPT_META_HEADER);
    if (p->raw_bytes != 8 || !take_hex(&digits, 8, &wanted) || *digits)
        return err_set(err, "%s is not 8 hex digits", CKPT_META_HEADER);
    size_t at = 8 + p->raw_at, end = at + 8;
    uint32_t crc = crc32c(0, raw, at);
    crc = crc32c(crc, "00000000", 8);
    crc = crc32c(crc, raw + end, (size_t)f->header_bytes - end);
    f->digest = crc32c(0, raw, (size_t)f->header_bytes);
    if (crc != wanted)
        return err_set(err, "the header's CRC32C is %08" PRIx32 ", it says %08" PRIx64 ": damaged",
                       crc, wanted);
    return 0;
}

static int take_crcs(struct ckpt_file *f, struct err *err)
{
    const char *text = metadata(f, CKPT_META_CRCS, err);
    int64_t n = crc_blocks(f->data_bytes);
    if (!text)
        return -1;
    if ((int64_t)strlen(text) != n * 8)
        return err_set(err,
                       CKPT_META_CRCS " has %zu digits; %" PRId64 " bytes of data need %" PRId64,
                       strlen(text), f->data_bytes, n * 8);
    f->crcs = calloc((size_t)n + 1, sizeof *f->crcs);
    if (!f->crcs)
        return err_set(err, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        uint64_t crc;
        if (!take_hex(&text, 8, &crc))
            return err_set(err, CKPT_META_CRCS " has something else than hex digits");
        f->crcs[i] = (uint32_t)crc;
    }
    return 0;
}

static int take_dims(const char **p, int dims, int64_t *values)
{
    for (int d = 0; d < dims; d++) {
        if (d && *(*p)++ != ',')
            return -1;
        if (!take_number(p, INT64_MAX, &values[d]))
            return -1;
    }
    return 0;
}

/* "GLOBAL,GLOBAL@OFFSET,OFFSET" of a key "name@OFFSET,OFFSET". */
static int take_slice(struct ckpt_tensor *t, char *name, const char *text)
{
    char *at = strchr(name, '@');
    const char *offsets = at + 1;
    int64_t in_key[CKPT_MAX_DIMS];
    if (take_dims(&text, t->dims, t->global) || *text++ != '@' ||
        take_dims(&text, t->dims, t->offset) || *text || take_dims(&offsets, t->dims, in_key) ||
        *offsets || memcmp(in_key, t->offset, sizeof *in_key * (size_t)t->dims))
        return -1;
    for (int d = 0; d < t->dims; d++)
        if (t->offset[d] > t->global[d] || t->shape[d] > t->global[d] - t->offset[d])
            return -1;
    *at = 0;
    return 0;
}

static int take_tensor(struct ckpt_file *f, const struct st_tensor *from, struct err *err)
{
    struct layout_tensor *to = &f->tensors[f->n];
    struct ckpt_tensor *t = &to->tensor;
    char *name = strdup(from->name), *slice_key = NULL;
    if (!name || asprintf(&slice_key, CKPT_META_SLICE "%s", from->name) < 0) {
        free(name);
        return err_set(err, "out of memory");
    }
    const struct st_pair *slice = st_metadata(&f->header, slice_key);
    free(slice_key);
    *to = (struct layout_tensor){.key = from->name, .begin = from->begin, .end = from->end};
    t->name = name;
    t->dims = from->dims;
    f->n++;
    while (dtype_name(t->dtype) && strcmp(dtype_name(t->dtype), from->type->name))
        t->dtype++;
    if (!dtype_name(t->dtype) || t->dims > CKPT_MAX_DIMS)
        return err_set(err, "tensor %.200s is %s in %d dimensions; a checkpoint's have up to %d",
                       name, from->type->name, t->dims, CKPT_MAX_DIMS);
    memcpy(t->shape, from->shape, sizeof *t->shape * (size_t)t->dims);
    memcpy(t->global, from->shape, sizeof *t->shape * (size_t)t->dims);
    if (!slice == !strchr(name, '@') && (!slice || !take_slice(t, name, slice->value)))
        return 0;
    return err_set(err, "tensor %.200s: its name and its " CKPT_META_SLICE " entry disagree", name);
}

int file_interpret(struct ckpt_file *f, const unsigned char *raw, struct err *err)
{
    const char *version = metadata(f, CKPT_META_VERSION, err);
    if (!version)
        return -1;
    if (strcmp(version, CKPT_FORMAT_NUMBER))
        return err_set(err, "format %.20s; this program reads format " CKPT_FORMAT_NUMBER, version);
    if (check_header_crc(f, raw, err) || take_position(f, err) || take_crcs(f, err))
        return -1;
    f->tensors = calloc((size_t)f->header.n_tensors + 1, sizeof *f->tensors);
    if (!f->tensors)
        return err_set(err, "out of memory for %" PRId64 " tensors", f->header.n_tensors);
    for (int64_t i = 0; i < f->header.n_tensors; i++)
        if (strncmp(f->header.tensors[i].name, CKPT_PAD_PREFIX, strlen(CKPT_PAD_PREFIX)) &&
            take_tensor(f, &f->header.tensors[i], err))
            return -1;
    return 0;
}
