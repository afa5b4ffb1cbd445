/* token_file.c - maps a token file and checks it; see token_file.h.
 *
 * The files are other programs' work, so nothing in them is believed: each count is compared with
 * the size of the file before it is multiplied or followed, and numbers are fetched by memcpy, as
 * an .idx puts 8-byte numbers at odd places. What cannot be guarded against is a file that is cut
 * while it is mapped: the kernel then sends SIGBUS, as to every program that maps files. */
#include "train/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* llm.c: 256 int32, of which the first three say magic, version and count; then the tokens. */
enum {
    BIN_HEADER_BYTES = 256 * 4,
    BIN_MAGIC_GPT2 = 20240520,   /* version 1, uint16 tokens */
    BIN_MAGIC_LLAMA3 = 20240801, /* version 7, uint32 tokens */
};

/* Megatron-LM's index: magic, u64 version, u8 type, u64 sequences, u64 documents; then int32
 * lengths and int64 pointers of the sequences, int64 first sequences of the documents (one more
 * than there are, the first 0, the last the number of sequences), perhaps an int8 mode per
 * sequence. */
static const char IDX_MAGIC[9] = "MMIDIDX\0\0";
enum { IDX_HEADER_BYTES = 9 + 8 + 1 + 8 + 8 };

enum { CHECK_BLOCK_TOKENS = 1 << 16 }; /* what the largest is sought of at a time: fits the cache */

static const struct {
    const char *name;
    int bytes;
} TYPES[] = {
    [TOKEN_U8] = {"uint8", 1},  [TOKEN_I8] = {"int8", 1},    [TOKEN_U16] = {"uint16", 2},
    [TOKEN_I16] = {"int16", 2}, [TOKEN_U32] = {"uint32", 4}, [TOKEN_I32] = {"int32", 4},
    [TOKEN_I64] = {"int64", 8},
};

