/* test_ckpt_io.c - moving blocks, through io_uring and through threads, and the order of the calls
 * that make a checkpoint durable. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "blockio.h"
#include "stream.h"

/* Remembers what it was shown, to compare with what was written. */
struct seen {
    unsigned char *bytes;
    size_t n;
};

static void visit(void *arg, const unsigned char *p, size_t n)
{
    struct seen *s = arg;
    memcpy(s->bytes + s->n, p, n);
    s->n += n;
}

static unsigned char *aligned(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 4096, bytes + 4096), 0);
    return p;
}

/* From here on the system call fails in this process, as in a container that forbids it. */
static int forbid(unsigned call, unsigned errnum)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
               ? -1
               : 0;
}

/* 0: written by threads, and right. */
static int write_without(unsigned call, unsigned errnum, const char *path)
{
    enum { BYTES = 3 << 20 };
    struct err err;
    struct blockio *b;
    unsigned char *from = aligned(BYTES), *to = aligned(BYTES);
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (size_t i = 0; i < BYTES; i++)
        from[i] = state_byte(1, 2, (int64_t)i);
    struct blockio_job job = {.fd = fd, .write = true, .memory = from, .bytes = BYTES};
    if (forbid(call, errnum))
        return 77;
    if (blockio_open(&b, 0, 0, false, NULL, &err))
        return 1;
    if (blockio_has_ring(b))
        return 2;
    if (blockio_run(b, &job, &err) || pread(fd, to, BYTES, 0) != BYTES)
        return 3;
    return memcmp(from, to, BYTES) ? 4 : 0;
}

static void test_forbidden_ring(void **unused)
{
    (void)unused;
    static const struct {
        unsigned call, errnum;
    } cases[] = {{SYS_io_uring_setup, EPERM},
                 {SYS_io_uring_setup, ENOSYS},
                 {SYS_io_uring_setup, ENOMEM}, /* locked memory, in an old kernel */
                 {SYS_io_uring_enter, EPERM},
                 {SYS_io_uring_enter, ENOSYS}};
    char dir[256], path[300];
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            _exit(write_without(cases[i].call, cases[i].errnum, path));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) && WEXITSTATUS(status) != 77) /* no filters here */
            fail_msg("call %u forbidden with %u: %d", cases[i].call, cases[i].errnum,
                     WEXITSTATUS(status));
    }
    help_remove(dir);
}

/* Write, read back: the bytes, each shown once and in order, both ways. */
static void test_blocks(void **unused)
{
    (void)unused;
    static const struct {
        int64_t bytes, block;
        int depth;
    } cases[] = {{4096, 4096, 1},        {4096, 1 << 20, 16}, {1 << 20, 4096, 3},
                 {40 * 4096, 12288, 64}, {5 << 20, 0, 0},     {4096 * 3, 8192, 2}};
    enum { OFFSET = 8192, MOST = 6 << 20 };
    struct err err;
    char dir[256], path[300];
    unsigned char *from = aligned(MOST), *to = aligned(MOST), *shown = aligned(MOST);
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (size_t i = 0; i < MOST; i++)
        from[i] = state_byte(1, 2, (int64_t)i);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int threads = 0; threads < 2; threads++) {
            struct blockio *b;
            struct seen seen = {.bytes = shown};
            unlink(path);
            int fd = open(path, O_CREAT | O_RDWR | O_DIRECT, 0600);
            if (fd < 0)
                fd = open(path, O_CREAT | O_RDWR, 0600);
            ok(blockio_open(&b, cases[i].depth, cases[i].block, threads, NULL, &err));
            assert_true(!threads || !blockio_has_ring(b));
            struct blockio_job job = {.fd = fd,
                                      .write = true,
                                      .memory = from,
                                      .offset = OFFSET,
                                      .bytes = cases[i].bytes,
                                      .visit = visit,
                                      .arg = &seen};
            ok(blockio_run(b, &job, &err));
            assert_int_equal(seen.n, cases[i].bytes);
            assert_memory_equal(shown, from, seen.n);
            memset(to, 0, MOST);
            seen.n = 0;
            job.write = false;
            job.memory = to;
            ok(blockio_run(b, &job, &err));
            assert_int_equal(seen.n, cases[i].bytes);
            assert_memory_equal(shown, from, seen.n);
            assert_memory_equal(to, from, seen.n);
            blockio_close(b);
            close(fd);
        }
    free(from);
    free(to);
    free(shown);
    help_remove(dir);
}

/* A reader whose memory is a ring: what arrives must not be read over before it was let go. */
struct ring_reader {
    unsigned char *shown;
    int64_t seen, kept; /* bytes; kept: at most so many are not let go */
    int64_t ring, told;
    int waits;
};

