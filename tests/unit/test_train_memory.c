/* test_train_memory.c - a later generation goes on from the states that the nodes hold in memory,
 * and has, bit for bit, the losses of the run that was never disturbed.
 *
 * Ranks are threads, each on a node of its own that is only a name. A node's memory is memfds of
 * the test: a lost process finds them again, a lost node has new ones. What a kill leaves half
 * filled is made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory.h"
#include "train/keeper_memory.h"
#include "train/keeper_space.h"
#include "train_rig.h"

enum { WORLD = 4, STEPS = 28, STOP = 5, FDS = WORLD * CKPT_MEMORY_SLOTS, PATH = 400 };

/* Every rank's state is on four nodes: its own, a replica's, and both partners'; on two: its own
 * and its partner's; on four, as all are replicas, and nobody has a partner. */
enum layout { REPLICAS, PARTNERS, ALIKE, LAYOUTS };

struct rig {
    enum layout layout;
    char folder[256], local[PATH];
    int fds[FDS];
    struct rig_result whole; /* the undisturbed run */
    int64_t last;            /* the newest state that generation 1 left in memory */
};

static void renew(struct rig *r, int rank)
{
    for (int i = rank * CKPT_MEMORY_SLOTS; i < (rank + 1) * CKPT_MEMORY_SLOTS; i++) {
        if (r->fds[i] > 0)
            close(r->fds[i]);
        r->fds[i] = memfd_create("test", MFD_CLOEXEC);
        assert_true(r->fds[i] > 0);
    }
}

static struct rig_run run_of(const struct rig *r, uint32_t generation)
{
    static const char *const first[] = {"parallel.data=2", "parallel.tensor=2", "parallel.data=4"};
    struct rig_run run = {.folder = r->folder,
                          .steps = STEPS,
                          .changes = {first[r->layout], r->layout == ALIKE ? "parallel.pipeline=1"
                                                                           : "parallel.pipeline=2"},
                          .generation = generation,
                          .node_ranks = 1,
                          .memory = r->fds};
    return run;
}

/* files: checkpoints every so many steps, 0: the plan keeps none. */
static void keep_files(struct rig *r, struct rig_run *run, int every)
{
    static char change[2][PATH + 64];
    if (!every)
        return;
    snprintf(change[0], sizeof change[0], "checkpoint.local=%s", r->local);
    snprintf(change[1], sizeof change[1], "checkpoint.every=%d", every);
    run->changes[2] = change[0];
    run->changes[3] = change[1];
}

/* The undisturbed run, and a generation that ends after some steps. */
static void begin(struct rig *r, enum layout layout, int every)
{
    struct rig_result first;
    memset(r, 0, sizeof *r);
    r->layout = layout;
    rig_folder_make(r->folder);
    snprintf(r->local, sizeof r->local, "%s/local", r->folder);
    struct rig_run run = run_of(r, 1);
    run.memory = NULL;
    rig_train_well(&run, &r->whole);
    for (int rank = 0; rank < WORLD; rank++)
        renew(r, rank);
    run = run_of(r, 1);
    keep_files(r, &run, every);
    run.stop_after = STOP;
    rig_train(&run, &first);
    if (first.end != TRAIN_STOPPED)
        fail_msg("%s", first.err.text);
    r->last = first.n;
    assert_memory_equal(first.loss, r->whole.loss, (size_t)first.n * sizeof *first.loss);
}

/* Goes on from `from`, with the right losses. */
static void go_on(struct rig *r, uint32_t generation, int every, int64_t from)
{
    struct rig_result rest;
    struct rig_run run = run_of(r, generation);
    keep_files(r, &run, every);
    rig_train_well(&run, &rest);
    assert_int_equal(rest.first, from + 1);
    assert_int_equal(rest.n, STEPS - from);
    assert_memory_equal(rest.loss, r->whole.loss + from, (size_t)rest.n * sizeof *rest.loss);
}

