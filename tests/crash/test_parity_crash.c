/* test_parity_crash.c - groups that keep parity, whose processes die, whose disks fail and whose
 * nodes are lost, again and again: the newest committed state is always had again, bit for bit, as
 * long as no more is gone than the group keeps, and never a wrong one.
 *
 * A case is a chain of lives of one group in one process. Each life is a child: it decides,
 * rebuilds what is lost, restores, checks what it got, trains a few steps with a checkpoint and its
 * parities each. In one case of six files are so long that most of the parities is made, and on
 * disk, while they are written (parity_help.h, group_send). A fault waits for it at the n-th
 * boundary of the system calls, of all members together. Between lives nodes vanish with all they
 * have, up to as many as the group keeps, once a life has committed something since the loss
 * before. See test_ckpt_crash.c for what is promised.
 *
 *   test_parity_crash [--long | --cases N | --case K]      GTRAIN_TEST_LONG=yes is --long
 */
#include "crash_life.h"
#include "../unit/parity_help.h"

#include <inttypes.h>

enum {
    CASES = 60,
    CASES_LONG = 4000,
    LIVES = 4,
    STEPS = 2,   /* a life */
    ROUNDS = 20, /* decisions of a restore, more than there are files to be damaged */
};

/* ---- restore, as train/ does it ---- */

/* Marks what cannot be read, of one place; true: it is marked. */
static bool mark_if_bad(struct group *g, char *blobs[GROUP_MOST], const struct ckpt_place *p)
{
    struct ckpt_file *f = NULL;
    struct err unused;
    if (!p->node)
        return false;
    bool bad = ckpt_file_open(&f, p->path, &unused) || ckpt_file_digest(f) != p->digest ||
               ckpt_file_verify(f, &unused);
    ckpt_file_close(f);
    for (int i = 0; bad && i < g->members; i++)
        if (!strcmp(p->node, g->names[i]))
            blobs[i] = ckpt_scan_mark(blobs[i], strrchr(p->path, '/') + 1, p->bytes, true);
    return bad;
}

static bool mark_bad(struct group *g, char *blobs[GROUP_MOST], const struct ckpt_decision *d)
{
    bool any = false;
    for (int i = 0; i < d->world; i++) {
        any |= mark_if_bad(g, blobs, &d->places[i]);
        any |= mark_if_bad(g, blobs, &d->parities[i]);
    }
    return any;
}

static int restore_all(struct group *g, const struct ckpt_decision *d, struct err *err)
{
    int rv = 0;
    for (int i = 0; i < g->members && !rv; i++) {
        char path[600];
        struct ckpt_file *f = NULL;
        if (d->places[i].node)
            snprintf(path, sizeof path, "%s", d->places[i].path);
        else
            snprintf(path, sizeof path, "%s/run-1.e%u.g%u.s%d.r%d.safetensors", g->dirs[i],
                     d->written_epoch, d->written_generation, (int)d->position.step, i);
        rv = ckpt_file_open(&f, path, err);
        if (!rv && ckpt_file_digest(f) != d->places[i].digest)
            rv = err_set(err, "the digest is another one");
        if (!rv)
            rv = ckpt_restore(g->ckpts[i], f, NULL, err);
        ckpt_file_close(f);
    }
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_adopt(g->ckpts[i], d->record, err);
    return rv;
}

/* 1: something was damaged, and is marked. */
static int try_to_resume(struct group *g, char *blobs[GROUP_MOST], int64_t *step, struct err *err)
{
    struct ckpt_decision d;
    int rv = ckpt_decide_rebuilt((const char *const *)blobs, g->members, -1, &d, err);
    *step = 0;
    for (int i = 0; i < d.world && !rv; i++)
        if (!d.places[i].node)
            rv = group_rebuild(g, &d, i, err);
    if (!rv && !g->ckpts[0])
        rv = group_open(g, d.epoch + 1, err);
    if (!rv && d.found)
        rv = restore_all(g, &d, err);
    if (!rv && d.found)
        *step = d.position.step;
    if (rv && d.found && mark_bad(g, blobs, &d))
        rv = 1;
    ckpt_decision_free(&d);
    return rv;
}

static int resume(struct group *g, int64_t *step, struct err *err)
{
    char *blobs[GROUP_MOST];
    int rv = 1;
    group_scan(g, blobs);
    for (int i = 0; i < ROUNDS && rv > 0; i++)
        rv = try_to_resume(g, blobs, step, err);
    for (int i = 0; i < g->members; i++)
        free(blobs[i]);
    return rv ? -1 : 0;
}

static int commit_all(struct group *g, int64_t step, const char *record, struct err *err)
{
    int rv = 0;
    for (int i = 0; i < g->members && !rv; i++)
        rv =
            ckpt_commit(g->ckpts[i], step, record, err) || ckpt_wait(g->ckpts[i], help_soon(), err);
    return rv;
}

static int live(void *group, struct shim *shim)
{
    struct group *g = group;
    struct ckpt_hook hook = {.allow = shim_allow, .arg = shim};
    struct err err;
    int64_t first;
    g->hook = &hook;
    if (resume(g, &first, &err)) {
        tell(shim, err.text);
        return EXIT_REFUSED;
    }
    if (first && group_differs(g, first) >= 0)
        return EXIT_LIED;
    for (int64_t step = first + 1; step <= first + STEPS; step++) {
        group_fill(g, step);
        char *record = group_record(g, step, &err);
        if (!record) {
            tell(shim, err.text);
            break; /* a run ends there */
        }
        atomic_store(&shim->shared->tried, step);
        if (commit_all(g, step, record, &err)) {
            tell(shim, err.text);
            break;
        }
        atomic_store(&shim->shared->committed, step);
        free(record);
    }
    group_close(g);
    tell(shim, "well");
    return 0;
}

