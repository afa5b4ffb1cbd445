/* test_memory.c - states in memory slots: what is whole, what is refused, what is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "crc.h"
#include "memory.h"

enum { WORDS = 300000, WORLD = 2, WAIT_MS = 60000 };

/* A rank, its state, and memory that outlives it. */
struct rig {
    int fds[CKPT_MEMORY_SLOTS];
    float state[WORDS];
    struct ckpt_memory *m;
};

static void check(int rv, const struct err *err)
{
    if (rv)
        fail_msg("%s", err->text);
}

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct rig *r = arg;
    (void)err;
    memcpy(host, r->state + (index ? 1000 : 0), index ? (WORDS - 1000) * 4 : 1000 * 4);
    return 0;
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    struct rig *r = arg;
    (void)err;
    memcpy((char *)(r->state + (index ? 1000 : 0)) + at, host, (size_t)bytes);
    return 0;
}

/* Of an odd size each, so that there are gaps between them. */
static const struct ckpt_tensor tensors[] = {
    {.name = "small", .dtype = CKPT_F32, .dims = 1, .global = {1000}, .shape = {1000}},
    {.name = "large",
     .dtype = CKPT_F32,
     .dims = 1,
     .global = {WORDS - 1000},
     .shape = {WORDS - 1000}},
};

static void fill_state(struct rig *r, int64_t step)
{
    for (int i = 0; i < WORDS; i++)
        r->state[i] = (float)(i % 997) + (float)step / 1000;
}

static void reopen(struct rig *r, int rank, uint32_t generation)
{
    struct err err;
    struct ckpt_memory_options o = {.fds = r->fds,
                                    .node = "n0",
                                    .run_id = "run",
                                    .rank = rank,
                                    .world = WORLD,
                                    .epoch = 3,
                                    .generation = generation,
                                    .plan_hash = 77};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = r};
    ckpt_memory_close(r->m);
    check(ckpt_memory_open(&r->m, &o, tensors, 2, &io, &err), &err);
}

static void begin(struct rig *r, int rank)
{
    struct err err;
    memset(r, 0, sizeof *r);
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        r->fds[i] = memfd_create("test", MFD_CLOEXEC);
    reopen(r, rank, 1);
    int64_t bytes = ckpt_memory_bytes(r->m);
    assert_int_equal(ckpt_memory_lacks(r->m, bytes), 4 * (bytes + CKPT_MEMORY_HEAD_BYTES));
    check(ckpt_memory_take(r->m, bytes, &err), &err);
    assert_int_equal(ckpt_memory_lacks(r->m, bytes), 0);
}

static void end(struct rig *r)
{
    ckpt_memory_close(r->m);
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        close(r->fds[i]);
}

static int try_take(struct rig *r, uint32_t generation, int64_t step, const char *note,
                    struct err *err)
{
    struct ckpt_key key = {3, generation, step};
    fill_state(r, step);
    if (ckpt_memory_begin(r->m, &key, step * 8, err))
        return -1;
    for (int i = 0; i < ckpt_memory_count(r->m); i++)
        check(ckpt_memory_copy(r->m, i, err), err);
    return ckpt_memory_flush(r->m, err) || ckpt_memory_seal(r->m, note, err) ? -1 : 0;
}

static void take(struct rig *r, uint32_t generation, int64_t step)
{
    struct err err;
    check(try_take(r, generation, step, "", &err), &err);
}

static void confirm(struct rig *r, uint32_t generation, int64_t step, int ward)
{
    struct ckpt_key key = {3, generation, step};
    ckpt_memory_confirm(r->m, &key, ward);
}

static int lines(const struct rig *r)
{
    struct err err;
    int n = 0;
    char *text = ckpt_memory_scan(r->m, &err);
    assert_non_null(text);
    for (char *c = text; *c; c++)
        n += *c == '\n';
    free(text);
    return n;
}

