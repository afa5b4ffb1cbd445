/* test_fill.c - a rank's tensors out of pieces, window by window: every element once and in its
 * place, few and whole copies, little memory. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "alone.h"
#include "crc.h"
#include "files.h"
#include "memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static uint64_t random_state;

static int64_t below(int64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* ---- parts and windows ---- */

/* Shapes and the parts that fit 32 bytes, by hand: lengths in bytes. */
static const struct {
    int dims;
    int64_t shape[CKPT_MAX_DIMS];
    const char *parts;
} cuts[] = {
    {0, {0}, "4"},                 /* a scalar */
    {1, {20}, "32 32 16"},         /* 8 elements at a time */
    {2, {3, 2}, "24"},             /* all of it */
    {2, {5, 3}, "24 24 12"},       /* two rows of 12 at a time */
    {2, {2, 9}, "32 4 32 4"},      /* a row of 36 is too long */
    {2, {4, 0}, ""},               /* empty */
    {3, {2, 3, 3}, "24 12 24 12"}, /* 36 are too long, rows of 12 not */
    {4, {1, 2, 1, 8}, "32 32"},
};

static void parts_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct ckpt_tensor t = {.name = "t", .dtype = CKPT_F32, .dims = cuts[i].dims};
        struct layout layout;
        struct windows w;
        struct err err;
        char text[128] = "";
        for (int d = 0; d < t.dims; d++)
            t.global[d] = t.shape[d] = cuts[i].shape[d];
        ok(layout_make(&layout, &t, 1, &err));
        ok(windows_make(&w, &layout, 32, &err));
        for (int p = 0; p < w.n; p++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", p ? " " : "",
                     (long long)w.parts[p].bytes);
        assert_string_equal(text, cuts[i].parts);
        windows_free(&w);
        layout_free(&layout);
    }
}

static void random_tensor(struct ckpt_tensor *t, char *name, int number)
{
    snprintf(name, 16, "t%d", number);
    *t = (struct ckpt_tensor){.name = name, .dtype = (enum ckpt_dtype)below(HELP_DTYPES)};
    t->dims = (int)below(CKPT_MAX_DIMS + 1);
    for (int d = 0; d < t->dims; d++) {
        t->global[d] = 1 + below(7);
        t->offset[d] = below(t->global[d]);
        t->shape[d] = below(8) ? 1 + below(t->global[d] - t->offset[d]) : 0;
    }
}

/* Parts follow each other, cover each tensor, fit the buffer, and windows are never mixed. */
static void check_windows(const struct windows *w, const struct layout *layout, int64_t most)
{
    int64_t at = 0, end = 0;
    int tensor = 0, window = 0;
    for (int i = 0; i < w->n; i++) {
        const struct window_part *p = &w->parts[i];
        while (tensor < p->tensor) {
            assert_int_equal(at, help_bytes(&layout->tensors[tensor].tensor));
            tensor++;
            at = 0;
        }
        assert_int_equal(p->at, at);
        at += p->bytes;
        assert_in_range(p->window, window, window + 1);
        if (p->window != window)
            end = 0;
        window = p->window;
        assert_true(p->place >= end);
        end = p->place + p->bytes;
        assert_true(end <= most && end <= w->bytes);
        assert_ptr_equal(windows_find(w, tensor, p->at), p);
        assert_ptr_equal(windows_find(w, tensor, p->at + p->bytes - 1), p);
    }
    assert_int_equal(window + (w->n > 0), w->n_windows);
}

static void random_windows(void **state)
{
    (void)state;
    random_state = 3;
    for (int round = 0; round < 300; round++) {
        struct ckpt_tensor tensors[6];
        char names[6][16];
        struct layout layout;
        struct windows w;
        struct err err;
        int64_t most = 8 * (1 + below(40));
        int n = 1 + (int)below(6);
        for (int i = 0; i < n; i++)
            random_tensor(&tensors[i], names[i], i);
        ok(layout_make(&layout, tensors, n, &err));
        ok(windows_make(&w, &layout, most, &err));
        check_windows(&w, &layout, most);
        windows_free(&w);
        layout_free(&layout);
    }
}

