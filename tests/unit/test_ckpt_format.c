/* test_ckpt_format.c - the file: its checksums, its form as others read it, and what happens when a
 * bit, a length or a whole header is not as it was written. */
#include "ckpt_help.h"

#include <inttypes.h>
#include <json-c/json.h>

#include "ckpt_mutate.h"
#include "layout.h"
#include "safetensors.h"

/* RFC 3720, B.4 (there as bytes, least significant first) */
static void test_crc32c_vectors(void **unused)
{
    (void)unused;
    unsigned char b[32];
    static const unsigned char read_pdu[48] = {
        0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 4, 0,
        0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
    memset(b, 0, 32);
    assert_int_equal(crc32c(0, b, 32), 0x8a9136aa);
    memset(b, 0xff, 32);
    assert_int_equal(crc32c(0, b, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, b, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)(31 - i);
    assert_int_equal(crc32c(0, b, 32), 0x113fdb5c);
    assert_int_equal(crc32c(0, read_pdu, 48), 0xd9963a56);
    assert_int_equal(crc32c(crc32c(0, read_pdu, 13), read_pdu + 13, 35), 0xd9963a56);
    assert_int_equal(crc32c(0, b, 0), 0);
}

/* A finished file of four tensors in memory; the caller frees. */
static unsigned char *make_file(size_t *bytes)
{
    static const int64_t shapes[][2] = {{30, 70}, {0, 3}, {5, 1}, {1025, 1}};
    struct err err;
    char dir[256], path[512];
    struct ckpt *c;
    struct state s = {.n = 0};
    for (int i = 0; i < 4; i++)
        state_add(&s, (enum ckpt_dtype)i, 2, shapes[i]);
    s.tensors[0].global[1] = 140;
    s.tensors[0].offset[1] = 70;
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 3);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    state_fill(&s, 12);
    ok(help_checkpoint(c, 12, &err));
    ckpt_close(c, help_soon());
    snprintf(path, sizeof path, "%s/run-1.e3.g1.s12.r0.safetensors", dir);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *file = malloc(1 << 20);
    *bytes = fread(file, 1, 1 << 20, f);
    fclose(f);
    help_remove(dir);
    state_free(&s);
    return file;
}

static const char *meta(json_object *root, const char *key)
{
    json_object *m, *v;
    assert_true(json_object_object_get_ex(root, "__metadata__", &m));
    assert_true(json_object_object_get_ex(m, key, &v));
    return json_object_get_string(v);
}

/* Another JSON library finds what the format's documentation asks for: tensors that fill the data
 * without hole or overlap, sizes that follow from dtype and shape; and every tensor on 4 KiB. */
static void test_form(void **unused)
{
    (void)unused;
    size_t bytes;
    unsigned char *file = make_file(&bytes);
    uint64_t length;
    memcpy(&length, file, 8);
    assert_int_equal((8 + length) % 4096, 0);
    assert_int_equal(bytes % 4096, 0);
    assert_int_equal(file[8], '{');
    char *text = strndup((char *)file + 8, length);
    json_object *root = json_tokener_parse(text), *m;
    assert_non_null(root);
    assert_string_equal(meta(root, "gtrain.step"), "12");
    assert_string_equal(meta(root, "gtrain.samples"), "96");
    assert_string_equal(meta(root, "gtrain.epoch"), "3");
    assert_string_equal(meta(root, "gtrain.generation"), "1");
    assert_string_equal(meta(root, "gtrain.run"), "run-1");
    assert_string_equal(meta(root, "gtrain.plan_hash"), "123456789abcdef0");
    assert_string_equal(meta(root, "gtrain.slice.layers.0.w@0,70"), "30,140@0,70");
    assert_true(json_object_object_get_ex(root, "__metadata__", &m));
    json_object_object_foreach(m, key, value)
    {
        assert_non_null(key);
        assert_true(json_object_is_type(value, json_type_string));
    }
    int64_t data = (int64_t)(bytes - 8 - length), covered = 0;
    int tensors = 0;
    json_object_object_foreach(root, name, t)
    {
        json_object *dtype, *shape, *offsets;
        if (!strcmp(name, "__metadata__"))
            continue;
        assert_true(json_object_object_get_ex(t, "dtype", &dtype));
        assert_true(json_object_object_get_ex(t, "shape", &shape));
        assert_true(json_object_object_get_ex(t, "data_offsets", &offsets));
        int64_t begin = json_object_get_int64(json_object_array_get_idx(offsets, 0));
        int64_t end = json_object_get_int64(json_object_array_get_idx(offsets, 1));
        const char *d = json_object_get_string(dtype);
        int64_t size = !strcmp(d, "U8") ? 1 : !strcmp(d, "BF16") ? 2 : !strcmp(d, "F32") ? 4 : 8;
        for (size_t i = 0; i < json_object_array_length(shape); i++)
            size *= json_object_get_int64(json_object_array_get_idx(shape, i));
        assert_int_equal(end - begin, size);
        assert_true(begin >= 0 && end <= data);
        covered += size;
        if (strncmp(name, "__pad__.", 8)) {
            assert_int_equal(begin % 4096, 0);
            tensors++;
        } else {
            for (int64_t b = begin; b < end; b++)
                assert_int_equal(file[8 + length + b], 0);
        }
    }
    assert_int_equal(tensors, 4);
    assert_int_equal(covered,
                     data); /* sums to the whole, and st_parse proves there is no overlap */
    uint32_t crc = (uint32_t)strtoul(meta(root, "gtrain.crc32c"), NULL, 16);
    assert_int_equal(crc, crc32c(0, file + 8 + length, (size_t)data)); /* below 1 MiB: one block */
    json_object_put(root);
    free(text);
    free(file);
}

/* One bit anywhere: the file is not taken for good. */
static void test_bit_flips(void **unused)
{
    (void)unused;
    size_t bytes;
    unsigned char *file = make_file(&bytes);
    uint64_t length;
    memcpy(&length, file, 8);
    assert_int_equal(mutate_use(file, bytes), 0);
    for (size_t at = 0; at < bytes; at += at < 8 + length ? 1 : 13) {
        unsigned char bit = (unsigned char)(1 << at % 8);
        file[at] ^= bit;
        if (!mutate_use(file, bytes))
            fail_msg("a flipped bit in byte %zu of %zu was not seen", at, bytes);
        file[at] ^= bit;
    }
    for (size_t cut = 0; cut < bytes; cut += cut < 64 ? 1 : 511)
        if (!mutate_use(file, cut))
            fail_msg("a file cut to %zu of %zu bytes was not seen", cut, bytes);
    assert_int_equal(mutate_use(file, bytes), 0);
    free(file);
}

/* The first tensor that holds anything but whole runs of bytes of one of two steps, or, from MiB
 * `bad` of the file's data on, of the newer; -1: none. Tensors begin at multiples of 4096. */
static int mixed_up(const struct state *s, int64_t old, int64_t newer, int64_t bad)
{
    int64_t begin = 0;
    for (int i = 0; i < s->n; i++) {
        for (int64_t b = 0; b < s->sizes[i]; b++)
            if (s->bytes[i][b] != state_byte(newer, i, b) &&
                (s->bytes[i][b] != state_byte(old, i, b) || (begin + b) >> 20 >= bad))
                return i;
        begin += (s->sizes[i] + 4095) / 4096 * 4096;
    }
    return -1;
}

/* A flipped bit on disk is found by the restore too, and nothing that is wrong, or behind it, is
 * copied in. */
static void test_restore_checks_before_use(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_file *f;
    struct ckpt_decision d;
    struct state s = {.n = 0};
    const int64_t n = 3 << 20; /* several checksum blocks */
    state_add(&s, CKPT_BF16, 1, &n);
    state_add(&s, CKPT_F32, 1, &(int64_t){77});
    struct ckpt_io io = state_io(&s);
    for (int threads = 0; threads < 2; threads++) {
        help_scratch(dir, NULL);
        struct ckpt_options o = help_options(dir, 1);
        o.no_uring = threads;
        ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
        state_fill(&s, 1);
        ok(help_checkpoint(c, 1, &err));
        ok(help_decide(dir, -1, &d, &err));
        static const long from_end[] = {1, 4097, 5 << 20, 1 << 20};
        for (size_t i = 0; i < sizeof from_end / sizeof *from_end; i++) {
            FILE *io_file = fopen(d.places[0].path, "r+b");
            assert_non_null(io_file);
            fseek(io_file, -from_end[i], SEEK_END);
            int byte = fgetc(io_file);
            fseek(io_file, -from_end[i], SEEK_END);
            fputc(byte ^ 1, io_file);
            fclose(io_file);
            state_fill(&s, 2);
            ok(ckpt_file_open(&f, d.places[0].path, &err));
            refused(ckpt_restore(c, f, NULL, &err), "damaged");
            refused(ckpt_file_verify(f, &err), "damaged");
            int64_t data = (n * 2 + 4095) / 4096 * 4096 + 4096;
            assert_int_equal(mixed_up(&s, 1, 2, (data - from_end[i]) >> 20), -1);
            ckpt_file_close(f);
            io_file = fopen(d.places[0].path, "r+b");
            fseek(io_file, -from_end[i], SEEK_END);
            fputc(byte, io_file);
            fclose(io_file);
        }
        ok(ckpt_file_open(&f, d.places[0].path, &err));
        ok(ckpt_restore(c, f, NULL, &err));
        assert_int_equal(state_differs(&s, 1), -1);
        ckpt_file_close(f);
        ckpt_decision_free(&d);
        ckpt_close(c, help_soon());
        help_remove(dir);
    }
    state_free(&s);
}

/* A state that counts down to a failure; flush is slow, so that the reader runs out of memory. */
struct failing {
    struct state state;
    int calls, left;
};

static int failing_out(void *arg, int i, void *host, struct err *err)
{
    return state_out(&((struct failing *)arg)->state, i, host, err);
}

static int failing_in(void *arg, int i, int64_t at, const void *host, int64_t bytes,
                      struct err *err)
{
    struct failing *f = arg;
    f->calls++;
    if (!f->left--)
        return err_set(err, "the device is gone");
    return state_in(&f->state, i, at, host, bytes, err);
}

static int slow_flush(void *arg, struct err *err)
{
    (void)arg, (void)err;
    usleep(1000);
    return 0;
}

/* However far it got, a caller that fails ends the restore, and the next one is whole. */
static void test_restore_fails(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct ckpt_file *f;
    struct ckpt_decision d;
    struct failing s = {.left = -1};
    state_add(&s.state, CKPT_F32, 1, &(int64_t){5 << 18}); /* 5 MiB: longer than the ring */
    state_add(&s.state, CKPT_F64, 0, NULL);
    state_add(&s.state, CKPT_F32, 1, &(int64_t){0});
    state_add(&s.state, CKPT_BF16, 1, &(int64_t){5 << 19});
    struct ckpt_io io = {failing_out, failing_in, slow_flush, &s};
    for (int threads = 0; threads < 2; threads++) {
        help_scratch(dir, NULL);
        struct ckpt_options o = help_options(dir, 1);
        o.no_uring = threads;
        ok(ckpt_open(&c, &o, s.state.tensors, s.state.n, &io, &err));
        state_fill(&s.state, 1);
        ok(help_checkpoint(c, 1, &err));
        ok(help_decide(dir, -1, &d, &err));
        ok(ckpt_file_open(&f, d.places[0].path, &err));
        for (int i = 0; i < 4; i++) {
            state_fill(&s.state, 2);
            s.left = i;
            s.calls = 0;
            refused(ckpt_restore(c, f, NULL, &err), "the device is gone");
            assert_int_equal(s.calls, i + 1);
            s.left = -1;
            s.calls = 0;
            ok(ckpt_restore(c, f, NULL, &err));
            assert_int_equal(state_differs(&s.state, 1), -1);
            assert_true(s.calls > 4); /* one a tensor, and the first comes in several */
        }
        ckpt_file_close(f);
        ckpt_decision_free(&d);
        ckpt_close(c, help_soon());
        help_remove(dir);
    }
    state_free(&s.state);
}

#define T(name, rest) "\"" name "\":{" rest "}"
#define F32(name, from, to)                                                                        \
    T(name, "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" from "," to "]")

/* JSON, bytes of data behind it, part of the error (NULL: it is fine). */
static const struct {
    const char *json;
    int64_t data;
    const char *error;
} headers[] = {
    {"{}", 0, NULL},
    {"{}  \n ", 0, NULL},
    {"{" F32("a", "0", "4") "}", 4, NULL},
    {"{ \"a\" : { \"shape\" : [ 1 ] , \"data_offsets\" : [ 0 , 4 ] , \"dtype\" : \"F32\" } }", 4,
     NULL},
    {"{" F32("b", "4", "8") "," F32("a", "0", "4") "}", 8, NULL},
    {"{\"__metadata__\":{}," F32("a", "0", "4") "}", 4, NULL},
    {"{" T("a", "\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]") "}", 8, NULL},
    {"{" T("a", "\"dtype\":\"F64\",\"shape\":[0,5],\"data_offsets\":[0,0]") "}", 0, NULL},
    {"{" F32("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "0", "4") "}", 4, NULL},
    {"{" F32("\\u00e4\\ud83d\\ude00\\n", "0", "4") "}", 4, NULL},
    {"", 0, "must start with '{'"},
    {" {}", 0, "must start with '{'"},
    {"[]", 0, "must start with '{'"},
    {"{", 0, "'\"' is missing"},
    {"{}x", 0, "behind the closing brace"},
    {"{}{}", 0, "behind the closing brace"},
    {"{" F32("a", "0", "4") ",}", 4, "'\"' is missing"},
    {"{" F32("a", "0", "4") "," F32("a", "4", "8") "}", 8, "tensor 'a' twice"},
    {"{" F32("a", "0", "4") "," F32("\\u0061", "4", "8") "}", 8, "tensor 'a' twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ twice"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "metadata key 'k' twice"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "'\"' is missing"},
    {"{\"__metadata__\":{\"k\":{\"k\":{\"k\":{}}}}}", 0, "'\"' is missing"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "'\"' is missing"},
    {"{\"a\":[[[[[[[[[[]]]]]]]]]]}", 0, "'{' is missing"},
    {"{\"a\":{}}", 0, "'\"' is missing"},
    {"{" T("a", "\"dtype\":\"F32\"") "}", 0, "lacks dtype, shape or data_offsets"},
    {"{" T("a", "\"dtype\":\"F32\",\"dtype\":\"F32\"") "}", 0, "a key twice"},
    {"{" T("a", "\"dtype\":\"F31\"") "}", 0, "unknown dtype"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1") "}", 4,
     "unknown key"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]") "}", 4,
     "whole number is missing"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]") "}", 4, "leading zeros"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]") "}", 4, "not whole"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]") "}", 4, "not whole"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]") "}", 4,
     "whole number is missing"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]") "}", 4,
     "too long"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]") "}", 4, "too long"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]") "}", 4, "begin, end"},
    {"{" F32("a", "4", "0") "}", 4, "begin <= end"},
    {"{" F32("a", "0", "5") "}", 5, "disagree"},
    {"{" F32("a", "0", "18446744073709551615") "}", 4, "2^63 or more"},
    {"{" F32("a", "0", "18446744073709551620") "}", 4, "2^63 or more"},
    {"{" F32("a", "0", "9223372036854775808") "}", 4, "2^63 or more"},
    {"{" F32("a", "9223372036854775803", "9223372036854775807") "}", 4, "begins at byte"},
    {"{" T("a", "\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]") "}", 0,
     "2^63 bytes or more"},
    {"{" T("a", "\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]") "}", 0,
     "2^63 bytes or more"},
    {"{" T("a", "\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]") "}", 0,
     NULL},
    {"{" F32("a", "0", "4") "," F32("b", "0", "4") "}", 4, "begins at byte 0"},
    {"{" F32("a", "0", "4") "," F32("b", "2", "6") "}", 6, "begins at byte 2"},
    {"{" F32("a", "0", "4") "," F32("b", "8", "12") "}", 12, "begins at byte 8"},
    {"{" F32("a", "4", "8") "}", 8, "begins at byte 4"},
    {"{" F32("a", "0", "4") "}", 5, "the file holds 5"},
    {"{" F32("a", "0", "4") "}", 3, "the file holds 3"},
    {"{" F32("\xff", "0", "4") "}", 4, "not UTF-8"},
    {"{" F32("\xc0\x80", "0", "4") "}", 4, "not UTF-8"},
    {"{" F32("\xed\xa0\x80", "0", "4") "}", 4, "not UTF-8"},
    {"{" F32("\xf4\x90\x80\x80", "0", "4") "}", 4, "not UTF-8"},
    {"{" F32("\xe2\x82", "0", "4") "}", 4, "not UTF-8"},
    {"{" F32("a\nb", "0", "4") "}", 4, "control character"},
    {"{" F32("\\u0000", "0", "4") "}", 4, "a NUL"},
    {"{" F32("\\ud800", "0", "4") "}", 4, "surrogate"},
    {"{" F32("\\udc00\\ud800", "0", "4") "}", 4, "surrogate"},
    {"{" F32("\\ud800\\u0041", "0", "4") "}", 4, "surrogate"},
    {"{" F32("\\u12g4", "0", "4") "}", 4, "four hex digits"},
    {"{" F32("\\x41", "0", "4") "}", 4, "JSON does not have"},
    {"{\"a", 0, "ends in a string"},
    {"{\"a\\", 0, "ends in a string"},
    {"{\"a\\\"", 0, "ends in a string"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1", 0, "']' is missing"},
};