/* The step that would be restored now; it is between what was promised and what was tried. */
static int64_t check_decision(struct group *g, int64_t promised, int64_t tried, int number)
{
    struct err err;
    struct ckpt_decision d;
    ok(group_decide(g, &d, &err));
    int64_t step = d.found ? d.position.step : 0;
    if (step < promised || (step > tried && step > promised))
        fail_msg("case %d: step %" PRId64 " is decided, %" PRId64 " was committed, %" PRId64
                 " tried; %s",
                 number, step, promised, tried, d.report);
    ckpt_decision_free(&d);
    return step;
}

/* So many nodes vanish, with all they have. */
static void lose(struct group *g, int nodes, uint64_t seed)
{
    for (int i = 0; i < nodes; i++)
        help_remove(g->dirs[(seed % (uint64_t)g->members + (uint64_t)i) % (uint64_t)g->members]);
}

/* Exactly this step, with the state it had. */
static void check_restore(struct group *g, int64_t wanted, int number)
{
    struct err err;
    int64_t step;
    ok(resume(g, &step, &err));
    if (step != wanted || (step && group_differs(g, step) >= 0))
        fail_msg("case %d: step %" PRId64 " is restored%s, %" PRId64 " was there", number, step,
                 step == wanted ? ", and wrong" : "", wanted);
}

/* A whole checkpoint; then a damaged file or parity and as many lost nodes as may be besides; then
 * more than may be. */
static void check_end(struct group *g, int64_t step, uint64_t seed, int number)
{
    struct err err;
    struct ckpt_decision d;
    int victim = (int)(seed % (uint64_t)g->members);
    g->hook = NULL;
    check_restore(g, step, number);
    group_fill(g, step + 1);
    ok(group_checkpoint(g, step + 1, &err));
    group_close(g);
    for (int i = 0; i < g->members; i++) {
        assert_int_equal(help_count(g->dirs[i], ".part"), 0);
        assert_int_equal(help_count(g->dirs[i], ".reserve"), 0);
    }
    ok(group_decide(g, &d, &err));
    flip_bit(seed >> 20 & 1 ? d.places[victim].path : d.parities[victim].path, mix(seed));
    ckpt_decision_free(&d);
    lose(g, g->keeps - 1, (uint64_t)victim + 1);
    check_restore(g, step + 1, number);
    group_close(g);
    lose(g, g->keeps + 1, seed);
    ok(group_decide(g, &d, &err));
    assert_false(d.found);
    assert_non_null(strstr(d.report, "is missing"));
    ckpt_decision_free(&d);
}

static struct cases cases;

static void run_case(struct shared *shared, int number)
{
    struct group g;
    uint64_t seed = mix((uint64_t)number ^ 0x5eed);
    char name[32];
    snprintf(name, sizeof name, "case %d", number);
    bool two = number % 2;
    bool recovered = false; /* a commit has returned since nodes were lost */
    bool long_files = number % 12 == 3 || number % 12 == 8; /* of either group */
    group_make(&g, two ? 5 : 3, two ? 2 : 1, long_files ? GROUP_MIDDLE : GROUP_SMALL,
               number % 25 ? "/dev/shm" : NULL);
    if (long_files) /* so that they have no more system calls than the others */
        g.block_bytes = 512 * 1024;
    atomic_store(&shared->committed, 0);
    atomic_store(&shared->tried, 0);
    for (int life = 0; life < LIVES; life++) {
        uint64_t dice = mix(seed + (uint64_t)life + 1);
        struct shim shim = {.fault = (enum fault)((number + life) % FAULTS),
                            .at = (int)(dice % (two ? 380 : 230)),
                            .length = 1 + (int)(dice >> 32) % 12,
                            .shared = shared,
                            .talk = cases.first == cases.last};
        int64_t before = atomic_load(&shared->committed);
        check_status(run_life(live, &g, &shim, name), &shim, name);
        int64_t promised = atomic_load(&shared->committed), tried = atomic_load(&shared->tried);
        if ((shim.fault == FAULT_SHORT || shim.fault == FAULT_AGAIN) && promised != before + STEPS)
            fail_msg("case %d: %" PRId64 " steps were committed in spite of retries", number,
                     promised - before);
        recovered |= promised > before;
        int64_t step = check_decision(&g, promised, tried, number);
        if (recovered) {
            lose(&g, two ? 1 + (int)(dice >> 50 & 1) : 1, dice >> 12);
            step = check_decision(&g, promised, tried, number);
            recovered = false;
        }
        atomic_store(&shared->committed, step);
        atomic_store(&shared->tried, step);
    }
    check_end(&g, atomic_load(&shared->committed), seed, number);
    group_drop(&g);
}

static void test_crashes(void **unused)
{
    (void)unused;
    struct shared *shared = shared_make();
    for (int i = cases.first; i <= cases.last; i++)
        run_case(shared, i);
    munmap(shared, sizeof *shared);
}

int main(int argc, char **argv)
{
    cases = cases_asked(argc, argv, CASES, CASES_LONG);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crashes),
    };
    return cmocka_run_group_tests_name("parity crash", tests, NULL, NULL);
}
