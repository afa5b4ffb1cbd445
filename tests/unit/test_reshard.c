/* test_reshard.c - a checkpoint of any layout goes on in any other.
 *
 * Twelve layouts of up to eight ranks, tied and untied, five layers (so that no pipeline divides
 * them), vocabulary 61 (so that no tensor degree does). A run of each writes a checkpoint after
 * half its steps; another layout goes on from there, its ranks on other nodes than the files. In
 * float64 the losses are within 1e-10 of the run that never changed; where only the pipeline
 * changed, the same bits. GTRAIN_TEST_LONG=yes takes all 144 pairs, otherwise each layout writes
 * once and reads once. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt.h"
#include "runs.h"
#include "train/reshard.h"
#include "train_rig.h"

enum { STEPS = 8, HALF = 4, LAYOUTS = 12 };

static char folder[256];

/* goes_on: the layout that reads this one's checkpoint in a short test. */
static const struct layout {
    const char *name;
    int tensor, pipeline, data, goes_on;
} layouts[LAYOUTS] = {
    {"one rank", 1, 1, 1, 10}, {"TP2", 2, 1, 1, 7},         {"TP4", 4, 1, 1, 6},
    {"PP2", 1, 2, 1, 5},       {"PP4", 1, 4, 1, 0},         {"PP3", 1, 3, 1, 2},
    {"DP2", 1, 1, 2, 9},       {"TP2xPP2", 2, 2, 1, 11},    {"TP2xDP2", 2, 1, 2, 4},
    {"PP2xDP2", 1, 2, 2, 1},   {"TP2xPP2xDP2", 2, 2, 2, 8}, {"DP4", 1, 1, 4, 3},
};

struct texts {
    char change[4][40], local[300], restore[300];
};

/* A run in a layout; t holds what it points to. */
static struct rig_run run_of(const struct layout *l, bool tied, int steps, struct texts *t)
{
    snprintf(t->change[0], sizeof t->change[0], "parallel.tensor=%d", l->tensor);
    snprintf(t->change[1], sizeof t->change[1], "parallel.pipeline=%d", l->pipeline);
    snprintf(t->change[2], sizeof t->change[2], "parallel.data=%d", l->data);
    snprintf(t->change[3], sizeof t->change[3], "training.decay_steps=%d", STEPS);
    snprintf(t->local, sizeof t->local, "checkpoint.local=%s/checkpoints", folder);
    return (struct rig_run){
        .folder = folder,
        .steps = steps,
        .changes = {"model.layers=5", "model.heads=8", "model.kv_heads=4", "model.head_dim=4",
                    tied ? "model.tied=true" : "model.tied=false", "training.val_every=0",
                    t->change[0], t->change[1], t->change[2], t->change[3]}};
}

static void add_change(struct rig_run *run, const char *change)
{
    int n = 0;
    while (run->changes[n])
        n++;
    run->changes[n] = change;
}

static void write_half(int from, bool tied)
{
    struct texts t;
    struct rig_result r;
    char run_id[32];
    struct rig_run run = run_of(&layouts[from], tied, HALF, &t);
    snprintf(run_id, sizeof run_id, "w%d-%d", from, tied);
    run.run_id = run_id;
    run.node_ranks = 2;
    add_change(&run, t.local);
    add_change(&run, "checkpoint.every=4");
    rig_train_well(&run, &r);
}

static void go_on(int from, int to, bool tied, struct rig_result *out)
{
    struct texts t;
    struct rig_run run = run_of(&layouts[to], tied, STEPS, &t);
    snprintf(t.restore, sizeof t.restore, "%s/checkpoints/w%d-%d", folder, from, tied);
    snprintf(t.local, sizeof t.local, "checkpoint.local=%s/other", folder);
    run.restore = t.restore;
    run.node_ranks = 3; /* not as they were written: ranks 2, 3 and 6, 7 are split up */
    add_change(&run, t.local);
    rig_train_well(&run, out);
    assert_int_equal(out->first, HALF + 1);
}

static bool only_pipeline_differs(const struct layout *a, const struct layout *b)
{
    return a->tensor == b->tensor && a->data == b->data;
}