static void test_headers(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct st_header h;
        struct err err = {.text = ""};
        size_t n = strlen(headers[i].json);
        char *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */
        memcpy(exact, headers[i].json, n);
        exact = realloc(exact, n ? n : 1);
        int rv = st_parse(exact, n, headers[i].data, &h, &err);
        if (headers[i].error ? rv != -1 || !strstr(err.text, headers[i].error) : rv != 0)
            fail_msg("header %s\n  gives %d '%s'\n  not %s", headers[i].json, rv, err.text,
                     headers[i].error ? headers[i].error : "success");
        if (!rv)
            st_free(&h);
        free(exact);
    }
    struct st_header h;
    struct err err;
    refused(st_parse("{}", 2, 1, &h, &err), "the file holds 1");
    char *large = malloc((size_t)ST_MAX_HEADER + 1);
    memset(large, ' ', (size_t)ST_MAX_HEADER + 1);
    memcpy(large, "{}", 2);
    refused(st_parse(large, (size_t)ST_MAX_HEADER + 1, 0, &h, &err), "at most 100000000");
    memset(large, '[', 1 << 20); /* depth costs nothing */
    memcpy(large, "{\"a\":", 5);
    refused(st_parse(large, 1 << 20, 0, &h, &err), "'{' is missing");
    free(large);
}