/* ---- filling ---- */

enum { TENSORS = 8, SOURCES = 5, BYTES_MAX = 1 << 20 };

/* A rank's tensors, and how often each byte of them was handed over. */
struct filled {
    struct ckpt_tensor tensors[TENSORS];
    char names[TENSORS][16];
    unsigned char *bytes[TENSORS], *seen[TENSORS];
    int calls;
};

static int take(void *arg, int i, int64_t at, const void *host, int64_t bytes, struct err *err)
{
    struct filled *f = arg;
    (void)err;
    assert_true(at >= 0 && bytes > 0 && at + bytes <= help_bytes(&f->tensors[i]));
    memcpy(f->bytes[i] + at, host, (size_t)bytes);
    for (int64_t b = at; b < at + bytes; b++)
        f->seen[i][b]++;
    f->calls++;
    return 0;
}

static int give_nothing(void *arg, int i, void *host, struct err *err)
{
    (void)arg, (void)i, (void)host;
    return err_set(err, "nothing is saved here");
}

/* The bytes of an element depend on the tensor and on where in the global one it is. */
static unsigned char element_byte(int tensor, const struct ckpt_tensor *t, const int64_t *at,
                                  int64_t byte)
{
    int64_t index = 0;
    for (int d = 0; d < t->dims; d++)
        index = index * t->global[d] + at[d];
    return state_byte(1, tensor, index * 8 + byte);
}

/* All bytes of a box, row-major. */
static unsigned char *box_bytes(int tensor, const struct ckpt_tensor *t, const int64_t *offset,
                                const int64_t *shape, int64_t *n)
{
    const int *size = help_element_bytes;
    int64_t elements = 1, at[CKPT_MAX_DIMS];
    for (int d = 0; d < t->dims; d++)
        elements *= shape[d];
    *n = elements * size[t->dtype];
    unsigned char *out = malloc((size_t)*n + 1);
    assert_non_null(out);
    for (int64_t e = 0; e < elements; e++) {
        int64_t rest = e;
        for (int d = t->dims - 1; d >= 0; d--) {
            at[d] = offset[d] + rest % shape[d];
            rest /= shape[d];
        }
        for (int b = 0; b < size[t->dtype]; b++)
            out[e * size[t->dtype] + b] = element_byte(tensor, t, at, b);
    }
    return out;
}

static void filled_make(struct filled *f)
{
    for (int i = 0; i < TENSORS; i++) {
        struct ckpt_tensor *t = &f->tensors[i];
        random_tensor(t, f->names[i], i);
        if (i % 2 && t->dims) { /* larger than a window */
            t->global[0] = 2000 + below(2000);
            t->offset[0] = below(100);
            t->shape[0] = 1 + below(t->global[0] - t->offset[0]);
        }
        size_t n = (size_t)help_bytes(t);
        f->bytes[i] = malloc(n + 1);
        f->seen[i] = calloc(n + 1, 1);
        assert_true(f->bytes[i] && f->seen[i]);
        memset(f->bytes[i], 0xee, n);
    }
}

static void filled_free(struct filled *f)
{
    for (int i = 0; i < TENSORS; i++) {
        free(f->bytes[i]);
        free(f->seen[i]);
    }
}

/* The tensor's slice in up to SOURCES pieces, along one of its dimensions. */
static void cut_into(struct filled *f, int tensor, struct ckpt_piece *pieces, int *n)
{
    const struct ckpt_tensor *t = &f->tensors[tensor];
    int64_t at = 0;
    int axis = t->dims ? (int)below(t->dims) : 0;
    if (!help_bytes(t))
        return;
    for (int s = 0; s < SOURCES; s++) {
        struct ckpt_piece p = {.source = s, .to = tensor};
        int64_t left = t->dims ? t->shape[axis] - at : !at;
        int64_t part = s == SOURCES - 1 ? left : below(left + 1);
        memcpy(p.offset, t->offset, sizeof p.offset);
        memcpy(p.shape, t->shape, sizeof p.shape);
        if (t->dims) {
            p.offset[axis] += at;
            p.shape[axis] = part;
        }
        at += part;
        if (part)
            pieces[(*n)++] = p;
    }
}