static void compare(int from, int to, const struct rig_result *got, const struct rig_result *want)
{
    bool bits = only_pipeline_differs(&layouts[from], &layouts[to]);
    for (int i = 0; i < got->n; i++) {
        double loss = want->loss[HALF + i], norm = want->norm[HALF + i];
        double allowed = bits ? 0 : 1e-10;
        if (!(fabs(got->loss[i] - loss) <= allowed * fabs(loss)) ||
            !(fabs(got->norm[i] - norm) <= allowed * fabs(norm)))
            fail_msg("from %s to %s, step %d: loss %.17g and norm %.17g; undisturbed %.17g and "
                     "%.17g",
                     layouts[from].name, layouts[to].name, HALF + i + 1, got->loss[i], got->norm[i],
                     loss, norm);
    }
}

static void change_layouts(bool tied)
{
    const char *asked = getenv("GTRAIN_TEST_LONG");
    bool all = asked && !strcmp(asked, "yes");
    struct rig_result never[LAYOUTS], got;
    struct texts t;
    for (int from = 0; from < LAYOUTS; from++) {
        struct rig_run run = run_of(&layouts[from], tied, STEPS, &t);
        rig_train_well(&run, &never[from]);
        write_half(from, tied);
    }
    for (int from = 0; from < LAYOUTS; from++)
        for (int to = 0; to < LAYOUTS; to++)
            if (all || to == layouts[from].goes_on) {
                go_on(from, to, tied, &got);
                compare(from, to, &got, &never[from]);
            }
}

static void any_layout_into_another(void **state)
{
    (void)state;
    change_layouts(false);
}

static void any_layout_into_another_tied(void **state)
{
    (void)state;
    change_layouts(true);
}

/* A run that shrinks, goes on saving, and grows again, all in one folder. */
static void a_run_changes_its_layout_twice(void **state)
{
    (void)state;
    static const int order[] = {10, 1, 9};
    struct rig_result never, got;
    struct texts t;
    struct rig_run run = run_of(&layouts[0], true, STEPS, &t);
    rig_train_well(&run, &never);
    for (int i = 0; i < 3; i++) {
        run = run_of(&layouts[order[i]], true, i == 2 ? STEPS : 3 * (i + 1), &t);
        run.epoch = (uint32_t)i + 1;
        run.node_ranks = i + 1;
        run.run_id = "twice";
        add_change(&run, t.local);
        add_change(&run, "checkpoint.every=1");
        rig_train_well(&run, &got);
        assert_int_equal(got.first, 3 * i + 1);
        for (int k = 0; k < got.n; k++) {
            double want = never.loss[got.first - 1 + k];
            if (!(fabs(got.loss[k] - want) <= 1e-10 * want))
                fail_msg("layout %s, step %d: loss %.17g, undisturbed %.17g",
                         layouts[order[i]].name, (int)got.first + k, got.loss[k], want);
        }
    }
}

/* ---- damage ---- */

/* A rank's file of a run's newest committed step, which must be `step`. */
static void find_file(const char *run_id, int64_t step, int rank, char path[600])
{
    char dir[400];
    struct ckpt_decision d;
    struct err err;
    snprintf(dir, sizeof dir, "%s/checkpoints/%s", folder, run_id);
    char *blob = ckpt_scan(dir, "here", run_id, &err);
    assert_non_null(blob);
    assert_int_equal(ckpt_decide((const char *const *)&blob, 1, -1, &d, &err), 0);
    assert_true(d.found);
    assert_int_equal(d.position.step, step);
    snprintf(path, 600, "%s", d.places[rank].path);
    ckpt_decision_free(&d);
    free(blob);
}

/* One replica after another is lost, with all that its ranks have written, and no copies are kept;
 * then all are back. Every step takes the whole batch: 4 microbatches, unequally on 3 replicas. */
