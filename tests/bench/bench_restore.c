/* bench_restore.c - restoring and resharding: how long, and how much memory.
 *
 *   bench_restore [DIR [MEGABYTES [ROUNDS]]]    (defaults: $TMPDIR or /var/tmp, 512, 5)
 *
 * Four ranks, each with so much of a state of MATRICES square matrices cut by rows, write a
 * checkpoint. Then, each rank a process, all at once, the files not in the page cache: the same
 * four take their own files; two take two each; four take it cut by columns, so that everybody
 * needs a part of each row of every file. Each byte is compared. Printed: GB/s over all ranks; the
 * most memory that a rank's process held while it restored, program, state and all, as a multiple
 * of its state; and what the copy buffer, taken after that because saving needs it, adds. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt.h"

enum { FILES = 4, MATRICES = 16, ROUNDS_MAX = 100, WAIT_MS = 600000 };

struct layout {
    const char *what;
    int ranks;
    bool columns;
};

static const struct layout layouts[] = {
    {"4 ranks, the same cut", 4, false}, {"2 ranks", 2, false}, {"4 ranks, cut across", 4, true}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

struct result {
    double seconds;
    double held, buffer; /* as multiples of the state */
};

struct bench {
    char dir[512];
    int64_t side; /* of a matrix, elements */
    int rounds;
    char paths[FILES][600];
    struct result *results; /* of the ranks of a round; shared with them */
};

/* A rank's part of the state. */
struct part {
    struct ckpt_tensor tensors[MATRICES];
    char names[MATRICES][16];
    float *data[MATRICES];
    int64_t elements; /* of each */
};

static float value(int matrix, int64_t row, int64_t column)
{
    return (float)((matrix * 7919 + row * 31 + column) % 8388607);
}

static int part_make(struct part *p, const struct bench *b, const struct layout *l, int rank)
{
    int axis = l->columns;
    p->elements = b->side * b->side / l->ranks;
    for (int i = 0; i < MATRICES; i++) {
        struct ckpt_tensor *t = &p->tensors[i];
        snprintf(p->names[i], sizeof p->names[i], "matrix.%d", i);
        *t = (struct ckpt_tensor){.name = p->names[i], .dtype = CKPT_F32, .dims = 2};
        t->global[0] = t->global[1] = t->shape[0] = t->shape[1] = b->side;
        t->shape[axis] = b->side / l->ranks;
        t->offset[axis] = t->shape[axis] * rank;
        p->data[i] = malloc((size_t)p->elements * sizeof(float));
        if (!p->data[i])
            return -1;
        memset(p->data[i], 0xff, (size_t)p->elements * sizeof(float));
    }
    return 0;
}

/* fill: make it so; else whether it is. */
static bool part_values(struct part *p, bool fill)
{
    for (int i = 0; i < MATRICES; i++) {
        const struct ckpt_tensor *t = &p->tensors[i];
        float *at = p->data[i];
        for (int64_t row = 0; row < t->shape[0]; row++)
            for (int64_t column = 0; column < t->shape[1]; column++, at++) {
                float right = value(i, t->offset[0] + row, t->offset[1] + column);
                if (fill)
                    *at = right;
                else if (*at != right)
                    return false;
            }
    }
    return true;
}

static int copy_out(void *arg, int i, void *host, struct err *err)
{
    const struct part *p = arg;
    (void)err;
    memcpy(host, p->data[i], (size_t)p->elements * sizeof(float));
    return 0;
}

static int copy_in(void *arg, int i, int64_t at, const void *host, int64_t bytes, struct err *err)
{
    const struct part *p = arg;
    (void)err;
    memcpy((char *)p->data[i] + at, host, (size_t)bytes);
    return 0;
}

static int open_rank(struct ckpt **c, const struct bench *b, struct part *p, int rank, int world,
                     uint32_t epoch, struct err *err)
{
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = p};
    struct ckpt_options o = {.dir = b->dir,
                             .node = "bench",
                             .run_id = "bench",
                             .rank = rank,
                             .world = world,
                             .epoch = epoch,
                             .generation = 1,
                             .keep = 2};
    return ckpt_open(c, &o, p->tensors, MATRICES, &io, err);
}

/* VmRSS, VmHWM: bytes. */
static double memory(const char *key)
{
    char line[256];
    double kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            kib = atof(line + strlen(key) + 1);
    if (f)
        fclose(f);
    return kib * 1024;
}