static int fill_all(struct ckpt *c, const struct filled *f, const struct ckpt_piece *pieces, int n,
                    struct err *err)
{
    if (ckpt_fill_begin(c, err))
        return -1;
    for (int i = 0; i < n; i++) {
        int64_t bytes;
        const struct ckpt_piece *p = &pieces[i];
        unsigned char *b = box_bytes(p->to, &f->tensors[p->to], p->offset, p->shape, &bytes);
        int64_t half = below(bytes + 1);
        int rv = ckpt_fill_piece(c, p, err) || ckpt_fill_put(c, b, (size_t)half, err) ||
                 ckpt_fill_put(c, b + half, (size_t)(bytes - half), err);
        free(b);
        if (rv)
            return -1;
    }
    return ckpt_fill_end(c, err);
}

/* missing: the tensor that no piece was for. */
static void check_filled(const struct filled *f, int missing)
{
    for (int i = 0; i < TENSORS; i++) {
        int64_t n;
        const struct ckpt_tensor *t = &f->tensors[i];
        unsigned char *want = box_bytes(i, t, t->offset, t->shape, &n);
        if (i == missing)
            memset(want, 0, (size_t)n);
        for (int64_t b = 0; b < n; b++) {
            if (f->bytes[i][b] != want[b] || f->seen[i][b] != 1)
                fail_msg("byte %lld of %lld of tensor %d is %02x, handed over %d times; %02x, once",
                         (long long)b, (long long)n, i, f->bytes[i][b], f->seen[i][b], want[b]);
        }
        free(want);
    }
}

static void random_pieces(void **state)
{
    (void)state;
    random_state = 11;
    for (int round = 0; round < 60; round++) {
        struct filled f = {.calls = 0};
        struct ckpt_io io = {.copy_out = give_nothing, .copy_in = take, .arg = &f};
        struct ckpt_piece *pieces = calloc(TENSORS * SOURCES, sizeof *pieces);
        struct ckpt *c;
        struct err err;
        int n = 0, missing = round % 4 ? -1 : (int)below(TENSORS);
        assert_non_null(pieces);
        filled_make(&f);
        for (int i = 0; i < TENSORS; i++)
            if (i != missing)
                cut_into(&f, i, pieces, &n);
        ok(ckpt_open_filler(&c, f.tensors, TENSORS, &io, &err));
        ok(ckpt_fill_order(c, &pieces, &n, &err));
        ok(fill_all(c, &f, pieces, n, &err));
        check_filled(&f, missing);
        assert_int_equal(f.calls, c->windows.n); /* each part in one copy */
        free(pieces);
        filled_free(&f);
        ckpt_close(c, 0);
    }
}