static void replicas_are_lost(void **state)
{
    (void)state;
    static const int replicas[] = {4, 3, 2, 4};
    struct layout l = {"PP2 with fewer and fewer replicas", 1, 2, 4, 0};
    struct rig_result never, got;
    struct texts t;
    struct rig_run run = run_of(&l, true, STEPS, &t);
    rig_train_well(&run, &never);
    for (int i = 0; i < 4; i++) {
        l.data = replicas[i];
        run = run_of(&l, true, 2 * (i + 1), &t);
        run.epoch = (uint32_t)i + 1;
        run.node_ranks = 2;
        run.run_id = "lost";
        add_change(&run, t.local);
        add_change(&run, "checkpoint.every=1");
        add_change(&run, "parallel.uneven=true");
        rig_train_well(&run, &got);
        assert_int_equal(got.first, 2 * i + 1);
        for (int k = 0; k < got.n; k++) {
            double want = never.loss[got.first - 1 + k];
            if (!(fabs(got.loss[k] - want) <= 1e-10 * want))
                fail_msg("%d replicas, step %d: loss %.17g, undisturbed %.17g", l.data,
                         (int)got.first + k, got.loss[k], want);
        }
        for (int rank = 2; rank < 4; rank++) { /* those of replica 1 */
            char path[600];
            find_file("lost", 2 * (i + 1), rank, path);
            assert_int_equal(unlink(path), 0);
        }
    }
}

/* One bit at `part` of the file's length. */
static void flip(const char *path, double part)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long at = (long)((double)ftell(f) * part);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

/* A bit in the data (found while pieces move) or in the header (before) costs a checkpoint. */
static void damaged_files_cost_a_checkpoint(void **state)
{
    (void)state;
    static const double parts[] = {0.6, 0.01};
    static const char *const run_ids[] = {"data", "header"};
    for (int i = 0; i < 2; i++) {
        struct rig_result r;
        struct texts t;
        char path[600];
        /* only a run's last step is committed at any speed of the disk */
        for (int half = 1; half <= 2; half++) {
            struct rig_run run = run_of(&layouts[7], false, 3 * half, &t);
            run.run_id = run_ids[i];
            run.epoch = (uint32_t)half;
            run.node_ranks = 2;
            add_change(&run, t.local);
            add_change(&run, "checkpoint.every=3");
            rig_train_well(&run, &r);
        }
        find_file(run_ids[i], 6, 2, path);
        flip(path, parts[i]);
        struct rig_run next = run_of(&layouts[9], false, STEPS, &t);
        next.run_id = run_ids[i];
        next.epoch = 3;
        next.node_ranks = 2;
        add_change(&next, t.local);
        rig_train_well(&next, &r);
        assert_int_equal(r.first, 4);
    }
}

/* ---- the pure parts ---- */

static struct ckpt_tensor slice(const char *name, int64_t row, int64_t col, int64_t rows,
                                int64_t cols)
{
    return (struct ckpt_tensor){.name = name,
                                .dtype = CKPT_F32,
                                .dims = 2,
                                .global = {8, 6},
                                .offset = {row, col},
                                .shape = {rows, cols}};
}

static char *table_of(const struct ckpt_tensor *t, int n)
{
    struct err err;
    char *text = ckpt_table(t, n, &err);
    assert_non_null(text);
    return text;
}

/* By hand: rows 2 to 5 of (8, 6), from files with rows 0 to 3 and 4 to 7. */
static void pieces_by_hand(void **state)
{
    (void)state;
    struct ckpt_tensor upper = slice("w", 0, 0, 4, 6), lower = slice("w", 4, 0, 4, 6);
    struct ckpt_tensor want = slice("w", 2, 0, 4, 6);
    char *tables[] = {table_of(&upper, 1), table_of(&lower, 1)};
    struct ckpt_piece *p;
    struct err err;
    int n;
    assert_string_equal(tables[1], "w F32 8,6 4,0 4,6\n");
    assert_int_equal(ckpt_pieces(&want, 1, (const char *const *)tables, 2, &p, &n, &err), 0);
    assert_int_equal(n, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(p[i].source, i);
        assert_int_equal(p[i].offset[0], i ? 4 : 2);
        assert_int_equal(p[i].shape[0], 2);
        assert_int_equal(p[i].shape[1], 6);
        assert_int_equal(ckpt_piece_bytes(&p[i], &want), 2 * 6 * 4);
    }
    free(p);
    free(tables[0]);
    free(tables[1]);
}

