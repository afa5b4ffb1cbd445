/* bench_parity.c - making parity of a group's files, and a lost file out of it, against memcpy and
 * ISA-L's bare multiplication.
 *
 *   bench_parity [DIR [MEGABYTES [FILES [PARITIES [ROUNDS]]]]]   (defaults: /dev/shm, 128, 4, 2, 7)
 *
 * A group of FILES + PARITIES members, each with a file of so many megabytes, in DIR; a folder in
 * memory leaves the disk out. One thread does the work of all members, without the network; writers
 * of parity have their own. Each round, in turn:
 *
 *   memcpy    as many bytes as encoding takes in: each file PARITIES times
 *   ISA-L     the sums alone, of buffers of that size
 *   encode    all of it: the files as they stand in the writers' memory, every CRC32C checked, the
 *             sums, parity files durable
 *   memcpy    as many bytes as a rebuild takes in: FILES times a file
 *   rebuild   all of it: elements read and checked, the sums, the file written, read back and
 *             checked against the record, durable
 *
 * Rates are of bytes taken in. Printed: median, and lowest to highest, of each and of the ratios
 * within a round. */
#include "../unit/parity_help.h"

#include <isa-l/erasure_code.h>

enum { ROUNDS_MAX = 100 };

struct bench {
    struct group g;
    int files, parities, rounds;
    int64_t bytes;              /* of a file's state */
    unsigned char *from, *to;   /* a chunk for each file; for each parity */
    double rate[5][ROUNDS_MAX]; /* GB/s */
};

enum { COPY, SUMS, ENCODE, COPY_BACK, REBUILD };

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
    printf("%-44s %8.3f %-6s (%.3f to %.3f)\n", what, sorted[n / 2], unit, sorted[0],
           sorted[n - 1]);
}

static void print_ratio(const struct bench *b, const char *what, int of, int to)
{
    double ratio[ROUNDS_MAX];
    for (int i = 0; i < b->rounds; i++)
        ratio[i] = b->rate[of][i] / b->rate[to][i];
    print_spread(what, "", ratio, b->rounds);
}

static int complain(const char *what, const struct err *err)
{
    fprintf(stderr, "bench_parity: %s: %s\n", what, err->text);
    return 1;
}

static double gb_per_s(double bytes, int64_t start_ns)
{
    return bytes / (double)(clock_ns() - start_ns);
}

/* So many chunks, between buffers that do not fit the caches together. */
static double copy(struct bench *b, int64_t chunks)
{
    int64_t start = clock_ns(), room = b->bytes / PARITY_CHUNK;
    for (int64_t i = 0; i < chunks; i++)
        memcpy(b->to + i % room * PARITY_CHUNK, b->from + i % room * PARITY_CHUNK, PARITY_CHUNK);
    return gb_per_s((double)chunks * PARITY_CHUNK, start);
}

static double sums(struct bench *b, int64_t rows)
{
    unsigned char matrix[64 * 64], tables[32 * 64 * 16], *data[64], *sum[16];
    int64_t start = clock_ns(), room = b->bytes / PARITY_CHUNK / (b->files + b->parities);
    gf_gen_cauchy1_matrix(matrix, b->files + b->parities, b->files);
    ec_init_tables(b->files, b->parities, matrix + b->files * b->files, tables);
    for (int64_t row = 0; row < rows; row++) {
        for (int i = 0; i < b->files; i++)
            data[i] = b->from + (row % room * b->files + i) * PARITY_CHUNK;
        for (int k = 0; k < b->parities; k++)
            sum[k] = b->to + (row % room * b->parities + k) * PARITY_CHUNK;
        ec_encode_data(PARITY_CHUNK, b->files, b->parities, tables, data, sum);
    }
    return gb_per_s((double)rows * b->files * b->parities * PARITY_CHUNK, start);
}