/* The peak from here on. */
static int forget_peak(struct err *err)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    ssize_t n = fd >= 0 ? write(fd, "5", 1) : -1;
    if (fd >= 0)
        close(fd);
    return n == 1 ? 0 : err_set_errno(err, errno, "/proc/self/clear_refs");
}

static int put(void *c, const void *p, size_t n, struct err *err)
{
    return ckpt_fill_put(c, p, n, err);
}

static int fill(struct ckpt *c, struct ckpt_file **files, struct ckpt_piece *pieces, int n,
                struct err *err)
{
    int rv = ckpt_fill_begin(c, err);
    for (int i = 0; !rv && i < n; i++)
        if (ckpt_fill_piece(c, &pieces[i], err) ||
            ckpt_file_read_piece(files[pieces[i].source], &pieces[i], put, c, err))
            rv = -1;
    return rv ? -1 : ckpt_fill_end(c, err);
}

/* Out of whichever files hold it. */
static int reshard(const struct bench *b, struct ckpt *c, const struct part *p, struct err *err)
{
    struct ckpt_file *files[FILES] = {NULL};
    char *tables[FILES] = {NULL};
    struct ckpt_piece *pieces = NULL;
    int n, rv = 0;
    for (int i = 0; i < FILES && !rv; i++)
        if (ckpt_file_open(&files[i], b->paths[i], err) ||
            !(tables[i] = ckpt_file_table(files[i], err)))
            rv = -1;
    if (!rv)
        rv =
            ckpt_pieces(p->tensors, MATRICES, (const char *const *)tables, FILES, &pieces, &n, err);
    if (!rv)
        rv = ckpt_fill_order(c, &pieces, &n, err);
    if (!rv)
        rv = fill(c, files, pieces, n, err);
    free(pieces);
    for (int i = 0; i < FILES; i++) {
        ckpt_file_close(files[i]);
        free(tables[i]);
    }
    return rv;
}

static int whole(const struct bench *b, struct ckpt *c, int rank, struct err *err)
{
    struct ckpt_file *file;
    if (ckpt_file_open(&file, b->paths[rank], err))
        return -1;
    int rv = ckpt_restore(c, file, NULL, err);
    ckpt_file_close(file);
    return rv;
}

/* A rank's process: says on `ready` that it stands, begins when `go` ends. */
static int rank_main(const struct bench *b, int number, int rank, int ready, int go,
                     struct err *err)
{
    const struct layout *l = &layouts[number];
    static struct part p;
    struct ckpt *c;
    char byte = 0;
    if (part_make(&p, b, l, rank))
        return err_set(err, "out of memory");
    if (open_rank(&c, b, &p, rank, l->ranks, 2, err) || forget_peak(err))
        return -1;
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0)
        return err_set(err, "the others are gone");
    int64_t start = clock_ns();
    if (number ? reshard(b, c, &p, err) : whole(b, c, rank, err))
        return -1;
    double state = (double)p.elements * sizeof(float) * MATRICES;
    double seconds = (double)(clock_ns() - start) * 1e-9, held = memory("VmHWM:") / state;
    double before = memory("VmRSS:");
    if (ckpt_buffer_take(c, err))
        return -1;
    b->results[rank] = (struct result){seconds, held, (memory("VmRSS:") - before) / state};
    if (!part_values(&p, false))
        return err_set(err, "what was restored is not what was saved");
    ckpt_close(c, clock_ms() + WAIT_MS);
    return 0;
}

