/* test_data.c - token files of every format and samples as a function of (seed, index). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "train/data.h"

/* A folder for one test's files, and a plan that reads them. */
struct fixture {
    char dir[64];
    char paths[4][128];
    char *files[4];
    int made; /* files to remove, in made_paths */
    char made_paths[16][128];
    struct plan plan;
};

/* Everything in a file, written at once. */
static void put(struct fixture *f, const char *name, const void *bytes, size_t n)
{
    char path[sizeof f->made_paths[0]];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    strcpy(f->made_paths[f->made++], path);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static void use(struct fixture *f, int place, const char *name)
{
    char path[sizeof f->paths[0]];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    strcpy(f->paths[place], path);
    f->files[place] = f->paths[place];
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    strcpy(f->dir, "/tmp/gtrain-test-data.XXXXXX");
    if (!mkdtemp(f->dir))
        return -1;
    f->plan.path = (char *)"plan.yaml";
    f->plan.model.vocab = 256;
    f->plan.training.sequence = 4;
    f->plan.training.global_batch = 2;
    f->plan.training.seed = 7;
    f->plan.data.format = PLAN_DATA_TEXT;
    f->plan.data.files = f->files;
    f->plan.data.n_files = 1;
    use(f, 0, "a");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < f->made; i++)
        unlink(f->made_paths[i]);
    int rv = rmdir(f->dir);
    free(f);
    return rv;
}

static struct data *open_split(struct fixture *f, enum data_split split)
{
    struct err err = {{0}};
    struct data *d = NULL;
    if (data_open(&d, &f->plan, split, &err))
        fail_msg("data_open: %s", err.text);
    return d;
}

/* data_open must fail with exactly this text; %s in it stands for the folder. */
static void refused(struct fixture *f, const char *expected)
{
    char text[1024];
    const char *mark = strstr(expected, "%s");
    if (mark)
        snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - expected), expected, f->dir, mark + 2);
    else
        snprintf(text, sizeof text, "%s", expected);
    struct err err = {{0}};
    struct data *d = NULL;
    assert_int_equal(data_open(&d, &f->plan, DATA_TRAIN, &err), -1);
    assert_null(d);
    const char *message = strstr(err.text, ": ");
    assert_non_null(message);
    assert_string_equal(message + 2, text);
}

static void fill_text(struct fixture *f, const char *name, size_t n, int first)
{
    unsigned char *bytes = malloc(n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(first + (int)i);
    put(f, name, bytes, n);
    free(bytes);
}

static void test_text_windows(void **state)
{
    struct fixture *f = *state;
    fill_text(f, "a", 30, 0); /* (30 - 1) / 4 = 7 windows */
    struct data *d = open_split(f, DATA_TRAIN);
    assert_int_equal(data_windows(d), 7);
    assert_int_equal(data_tokens(d), 28);
    int seen[7] = {0};
    for (int64_t i = 0; i < 7; i++) {
        int32_t t[5];
        data_sample(d, i, t);
        assert_int_equal(t[0] % 4, 0);
        for (int k = 1; k < 5; k++)
            assert_int_equal(t[k], t[0] + k);
        seen[t[0] / 4]++;
    }
    for (int i = 0; i < 7; i++)
        assert_int_equal(seen[i], 1);
    data_close(d);
}

/* One to one in each epoch for many sizes; another order in another epoch and with another seed. */
static void test_permutation(void **state)
{
    struct fixture *f = *state;
    f->plan.training.sequence = 1;
    f->plan.training.global_batch = 1;
    static const int sizes[] = {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 200, 255};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        f->made = 0;
        fill_text(f, "a", (size_t)n + 1, 0);
        int moved = 0;
        int32_t first_epoch[256];
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            struct data *d = open_split(f, DATA_TRAIN);
            assert_int_equal(data_windows(d), n);
            int seen[256] = {0};
            for (int i = 0; i < n; i++) {
                int32_t t[2];
                data_sample(d, epoch * n + i, t);
                assert_int_equal(seen[t[0]]++, 0);
                if (epoch == 0)
                    first_epoch[i] = t[0];
                else
                    moved += first_epoch[i] != t[0];
            }
            data_close(d);
        }
        if (n >= 16)
            assert_true(moved > n); /* of 2n, about 2n - 2 are expected */
    }
    struct data *d = open_split(f, DATA_TRAIN);
    f->plan.training.seed = 8;
    struct data *other = open_split(f, DATA_TRAIN);
    int differ = 0;
    for (int i = 0; i < 255; i++) {
        int32_t t[2], u[2];
        data_sample(d, i, t);
        data_sample(other, i, u);
        differ += t[0] != u[0];
    }
    assert_true(differ > 200);
    data_close(d);
    data_close(other);
}

