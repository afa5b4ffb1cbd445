/* file.c - opening a rank's file and reading tensors out of it.
 *
 * Nothing is handed out before it was checked: the header as a whole when the file is opened, the
 * data a block of 1 MiB at a time, when a tensor that lies in it is asked for. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"
#include "runs.h"

/* Enough for a fast drive to be busy, little enough to be thrown away. */
enum { FILE_AHEAD_BLOCKS = 8 };

int file_read_at(struct ckpt_file *f, void *to, int64_t n, int64_t at, struct err *err)
{
    if (f->memory) {
        memcpy(to, f->memory + at, (size_t)n);
        return 0;
    }
    for (int64_t done = 0; done < n;) {
        ssize_t got = sys_pread(f->hook, f->fd, (char *)to + done, (size_t)(n - done), at + done);
        if (got < 0)
            return err_set_errno(err, errno, "reading at byte %" PRId64, at + done);
        if (!got)
            return err_set(err, "the file ends at byte %" PRId64 " while it is read", at + done);
        done += got;
    }
    return 0;
}

static int read_header(struct ckpt_file *f, struct err *err)
{
    uint64_t length;
    if (f->bytes < 8)
        return err_set(err, "%" PRId64 " bytes are too few for a safetensors file", f->bytes);
    if (file_read_at(f, &length, 8, 0, err))
        return -1;
    if (length > ST_MAX_HEADER || (int64_t)length > f->bytes - 8)
        return err_set(err,
                       "a header of %" PRIu64 " bytes in a file of %" PRId64
                       ": not a safetensors file, or cut",
                       length, f->bytes);
    f->header_bytes = (int64_t)length + 8;
    f->data_bytes = f->bytes - f->header_bytes;
    unsigned char *raw = malloc((size_t)f->header_bytes);
    if (!raw)
        return err_set(err, "out of memory for a header of %" PRIu64 " bytes", length);
    int rv = -1;
    if (!file_read_at(f, raw, f->header_bytes, 0, err) &&
        !st_parse((char *)raw + 8, (size_t)length, f->data_bytes, &f->header, err))
        rv = file_interpret(f, raw, err);
    free(raw);
    return rv;
}

static int open_any(struct ckpt_file **out, struct ckpt_file *f, const char *path, struct err *err)
{
    f->path = strdup(path);
    f->block_index = -1;
    if (f->path && !read_header(f, err)) {
        *out = f;
        return 0;
    }
    if (f->path)
        err_prefix(err, "%s", path);
    else
        err_set(err, "out of memory");
    ckpt_file_close(f);
    return -1;
}

int ckpt_file_open_memory(struct ckpt_file **out, const void *data, size_t bytes, struct err *err)
{
    *out = NULL;
    if (bytes > INT64_MAX)
        return err_set(err, "a file of %zu bytes", bytes);
    struct ckpt_file *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, "out of memory");
    f->fd = -1;
    f->memory = data ? data : (const void *)"";
    f->bytes = (int64_t)bytes;
    return open_any(out, f, "(memory)", err);
}

int ckpt_file_open(struct ckpt_file **out, const char *path, struct err *err)
{
    *out = NULL;
    struct ckpt_file *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, "out of memory");
    struct stat st;
    /* O_NONBLOCK: a pipe under that name must not hold us up */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &st)) {
        err_set_errno(err, errno, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        err_set(err, "%s is not a file", path);
    } else {
        f->bytes = st.st_size;
        return open_any(out, f, path, err);
    }
    ckpt_file_close(f);
    return -1;
}

void ckpt_file_close(struct ckpt_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    for (int i = 0; i < f->n; i++)
        free((char *)f->tensors[i].tensor.name);
    free(f->tensors);
    free(f->crcs);
    free(f->block);
    free(f->path);
    st_free(&f->header);
    free(f);
}

int file_check_block(const struct ckpt_file *f, int64_t i, uint32_t crc, struct err *err)
{
    if (crc == f->crcs[i])
        return 0;
    return err_set(err,
                   "%s: bytes %" PRId64 " to %" PRId64 " have CRC32C %08" PRIx32
                   ", the header says %08" PRIx32 ": damaged",
                   f->path, f->header_bytes + i * CKPT_CRC_BLOCK,
                   f->header_bytes + (i + 1) * CKPT_CRC_BLOCK, crc, f->crcs[i]);
}

/* Who has read the block before i goes on, most likely: the next ones may be on their way while
 * this one is checked and used. */
