/* test_ckpt_log.c - the commit log, records, the decision and retention: mostly tables. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <inttypes.h>

#include "catalog.h"
#include "folder.h"
#include "log.h"
#include "record.h"

/* Lines that check, joined by '|'. */
static void read_all(const char *bytes, size_t n, char *out, int64_t *good, int64_t *skipped)
{
    struct log_reader r = {.bytes = bytes, .n = (int64_t)n};
    const char *text;
    int64_t length;
    *out = 0;
    while (log_next(&r, &text, &length))
        sprintf(out + strlen(out), "%.*s|", (int)length, text);
    *good = r.good;
    *skipped = r.skipped;
}

/* The CRC of the line "00000002 hi" by an independent implementation: bit by bit. */
static uint32_t slow_crc(const char *p, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)p[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static void test_line(void **unused)
{
    (void)unused;
    char want[64];
    snprintf(want, sizeof want, "00000002 %08x hi\n", slow_crc("00000002 hi", 11));
    char *line = log_line("hi");
    assert_string_equal(line, want);
    free(line);
}

/* A log cut at any byte: whole lines are read, the rest is passed over. */
static void test_torn_everywhere(void **unused)
{
    (void)unused;
    char log[512] = "", out[512];
    size_t ends[3];
    for (int i = 0; i < 3; i++) {
        char text[32];
        snprintf(text, sizeof text, "record number %d", i);
        char *line = log_line(text);
        strcat(log, line);
        free(line);
        ends[i] = strlen(log);
    }
    for (size_t cut = 0; cut <= ends[2]; cut++) {
        int whole = 0;
        int64_t good, skipped;
        char want[512] = "";
        while (whole < 3 && ends[whole] <= cut)
            sprintf(want + strlen(want), "record number %d|", whole++);
        read_all(log, cut, out, &good, &skipped);
        assert_string_equal(out, want);
        assert_int_equal(good, whole ? ends[whole - 1] : 0);
        assert_int_equal(skipped, cut - (size_t)good);
    }
}

/* A flipped bit costs its line and no other, wherever it is; in a newline not even that. */
static void test_damage_costs_one_line(void **unused)
{
    (void)unused;
    char log[512] = "", out[512];
    size_t ends[3];
    for (int i = 0; i < 3; i++) {
        char *line = log_line("some text here");
        strcat(log, line);
        free(line);
        ends[i] = strlen(log);
    }
    for (size_t at = 0; at < ends[2]; at++)
        for (int bit = 0; bit < 8; bit++) {
            int64_t good, skipped;
            log[at] ^= (char)(1 << bit);
            read_all(log, ends[2], out, &good, &skipped);
            log[at] ^= (char)(1 << bit);
            bool newline = at == ends[0] - 1 || at == ends[1] - 1 || at == ends[2] - 1;
            assert_string_equal(out, newline ? "some text here|some text here|some text here|"
                                             : "some text here|some text here|");
        }
}

/* Appending after a tail torn at every byte: the tail is cut, the line is whole. */
static void test_append_cuts_torn_tail(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], out[512];
    help_scratch(dir, "/dev/shm");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    char *first = log_line("first"), *torn = log_line("torn");
    for (size_t cut = 0; cut < strlen(torn); cut++) {
        unlinkat(dirfd, "log", 0);
        int fd = openat(dirfd, "log", O_CREAT | O_WRONLY, 0600);
        assert_int_equal(write(fd, first, strlen(first)), strlen(first));
        assert_int_equal(write(fd, torn, cut), cut);
        close(fd);
        ok(log_append(dirfd, "log", "second", 64, NULL, &err));
        char *bytes;
        int64_t n, good, skipped;
        assert_int_equal(folder_read(dirfd, "log", 1 << 20, &bytes, &n), 0);
        read_all(bytes, (size_t)n, out, &good, &skipped);
        assert_string_equal(out, "first|second|");
        assert_int_equal(skipped, 0);
        free(bytes);
    }
    refused(log_append(dirfd, "log", "two\nlines", 64, NULL, &err), "newline");
    free(first);
    free(torn);
    close(dirfd);
    help_remove(dir);
}

/* Before the first write of an append half a line of another process gets in. */
struct intruder {
    int dirfd;
    const char *half;
};