/* The place a window gets is uniform: over many epochs the mean place of each of 10 windows is near
 * 4.5 (standard deviation of the mean of 4000: 0.045), and each place is taken by window 0 about
 * 400 times (standard deviation 19). The numbers are fixed by the seed. */
static void test_permutation_uniform(void **state)
{
    struct fixture *f = *state;
    f->plan.training.sequence = 1;
    fill_text(f, "a", 11, 0);
    struct data *d = open_split(f, DATA_TRAIN);
    double sum[10] = {0};
    int places[10] = {0};
    for (int64_t i = 0; i < 4000 * 10; i++) {
        int32_t t[2];
        data_sample(d, i, t);
        sum[t[0]] += (double)(i % 10);
        places[i % 10] += t[0] == 0;
    }
    for (int i = 0; i < 10; i++) {
        if (sum[i] / 4000 < 4.3 || sum[i] / 4000 > 4.7)
            fail_msg("window %d: mean place %g, not near 4.5", i, sum[i] / 4000);
        if (places[i] < 320 || places[i] > 480)
            fail_msg("window 0 is at place %d %d times, not about 400", i, places[i]);
    }
    data_close(d);
}

static void test_files_in_order(void **state)
{
    struct fixture *f = *state;
    fill_text(f, "a", 13, 0);   /* 3 windows: 0, 4, 8 */
    fill_text(f, "b", 9, 100);  /* 2: 100, 104 */
    fill_text(f, "c", 17, 200); /* 4 */
    f->plan.data.val_files = f->files;
    f->plan.data.n_val_files = 3;
    use(f, 0, "a");
    use(f, 1, "b");
    use(f, 2, "c");
    /* The validation split is not permuted, so its samples show the windows' numbers. */
    struct data *d = open_split(f, DATA_VALIDATION);
    assert_int_equal(data_windows(d), 9);
    static const int firsts[] = {0, 4, 8, 100, 104, 200, 204, 208, 212};
    for (int i = 0; i < 20; i++) {
        int32_t t[5];
        data_sample(d, i, t);
        assert_int_equal(t[0], firsts[i % 9]);
        assert_int_equal(t[4], firsts[i % 9] + 4);
    }
    data_close(d);
}

static void test_val_fraction(void **state)
{
    struct fixture *f = *state;
    fill_text(f, "a", 100, 0);
    struct data *none = open_split(f, DATA_VALIDATION);
    assert_null(none);
    f->plan.data.val_fraction = 0.25; /* tokens 75 to 99: 6 windows; 0 to 74: 18 */
    struct data *train = open_split(f, DATA_TRAIN), *val = open_split(f, DATA_VALIDATION);
    assert_int_equal(data_windows(train), 18);
    assert_int_equal(data_windows(val), 6);
    for (int i = 0; i < 18; i++) {
        int32_t t[5];
        data_sample(train, i, t);
        assert_true(t[4] < 75);
        if (i < 6) {
            data_sample(val, i, t);
            assert_int_equal(t[0], 75 + 4 * i);
        }
    }
    data_close(train);
    data_close(val);

    f->plan.data.val_fraction = 0.05; /* 5 tokens: one window, less than a batch */
    struct err err;
    assert_int_equal(data_open(&val, &f->plan, DATA_VALIDATION, &err), -1);
    assert_non_null(strstr(err.text, "data.val_fraction: the file holds 1 samples of 4 tokens for "
                                     "validation, but one batch takes training.global_batch = 2"));
}

/* An llm.c file: header as given, then tokens of `size` bytes. */
static void put_bin(struct fixture *f, const char *name, int32_t magic, int32_t version,
                    int32_t promised, const uint32_t *tokens, int n, int size, int cut)
{
    unsigned char bytes[1024 + 64 * 4] = {0};
    memcpy(bytes, &magic, 4);
    memcpy(bytes + 4, &version, 4);
    memcpy(bytes + 8, &promised, 4);
    for (int i = 0; i < n; i++)
        memcpy(bytes + 1024 + i * size, &tokens[i], (size_t)size); /* little-endian */
    put(f, name, bytes, (size_t)(1024 + n * size - cut));
}

