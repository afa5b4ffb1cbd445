/* test_memory_hostile.c - slots that say what is not so: they count for nothing, and do no harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "crc.h"
#include "memory_rig.h"

struct raw_head {
    char magic[8];
    uint32_t whole, text_bytes, crc;
    char text[CKPT_MEMORY_HEAD_BYTES - 20];
};

static struct raw_head get_head(const struct rig *r)
{
    struct raw_head h;
    assert_int_equal(pread(r->fds[0], &h, sizeof h, 0), sizeof h);
    return h;
}

static void put_head(const struct rig *r, const struct raw_head *h)
{
    assert_int_equal(pwrite(r->fds[0], h, sizeof *h, 0), sizeof *h);
}

static void put_text(const struct rig *r, struct raw_head *h, const char *text, uint32_t bytes)
{
    memset(h->text, 0, sizeof h->text);
    memcpy(h->text, text, strlen(text));
    h->text_bytes = bytes;
    h->crc = crc32c(crc32c(0, &h->text_bytes, 4), h->text,
                    bytes <= sizeof h->text ? bytes : sizeof h->text);
    put_head(r, h);
}

/* Any bit of what a slot says of itself. */
static void flipped_heads(void **state)
{
    (void)state;
    static struct rig r;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    struct raw_head good = get_head(&r), bad;
    for (size_t bit = 0; bit < (20 + good.text_bytes) * 8; bit++) {
        bad = good;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        put_head(&r, &bad);
        rig_reopen(&r, 0, 2);
        if (rig_lines(&r) != 0)
            fail_msg("bit %zu of byte %zu", bit % 8, bit / 8);
    }
    put_head(&r, &good);
    rig_reopen(&r, 0, 2);
    assert_true(rig_has(&r, 1, 5));
    rig_end(&r);
}

/* With the right checksum: what it says is nonsense all the same. */
static void lying_heads(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to; /* in the claim */
    } lies[] = {
        {"bytes=", "bytes=9"},
        {"bytes=", "bytes=-"},
        {"run=run", "run=../x"},
        {"epoch=3", "epoch=4"},
        {"rank=0", "rank=2"},
        {"world=2", "world=0"},
        {"world=2", "world=99999999999999999999"},
        {"node=n0", "node=.."},
        {"claim", "commit"},
        {"step=5", "step=-5"},
        {"digest=", "digest=zz"},
        {"v=1", "v=2"},
        {"rank=0 ", "rank=0 rank=0 "},
    };
    static struct rig r;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    struct raw_head good = get_head(&r), bad = good;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char text[2048], was[2048];
        memcpy(was, good.text, good.text_bytes);
        was[good.text_bytes] = 0;
        char *at = strstr(was, lies[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - was), was, lies[i].to,
                 at + strlen(lies[i].from));
        put_text(&r, &bad, text, (uint32_t)strlen(text));
        rig_reopen(&r, 0, 2);
        if (rig_lines(&r) != 0)
            fail_msg("%s is taken", text);
    }
    /* lengths of the text */
    static const uint32_t lengths[] = {0, 1, 4076, 4077, 4096, UINT32_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put_text(&r, &bad, "claim v=1", lengths[i]);
        rig_reopen(&r, 0, 2);
        assert_int_equal(rig_lines(&r), 0);
    }
    /* a slot that has lost its end */
    put_head(&r, &good);
    assert_int_equal(ftruncate(r.fds[0], 8192), 0);
    ckpt_memory_close(r.m);
    r.m = NULL;
    rig_reopen(&r, 0, 2);
    assert_int_equal(rig_lines(&r), 0);
    rig_end(&r);
}

/* Random bytes, with a checksum that is right. */
static void random_heads(void **state)
{
    (void)state;
    static struct rig r;
    uint64_t random = 12345;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    struct raw_head good = get_head(&r), bad;
    for (int i = 0; i < 3000; i++) {
        bad = good;
        for (int k = 0; k < 1 + i % 5; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bad.text[(random >> 33) % good.text_bytes] = (char)(random >> 20);
        }
        bad.crc = crc32c(crc32c(0, &bad.text_bytes, 4), bad.text, bad.text_bytes);
        put_head(&r, &bad);
        rig_reopen(&r, 0, 2);
        struct err err;
        char *text = ckpt_memory_scan(r.m, &err);
        assert_non_null(text);
        struct ckpt_decision d;
        const char *scans[] = {text, ""};
        if (!ckpt_memory_decide(scans, WORLD, &d, &err))
            ckpt_decision_free(&d);
        ckpt_memory_verify(r.m); /* a length or digest that is not the image's */
        free(text);
    }
    rig_end(&r);
}

static void damaged_images(void **state)
{
    (void)state;
    static struct rig r;
    rig_begin(&r, 0);
    rig_take(&r, 1, 5);
    int64_t bytes = ckpt_memory_bytes(r.m);
    const int64_t where[] = {0, 9, 500, 4096, 9000, bytes / 2, bytes - 1};
    ckpt_memory_verify(r.m);
    assert_int_equal(rig_lines(&r), 1);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        unsigned char byte;
        off_t at = CKPT_MEMORY_HEAD_BYTES + where[i];
        assert_int_equal(pread(r.fds[0], &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(r.fds[0], &byte, 1, at), 1);
        ckpt_memory_verify(r.m);
        assert_int_equal(rig_lines(&r), 0);
        rig_take(&r, 1, 6 + (int64_t)i); /* whole again */
        assert_int_equal(rig_lines(&r), 1);
    }
    rig_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_heads),
        cmocka_unit_test(lying_heads),
        cmocka_unit_test(random_heads),
        cmocka_unit_test(damaged_images),
    };
    return cmocka_run_group_tests_name("memory hostile", tests, NULL, NULL);
}
