/* test_partner.c - who keeps whose copies, and copies that arrive whole or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "names.h"
#include "train/partner.h"

/* ---- who is whose ---- */

enum { MAX_WORLD = 16, WAIT_MS = 60000 };

static void partners(void **state)
{
    (void)state;
    static const struct {
        const char *leaves; /* one letter a node, in the order of ranks; . for no topology */
        int ranks;          /* a node */
        const char *partner;
    } table[] = {
        {"ab", 1, "1 0"},
        {"ab", 2, "2 3 0 1"},
        {"aabb", 1, "2 3 0 1"},
        {"abab", 1, "1 0 3 2"},
        /* the fullest leaf has half: all are somewhere else */
        {"aaabbc", 1, "3 4 5 0 1 2"},
        /* more than half under one leaf: only as many as there are others */
        {"aaab", 1, "3 0 1 2"},
        {"aaaa", 1, "1 2 3 0"},
        {"...", 1, "1 2 0"},
        {"a", 2, "-1 -1"},
    };
    for (size_t c = 0; c < sizeof table / sizeof *table; c++) {
        struct partner_seat seats[MAX_WORLD];
        int partner[MAX_WORLD], nodes = (int)strlen(table[c].leaves),
                                world = nodes * table[c].ranks;
        char text[128] = "";
        for (int r = 0; r < world; r++) {
            int node = r / table[c].ranks;
            snprintf(seats[r].node, sizeof seats[r].node, "n%d", node);
            seats[r].topology[0] = 0;
            if (table[c].leaves[node] != '.')
                snprintf(seats[r].topology, sizeof seats[r].topology, "spine.%c.n%d",
                         table[c].leaves[node], node);
        }
        assert_int_equal(partner_choose(seats, world, partner), nodes > 1);
        for (int r = 0; r < world; r++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", r ? " " : "",
                     partner[r]);
        assert_string_equal(text, table[c].partner);
    }
}

/* ---- a copy ---- */

struct rig {
    char root[64], own[128], there[128];
    unsigned char state[300000];
    struct ckpt *ckpt;
    struct ckpt_copy *copy;
    struct ckpt_place place;
    int64_t header_bytes;
};

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    (void)index;
    (void)err;
    memcpy(host, arg, sizeof((struct rig *)0)->state);
    return 0;
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    (void)index;
    (void)err;
    memcpy((char *)arg + at, host, (size_t)bytes);
    return 0;
}

static void check(int rv, const struct err *err)
{
    if (rv)
        fail_msg("%s", err->text);
}

static void open_ward(struct rig *r, const char *dir)
{
    struct err err;
    struct ckpt_options options = {.dir = dir,
                                   .node = "n0",
                                   .run_id = "run",
                                   .world = 2,
                                   .epoch = 3,
                                   .generation = 2,
                                   .keep = 2,
                                   .leader = true};
    struct ckpt_tensor tensor = {.name = "t",
                                 .dtype = CKPT_F32,
                                 .dims = 1,
                                 .global = {sizeof r->state / 4},
                                 .shape = {sizeof r->state / 4}};
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = r->state};
    check(ckpt_open(&r->ckpt, &options, &tensor, 1, &io, &err), &err);
}

static void save(struct rig *r, int64_t step)
{
    struct err err;
    check(ckpt_save(r->ckpt, &(struct ckpt_position){step, step}, NULL, &err), &err);
    check(ckpt_wait(r->ckpt, clock_ms() + WAIT_MS, &err), &err);
    check(ckpt_own_file(r->ckpt, step, &r->place, &err), &err);
    uint64_t length;
    FILE *in = fopen(r->place.path, "r");
    assert_non_null(in);
    assert_int_equal(fread(&length, sizeof length, 1, in), 1);
    fclose(in);
    r->header_bytes = (int64_t)length + 8;
}

static void begin(struct rig *r)
{
    struct err err;
    memset(r, 0, sizeof *r);
    strcpy(r->root, "/tmp/gtrain-partner-XXXXXX");
    assert_non_null(mkdtemp(r->root));
    snprintf(r->own, sizeof r->own, "%s/n0", r->root);
    snprintf(r->there, sizeof r->there, "%s/n1", r->root);
    for (size_t i = 0; i < sizeof r->state; i++)
        r->state[i] = (unsigned char)(i * 31 >> 3);
    open_ward(r, r->own);
    struct ckpt_copy_options options = {
        .dir = r->there, .run_id = "run", .epoch = 3, .generation = 2};
    check(ckpt_copy_open(&r->copy, &options, &err), &err);
}

static void drop_place(struct rig *r)
{
    free(r->place.node);
    free(r->place.path);
    r->place = (struct ckpt_place){0};
}

static void end(struct rig *r)
{
    char command[160];
    ckpt_copy_close(r->copy);
    ckpt_close(r->ckpt, clock_ms() + WAIT_MS);
    drop_place(r);
    snprintf(command, sizeof command, "rm -rf %s", r->root);
    assert_int_equal(system(command), 0);
}