static const uint32_t SMALL[10] = {5, 50000, 2, 3, 4, 5, 6, 7, 8, 9};

static void test_bin(void **state)
{
    struct fixture *f = *state;
    f->plan.data.format = PLAN_DATA_BIN;
    f->plan.model.vocab = 50257;
    f->plan.data.val_files = f->files;
    f->plan.data.n_val_files = 2;
    put_bin(f, "a", 20240520, 1, 10, SMALL, 10, 2, 0);
    static const uint32_t wide[9] = {1, 2, 3, 4, 5, 6, 7, 8, 128255};
    put_bin(f, "b", 20240801, 7, 9, wide, 9, 4, 0);
    use(f, 1, "b");
    struct err err;
    struct data *d;
    assert_int_equal(data_open(&d, &f->plan, DATA_VALIDATION, &err), -1);
    assert_non_null(strstr(err.text, "/b: offset 1056: token 8 is 128255 (uint32), but model.vocab "
                                     "is 50257: tokens must be 0 to 50256"));
    f->plan.model.vocab = 128256;
    d = open_split(f, DATA_VALIDATION);
    assert_int_equal(data_windows(d), 4);
    int32_t t[5];
    data_sample(d, 0, t);
    assert_int_equal(t[1], 50000);
    data_sample(d, 1, t);
    assert_int_equal(t[4], 8);
    data_sample(d, 3, t);
    assert_int_equal(t[4], 128255);
    data_close(d);
}

static void test_bin_refused(void **state)
{
    struct fixture *f = *state;
    f->plan.data.format = PLAN_DATA_BIN;
    f->plan.model.vocab = 50257;
    put_bin(f, "a", 1, 1, 10, SMALL, 10, 2, 0);
    refused(f, "data.train: %s/a: offset 0: the magic number is 1, but an llm.c .bin file begins "
               "with 20240520 (uint16 tokens) or 20240801 (uint32)");
    put_bin(f, "a", 20240520, 2, 10, SMALL, 10, 2, 0);
    refused(f, "data.train: %s/a: offset 4: the version is 2, but only 1 is known with magic "
               "20240520");
    put_bin(f, "a", 20240520, 1, 11, SMALL, 10, 2, 0);
    refused(f, "data.train: %s/a: offset 8: the header promises 11 tokens, but the file holds 10: "
               "truncated");
    put_bin(f, "a", 20240520, 1, -1, SMALL, 10, 2, 0);
    refused(f, "data.train: %s/a: offset 8: the header promises -1 tokens, but the file holds 10: "
               "damaged");
    put_bin(f, "a", 20240520, 1, 10, SMALL, 10, 2, 1);
    refused(f, "data.train: %s/a: has 19 bytes after its header, which is no multiple of the 2 of "
               "a token: truncated");
    put(f, "a", SMALL, 40);
    refused(f, "data.train: %s/a: has 40 bytes, but the header of a .bin file alone has 1024: "
               "truncated, or data.format is wrong");
    put_bin(f, "a", 20240520, 1, 10, SMALL, 10, 2, 0);
    f->plan.model.vocab = 50000;
    refused(f, "data.train: %s/a: offset 1026: token 1 is 50000 (uint16), but model.vocab is "
               "50000: tokens must be 0 to 49999");
}

/* A Megatron index of two documents of sequences of 3, 4 and 5 tokens, and room to spoil it. */
struct idx {
    unsigned char bytes[34 + 3 * 4 + 3 * 8 + 3 * 8];
};

static void make_idx(struct idx *x, unsigned type, int size)
{
    unsigned char *p = x->bytes;
    memcpy(p, "MMIDIDX\0\0", 9);
    uint64_t header[] = {1, 3, 3};
    memcpy(p + 9, &header[0], 8);
    p[17] = (unsigned char)type;
    memcpy(p + 18, &header[1], 16);
    int32_t lengths[] = {3, 4, 5};
    int64_t pointers[] = {0, 3 * size, 7 * size}, firsts[] = {0, 1, 3};
    memcpy(p + 34, lengths, sizeof lengths);
    memcpy(p + 46, pointers, sizeof pointers);
    memcpy(p + 70, firsts, sizeof firsts);
}

