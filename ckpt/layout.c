/* layout.c - places tensors, prints the header. */
#include "layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "safetensors.h"

enum { CRC_DIGITS = 8 }; /* of a block's checksum in the header */

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    [CKPT_F64] = {"F64", 8},   [CKPT_F32] = {"F32", 4},         [CKPT_BF16] = {"BF16", 2},
    [CKPT_I64] = {"I64", 8},   [CKPT_F16] = {"F16", 2},         [CKPT_I32] = {"I32", 4},
    [CKPT_I16] = {"I16", 2},   [CKPT_I8] = {"I8", 1},           [CKPT_U64] = {"U64", 8},
    [CKPT_U32] = {"U32", 4},   [CKPT_U16] = {"U16", 2},         [CKPT_U8] = {"U8", 1},
    [CKPT_BOOL] = {"BOOL", 1}, [CKPT_F8_E4M3] = {"F8_E4M3", 1}, [CKPT_F8_E5M2] = {"F8_E5M2", 1},
};

const char *dtype_name(enum ckpt_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof *dtypes ? dtypes[dtype].name : NULL;
}

int dtype_bytes(enum ckpt_dtype dtype)
{
    return dtypes[dtype].bytes;
}

int64_t shape_bytes(enum ckpt_dtype dtype, int dims, const int64_t *shape)
{
    int64_t bytes = dtype_bytes(dtype);
    for (int d = 0; d < dims; d++)
        if (!shape[d])
            return 0;
    for (int d = 0; d < dims; d++)
        if (__builtin_mul_overflow(bytes, shape[d], &bytes) || bytes >= INT64_C(1) << 62)
            return -1;
    return bytes;
}

bool tensor_is_whole(const struct ckpt_tensor *t)
{
    for (int d = 0; d < t->dims; d++)
        if (t->offset[d] || t->shape[d] != t->global[d])
            return false;
    return true;
}

void dims_print(FILE *out, int dims, const int64_t *values)
{
    for (int d = 0; d < dims; d++)
        fprintf(out, "%s%" PRId64, d ? "," : "", values[d]);
}