static char *read_whole(const char *path, int64_t bytes)
{
    char *data = malloc((size_t)bytes);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_int_equal(fread(data, 1, (size_t)bytes, in), bytes);
    fclose(in);
    return data;
}

/* All of the file in pieces, or (header false) what is sent of it while it is written; byte `flip`
 * (-1: none) arrives changed. */
static int send_some(struct rig *r, int64_t step, int64_t flip, bool header, struct err *err)
{
    enum { PIECE = 70000 };
    char *data = read_whole(r->place.path, r->place.bytes);
    int64_t at = r->header_bytes, n;
    int rv = 0;
    for (; at >= 0 && (header || at) && !rv;
         at = ckpt_copy_next(r->header_bytes, r->place.bytes, at + n)) {
        int64_t left = ckpt_copy_end(r->header_bytes, r->place.bytes, at) - at;
        n = left < PIECE ? left : PIECE;
        struct ckpt_copy_piece p = {.step = step,
                                    .header = r->header_bytes,
                                    .total = r->place.bytes,
                                    .at = at,
                                    .n = n,
                                    .digest = r->place.digest,
                                    .data = malloc((size_t)n)};
        memcpy(p.data, data + at, (size_t)n);
        if (flip >= at && flip < at + n)
            ((char *)p.data)[flip - at] ^= 1;
        rv = ckpt_copy_put(r->copy, &p, err);
    }
    free(data);
    return rv ? rv : ckpt_copy_wait(r->copy, clock_ms() + WAIT_MS, err);
}

static int send(struct rig *r, int64_t step, int64_t flip, struct err *err)
{
    return send_some(r, step, flip, true, err);
}

static int files_in(const char *dir)
{
    char command[160];
    snprintf(command, sizeof command, "exit $(ls %s | wc -l)", dir);
    int status = system(command);
    return WEXITSTATUS(status);
}

/* The copy is the file, under its name; the original may go, and the decision finds the copy. */
static void copy_takes_its_place(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    int64_t step;
    begin(&r);
    save(&r, 5);
    check(send(&r, 5, -1, &err), &err);
    check(ckpt_copy_finished(r.copy, &step, &err), &err);
    assert_int_equal(step, 5);
    char *was = read_whole(r.place.path, r.place.bytes), path[400];
    snprintf(path, sizeof path, "%s%s", r.there, strrchr(r.place.path, '/'));
    char *is = read_whole(path, r.place.bytes);
    assert_memory_equal(was, is, (size_t)r.place.bytes);
    free(was);
    free(is);
    assert_int_equal(files_in(r.there), 1);

    /* A record of two ranks; the other's file is made up, in the partner's folder. */
    char *claim = ckpt_claim(r.ckpt, 5, &err), *other = NULL;
    assert_non_null(claim);
    const char *rank = strstr(claim, " rank=0 node=n0 "), *name = strstr(claim, ".r0.");
    assert_true(rank && name);
    assert_true(asprintf(&other, "%.*s rank=1 node=n1 %.*s.r1.%s", (int)(rank - claim), claim,
                         (int)(name - rank - 16), rank + 16, name + 4) > 0);
    const char *claims[] = {claim, other};
    char *record = ckpt_record(claims, 2, &err);
    assert_non_null(record);
    check(ckpt_commit(r.ckpt, 5, record, &err), &err);
    char command[900];
    snprintf(command, sizeof command, "cp %s %s/run.e3.g2.s5.r1.safetensors && rm %s", path,
             r.there, r.place.path);
    assert_int_equal(system(command), 0);
    char *scans[] = {ckpt_scan(r.own, "n0", "run", &err), ckpt_scan(r.there, "n1", "run", &err)};
    struct ckpt_decision d;
    check(ckpt_decide((const char *const *)scans, 2, -1, &d, &err), &err);
    assert_true(d.found);
    assert_string_equal(d.places[0].node, "n1");
    assert_int_equal(d.places[0].digest, r.place.digest);
    ckpt_decision_free(&d);
    for (int i = 0; i < 2; i++)
        free(scans[i]);
    free(claim);
    free(other);
    free(record);
    end(&r);
}

/* One bit changed anywhere on the way: an error, and no file. */
static void damaged_copies_are_refused(void **state)
{
    (void)state;
    static const int where[] = {3, 100, 5000, 150000, -1}; /* -1: the last byte */
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        static struct rig r;
        struct err err;
        int64_t step;
        begin(&r);
        save(&r, 5);
        check(send(&r, 5, where[i] < 0 ? r.place.bytes - 1 : where[i], &err), &err);
        assert_int_equal(ckpt_copy_finished(r.copy, &step, &err), -1);
        assert_int_equal(step, -1);
        assert_int_equal(files_in(r.there), 0);
        /* told once; what comes after it is not written, and says so */
        drop_place(&r);
        save(&r, 6);
        check(send(&r, 6, -1, &err), &err);
        assert_int_equal(ckpt_copy_finished(r.copy, &step, &err), 0);
        assert_int_equal(step, -1);
        end(&r);
    }
}