static void what_is_out_of_order_is_refused(void **state)
{
    (void)state;
    struct filled f = {.calls = 0};
    struct ckpt_io io = {.copy_out = give_nothing, .copy_in = take, .arg = &f};
    static char zeros[40000];
    struct ckpt *c;
    struct err err;
    f.tensors[0] = (struct ckpt_tensor){
        .name = "t", .dtype = CKPT_F32, .dims = 2, .global = {100, 100}, .shape = {100, 100}};
    f.bytes[0] = malloc(sizeof zeros);
    f.seen[0] = calloc(sizeof zeros, 1);
    struct ckpt_piece first = {.shape = {5, 100}}, last = {.offset = {95}, .shape = {5, 100}},
                      all = {.shape = {100, 100}}, outside = {.offset = {95}, .shape = {6, 100}},
                      *list = malloc(sizeof *list);
    int n = 1;
    assert_true(f.bytes[0] && f.seen[0] && list);
    ok(ckpt_open_filler(&c, f.tensors, 1, &io, &err));
    refused(ckpt_fill_piece(c, &first, &err), "not in this rank's slice"); /* not begun */
    refused(ckpt_fill_end(c, &err), "nothing was begun");
    *list = outside;
    refused(ckpt_fill_order(c, &list, &n, &err), "not in this rank's slice");
    *list = (struct ckpt_piece){.to = 1};
    refused(ckpt_fill_order(c, &list, &n, &err), "tensor 1 of 1");
    ok(ckpt_fill_begin(c, &err));
    refused(ckpt_fill_piece(c, &all, &err), "out of order"); /* more than a window */
    ok(ckpt_fill_piece(c, &last, &err));
    refused(ckpt_fill_piece(c, &first, &err), "out of order");
    refused(ckpt_fill_put(c, zeros, 1, &err), "1 bytes more");
    ok(ckpt_fill_piece(c, &last, &err));
    refused(ckpt_fill_put(c, zeros, 2001, &err), "more than the piece has");
    free(list);
    filled_free(&f);
    ckpt_close(c, 0);
}

/* ---- files ---- */

struct opener {
    const char *dir;
    int opened;
};

static int open_one(void *arg, int number, struct ckpt_file **out, struct err *err)
{
    struct opener *o = arg;
    char path[400];
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s1.r%d.safetensors", o->dir, number);
    o->opened++;
    return ckpt_file_open(out, path, err);
}

/* Ranks' halves or so of one array of side * side, cut by columns. */
static void write_columns(const char *dir, int64_t side, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        struct state s = {.n = 0};
        struct ckpt_options o = help_options(dir, 1);
        struct ckpt_io io = state_io(&s);
        struct ckpt *c;
        struct err err;
        state_add(&s, CKPT_F32, 2, (int64_t[]){side, side / ranks});
        s.tensors[0].name = "field";
        s.tensors[0].global[1] = side;
        s.tensors[0].offset[1] = side / ranks * r;
        for (int64_t row = 0, i = 0; row < side; row++)
            for (int64_t column = 0; column < side / ranks; column++, i++)
                ((float *)s.bytes[0])[i] = (float)(row * 7 + column + side / ranks * r);
        o.rank = r;
        o.world = ranks;
        o.leader = false;
        ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
        ok(ckpt_save(c, &(struct ckpt_position){1, 1}, NULL, &err));
        ok(ckpt_wait(c, help_soon(), &err));
        ckpt_close(c, help_soon());
        state_free(&s);
    }
}

static void files_are_kept_open(void **state)
{
    (void)state;
    char dir[256];
    struct err err;
    help_scratch(dir, NULL);
    write_columns(dir, 64, 4);
    struct opener o = {.dir = dir};
    struct files f = {.open = open_one, .arg = &o, .most = 2};
    struct ckpt_file *first = files_get(&f, 0, &err);
    assert_non_null(first);
    assert_non_null(files_get(&f, 1, &err));
    assert_ptr_equal(files_get(&f, 0, &err), first);
    assert_int_equal(o.opened, 2);
    assert_non_null(files_get(&f, 2, &err)); /* in the place of 1 */
    assert_ptr_equal(files_get(&f, 0, &err), first);
    assert_int_equal(o.opened, 3);
    assert_null(files_get(&f, 9, &err));
    assert_ptr_equal(files_get(&f, 0, &err), first);
    assert_non_null(files_get(&f, 1, &err));
    assert_int_equal(o.opened, 5);
    files_close(&f);
    help_remove(dir);
    assert_int_equal(files_most(0), 2);
    assert_int_equal(files_most(INT64_C(256) << 20), 8);
    assert_int_equal(files_most(INT64_MAX), FILES_MOST);
}

/* ---- memory ---- */

static int64_t memory_bytes(const char *key)
{
    char line[256];
    int64_t kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            kib = atoll(line + strlen(key) + 1);
    if (f)
        fclose(f);
    return kib * 1024;
}

