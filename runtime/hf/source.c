/* source.c - see source.h. */
#include "hf/source.h"

#include "hf/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX  SINGLE ".index.json"

enum { FILES_MAX = 4096 };           /* of one model */
enum { PIECE_BYTES = 1 << 20 };      /* read and widened at once */
enum { INDEX_MAX_BYTES = 64 << 20 }; /* a hundred bytes a tensor: hundreds of thousands */

static int read_at(const struct hf_file *f, void *to, int64_t n, int64_t at, struct err *err)
{
    for (int64_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)to + done, (size_t)(n - done), at + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set_errno(err, errno, "%s: reading at byte %" PRId64, f->path, at + done);
        if (!got)
            return err_set(err, "%s ends at byte %" PRId64 " while it is read", f->path, at + done);
        done += got;
    }
    return 0;
}

/* Nobody asks for it here, and it may be large in each of many files. */
static void drop_metadata(struct st_header *h)
{
    for (int64_t i = 0; i < h->n_metadata; i++) {
        free(h->metadata[i].key);
        free(h->metadata[i].value);
    }
    free(h->metadata);
    h->metadata = NULL;
    h->n_metadata = 0;
}

static int read_header(struct hf_file *f, int64_t bytes, struct err *err)
{
    uint64_t length;
    if (bytes < 8)
        return err_set(err, "%s: %" PRId64 " bytes are too few for a safetensors file", f->path,
                       bytes);
    if (read_at(f, &length, 8, 0, err))
        return -1;
    if (length > ST_MAX_HEADER || (int64_t)length > bytes - 8)
        return err_set(err,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRId64
                       ": not a safetensors file, or cut",
                       f->path, length, bytes);
    char *json = malloc((size_t)length + 1);
    if (!json)
        return err_set(err, "no memory for a header of %" PRIu64 " bytes", length);
    f->data_at = (int64_t)length + 8;
    int rv = read_at(f, json, (int64_t)length, 8, err);
    if (!rv && st_parse(json, (size_t)length, bytes - f->data_at, &f->header, err))
        rv = err_prefix(err, "%s", f->path);
    drop_metadata(&f->header);
    free(json);
    return rv;
}

static int open_file(struct hf_source *s, const char *dir, const char *name, struct err *err)
{
    struct stat st;
    struct hf_file *f = &s->files[s->n_files++];
    f->fd = -1;
    if (asprintf(&f->path, "%s/%s", dir, name) < 0) {
        f->path = NULL;
        return err_set(err, "no memory");
    }
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f->fd < 0 || fstat(f->fd, &st))
        return err_set_errno(err, errno, "%s", f->path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, "%s is not a file", f->path);
    return read_header(f, st.st_size, err);
}

/* ---- the index ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool hf_is_table(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name);
    return n >= sizeof end - 1 && !strcmp(name + n - (sizeof end - 1), end);
}

static const char *name_of(const struct hf_file *f)
{
    return strrchr(f->path, '/') + 1;
}

/* Each tensor of the file is where the index says. Asked of each file once it is open, so what all
 * headers hold together is no more than the index names. */
static int compare_file(const struct hf_file *f, struct json_object *map, struct err *err)
{
    for (int64_t i = 0; i < f->header.n_tensors; i++) {
        struct json_object *file = NULL;
        const char *name = f->header.tensors[i].name;
        json_object_object_get_ex(map, name, &file);
        if (!file && !hf_is_table(name))
            return err_set(err, "%s holds %.200s, which the index does not name", f->path, name);
        if (file && strcmp(json_object_get_string(file), name_of(f)))
            return err_set(err, "%s holds %.200s, which the index says is in %.200s", f->path, name,
                           json_object_get_string(file));
    }
    return 0;
}

/* The files of the weight map, each once. */
static int open_named(struct hf_source *s, const char *dir, struct json_object *map,
                      struct err *err)
{
    int n = json_object_object_length(map), i = 0, rv = 0;
    const char **names = calloc((size_t)n + 1, sizeof *names);
    if (!names)
        return err_set(err, "no memory for %d tensors", n);
    json_object_object_foreach(map, tensor, file)
    {
        names[i] =
            json_object_get_type(file) == json_type_string ? json_object_get_string(file) : "";
        if (!*names[i] || strchr(names[i], '/'))
            rv = err_set(err,
                         "weight_map: %.200s is in '%.200s': a file of this folder is "
                         "expected",
                         tensor, names[i]);
        i++;
    }
    qsort(names, (size_t)n, sizeof *names, by_text);
    for (i = 0; !rv && i < n; i++) {
        if (i && !strcmp(names[i - 1], names[i]))
            continue;
        rv = s->n_files == FILES_MAX ? err_set(err, "more than %d files", FILES_MAX)
                                     : open_file(s, dir, names[i], err);
        if (!rv)
            rv = compare_file(&s->files[s->n_files - 1], map, err);
    }
    free(names);
    return rv;
}

/* What the index names is there. */
static int compare_map(const struct hf_source *s, struct json_object *map, struct err *err)
{
    json_object_object_foreach(map, tensor, file)
    {
        if (!hf_source_find(s, tensor) && !hf_is_table(tensor))
            return err_set(err, "weight_map: %.200s is not in %.200s", tensor,
                           json_object_get_string(file));
    }
    return 0;
}

/* With an index a single file beside it is one of those it names: of two sets of weights some
 * programs would take one and some the other. */