/* Is the state of that step there whole, with the right bytes? */
static bool has(struct rig *r, uint32_t generation, int64_t step)
{
    struct err err;
    struct ckpt_key key = {3, generation, step};
    struct ckpt_file *file;
    struct ckpt_memory_head head;
    if (!ckpt_memory_find(r->m, &key))
        return false;
    const void *image = ckpt_memory_image(r->m, &head);
    check(ckpt_file_open_memory(&file, image, (size_t)head.bytes, &err), &err);
    check(ckpt_file_verify(file, &err), &err);
    float *large = malloc((WORDS - 1000) * sizeof *large);
    check(ckpt_file_read(file, 1, large, &err), &err);
    fill_state(r, step);
    assert_memory_equal(large, r->state + 1000, (WORDS - 1000) * sizeof *large);
    free(large);
    ckpt_file_close(file);
    return true;
}

/* ---- the rank's own ---- */

static char *read_file(const char *path, size_t bytes)
{
    char *data = malloc(bytes + 1);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(data, 1, bytes + 1, f), bytes);
    fclose(f);
    return data;
}

static void image_is_the_file(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    struct ckpt *c;
    struct ckpt_place place;
    struct ckpt_memory_head head;
    char dir[] = "/tmp/gtrain-memory-XXXXXX", command[64];
    begin(&r, 1);
    take(&r, 1, 5);
    assert_non_null(mkdtemp(dir));
    struct ckpt_options o = {.dir = dir,
                             .node = "n0",
                             .run_id = "run",
                             .rank = 1,
                             .world = WORLD,
                             .epoch = 3,
                             .generation = 1,
                             .plan_hash = 77,
                             .keep = 2,
                             .leader = true};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = &r};
    check(ckpt_open(&c, &o, tensors, 2, &io, &err), &err);
    check(ckpt_save(c, &(struct ckpt_position){5, 40}, NULL, &err), &err);
    check(ckpt_wait(c, clock_ms() + WAIT_MS, &err), &err);
    check(ckpt_own_file(c, 5, &place, &err), &err);
    const void *image = ckpt_memory_image(r.m, &head);
    assert_int_equal(head.bytes, place.bytes);
    assert_int_equal(head.digest, place.digest);
    char *data = read_file(place.path, (size_t)place.bytes);
    assert_memory_equal(data, image, (size_t)place.bytes);
    free(data);
    free(place.node);
    free(place.path);
    ckpt_close(c, clock_ms() + WAIT_MS);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    end(&r);
}

/* Killed between any two calls: what was whole before is so still, what was being filled is not. */
static void killed_while_filling(void **state)
{
    (void)state;
    for (int calls = 0; calls <= 3; calls++) {
        static struct rig r;
        struct err err;
        struct ckpt_key key = {3, 1, 7};
        begin(&r, 0);
        take(&r, 1, 5);
        confirm(&r, 1, 5, -1);
        take(&r, 1, 6);
        confirm(&r, 1, 6, -1);
        check(ckpt_memory_begin(r.m, &key, 56, &err), &err);
        for (int i = 0; i < calls && i < 2; i++)
            check(ckpt_memory_copy(r.m, i, &err), &err);
        if (calls == 3)
            check(ckpt_memory_seal(r.m, "", &err), &err);
        reopen(&r, 0, 2);
        assert_int_equal(lines(&r), calls == 3 ? 2 : 1);
        assert_true(has(&r, 1, 6));
        assert_false(ckpt_memory_find(r.m, &(struct ckpt_key){3, 1, 5}));
        end(&r);
    }
}

static void what_is_needed_stays(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    begin(&r, 0);
    take(&r, 1, 5);
    take(&r, 1, 6);
    assert_int_equal(try_take(&r, 1, 7, "", &err), -1); /* nothing is confirmed */
    assert_string_equal(err.text, "no slot is free for a snapshot of step 7");
    assert_true(has(&r, 1, 5) && has(&r, 1, 6));
    confirm(&r, 1, 6, -1);
    take(&r, 1, 7);
    assert_true(has(&r, 1, 6) && has(&r, 1, 7));
    /* the next generation was restored from 6 */
    reopen(&r, 0, 2);
    ckpt_memory_keep(r.m, &(struct ckpt_key){3, 1, 6});
    take(&r, 2, 7);
    assert_true(has(&r, 1, 6) && has(&r, 2, 7));
    end(&r);
}