static void drop_cached(const struct bench *b)
{
    for (int i = 0; i < FILES; i++) {
        int fd = open(b->paths[i], O_RDONLY);
        if (fd < 0)
            continue;
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* All ranks of a layout; 0: worst of them in *out. */
static int round_of(const struct bench *b, int number, struct result *out)
{
    int ready[2], go[2], ranks = layouts[number].ranks, failed = 0;
    drop_cached(b);
    if (pipe(ready) || pipe(go))
        return -1;
    for (int i = 0; i < ranks; i++)
        if (!fork()) {
            struct err err;
            close(ready[0]);
            close(go[1]);
            int rv = rank_main(b, number, i, ready[1], go[0], &err);
            if (rv)
                fprintf(stderr, "bench_restore: %s\n", err.text);
            _exit(rv != 0);
        }
    close(ready[1]);
    close(go[0]);
    char byte;
    for (int i = 0; i < ranks && read(ready[0], &byte, 1) == 1; i++)
        ;
    close(go[1]);
    close(ready[0]);
    *out = (struct result){0};
    for (int i = 0, status; i < ranks; i++) {
        const struct result *r = &b->results[i];
        failed |= wait(&status) < 0 || status;
        out->seconds = r->seconds > out->seconds ? r->seconds : out->seconds;
        out->held = r->held > out->held ? r->held : out->held;
        out->buffer = r->buffer > out->buffer ? r->buffer : out->buffer;
    }
    return failed ? -1 : 0;
}

static int write_files(struct bench *b, struct err *err)
{
    for (int i = 0; i < FILES; i++) {
        static struct part p;
        struct ckpt *c;
        if (part_make(&p, b, &layouts[0], i))
            return err_set(err, "out of memory");
        part_values(&p, true);
        int rv = open_rank(&c, b, &p, i, FILES, 1, err);
        if (!rv)
            rv = ckpt_save(c, &(struct ckpt_position){1, 0}, NULL, err) ||
                 ckpt_wait(c, clock_ms() + WAIT_MS, err);
        if (!rv)
            ckpt_close(c, 0);
        snprintf(b->paths[i], sizeof b->paths[i], "%s/bench.e1.g1.s1.r%d.safetensors", b->dir, i);
        for (int m = 0; m < MATRICES; m++)
            free(p.data[m]);
        if (rv)
            return -1;
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_spread(const char *what, const char *unit, double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("  %-42s %8.3f %-5s (%.3f to %.3f)\n", what, values[n / 2], unit, values[0],
           values[n - 1]);
}

static int measure(struct bench *b, struct err *err)
{
    static double rate[LAYOUTS][ROUNDS_MAX], slower[LAYOUTS][ROUNDS_MAX];
    static double held[LAYOUTS][ROUNDS_MAX], buffer[LAYOUTS][ROUNDS_MAX];
    double gb = (double)b->side * (double)b->side * sizeof(float) * MATRICES / 1e9;
    if (write_files(b, err))
        return -1;
    for (int i = 0; i < b->rounds; i++)
        for (int l = 0; l < LAYOUTS; l++) {
            struct result r;
            if (round_of(b, l, &r))
                return err_set(err, "a rank failed");
            rate[l][i] = gb / r.seconds;
            slower[l][i] = rate[0][i] / rate[l][i];
            held[l][i] = r.held;
            buffer[l][i] = r.buffer;
        }
    printf("%.3f GB in %d files, %d tensors, %d rounds\n", gb, FILES, MATRICES, b->rounds);
    for (int l = 0; l < LAYOUTS; l++) {
        printf("%s\n", layouts[l].what);
        print_spread("all ranks together", "GB/s", rate[l], b->rounds);
        if (l)
            print_spread("times as long as the same cut", "", slower[l], b->rounds);
        print_spread("peak of the process / state", "", held[l], b->rounds);
        print_spread("the copy buffer, taken later / state", "", buffer[l], b->rounds);
    }
    return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

int main(int argc, char **argv)
{
    static struct bench b;
    int64_t bytes = (argc > 2 ? atoll(argv[2]) : 512) * 1000000;
    b.rounds = argc > 3 ? atoi(argv[3]) : 5;
    struct err err;
    const char *tmp = getenv("TMPDIR");
    while ((b.side + FILES) * (b.side + FILES) * (int64_t)sizeof(float) * MATRICES <= bytes * FILES)
        b.side += FILES;
    if (!b.side || b.rounds < 1 || b.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_restore [DIR [MEGABYTES [ROUNDS]]]\n");
        return 2;
    }
    snprintf(b.dir, sizeof b.dir, "%s/bench-restore-XXXXXX",
             argc > 1 ? argv[1]
             : tmp    ? tmp
                      : "/var/tmp");
    b.results = mmap(NULL, FILES * sizeof *b.results, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.results == MAP_FAILED || !mkdtemp(b.dir)) {
        perror(b.dir);
        return 1;
    }
    int rv = measure(&b, &err);
    nftw(b.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    if (rv)
        fprintf(stderr, "bench_restore: %s\n", err.text);
    return rv != 0;
}
