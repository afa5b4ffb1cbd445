/* test_redundancy.c - runs that keep parity in groups, as threads on nodes of their own (which
 * share a folder): what is lost or damaged is rebuilt, and the losses are bit for bit those of a
 * run that nothing happened to. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/encode_group.h"
#include "train_rig.h"

enum { STEPS = 12, MAX_WORLD = 16 };

static char folder[256];

/* ---- who is in a group with whom ---- */

static void groups(void **state)
{
    (void)state;
    static const struct {
        const char *leaves; /* one letter a node, in the order of ranks; . for no topology */
        int ranks;          /* a node */
        int members;
        const char *group; /* of each rank: its first member's rank . its place; "": too few */
    } table[] = {
        {"....", 1, 4, "0.0 0.1 0.2 0.3"},
        {"....", 1, 2, "0.0 1.0 0.1 1.1"},
        /* two ranks a node: each goes with its like */
        {"...", 2, 3, "0.0 1.0 0.1 1.1 0.2 1.2"},
        /* each leaf gives one to each group */
        {"aabb", 1, 2, "0.0 1.0 0.1 1.1"},
        {"abab", 1, 2, "0.0 0.1 2.0 2.1"},
        {"aabbcc", 1, 3, "0.0 1.0 0.1 1.1 0.2 1.2"},
        /* what does not divide makes larger groups */
        {".....", 1, 2, "0.0 1.0 0.1 1.1 0.2"},
        {".....", 1, 4, "0.0 0.1 0.2 0.3 0.4"},
        {"aabbb", 1, 2, "0.0 1.0 0.1 1.1 0.2"},
        {"...", 1, 4, ""},
        {".", 2, 2, ""},
    };
    for (size_t c = 0; c < sizeof table / sizeof *table; c++) {
        struct partner_seat seats[MAX_WORLD];
        struct encode_seat got[MAX_WORLD];
        int n, nodes = (int)strlen(table[c].leaves), world = nodes * table[c].ranks;
        char text[256] = "";
        for (int r = 0; r < world; r++) {
            int node = r / table[c].ranks;
            snprintf(seats[r].node, sizeof seats[r].node, "n%d", node);
            seats[r].topology[0] = 0;
            if (table[c].leaves[node] != '.')
                snprintf(seats[r].topology, sizeof seats[r].topology, "spine.%c.n%d",
                         table[c].leaves[node], node);
        }
        bool good = encode_groups(seats, world, table[c].members, got, &n);
        assert_int_equal(n, nodes);
        for (int r = 0; good && r < world; r++) {
            int size = 0;
            for (int i = 0; i < world; i++)
                size += got[i].group == got[r].group;
            assert_int_equal(got[r].size, size);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d.%d", r ? " " : "",
                     got[r].group, got[r].member);
        }
        assert_string_equal(text, table[c].group);
    }
}

static void unlike_nodes_make_no_groups(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "a", "b", "c", "c"};
    struct partner_seat seats[5];
    struct encode_seat got[5];
    int nodes = -1;
    for (int r = 0; r < 5; r++) {
        memset(&seats[r], 0, sizeof seats[r]);
        snprintf(seats[r].node, sizeof seats[r].node, "%s", names[r]);
    }
    assert_false(encode_groups(seats, 5, 2, got, &nodes));
    assert_int_equal(nodes, 0);
    assert_false(encode_groups(seats, 4, 2, got, &nodes));
    assert_int_equal(nodes, 0);
}

/* ---- runs ---- */

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

static void refused(const struct rig_run *run, const char *const *says)
{
    struct rig_result r;
    rig_train(run, &r);
    assert_int_equal(r.end, TRAIN_REFUSED);
    for (; *says; says++)
        if (!strstr(r.err.text, *says))
            fail_msg("'%s' does not say '%s'", r.err.text, *says);
}

enum { GROUPED = 4 }; /* ranks, one a node */

static struct rig_run grouped(const char *local, const char *redundancy, uint32_t epoch)
{
    return (struct rig_run){.folder = folder,
                            .steps = STEPS,
                            .changes = {"parallel.tensor=2", "parallel.pipeline=2", local,
                                        "checkpoint.every=3", redundancy,
                                        "training.decay_steps=12"},
                            .node_ranks = 1,
                            .epoch = epoch};
}

