/* test_drain_crash.c - a drain that is cut, starved or lied to at every single system call.
 *
 * A run of two ranks copies three checkpoints to the shared folder; how many system calls that
 * takes is counted first. Then for each of them, and each kind of fault there: a life without fault
 * commits two steps, a second one (a child process) has the fault, and a third goes on. Between
 * them the shared folder alone must give the newest step whose commit returned, or one whose commit
 * had begun, bit for bit, and the third life must leave nothing half-made.
 *
 *   test_drain_crash [--fault F --at N] */
#include "crash_life.h"

#include <inttypes.h>

#include "drain.h"
#include "drain_impl.h"

enum {
    RANKS = 2,
    STEPS = 3, /* a life */
    KEEP = 2,
};

struct scene {
    char local[300], shared[300], root[256];
    struct state state;
    struct ckpt_io io;
    struct shared *told;
};

static void scene_open(struct scene *s, struct shared *told)
{
    struct err err;
    char above[300];
    int64_t n[] = {3000, 1300};
    memset(s, 0, sizeof *s);
    s->told = told;
    help_scratch(s->root, "/dev/shm");
    snprintf(s->local, sizeof s->local, "%s/local", s->root);
    snprintf(above, sizeof above, "%s/shared", s->root);
    snprintf(s->shared, sizeof s->shared, "%s/shared/run-1", s->root);
    ok(ckpt_shared_make(above, "run-1", &err));
    state_add(&s->state, CKPT_F32, 1, &n[0]);
    state_add(&s->state, CKPT_F64, 1, &n[1]);
    s->io = state_io(&s->state);
    atomic_store(&told->committed, 0);
    atomic_store(&told->tried, 0);
    atomic_store(&told->boundary, 0);
}

static void scene_close(struct scene *s)
{
    state_free(&s->state);
    help_remove(s->root);
}

static int decide(const struct scene *s, struct ckpt_decision *d, struct err *err)
{
    char *blob = ckpt_scan(s->shared, CKPT_SHARED_NODE, "run-1", err);
    int rv = blob ? ckpt_decide((const char *const *)&blob, 1, -1, d, err) : -1;
    free(blob);
    return rv;
}

/* Rank r's state of a step: no two ranks have the same. */
static int64_t seed(int64_t step, int rank)
{
    return step * RANKS + rank;
}

struct life {
    struct ckpt *ckpt[RANKS];
    struct ckpt_drain *drain[RANKS];
    char *claim[RANKS];
};

static int open_life(struct scene *s, struct life *l, uint32_t epoch, const struct ckpt_hook *hook,
                     struct err *err)
{
    memset(l, 0, sizeof *l);
    for (int r = 0; r < RANKS; r++) {
        struct ckpt_options o = help_options(s->local, epoch);
        struct ckpt_drain_options d = {.from = s->local,
                                       .to = s->shared,
                                       .run_id = "run-1",
                                       .rank = r,
                                       .world = RANKS,
                                       .epoch = epoch,
                                       .generation = 1,
                                       .keep = KEEP,
                                       .total_bytes = 100000,
                                       .leader = r == 0};
        o.world = RANKS;
        o.rank = r;
        o.leader = r == 0;
        o.no_uring = o.holds = true;
        if (ckpt_open(&l->ckpt[r], &o, s->state.tensors, s->state.n, &s->io, err) ||
            ckpt_drain_open_hooked(&l->drain[r], &d, hook, err))
            return -1;
    }
    return 0;
}

static void close_life(struct life *l)
{
    for (int r = 0; r < RANKS; r++) {
        ckpt_drain_close(l->drain[r]);
        ckpt_close(l->ckpt[r], help_soon());
    }
}

/* A local commit; never a fault there. The record, malloc'ed. */
static char *commit_local(struct scene *s, struct life *l, int64_t step, struct err *err)
{
    struct ckpt_position position = {step, step * 8};
    for (int r = 0; r < RANKS; r++) {
        state_fill(&s->state, seed(step, r));
        if (ckpt_save(l->ckpt[r], &position, NULL, err) ||
            ckpt_wait(l->ckpt[r], help_soon(), err) ||
            !(l->claim[r] = ckpt_claim(l->ckpt[r], step, err)))
            return NULL;
    }
    char *record = ckpt_record((const char *const *)l->claim, RANKS, err);
    for (int r = 0; r < RANKS; r++) {
        free(l->claim[r]);
        if (!record || ckpt_commit(l->ckpt[r], step, record, err))
            return NULL;
        ckpt_hold(l->ckpt[r], step);
    }
    return record;
}

/* 0: the step is committed in the shared folder. */
static int copy(struct scene *s, struct life *l, const char *record, int64_t step, struct err *err)
{
    int64_t there;
    for (int r = 0; r < RANKS; r++) {
        if (ckpt_drain_start(l->drain[r], record, err))
            return -1;
        if (!ckpt_drain_wait(l->drain[r], help_soon()))
            return err_set(err, "a copy hangs");
        if (ckpt_drain_poll(l->drain[r], NULL, NULL, err) != CKPT_DRAIN_DONE)
            return -1;
    }
    atomic_store(&s->told->tried, step);
    if (ckpt_drain_commit(l->drain[0], err))
        return -1;
    if (!ckpt_drain_wait(l->drain[0], help_soon()))
        return err_set(err, "a commit hangs");
    int rv = ckpt_drain_committed(l->drain[0], &there, err);
    if (there == step) /* else the record failed; after it, retention may have */
        atomic_store(&s->told->committed, step);
    return rv;
}

