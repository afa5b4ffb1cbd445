/* test_space.c - a disk that has room for a run's checkpoints, and for nothing else: sums, and runs
 * that are cut off and started again on one, which must never want more than they were admitted
 * with. */
#include "ckpt_help.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "log.h"
#include "space.h"

/* ---- sums ---- */

static void test_sums(void **unused)
{
    (void)unused;
    enum { B = SPACE_FILE_BYTES };
    static const struct {
        struct space_use use;
        int64_t all, first;
    } table[] = {
        {{.keep = 2, .own = 100}, 3 * (100 + B), 100 + B},
        {{.keep = 2, .ahead = 3, .own = 100}, 6 * (100 + B), 4 * (100 + B)},
        {{.keep = 2, .held = 1, .own = 100}, 4 * (100 + B), 100 + B},
        {{.keep = 4, .ahead = 1, .own = 100, .ward = 300}, 6 * (400 + 2 * B), 2 * (400 + 2 * B)},
        {{.keep = 2, .own = 100, .parity = 50, .log = 7}, 3 * (150 + 2 * B) + 7, 157 + 2 * B},
        /* what is held is this rank's own file */
        {{.keep = 2, .held = 1, .own = 1, .ward = 5, .parity = 3},
         3 * (9 + 3 * B) + 1 + B,
         9 + 3 * B},
        {{.keep = 1000, .own = INT64_MAX / 2},
         INT64_C(1000000000000000000),
         INT64_C(1000000000000000000)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(space_all(&table[i].use), table[i].all);
        assert_int_equal(space_first(&table[i].use), table[i].first);
    }
    assert_int_equal(space_log(1, 66), CKPT_LOG_COMPACT_BYTES + 67 * 1024);
}

/* ---- retention where space is short ---- */

/* Epoch 1 had committed 60 to 100; 90 was restored, as 100 could not be read. */
static void test_tight_retention(void **unused)
{
    (void)unused;
    static const struct {
        int keep, own;
        const char *stays; /* of epoch 2: its own; then 100, 90, 80, 70, 60 */
    } table[] = {
        {2, 0, "01100"}, {2, 1, "101000"}, {2, 2, "1100000"}, {3, 1, "1011000"}, {4, 0, "01111"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_key keys[8];
        int own = table[i].own;
        for (int k = 0; k < own; k++)
            keys[k] = (struct ckpt_key){2, 1, 110 - k};
        for (int k = 0; k < 5; k++)
            keys[own + k] = (struct ckpt_key){1, 1, 100 - 10 * k};
        struct commits c = {.keys = keys,
                            .n = own + 5,
                            .own = own,
                            .restored = true,
                            .tight = true,
                            .restored_from = {1, 1, 90},
                            .trial_step = 90};
        int kept = 0;
        for (int k = 0; table[i].stays[k]; k++) {
            bool stays = retain_file(&c, table[i].keep, &keys[k]);
            kept += stays;
            if (stays != (table[i].stays[k] == '1'))
                fail_msg("row %zu: step %d", i, (int)keys[k].step);
        }
        assert_true(kept <= table[i].keep);
    }
}

/* ---- a disk of its own ---- */

enum { OWN_ELEMENTS = 170000, WARD = 1, WARD_BYTES = 900000, PARITY_BYTES = 300000, KEEP = 2 };

/* What a case is, and what its lives see: all that is theirs lies in shared memory or on the disk.
 */
struct disk {
    char dir[300];
    int ahead;
    bool ward, parity;
    int64_t size; /* of the file system */
};

static int complain(const struct disk *d, const char *what, const struct err *err)
{
    fprintf(stderr, "# ahead %d%s%s: %s: %s\n", d->ahead, d->ward ? ", a ward" : "",
            d->parity ? ", parity" : "", what, err ? err->text : strerror(errno));
    return -1;
}

static struct ckpt_options options_of(const struct disk *d, uint32_t epoch)
{
    struct ckpt_options o = help_options(d->dir, epoch);
    o.ahead = d->ahead;
    o.wards = d->ward;
    o.ward = WARD;
    o.ward_bytes = WARD_BYTES;
    o.parity_bytes = d->parity ? PARITY_BYTES : 0;
    return o;
}

/* A file that others than the writer make. */
static int put_file(const struct disk *d, enum name_kind kind, uint32_t epoch, int64_t step,
                    int64_t bytes)
{
    struct ckpt_name name = {.kind = kind,
                             .run = "run-1",
                             .key = {epoch, 1, step},
                             .rank = kind == NAME_FILE || kind == NAME_COPY_PART ? WARD : 0};
    char text[CKPT_NAME_ROOM], path[600];
    name_format(&name, text);
    snprintf(path, sizeof path, "%s/%s", d->dir, text);
    int fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600), rv = -1;
    if (fd >= 0 && !fallocate(fd, 0, 0, bytes))
        rv = 0;
    if (fd >= 0)
        close(fd);
    return rv ? complain(d, text, NULL) : 0;
}

/* What comes from other nodes for a step, once this rank's own writer is at it. */
static int put_others(const struct disk *d, uint32_t epoch, int64_t step, bool half)
{
    if (d->ward && put_file(d, half ? NAME_COPY_PART : NAME_FILE, epoch, step, WARD_BYTES))
        return -1;
    return d->parity ? put_file(d, half ? NAME_PARITY_PART : NAME_PARITY, epoch, step, PARITY_BYTES)
                     : 0;
}

/* All that is counted and is not files: the rest of the disk must do without. */
static int fill_rest(const struct disk *d, const struct ckpt *c)
{
    char path[400];
    int64_t each = engine_file_bytes(c) + (d->ward ? WARD_BYTES : 0) +
                   (d->parity ? PARITY_BYTES : 0) + 3 * CKPT_ALIGN;
    int64_t rest = d->size - (KEEP + d->ahead + 1) * each - 65536;
    snprintf(path, sizeof path, "%s/filler", d->dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    int rc = fd < 0 || fallocate(fd, 0, 0, rest);
    if (fd >= 0)
        close(fd);
    return rc ? complain(d, "filler", NULL) : 0;
}

static int commit(struct ckpt *c, int64_t step, struct err *err)
{
    char *claim = ckpt_claim(c, step, err);
    char *record = claim ? ckpt_record((const char *const *)&claim, 1, err) : NULL;
    int rv = record ? ckpt_commit(c, step, record, err) : -1;
    free(claim);
    free(record);
    return rv;
}

static int begin_life(const struct disk *d, struct ckpt *c, int64_t *from, struct err *err)
{
    struct ckpt_decision decision;
    struct ckpt_space s;
    if (help_decide(d->dir, -1, &decision, err))
        return -1;
    *from = decision.found ? decision.position.step : 0;
    int rv = decision.found ? ckpt_adopt(c, decision.record, err) : 0;
    ckpt_decision_free(&decision);
    if (rv || ckpt_space(c, &s, err))
        return -1;
    if (s.all > s.available + s.there || s.first > s.available + s.loose)
        return err_set(err,
                       "admitted, and it does not fit: %lld and %lld are asked for, %lld and %lld "
                       "there and free",
                       (long long)s.all, (long long)s.first, (long long)(s.there + s.available),
                       (long long)(s.loose + s.available));
    return s.first > s.available ? ckpt_tighten(c, help_soon(), err) : 0;
}

/* As the training loop: a save begins when at most `ahead` files wait for their commit. It is cut
 * off while others' are made of the last. */
static int train(const struct disk *d, struct ckpt *c, uint32_t epoch, int64_t from, int steps,
                 struct err *err)
{
    for (int64_t step = from + 1; step <= from + steps; step++) {
        int64_t oldest = step - 1 - d->ahead, finished;
        if (oldest > from && commit(c, oldest, err))
            return -1;
        if (ckpt_save(c, &(struct ckpt_position){step, step}, NULL, err) ||
            ckpt_wait(c, help_soon(), err) || ckpt_finished(c, &finished, err))
            return -1;
        if (put_others(d, epoch, step, step == from + steps))
            return err_set(err, "step %d", (int)step);
    }
    return 0;
}

/* Its process ends as if it had been killed. */
static int live(const struct disk *d, uint32_t epoch, int steps)
{
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt *c;
    struct err err;
    char filler[400];
    int64_t from;
    state_add(&s, CKPT_F32, 1, &(int64_t){OWN_ELEMENTS});
    state_fill(&s, epoch);
    snprintf(filler, sizeof filler, "%s/filler", d->dir);
    unlink(filler);
    struct ckpt_options o = options_of(d, epoch);
    if (ckpt_open(&c, &o, s.tensors, s.n, &io, &err) || begin_life(d, c, &from, &err))
        return complain(d, "start", &err);
    if (fill_rest(d, c))
        return -1;
    return train(d, c, epoch, from, steps, &err) ? complain(d, "life", &err) : 0;
}

/* One block less, and it is refused, with the sum, before anything is made. */
static int refuse_less(const struct disk *d)
{
    struct state s = {.n = 0};
    struct ckpt_io io = state_io(&s);
    struct ckpt *c;
    struct err err;
    char options[64];
    state_add(&s, CKPT_F32, 1, &(int64_t){OWN_ELEMENTS});
    snprintf(options, sizeof options, "size=%lld", (long long)d->size - 4096);
    struct ckpt_options o = options_of(d, 1);
    if (mount("tmpfs", d->dir, "tmpfs", MS_REMOUNT, options))
        return complain(d, "remount", NULL);
    if (!ckpt_open(&c, &o, s.tensors, s.n, &io, &err) || !strstr(err.text, "too few"))
        return complain(d, "a smaller disk was not refused", &err);
    snprintf(options, sizeof options, "size=%lld", (long long)d->size);
    return mount("tmpfs", d->dir, "tmpfs", MS_REMOUNT, options) ? complain(d, "remount", NULL) : 0;
}

static int64_t disk_size(const struct disk *d)
{
    struct layout layout;
    struct err err;
    struct ckpt_tensor t = {.name = "layers.0.w",
                            .dtype = CKPT_F32,
                            .dims = 1,
                            .global = {OWN_ELEMENTS},
                            .shape = {OWN_ELEMENTS}};
    ok(layout_make(&layout, &t, 1, &err));
    struct space_use use = {.keep = KEEP,
                            .ahead = d->ahead,
                            .own = layout.header_bytes + layout.data_bytes,
                            .ward = d->ward ? WARD_BYTES : 0,
                            .parity = d->parity ? PARITY_BYTES : 0,
                            .log = space_log(1, KEEP + 64)};
    layout_free(&layout);
    return (space_all(&use) + 4095) / 4096 * 4096;
}

enum { EXIT_NO_MOUNT = 77 };

/* In a process of its own, where this file system is seen by nobody else. */
static int enter(const struct disk *d)
{
    char options[64];
    snprintf(options, sizeof options, "size=%lld,mode=0700", (long long)d->size);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", d->dir, "tmpfs", 0, options))
        return -1;
    return 0;
}

static int run_life(const struct disk *d, uint32_t epoch, int steps)
{
    int status;
    pid_t child = fork();
    if (!child)
        _exit(live(d, epoch, steps) ? 1 : 0);
    return child > 0 && waitpid(child, &status, 0) == child && !status ? 0 : -1;
}

static int run_lives(const struct disk *d)
{
    if (enter(d))
        return EXIT_NO_MOUNT;
    if (refuse_less(d))
        return 1;
    /* cut off with commits, then before the first one, then again with some */
    static const int steps[] = {9, 2, 1, 12};
    for (uint32_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (run_life(d, i + 1, steps[i]))
            return 1;
    return 0;
}

static void test_lives_on_a_full_disk(void **unused)
{
    (void)unused;
    static const struct disk cases[] = {
        {.ahead = 0},
        {.ahead = 3},
        {.ahead = 0, .ward = true},
        {.ahead = 1, .ward = true},
        {.ahead = 3, .ward = true},
        {.ahead = 0, .parity = true},
        {.ahead = 1, .parity = true},
        {.ahead = 3, .parity = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct disk d = cases[i];
        int status;
        help_scratch(d.dir, NULL);
        d.size = disk_size(&d);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            _exit(run_lives(&d));
        assert_int_equal(waitpid(child, &status, 0), child);
        help_remove(d.dir);
        if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_MOUNT)
            skip(); /* only where this user may mount */
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_tight_retention),
        cmocka_unit_test(test_lives_on_a_full_disk),
    };
    return cmocka_run_group_tests_name("space", tests, NULL, NULL);
}