static ssize_t intrude(void *arg, enum ckpt_op op, size_t bytes)
{
    struct intruder *i = arg;
    if (op == CKPT_OP_WRITE && i->half) {
        int fd = openat(i->dirfd, "log", O_WRONLY | O_APPEND);
        assert_int_equal(write(fd, i->half, strlen(i->half)), strlen(i->half));
        close(fd);
        i->half = NULL;
    }
    return (ssize_t)bytes;
}

static void test_append_behind_half_a_line(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], out[512];
    help_scratch(dir, "/dev/shm");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    struct intruder late = {.dirfd = dirfd, .half = "00000009 12345678 a rec"};
    struct ckpt_hook hook = {.allow = intrude, .arg = &late};
    ok(log_append(dirfd, "log", "first", 64, NULL, &err));
    ok(log_append(dirfd, "log", "second", 64, &hook, &err));
    ok(log_append(dirfd, "log", "third", 64, NULL, &err));
    char *bytes;
    int64_t n, good, skipped;
    assert_int_equal(folder_read(dirfd, "log", 1 << 20, &bytes, &n), 0);
    read_all(bytes, (size_t)n, out, &good, &skipped);
    assert_string_equal(out, "first|second|third|");
    assert_int_equal(good, n);
    free(bytes);
    close(dirfd);
    help_remove(dir);
}

/* A log that has grown large is replaced by its newest lines; one that stands in for a dead
 * process's attempt at that goes. */
static void test_append_shortens(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256], *bytes;
    const char *text;
    int64_t n, length, lines = 0;
    help_scratch(dir, "/dev/shm");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    int fd = openat(dirfd, "log", O_CREAT | O_WRONLY, 0600);
    char *long_text = malloc(1 << 16);
    for (int i = 0; (int64_t)i << 16 <= CKPT_LOG_COMPACT_BYTES + (1 << 16); i++) {
        memset(long_text, 'x', 1 << 16);
        snprintf(long_text, 1 << 16, "%d", i);
        long_text[strlen(long_text)] = ' ';
        long_text[(1 << 16) - 20] = 0;
        char *line = log_line(long_text);
        assert_int_equal(write(fd, line, strlen(line)), strlen(line));
        free(line);
    }
    assert_int_equal(write(fd, "torn", 4), 4);
    close(fd);
    close(openat(dirfd, "log.new", O_CREAT | O_WRONLY, 0600));
    ok(log_append(dirfd, "log", "the last", 5, NULL, &err));
    assert_int_equal(folder_read(dirfd, "log", CKPT_LOG_MOST_BYTES, &bytes, &n), 0);
    struct log_reader r = {.bytes = bytes, .n = n};
    for (int i = 130 - 5; log_next(&r, &text, &length); lines++)
        assert_int_equal(lines < 5 ? atoi(text) : 125 + lines, i + lines);
    assert_int_equal(lines, 6);
    assert_int_equal(r.skipped, 0);
    assert_memory_equal(bytes + n - 9, "the last\n", 9);
    assert_int_equal(faccessat(dirfd, "log.new", F_OK, 0), -1);
    free(bytes);
    free(long_text);
    close(dirfd);
    help_remove(dir);
}

