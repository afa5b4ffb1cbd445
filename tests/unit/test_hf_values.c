/* test_hf_values.c - the number formats of published weights, by hand and all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "hf/values.h"

static void narrow_one(enum hf_dtype dtype, double value, unsigned want)
{
    uint16_t got = 0;
    assert_int_equal(hf_narrow(dtype, &value, 1, &got), 1);
    if (got != want)
        fail_msg("%a as %s is %04x, not %04x", value, hf_dtype_name(dtype), got, want);
}

/* IEEE 754 by hand: ties go to the even neighbour, the smallest half is 2^-24. */
static void numbers_by_hand(void **state)
{
    (void)state;
    static const struct {
        double value;
        unsigned want;
    } halves[] = {{1, 0x3c00},           {-2, 0xc000},         {65504, 0x7bff},
                  {0x1p-14, 0x0400},     {0x1p-24, 0x0001},    {0x1p-25, 0x0000},
                  {0x1.8p-24, 0x0002},   {0x1.8p-25, 0x0001},  {0x1.002p0, 0x3c00},
                  {0x1.006p0, 0x3c02},   {0x1.0021p0, 0x3c01}, {0x1.ff8p-15, 0x03ff},
                  {0x1.ffcp-15, 0x0400}, {-0.0, 0x8000},       {65519.99, 0x7bff}};
    static const struct {
        double value;
        unsigned want;
    } bfloats[] = {{1, 0x3f80},
                   {-2, 0xc000},
                   {0x1.01p0, 0x3f80},
                   {0x1.03p0, 0x3f82},
                   {0x1.0101p0, 0x3f81},
                   {0x1p-133, 0x0001},
                   {0x1.fep127, 0x7f7f},
                   {INFINITY, 0x7f80},
                   {1 + 0x1p-8 + 0x1p-40, 0x3f81},
                   {-1 - 0x3p-8 + 0x1p-40, 0xbf81},
                   {0x1p-134 + 0x1p-180, 0x0001},
                   {-0x1p-1000, 0x8000}};
    uint16_t got;
    float f;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        narrow_one(HF_F16, halves[i].value, halves[i].want);
    for (size_t i = 0; i < sizeof bfloats / sizeof *bfloats; i++)
        narrow_one(HF_BF16, bfloats[i].value, bfloats[i].want);
    assert_int_equal(hf_narrow(HF_F16, (double[]){1, 65520}, 2, (uint16_t[2]){0}), 1);
    assert_int_equal(hf_narrow(HF_BF16, (double[]){0x1.ffp127}, 1, &got), 0);
    assert_int_equal(hf_narrow(HF_F32, (double[]){1e39}, 1, &f), 0);
}

/* Every half and bfloat there is, there and back. */
static void all_halves_come_back(void **state)
{
    (void)state;
    for (int dtype = HF_BF16; dtype <= HF_F16; dtype++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            uint16_t is = (uint16_t)bits, again;
            float wide;
            hf_widen((enum hf_dtype)dtype, &is, 1, &wide);
            double value = wide;
            assert_int_equal(hf_narrow((enum hf_dtype)dtype, &value, 1, &again), 1);
            if (isnan(wide))
                assert_true((again & 0x7fff) > (dtype == HF_BF16 ? 0x7f80 : 0x7c00));
            else
                assert_int_equal(again, is);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_by_hand),
        cmocka_unit_test(all_halves_come_back),
    };
    return cmocka_run_group_tests_name("hf values", tests, NULL, NULL);
}