static void forget_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    assert_true(fd >= 0 && write(fd, "5", 1) == 1);
    close(fd);
}

/* The copy buffer of a save is memory only once it is taken. */
static void the_buffer_is_taken_later(void **state)
{
    (void)state;
    enum { STATE = 32 << 20 };
    char dir[256];
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt *c;
    struct err err;
    help_scratch(dir, NULL);
    struct ckpt_options o = help_options(dir, 1);
    state_add(&s, CKPT_F32, 1, (int64_t[]){STATE / 4});
    int64_t before = memory_bytes("VmRSS:");
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    int64_t opened = memory_bytes("VmRSS:");
    assert_in_range(ckpt_buffer_bytes(c), STATE, STATE + 65536);
    ok(ckpt_buffer_take(c, &err));
    int64_t taken = memory_bytes("VmRSS:");
    ok(ckpt_buffer_take(c, &err));
    assert_in_range(opened - before + (1 << 20), 0, STATE / 4);
    assert_in_range(taken - opened, STATE - STATE / 8, STATE + STATE / 8);
    ckpt_close(c, help_soon());
    state_free(&s);
    help_remove(dir);
}

/* ---- files of states that are never whole in memory ---- */

static char *read_whole(const char *dir, const char *name, size_t *n)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    char *p = malloc(*n + 1);
    rewind(f);
    assert_true(p && fread(p, 1, *n, f) == *n);
    fclose(f);
    return p;
}

static struct alone alone_of(const char *dir)
{
    struct ckpt_options o = help_options(dir, 1);
    return (struct alone){.dir = dir,
                          .node = o.node,
                          .run_id = o.run_id,
                          .world = 1,
                          .epoch = 1,
                          .plan_hash = o.plan_hash,
                          .position = {3, 24}};
}

/* Byte for byte the file that a save makes, whatever goes through the buffer together. */
static void thin_files_are_the_same(void **state)
{
    (void)state;
    static const char name[] = "run-1.e1.g1.s3.r0.safetensors";
    char thick[256], thin[256];
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt *c;
    struct err err;
    help_scratch(thick, NULL);
    help_scratch(thin, NULL);
    state_add(&s, CKPT_F32, 1, (int64_t[]){700000});
    for (int i = 0; i < 40; i++)
        state_add(&s, i % 2 ? CKPT_BF16 : CKPT_F64, 2, (int64_t[]){i, 31 * i});
    state_add(&s, CKPT_F32, 0, NULL);
    state_add(&s, CKPT_F32, 2, (int64_t[]){2500, 2048}); /* over 16 MiB */
    state_add(&s, CKPT_I64, 1, (int64_t[]){9});
    state_fill(&s, 3);
    struct ckpt_options o = help_options(thick, 1);
    ok(ckpt_open(&c, &o, s.tensors, s.n, &io, &err));
    ok(help_checkpoint(c, 3, &err));
    ckpt_close(c, help_soon());
    struct alone a = alone_of(thin);
    ok(alone_open(&a, &err));
    ok(alone_write(&a, 0, s.tensors, s.n, state_out, &s, &err));
    alone_close(&a);
    size_t n[2];
    char *bytes[2] = {read_whole(thick, name, &n[0]), read_whole(thin, name, &n[1])};
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
    state_free(&s);
    help_remove(thick);
    help_remove(thin);
}

enum { THIN_TENSORS = 24, THIN_TENSOR = 3 << 20 };

static int make_bytes(void *arg, int i, void *host, struct err *err)
{
    (void)arg, (void)err;
    memset(host, i + 1, THIN_TENSOR);
    return 0;
}