static int check_single(const struct hf_source *s, const char *dir, struct err *err)
{
    char path[PATH_MAX];
    for (int i = 0; i < s->n_files; i++)
        if (!strcmp(name_of(&s->files[i]), SINGLE))
            return 0;
    if (snprintf(path, sizeof path, "%s/" SINGLE, dir) >= (int)sizeof path || access(path, F_OK))
        return 0;
    return err_set(err,
                   "%s is there too, and the index does not name it: move away the one that "
                   "is not meant",
                   path);
}

/* ---- the tensors ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_tensor *)a)->tensor->name,
                  ((const struct hf_tensor *)b)->tensor->name);
}

static int list_tensors(struct hf_source *s, struct err *err)
{
    int64_t n = 0;
    for (int i = 0; i < s->n_files; i++)
        n += s->files[i].header.n_tensors;
    s->tensors = calloc((size_t)n + 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_set(err, "no memory for %" PRId64 " tensors", n);
    for (int i = 0; i < s->n_files; i++)
        for (int64_t k = 0; k < s->files[i].header.n_tensors; k++)
            s->tensors[s->n_tensors++] =
                (struct hf_tensor){&s->files[i].header.tensors[k], &s->files[i]};
    qsort(s->tensors, (size_t)n, sizeof *s->tensors, by_name);
    for (int64_t i = 1; i < n; i++)
        if (!by_name(&s->tensors[i - 1], &s->tensors[i]))
            return err_set(err, "%.200s is in %s and in %s", s->tensors[i].tensor->name,
                           s->tensors[i - 1].file->path, s->tensors[i].file->path);
    return 0;
}

static int open_sharded(struct hf_source *s, const char *dir, const char *path, struct err *err)
{
    struct json_object *index = json_file_read(path, INDEX_MAX_BYTES, err), *map = NULL;
    int rv = -1;
    if (!index)
        return err_prefix(err, "%s", path);
    json_object_object_get_ex(index, "weight_map", &map);
    if (json_object_get_type(map) != json_type_object || !json_object_object_length(map))
        err_set(err, "this is no index: a JSON object with a weight_map is expected");
    else if (!open_named(s, dir, map, err) && !list_tensors(s, err) && !compare_map(s, map, err) &&
             !check_single(s, dir, err))
        rv = 0;
    json_object_put(index);
    return rv ? err_prefix(err, "%s", path) : 0;
}

int hf_source_open(struct hf_source *s, const char *dir, struct err *err)
{
    char index[PATH_MAX], single[PATH_MAX];
    memset(s, 0, sizeof *s);
    s->files = calloc(FILES_MAX, sizeof *s->files);
    if (!s->files)
        return err_set(err, "no memory");
    if (snprintf(index, sizeof index, "%s/" INDEX, dir) >= (int)sizeof index ||
        snprintf(single, sizeof single, "%s/" SINGLE, dir) >= (int)sizeof single)
        return err_set(err, "the path %.64s... is too long", dir);
    if (!access(index, F_OK))
        return open_sharded(s, dir, index, err);
    if (access(single, F_OK) && errno == ENOENT)
        return err_set(err,
                       "%s holds neither " SINGLE " nor " INDEX
                       ": weights in safetensors files are expected",
                       dir);
    return open_file(s, dir, SINGLE, err) || list_tensors(s, err) ? -1 : 0;
}

const struct hf_tensor *hf_source_find(const struct hf_source *s, const char *name)
{
    struct st_tensor wanted = {.name = (char *)name};
    struct hf_tensor key = {.tensor = &wanted};
    return bsearch(&key, s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
}

int hf_source_read(const struct hf_tensor *t, int64_t first, int64_t n, float *out, struct err *err)
{
    int dtype = hf_dtype_find(t->tensor->type->name);
    if (dtype < 0)
        return err_set(err, "%s: %.200s is %s: F32, BF16 or F16 is expected", t->file->path,
                       t->tensor->name, t->tensor->type->name);
    int64_t size = (int64_t)hf_dtype_bytes((enum hf_dtype)dtype);
    if (first < 0 || n < 0 || first > hf_source_count(t) || n > hf_source_count(t) - first)
        return err_set(err, "%s: values %" PRId64 " to %" PRId64 " of %.200s, which has %" PRId64,
                       t->file->path, first, first + n, t->tensor->name, hf_source_count(t));
    char *piece = malloc(PIECE_BYTES);
    int rv = piece ? 0 : err_set(err, "no memory");
    for (int64_t done = 0, more; !rv && done < n; done += more) {
        more = n - done < PIECE_BYTES / size ? n - done : PIECE_BYTES / size;
        rv = read_at(t->file, piece, more * size,
                     t->file->data_at + t->tensor->begin + (first + done) * size, err);
        if (!rv)
            hf_widen((enum hf_dtype)dtype, piece, (size_t)more, out + done);
    }
    free(piece);
    return rv;
}

int64_t hf_source_count(const struct hf_tensor *t)
{
    return (t->tensor->end - t->tensor->begin) / t->tensor->type->bytes;
}

void hf_source_close(struct hf_source *s)
{
    for (int i = 0; i < s->n_files; i++) {
        if (s->files[i].fd >= 0)
            close(s->files[i].fd);
        free(s->files[i].path);
        st_free(&s->files[i].header);
    }
    free(s->files);
    free(s->tensors);
    memset(s, 0, sizeof *s);
}