static void test_megatron(void **state)
{
    struct fixture *f = *state;
    f->plan.data.format = PLAN_DATA_MEGATRON;
    f->plan.model.vocab = 60000;
    f->plan.data.val_files = f->files;
    f->plan.data.n_val_files = 1;
    static const struct {
        unsigned code;
        int size;
    } types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    static const char *const spellings[] = {"a", "a.bin", "a.idx"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        f->made = 0;
        struct idx x;
        make_idx(&x, types[i].code, types[i].size);
        unsigned char tokens[12 * 8] = {0};
        for (int t = 0; t < 12; t++)
            tokens[t * types[i].size] = (unsigned char)(t + 100);
        put(f, "a.bin", tokens, (size_t)(12 * types[i].size));
        put(f, "a.idx", x.bytes, sizeof x.bytes);
        use(f, 0, spellings[i % 3]);
        struct data *d = open_split(f, DATA_VALIDATION);
        assert_int_equal(data_windows(d), 2); /* (12 - 1) / 4 */
        int32_t t[5];
        data_sample(d, 1, t);
        assert_int_equal(t[0], 104);
        assert_int_equal(t[4], 108);
        data_close(d);
    }
}

static void test_megatron_refused(void **state)
{
    struct fixture *f = *state;
    f->plan.data.format = PLAN_DATA_MEGATRON;
    f->plan.model.vocab = 60000;
    unsigned char tokens[24] = {0};
    put(f, "a.bin", tokens, sizeof tokens);
    refused(f, "data.train: %s/a.idx: No such file or directory");
    static const struct {
        int at, bytes;
        int64_t value;
        const char *text; /* after the file's name */
    } spoiled[] = {
        {0, 1, 'X', "offset 0: does not begin with MMIDIDX: no Megatron-LM index"},
        {9, 8, 2, "offset 9: the version is 2, but only 1 is known"},
        {17, 1, 7, "offset 17: the type code is 7, but tokens are integers: 1, 2, 3, 4, 5 or 8"},
        {17, 1, 4,
         "offset 54: sequence 1 points to byte 6, but the one before ends at 12: damaged"},
        {18, 8, INT64_MAX,
         "offset 18: the header promises 9223372036854775807 sequences and 3 documents, but the "
         "file has only 94 bytes: truncated"},
        {26, 8, 4,
         "offset 18: the header promises 3 sequences and 4 documents, but the file has only 94 "
         "bytes: truncated"},
        {26, 8, 2, "has 8 bytes too many for 3 sequences: damaged"},
        {34, 4, -3, "offset 34: sequence 0 has length -3: damaged"},
        {34, 4, 2, "offset 54: sequence 1 points to byte 6, but the one before ends at 4: damaged"},
        {70, 8, 1, "offset 70: document 0 begins at sequence 1, after 0 and of 3: damaged"},
        {78, 8, 4, "offset 78: document 1 begins at sequence 4, after 0 and of 3: damaged"},
        {86, 8, 2, "offset 86: document 2 begins at sequence 2, after 1 and of 3: damaged"},
    };
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        struct idx x;
        make_idx(&x, 8, 2);
        memcpy(x.bytes + spoiled[i].at, &spoiled[i].value, (size_t)spoiled[i].bytes);
        f->made = 1;
        put(f, "a.idx", x.bytes, sizeof x.bytes);
        char text[512];
        snprintf(text, sizeof text, "data.train: %%s/a.idx: %s", spoiled[i].text);
        refused(f, text);
    }
    struct idx x;
    make_idx(&x, 8, 2);
    f->made = 0;
    put(f, "a.bin", tokens, 22);
    put(f, "a.idx", x.bytes, sizeof x.bytes);
    struct err err;
    struct data *d;
    assert_int_equal(data_open(&d, &f->plan, DATA_TRAIN, &err), -1);
    assert_non_null(strstr(err.text, "offset 42: sequence 2 ends at byte 24 of "));
    f->made = 0;
    unsigned char longer[26] = {0};
    put(f, "a.bin", longer, sizeof longer);
    put(f, "a.idx", x.bytes, sizeof x.bytes);
    assert_int_equal(data_open(&d, &f->plan, DATA_TRAIN, &err), -1);
    assert_non_null(strstr(err.text, "describes 24 bytes, but "));
    f->made = 0;
    put(f, "a.bin", tokens, sizeof tokens);
    put(f, "a.idx", x.bytes, 20);
    refused(f, "data.train: %s/a.idx: has 20 bytes, but the header of an index alone has 34: "
               "truncated");
}