static void ring_visit(void *arg, const unsigned char *p, size_t n)
{
    struct ring_reader *r = arg;
    memcpy(r->shown + r->seen, p, n);
    r->seen += (int64_t)n;
}

static int64_t ring_room(void *arg, bool wait)
{
    struct ring_reader *r = arg;
    int64_t gone = r->seen > r->kept ? r->seen - r->kept : 0;
    if (wait) { /* only where all that was told has been seen: a waiting one would wait for ever */
        assert_true(gone + r->ring <= r->told);
        gone = r->seen;
        r->waits++;
    }
    r->told = gone + r->ring > r->told ? gone + r->ring : r->told;
    return r->told;
}

static void test_ring(void **unused)
{
    (void)unused;
    static const struct {
        int64_t bytes, block, ring, kept;
        int depth;
    } cases[] = {
        {40 * 4096, 4096, 4096, 0, 16},           {40 * 4096, 4096, 4096, 4096, 16},
        {41 * 4096, 8192, 3 * 8192, 8192, 2},     {41 * 4096, 8192, 3 * 8192, 3 * 8192, 16},
        {5 << 20, 1 << 20, 2 << 20, 1 << 20, 16}, {4096, 1 << 20, 1 << 20, 0, 1}};
    enum { MOST = 6 << 20 };
    struct err err;
    char dir[256], path[300];
    unsigned char *from = aligned(MOST), *to = aligned(MOST), *shown = aligned(MOST);
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (size_t i = 0; i < MOST; i++)
        from[i] = state_byte(1, 2, (int64_t)i);
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    assert_int_equal(write(fd, from, MOST), MOST);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int threads = 0; threads < 2; threads++) {
            struct blockio *b;
            struct ring_reader reader = {
                .shown = shown, .kept = cases[i].kept, .ring = cases[i].ring};
            ok(blockio_open(&b, cases[i].depth, cases[i].block, threads, NULL, &err));
            struct blockio_job job = {.fd = fd,
                                      .memory = to,
                                      .bytes = cases[i].bytes,
                                      .ring = cases[i].ring,
                                      .room = ring_room,
                                      .visit = ring_visit,
                                      .arg = &reader};
            memset(shown, 0, MOST);
            ok(blockio_run(b, &job, &err));
            assert_int_equal(reader.seen, cases[i].bytes);
            assert_memory_equal(shown, from, reader.seen);
            assert_true(reader.told <= reader.seen + reader.ring);
            assert_true(!reader.waits == (cases[i].kept < cases[i].ring));
            blockio_close(b);
        }
    close(fd);
    free(from);
    free(to);
    free(shown);
    help_remove(dir);
}

static int64_t no_room(void *arg, bool wait)
{
    (void)arg, (void)wait;
    return -1;
}

static void test_ring_gives_up(void **unused)
{
    (void)unused;
    struct err err;
    unsigned char memory[4096];
    int fd = open("/dev/zero", O_RDONLY);
    for (int threads = 0; threads < 2; threads++) {
        struct blockio *b;
        struct blockio_job job = {
            .fd = fd, .memory = memory, .bytes = 8192, .ring = 4096, .room = no_room};
        ok(blockio_open(&b, 2, 4096, threads, NULL, &err));
        refused(blockio_run(b, &job, &err), "cancelled");
        blockio_close(b);
    }
    close(fd);
}