static int check_tensor(const struct ckpt_tensor *t, int index, struct err *err)
{
    static const char allowed[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._/:+-";
    if (!t->name || !t->name[0] || t->name[strspn(t->name, allowed)] || strlen(t->name) > 512 ||
        !strncmp(t->name, "__", 2))
        return err_set(err,
                       "tensor %d is named '%.200s': names are 1 to 512 of [0-9A-Za-z._/:+-] and "
                       "do not start with __",
                       index, t->name ? t->name : "");
    if (!dtype_name(t->dtype))
        return err_set(err, "tensor %s has dtype number %d, which is none", t->name, t->dtype);
    if (t->dims < 0 || t->dims > CKPT_MAX_DIMS)
        return err_set(err, "tensor %s has %d dimensions; 0 to %d are possible", t->name, t->dims,
                       CKPT_MAX_DIMS);
    for (int d = 0; d < t->dims; d++)
        if (t->shape[d] < 0 || t->offset[d] < 0 || t->global[d] < 0 ||
            t->offset[d] > t->global[d] || t->shape[d] > t->global[d] - t->offset[d])
            return err_set(err,
                           "tensor %s, dimension %d: [%" PRId64 ", +%" PRId64
                           ") is not inside the global size %" PRId64,
                           t->name, d, t->offset[d], t->shape[d], t->global[d]);
    if (shape_bytes(t->dtype, t->dims, t->shape) < 0)
        return err_set(err, "tensor %s is larger than 2^62 bytes", t->name);
    return 0;
}

/* malloc'ed; NULL: no memory */
static char *make_key(const struct ckpt_tensor *t)
{
    char *text = NULL;
    size_t bytes;
    if (tensor_is_whole(t))
        return strdup(t->name);
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    fprintf(f, "%s@", t->name);
    dims_print(f, t->dims, t->offset);
    if (!fclose(f))
        return text;
    free(text);
    return NULL;
}

static int64_t align_up(int64_t v)
{
    return (v + CKPT_ALIGN - 1) / CKPT_ALIGN * CKPT_ALIGN;
}

static int by_name(const void *a, const void *b)
{
    const struct layout_tensor *x = *(const struct layout_tensor *const *)a,
                               *y = *(const struct layout_tensor *const *)b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    return order ? order : strcmp(x->key, y->key);
}

/* Two that follow each other by name: other slices of one tensor, if their names are the same. */
static int check_pair(const struct layout_tensor *a, const struct layout_tensor *b, struct err *err)
{
    const struct ckpt_tensor *x = &a->tensor, *y = &b->tensor;
    if (strcmp(x->name, y->name))
        return 0;
    if (!strcmp(a->key, b->key))
        return err_set(err, "tensor %s is registered twice", a->key);
    if (x->dtype == y->dtype && x->dims == y->dims &&
        !memcmp(x->global, y->global, sizeof *x->global * (size_t)x->dims))
        return 0;
    return err_set(err, "tensor %s is registered with two dtypes or global shapes", x->name);
}

static int check_names(const struct layout *l, struct err *err)
{
    const struct layout_tensor **sorted = calloc((size_t)l->n + 1, sizeof *sorted);
    if (!sorted)
        return err_set(err, "out of memory for %d tensors", l->n);
    for (int i = 0; i < l->n; i++)
        sorted[i] = &l->tensors[i];
    qsort(sorted, (size_t)l->n, sizeof *sorted, by_name);
    int rv = 0;
    for (int i = 1; i < l->n && !rv; i++)
        rv = check_pair(sorted[i - 1], sorted[i], err);
    free(sorted);
    return rv;
}

/* The JSON without its trailing spaces. *crc_at: where the header's own checksum goes. */
static int print_json(const struct layout *l, const struct file_meta *m, const uint32_t *crcs,
                      char **text, size_t *bytes, size_t *crc_at)
{
    FILE *f = open_memstream(text, bytes);
    if (!f)
        return -1;
    fprintf(f, "{\"__metadata__\":{\"" CKPT_META_VERSION "\":\"" CKPT_FORMAT_NUMBER
               "\",\"" CKPT_META_HEADER "\":\"");
    fflush(f);
    *crc_at = *bytes;
    fprintf(f,
            "00000000\",\"gtrain.run\":\"%s\",\"gtrain.epoch\":\"%" PRIu32
            "\",\"gtrain.generation\":\"%" PRIu32 "\",\"gtrain.step\":\"%" PRId64
            "\",\"gtrain.samples\":\"%" PRId64 "\",\"gtrain.rank\":\"%d\",\"gtrain.world\":\"%d"
            "\",\"gtrain.plan_hash\":\"%016" PRIx64 "\"",
            m->run, m->key.epoch, m->key.generation, m->key.step, m->samples, m->rank, m->world,
            m->plan_hash);
    for (int i = 0; i < l->n; i++) {
        const struct ckpt_tensor *t = &l->tensors[i].tensor;
        if (tensor_is_whole(t))
            continue;
        fprintf(f, ",\"" CKPT_META_SLICE "%s\":\"", l->tensors[i].key);
        dims_print(f, t->dims, t->global);
        fputc('@', f);
        dims_print(f, t->dims, t->offset);
        fputc('"', f);
    }
    fprintf(f, ",\"" CKPT_META_CRCS "\":\"");
    for (int64_t i = 0; i < crc_blocks(l->data_bytes); i++)
        fprintf(f, "%08" PRIx32, crcs ? crcs[i] : 0);
    fprintf(f, "\"}");
    int pads = 0;
    for (int i = 0; i < l->n; i++) {
        const struct layout_tensor *t = &l->tensors[i];
        int64_t next = i + 1 < l->n ? l->tensors[i + 1].begin : l->data_bytes;
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->key, dtype_name(t->tensor.dtype));
        dims_print(f, t->tensor.dims, t->tensor.shape);
        fprintf(f, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->begin, t->end);
        if (next > t->end)
            fprintf(f,
                    ",\"" CKPT_PAD_PREFIX "%d\":{\"dtype\":\"U8\",\"shape\":[%" PRId64
                    "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
                    pads++, next - t->end, t->end, next);
    }
    fputc('}', f);
    if (!fclose(f))
        return 0;
    free(*text);
    return -1;
}

