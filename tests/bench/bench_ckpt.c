/* bench_ckpt.c - checkpoint writing and reading against fio, and the stall against memcpy.
 *
 *   bench_ckpt [DIR [MEGABYTES [ROUNDS [TENSORS]]]]    (defaults: $TMPDIR or /var/tmp, 1024,
 *                                                       5, 16)
 *
 * Each round, in turn, in the same folder with the same block size, depth and bytes, past the page
 * cache: our writer from the end of the copy to "finished" (fsync, rename and folder sync
 * included), fio's sequential write (an fsync at its end included), our restore (opened, every
 * checksum checked, the bytes in the tensors), fio's sequential read. Both write into a new file
 * whose space was reserved before the clock starts. Our buffer lies in huge pages, so fio gets them
 * too, through the C library: without, it was a third slower here. Printed: median, and lowest to
 * highest, of each and of the ratios within a round. */
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "blockio.h"
#include "ckpt.h"

enum { ROUNDS_MAX = 100, SETTLE_US = 300000, WAIT_MS = 600000 };

extern char **environ;

struct bench {
    const char *dir;
    int64_t bytes;
    int rounds, n;
    struct ckpt_tensor *tensors;
    char (*names)[32];
    unsigned char *state; /* all tensors, one behind the other */
};

static int copy_out(void *arg, int i, void *host, struct err *err)
{
    (void)err;
    struct bench *b = arg;
    int64_t each = b->bytes / b->n;
    memcpy(host, b->state + i * each, (size_t)each);
    return 0;
}

static int copy_in(void *arg, int i, int64_t at, const void *host, int64_t bytes, struct err *err)
{
    (void)err;
    struct bench *b = arg;
    memcpy(b->state + i * (b->bytes / b->n) + at, host, (size_t)bytes);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_spread(const char *what, const char *unit, const double *values, int n)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    printf("%-44s %8.3f %-9s (%.3f to %.3f)\n", what, sorted[n / 2], unit, sorted[0],
           sorted[n - 1]);
}

/* Before each measurement: what was done before it, and the drive's work on dropped files (a mount
 * with `discard`), must not go on during it. */
static void settle(const struct bench *b)
{
    int fd = open(b->dir, O_RDONLY | O_DIRECTORY);
    if (fd >= 0) {
        syncfs(fd);
        close(fd);
    }
    usleep(SETTLE_US);
}

/* A new inode, its space reserved, as ours. */
static int reserve(const char *path, int64_t bytes)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    int rv = fd >= 0 ? posix_fallocate(fd, 0, bytes) : -1;
    if (fd >= 0)
        close(fd);
    return rv;
}

/* fio's own figure for the bandwidth, GB/s; -1 if it cannot be had. */
static double fio(const struct bench *b, const char *rw)
{
    char file[512], size[64], block[32], depth[32], mode[32], output[512], json[65536];
    snprintf(file, sizeof file, "--filename=%s/fio.bin", b->dir);
    snprintf(output, sizeof output, "--output=%s/fio.json", b->dir);
    snprintf(size, sizeof size, "--size=%" PRId64, b->bytes);
    snprintf(block, sizeof block, "--bs=%d", BLOCKIO_BLOCK);
    snprintf(depth, sizeof depth, "--iodepth=%d", BLOCKIO_DEPTH);
    snprintf(mode, sizeof mode, "--rw=%s", rw);
    char *argv[] = {"fio",
                    "--name=x",
                    file,
                    output,
                    size,
                    block,
                    depth,
                    mode,
                    "--direct=1",
                    "--ioengine=io_uring",
                    "--fallocate=none",
                    "--end_fsync=1",
                    "--thread",
                    "--scramble_buffers=0",
                    "--output-format=json",
                    NULL};
    pid_t pid;
    int status;
    if (!strcmp(rw, "write") && reserve(file + strlen("--filename="), b->bytes))
        return -1;
    settle(b);
    if (posix_spawnp(&pid, "fio", NULL, NULL, argv, environ) || waitpid(pid, &status, 0) != pid ||
        status)
        return -1;
    FILE *in = fopen(output + strlen("--output="), "r");
    size_t n = in ? fread(json, 1, sizeof json - 1, in) : 0;
    json[n] = 0;
    if (in)
        fclose(in);
    unlink(output + strlen("--output="));
    json_object *root = json_tokener_parse(json), *jobs, *part, *bw;
    double rate = -1;
    if (root && json_object_object_get_ex(root, "jobs", &jobs) &&
        json_object_object_get_ex(json_object_array_get_idx(jobs, 0), rw, &part) &&
        json_object_object_get_ex(part, "bw_bytes", &bw))
        rate = json_object_get_double(bw) / 1e9;
    json_object_put(root);
    return rate;
}