/* The eight length bytes. */
static void test_lengths(void **unused)
{
    (void)unused;
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, INT64_MAX, 1ull << 62,
                                       100000001,  4089,           3,         0};
    struct err err;
    struct ckpt_file *f;
    unsigned char file[4096];
    memset(file, ' ', sizeof file);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(file, &lengths[i], 8);
        assert_int_equal(ckpt_file_open_memory(&f, file, sizeof file, &err), -1);
        assert_null(f);
    }
    for (size_t n = 0; n < 8; n++)
        refused(ckpt_file_open_memory(&f, file, n, &err), "too few");
    refused(ckpt_file_open(&f, "/dev/null", &err), "is not a file");
    refused(ckpt_file_open(&f, "/nonexistent", &err), "No such file");
}

/* Fields of ours that are wrong in a file whose checksum is right. */
static void test_metadata(void **unused)
{
    (void)unused;
    static const struct {
        const char *from, *to, *error;
    } edits[] = {
        {"\"gtrain.step\":\"12\"", "\"gtrain.step\":\"-2\"", "gtrain.step is '-2'"},
        {"\"gtrain.step\":\"12\"", "\"gtrain.stop\":\"12\"", "has no gtrain.step"},
        {"\"gtrain.format\":\"1\"", "\"gtrain.format\":\"2\"", "reads format 1"},
        {"\"gtrain.rank\":\"0\"", "\"gtrain.rank\":\"1\"", "rank 1 in a world of 1"},
        {"\"gtrain.world\":\"1\"", "\"gtrain.world\":\"0\"", "rank 0 in a world of 0"},
        {"\"gtrain.run\":\"run-1\"", "\"gtrain.run\":\"run_1\"", "no run id"},
        {"123456789abcdef0", "123456789ABCDEF0", "not 16 hex digits"},
        {"30,140@0,70\"", "30,130@0,70\"", "disagree"},
        {"30,140@0,70\"", "30,140@0,71\"", "disagree"},
        {"\"gtrain.slice.layers.0.w@0,70\"", "\"gtrain.slice.layers.1.w@0,70\"", "disagree"},
        {"\"gtrain.crc32c\":\"", "\"gtrain.crc32d\":\"", "has no gtrain.crc32c"},
        {"\"gtrain.header_crc32c\":\"", "\"gtrain.header_crc32d\":\"", "not a gtrain checkpoint"},
    };
    size_t bytes;
    struct err err;
    struct ckpt_file *f;
    unsigned char *file = make_file(&bytes), *copy = malloc(bytes);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        memcpy(copy, file, bytes);
        unsigned char *at = memmem(copy, bytes, edits[i].from, strlen(edits[i].from));
        assert_non_null(at);
        memcpy(at, edits[i].to, strlen(edits[i].to));
        mutate_seal(copy, bytes);
        refused(ckpt_file_open_memory(&f, copy, bytes, &err), edits[i].error);
    }
    free(copy);
    free(file);
}