static void put(int dirfd, const char *name, const char *text)
{
    int fd = openat(dirfd, name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void expect_text(int dirfd, const char *name, const char *wanted)
{
    char *bytes;
    int64_t n;
    assert_int_equal(folder_read(dirfd, name, 1 << 20, &bytes, &n), 0);
    assert_string_equal(bytes, wanted);
    free(bytes);
}

/* A log that has a second name, whatever it holds, is not written through that: what has the other
 * name stays as it was, and the log goes on. */
static void test_append_spares_hard_links(void **unused)
{
    (void)unused;
    struct err err;
    struct stat st;
    char dir[256], wanted[256];
    char *first = log_line("first"), *second = log_line("second");
    help_scratch(dir, "/dev/shm");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    put(dirfd, "letter", "dear all,\nthis is no log\n");
    put(dirfd, "backup", first);
    for (int i = 0; i < 2; i++) {
        const char *other = i ? "backup" : "letter";
        assert_int_equal(linkat(dirfd, other, dirfd, "log", 0), 0);
        ok(log_append(dirfd, "log", "second", 64, NULL, &err));
        expect_text(dirfd, other, i ? first : "dear all,\nthis is no log\n");
        snprintf(wanted, sizeof wanted, "%s%s", i ? first : "", second);
        expect_text(dirfd, "log", wanted);
        assert_int_equal(fstatat(dirfd, "log", &st, 0), 0);
        assert_int_equal(st.st_nlink, 1);
        assert_int_equal(unlinkat(dirfd, "log", 0), 0);
    }
    free(first);
    free(second);
    close(dirfd);
    help_remove(dir);
}

/* What is no file under the log's name is told before anything is appended, and left alone. */
static void test_check(void **unused)
{
    (void)unused;
    struct err err;
    char dir[256];
    help_scratch(dir, "/dev/shm");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    ok(log_check(dirfd, "log", NULL, &err));
    put(dirfd, "other", "some text");
    assert_int_equal(symlinkat("other", dirfd, "link"), 0);
    assert_int_equal(symlinkat("nowhere", dirfd, "dangling"), 0);
    assert_int_equal(mkfifoat(dirfd, "fifo", 0600), 0);
    assert_int_equal(mkdirat(dirfd, "folder", 0700), 0);
    static const char *const names[] = {"link", "dangling", "fifo", "folder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        refused(log_check(dirfd, names[i], NULL, &err), "is not a file of user");
        refused(log_append(dirfd, names[i], "text", 64, NULL, &err), "is not a file of user");
    }
    expect_text(dirfd, "other", "some text");
    assert_int_equal(faccessat(dirfd, "nowhere", F_OK, 0), -1);
    ok(log_append(dirfd, "log", "text", 64, NULL, &err));
    ok(log_check(dirfd, "log", NULL, &err));
    close(dirfd);
    help_remove(dir);
}

#define HEAD "v=1 run=r epoch=1 generation=2 step=3 samples=4 plan=00000000000000ff world="
#define RANK(r, node)                                                                              \
    " rank=" #r " node=" node " path=r.e1.g2.s3.r" #r ".safetensors bytes=10 digest=0000000" #r

static void test_records(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"commit " HEAD "1" RANK(0, "a"), NULL},
        {"commit " HEAD "2" RANK(0, "a") RANK(1, "b.c"), NULL},
        {"commit " HEAD "1 later=x" RANK(0, "a") " group=7", NULL},
        {"claim " HEAD "1" RANK(0, "a"), "a commit should stand here"},
        {"", "a commit should stand here"},
        {"commit " HEAD "2" RANK(0, "a"), "words are missing"},
        {"commit " HEAD "1", "words are missing"},
        {"commit " HEAD "2" RANK(1, "a") RANK(0, "a"), "rank=1"},
        {"commit " HEAD "1" RANK(0, "a") RANK(1, "a"), "rank=1"},
        {"commit " HEAD "0", "world=0"},
        {"commit " HEAD "99999999999", "world=99999999999"},
        {"commit v=2 run=r", "v=2"},
        {"commit v=1 v=1", "v=1"},
        {"commit v=1 run=", "run="},
        {"commit v=1 nonsense", "no key=value"},
        {"commit " HEAD "1 rank=0 node=a path=../../etc/passwd bytes=1 digest=00000000",
         "path=../../etc/passwd"},
#define OTHER(path) "1 rank=0 node=a path=" path ".safetensors bytes=10 digest=00000000"
        {"commit " HEAD OTHER("q.e1.g2.s3.r0"), "do not agree"},
        {"commit " HEAD OTHER("r.e2.g2.s3.r0"), "do not agree"},
        {"commit " HEAD OTHER("r.e1.g1.s3.r0"), "do not agree"},
        {"commit " HEAD OTHER("r.e1.g2.s2.r0"), "do not agree"},
        {"commit " HEAD OTHER("r.e1.g2.s3.r1"), "do not agree"},
        {"commit " HEAD "1 rank=0 node=a/b", "node=a/b"},
        {"commit " HEAD "1 rank=0 node=a node=a", "node=a"},
        {"commit " HEAD "1 rank=0 bytes=0", "bytes=0"},
        {"commit " HEAD "1 rank=0 bytes=18446744073709551617", "bytes=18446744073709551617"},
        {"commit " HEAD "1 rank=0 digest=xyz", "digest=xyz"},
        {"commit v=1 rank=0", "rank=0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct record r;
        struct err err = {.text = ""};
        int rv =
            record_parse(cases[i].text, (int64_t)strlen(cases[i].text), RECORD_COMMIT, &r, &err);
        if (cases[i].error ? rv != -1 || !strstr(err.text, cases[i].error) : rv != 0)
            fail_msg("%s\n  gives %d '%s'\n  not %s", cases[i].text, rv, err.text,
                     cases[i].error ? cases[i].error : "success");
        if (!rv)
            record_free(&r);
    }
}

static void test_join(void **unused)
{
    (void)unused;
    struct err err;
    const char *good[] = {"claim " HEAD "2" RANK(0, "a"), "claim " HEAD "2" RANK(1, "b")};
    char *record = ckpt_record(good, 2, &err);
    assert_string_equal(record, "commit " HEAD "2" RANK(0, "a") RANK(1, "b"));
    free(record);
    static const char *const bad[][3] = {
        {"claim " HEAD "2" RANK(0, "a"), "claim " HEAD "2" RANK(0, "a"), "is of rank 0"},
        {"claim " HEAD "2" RANK(0, "a"),
         "claim v=1 run=r epoch=1 generation=2 step=4 samples=4 plan=00000000000000ff world=2"
         " rank=1 node=b path=r.e1.g2.s4.r1.safetensors bytes=1 digest=00000000",
         "rank 1 claims step 4"},
        {"claim " HEAD "3" RANK(0, "a"), "claim " HEAD "3" RANK(1, "b"), "world of 3"},
        {"claim " HEAD "2" RANK(0, "a"), NULL, "rank 1 has no claim"},
        {"claim " HEAD "2" RANK(0, "a"), "junk", "rank 1: a claim should"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(ckpt_record(bad[i], 2, &err));
        if (!strstr(err.text, bad[i][2]))
            fail_msg("'%s' is not '%s'", err.text, bad[i][2]);
    }
}

static void test_names(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        enum name_kind kind;
    } names[] = {
        {"r.e1.g2.s3.r4.safetensors", NAME_FILE},
        {"a-0.e4294967295.g0.s9223372036854775807.r1048575.part", NAME_PART},
        {"a-0.e1.g2.s300.c4.part", NAME_COPY_PART},
        {"r.e1.g2.r4.reserve", NAME_RESERVE},
        {"r.node-1.example.org.commits", NAME_LOG},
        {"r.e1.g2.s3.r4.safetensors.commits", NAME_LOG},
        {"r.e4294967296.g0.s1.r0.part", NAME_FOREIGN},
        {"r.e1.g1.s9223372036854775808.r0.part", NAME_FOREIGN},
        {"r.e1.g1.s1.r1048576.part", NAME_FOREIGN},
        {"r.e01.g1.s1.r0.part", NAME_FOREIGN},
        {"r.e1.g1.s-1.r0.part", NAME_FOREIGN},
        {"r.e1.g1.s1.r0.part ", NAME_FOREIGN},
        {"R.e1.g1.s1.r0.part", NAME_FOREIGN},
        {".e1.g1.s1.r0.part", NAME_FOREIGN},
        {"r.e1.g1.r0.part", NAME_FOREIGN},
        {"r.e1.g1.s1.r0.reserve", NAME_FOREIGN},
        {"r.e1.g1.s1.c0.safetensors", NAME_FOREIGN},
        {"r.e1.g1.c0.reserve", NAME_FOREIGN},
        {"r..commits", NAME_FOREIGN},
        {"r.commits", NAME_FOREIGN},
        {"r.a b.commits", NAME_FOREIGN},
        {"", NAME_FOREIGN},
        {"r", NAME_FOREIGN},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct ckpt_name n;
        char again[CKPT_NAME_ROOM];
        name_parse(names[i].text, &n);
        if (n.kind != names[i].kind)
            fail_msg("'%s' is of kind %d, not %d", names[i].text, n.kind, names[i].kind);
        name_format(&n, again);
        assert_string_equal(again, n.kind == NAME_FOREIGN ? "" : names[i].text);
    }
}

/* A commit record of two ranks on nodes a and b at (epoch, generation, step). */
#define REC(e, g, s)                                                                               \
    "record commit v=1 run=r epoch=" #e " generation=" #g " step=" #s " samples=" #s               \
    "0 plan=00000000000000ff world=2 rank=0 node=a path=r.e" #e ".g" #g ".s" #s                    \
    ".r0.safetensors bytes=10 digest=00000001 rank=1 node=b path=r.e" #e ".g" #g ".s" #s           \
    ".r1.safetensors bytes=10 digest=00000002\n"
/* The same of replicas: both files hold the same slices. */
#define TWINS(e, g, s)                                                                             \
    "record commit v=1 run=r epoch=" #e " generation=" #g " step=" #s " samples=" #s               \
    "0 plan=00000000000000ff world=2 rank=0 node=a path=r.e" #e ".g" #g ".s" #s                    \
    ".r0.safetensors bytes=10 digest=00000001 cut=00000000000000aa rank=1 node=b path=r.e" #e      \
    ".g" #g ".s" #s ".r1.safetensors bytes=10 digest=00000002 cut=00000000000000aa\n"
#define HAS(e, g, s, r) "file r.e" #e ".g" #g ".s" #s ".r" #r ".safetensors 10\n"
#define NODE(n)         "scan 1\nnode " n "\ndir /d%20" n "\nepoch 1\n"

static void test_decisions(void **unused)
{
    (void)unused;
    static const struct {
        const char *what, *a, *b, *c;
        int64_t max;
        const char *want; /* "epoch step node0 node1 newest-epoch" or "none newest-epoch" */
    } cases[] = {
        {"nothing anywhere", NODE("a"), NODE("b"), NODE("c"), -1, "none 1"},
        {"one, whole", NODE("a") REC(1, 1, 5) HAS(1, 1, 5, 0), NODE("b") HAS(1, 1, 5, 1), NODE("c"),
         -1, "1 5 a b 1"},
        {"a record on any node counts", NODE("a") HAS(1, 1, 5, 0), NODE("b") HAS(1, 1, 5, 1),
         NODE("c") REC(1, 1, 5), -1, "1 5 a b 1"},
        {"files without a record do not", NODE("a") HAS(1, 1, 5, 0), NODE("b") HAS(1, 1, 5, 1),
         NODE("c"), -1, "none 1"},
        {"the newest of two", NODE("a") REC(1, 1, 5) REC(1, 1, 6) HAS(1, 1, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(1, 1, 5, 1) HAS(1, 1, 6, 1), NODE("c"), -1, "1 6 a b 1"},
        {"the newest is not whole",
         NODE("a") REC(1, 1, 5) REC(1, 1, 6) HAS(1, 1, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(1, 1, 5, 1), NODE("c"), -1, "1 5 a b 1"},
        {"a wrong length is not whole", NODE("a") REC(1, 1, 5) HAS(1, 1, 5, 0),
         NODE("b") "file r.e1.g1.s5.r1.safetensors 9\n", NODE("c"), -1, "none 1"},
        {"max_step", NODE("a") REC(1, 1, 5) REC(1, 1, 6) HAS(1, 1, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(1, 1, 5, 1) HAS(1, 1, 6, 1), NODE("c"), 5, "1 5 a b 1"},
        {"a later epoch outranks a higher step",
         NODE("a") REC(2, 1, 5) REC(1, 1, 6) HAS(2, 1, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(2, 1, 5, 1) HAS(1, 1, 6, 1), NODE("c"), -1, "2 5 a b 2"},
        {"a later generation too",
         NODE("a") REC(1, 2, 5) REC(1, 1, 6) HAS(1, 2, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(1, 2, 5, 1) HAS(1, 1, 6, 1), NODE("c"), -1, "1 5 a b 1"},
        {"a file that is now on another node", NODE("a") REC(1, 1, 5), NODE("b") HAS(1, 1, 5, 1),
         NODE("c") HAS(1, 1, 5, 0), -1, "1 5 c b 1"},
        {"its own node first", NODE("a") REC(1, 1, 5) HAS(1, 1, 5, 0) HAS(1, 1, 5, 1),
         NODE("b") HAS(1, 1, 5, 1) HAS(1, 1, 5, 0), NODE("c"), -1, "1 5 a b 1"},
        {"a shared folder that all nodes see, under new names",
         NODE("x") REC(1, 1, 5) HAS(1, 1, 5, 0) HAS(1, 1, 5, 1),
         NODE("y") REC(1, 1, 5) HAS(1, 1, 5, 0) HAS(1, 1, 5, 1),
         NODE("z") REC(1, 1, 5) HAS(1, 1, 5, 0) HAS(1, 1, 5, 1), -1, "1 5 x x 1"},
        {"an uncommitted file tells of its epoch", NODE("a") HAS(7, 1, 5, 0), NODE("b"), NODE("c"),
         -1, "none 7"},
        {"so does the epoch line", NODE("a"), NODE("b") "epoch 9\n", NODE("c"), -1, "none 9"},
        {"a record of a later version is passed over",
         NODE("a") REC(1, 1, 5) "record commit v=9\n" HAS(1, 1, 5, 0), NODE("b") HAS(1, 1, 5, 1),
         NODE("c"), -1, "1 5 a b 1"},
        {"a replica stands in", NODE("a") TWINS(1, 1, 5), NODE("b") HAS(1, 1, 5, 1), NODE("c"), -1,
         "1 5 b b 1"},
        {"its own file before a replica's", NODE("a") TWINS(1, 1, 5), NODE("b") HAS(1, 1, 5, 1),
         NODE("c") HAS(1, 1, 5, 0), -1, "1 5 c b 1"},
        {"a newer one of replicas before an older one that is whole",
         NODE("a") TWINS(1, 1, 5) TWINS(1, 1, 6) HAS(1, 1, 5, 0) HAS(1, 1, 6, 0),
         NODE("b") HAS(1, 1, 5, 1), NODE("c"), -1, "1 6 a a 1"},
        {"no replica is left", NODE("a") TWINS(1, 1, 5), NODE("b"), NODE("c") HAS(1, 1, 4, 1), -1,
         "none 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *blobs[] = {cases[i].a, cases[i].b, cases[i].c};
        struct ckpt_decision d;
        struct err err;
        char got[256];
        ok(ckpt_decide(blobs, 3, cases[i].max, &d, &err));
        if (d.found)
            snprintf(got, sizeof got, "%c %" PRId64 " %s %s %u", d.places[0].path[8],
                     d.position.step, d.places[0].node, d.places[1].node, d.epoch);
        else
            snprintf(got, sizeof got, "none %u", d.epoch);
        if (strcmp(got, cases[i].want))
            fail_msg("%s: '%s', not '%s'", cases[i].what, got, cases[i].want);
        if (d.found)
            assert_int_equal(d.position.samples, d.position.step * 10);
        ckpt_decision_free(&d);
    }
}

static void test_decision_places(void **unused)
{
    (void)unused;
    const char *blobs[] = {NODE("a") REC(1, 1, 5) HAS(1, 1, 5, 0), NODE("b") HAS(1, 1, 5, 1)};
    struct ckpt_decision d;
    struct err err;
    ok(ckpt_decide(blobs, 2, -1, &d, &err));
    assert_int_equal(d.world, 2);
    assert_int_equal(d.plan_hash, 255);
    assert_string_equal(d.places[1].path, "/d b/r.e1.g1.s5.r1.safetensors");
    assert_int_equal(d.places[1].bytes, 10);
    assert_int_equal(d.places[1].digest, 2);
    assert_memory_equal(d.record, "commit v=1 run=r", 16);
    ckpt_decision_free(&d);

    /* Rank 1's place is that of rank 0's file, whose digest it must have. */
    const char *twins[] = {NODE("a") TWINS(1, 1, 5) HAS(1, 1, 5, 0)};
    ok(ckpt_decide(twins, 1, -1, &d, &err));
    assert_true(d.found);
    assert_string_equal(d.places[1].path, "/d a/r.e1.g1.s5.r0.safetensors");
    assert_int_equal(d.places[1].digest, 1);
    ckpt_decision_free(&d);
}

static void test_bad_blobs(void **unused)
{
    (void)unused;
    static const char *const bad[][2] = {
        {"", "lacks node or dir"},
        {"scan 2\n", "another version"},
        {"scan 1\nnode a\n", "lacks node or dir"},
        {"scan 1\nnode a", "cut in its last line"},
        {"scan 1\nnode ../x\n", "bad node"},
        {"scan 1\nnode a\ndir %G0\n", "bad dir"},
        {"scan 1\nnode a\ndir %0\n", "bad dir"},
        {"scan 1\nnode a\ndir %00\n", "bad dir"},
        {"scan 1\nnode a\ndir /\nepoch -1\n", "bad epoch"},
        {"scan 1\nnode a\ndir /\nfile x 1\n", "is no file"},
        {"scan 1\nnode a\ndir /\nfile r.e1.g1.s1.r0.safetensors\n", "is no file"},
        {"scan 1\nnode a\ndir /\nfile r.e1.g1.s1.r0.safetensors 1x\n", "is no file"},
        {"scan 1\nnode a\ndir /\nwhat\n", "is no line"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_decision d;
        struct err err;
        refused(ckpt_decide(bad[i], 1, -1, &d, &err), bad[i][1]);
    }
}

/* An absent folder is an empty scan; a link is refused. */
static void test_scan(void **unused)
{
    (void)unused;
    struct err err;
    struct ckpt_decision d;
    char dir[256], path[300];
    help_scratch(dir, NULL);
    snprintf(path, sizeof path, "%s/none", dir);
    ok(help_decide(path, -1, &d, &err));
    assert_false(d.found);
    assert_int_equal(d.epoch, 0);
    ckpt_decision_free(&d);
    assert_int_equal(symlink(dir, path), 0);
    assert_null(ckpt_scan(path, "n1", "run-1", &err));
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_null(ckpt_scan(dir, "n1", "run 1", &err));
    assert_int_equal(remove(path), 0);
    /* what a scan quotes of a line that is no record is no command to a terminal */
    char *line = log_line("commit v=\033]0;title\007 \302\233m");
    int dirfd = open(dir, O_DIRECTORY | O_RDONLY);
    put(dirfd, "run-1.n1.commits", line);
    char *blob = ckpt_scan(dir, "n1", "run-1", &err);
    assert_non_null(blob);
    assert_non_null(strstr(blob, "note a record cannot be read: commit: v=?]0;title? is not"));
    free(blob);
    free(line);
    close(dirfd);
    help_remove(dir);
}

static void test_retain(void **unused)
{
    (void)unused;
    /* commits as steps of epoch 1 (above 100: epoch 2), newest last; which files stay with keep 2
     */
    static const struct {
        int commits[6], restored, own, file;
        bool stays;
    } cases[] = {
        {{0}, 0, 0, 5, true}, /* nothing committed: everything may still be */
        {{10}, 0, 1, 10, true},
        {{10}, 0, 1, 5, false}, /* never committed, and a newer one is */
        {{10}, 0, 1, 11, true}, /* may be committed next */
        {{10, 20}, 0, 2, 10, true},
        {{10, 20}, 0, 2, 15, false},
        {{10, 20, 30}, 0, 3, 10, false},
        {{10, 20, 30}, 0, 3, 20, true},
        {{10, 20, 30}, 10, 0, 10, true}, /* restored from it: spared */
        {{10, 20, 30}, 10, 1, 10, true},
        {{10, 20, 30}, 10, 2, 10, false}, /* two commits of our own stand */
        {{10, 20, 105}, 0, 1, 20, true},  /* epoch 2, step 5 is the newest */
        {{10, 20, 105}, 0, 1, 10, false},
        {{20, 105, 106}, 0, 2, 20, false},
        {{20, 105}, 0, 1, 30, false}, /* a higher step of a lower epoch, uncommitted */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct commits c = {.own = cases[i].own, .restored = cases[i].restored};
#define KEY(v) (struct ckpt_key){(v) > 100 ? 2 : 1, 1, (v) % 100}
        c.restored_from = KEY(cases[i].restored);
        for (int k = 0; k < 6 && cases[i].commits[k]; k++) {
            struct ckpt_key key = KEY(cases[i].commits[k]);
            assert_int_equal(commits_add(&c, &key), 0);
            assert_int_equal(commits_add(&c, &key), 0);
        }
        struct ckpt_key file = KEY(cases[i].file);
        if (retain_file(&c, 2, &file) != cases[i].stays)
            fail_msg("case %zu: the file %s", i, cases[i].stays ? "goes" : "stays");
        commits_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_torn_everywhere),
        cmocka_unit_test(test_damage_costs_one_line),
        cmocka_unit_test(test_append_cuts_torn_tail),
        cmocka_unit_test(test_append_behind_half_a_line),
        cmocka_unit_test(test_append_shortens),
        cmocka_unit_test(test_append_spares_hard_links),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_decision_places),
        cmocka_unit_test(test_bad_blobs),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_retain),
    };
    return cmocka_run_group_tests_name("ckpt log", tests, NULL, NULL);
}