/* What no drive compresses, as fio's. */
static uint64_t state_word(int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int make_state(struct bench *b)
{
    b->bytes = b->bytes / b->n / 8 * 8 * b->n;
    b->tensors = calloc((size_t)b->n, sizeof *b->tensors);
    b->names = calloc((size_t)b->n, sizeof *b->names);
    b->state = malloc((size_t)b->bytes);
    if (!b->tensors || !b->names || !b->state)
        return -1;
    for (int i = 0; i < b->n; i++) {
        snprintf(b->names[i], sizeof b->names[i], "tensor.%d", i);
        b->tensors[i] = (struct ckpt_tensor){.name = b->names[i], .dtype = CKPT_F32, .dims = 1};
        b->tensors[i].global[0] = b->tensors[i].shape[0] = b->bytes / b->n / 4;
    }
    for (int64_t i = 0; i < b->bytes / 8; i++)
        ((uint64_t *)(void *)b->state)[i] = state_word(i);
    return 0;
}

static bool state_differs(const struct bench *b)
{
    for (int64_t i = 0; i < b->bytes / 8; i++)
        if (((const uint64_t *)(const void *)b->state)[i] != state_word(i))
            return true;
    return false;
}

static double memcpy_ms(const struct bench *b, unsigned char *to)
{
    int64_t start = clock_ns();
    memcpy(to, b->state, (size_t)b->bytes);
    return (double)(clock_ns() - start) / 1e6;
}

struct figures {
    double write[ROUNDS_MAX], fio_write[ROUNDS_MAX], write_ratio[ROUNDS_MAX];
    double read[ROUNDS_MAX], fio_read[ROUNDS_MAX], read_ratio[ROUNDS_MAX];
    double stall[ROUNDS_MAX], copy[ROUNDS_MAX]; /* ms per 100 MB */
};

/* As training does: a commit follows, which drops the file before last and reserves the next. */
static int save(struct bench *b, struct ckpt *c, int round, struct figures *f, struct err *err)
{
    struct ckpt_position position = {round + 1, 0};
    int64_t stall, step;
    settle(b);
    if (ckpt_save(c, &position, &stall, err) || ckpt_wait(c, clock_ms() + WAIT_MS, err) ||
        ckpt_finished(c, &step, err))
        return -1;
    f->write[round] = (double)b->bytes / (double)ckpt_write_ns(c); /* bytes/ns are GB/s */
    f->stall[round] = (double)stall / 1e6 * 1e8 / (double)b->bytes;
    char *claim = ckpt_claim(c, step, err), *record = NULL;
    if (claim)
        record = ckpt_record((const char *const *)&claim, 1, err);
    int rv = record ? ckpt_commit(c, step, record, err) : -1;
    free(claim);
    free(record);
    return rv || ckpt_wait(c, clock_ms() + WAIT_MS, err) ? -1 : 0;
}

static int restore(struct bench *b, struct ckpt *c, int round, struct figures *f, struct err *err)
{
    char path[512];
    struct ckpt_file *file;
    snprintf(path, sizeof path, "%s/bench.e1.g1.s%d.r0.safetensors", b->dir, round + 1);
    settle(b);
    memset(b->state, 0, (size_t)b->bytes);
    int64_t start = clock_ns();
    if (ckpt_file_open(&file, path, err))
        return -1;
    int rv = ckpt_restore(c, file, NULL, err);
    f->read[round] = (double)b->bytes / (double)(clock_ns() - start);
    ckpt_file_close(file);
    if (!rv && state_differs(b))
        rv = err_set(err, "what was restored is not what was saved");
    return rv;
}

static int one_round(struct bench *b, struct ckpt *c, int round, unsigned char *other,
                     struct figures *f, struct err *err)
{
    bool first = round % 2; /* who goes first takes turns */
    if (first)
        f->fio_write[round] = fio(b, "write");
    if (save(b, c, round, f, err))
        return -1;
    if (!first)
        f->fio_write[round] = fio(b, "write");
    else
        f->fio_read[round] = fio(b, "read");
    if (restore(b, c, round, f, err))
        return -1;
    if (!first)
        f->fio_read[round] = fio(b, "read");
    f->write_ratio[round] = f->write[round] / f->fio_write[round];
    f->read_ratio[round] = f->read[round] / f->fio_read[round];
    f->copy[round] = memcpy_ms(b, other) * 1e8 / (double)b->bytes;
    return 0;
}

static void print_figures(const struct bench *b, const struct figures *f)
{
    printf("%.3f GB in %d tensors, blocks of %d KiB, %d in flight, %d rounds\n",
           (double)b->bytes / 1e9, b->n, BLOCKIO_BLOCK / 1024, BLOCKIO_DEPTH, b->rounds);
    print_spread("write, to durable and renamed", "GB/s", f->write, b->rounds);
    if (f->fio_write[0] > 0) {
        print_spread("fio write", "GB/s", f->fio_write, b->rounds);
        print_spread("write / fio", "", f->write_ratio, b->rounds);
    }
    print_spread("restore, checked, in the tensors", "GB/s", f->read, b->rounds);
    if (f->fio_read[0] > 0) {
        print_spread("fio read", "GB/s", f->fio_read, b->rounds);
        print_spread("restore / fio", "", f->read_ratio, b->rounds);
    }
    print_spread("stall of a save per 100 MB", "ms", f->stall, b->rounds);
    print_spread("memcpy per 100 MB", "ms", f->copy, b->rounds);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static int measure(struct bench *b, struct figures *f, struct err *err)
{
    struct ckpt *c;
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = b};
    struct ckpt_options o = {.dir = b->dir,
                             .node = "bench",
                             .run_id = "bench",
                             .world = 1,
                             .epoch = 1,
                             .generation = 1,
                             .keep = 2,
                             .leader = true};
    unsigned char *other = malloc((size_t)b->bytes);
    if (make_state(b) || !other)
        return err_set(err, "out of memory");
    memset(other, 1, (size_t)b->bytes);
    int rv = ckpt_open(&c, &o, b->tensors, b->n, &io, err);
    if (!rv)
        rv = ckpt_buffer_take(c, err);
    for (int round = 0; !rv && round < b->rounds; round++)
        rv = one_round(b, c, round, other, f, err);
    ckpt_close(c, clock_ms() + WAIT_MS);
    free(other);
    free(b->state);
    free(b->tensors);
    free(b->names);
    return rv;
}

int main(int argc, char **argv)
{
    struct bench b = {.bytes = (argc > 2 ? atoll(argv[2]) : 1024) * 1000000,
                      .rounds = argc > 3 ? atoi(argv[3]) : 5,
                      .n = argc > 4 ? atoi(argv[4]) : 16};
    static struct figures figures;
    struct err err;
    char scratch[512];
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/bench-ckpt-XXXXXX",
             argc > 1 ? argv[1]
             : tmp    ? tmp
                      : "/var/tmp");
    if (b.n < 1 || b.bytes < b.n * 8 || b.rounds < 1 || b.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_ckpt [DIR [MEGABYTES [ROUNDS [TENSORS]]]]\n");
        return 2;
    }
    if (!(b.dir = mkdtemp(scratch))) {
        perror(scratch);
        return 1;
    }
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0); /* fio's */
    int rv = measure(&b, &figures, &err);
    nftw(b.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    if (rv) {
        fprintf(stderr, "bench_ckpt: %s\n", err.text);
        return 1;
    }
    print_figures(&b, &figures);
    return 0;
}