/* A bounded walk through mutated files, the same each time; the fuzz target goes on from here. */
static void test_mutations(void **unused)
{
    (void)unused;
    enum { ROUNDS = 4000 };
    size_t bytes;
    unsigned char *file = make_file(&bytes), *copy = malloc(bytes);
    static const char tokens[] = "{}[]\",:0129.eE-\\u@";
    uint64_t length, x = 88172645463325252u;
    memcpy(&length, file, 8);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(copy, file, bytes);
        for (int edit = 0; edit < 1 + round % 4; edit++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* Marsaglia's xorshift64 */
            size_t at = x % (8 + 1800), to = (x >> 20) % (8 + 1800), n = (x >> 40) % 64;
            switch ((x >> 50) % 4) {
            case 0:
                copy[at] = (unsigned char)(x >> 56);
                break;
            case 1:
                copy[at] = (unsigned char)tokens[(x >> 56) % (sizeof tokens - 1)];
                break;
            case 2:
                memmove(copy + at, copy + to, n);
                break;
            case 3:
                memset(copy + at, '9', n % 20);
                break;
            }
        }
        if (round % 2)
            mutate_seal(copy, bytes);
        size_t cut = round % 16 ? bytes : x % bytes;
        mutate_use(copy, cut);
    }
    free(copy);
    free(file);
}

/* For `make fuzz`: good inputs to start from, one for each way the target reads its first byte. */
static void test_fuzz_corpus(void **unused)
{
    (void)unused;
    const char *folder = getenv("GTRAIN_FUZZ_CORPUS");
    if (!folder)
        return;
    size_t bytes;
    unsigned char *file = make_file(&bytes);
    for (int how = 0; how < 4; how++) {
        char path[512];
        size_t skipped = how & 1 ? 8 : 0;
        snprintf(path, sizeof path, "%s/good-%d", folder, how);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        fputc(how, out);
        assert_int_equal(fwrite(file + skipped, 1, bytes - skipped, out), bytes - skipped);
        fclose(out);
    }
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_vectors), cmocka_unit_test(test_form),
        cmocka_unit_test(test_bit_flips),      cmocka_unit_test(test_restore_checks_before_use),
        cmocka_unit_test(test_restore_fails),  cmocka_unit_test(test_headers),
        cmocka_unit_test(test_lengths),        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_mutations),      cmocka_unit_test(test_fuzz_corpus),
    };
    return cmocka_run_group_tests_name("ckpt format", tests, NULL, NULL);
}