static void stray_pieces_are_refused(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    begin(&r);
    save(&r, 5);
    static const struct {
        int64_t step, header, total, at, n;
        int good;
    } table[] = {
        {5, 4096, 100000, 5000, 5, 0},      /* not its beginning */
        {5, 4096, 100000, 0, 5, 0},         /* the header is not the first */
        {5, 4096, 100000, 4096, 0, 0},      /* empty */
        {5, 4096, 100000, 4096, 100000, 0}, /* more than all */
        {5, 0, 100000, 0, 10, 0},           /* no header */
        {5, 100000, 100000, 100000, 10, 0}, /* nothing else */
        {5, -1, 100000, -1, 10, 0},         /* nonsense */
        {5, 4096, 100000, 4096, 10, 1},     /* its beginning */
        {5, 4096, 100000, 4116, 10, 0},     /* a gap */
        {5, 4096, 100001, 4106, 10, 0},     /* another length */
        {5, 4095, 100000, 4106, 10, 0},     /* another header */
        {6, 4096, 100000, 4106, 10, 0},     /* another file */
        {5, 4096, 100000, 4096, 10, 0},     /* again */
        {5, 4096, 100000, 0, 4096, 0},      /* the header before all data */
        {5, 4096, 100000, 4106, 95895, 0},  /* over the end */
        {5, 4096, 100000, 4106, 95894, 1},  /* all of the rest */
        {5, 4096, 100000, 0, 4097, 0},      /* over the end of the header */
        {5, 4096, 100000, 0, 4000, 1},
        {6, 4096, 100000, 4096, 10, 0}, /* the next before the end of this */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_copy_piece p = {.step = table[i].step,
                                    .header = table[i].header,
                                    .total = table[i].total,
                                    .at = table[i].at,
                                    .n = table[i].n,
                                    .data = calloc(1, 200000)};
        assert_int_equal(ckpt_copy_put(r.copy, &p, &err), table[i].good ? 0 : -1);
    }
    end(&r);
}

/* The data come first, the header last. */
static void order_of_pieces(void **state)
{
    (void)state;
    static const struct {
        int64_t end, next;
    } table[] = {{4097, 4097}, {99999, 99999}, {100000, 0}, {1, 1}, {4095, 4095}, {4096, -1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(ckpt_copy_next(4096, 100000, table[i].end), table[i].next);
    assert_int_equal(ckpt_copy_end(4096, 100000, 4096), 100000);
    assert_int_equal(ckpt_copy_end(4096, 100000, 99999), 100000);
    assert_int_equal(ckpt_copy_end(4096, 100000, 0), 4096);
    assert_int_equal(ckpt_copy_end(4096, 100000, 4095), 4096);
}

/* Its owner has sent all data, and dies, or its disk fails, before its file is durable: there is no
 * copy, and of the half nothing is left. */
static void no_copy_without_an_original(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    int64_t step;
    begin(&r);
    save(&r, 5);
    check(send_some(&r, 5, -1, false, &err), &err);
    check(ckpt_copy_finished(r.copy, &step, &err), &err);
    assert_int_equal(step, -1);
    assert_int_equal(files_in(r.there), 1);
    struct ckpt_name name;
    char found[400], command[300];
    snprintf(command, sizeof command, "ls %s", r.there);
    FILE *ls = popen(command, "r");
    assert_int_equal(fscanf(ls, "%399s", found), 1);
    pclose(ls);
    name_parse(found, &name);
    assert_int_equal(name.kind, NAME_COPY_PART);
    ckpt_copy_close(r.copy);
    r.copy = NULL;
    assert_int_equal(files_in(r.there), 0);
    end(&r);
}

/* Where both nodes have one folder, the original is there already. */
static void same_folder_is_well(void **state)
{
    (void)state;
    static struct rig r;
    struct err err;
    int64_t step;
    begin(&r);
    ckpt_copy_close(r.copy);
    struct ckpt_copy_options options = {.dir = r.own, .run_id = "run", .epoch = 3, .generation = 2};
    check(ckpt_copy_open(&r.copy, &options, &err), &err);
    save(&r, 5);
    int before = files_in(r.own);
    check(send(&r, 5, -1, &err), &err);
    check(ckpt_copy_finished(r.copy, &step, &err), &err);
    assert_int_equal(step, 5);
    assert_int_equal(files_in(r.own), before);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partners),
        cmocka_unit_test(copy_takes_its_place),
        cmocka_unit_test(damaged_copies_are_refused),
        cmocka_unit_test(stray_pieces_are_refused),
        cmocka_unit_test(order_of_pieces),
        cmocka_unit_test(no_copy_without_an_original),
        cmocka_unit_test(same_folder_is_well),
    };
    return cmocka_run_group_tests_name("partner", tests, NULL, NULL);
}
