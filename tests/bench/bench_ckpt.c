/* bench_ckpt.c - checkpoint writing and reading against fio, and the stall against memcpy.
 *
 *   bench_ckpt [DIR [MEGABYTES [ROUNDS [TENSORS]]]]    (defaults: a folder below $TMPDIR or
 *                                                       /var/tmp, 1024, 5, 16)
 *
 * Each round, in turn, in the same folder with the same block size, depth and bytes, past the page
 * cache: our writer from the end of the copy to "finished" (fsync, rename and folder sync
 * included), fio's sequential write (fallocate before, fsync at its end), our restore (every
 * checksum checked; with and without the copy into the tensors, which fio does not make), fio's
 * sequential read. Our buffer lies in huge pages, so fio gets them too, through the C library:
 * without, it was a third slower here. Printed: median, and lowest to highest, of each and of the
 * ratios within a round. */
#include <fcntl.h>
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

enum { ROUNDS_MAX = 100 };

extern char **environ;

struct bench {
    const char *dir;
    int64_t bytes;
    int rounds, n;
    struct ckpt_tensor *tensors;
    char (*names)[32];
    unsigned char *state; /* all tensors, one behind the other */
    int64_t copy_in_ns;   /* of a restore */
};

static int copy_out(void *arg, int i, void *host, struct err *err)
{
    (void)err;
    struct bench *b = arg;
    int64_t each = b->bytes / b->n;
    memcpy(host, b->state + i * each, (size_t)each);
    return 0;
}

static int copy_in(void *arg, int i, const void *host, struct err *err)
{
    (void)err;
    struct bench *b = arg;
    int64_t each = b->bytes / b->n;
    int64_t start = clock_ns();
    memcpy(b->state + i * each, host, (size_t)each);
    b->copy_in_ns += clock_ns() - start;
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
                    "--fallocate=native",
                    "--end_fsync=1",
                    "--thread",
                    "--scramble_buffers=0",
                    "--output-format=json",
                    NULL};
    pid_t pid;
    int status;
    if (!strcmp(rw, "write"))
        unlink(file + strlen("--filename=")); /* a new inode, as ours */
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

static int fail(const struct err *err)
{
    fprintf(stderr, "bench_ckpt: %s\n", err->text);
    return 1;
}

static int make_state(struct bench *b)
{
    b->bytes = b->bytes / b->n / 4 * 4 * b->n;
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
    for (int64_t i = 0; i < b->bytes; i++)
        b->state[i] = (unsigned char)(i * 31 >> 5);
    return 0;
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
    double restore[ROUNDS_MAX], restore_ratio[ROUNDS_MAX]; /* with the copy in */
    double stall[ROUNDS_MAX], copy[ROUNDS_MAX];            /* ms per 100 MB */
};

/* Bytes over nanoseconds are GB/s. */
static int one_round(struct bench *b, struct ckpt *c, const struct ckpt_options *o, int round,
                     unsigned char *other, struct figures *f, struct err *err)
{
    struct ckpt_position position = {round + 1, 0};
    int64_t stall, step;
    char path[512];
    if (ckpt_save(c, &position, &stall, err))
        return -1;
    int64_t start = clock_ns();
    if (ckpt_wait(c, clock_ms() + 600000, err) || ckpt_finished(c, &step, err))
        return -1;
    f->write[round] = (double)b->bytes / (double)(clock_ns() - start);
    f->fio_write[round] = fio(b, "write");
    snprintf(path, sizeof path, "%s/bench.e1.g1.s%d.r0.safetensors", o->dir, round + 1);
    struct ckpt_file *file;
    if (ckpt_file_open(&file, path, err))
        return -1;
    b->copy_in_ns = 0;
    start = clock_ns();
    int rv = ckpt_restore(c, file, NULL, err);
    int64_t took = clock_ns() - start;
    f->restore[round] = (double)b->bytes / (double)took;
    f->read[round] = (double)b->bytes / (double)(took - b->copy_in_ns);
    ckpt_file_close(file);
    unlink(path);
    f->fio_read[round] = fio(b, "read");
    f->write_ratio[round] = f->write[round] / f->fio_write[round];
    f->read_ratio[round] = f->read[round] / f->fio_read[round];
    f->restore_ratio[round] = f->restore[round] / f->fio_read[round];
    f->stall[round] = (double)stall / 1e6 * 1e8 / (double)b->bytes;
    f->copy[round] = memcpy_ms(b, other) * 1e8 / (double)b->bytes;
    return rv;
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
    print_spread("restore, checked", "GB/s", f->read, b->rounds);
    print_spread("restore, checked and copied in", "GB/s", f->restore, b->rounds);
    if (f->fio_read[0] > 0) {
        print_spread("fio read", "GB/s", f->fio_read, b->rounds);
        print_spread("restore, checked / fio", "", f->read_ratio, b->rounds);
        print_spread("restore, checked and copied in / fio", "", f->restore_ratio, b->rounds);
    }
    print_spread("stall of a save per 100 MB", "ms", f->stall, b->rounds);
    print_spread("memcpy per 100 MB", "ms", f->copy, b->rounds);
}

int main(int argc, char **argv)
{
    struct bench b = {.dir = argc > 1 ? argv[1] : NULL,
                      .bytes = (argc > 2 ? atoll(argv[2]) : 1024) * 1000000,
                      .rounds = argc > 3 ? atoi(argv[3]) : 5,
                      .n = argc > 4 ? atoi(argv[4]) : 16};
    static struct figures figures;
    struct err err;
    struct ckpt *c;
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = &b};
    struct ckpt_options o = {.dir = b.dir,
                             .node = "bench",
                             .run_id = "bench",
                             .world = 1,
                             .epoch = 1,
                             .generation = 1,
                             .keep = 2,
                             .leader = true};
    char scratch[256];
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/bench-ckpt-XXXXXX", tmp ? tmp : "/var/tmp");
    if (!b.dir)
        o.dir = b.dir = mkdtemp(scratch);
    if (!b.dir || b.bytes < 1 || b.rounds < 1 || b.rounds > ROUNDS_MAX || b.n < 1) {
        fprintf(stderr, "usage: bench_ckpt [DIR [MEGABYTES [ROUNDS [TENSORS]]]]\n");
        return 2;
    }
    unsigned char *other = malloc((size_t)b.bytes);
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0); /* fio's */
    if (make_state(&b) || !other) {
        fprintf(stderr, "bench_ckpt: out of memory\n");
        return 1;
    }
    memset(other, 1, (size_t)b.bytes);
    if (ckpt_open(&c, &o, b.tensors, b.n, &io, &err))
        return fail(&err);
    for (int round = 0; round < b.rounds; round++)
        if (one_round(&b, c, &o, round, other, &figures, &err))
            return fail(&err);
    ckpt_close(c, clock_ms() + 60000);
    char path[512];
    snprintf(path, sizeof path, "%s/fio.bin", b.dir);
    unlink(path);
    if (b.dir == scratch)
        rmdir(scratch);
    print_figures(&b, &figures);
    free(other);
    free(b.state);
    free(b.tensors);
    free(b.names);
    return 0;
}