static void read_ahead(struct ckpt_file *f, int64_t i)
{
    int64_t from = f->ahead > i ? f->ahead : i, end = i + FILE_AHEAD_BLOCKS;
    if (i != f->block_index + 1)
        from = end = i;
    if (from < end)
        posix_fadvise(f->fd, f->header_bytes + from * CKPT_CRC_BLOCK, (end - from) * CKPT_CRC_BLOCK,
                      POSIX_FADV_WILLNEED);
    f->ahead = end;
}

const unsigned char *file_block(struct ckpt_file *f, int64_t i, struct err *err)
{
    int64_t at = i * CKPT_CRC_BLOCK, n = f->data_bytes - at;
    if (n > CKPT_CRC_BLOCK)
        n = CKPT_CRC_BLOCK;
    const unsigned char *p = f->memory ? f->memory + f->header_bytes + at : f->block;
    if (i == f->block_index)
        return p;
    if (!f->memory)
        read_ahead(f, i);
    f->block_index = -1;
    if (!f->memory) {
        if (!f->block && !(f->block = malloc(CKPT_CRC_BLOCK))) {
            err_set(err, "out of memory");
            return NULL;
        }
        if (file_read_at(f, f->block, n, f->header_bytes + at, err)) {
            err_prefix(err, "%s", f->path);
            return NULL;
        }
        p = f->block;
    }
    if (file_check_block(f, i, crc32c(0, p, (size_t)n), err))
        return NULL;
    f->block_index = i;
    return p;
}

int ckpt_file_count(const struct ckpt_file *f)
{
    return f->n;
}

int ckpt_file_tensor(const struct ckpt_file *f, int i, struct ckpt_tensor *out)
{
    if (i < 0 || i >= f->n)
        return -1;
    *out = f->tensors[i].tensor;
    return 0;
}

/* Bytes [at, end) of the data, a block at a time. */
static int read_range(struct ckpt_file *f, int64_t at, int64_t end,
                      int (*take)(void *arg, const void *p, size_t n, struct err *err), void *arg,
                      struct err *err)
{
    while (at < end) {
        int64_t block = at / CKPT_CRC_BLOCK, block_end = (block + 1) * CKPT_CRC_BLOCK;
        size_t n = (size_t)((block_end < end ? block_end : end) - at);
        const unsigned char *p = file_block(f, block, err);
        if (!p || take(arg, p + at % CKPT_CRC_BLOCK, n, err))
            return -1;
        at += (int64_t)n;
    }
    return 0;
}

static int check_index(const struct ckpt_file *f, int i, struct err *err)
{
    if (i >= 0 && i < f->n)
        return 0;
    return err_set(err, "%s has tensors 0 to %d, not %d", f->path, f->n - 1, i);
}

static int to_host(void *arg, const void *p, size_t n, struct err *err)
{
    unsigned char **to = arg;
    (void)err;
    memcpy(*to, p, n);
    *to += n;
    return 0;
}

int ckpt_file_read(struct ckpt_file *f, int i, void *host, struct err *err)
{
    unsigned char *to = host;
    if (check_index(f, i, err))
        return -1;
    return read_range(f, f->tensors[i].begin, f->tensors[i].end, to_host, &to, err);
}

int ckpt_file_read_piece(struct ckpt_file *f, const struct ckpt_piece *piece,
                         int (*take)(void *arg, const void *p, size_t n, struct err *err),
                         void *arg, struct err *err)
{
    struct runs runs;
    if (check_index(f, piece->from, err))
        return -1;
    const struct layout_tensor *t = &f->tensors[piece->from];
    if (!runs_begin(&runs, &t->tensor, piece->offset, piece->shape))
        return err_set(err, "%s: %s holds another part of its tensor", f->path, t->key);
    for (int64_t at; runs_next(&runs, &at);)
        if (read_range(f, t->begin + at, t->begin + at + runs.bytes, take, arg, err))
            return -1;
    return 0;
}

int ckpt_file_verify(struct ckpt_file *f, struct err *err)
{
    for (int64_t i = 0; i < crc_blocks(f->data_bytes); i++)
        if (!file_block(f, i, err))
            return -1;
    return 0;
}

int ckpt_file_position(const struct ckpt_file *f, struct ckpt_position *out, uint64_t *plan_hash)
{
    if (out)
        *out = (struct ckpt_position){f->meta.key.step, f->meta.samples};
    if (plan_hash)
        *plan_hash = f->meta.plan_hash;
    return 0;
}

uint32_t ckpt_file_digest(const struct ckpt_file *f)
{
    return f->digest;
}