/* Chunks travel between the steps and change nothing in them; what is committed is restored. */
static void parity_changes_nothing(void **state)
{
    (void)state;
    static const char *const how[] = {"checkpoint.redundancy=xor:4", "checkpoint.redundancy=rs:2+2",
                                      "checkpoint.redundancy=xor:2"};
    struct rig_result plain, with, again;
    struct rig_run alone = {
        .folder = folder, .steps = STEPS, .changes = {"parallel.tensor=2", "parallel.pipeline=2"}};
    rig_train_well(&alone, &plain);
    for (int i = 0; i < 3; i++) {
        char local[300];
        snprintf(local, sizeof local, "checkpoint.local=%s/parity.%d", folder, i);
        struct rig_run run = grouped(local, how[i], 1);
        run.changes[3] = i == 1 ? "checkpoint.every=1" : "checkpoint.every=4";
        run.stop_after = STEPS / 2;
        run.deferred_seed = (uint64_t)i;
        rig_train(&run, &with);
        assert_int_equal(with.end, TRAIN_STOPPED);
        run.stop_after = 0;
        run.epoch = 2;
        rig_train_well(&run, &again);
        assert_int_equal(again.first, with.n + 1);
        for (int k = 0; k < with.n; k++)
            assert_memory_equal(&with.loss[k], &plain.loss[k], sizeof *plain.loss);
        for (int k = 0; k < again.n; k++)
            assert_memory_equal(&again.loss[k], &plain.loss[with.n + k], sizeof *plain.loss);
    }
}

static void path_of(const char *name, char kind, int step, int rank, char path[400])
{
    snprintf(path, 400, "%s/%s/0123456789abcdef/0123456789abcdef.e2.g1.s%d.%c%d.safetensors",
             folder, name, step, kind, rank);
}

static void drop_member(const char *name, int step, int rank)
{
    char path[400];
    for (int i = 0; i < 2; i++) {
        path_of(name, "rp"[i], step, rank, path);
        assert_int_equal(unlink(path), 0);
    }
}

static void flip_bit(const char *path, double part)
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

/* What happens to the nodes' files after a first half, and what the second goes on from, in what
 * layout. */
static const struct loss {
    const char *name, *redundancy;
    int lost[3], n_lost; /* members with all that they have */
    char flip;           /* a bit of rank 3's: r file, p parities */
    double where;
    const char *layout; /* NULL: the same */
    bool older;         /* it goes on from the checkpoint before */
} losses_table[] = {
    {"one", "xor:4", {2}, 1, 0, 0, NULL, false},
    {"two", "rs:2+2", {0, 3}, 2, 0, 0, NULL, false},
    {"layout", "xor:4", {1}, 1, 0, 0, "parallel.tensor=1", false},
    {"replicas", "xor:4", {1}, 1, 0, 0, "parallel.data=2", false},
    {"flip", "xor:4", {0}, 0, 'r', 0.6, NULL, false},
    {"header", "xor:4", {0}, 0, 'r', 0.001, NULL, false},
    {"moved", "xor:4", {0}, 0, 'r', 0.6, "parallel.tensor=1", false},
    {"parity", "xor:4", {0}, 0, 'p', 0.3, NULL, false},
    {"both", "rs:2+2", {1}, 1, 'r', 0.6, NULL, false},
    {"member", "rs:2+2", {1}, 1, 'p', 0.3, NULL, false},
    {"much", "xor:4", {0, 1}, 2, 0, 0, NULL, true},
    {"mixed", "xor:4", {1}, 1, 'r', 0.6, NULL, true},
    {"parities", "xor:4", {1}, 1, 'p', 0.3, NULL, true},
};

static void lost_files_are_rebuilt(void **state)
{
    (void)state;
    struct rig_result plain, half, rest;
    struct rig_run alone = {
        .folder = folder, .steps = STEPS, .changes = {"parallel.tensor=2", "parallel.pipeline=2"}};
    rig_train_well(&alone, &plain);
    for (size_t i = 0; i < sizeof losses_table / sizeof *losses_table; i++) {
        const struct loss *l = &losses_table[i];
        char local[300], redundancy[64], path[400];
        snprintf(local, sizeof local, "checkpoint.local=%s/%s", folder, l->name);
        snprintf(redundancy, sizeof redundancy, "checkpoint.redundancy=%s", l->redundancy);
        struct rig_run run = grouped(local, redundancy, 1);
        for (run.epoch = 1; run.epoch <= 2; run.epoch++) { /* the end of each is committed */
            run.steps = run.epoch == 1 ? 6 : 9;
            rig_train_well(&run, &half);
        }
        for (int k = 0; k < l->n_lost; k++)
            drop_member(l->name, 9, l->lost[k]);
        if (l->flip) {
            path_of(l->name, l->flip, 9, 3, path);
            flip_bit(path, l->where);
        }
        run.steps = STEPS;
        if (l->layout) {
            run.changes[6] = l->layout;
            run.changes[4] = "checkpoint.redundancy=none";
        }
        rig_train_well(&run, &rest);
        int want = l->older ? 7 : 10;
        if (rest.first != want)
            fail_msg("%s: goes on with step %d, not %d", l->name, (int)rest.first, want);
        for (int k = 0; k < rest.n; k++) {
            double loss = plain.loss[rest.first - 1 + k];
            double allowed = l->layout ? 1e-10 * loss : 0;
            if (!(fabs(rest.loss[k] - loss) <= allowed))
                fail_msg("%s: step %d: loss %.17g, undisturbed %.17g", l->name, (int)rest.first + k,
                         rest.loss[k], loss);
        }
    }
}