static void says(const struct ckpt_tensor *want, const char *table, const char *text)
{
    struct ckpt_piece *p;
    struct err err;
    int n;
    assert_int_equal(ckpt_pieces(want, 1, &table, 1, &p, &n, &err), -1);
    if (!strstr(err.text, text))
        fail_msg("'%s' does not say '%s'", err.text, text);
}

static void holes_and_misfits_are_said(void **state)
{
    (void)state;
    struct ckpt_tensor want = slice("w", 0, 0, 8, 6);
    says(&want, "w F32 8,6 0,0 8,4\n", "w: its part of shape 8,2 at 0,4 is in no file");
    says(&want, "v F32 8,6 0,0 8,6\n", "w: its part of shape 8,6 at 0,0 is in no file");
    says(&want, "w F64 8,6 0,0 8,6\n", "w is F64 of shape 8,6 in the checkpoint; F32 of shape 8,6");
    says(&want, "w F32 9,6 0,0 9,6\n", "w is F32 of shape 9,6 in the checkpoint");
    says(&want, "w F32 8 0 8\n", "w is F32 of shape 8 in the checkpoint");
    static const char *const bad[] = {"w",
                                      "w F32 8,6 0,0",
                                      "w F99 8,6 0,0 8,6",
                                      "w F32 8,6 0 8,6",
                                      "w F32 8,6 1,0 8,6",
                                      "w F32 8,6, 0,0 8,6",
                                      "w F32 8,6 0,0 8,6 7",
                                      "w F32 1,1,1,1,1 0,0,0,0,0 1,1,1,1,1",
                                      "w F32 8,-6 0,0 8,6",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad - 1; i++)
        says(&want, bad[i], "is no tensor");
}

/* Five ranks on nodes a, a, b, b, c; files on a, b, b, d (which has no rank), a. */
static void who_serves_and_who_reads(void **state)
{
    (void)state;
    static const char *const nodes[] = {"a", "a", "b", "b", "c"};
    static const char *const at[] = {"a", "b", "b", "d", "a"};
    static const int wanted[] = {0, 2, 3, -1, 0};
    struct reshard_rank ranks[5] = {0};
    struct reshard_file files[5] = {0};
    struct ckpt_place places[5] = {0};
    int server[5];
    for (int i = 0; i < 5; i++) {
        snprintf(ranks[i].node, sizeof ranks[i].node, "%s", nodes[i]);
        places[i].node = (char *)at[i];
        files[i].cut = i < 3 ? 7 : 8;
    }
    reshard_servers(ranks, 5, places, 5, server);
    for (int i = 0; i < 5; i++)
        assert_int_equal(server[i], wanted[i]);

    struct ckpt_decision decision = {.world = 5, .places = places};
    struct reshard r = {.decision = &decision, .ranks = ranks, .files = files, .server = server};
    assert_int_equal(reshard_reader(&r, 0, 1), 1); /* on its own node */
    assert_int_equal(reshard_reader(&r, 0, 2), 0);
    assert_int_equal(reshard_reader(&r, 3, 4), 4); /* seen by all */
    /* of files 0, 1, 2, which are cut alike: its own number, its node's, or in turn */
    assert_int_equal(reshard_nearest(&r, 0, 7), 0);
    assert_int_equal(reshard_nearest(&r, 1, 7), 0);
    assert_int_equal(reshard_nearest(&r, 2, 7), 2);
    assert_int_equal(reshard_nearest(&r, 3, 7), 1);
    assert_int_equal(reshard_nearest(&r, 4, 7), 0);
    assert_int_equal(reshard_nearest(&r, 4, 8), 3);
    assert_int_equal(reshard_nearest(&r, 0, 9), -1);
}

static uint64_t next_random(uint64_t *s, uint64_t below)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (*s >> 33) % below;
}

