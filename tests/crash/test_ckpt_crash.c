/* test_ckpt_crash.c - a training that is cut, starved or lied to at any system call, again and
 * again, must go on from its newest committed state, bit for bit.
 *
 * A case is a chain of lives of one run in one folder. Each life is a child process: it scans,
 * decides, restores, checks what it got, trains a few steps (the state is a function of the step)
 * and checkpoints each. A fault waits for it at the n-th boundary of the system calls (the hook of
 * sys.h). Through shared memory it tells what it was promised: `committed`, the newest step whose
 * commit returned, and `tried`, the newest whose commit began. After each life the parent demands a
 * decision between the two, and at the end restores itself. Everything follows from the case's
 * number.
 *
 *   test_ckpt_crash [--long | --cases N | --case K]      GTRAIN_TEST_LONG=yes is --long
 */
#include "crash_life.h"
#include "file.h"

#include <inttypes.h>

enum {
    CASES = 300,
    CASES_LONG = 10000,
    LIVES = 3,
    STEPS = 4,        /* a life */
    BOUNDARIES = 130, /* of a life, about: faults are spread over so many */
};

struct scene {
    char dir[256];
    struct state state;
    struct ckpt_io io;
    struct shared *shared;
    bool no_uring;
};

static void scene_state(struct scene *s, uint64_t seed)
{
    int64_t n[] = {1 + (int64_t)(seed % 3000), 5000, (int64_t)(seed >> 20) % 9000};
    s->state.n = 0;
    state_add(&s->state, CKPT_F32, 1, &n[0]);
    state_add(&s->state, CKPT_F64, 1, &n[1]);
    state_add(&s->state, CKPT_BF16, 1, &n[2]);
    s->io = state_io(&s->state);
}

static struct ckpt_options scene_options(const struct scene *s, uint32_t epoch)
{
    struct ckpt_options o = help_options(s->dir, epoch);
    o.no_uring = s->no_uring;
    o.block_bytes = 4096;
    o.queue_depth = 4;
    return o;
}

/* Decide, open, restore; *c is open. -1 with err where it could not start; the state is checked by
 * the caller. A file that cannot be read is passed over for the next older one. */
static int resume(struct scene *s, const struct ckpt_hook *hook, struct ckpt **c, int64_t *step,
                  struct err *err)
{
    struct ckpt_decision d;
    *step = 0;
    if (help_decide(s->dir, -1, &d, err))
        return -1;
    struct ckpt_options o = scene_options(s, d.epoch + 1);
    int rv = ckpt_open_hooked(c, &o, s->state.tensors, s->state.n, &s->io, hook, err);
    while (!rv && d.found) {
        struct ckpt_file *f = NULL;
        struct ckpt_position position;
        rv = ckpt_file_open(&f, d.places[0].path, err);
        if (!rv)
            f->hook = hook;
        if (!rv && ckpt_file_digest(f) != d.places[0].digest)
            rv = err_set(err, "the digest is another one");
        if (!rv)
            rv = ckpt_restore(*c, f, &position, err);
        ckpt_file_close(f);
        if (!rv) {
            *step = position.step;
            rv = ckpt_adopt(*c, d.record, err);
            break;
        }
        int64_t below = d.position.step - 1;
        ckpt_decision_free(&d);
        rv = help_decide(s->dir, below, &d, err);
    }
    ckpt_decision_free(&d);
    return rv;
}

/* One life. Errors of a checkpoint are what training does with them: go on. */
static int live(void *scene, struct shim *shim)
{
    struct scene *s = scene;
    struct ckpt_hook hook = {.allow = shim_allow, .arg = shim};
    struct ckpt *c = NULL;
    struct err err;
    int64_t first, finished;
    if (resume(s, &hook, &c, &first, &err)) {
        tell(shim, err.text);
        return EXIT_REFUSED;
    }
    if (first && state_differs(&s->state, first) >= 0)
        return EXIT_LIED;
    if (first != atomic_load(&s->shared->committed)) {
        tell(shim, "gone back to an older one");
        if (shim->fault != FAULT_EIO) /* a file that cannot be read is a lost one */
            return EXIT_LIED;
    }
    atomic_store(&s->shared->restored, first);
    for (int64_t step = first + 1; step <= first + STEPS; step++) {
        struct ckpt_position position = {step, step * 8};
        state_fill(&s->state, step);
        if (ckpt_save(c, &position, NULL, &err))
            continue;
        if (step == first + STEPS && s->no_uring)
            break; /* leave the last one to close */
        if (ckpt_wait(c, help_soon(), &err) || ckpt_finished(c, &finished, &err) ||
            finished != step) {
            tell(shim, err.text);
            continue;
        }
        char *claim = ckpt_claim(c, step, &err);
        char *record = claim ? ckpt_record((const char *const *)&claim, 1, &err) : NULL;
        if (!record)
            return EXIT_LIED;
        atomic_store(&s->shared->tried, step);
        if (!ckpt_commit(c, step, record, &err)) {
            atomic_store(&s->shared->committed, step);
            atomic_fetch_add(&s->shared->commits, 1);
        } else {
            tell(shim, err.text);
        }
        free(claim);
        free(record);
    }
    ckpt_close(c, help_soon());
    return 0;
}