/* Another run goes on from one whose file is lost: what is rebuilt for it lies among its own files,
 * the other's folder stays as it is, and it goes with the first commit. */
static void another_run_takes_over(void **state)
{
    (void)state;
    struct rig_result plain, rest;
    struct rig_run alone = {
        .folder = folder, .steps = STEPS, .changes = {"parallel.tensor=2", "parallel.pipeline=2"}};
    char local[300], restore[400], path[400];
    rig_train_well(&alone, &plain);
    snprintf(local, sizeof local, "checkpoint.local=%s/old", folder);
    struct rig_run run = grouped(local, "checkpoint.redundancy=xor:4", 2);
    run.steps = 9;
    rig_train_well(&run, &rest);
    drop_member("old", 9, 2);
    snprintf(local, sizeof local, "checkpoint.local=%s/new", folder);
    snprintf(restore, sizeof restore, "%s/old/0123456789abcdef", folder);
    run.run_id = "fedcba9876543210";
    run.restore = restore;
    run.epoch = 1;
    run.steps = STEPS;
    rig_train_well(&run, &rest);
    assert_int_equal(rest.first, 10);
    for (int k = 0; k < rest.n; k++)
        assert_memory_equal(&rest.loss[k], &plain.loss[9 + k], sizeof *plain.loss);
    path_of("old", 'r', 9, 2, path);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/new/fedcba9876543210/fedcba9876543210.e0.g0.s9.r2.safetensors",
             folder);
    assert_int_equal(access(path, F_OK), -1);
}

/* The disk that a lost file should be rebuilt on will not do: said, with the place. */
static void a_disk_that_cannot_is_said(void **state)
{
    (void)state;
    struct rig_result r;
    char local[300], path[400];
    snprintf(local, sizeof local, "checkpoint.local=%s/full", folder);
    struct rig_run run = grouped(local, "checkpoint.redundancy=xor:4", 2);
    run.steps = 9;
    rig_train_well(&run, &r);
    drop_member("full", 9, 2);
    path_of("full", 'r', 9, 2, path);
    strcpy(strrchr(path, '.'), ".part"); /* a folder in its way */
    assert_int_equal(mkdir(path, 0777), 0);
    run.epoch = 3;
    run.steps = STEPS;
    refused(&run, (const char *[]){"rank 2: ", "s9.r2.part", NULL});
    assert_int_equal(rmdir(path), 0);
    run.epoch = 4;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 10);
}

/* Parity that cannot be written is that rank's failure, whoever waits for whom meanwhile. */
static void parity_that_cannot_be_written_is_said(void **state)
{
    (void)state;
    struct rig_result r;
    char local[300], path[400];
    snprintf(local, sizeof local, "checkpoint.local=%s/stuck", folder);
    struct rig_run run = grouped(local, "checkpoint.redundancy=rs:2+2", 1);
    run.steps = 3;
    rig_train_well(&run, &r);
    path_of("stuck", 'p', 6, 1, path);
    assert_int_equal(mkdir(path, 0777), 0); /* a folder in its way */
    run.epoch = 2;
    run.steps = STEPS;
    rig_train(&run, &r);
    assert_int_equal(r.end, TRAIN_FAILED);
    static const char *const says[] = {"rank 1: ", "parity of its group's checkpoint", "s6.p1."};
    for (int i = 0; i < 3; i++)
        if (!strstr(r.err.text, says[i]))
            fail_msg("'%s' does not say '%s'", r.err.text, says[i]);
    assert_int_equal(rmdir(path), 0);
    run.epoch = 3;
    rig_train_well(&run, &r);
    assert_int_equal(r.first, 4);
}

static void groups_need_nodes(void **state)
{
    (void)state;
    char local[300];
    snprintf(local, sizeof local, "checkpoint.local=%s/few", folder);
    struct rig_run run = grouped(local, "checkpoint.redundancy=xor:4", 1);
    run.node_ranks = 2;
    refused(&run, (const char *[]){"checkpoint.redundancy is xor:4", "ranks on 4 nodes",
                                   "they are on 2", NULL});
    run.node_ranks = 3;
    refused(&run, (const char *[]){"checkpoint.redundancy is xor:4", "same number of ranks", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups),
        cmocka_unit_test(unlike_nodes_make_no_groups),
        cmocka_unit_test_setup_teardown(parity_changes_nothing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(lost_files_are_rebuilt, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(another_run_takes_over, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_disk_that_cannot_is_said, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(parity_that_cannot_be_written_is_said, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(groups_need_nodes, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("redundancy", tests, NULL, NULL);
}