/* Elements are their own global index: a piece put in the wrong place is another number. */
static void copy_piece(const struct ckpt_piece *p, const struct ckpt_tensor *from,
                       const struct ckpt_tensor *to, int32_t *out, unsigned char *seen)
{
    struct runs a, b;
    int64_t from_at = 0, to_at = 0, a_left = 0, b_left = 0;
    int64_t left = ckpt_piece_bytes(p, from);
    assert_true(runs_begin(&a, from, p->offset, p->shape));
    assert_true(runs_begin(&b, to, p->offset, p->shape));
    for (; left; left -= 4, from_at += 4, to_at += 4, a_left -= 4, b_left -= 4) {
        if (!a_left && runs_next(&a, &from_at))
            a_left = a.bytes;
        if (!b_left && runs_next(&b, &to_at))
            b_left = b.bytes;
        int64_t e = from_at / 4, index = 0, size = 1;
        for (int d = from->dims - 1; d >= 0; d--) {
            index += (from->offset[d] + e % from->shape[d]) * size;
            e /= from->shape[d];
            size *= from->global[d];
        }
        assert_int_equal(seen[to_at / 4], 0);
        seen[to_at / 4] = 1;
        out[to_at / 4] = (int32_t)index;
    }
    assert_int_equal(a_left + b_left, 0);
}

static void random_box(uint64_t *s, struct ckpt_tensor *t)
{
    for (int d = 0; d < t->dims; d++) {
        t->offset[d] = (int64_t)next_random(s, (uint64_t)t->global[d]);
        t->shape[d] = 1 + (int64_t)next_random(s, (uint64_t)(t->global[d] - t->offset[d]));
    }
}

/* Boxes that overlap, or leave holes, in up to four dimensions: what is covered is brought exactly
 * once and right, what is not is said. Counted by hand, element by element. */
static void random_boxes(void **state)
{
    (void)state;
    uint64_t s = 7;
    int whole = 0;
    for (int round = 0; round < 400; round++) {
        struct ckpt_tensor have[12], want = {.name = "t", .dtype = CKPT_F32};
        char *tables[12];
        int n = 1 + (int)next_random(&s, 12), n_pieces;
        want.dims = (int)next_random(&s, CKPT_MAX_DIMS + 1);
        for (int d = 0; d < want.dims; d++)
            want.global[d] = 1 + (int64_t)next_random(&s, 5);
        for (int i = 0; i < n; i++) {
            have[i] = want;
            random_box(&s, &have[i]);
            if (i == n / 2 && round % 2)
                for (int d = 0; d < want.dims; d++)
                    have[i].offset[d] = 0, have[i].shape[d] = want.global[d];
            tables[i] = table_of(&have[i], 1);
        }
        random_box(&s, &want);
        int32_t out[625];
        unsigned char seen[625] = {0};
        int64_t count = 1, put = 0;
        for (int d = 0; d < want.dims; d++)
            count *= want.shape[d];
        struct ckpt_piece *p;
        struct err err;
        int rv = ckpt_pieces(&want, 1, (const char *const *)tables, n, &p, &n_pieces, &err);
        assert_true(rv == 0 || !(round % 2));
        whole += !rv;
        for (int i = 0; i < n_pieces; i++) {
            copy_piece(&p[i], &have[p[i].source], &want, out, seen);
            put += ckpt_piece_bytes(&p[i], &want) / 4;
        }
        if (!rv)
            assert_int_equal(put, count);
        for (int64_t i = 0; !rv && i < count; i++) {
            int64_t e = i, index = 0, size = 1;
            for (int d = want.dims - 1; d >= 0; d--) {
                index += (want.offset[d] + e % want.shape[d]) * size;
                e /= want.shape[d];
                size *= want.global[d];
            }
            assert_int_equal(out[i], index);
        }
        for (int i = 0; i < n; i++)
            free(tables[i]);
        free(p);
    }
    assert_in_range(whole, 200, 399); /* there were holes, too */
}

static int make_folder(void **state)
{
    (void)state;
    rig_folder_make(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    rig_folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_by_hand),
        cmocka_unit_test(holes_and_misfits_are_said),
        cmocka_unit_test(random_boxes),
        cmocka_unit_test(who_serves_and_who_reads),
        cmocka_unit_test(any_layout_into_another),
        cmocka_unit_test(any_layout_into_another_tied),
        cmocka_unit_test(a_run_changes_its_layout_twice),
        cmocka_unit_test(replicas_are_lost),
        cmocka_unit_test(damaged_files_cost_a_checkpoint),
    };
    return cmocka_run_group_tests_name("reshard", tests, make_folder, remove_folder);
}