/* Another run's, another launch's, another plan's; and none of them is touched by looking. */
static void strangers(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    struct ckpt_memory_options o = {.fds = r.fds,
                                    .node = "n0",
                                    .run_id = "run",
                                    .world = WORLD,
                                    .epoch = 4,
                                    .generation = 2,
                                    .plan_hash = 77};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = &r};
    begin(&r, 0);
    take(&r, 1, 5);
    ckpt_memory_close(r.m);
    check(ckpt_memory_open(&r.m, &o, tensors, 2, &io, &err), &err);
    assert_int_equal(lines(&r), 0); /* memory does not outlive a launch */
    ckpt_memory_close(r.m);
    o.epoch = 3;
    o.run_id = "other";
    check(ckpt_memory_open(&r.m, &o, tensors, 2, &io, &err), &err);
    assert_int_equal(lines(&r), 0);
    reopen(&r, 1, 2); /* as another rank: it is there, but not as the own */
    assert_int_equal(lines(&r), 1);
    assert_false(ckpt_memory_find(r.m, &(struct ckpt_key){3, 1, 5}));
    reopen(&r, 0, 2);
    assert_true(has(&r, 1, 5));
    end(&r);
}

static void forgotten(void **state)
{
    (void)state;
    static struct rig r;
    begin(&r, 0);
    take(&r, 1, 5);
    take(&r, 1, 6);
    ckpt_memory_forget(r.m);
    reopen(&r, 0, 2);
    assert_int_equal(lines(&r), 0);
    end(&r);
}

/* ---- hostile memory ---- */

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
    begin(&r, 0);
    take(&r, 1, 5);
    struct raw_head good = get_head(&r), bad;
    for (size_t bit = 0; bit < (20 + good.text_bytes) * 8; bit++) {
        bad = good;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        put_head(&r, &bad);
        reopen(&r, 0, 2);
        if (lines(&r) != 0)
            fail_msg("bit %zu of byte %zu", bit % 8, bit / 8);
    }
    put_head(&r, &good);
    reopen(&r, 0, 2);
    assert_true(has(&r, 1, 5));
    end(&r);
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
    begin(&r, 0);
    take(&r, 1, 5);
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
        reopen(&r, 0, 2);
        if (lines(&r) != 0)
            fail_msg("%s is taken", text);
    }
    /* lengths of the text */
    static const uint32_t lengths[] = {0, 1, 4076, 4077, 4096, UINT32_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put_text(&r, &bad, "claim v=1", lengths[i]);
        reopen(&r, 0, 2);
        assert_int_equal(lines(&r), 0);
    }
    /* a slot that has lost its end */
    put_head(&r, &good);
    assert_int_equal(ftruncate(r.fds[0], 8192), 0);
    ckpt_memory_close(r.m);
    r.m = NULL;
    reopen(&r, 0, 2);
    assert_int_equal(lines(&r), 0);
    end(&r);
}