static int32_t fetch_i32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static int64_t fetch_i64(const void *p)
{
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Map a file of at least one byte. */
static int map_file(const char *path, void **map, size_t *bytes, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_set_errno(err, errno, "%s", path);
    struct stat st;
    int rv = -1;
    if (fstat(fd, &st))
        err_set_errno(err, errno, "%s", path);
    else if (S_ISDIR(st.st_mode))
        err_set(err, "%s: is a folder: name its files, [FILE, FILE, ...]", path);
    else if (!S_ISREG(st.st_mode))
        err_set(err, "%s: is not a regular file: it must be one, to be mapped", path);
    else if (st.st_size == 0)
        err_set(err, "%s: is empty", path);
    else
        rv = 0;
    if (!rv) {
        *bytes = (size_t)st.st_size;
        *map = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (*map == MAP_FAILED)
            rv = err_set_errno(err, errno, "%s: cannot map %zu bytes", path, *bytes);
    }
    close(fd);
    return rv;
}

static int open_bin(struct token_file *f, const char *path, struct err *err)
{
    if (f->map_bytes < BIN_HEADER_BYTES)
        return err_set(err,
                       "%s: has %zu bytes, but the header of a .bin file alone has %d: truncated, "
                       "or data.format is wrong",
                       path, f->map_bytes, BIN_HEADER_BYTES);
    const char *header = f->map;
    int32_t magic = fetch_i32(header), version = fetch_i32(header + 4);
    if (magic != BIN_MAGIC_GPT2 && magic != BIN_MAGIC_LLAMA3)
        return err_set(err,
                       "%s: offset 0: the magic number is %d, but an llm.c .bin file begins with "
                       "%d (uint16 tokens) or %d (uint32)",
                       path, magic, BIN_MAGIC_GPT2, BIN_MAGIC_LLAMA3);
    int32_t expected = magic == BIN_MAGIC_GPT2 ? 1 : 7;
    if (version != expected)
        return err_set(err, "%s: offset 4: the version is %d, but only %d is known with magic %d",
                       path, version, expected, magic);
    f->type = magic == BIN_MAGIC_GPT2 ? TOKEN_U16 : TOKEN_U32;
    f->count = fetch_i32(header + 8);
    f->tokens = (const unsigned char *)header + BIN_HEADER_BYTES;
    size_t body = f->map_bytes - BIN_HEADER_BYTES, size = (size_t)TYPES[f->type].bytes;
    if (body % size)
        return err_set(err,
                       "%s: has %zu bytes after its header, which is no multiple of the %zu of a "
                       "token: truncated",
                       path, body, size);
    if (f->count < 0 || (size_t)f->count != body / size)
        return err_set(err,
                       "%s: offset 8: the header promises %lld tokens, but the file holds %zu: %s",
                       path, (long long)f->count, body / size,
                       f->count > 0 && (size_t)f->count > body / size ? "truncated" : "damaged");
    return 0;
}

/* Megatron's type codes; floats are lawful there, but are no tokens. */
static int idx_type(unsigned code, enum token_type *type)
{
    switch (code) {
    case 1:
        *type = TOKEN_U8;
        return 0;
    case 2:
        *type = TOKEN_I8;
        return 0;
    case 3:
        *type = TOKEN_I16;
        return 0;
    case 4:
        *type = TOKEN_I32;
        return 0;
    case 5:
        *type = TOKEN_I64;
        return 0;
    case 8:
        *type = TOKEN_U16;
        return 0;
    }
    return -1;
}

/* An index whose header has been checked: where its arrays begin. */
struct idx {
    const char *path;
    const unsigned char *base;
    uint64_t sequences, documents;
    size_t lengths, pointers, firsts; /* offsets */
};

static int idx_header(struct idx *x, size_t bytes, enum token_type *type, struct err *err)
{
    if (bytes < IDX_HEADER_BYTES)
        return err_set(err, "%s: has %zu bytes, but the header of an index alone has %d: truncated",
                       x->path, bytes, IDX_HEADER_BYTES);
    if (memcmp(x->base, IDX_MAGIC, sizeof IDX_MAGIC))
        return err_set(err, "%s: offset 0: does not begin with MMIDIDX: no Megatron-LM index",
                       x->path);
    int64_t version = fetch_i64(x->base + 9);
    if (version != 1)
        return err_set(err, "%s: offset 9: the version is %lld, but only 1 is known", x->path,
                       (long long)version);
    if (idx_type(x->base[17], type))
        return err_set(err,
                       "%s: offset 17: the type code is %u, but tokens are integers: 1, 2, 3, 4, 5 "
                       "or 8",
                       x->path, x->base[17]);
    x->sequences = (uint64_t)fetch_i64(x->base + 18);
    x->documents = (uint64_t)fetch_i64(x->base + 26);
    size_t body = bytes - IDX_HEADER_BYTES;
    uint64_t most = body / 8;
    if (x->sequences > most || x->documents > most || x->sequences * 12 + x->documents * 8 > body)
        return err_set(err,
                       "%s: offset 18: the header promises %llu sequences and %llu documents, but "
                       "the file has only %zu bytes: truncated",
                       x->path, (unsigned long long)x->sequences, (unsigned long long)x->documents,
                       bytes);
    size_t rest = body - (size_t)(x->sequences * 12 + x->documents * 8);
    if (rest && rest != x->sequences)
        return err_set(err, "%s: has %zu bytes too many for %llu sequences: damaged", x->path, rest,
                       (unsigned long long)x->sequences);
    x->lengths = IDX_HEADER_BYTES;
    x->pointers = x->lengths + (size_t)x->sequences * 4;
    x->firsts = x->pointers + (size_t)x->sequences * 8;
    return 0;
}

/* The sequences must lie in the .bin one behind the other, without gap, and fill it. */
static int idx_sequences(const struct idx *x, const char *bin_path, size_t bin_bytes, int size,
                         struct err *err)
{
    uint64_t end = 0; /* never above bin_bytes, so the sums cannot overflow */
    for (uint64_t i = 0; i < x->sequences; i++) {
        size_t at = x->lengths + (size_t)i * 4, pointer_at = x->pointers + (size_t)i * 8;
        int32_t length = fetch_i32(x->base + at);
        int64_t pointer = fetch_i64(x->base + pointer_at);
        if (length < 0)
            return err_set(err, "%s: offset %zu: sequence %llu has length %d: damaged", x->path, at,
                           (unsigned long long)i, length);
        if (pointer < 0 || (uint64_t)pointer != end)
            return err_set(err,
                           "%s: offset %zu: sequence %llu points to byte %lld, but the one before "
                           "ends at %llu: damaged",
                           x->path, pointer_at, (unsigned long long)i, (long long)pointer,
                           (unsigned long long)end);
        end += (uint64_t)length * (uint64_t)size;
        if (end > bin_bytes)
            return err_set(err,
                           "%s: offset %zu: sequence %llu ends at byte %llu of %s, which has %zu: "
                           "truncated, or not its index",
                           x->path, at, (unsigned long long)i, (unsigned long long)end, bin_path,
                           bin_bytes);
    }
    if (end != bin_bytes)
        return err_set(err, "%s: describes %llu bytes, but %s has %zu: not its index", x->path,
                       (unsigned long long)end, bin_path, bin_bytes);
    return 0;
}

static int idx_documents(const struct idx *x, struct err *err)
{
    int64_t before = 0;
    for (uint64_t i = 0; i < x->documents; i++) {
        size_t at = x->firsts + (size_t)i * 8;
        int64_t first = fetch_i64(x->base + at);
        bool right = i == 0 ? first == 0 : first >= before && (uint64_t)first <= x->sequences;
        if (i + 1 == x->documents)
            right = right && (uint64_t)first == x->sequences;
        if (!right)
            return err_set(err,
                           "%s: offset %zu: document %llu begins at sequence %lld, after %lld and "
                           "of %llu: damaged",
                           x->path, at, (unsigned long long)i, (long long)first, (long long)before,
                           (unsigned long long)x->sequences);
        before = first;
    }
    return 0;
}

static int open_megatron(struct token_file *f, const char *bin_path, const char *idx_path,
                         struct err *err)
{
    void *map;
    size_t bytes;
    if (map_file(idx_path, &map, &bytes, err))
        return -1;
    struct idx x = {.path = idx_path, .base = map};
    int rv = -1;
    if (!idx_header(&x, bytes, &f->type, err)) {
        int size = TYPES[f->type].bytes;
        if (!idx_sequences(&x, bin_path, f->map_bytes, size, err) && !idx_documents(&x, err)) {
            f->tokens = f->map;
            f->count = (int64_t)(f->map_bytes / (size_t)size);
            rv = 0;
        }
    }
    munmap(map, bytes);
    return rv;
}

/* PATH, PATH.bin or PATH.idx -> both names, malloc'ed. */
static int megatron_names(const char *path, char **bin, char **idx, struct err *err)
{
    size_t length = strlen(path);
    if (length > 4 && (!strcmp(path + length - 4, ".bin") || !strcmp(path + length - 4, ".idx")))
        length -= 4;
    *bin = malloc(length + 5);
    *idx = malloc(length + 5);
    if (!*bin || !*idx)
        return err_set(err, "%s: out of memory", path);
    memcpy(*bin, path, length);
    memcpy(*bin + length, ".bin", 5);
    memcpy(*idx, path, length);
    memcpy(*idx + length, ".idx", 5);
    return 0;
}

static int open_format(struct token_file *f, enum plan_data_format format, const char *path,
                       const char *idx_path, struct err *err)
{
    if (map_file(path, &f->map, &f->map_bytes, err)) {
        f->map = NULL;
        return -1;
    }
    switch (format) {
    case PLAN_DATA_TEXT:
        f->tokens = f->map;
        f->count = (int64_t)f->map_bytes;
        f->type = TOKEN_U8;
        return 0;
    case PLAN_DATA_BIN:
        return open_bin(f, path, err);
    case PLAN_DATA_MEGATRON:
        return open_megatron(f, path, idx_path, err);
    }
    return err_set(err, "%s: unknown data format %d", path, (int)format);
}

int token_file_open(struct token_file *f, enum plan_data_format format, const char *path,
                    struct err *err)
{
    *f = (struct token_file){0};
    char *bin = NULL, *idx = NULL;
    int rv = 0;
    if (format == PLAN_DATA_MEGATRON)
        rv = megatron_names(path, &bin, &idx, err);
    if (!rv)
        rv = open_format(f, format, bin ? bin : path, idx, err);
    if (rv)
        token_file_close(f);
    else /* samples are read in a random order: reading ahead would only fill the page cache */
        madvise(f->map, f->map_bytes, MADV_RANDOM);
    free(bin);
    free(idx);
    return rv;
}

static int64_t fetch(const struct token_file *f, int64_t i)
{
    const unsigned char *p = f->tokens + i * TYPES[f->type].bytes;
    uint16_t u16;
    uint32_t u32;
    switch (f->type) {
    case TOKEN_U8:
        return *p;
    case TOKEN_I8:
        return (int8_t)*p;
    case TOKEN_U16:
        memcpy(&u16, p, sizeof u16);
        return u16;
    case TOKEN_I16:
        memcpy(&u16, p, sizeof u16);
        return (int16_t)u16;
    case TOKEN_U32:
        memcpy(&u32, p, sizeof u32);
        return u32;
    case TOKEN_I32:
        return fetch_i32(p);
    case TOKEN_I64:
        return fetch_i64(p);
    }
    return -1;
}

/* The largest token of a block as an unsigned number, so that a negative one is large too. One loop
 * per width, plain enough for the compiler to vectorise: a file is read at memory speed. */
static uint64_t largest(const struct token_file *f, int64_t first, int64_t count)
{
    const unsigned char *p = f->tokens + first * TYPES[f->type].bytes;
    uint16_t max16 = 0;
    uint32_t max32 = 0;
    uint64_t max = 0;
    switch (f->type) {
    case TOKEN_U16:
        for (int64_t i = 0; i < count; i++) {
            uint16_t v;
            memcpy(&v, p + i * 2, sizeof v);
            max16 = v > max16 ? v : max16;
        }
        return max16;
    case TOKEN_U32:
    case TOKEN_I32:
        for (int64_t i = 0; i < count; i++) {
            uint32_t v;
            memcpy(&v, p + i * 4, sizeof v);
            max32 = v > max32 ? v : max32;
        }
        return max32;
    default:
        for (int64_t i = 0; i < count; i++) {
            uint64_t v = (uint64_t)fetch(f, first + i);
            max = v > max ? v : max;
        }
        return max;
    }
}

/* The first token in [first, end) that is not below vocab, -1 if there is none. */
static int64_t find_bad(const struct token_file *f, int64_t first, int64_t end, uint64_t vocab)
{
    for (int64_t at = first; at < end; at += CHECK_BLOCK_TOKENS) {
        int64_t n = end - at < CHECK_BLOCK_TOKENS ? end - at : CHECK_BLOCK_TOKENS;
        if (largest(f, at, n) < vocab)
            continue;
        while ((uint64_t)fetch(f, at) < vocab)
            at++;
        return at;
    }
    return -1;
}

int token_file_check(const struct token_file *f, const char *path, int64_t first, int64_t count,
                     int64_t vocab, struct err *err)
{
    if ((f->type == TOKEN_U8 && vocab >= 256) || (f->type == TOKEN_U16 && vocab >= 65536))
        return 0;
    madvise(f->map, f->map_bytes, MADV_SEQUENTIAL);
    int64_t bad = find_bad(f, first, first + count, (uint64_t)vocab);
    madvise(f->map, f->map_bytes, MADV_RANDOM);
    if (bad < 0)
        return 0;
    long long offset = (long long)(f->tokens - (const unsigned char *)f->map) +
                       (long long)bad * TYPES[f->type].bytes;
    return err_set(err,
                   "%s: offset %lld: token %lld is %lld (%s), but model.vocab is %lld: tokens must "
                   "be 0 to %lld",
                   path, offset, (long long)bad, (long long)fetch(f, bad), TYPES[f->type].name,
                   (long long)vocab, (long long)vocab - 1);
}

void token_file_read(const struct token_file *f, int64_t first, int64_t count, int32_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)fetch(f, first + i);
}

void token_file_close(struct token_file *f)
{
    if (f->map)
        munmap(f->map, f->map_bytes);
    *f = (struct token_file){0};
}