/* 72 MiB go through 16. */
static void thin_files_need_little_memory(void **state)
{
    (void)state;
    char dir[256];
    struct state s = {.n = 0};
    struct err err;
    help_scratch(dir, NULL);
    for (int i = 0; i < THIN_TENSORS; i++) {
        struct ckpt_tensor *t = &s.tensors[i];
        snprintf(s.names[i], sizeof s.names[i], "w.%d", i);
        *t = (struct ckpt_tensor){.name = s.names[i], .dtype = CKPT_F32, .dims = 1};
        t->global[0] = t->shape[0] = THIN_TENSOR / 4;
    }
    struct alone a = alone_of(dir);
    ok(alone_open(&a, &err));
    forget_peak();
    int64_t before = memory_bytes("VmRSS:");
    ok(alone_write(&a, 0, s.tensors, THIN_TENSORS, make_bytes, NULL, &err));
    int64_t took = memory_bytes("VmHWM:") - before;
    alone_close(&a);
    help_remove(dir);
    if (!SANITIZED)
        assert_in_range(took, 0, 24 << 20);
}

enum { SIDE = 3072, COLUMN_FILES = 3 }; /* 36 MiB */

/* Out of files that cut every row, or (files 1) of the rank's own. -1: wrong values. */
static double restore_peak(const char *dir, int files)
{
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt_options o = help_options(dir, 2);
    struct ckpt_place places[COLUMN_FILES] = {{0}};
    struct ckpt_decision d = {.found = true, .world = files, .places = places};
    struct ckpt *c;
    struct ckpt_file *file;
    struct err err;
    char paths[COLUMN_FILES][400];
    o.rank = 9;
    o.world = 10;
    o.leader = false;
    state_add(&s, CKPT_F32, 2, (int64_t[]){SIDE, SIDE});
    s.tensors[0].name = "field";
    for (int i = 0; i < files; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/run-1.e1.g1.s1.r%d.safetensors", dir, i);
        places[i].path = paths[i];
        if (ckpt_file_open(&file, paths[i], &err))
            return -1;
        places[i].digest = ckpt_file_digest(file);
        ckpt_file_close(file);
    }
    memset(s.bytes[0], 1, (size_t)s.sizes[0]);
    if (ckpt_open(&c, &o, s.tensors, s.n, &io, &err))
        return -1;
    forget_peak();
    int64_t before = memory_bytes("VmRSS:");
    if (ckpt_restore_from(c, &d, &err))
        return -1;
    int64_t peak = memory_bytes("VmHWM:");
    for (int64_t i = 0; i < (int64_t)SIDE * SIDE; i++)
        if (((float *)s.bytes[0])[i] != (float)(i / SIDE * 7 + i % SIDE))
            return -1;
    ckpt_close(c, help_soon());
    double bytes = (double)s.sizes[0];
    state_free(&s);
    return (bytes + (double)(peak - before)) / bytes;
}

/* In a process of its own, so that what others have freed does not count. */
static void a_restore_needs_little_memory(void **state)
{
    (void)state;
    char dir[256];
    double *peak =
        mmap(NULL, sizeof *peak, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(peak != MAP_FAILED);
    if (SANITIZED) { /* which has memory of its own */
        munmap(peak, sizeof *peak);
        skip();
    }
    for (int files = COLUMN_FILES; files; files = files > 1 ? 1 : 0) {
        int status;
        help_scratch(dir, NULL);
        write_columns(dir, SIDE, files);
        pid_t pid = fork();
        if (!pid) {
            *peak = restore_peak(dir, files);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        if (!(*peak >= 1 && *peak < 1.2))
            fail_msg("out of %d files: %.3f times the state; less than 1.2 is allowed", files,
                     *peak);
        help_remove(dir);
    }
    munmap(peak, sizeof *peak);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_by_hand),
        cmocka_unit_test(random_windows),
        cmocka_unit_test(random_pieces),
        cmocka_unit_test(what_is_out_of_order_is_refused),
        cmocka_unit_test(files_are_kept_open),
        cmocka_unit_test(the_buffer_is_taken_later),
        cmocka_unit_test(thin_files_are_the_same),
        cmocka_unit_test(thin_files_need_little_memory),
        cmocka_unit_test(a_restore_needs_little_memory),
    };
    return cmocka_run_group_tests_name("fill", tests, NULL, NULL);
}