static void end(struct rig *r)
{
    for (int i = 0; i < FDS; i++)
        close(r->fds[i]);
    rig_folder_remove(r->folder);
}

/* ---- what is in the slots ---- */

/* The slot in the given half (0: own, 1: ward's) of a rank that holds `step`. */
static int slot_of(const struct rig *r, int rank, int half, int64_t step)
{
    char text[CKPT_MEMORY_HEAD_BYTES + 1] = "", wanted[64];
    snprintf(wanted, sizeof wanted, " step=%lld ", (long long)step);
    for (int i = 0; i < CKPT_MEMORY_SLOTS / 2; i++) {
        int fd = r->fds[rank * CKPT_MEMORY_SLOTS + half * CKPT_MEMORY_SLOTS / 2 + i];
        if (pread(fd, text, CKPT_MEMORY_HEAD_BYTES, 0) == CKPT_MEMORY_HEAD_BYTES &&
            strstr(text + 20, wanted))
            return fd;
    }
    fail_msg("rank %d has no step %lld", rank, (long long)step);
    return -1;
}

/* As a process leaves it that is killed while it fills the slot. */
static void half_fill(const struct rig *r, int rank, int half, int64_t step)
{
    uint32_t none = 0;
    assert_int_equal(pwrite(slot_of(r, rank, half, step), &none, sizeof none, 8), sizeof none);
}

static void flip(const struct rig *r, int rank, int half, int64_t step)
{
    unsigned char byte;
    int fd = slot_of(r, rank, half, step);
    off_t at = CKPT_MEMORY_HEAD_BYTES + 20000;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static int next_node(int rank)
{
    return (rank + 1) % WORLD; /* the partner where no topology is known */
}

/* Its own, and its partner's copy. */
static void everywhere(const struct rig *r, int rank,
                       void (*spoil)(const struct rig *r, int rank, int half, int64_t step))
{
    spoil(r, rank, 0, r->last);
    if (r->layout != ALIKE)
        spoil(r, next_node(rank), 1, r->last);
}

/* ---- the cases ---- */

static void processes_are_lost(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct rig r;
        begin(&r, layout, 0);
        go_on(&r, 2, 0, r.last);
        end(&r);
    }
}

static void each_node_is_lost(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS * WORLD; i++) {
        struct rig r;
        begin(&r, i / WORLD, 0);
        renew(&r, i % WORLD);
        go_on(&r, 2, 0, r.last);
        end(&r);
    }
}

/* Two nodes at once, and a third has what was on them. */
static void two_nodes_are_lost(void **state)
{
    (void)state;
    static const struct {
        enum layout layout;
        int other; /* beside 1 */
    } cases[] = {{REPLICAS, 2}, {REPLICAS, 3}, {PARTNERS, 3}, {ALIKE, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        begin(&r, cases[i].layout, 0);
        renew(&r, 1);
        renew(&r, cases[i].other);
        go_on(&r, 2, 0, r.last);
        end(&r);
    }
}

static void a_pair_is_lost(void **state)
{
    (void)state;
    struct rig r;
    begin(&r, PARTNERS, 3); /* the stop has made a checkpoint, too: of the same step */
    renew(&r, 1);
    renew(&r, next_node(1));
    go_on(&r, 2, 3, r.last);
    end(&r);
    begin(&r, PARTNERS, 0);
    renew(&r, 1);
    renew(&r, next_node(1));
    go_on(&r, 2, 0, 0);
    end(&r);
}

static void all_nodes_are_lost(void **state)
{
    (void)state;
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct rig r;
        begin(&r, layout, 0);
        for (int rank = 0; rank < WORLD; rank++)
            renew(&r, rank);
        go_on(&r, 2, 0, 0);
        end(&r);
    }
}