/* A multiple of the block that holds what is in flight twice, but little of a small file. */
static void test_ring_size(void **unused)
{
    (void)unused;
    static const struct {
        int depth;
        int64_t block, bytes, ring;
    } cases[] = {{16, 1 << 20, INT64_C(1) << 30, 32 << 20},
                 {16, 1 << 20, 80 << 20, 10 << 20},
                 {16, 1 << 20, 4096, 3 << 20},
                 {1, 4096, INT64_C(1) << 40, (1 << 20) + 8192},
                 {4, 12288, 100 << 20, 88 * 12288},
                 {1024, 1 << 30, INT64_C(1) << 40, INT64_C(1) << 37}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(stream_ring(cases[i].depth, cases[i].block, cases[i].bytes),
                         cases[i].ring);
}

/* What the kernel answers, not a hook. */
static void test_failures(void **unused)
{
    (void)unused;
    enum { BYTES = 64 * 4096 };
    struct err err;
    char dir[256], path[300];
    unsigned char *memory = aligned(BYTES);
    memset(memory, 7, BYTES);
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (int threads = 0; threads < 2; threads++) {
        struct blockio *b;
        atomic_bool cancel = true;
        ok(blockio_open(&b, 4, 4096, threads, NULL, &err));
        int fd = open("/dev/full", O_WRONLY);
        assert_true(fd >= 0);
        struct blockio_job job = {.fd = fd, .write = true, .memory = memory, .bytes = BYTES};
        refused(blockio_run(b, &job, &err), "No space left");
        refused(blockio_run(b, &job, &err), "No space left"); /* and it is fit for another run */
        close(fd);
        job.fd = open("/dev/null", O_RDONLY);
        refused(blockio_run(b, &job, &err), "Bad file descriptor");
        job.write = false;
        refused(blockio_run(b, &job, &err), "the file ends at byte");
        job.cancel = &cancel;
        refused(blockio_run(b, &job, &err), "cancelled");
        close(job.fd);
        blockio_close(b);
    }
    free(memory);
    help_remove(dir);
}

/* Memory that O_DIRECT cannot take: the flag is dropped, the bytes arrive. */
static void test_direct_is_dropped(void **unused)
{
    (void)unused;
    enum { BYTES = 16 * 4096 };
    struct err err;
    char dir[256], path[300];
    unsigned char *memory = aligned(BYTES), back[BYTES];
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/f", dir);
    for (size_t i = 0; i < BYTES; i++)
        memory[i + 1] = state_byte(5, 0, (int64_t)i);
    for (int threads = 0; threads < 2; threads++) {
        struct blockio *b;
        unlink(path);
        int fd = open(path, O_CREAT | O_RDWR | O_DIRECT, 0600);
        if (fd < 0)
            fd = open(path, O_CREAT | O_RDWR, 0600);
        ok(blockio_open(&b, 4, 4096, threads, NULL, &err));
        struct blockio_job job = {.fd = fd, .write = true, .memory = memory + 1, .bytes = BYTES};
        ok(blockio_run(b, &job, &err));
        blockio_close(b);
        close(fd);
        fd = open(path, O_RDONLY);
        assert_int_equal(read(fd, back, BYTES), BYTES);
        assert_memory_equal(back, memory + 1, BYTES);
        close(fd);
    }
    free(memory);
    help_remove(dir);
}

/* The calls of a save and a commit, one letter each. */
struct diary {
    char text[512];
    atomic_int n;
};

static ssize_t write_diary(void *arg, enum ckpt_op op, size_t bytes)
{
    static const char letters[] = {
        [CKPT_OP_OPEN] = 'o',   [CKPT_OP_RESERVE] = 'a', [CKPT_OP_WRITE] = 'w',
        [CKPT_OP_READ] = 'r',   [CKPT_OP_SYNC] = 's',    [CKPT_OP_RENAME] = 'm',
        [CKPT_OP_UNLINK] = 'u', [CKPT_OP_TRUNCATE] = 't'};
    struct diary *d = arg;
    if (op != CKPT_OP_WAIT)
        d->text[atomic_fetch_add(&d->n, 1)] = letters[op];
    return (ssize_t)bytes;
}

static void expect_diary(struct diary *d, const char *wanted)
{
    d->text[atomic_load(&d->n)] = 0;
    assert_string_equal(d->text, wanted);
    atomic_store(&d->n, 0);
}

/* The commit order: data and header, sync, final name, sync of the folder; then the record, sync;
 * only then are older files dropped, and space is reserved for the next. A power cut cannot be
 * made here, so the order itself is what is held down. */
static void test_order(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    struct ckpt *c;
    struct diary diary = {.n = 0};
    struct ckpt_hook hook = {.allow = write_diary, .arg = &diary};
    struct state s = {.n = 0};
    state_add(&s, CKPT_F32, 1, &(int64_t){1000});
    struct ckpt_io io = state_io(&s);
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    ok(ckpt_open_hooked(&c, &o, s.tensors, s.n, &io, &hook, &err));
    atomic_store(&diary.n, 0);
    for (int64_t step = 1; step <= 3; step++) {
        struct ckpt_position position = {step, step};
        ok(ckpt_save(c, &position, NULL, &err));
        ok(ckpt_wait(c, help_soon(), &err));
        /* reserve -> .part, data, header, sync, .part -> final, folder */
        expect_diary(&diary, "mwwsms");
        char *claim = ckpt_claim(c, step, &err);
        char *record = ckpt_record((const char *const *)&claim, 1, &err);
        ok(ckpt_commit(c, step, record, &err));
        ok(ckpt_wait(c, help_soon(), &err));
        /* open (at first in vain, then make and sync the folder), append, sync; drop; make and
         * allocate */
        expect_diary(&diary, step == 1 ? "ooowssoa" : step == 2 ? "oowsoa" : "oowsuoa");
        free(claim);
        free(record);
    }
    ckpt_close(c, help_soon());
    expect_diary(&diary, "u"); /* the reserve */
    state_free(&s);
    help_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_ring_gives_up), cmocka_unit_test(test_ring_size),
        cmocka_unit_test(test_failures),      cmocka_unit_test(test_direct_is_dropped),
        cmocka_unit_test(test_order),         cmocka_unit_test(test_forbidden_ring),
    };
    return cmocka_run_group_tests_name("ckpt io", tests, NULL, NULL);
}
