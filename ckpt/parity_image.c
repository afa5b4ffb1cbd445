/* parity_image.c - chunks of a rank's file out of the writer's memory, while it is written.
 *
 * Until the header is there nothing tells what the data should be. So it is noted what was read,
 * and the seal compares: what went to the others is what the file holds, to the last bit. In large
 * files a chunk is a block of the file's checksums, and its own is compared with that; in small
 * ones all is read once more. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "file.h"
#include "parity.h"

struct parity_image {
    struct ckpt_image image;
    struct parity_code code;
    int64_t late;
    struct ckpt_file *file; /* once it is sealed; in memory */
    int64_t *crcs;          /* of each chunk of each segment, without zeros; -1: not read */
};

int parity_image_open(struct parity_image **out, const struct ckpt_image *image,
                      const struct parity_code *code, int64_t late, struct err *err)
{
    *out = NULL;
    struct parity_image *s = calloc(1, sizeof *s);
    size_t n = (size_t)(parity_data(code) * code->chunks);
    if (!s || !(s->crcs = malloc(n * sizeof *s->crcs))) {
        free(s);
        return err_set(err, "out of memory");
    }
    s->image = *image;
    s->code = *code;
    s->late = late;
    for (size_t i = 0; i < n; i++)
        s->crcs[i] = -1;
    *out = s;
    return 0;
}

/* As much of [at, at + n) as lies before end. */
static int64_t before(int64_t end, int64_t at, int64_t n)
{
    return end <= at ? 0 : end - at < n ? end - at : n;
}

/* Bytes [at, at + n) of the file as it is cut: the header, zeros, the data, zeros. Returns how many
 * of the last are zeros. */
static int64_t take(const struct parity_image *s, int64_t at, int64_t n, unsigned char *to)
{
    const struct ckpt_image *f = &s->image;
    int64_t data_at = parity_data_at(&s->code, f->header_bytes);
    int64_t head = before(f->header_bytes, at, n), gap = before(data_at, at, n) - head;
    int64_t from = at + head + gap - data_at, left = n - head - gap;
    int64_t data = before(f->total - f->header_bytes, from, left);
    if (head)
        memcpy(to, f->bytes + at, (size_t)head);
    memset(to + head, 0, (size_t)gap);
    if (data)
        memcpy(to + head + gap, f->bytes + f->header_bytes + from, (size_t)data);
    memset(to + head + gap + data, 0, (size_t)(left - data));
    return left - data;
}

/* A chunk is a block of the file's checksums, zeros, or has a part of the header. */
static bool aligned(const struct parity_image *s)
{
    return s->code.grain == PARITY_CHUNK;
}

static int64_t place_of(const struct parity_image *s, int segment, int64_t chunk)
{
    return segment * s->code.segment + chunk * PARITY_CHUNK;
}

/* crc: of the chunk's data. */
static int check_block(const struct parity_image *s, int segment, int64_t chunk, uint32_t crc,
                       struct err *err)
{
    int64_t from = place_of(s, segment, chunk) - parity_data_at(&s->code, s->image.header_bytes);
    if (from < 0 || from >= s->file->data_bytes)
        return 0;
    return file_check_block(s->file, from / CKPT_CRC_BLOCK, crc, err);
}

static int check_again(const struct parity_image *s, int segment, int64_t chunk, uint32_t crc,
                       unsigned char *room, struct err *err)
{
    int64_t n = parity_chunk_bytes(&s->code, chunk);
    int64_t zeros = take(s, place_of(s, segment, chunk), n, room);
    if (crc32c(0, room, (size_t)(n - zeros)) == crc)
        return 0;
    return err_set(err, "%s: its data have changed since parity was made of them", s->file->path);
}

static int check_read(const struct parity_image *s, struct err *err)
{
    unsigned char *room = malloc(PARITY_CHUNK);
    int rv = room ? 0 : err_set(err, "out of memory");
    if (!rv && !aligned(s))
        rv = ckpt_file_verify(s->file, err);
    for (int segment = 0; segment < parity_data(&s->code); segment++)
        for (int64_t chunk = s->late; chunk < s->code.chunks && !rv; chunk++) {
            int64_t crc = s->crcs[segment * s->code.chunks + chunk];
            if (crc >= 0)
                rv = aligned(s) ? check_block(s, segment, chunk, (uint32_t)crc, err)
                                : check_again(s, segment, chunk, (uint32_t)crc, room, err);
        }
    free(room);
    return rv;
}

int parity_image_seal(struct parity_image *s, uint32_t digest, struct err *err)
{
    if (ckpt_file_open_memory(&s->file, s->image.bytes, (size_t)s->image.total, err))
        return -1;
    if (ckpt_file_digest(s->file) != digest)
        return err_set(err, "%s: the header is not the one that was written", s->file->path);
    return check_read(s, err);
}

int parity_image_read(struct parity_image *s, int segment, int64_t chunk, void *to, uint32_t *crc,
                      struct err *err)
{
    const struct parity_code *c = &s->code;
    if (chunk < 0 || chunk >= c->chunks || segment < 0 || segment >= parity_data(c) ||
        (chunk < s->late && !s->file))
        return err_set(err, "chunk %" PRId64 " of segment %d cannot be given %s", chunk, segment,
                       chunk < s->late ? "before the file is durable" : "");
    int64_t n = parity_chunk_bytes(c, chunk);
    int64_t zeros = take(s, place_of(s, segment, chunk), n, to);
    uint32_t data = crc32c(0, to, (size_t)(n - zeros));
    int64_t *noted = &s->crcs[segment * c->chunks + chunk];
    *crc = crc32c(data, (unsigned char *)to + (n - zeros), (size_t)zeros);
    if (*noted >= 0 && *noted != data)
        return err_set(err, "segment %d, chunk %" PRId64 ": it has changed since it was read",
                       segment, chunk);
    *noted = data;
    return s->file && aligned(s) ? check_block(s, segment, chunk, data, err) : 0;
}

void parity_image_close(struct parity_image *s)
{
    if (!s)
        return;
    ckpt_file_close(s->file);
    free(s->crcs);
    free(s);
}