/* Random bytes, with a checksum that is right. */
static void random_heads(void **state)
{
    (void)state;
    static struct rig r;
    uint64_t random = 12345;
    begin(&r, 0);
    take(&r, 1, 5);
    struct raw_head good = get_head(&r), bad;
    for (int i = 0; i < 3000; i++) {
        bad = good;
        for (int k = 0; k < 1 + i % 5; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bad.text[(random >> 33) % good.text_bytes] = (char)(random >> 20);
        }
        bad.crc = crc32c(crc32c(0, &bad.text_bytes, 4), bad.text, bad.text_bytes);
        put_head(&r, &bad);
        reopen(&r, 0, 2);
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
    end(&r);
}

static void damaged_images(void **state)
{
    (void)state;
    static struct rig r;
    begin(&r, 0);
    take(&r, 1, 5);
    int64_t bytes = ckpt_memory_bytes(r.m);
    const int64_t where[] = {0, 9, 500, 4096, 9000, bytes / 2, bytes - 1};
    ckpt_memory_verify(r.m);
    assert_int_equal(lines(&r), 1);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        unsigned char byte;
        off_t at = CKPT_MEMORY_HEAD_BYTES + where[i];
        assert_int_equal(pread(r.fds[0], &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(r.fds[0], &byte, 1, at), 1);
        ckpt_memory_verify(r.m);
        assert_int_equal(lines(&r), 0);
        take(&r, 1, 6 + (int64_t)i); /* whole again */
        assert_int_equal(lines(&r), 1);
    }
    end(&r);
}

/* ---- the ward's ---- */

static int send_as(struct rig *from, struct rig *to, const struct ckpt_memory_head *head,
                   const struct ckpt_key *key, int64_t flip, int64_t cut, struct err *err)
{
    struct ckpt_memory_head unused;
    const char *image = ckpt_memory_image(from->m, &unused);
    int64_t bytes = unused.bytes - cut;
    int rv = ckpt_memory_ward_begin(to->m, head, 1, key, err);
    for (int64_t at = 0; !rv && at < bytes; at += 100000) {
        int64_t n = bytes - at < 100000 ? bytes - at : 100000;
        char *piece = ckpt_memory_ward_next(to->m, n, err);
        if (!piece) {
            rv = -1;
            break;
        }
        memcpy(piece, image + at, (size_t)n);
        if (flip >= at && flip < at + n)
            piece[flip - at] ^= 1;
    }
    return rv ? rv : ckpt_memory_ward_end(to->m, err);
}

static void copies(void **state)
{
    (void)state;
    static struct rig a, b; /* a is rank 1, b keeps its copies */
    struct err err;
    struct ckpt_memory_head head;
    struct ckpt_key key = {3, 1, 5};
    begin(&a, 1);
    begin(&b, 0);
    check(try_take(&a, 1, 5, "5:ab,c-d", &err), &err);
    ckpt_memory_image(a.m, &head);
    check(send_as(&a, &b, &head, &key, -1, 0, &err), &err);
    assert_true(ckpt_memory_find_ward(b.m, &key, 1));
    reopen(&b, 0, 2); /* as somebody else finds it */
    assert_true(ckpt_memory_find_ward(b.m, &key, 1));
    assert_false(ckpt_memory_find_ward(b.m, &key, 0));
    char *text = ckpt_memory_scan(b.m, &err);
    assert_non_null(strstr(text, " rank=1 node=n0 "));
    assert_non_null(strstr(text, " note=5:ab,c-d\n"));
    free(text);
    end(&a);
    end(&b);
}

static void wrong_copies_are_refused(void **state)
{
    (void)state;
    static struct rig a, b;
    struct err err;
    struct ckpt_memory_head good, h;
    struct ckpt_key key = {3, 1, 5};
    begin(&a, 1);
    begin(&b, 0);
    take(&a, 1, 5);
    ckpt_memory_image(a.m, &good);
#define REFUSED(change)                                                                            \
    h = good;                                                                                      \
    change;                                                                                        \
    assert_int_equal(send_as(&a, &b, &h, &key, -1, 0, &err), -1);                                  \
    assert_int_equal(lines(&b), 0)
    REFUSED(h.rank = 0);
    REFUSED(h.world = 3);
    REFUSED(h.epoch = 2);
    REFUSED(h.generation = 2);
    REFUSED(h.step = 4);
    REFUSED(h.samples = -1);
    REFUSED(h.samples = 41); /* not what the image says */
    REFUSED(h.plan_hash = 78);
    REFUSED(h.digest ^= 1);
    REFUSED(h.bytes = 0);
    REFUSED(h.bytes = -1);
    REFUSED(h.bytes = INT64_MAX);
    REFUSED(h.bytes = good.bytes - 1);
    REFUSED(h.bytes = good.bytes + 1);
    REFUSED(memset(h.note, 'a', sizeof h.note));
    REFUSED(strcpy(h.note, "a b"));
    REFUSED(strcpy(h.note, "a\nb"));
    const int64_t flips[] = {0, 8, 300, 5000, good.bytes / 2, good.bytes - 1};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        assert_int_equal(send_as(&a, &b, &good, &key, flips[i], 0, &err), -1);
        assert_int_equal(lines(&b), 0);
    }
    assert_int_equal(send_as(&a, &b, &good, &key, -1, 4096, &err), -1);
    assert_int_equal(lines(&b), 0);
    check(send_as(&a, &b, &good, &key, -1, 0, &err), &err);
    assert_int_equal(lines(&b), 1);
    end(&a);
    end(&b);
}