static int make_group(struct bench *b, const char *dir, struct err *err)
{
    struct group *g = &b->g;
    int64_t n = b->bytes / 8;
    g->members = b->files + b->parities;
    g->keeps = b->parities;
    help_scratch(g->root, dir);
    for (int i = 0; i < g->members; i++) {
        state_add(&g->states[i], CKPT_F64, 1, &n);
        uint64_t *words = (uint64_t *)(void *)g->states[i].bytes[0];
        for (int64_t w = 0; w < n; w++)
            words[w] = ((uint64_t)w * 2 + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
        snprintf(g->dirs[i], sizeof g->dirs[i], "%s/n%d", g->root, i);
        snprintf(g->names[i], sizeof g->names[i], "n%d", i);
    }
    return group_open(g, 1, err);
}

/* A checkpoint, of which only the parity's part is timed; commits what it has made. */
static int encode(struct bench *b, int round, struct err *err)
{
    struct group *g = &b->g;
    struct ckpt_position position = {round + 1, round + 1};
    char *claims[GROUP_MOST] = {NULL}, *record;
    int rv = 0;
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_save(g->ckpts[i], &position, NULL, err) ||
             ckpt_wait(g->ckpts[i], help_soon(), err);
    int64_t start = clock_ns();
    if (!rv)
        rv = group_encode(g, position.step, err);
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_parity_wait(g->parities[i], help_soon(), err);
    b->rate[ENCODE][round] =
        gb_per_s((double)g->members * (double)b->bytes * (double)b->parities, start);
    for (int i = 0; i < g->members && !rv; i++) {
        char *claim = ckpt_claim(g->ckpts[i], position.step, err);
        claims[i] = claim ? ckpt_parity_claim(g->parities[i], position.step, 0, claim, err) : NULL;
        rv = claims[i] ? 0 : -1;
        free(claim);
    }
    record = rv ? NULL : ckpt_record((const char *const *)claims, g->members, err);
    rv = record ? 0 : -1;
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_commit(g->ckpts[i], position.step, record, err) ||
             ckpt_wait(g->ckpts[i], help_soon(), err);
    for (int i = 0; i < g->members; i++)
        free(claims[i]);
    free(record);
    return rv;
}

/* As many members as may be lose their files; one gets it back. */
static int rebuild(struct bench *b, int round, struct err *err)
{
    struct ckpt_decision d;
    int rv = group_decide(&b->g, &d, err);
    for (int i = 0; i < b->parities && !rv; i++) {
        unlink(d.places[i].path);
        unlink(d.parities[i].path);
    }
    ckpt_decision_free(&d);
    rv = rv || group_decide(&b->g, &d, err);
    if (!rv && d.lost != b->parities)
        rv = err_set(err, "%d files are lost, not %d", d.lost, b->parities);
    int64_t start = clock_ns();
    if (!rv)
        rv = group_rebuild(&b->g, &d, 0, err);
    b->rate[REBUILD][round] = gb_per_s((double)b->bytes * b->files, start);
    ckpt_decision_free(&d);
    return rv;
}

static int run(struct bench *b, struct err *err)
{
    int64_t file_chunks = b->bytes / PARITY_CHUNK;
    int members = b->files + b->parities;
    for (int i = 0; i < b->rounds; i++) {
        b->rate[COPY][i] = copy(b, file_chunks * members * b->parities);
        b->rate[SUMS][i] = sums(b, file_chunks * members / b->files);
        if (encode(b, i, err))
            return complain("encode", err);
        b->rate[COPY_BACK][i] = copy(b, file_chunks * b->files);
        if (rebuild(b, i, err))
            return complain("rebuild", err);
    }
    printf("rs:%d+%d, files of %.0f MB, %d rounds\n", b->files, b->parities, (double)b->bytes / 1e6,
           b->rounds);
    print_spread("memcpy", "GB/s", b->rate[COPY], b->rounds);
    print_spread("ISA-L, sums alone", "GB/s", b->rate[SUMS], b->rounds);
    print_spread("encode", "GB/s", b->rate[ENCODE], b->rounds);
    print_spread("rebuild", "GB/s", b->rate[REBUILD], b->rounds);
    print_ratio(b, "encode / memcpy", ENCODE, COPY);
    print_ratio(b, "encode / ISA-L", ENCODE, SUMS);
    print_ratio(b, "rebuild / memcpy", REBUILD, COPY_BACK);
    print_ratio(b, "rebuild / ISA-L", REBUILD, SUMS);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err err;
    const char *dir = argc > 1 ? argv[1] : "/dev/shm";
    b.bytes = (argc > 2 ? atoll(argv[2]) : 128) << 20;
    b.files = argc > 3 ? atoi(argv[3]) : 4;
    b.parities = argc > 4 ? atoi(argv[4]) : 2;
    b.rounds = argc > 5 ? atoi(argv[5]) : 7;
    if (b.bytes < 16 << 20 || b.files < 1 || b.parities < 1 || b.files + b.parities > GROUP_MOST ||
        b.rounds < 1 || b.rounds > ROUNDS_MAX) {
        fprintf(stderr,
                "usage: bench_parity [DIR [MEGABYTES (16 or more) [FILES [PARITIES (up to "
                "%d in all) [ROUNDS]]]]]\n",
                GROUP_MOST);
        return 2;
    }
    b.from = malloc((size_t)b.bytes);
    b.to = malloc((size_t)b.bytes);
    if (!b.from || !b.to)
        return 1;
    memset(b.from, 1, (size_t)b.bytes);
    memset(b.to, 2, (size_t)b.bytes);
    int rv = make_group(&b, dir, &err) ? complain(dir, &err) : run(&b, &err);
    group_drop(&b.g);
    free(b.from);
    free(b.to);
    return rv;
}