/* STEPS steps on from what the shared folder holds. Its wait status, as of a child. */
static int live(struct scene *s, uint32_t epoch, struct shim *shim)
{
    struct ckpt_hook hook = {.allow = shim_allow, .arg = shim};
    struct ckpt_decision d;
    struct err err;
    struct life l;
    if (decide(s, &d, &err))
        return EXIT_LIED;
    int64_t first = d.found ? d.position.step : 0;
    ckpt_decision_free(&d);
    if (open_life(s, &l, epoch, shim ? &hook : NULL, &err))
        return EXIT_REFUSED;
    for (int64_t step = first + 1; step <= first + STEPS; step++) {
        char *record = commit_local(s, &l, step, &err);
        if (!record)
            return EXIT_LIED;
        if (copy(s, &l, record, step, &err) && (!shim || shim->talk))
            fprintf(stderr, "# step %" PRId64 ": %s\n", step, err.text);
        free(record);
    }
    close_life(&l);
    return 0;
}

static int second_life(void *scene, struct shim *shim)
{
    return live(scene, 2, shim);
}

/* The shared folder alone gives a step that was promised or begun, and each rank's very bytes. */
static void check_shared(struct scene *s, const char *when)
{
    struct ckpt_decision d;
    struct err err;
    int64_t committed = atomic_load(&s->told->committed), tried = atomic_load(&s->told->tried);
    ok(decide(s, &d, &err));
    int64_t step = d.found ? d.position.step : 0;
    if (step != committed && step != tried)
        fail_msg("%s: step %" PRId64 " is found, %" PRId64 " was committed, %" PRId64 " tried; %s",
                 when, step, committed, tried, d.report);
    for (int r = 0; d.found && r < RANKS; r++) {
        struct ckpt_file *f;
        ok(ckpt_file_open(&f, d.places[r].path, &err));
        ok(ckpt_file_verify(f, &err));
        assert_int_equal(ckpt_file_digest(f), d.places[r].digest);
        for (int i = 0; i < s->state.n; i++)
            ok(ckpt_file_read(f, i, s->state.bytes[i], &err));
        if (state_differs(&s->state, seed(step, r)) >= 0)
            fail_msg("%s: rank %d's file of step %" PRId64 " is of another", when, r, step);
        ckpt_file_close(f);
    }
    atomic_store(&s->told->committed, step);
    atomic_store(&s->told->tried, step);
    ckpt_decision_free(&d);
}

/* Nothing half-made, and no more than is kept: `keep`, and what failed beside it. */
static void check_tidy(const struct scene *s, const char *when)
{
    int files = help_count(s->shared, ".safetensors");
    if (help_count(s->shared, ".part") || help_count(s->shared, ".new") || files != KEEP * RANKS)
        fail_msg("%s: %d files, %d halves in the shared folder", when, files,
                 help_count(s->shared, ".part"));
}

/* System calls of a life without fault. */
static int count_calls(struct shared *told)
{
    struct scene s;
    struct shim shim = {.fault = FAULTS, .shared = told};
    scene_open(&s, told);
    assert_int_equal(live(&s, 1, &shim), 0);
    int n = atomic_load(&told->boundary);
    check_shared(&s, "without fault");
    assert_int_equal(atomic_load(&told->committed), STEPS);
    check_tidy(&s, "without fault");
    scene_close(&s);
    return n;
}

static void one_fault(struct shared *told, enum fault fault, int at, bool talk)
{
    struct scene s;
    char when[64];
    snprintf(when, sizeof when, "fault %d at %d", fault, at);
    scene_open(&s, told);
    assert_int_equal(live(&s, 1, NULL), 0);
    check_shared(&s, "before the fault");
    assert_int_equal(atomic_load(&told->committed), STEPS);

    struct shim shim = {.fault = fault, .at = at, .length = 1, .shared = told, .talk = talk};
    int status = run_life(second_life, &s, &shim, when);
    bool dies = fault == FAULT_KILL || fault == FAULT_TORN;
    if (WIFSIGNALED(status) ? !dies || WTERMSIG(status) != SIGKILL
                            : WEXITSTATUS(status) && WEXITSTATUS(status) != EXIT_REFUSED)
        fail_msg("%s: the run ended with status %x", when, status);
    check_shared(&s, when);
    if (!dies && atomic_load(&told->committed) < 2 * STEPS - 1 && !WEXITSTATUS(status))
        fail_msg("%s: one call cost more than one copy: step %" PRId64, when,
                 atomic_load(&told->committed));

    int64_t before = atomic_load(&told->committed);
    assert_int_equal(live(&s, 3, NULL), 0);
    check_shared(&s, when);
    assert_int_equal(atomic_load(&told->committed), before + STEPS);
    check_tidy(&s, when);
    scene_close(&s);
}

static int only_fault = -1, only_at = -1;

static void test_every_call(void **unused)
{
    (void)unused;
    struct shared *told = shared_make();
    if (only_at >= 0) {
        one_fault(told, (enum fault)only_fault, only_at, true);
    } else {
        int calls = count_calls(told);
        assert_in_range(calls, 3 * RANKS * 5, 500);
        for (int at = 0; at < calls + 20; at++)
            for (int fault = 0; fault < FAULTS; fault++)
                if (!at || (fault != FAULT_SHORT && fault != FAULT_AGAIN)) /* those are all over */
                    one_fault(told, (enum fault)fault, at, false);
    }
    munmap(told, sizeof *told);
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--fault") && !strcmp(argv[3], "--at")) {
        only_fault = atoi(argv[2]);
        only_at = atoi(argv[4]);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call)};
    return cmocka_run_group_tests_name("drain crash", tests, NULL, NULL);
}