/* What is there is between what was promised and what was tried; or, where a life had gone back to
 * an older one and no commit of it returned, what had been promised to those before (`before`), or
 * what it tried. All become that. */
static void check_decision(struct scene *s, int number, int64_t before)
{
    struct err err;
    struct ckpt_decision d;
    struct shared *told = s->shared;
    int64_t committed = atomic_load(&told->committed), tried = atomic_load(&told->tried);
    int64_t restored = atomic_load(&told->restored);
    ok(help_decide(s->dir, -1, &d, &err));
    int64_t step = d.found ? d.position.step : 0;
    bool good = step == committed || (step > committed && step <= tried);
    if (committed == before && restored >= 0 && restored < before)
        good |= step > restored && step <= tried;
    if (!good)
        fail_msg("case %d: step %" PRId64 " is decided, %" PRId64 " was committed, %" PRId64
                 " tried; %s",
                 number, step, committed, tried, d.report);
    atomic_store(&told->committed, step);
    atomic_store(&told->tried, step);
    ckpt_decision_free(&d);
}

/* A bit of the newest file, or of the log, turns. The newest step may be lost by that, no more:
 * what is to be restored is between *least and *most. */
static void damage(struct scene *s, uint64_t seed, int number, int64_t *least, int64_t *most)
{
    struct err err;
    struct ckpt_decision d, older;
    char log[512];
    ok(help_decide(s->dir, -1, &d, &err));
    *least = *most = 0;
    if (d.found) {
        bool file = seed % 2;
        ok(help_decide(s->dir, d.position.step - 1, &older, &err));
        *least = older.found ? older.position.step : 0;
        *most = file ? *least : d.position.step;
        if (!older.found && atomic_load(&s->shared->commits) > 1)
            fail_msg("case %d: nothing older than step %" PRId64 " is kept", number,
                     d.position.step);
        ckpt_decision_free(&older);
        snprintf(log, sizeof log, "%s/run-1.n1.commits", s->dir);
        flip_bit(file ? d.places[0].path : log, mix(seed));
    }
    ckpt_decision_free(&d);
}

/* The parent restores a step from least to most, goes on, and nothing half-made is left. */
static void check_end(struct scene *s, int number, int64_t least, int64_t most)
{
    struct err err;
    struct ckpt *c = NULL;
    struct ckpt_decision d;
    int64_t step, committed = atomic_load(&s->shared->committed);
    ok(resume(s, NULL, &c, &step, &err));
    if (step && state_differs(&s->state, step) >= 0)
        fail_msg("case %d: step %" PRId64 " is restored, and wrong", number, step);
    if (step != least && step != most)
        fail_msg("case %d: step %" PRId64 " is restored, %" PRId64 " or %" PRId64 " was there",
                 number, step, least, most);
    state_fill(&s->state, committed + 1);
    ok(help_checkpoint(c, committed + 1, &err));
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(s->dir, ".part"), 0);
    assert_int_equal(help_count(s->dir, ".reserve"), 0);
    /* two that are kept, what was restored, and the next older one while that is on trial */
    assert_in_range(help_count(s->dir, ".safetensors"), 1, 4);
    ok(help_decide(s->dir, -1, &d, &err));
    assert_int_equal(d.position.step, committed + 1);
    ckpt_decision_free(&d);
}

static struct cases cases;

