/* test_parity_image.c - parity that is made while the files are written: the order of chunks, what
 * is given when, and that nothing comes of it where a file does not. */
#include "parity_help.h"

#include "crc.h"

/* ---- the order of chunks ---- */

static void headers_come_last(void **state)
{
    (void)state;
    enum { MB = PARITY_CHUNK };
    static const struct {
        int64_t chunks, header, late;
        const char *order;
    } table[] = {
        {1, 4096, 1, "0"},          {4, 4096, 1, "1230"},
        {4, MB, 1, "1230"},         {4, MB + 1, 2, "2301"},
        {4, 4 * MB - 1, 4, "0123"}, {4, 9 * MB, 4, "0123"},
        {5, 3 * MB, 3, "34012"},    {2, 0, 1, "10"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct parity_code code = {.members = 3, .keeps = 1, .chunks = table[i].chunks};
        int64_t late = parity_late(&code, table[i].header);
        assert_int_equal(late, table[i].late);
        for (int64_t turn = 0; turn < code.chunks; turn++)
            assert_int_equal(parity_chunk(&code, late, turn), table[i].order[turn] - '0');
    }
}

/* ---- what is given ---- */

enum { SMALL_CUT, LARGE_CUT }; /* chunks are no blocks of the checksums; they are */

struct scene {
    struct group g;
    struct parity_image *image;
    unsigned char *bytes; /* of the writer's buffer: ours to spoil */
    int64_t late;
    unsigned char chunk[PARITY_CHUNK];
};

static void make_scene(struct scene *s, enum group_size size)
{
    struct err err;
    group_make(&s->g, 2, 1, size, "/dev/shm");
    ok(group_open(&s->g, 1, &err));
    group_fill(&s->g, 1);
    ok(ckpt_save(s->g.ckpts[0], &(struct ckpt_position){1, 8}, NULL, &err));
    sem_wait(&s->g.images[0].shown);
    s->late = ckpt_parity_late(s->g.parities[0]);
    s->bytes = (unsigned char *)s->g.images[0].image.bytes;
    ok(parity_image_open(&s->image, &s->g.images[0].image, ckpt_parity_code(s->g.parities[0]),
                         s->late, &err));
}

static void drop_scene(struct scene *s)
{
    parity_image_close(s->image);
    ckpt_image_release(s->g.ckpts[0]);
    group_drop(&s->g);
}

static int seal(struct scene *s, struct err *err)
{
    uint32_t digest;
    if (ckpt_image_wait(s->g.ckpts[0], help_soon(), &digest, err) != 1)
        return -1;
    return parity_image_seal(s->image, digest, err);
}

static int read_chunk(struct scene *s, int64_t chunk, struct err *err)
{
    uint32_t crc;
    int rv = parity_image_read(s->image, 0, chunk, s->chunk, &crc, err);
    if (!rv)
        assert_int_equal(
            crc, crc32c(0, s->chunk,
                        (size_t)parity_chunk_bytes(ckpt_parity_code(s->g.parities[0]), chunk)));
    return rv;
}

/* What holds headers is given only once the file is durable; then it is the file's beginning. */
static void late_chunks_wait_for_the_file(void **state)
{
    (void)state;
    static const enum group_size sizes[] = {GROUP_MIDDLE, GROUP_LARGE};
    for (int i = 0; i < 2; i++) {
        static struct scene s;
        struct err err;
        make_scene(&s, sizes[i]);
        for (int64_t chunk = 0; chunk < s.late; chunk++)
            refused(read_chunk(&s, chunk, &err), "before the file is durable");
        ok(read_chunk(&s, s.late, &err));
        ok(seal(&s, &err));
        ok(read_chunk(&s, 0, &err));
        assert_memory_equal(s.chunk, s.bytes, (size_t)s.g.images[0].image.header_bytes);
        refused(read_chunk(&s, 1000, &err), "cannot be given");
        drop_scene(&s);
    }
}

/* A bit that was another one when the chunk was read, or is another one now, is seen when the
 * file's checksums are there. */
static void what_was_given_is_what_was_written(void **state)
{
    (void)state;
    static const struct {
        enum group_size size;
        bool before, after; /* it is flipped before the chunk is read; after that */
    } table[] = {
        {GROUP_MIDDLE, true, false}, {GROUP_MIDDLE, true, true}, {GROUP_MIDDLE, false, true},
        {GROUP_LARGE, true, false},  {GROUP_LARGE, true, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        static struct scene s;
        struct err err;
        uint32_t digest;
        make_scene(&s, table[i].size);
        assert_int_equal(ckpt_image_wait(s.g.ckpts[0], help_soon(), &digest, &err), 1);
        unsigned char *byte = s.bytes + s.late * PARITY_CHUNK + 12345;
        if (s.g.images[0].image.total > INT64_C(16) << 20) /* its header is filled up */
            byte += s.g.images[0].image.header_bytes - PARITY_CHUNK;
        *byte ^= table[i].before ? 4 : 0;
        ok(read_chunk(&s, s.late, &err));
        *byte ^= table[i].after ? 4 : 0;
        assert_int_equal(seal(&s, &err), -1);
        if (!strstr(err.text, "damaged") && !strstr(err.text, "have changed since"))
            fail_msg("row %zu: '%s'", i, err.text);
        drop_scene(&s);
    }
}

/* ---- a file that does not come to be ---- */

/* Holds up what makes a file durable until all early chunks have been given, and then fails it for
 * one of the members. */
struct late_fault {
    enum ckpt_op op;
    int errnum;
    pthread_mutex_t lock;
    pthread_cond_t given;
    bool armed, early, failed; /* under lock */
};

enum { WRITE_BYTES = 4096 }; /* of a member's own files: parity_help.h; sums are longer */

static ssize_t fail_late(void *arg, enum ckpt_op op, size_t bytes)
{
    struct late_fault *f = arg;
    bool hit = false;
    pthread_mutex_lock(&f->lock);
    if (f->armed && op == f->op && (op != CKPT_OP_WRITE || bytes <= WRITE_BYTES)) {
        while (!f->early)
            pthread_cond_wait(&f->given, &f->lock);
        hit = !f->failed;
        f->failed = true;
    }
    pthread_mutex_unlock(&f->lock);
    return hit ? -f->errnum : (ssize_t)bytes;
}

static void all_early_given(struct group *g)
{
    struct late_fault *f = g->hook->arg;
    pthread_mutex_lock(&f->lock);
    f->early = true;
    pthread_cond_broadcast(&f->given);
    pthread_mutex_unlock(&f->lock);
}

/* Files of a step: how many members have theirs, and how many their parities. */
static int files_of(const struct group *g, char kind, int64_t step)
{
    int n = 0;
    for (int i = 0; i < g->members; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/run-1.e%u.g1.s%lld.%c%d.safetensors", g->dirs[i], g->epoch,
                 (long long)step, kind, i);
        n += !access(path, F_OK);
    }
    return n;
}

static void fail_one(struct late_fault *f)
{
    static struct group g;
    struct err err;
    struct ckpt_decision d;
    struct ckpt_hook hook = {.allow = fail_late, .arg = f};
    group_make(&g, 3, 1, GROUP_MIDDLE, "/dev/shm");
    g.hook = &hook;
    g.early = all_early_given;
    ok(group_open(&g, 1, &err));
    group_fill(&g, 1);
    ok(group_checkpoint(&g, 1, &err));
    assert_int_equal(files_of(&g, 'p', 1), 3);
    assert_true(f->early); /* there were some */
    pthread_mutex_lock(&f->lock);
    f->early = false;
    f->armed = true;
    pthread_mutex_unlock(&f->lock);
    group_fill(&g, 2);
    assert_null(group_record(&g, 2, &err));
    assert_non_null(strstr(err.text, "could not be written"));
    group_close(&g);
    assert_int_equal(files_of(&g, 'r', 2), 2);
    assert_int_equal(files_of(&g, 'p', 2), 0);
    for (int i = 0; i < g.members; i++)
        assert_int_equal(help_count(g.dirs[i], ".part"), 0);
    /* what was committed before is all there, on any two of the nodes */
    help_remove(g.dirs[1]);
    ok(group_decide(&g, &d, &err));
    assert_int_equal(d.position.step, 1);
    assert_int_equal(d.lost, 1);
    ckpt_decision_free(&d);
    group_drop(&g);
}

/* The disk of one member fails, or is full, when all that could be sent of its file has been. */
static void no_parity_of_what_was_not_written(void **state)
{
    (void)state;
    static const struct {
        enum ckpt_op op;
        int errnum;
    } table[] = {
        {CKPT_OP_WRITE, EIO}, {CKPT_OP_WRITE, ENOSPC}, {CKPT_OP_SYNC, EIO}, {CKPT_OP_SYNC, ENOSPC}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct late_fault f = {.op = table[i].op, .errnum = table[i].errnum};
        pthread_mutex_init(&f.lock, NULL);
        pthread_cond_init(&f.given, NULL);
        fail_one(&f);
        pthread_cond_destroy(&f.given);
        pthread_mutex_destroy(&f.lock);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_come_last),
        cmocka_unit_test(late_chunks_wait_for_the_file),
        cmocka_unit_test(what_was_given_is_what_was_written),
        cmocka_unit_test(no_parity_of_what_was_not_written),
    };
    return cmocka_run_group_tests_name("parity image", tests, NULL, NULL);
}