/* One's own is spoiled: somebody else has it; then everybody's: one step back. */
static void spoiled(void (*spoil)(const struct rig *r, int rank, int half, int64_t step))
{
    for (int layout = 0; layout < LAYOUTS; layout++) {
        struct rig r;
        begin(&r, layout, 0);
        spoil(&r, 2, 0, r.last);
        go_on(&r, 2, 0, r.last);
        end(&r);
        begin(&r, layout, 0);
        for (int rank = 0; rank < WORLD; rank += layout == ALIKE ? 1 : 2)
            everywhere(&r, rank, spoil);
        go_on(&r, 2, 0, r.last - 1);
        end(&r);
    }
}

static void a_half_filled_slot(void **state)
{
    (void)state;
    spoiled(half_fill);
}

static void a_damaged_slot(void **state)
{
    (void)state;
    spoiled(flip);
}

/* Who has replicas on enough other nodes sends no copies: there is not even memory for them. Where
 * replicas may go for good they are sent all the same. */
static void copies_where_nobody_else_has_it(void **state)
{
    (void)state;
    static const struct {
        enum layout layout;
        const char *change;
        bool copies;
    } cases[] = {
        {ALIKE, NULL, false},
        {ALIKE, "resilience.shrink=true", true},
        {REPLICAS, NULL, true},
        {PARTNERS, NULL, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        struct rig_result some;
        begin(&r, cases[i].layout, 0);
        for (int rank = 0; rank < WORLD; rank++)
            renew(&r, rank);
        struct rig_run run = run_of(&r, 1);
        run.changes[2] = cases[i].change;
        run.stop_after = STOP;
        rig_train(&run, &some);
        assert_int_equal(some.end, TRAIN_STOPPED);
        for (int rank = 0; rank < WORLD; rank++) {
            slot_of(&r, rank, 0, some.n);
            if (cases[i].copies) {
                slot_of(&r, next_node(rank), 1, some.n);
                continue;
            }
            for (int slot = CKPT_MEMORY_SLOTS / 2; slot < CKPT_MEMORY_SLOTS; slot++)
                assert_int_equal(lseek(r.fds[rank * CKPT_MEMORY_SLOTS + slot], 0, SEEK_END), 0);
        }
        end(&r);
    }
}

/* One replica is left, on nodes 2 and 3; node 0 is a spare now, and what it has cannot be had. From
 * then on they keep each other's state. */
static void fewer_replicas(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result rest;
    begin(&r, REPLICAS, 0);
    struct rig_run run = run_of(&r, 2);
    run.changes[0] = "parallel.data=1";
    run.memory = r.fds + 2 * CKPT_MEMORY_SLOTS;
    rig_train_well(&run, &rest);
    assert_int_equal(rest.first, r.last + 1);
    for (int i = 0; i < rest.n; i++) {
        double loss = r.whole.loss[r.last + i];
        if (!(fabs(rest.loss[i] - loss) <= 1e-10 * loss))
            fail_msg("step %d: loss %.17g, undisturbed %.17g", (int)rest.first + i, rest.loss[i],
                     loss);
    }
    slot_of(&r, 2, 1, STEPS - 1);
    slot_of(&r, 3, 1, STEPS - 1);
    end(&r);
}

/* Generation after generation, each loses something else. */
static void again_and_again(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result some;
    begin(&r, PARTNERS, 0);
    int64_t at = r.last;
    for (uint32_t generation = 2; generation < 5; generation++) {
        struct rig_run run = run_of(&r, generation);
        renew(&r, (int)generation % WORLD);
        run.stop_after = (int)at + 1;
        rig_train(&run, &some);
        if (some.end != TRAIN_STOPPED)
            fail_msg("%s", some.err.text);
        assert_int_equal(some.first, at + 1);
        assert_memory_equal(some.loss, r.whole.loss + at, (size_t)some.n * sizeof *some.loss);
        at += some.n;
    }
    renew(&r, 1);
    go_on(&r, 5, 0, at);
    end(&r);
}

/* Generation 2 loses another node before its first sum: all it has is what generation 1 left, and
 * what it has repaired of it. */
static void again_at_once(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result some;
    begin(&r, PARTNERS, 0);
    renew(&r, 0);
    struct rig_run run = run_of(&r, 2);
    run.stop_after = 1; /* as soon as it can be asked */
    rig_train(&run, &some);
    assert_int_equal(some.end, TRAIN_STOPPED);
    renew(&r, 1); /* it kept rank 0's state while node 0 was away */
    go_on(&r, 3, 0, r.last + some.n);
    end(&r);
}

/* A generation with snapshots has the losses of one without, also where it writes checkpoints. */
static void memory_and_files(void **state)
{
    (void)state;
    struct rig r;
    begin(&r, PARTNERS, 2);
    renew(&r, 2);
    go_on(&r, 2, 2, r.last);
    end(&r);
}

static void every_fourth_step(void **state)
{
    (void)state;
    struct rig r;
    struct rig_result some;
    memset(&r, 0, sizeof r);
    begin(&r, REPLICAS, 0);
    for (int rank = 0; rank < WORLD; rank++)
        renew(&r, rank);
    struct rig_run run = run_of(&r, 1);
    run.changes[4 - 2] = "checkpoint.snapshots=4";
    run.stop_after = STOP;
    rig_train(&run, &some);
    assert_int_equal(some.end, TRAIN_STOPPED);
    go_on(&r, 2, 0, some.n / 4 * 4);
    end(&r);
}

/* ---- does it fit ---- */

/* Two nodes of two ranks; the second one's is `free` bytes short of what it needs. */
static void need_memory(struct memory_need ranks[4], int64_t image, int64_t short_of)
{
    static const int64_t gb = 1000000000;
    memset(ranks, 0, 4 * sizeof *ranks);
    for (int i = 0; i < 4; i++) {
        ranks[i] = (struct memory_need){.image = image,
                                        .ward = image,
                                        .live = 4 * gb,
                                        .copy = 3 * gb,
                                        .lacks = 3 * gb + 4 * image,
                                        .available = 2 * (3 * gb + 4 * image),
                                        .why = "MemAvailable"};
        snprintf(ranks[i].node, sizeof ranks[i].node, "n%d", i / 2);
    }
    ranks[3].available -= short_of;
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const int64_t gb = 1000000000;
    struct memory_need ranks[4];
    const char *where;
    struct err err;
    need_memory(ranks, 3 * gb, 0);
    assert_int_equal(keeper_memory_fits(ranks, 4, &where, &err), 0);
    need_memory(ranks, 3 * gb, 1);
    assert_int_equal(keeper_memory_fits(ranks, 4, &where, &err), -1);
    assert_string_equal(where, "n1");
    assert_string_equal(
        err.text,
        "checkpoints do not fit into the memory of node n1: its 2 ranks hold 8.000 GB of training "
        "state and need 6.000 GB for a copy that files are written from, 12.000 GB for two copies "
        "in memory and 12.000 GB for two of another node's, of which 30.000 GB are still to be "
        "taken; 30.000 GB are free (MemAvailable): use more nodes, so that each holds less, or "
        "checkpoint.snapshots=0 and do the work since the newest checkpoint again after a "
        "failure");
    need_memory(ranks, 0, 1); /* without snapshots */
    assert_int_equal(keeper_memory_fits(ranks, 4, &where, &err), -1);
    assert_string_equal(
        err.text,
        "checkpoints do not fit into the memory of node n1: its 2 ranks hold 8.000 GB of training "
        "state and need 6.000 GB for a copy that files are written from, of which 6.000 GB are "
        "still to be taken; 6.000 GB are free (MemAvailable): use more nodes, so that each holds "
        "less");
}

/* A disk holds the files of all ranks of its node, and what each found fitting alone may not fit.
 */
static void what_does_not_fit_on_disk_is_refused(void **state)
{
    (void)state;
    static const int64_t gb = 1000000000;
    struct err err = {.text = ""};
    static const struct {
        int64_t all[4], first[4], there[4], loose[4], available[4];
        const char *nodes[4], *says; /* NULL: it fits */
        int where;                   /* the first rank of that node; or, where it fits, whether */
                                     /* rank 0's node is tight */
    } cases[] = {
        {.all = {3, 3, 3, 3}, .available = {6, 6, 6, 6}, .nodes = {"a", "a", "b", "b"}},
        {.all = {3, 3, 3, 3},
         .available = {6, 6, 6, 5},
         .nodes = {"a", "b", "a", "b"},
         .says = "checkpoint folder /d on b: the 2 ranks there need 6.0 GB beside what "
                 "is there, 5.0 GB are free, 1.0 GB too few",
         .where = 1},
        {.all = {3, 3, 3, 3},
         .available = {11, 11, 11, 11},
         .nodes = {"", "", "", ""},
         .says = "folder /d: the 4 ranks"},
        {.all = {9, 1, 1, 1}, .available = {9, 3, 3, 3}, .nodes = {"a", "b", "b", "b"}},
        /* What earlier starts have left goes in exchange, and counts once. */
        {.all = {3, 3, 3, 3},
         .there = {6, 6, 6, 6},
         .available = {6, 6, 6, 6},
         .nodes = {"", "", "", ""}},
        {.all = {3, 3, 3, 3},
         .there = {6, 5, 6, 6},
         .available = {6, 6, 6, 6},
         .nodes = {"", "", "", ""},
         .says = "the 4 ranks there need 7.0 GB beside what is there, 6.0 GB are free"},
        /* Before the first commit only some of it may go. */
        {.all = {4, 4, 4, 4},
         .first = {2, 2, 2, 2},
         .there = {8, 8, 8, 8},
         .loose = {3, 3, 3, 3},
         .available = {1, 1, 1, 1},
         .nodes = {"a", "a", "b", "b"},
         .where = true},
        {.all = {4, 4, 4, 4},
         .first = {2, 2, 2, 2},
         .there = {8, 8, 8, 8},
         .loose = {4, 4, 0, 0},
         .available = {4, 4, 3, 3},
         .nodes = {"a", "a", "b", "b"},
         .says = "on b: the 2 ranks there need 4.0 GB beside what is there and is kept "
                 "until the first commit, 3.0 GB are free, 1.0 GB too few",
         .where = 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct space_need ranks[4];
        int first;
        memset(ranks, 0, sizeof ranks);
        for (int r = 0; r < 4; r++) {
            ranks[r].writes = true;
            ranks[r].space = (struct ckpt_space){.all = cases[i].all[r] * gb,
                                                 .first = cases[i].first[r] * gb,
                                                 .there = cases[i].there[r] * gb,
                                                 .loose = cases[i].loose[r] * gb,
                                                 .available = cases[i].available[r] * gb};
            snprintf(ranks[r].node, sizeof ranks[r].node, "%s", cases[i].nodes[r]);
        }
        int rv = keeper_space_fits(ranks, 4, "/d", &first, &err);
        if (rv != (cases[i].says ? -1 : 0) || (rv && !strstr(err.text, cases[i].says)))
            fail_msg("case %zu: %d, '%s'", i, rv, err.text);
        assert_int_equal(rv ? first : keeper_space_tight(ranks, 4, 0), cases[i].where);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_lost),
        cmocka_unit_test(each_node_is_lost),
        cmocka_unit_test(two_nodes_are_lost),
        cmocka_unit_test(a_pair_is_lost),
        cmocka_unit_test(all_nodes_are_lost),
        cmocka_unit_test(a_half_filled_slot),
        cmocka_unit_test(a_damaged_slot),
        cmocka_unit_test(fewer_replicas),
        cmocka_unit_test(copies_where_nobody_else_has_it),
        cmocka_unit_test(again_and_again),
        cmocka_unit_test(again_at_once),
        cmocka_unit_test(memory_and_files),
        cmocka_unit_test(every_fourth_step),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(what_does_not_fit_on_disk_is_refused),
    };
    return cmocka_run_group_tests_name("train_memory", tests, NULL, NULL);
}