static int measure_header(struct layout *l, struct err *err)
{
    struct file_meta longest = {.key = {UINT32_MAX, UINT32_MAX, INT64_MAX},
                                .samples = INT64_MAX,
                                .rank = CKPT_WORLD_MAX,
                                .world = CKPT_WORLD_MAX};
    memset(longest.run, 'x', CKPT_RUN_MAX);
    char *text;
    size_t bytes, crc_at;
    if (crc_blocks(l->data_bytes) > ST_MAX_HEADER / CRC_DIGITS) /* nor is it tried */
        return err_set(err,
                       "the checksums of %" PRId64 " bytes of state do not fit the header of a "
                       "safetensors file, %d bytes: use more ranks",
                       l->data_bytes, ST_MAX_HEADER);
    if (print_json(l, &longest, NULL, &text, &bytes, &crc_at))
        return err_set(err, "out of memory for the header of %d tensors", l->n);
    free(text);
    l->header_bytes = align_up((int64_t)bytes + 8);
    if (l->header_bytes - 8 > ST_MAX_HEADER)
        return err_set(err,
                       "%d tensors and %" PRId64 " bytes of state need a header of %" PRId64
                       " bytes; a safetensors file may have %d: use more ranks",
                       l->n, l->data_bytes, l->header_bytes - 8, ST_MAX_HEADER);
    return 0;
}

int layout_make(struct layout *out, const struct ckpt_tensor *tensors, int n, struct err *err)
{
    memset(out, 0, sizeof *out);
    if (n < 1)
        return err_set(err, "no tensors are registered: there is nothing to write");
    out->tensors = calloc((size_t)n, sizeof *out->tensors);
    if (!out->tensors)
        return err_set(err, "out of memory for %d tensors", n);
    int64_t at = 0;
    for (; out->n < n; out->n++) {
        struct layout_tensor *t = &out->tensors[out->n];
        if (check_tensor(&tensors[out->n], out->n, err))
            goto fail;
        int64_t bytes =
            shape_bytes(tensors[out->n].dtype, tensors[out->n].dims, tensors[out->n].shape);
        if (at + bytes > INT64_C(1) << 61) {
            err_set(err, "the tensors up to %s are larger than 2^61 bytes", tensors[out->n].name);
            goto fail;
        }
        t->tensor = tensors[out->n];
        t->tensor.name = strdup(tensors[out->n].name);
        t->key = make_key(&tensors[out->n]);
        t->begin = at;
        t->end = at + bytes;
        at = align_up(t->end);
        if (!t->key || !t->tensor.name) {
            out->n++;
            err_set(err, "out of memory for %d tensors", n);
            goto fail;
        }
    }
    out->data_bytes = at;
    if (check_names(out, err) || measure_header(out, err))
        goto fail;
    return 0;
fail:
    layout_free(out);
    return -1;
}

void layout_free(struct layout *l)
{
    for (int i = 0; i < l->n; i++) {
        free((char *)l->tensors[i].tensor.name);
        free(l->tensors[i].key);
    }
    free(l->tensors);
    memset(l, 0, sizeof *l);
}

int layout_header(const struct layout *l, const struct file_meta *meta, const uint32_t *crcs,
                  void *to, uint32_t *digest, struct err *err)
{
    char *text, *at = to, own[9];
    size_t bytes, crc_at, room = (size_t)l->header_bytes - 8;
    if (print_json(l, meta, crcs, &text, &bytes, &crc_at))
        return err_set(err, "out of memory for a header of %" PRId64 " bytes", l->header_bytes);
    if (bytes > room) {
        free(text);
        return err_set(err, "a header of %zu bytes does not fit its room of %zu", bytes, room);
    }
    uint64_t length = room;
    memcpy(at, &length, 8);
    memcpy(at + 8, text, bytes);
    memset(at + 8 + bytes, ' ', room - bytes);
    free(text);
    snprintf(own, sizeof own, "%08" PRIx32, crc32c(0, to, (size_t)l->header_bytes));
    memcpy(at + 8 + crc_at, own, 8);
    *digest = crc32c(0, to, (size_t)l->header_bytes);
    return 0;
}
