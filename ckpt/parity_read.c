/* parity_read.c - elements of a stripe out of a rank's file or its parities, each byte checked:
 * the header by the digest in the record, the data block by block. See parity.h. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "file.h"
#include "parity_file.h"

struct parity_source {
    struct ckpt_file *file;
    unsigned char *header; /* of a rank's file: all before its data, checked; NULL: parities */
    struct parity_code code;
};

/* The header once more, as it stands: it is part of what is restored. */
static int keep_header(struct parity_source *s, struct err *err)
{
    struct ckpt_file *f = s->file;
    s->header = malloc((size_t)f->header_bytes);
    if (!s->header)
        return err_set(err, "out of memory");
    if (file_read_at(f, s->header, f->header_bytes, 0, err))
        return err_prefix(err, "%s", f->path);
    if (crc32c(0, s->header, (size_t)f->header_bytes) != f->digest)
        return err_set(err, "%s: the header has changed while it was read", f->path);
    return 0;
}

static const struct layout_tensor *find_tensor(const struct ckpt_file *f, const char *name,
                                               int64_t bytes)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->tensors[i].key, name) && f->tensors[i].tensor.dtype == CKPT_I64)
            return f->tensors[i].end - f->tensors[i].begin == bytes ? &f->tensors[i] : NULL;
    return NULL;
}

/* It holds the parities of this member of this group. */
static int check_parities(struct parity_source *s, int member, struct err *err)
{
    const struct parity_code *c = &s->code;
    struct ckpt_file *f = s->file;
    int64_t about[PARITY_ABOUT_MOST], words = PARITY_ABOUT_FIXED + c->members;
    const struct layout_tensor *sums = find_tensor(f, PARITY_TENSOR, c->keeps * c->segment),
                               *group = find_tensor(f, PARITY_ABOUT_TENSOR,
                                                    words * (int64_t)sizeof *about);
    if (!sums || sums->begin || !group)
        return err_set(err, "%s does not hold the parities of a group of %d that keeps %d", f->path,
                       c->members, c->keeps);
    if (ckpt_file_read(f, (int)(group - f->tensors), about, err))
        return -1;
    if (about[PARITY_ABOUT_MEMBERS] == c->members && about[PARITY_ABOUT_KEEPS] == c->keeps &&
        about[PARITY_ABOUT_MEMBER] == member && about[PARITY_ABOUT_SEGMENT] == c->segment)
        return 0;
    return err_set(err,
                   "%s holds the parities of member %" PRId64 " of %" PRId64 " that keep %" PRId64
                   ", segments of %" PRId64 " bytes; wanted: member %d of %d, %d, %" PRId64,
                   f->path, about[PARITY_ABOUT_MEMBER], about[PARITY_ABOUT_MEMBERS],
                   about[PARITY_ABOUT_KEEPS], about[PARITY_ABOUT_SEGMENT], member, c->members,
                   c->keeps, c->segment);
}

int parity_source_open(struct parity_source **out, const struct ckpt_place *place,
                       const struct parity_code *code, int member, bool parities, struct err *err)
{
    *out = NULL;
    struct parity_source *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, "out of memory");
    s->code = *code;
    int rv = ckpt_file_open(&s->file, place->path, err);
    if (!rv && (s->file->bytes != place->bytes || ckpt_file_digest(s->file) != place->digest))
        rv = err_set(err, "%s is not the file that the commit record names", place->path);
    if (!rv)
        rv = parities ? check_parities(s, member, err) : keep_header(s, err);
    if (rv) {
        parity_source_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

/* Bytes [at, at + n) of the data. */
static int read_data(struct ckpt_file *f, int64_t at, int64_t n, unsigned char *to, struct err *err)
{
    while (n > 0) {
        int64_t block = at / CKPT_CRC_BLOCK, in_block = at % CKPT_CRC_BLOCK;
        int64_t left = f->data_bytes - block * CKPT_CRC_BLOCK,
                whole = left < CKPT_CRC_BLOCK ? left : CKPT_CRC_BLOCK, now = whole - in_block;
        if (now > n)
            now = n;
        if (now == whole) { /* straight to where it is wanted */
            if (file_read_at(f, to, now, f->header_bytes + at, err))
                return err_prefix(err, "%s", f->path);
            if (file_check_block(f, block, crc32c(0, to, (size_t)now), err))
                return -1;
        } else {
            const unsigned char *p = file_block(f, block, err);
            if (!p)
                return -1;
            memcpy(to, p + in_block, (size_t)now);
        }
        at += now;
        to += now;
        n -= now;
    }
    return 0;
}

/* As much of [at, at + n) as lies before end. */
static int64_t before(int64_t end, int64_t at, int64_t n)
{
    return end <= at ? 0 : end - at < n ? end - at : n;
}

/* Chunks of an element are read one after the other, with something else in between: the next is to
 * be in memory by then. What was read is left to the kernel: dropping it chunk by chunk cost a
 * rebuild more than reading. */
static void look_ahead(const struct ckpt_file *f, int64_t at, int64_t n)
{
    if (f->fd >= 0)
        posix_fadvise(f->fd, f->header_bytes + at + n, n, POSIX_FADV_WILLNEED);
}

/* Bytes [at, at + n) of a rank's file as it is cut: the header, zeros, the data, zeros. */
static int read_file(struct parity_source *s, int64_t at, int64_t n, unsigned char *to,
                     struct err *err)
{
    struct ckpt_file *f = s->file;
    int64_t data_at = parity_data_at(&s->code, f->header_bytes);
    int64_t head = before(f->header_bytes, at, n), gap = before(data_at, at, n);
    memcpy(to, s->header + (head ? at : 0), (size_t)head);
    memset(to + head, 0, (size_t)(gap - head));
    at += gap - data_at;
    to += gap;
    n -= gap;
    int64_t there = before(f->data_bytes, at, n);
    memset(to + there, 0, (size_t)(n - there));
    if (there)
        look_ahead(f, at, n);
    return read_data(f, at, there, to, err);
}

int parity_source_read(struct parity_source *s, int element, int64_t chunk, void *to,
                       struct err *err)
{
    const struct parity_code *c = &s->code;
    int data = parity_data(c);
    int64_t n = parity_chunk_bytes(c, chunk), at = chunk * PARITY_CHUNK;
    if (chunk < 0 || chunk >= c->chunks || element < 0 || element >= c->members ||
        (element < data) != (s->header != NULL))
        return err_set(err, "%s holds no chunk %" PRId64 " of element %d", s->file->path, chunk,
                       element);
    if (element < data)
        return read_file(s, element * c->segment + at, n, to, err);
    int64_t from = at * c->keeps + (element - data) * n;
    if (element == data) /* of all parities at once */
        look_ahead(s->file, at * c->keeps, n * c->keeps);
    return read_data(s->file, from, n, to, err);
}

void parity_source_close(struct parity_source *s)
{
    if (!s)
        return;
    ckpt_file_close(s->file);
    free(s->header);
    free(s);
}