static void run_case(struct shared *shared, int number)
{
    struct scene s = {.shared = shared};
    uint64_t seed = mix((uint64_t)number);
    char name[32];
    snprintf(name, sizeof name, "case %d", number);
    /* the page cache of a real disk for some, a file system in memory for most: syncs are slow */
    help_scratch(s.dir, number % 25 ? "/dev/shm" : NULL);
    scene_state(&s, seed);
    atomic_store(&shared->committed, 0);
    atomic_store(&shared->tried, 0);
    atomic_store(&shared->commits, 0);
    /* of one life alone nothing is on trial: `keep` has to do */
    int lives = number % 5 ? LIVES : 1;
    for (int life = 0; life < lives; life++) {
        uint64_t dice = mix(seed + (uint64_t)life + 1);
        s.no_uring = dice >> 60 & 1;
        struct shim shim = {.fault = (enum fault)((number + life) % FAULTS),
                            .at = (int)(dice % BOUNDARIES),
                            .length = 1 + (int)(dice >> 32) % 12,
                            .shared = shared,
                            .talk = cases.first == cases.last};
        int64_t before = atomic_load(&shared->committed);
        atomic_store(&shared->restored, -1);
        check_status(run_life(live, &s, &shim, name), &shim, name);
        int64_t gained = atomic_load(&shared->committed) - before;
        if ((shim.fault == FAULT_SHORT || shim.fault == FAULT_AGAIN) &&
            gained != STEPS - s.no_uring)
            fail_msg("case %d: %" PRId64 " steps were committed in spite of retries", number,
                     gained);
        check_decision(&s, number, before);
    }
    int64_t least = atomic_load(&shared->committed), most = least;
    if (number % 3 == 0)
        damage(&s, seed, number, &least, &most);
    check_end(&s, number, least, most);
    state_free(&s.state);
    help_remove(s.dir);
}

static void test_crashes(void **unused)
{
    (void)unused;
    struct shared *shared = shared_make();
    for (int i = cases.first; i <= cases.last; i++)
        run_case(shared, i);
    munmap(shared, sizeof *shared);
}

/* A process dies with writes in the kernel; its successor, one generation on, writes the same step
 * at once. Whatever lands late lands elsewhere. */
static void test_dead_writer(void **unused)
{
    (void)unused;
    enum { BYTES = 24 << 20, DEPTH = 64 };
    struct err err;
    struct ckpt *c;
    struct ckpt_decision d;
    struct ckpt_file *f;
    struct scene s = {.no_uring = false};
    struct shared *shared = shared_make();
    help_scratch(s.dir, NULL);
    int64_t n = BYTES / 8;
    state_add(&s.state, CKPT_F64, 1, &n);
    s.io = state_io(&s.state);
    struct ckpt_options o = help_options(s.dir, 1);
    o.queue_depth = DEPTH;
    o.block_bytes = 65536;
    for (uint32_t generation = 1; generation <= 4; generation++) {
        o.generation = generation;
        state_fill(&s.state, generation);
        atomic_store(&shared->boundary, 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            /* past the first full queue, so that the kernel has DEPTH - 1 writes */
            struct shim shim = {
                .fault = FAULT_KILL, .at = DEPTH + 20 + (int)generation * 40, .shared = shared};
            struct ckpt_hook hook = {.allow = shim_allow, .arg = &shim};
            struct ckpt_position position = {7, 56};
            if (ckpt_open_hooked(&c, &o, s.state.tensors, 1, &s.io, &hook, &err) ||
                ckpt_save(c, &position, NULL, &err) || ckpt_wait(c, help_soon(), &err))
                _exit(EXIT_REFUSED);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
    }
    o.generation = 5;
    state_fill(&s.state, 55);
    ok(ckpt_open(&c, &o, s.state.tensors, 1, &s.io, &err));
    ok(help_checkpoint(c, 7, &err));
    usleep(200000); /* for what is late; the result must not depend on it */
    ok(help_decide(s.dir, -1, &d, &err));
    assert_true(d.found);
    ok(ckpt_file_open(&f, d.places[0].path, &err));
    state_fill(&s.state, 1);
    ok(ckpt_restore(c, f, NULL, &err));
    assert_int_equal(state_differs(&s.state, 55), -1);
    ckpt_file_close(f);
    ckpt_close(c, help_soon());
    assert_int_equal(help_count(s.dir, ".part"), 0);
    assert_int_equal(help_count(s.dir, ".safetensors"), 1);
    ckpt_decision_free(&d);
    state_free(&s.state);
    munmap(shared, sizeof *shared);
    help_remove(s.dir);
}

int main(int argc, char **argv)
{
    cases = cases_asked(argc, argv, CASES, CASES_LONG);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crashes),
        cmocka_unit_test(test_dead_writer),
    };
    return cmocka_run_group_tests_name("ckpt crash", tests, NULL, NULL);
}