/* A rank that keeps copies for another one now: both copies of the restored state are needed until
 * all have confirmed it, then the old one goes. */
static void another_ward(void **state)
{
    (void)state;
    static struct rig a, b;
    struct err err;
    struct ckpt_memory_head head;
    struct ckpt_key old = {3, 1, 5}, next = {3, 2, 6};
    begin(&a, 1);
    begin(&b, 0);
    take(&a, 1, 5);
    ckpt_memory_image(a.m, &head);
    check(send_as(&a, &b, &head, &old, -1, 0, &err), &err);
    reopen(&b, 0, 2);
    ckpt_memory_keep(b.m, &old);
    /* the same state again, into the other slot: as if it came from another rank */
    check(send_as(&a, &b, &head, &old, -1, 0, &err), &err);
    assert_int_equal(lines(&b), 2);
    reopen(&a, 1, 2);
    take(&a, 2, 6);
    ckpt_memory_image(a.m, &head);
    assert_int_equal(send_as(&a, &b, &head, &next, -1, 0, &err), -1); /* both are needed */
    ckpt_memory_confirm(b.m, &old, 9);                                /* no ward of ours */
    assert_int_equal(lines(&b), 0);
    check(send_as(&a, &b, &head, &next, -1, 0, &err), &err);
    end(&a);
    end(&b);
}

/* ---- the decision ---- */

/* "HOLDER:SLOT RANK GENERATION STEP", separated by commas, as the scans of three ranks, of a world
 * of two, or of `world`, where ranks that are equal modulo `parts` are replicas. */
