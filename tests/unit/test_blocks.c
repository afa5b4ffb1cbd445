/* test_blocks.c - what is copied with its checksum in one pass is what copying, then summing gives:
 * wherever the bytes stand, and however the tensors are cut by the checksums' blocks. Built twice:
 * with the stores past the caches, and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "crc.h"
#include "blocks.h"

enum { ROOM = 40000, GUARD = 64, MARK = 0xa5 };

static void fill(unsigned char *p, size_t n, uint64_t random)
{
    for (size_t i = 0; i < n; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        p[i] = (unsigned char)(random >> 56);
    }
}

static void copy_one(unsigned char *to, const unsigned char *from, size_t n)
{
    memset(to - GUARD, MARK, n + 2 * GUARD);
    uint32_t begun = 0x12345678;
    if (crc32c_copy(begun, to, from, n) != crc32c(begun, from, n) || memcmp(to, from, n))
        fail_msg("%zu bytes from %zu to %zu, modulo a line", n, (size_t)((uintptr_t)from % 64),
                 (size_t)((uintptr_t)to % 64));
    for (int i = 1; i <= GUARD; i++)
        assert_true(to[-i] == MARK && to[n + (size_t)i - 1] == MARK);
}

static void copies(void **state)
{
    static const size_t sizes[] = {0,    1,    15,   16,   63,    64,    65,    127,
                                   128,  1000, 4096, 8191, 8192,  8193,  8255,  8256,
                                   8257, 9999, 8320, 8300, 16384, 16385, 24576, 39000};
    (void)state;
    unsigned char *from = malloc(ROOM + GUARD), *to = malloc(ROOM + 4 * GUARD);
    assert_true(from && to);
    fill(from, ROOM + GUARD, 7);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t shift = 0; shift < GUARD; shift += shift < 4 ? 1 : 7) {
            copy_one(to + GUARD + shift, from, sizes[s]);
            copy_one(to + GUARD, from + shift, sizes[s]);
            copy_one(to + GUARD + shift, from + (shift * 5) % GUARD, sizes[s]);
        }
    free(from);
    free(to);
}

/* ---- whole images ---- */

enum { TENSORS_MAX = 12, MIB = 1 << 20, HALF = MIB / 2 };

/* Tensors of two bytes an element; the list ends with a number below 0. */
static void make(const int64_t *counts)
{
    struct ckpt_tensor tensors[TENSORS_MAX] = {{.name = NULL}};
    char names[TENSORS_MAX][8];
    struct layout l;
    struct err err;
    int n = 0;
    const void *from[TENSORS_MAX] = {NULL};
    unsigned char *bytes[TENSORS_MAX] = {NULL};
    for (; counts[n] >= 0; n++) {
        snprintf(names[n], sizeof names[n], "t%d", n);
        tensors[n] = (struct ckpt_tensor){.name = names[n],
                                          .dtype = CKPT_BF16,
                                          .dims = 1,
                                          .global = {counts[n]},
                                          .shape = {counts[n]}};
        bytes[n] = malloc((size_t)counts[n] * 2 + GUARD);
        assert_non_null(bytes[n]);
        from[n] = bytes[n] + n; /* nothing is aligned */
        fill(bytes[n] + n, (size_t)counts[n] * 2, (uint64_t)n);
    }
    if (layout_make(&l, tensors, n, &err))
        fail_msg("%s", err.text);
    unsigned char *made = calloc(1, (size_t)l.data_bytes + 1);
    unsigned char *want = calloc(1, (size_t)l.data_bytes + 1);
    assert_true(made && want);
    for (int i = 0; i < n; i++)
        memcpy(want + l.tensors[i].begin, from[i], (size_t)counts[i] * 2);
    for (int64_t block = crc_blocks(l.data_bytes) - 1; block >= 0; block--) { /* in any order */
        int64_t at = block * MIB, left = l.data_bytes - at;
        assert_int_equal(blocks_make(&l, from, block, made),
                         crc32c(0, want + at, (size_t)(left < MIB ? left : MIB)));
    }
    assert_memory_equal(made, want, (size_t)l.data_bytes);
    for (int i = 0; i < n; i++)
        free(bytes[i]);
    free(made);
    free(want);
    layout_free(&l);
}

static void images(void **state)
{
    static const int64_t table[][TENSORS_MAX] = {
        {1, -1},
        {0, 0, 5, 0, -1},
        {HALF, -1},
        {HALF - 1, HALF + 1, 3, -1},
        {2048, HALF - 2048, 2 * HALF, -1},
        {HALF - 2049, 2048, 5000, 100, 3 * HALF + 17, 0, 64, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1},
        {5 * HALF + 4000, 0, 2, HALF, -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        make(table[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies),
        cmocka_unit_test(images),
    };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