/* Each byte of an index changed, to each of a few values: either it is refused with a reason, or
 * all windows can be read. */
static void test_megatron_spoiled(void **state)
{
    struct fixture *f = *state;
    f->plan.data.format = PLAN_DATA_MEGATRON;
    f->plan.model.vocab = 60000;
    unsigned char tokens[24] = {0};
    put(f, "a.bin", tokens, sizeof tokens);
    static const unsigned char values[] = {0, 1, 2, 0x40, 0x7f, 0x80, 0xff};
    struct idx x;
    for (size_t at = 0; at < sizeof x.bytes; at++) {
        for (size_t v = 0; v < sizeof values; v++) {
            make_idx(&x, 8, 2);
            x.bytes[at] = values[v];
            f->made = 1;
            put(f, "a.idx", x.bytes, sizeof x.bytes);
            struct err err = {{0}};
            struct data *d;
            if (data_open(&d, &f->plan, DATA_TRAIN, &err)) {
                assert_true(strlen(err.text) > 20);
                continue;
            }
            for (int64_t i = 0; i < data_windows(d); i++) {
                int32_t t[5];
                data_sample(d, i, t);
                assert_int_equal(t[0] + t[4], 0);
            }
            data_close(d);
        }
    }
}

static void test_files_refused(void **state)
{
    struct fixture *f = *state;
    refused(f, "data.train: %s/a: No such file or directory");
    use(f, 0, "");
    refused(f, "data.train: %s/: is a folder: name its files, [FILE, FILE, ...]");
    use(f, 0, "a");
    fill_text(f, "a", 0, 0);
    refused(f, "data.train: %s/a: is empty");
    f->made = 0;
    fill_text(f, "a", 4, 0);
    refused(f, "data.train: %s/a: has 4 tokens for training, but one sample needs "
               "training.sequence + 1 = 5: use a longer file or a shorter sequence");
    f->made = 0;
    fill_text(f, "a", 5, 0);
    refused(f, "data.train: the file holds 1 samples of 4 tokens for training, but one batch takes "
               "training.global_batch = 2: use more text, a smaller batch or a shorter sequence");
    f->plan.model.vocab = 255;
    refused(f, "model.vocab is 255, but data.format is text, whose tokens are bytes: use 256 or "
               "more");
}

/* With a plan that was read from a file, an error begins with the line the file stands on. */
static void test_error_names_plan_line(void **state)
{
    struct fixture *f = *state;
    fill_text(f, "a", 30, 0);
    static const char text[] = "model: {layers: 1, hidden: 8, ffn: 8, heads: 2, vocab: 256}\n"
                               "training: {steps: 1, global_batch: 8, microbatch: 1, sequence: 4}\n"
                               "data:\n"
                               "  train: [a, missing]\n";
    struct err err = {{0}};
    struct plan *plan = plan_parse(text, sizeof text - 1, "small.yaml", NULL, 0, f->dir, &err);
    if (!plan)
        fail_msg("plan_parse: %s", err.text);
    struct data *d;
    assert_int_equal(data_open(&d, plan, DATA_TRAIN, &err), -1);
    char expected[512];
    snprintf(expected, sizeof expected,
             "small.yaml:4:3: data.train: %s/missing: No such file or directory", f->dir);
    assert_string_equal(err.text, expected);
    plan->data.n_files = 1;
    assert_int_equal(data_open(&d, plan, DATA_TRAIN, &err), -1);
    assert_string_equal(err.text, "small.yaml:4:3: data.train: the file holds 7 samples of 4 "
                                  "tokens for training, but one batch takes training.global_batch "
                                  "= 8: use more text, a smaller batch or a shorter sequence");
    plan->data.n_files = 2;
    plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text_windows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_permutation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_permutation_uniform, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_val_fraction, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bin, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bin_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_megatron, setup, teardown),
        cmocka_unit_test_setup_teardown(test_megatron_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_megatron_spoiled, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_error_names_plan_line, setup, teardown),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