static void make_scans(const char *text, int world, int parts, char *scans[3])
{
    FILE *out[3];
    size_t bytes[3];
    char word[32] = "";
    if (parts)
        snprintf(word, sizeof word, " parts=%d", parts);
    for (int i = 0; i < 3; i++)
        out[i] = open_memstream(&scans[i], &bytes[i]);
    while (*text) {
        int holder, slot, rank, generation, step, used = 0;
        assert_int_equal(
            sscanf(text, "%d:%d %d %d %d%n", &holder, &slot, &rank, &generation, &step, &used), 5);
        fprintf(out[holder],
                "%d claim v=1 run=r epoch=3 generation=%d step=%d samples=%d "
                "plan=00000000000000ff world=%d rank=%d node=n%d "
                "path=r.e3.g%d.s%d.r%d.safetensors bytes=10 digest=0000000%d%s note=s%dg%d\n",
                slot, generation, step, step * 8, world, rank, holder, generation, step, rank, rank,
                word, step, generation);
        text += used;
        text += strspn(text, ", ");
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(fclose(out[i]), 0);
}

static void decisions(void **state)
{
    (void)state;
    static const struct {
        const char *slots, *places, *note; /* "HOLDER:SLOT ..." in rank order; "": nothing */
        int generation, step;
    } table[] = {
        {"", "", "", 0, 0},
        {"0:0 0 1 5, 1:0 1 1 5", "0:0 1:0", "s5g1", 1, 5},
        {"0:0 0 1 5, 1:0 1 1 5, 0:1 0 1 6", "0:0 1:0", "s5g1", 1, 5}, /* 6 is not whole */
        {"0:0 0 1 5, 1:0 1 1 5, 0:1 0 1 6, 1:1 1 1 6", "0:1 1:1", "s6g1", 1, 6},
        {"0:0 0 1 5, 0:2 1 1 5", "0:0 0:2", "s5g1", 1, 5},            /* the partner's */
        {"0:2 1 1 5, 1:2 0 1 5", "1:2 0:2", "s5g1", 1, 5},            /* both */
        {"2:0 0 1 5, 0:1 0 1 5, 1:0 1 1 5", "0:1 1:0", "s5g1", 1, 5}, /* own first */
        {"2:0 0 1 5, 1:1 0 1 5, 1:0 1 1 5", "1:1 1:0", "s5g1", 1, 5},
        /* a later generation outranks a higher step */
        {"0:0 0 1 9, 1:0 1 1 9, 0:1 0 2 7, 1:1 1 2 7", "0:1 1:1", "s7g2", 2, 7},
        {"0:0 0 1 9, 1:0 1 1 9, 0:1 0 2 7", "0:0 1:0", "s9g1", 1, 9},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        char *scans[3], places[64] = "";
        make_scans(table[i].slots, 2, 0, scans);
        check(ckpt_memory_decide((const char *const *)scans, 3, &d, &err), &err);
        assert_int_equal(d.found, *table[i].places != 0);
        for (int r = 0; r < d.world; r++)
            snprintf(places + strlen(places), sizeof places - strlen(places), "%s%d:%d",
                     r ? " " : "", d.places[r].holder - 1, d.places[r].slot);
        assert_string_equal(places, table[i].places);
        if (d.found) {
            assert_true(d.memory);
            assert_string_equal(d.note, table[i].note);
            assert_int_equal(d.written_generation, table[i].generation);
            assert_int_equal(d.position.step, table[i].step);
            assert_int_equal(d.position.samples, table[i].step * 8);
            assert_int_equal(d.places[1].digest, 1);
        }
        ckpt_decision_free(&d);
        for (int k = 0; k < 3; k++)
            free(scans[k]);
    }
}

/* Four ranks of a pipeline of two: 0 and 2 hold the same bytes, and 1 and 3. */
static void replicas_stand_in(void **state)
{
    (void)state;
    static const struct {
        const char *slots, *places;
        int parts;
    } table[] = {
        {"0:0 0 1 5, 1:0 1 1 5", "0:0 1:0 0:0 1:0", 2},
        {"0:0 2 1 5, 1:0 1 1 5", "0:0 1:0 0:0 1:0", 2},
        {"0:0 2 1 5, 1:0 1 1 5, 2:2 0 1 5", "2:2 1:0 0:0 1:0", 2}, /* its own, where it is */
        {"0:0 0 1 5, 1:0 2 1 5", "", 2},                           /* nobody has the other stage */
        {"0:0 0 1 6, 1:0 2 1 6, 0:1 3 1 5, 1:1 2 1 5", "1:1 0:1 1:1 0:1", 2},
        {"0:0 0 1 5, 1:0 1 1 5", "", 0}, /* no replicas */
        {"0:0 0 1 5, 1:0 1 1 5", "", 3}, /* parts that make no sense */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        char *scans[3], places[64] = "";
        make_scans(table[i].slots, 4, table[i].parts, scans);
        check(ckpt_memory_decide((const char *const *)scans, 3, &d, &err), &err);
        for (int r = 0; r < d.world; r++)
            snprintf(places + strlen(places), sizeof places - strlen(places), "%s%d:%d",
                     r ? " " : "", d.places[r].holder - 1, d.places[r].slot);
        assert_string_equal(places, table[i].places);
        if (d.found)
            assert_string_equal(d.note, "s5g1");
        ckpt_decision_free(&d);
        for (int k = 0; k < 3; k++)
            free(scans[k]);
    }
}

static void nonsense_scans(void **state)
{
    (void)state;
    static const char *const table[] = {"x",  "9 claim",      "0claim", "0 claim v=1\n",
                                        "\n", "-1 claim v=1", "0 "};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        const char *scans[] = {"", table[i]};
        assert_int_equal(ckpt_memory_decide(scans, 2, &d, &err), -1);
        assert_non_null(strstr(err.text, "rank 1 says of its memory"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_is_the_file),
        cmocka_unit_test(killed_while_filling),
        cmocka_unit_test(what_is_needed_stays),
        cmocka_unit_test(strangers),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(flipped_heads),
        cmocka_unit_test(lying_heads),
        cmocka_unit_test(random_heads),
        cmocka_unit_test(damaged_images),
        cmocka_unit_test(copies),
        cmocka_unit_test(wrong_copies_are_refused),
        cmocka_unit_test(another_ward),
        cmocka_unit_test(decisions),
        cmocka_unit_test(replicas_stand_in),
        cmocka_unit_test(nonsense_scans),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
