/* test_kernels_philox.c - Philox against the published known answers of Random123 1.14
 * (kat_vectors, philox4x32 10), and the normal numbers made from it. */
#include "test_kernels_help.h"

static void test_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint32_t got[4];
        philox4x32_10(cases[i].counter, cases[i].key, got);
        for (int w = 0; w < 4; w++)
            assert_int_equal(got[w], cases[i].want[w]);
    }
}

static void fill(struct rig *r, struct kbuf out, int64_t rows, int64_t cols, int64_t row0,
                 int64_t col0, int64_t global_cols)
{
    KSUBMIT(r->k, r->stream, FILL_NORMAL, fill_normal, .out = out, .seed = 42,
            .tensor = 1ull << 40 | 5, .std = 0.02, .rows = rows, .cols = cols, .row0 = row0,
            .col0 = col0, .global_cols = global_cols);
}

/* Any rank's slice holds what the whole would hold there: even and odd first columns, an odd width
 * (pairs go across rows), each dtype. */
static void test_slices(void **state)
{
    enum { ROWS = 13, COLS = 1031, SLICE_ROWS = 5, SLICE_COLS = 700 };
    static const int64_t at[][2] = {{0, 0}, {3, 1}, {8, 331}, {7, 16}};
    (void)state;
    for (int dtype = K_F64; dtype <= K_F32; dtype++) {
        struct rig r = rig_open(2, (enum kdtype)dtype);
        struct kbuf whole = make(&r, r.dtype, ROWS * COLS);
        struct kbuf part = make(&r, r.dtype, SLICE_ROWS * SLICE_COLS);
        double *w = doubles(ROWS * COLS), *p = doubles(SLICE_ROWS * SLICE_COLS);
        fill(&r, whole, ROWS, COLS, 0, 0, COLS);
        get(&r, whole, w);
        for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
            fill(&r, part, SLICE_ROWS, SLICE_COLS, at[i][0], at[i][1], COLS);
            get(&r, part, p);
            for (int64_t row = 0; row < SLICE_ROWS; row++)
                assert_memory_equal(p + row * SLICE_COLS, w + (at[i][0] + row) * COLS + at[i][1],
                                    SLICE_COLS * sizeof(double));
        }
        free(w), free(p);
        rig_close(&r);
    }
}

/* 2^18 numbers: the mean is within 5 of its own deviations (1/512), as is the variance (sqrt 2 /
 * 512); the fourth moment of a normal number is 3 (its own deviation is sqrt 96 / 512). The numbers
 * are fixed by the seed, so this passes always or never. */
static void test_moments(void **state)
{
    enum { N = 1 << 18 };
    (void)state;
    struct rig r = rig_open(2, K_F64);
    struct kbuf buf = make(&r, K_F64, N);
    double *x = doubles(N), mean = 0, second = 0, fourth = 0;
    fill(&r, buf, 1, N, 0, 0, N);
    get(&r, buf, x);
    for (int i = 0; i < N; i++) {
        double z = x[i] / 0.02;
        mean += z / N;
        second += z * z / N;
        fourth += z * z * z * z / N;
    }
    if (fabs(mean) > 5.0 / 512 || fabs(second - 1) > 5 * sqrt(2) / 512 ||
        fabs(fourth - 3) > 5 * sqrt(96) / 512)
        fail_msg("moments are %g, %g, %g, should be about 0, 1, 3", mean, second, fourth);
    free(x);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
