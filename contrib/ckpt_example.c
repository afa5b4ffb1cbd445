/* ckpt_example.c - checkpoints by libgtrain in a program that is not gtrain: heat on a square
 * plate.
 *
 *   cc -std=gnu11 -O2 ckpt_example.c -o heat $(pkg-config --cflags --libs gtrain) -pthread
 *   ./heat DIR 4 400              four processes, 400 steps; prints a hash of the plate
 *   ./heat DIR 4 400 --kill 170   one process dies soon after step 170, and so does the run
 *   ./heat DIR 3 400              goes on from the newest checkpoint, with three: the same hash
 *
 * Each process has some rows of the plate. It saves them while it computes the next step, and a
 * checkpoint counts once all have theirs on disk. Here the processes have one parent and share a
 * piece of memory and a barrier; with MPI, three calls would take their place: neighbours' edges,
 * the least finished step (an allreduce that the program may have anyway), and the claims
 * (gathered at rank 0). */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtrain/ckpt.h>

enum {
    SIDE = 256,   /* of the plate, in cells */
    EVERY = 20,   /* steps between checkpoints */
    RANKS = 16,   /* at most */
    CLAIM = 1024, /* bytes: a line with the node and the file's name */
    WAIT_MS = 60000,
};

#define RUN "heat"

/* What the processes see of each other. Entries by the parity of the step are written for one step
 * while those of the step before are still being read; the barrier keeps everybody that close. */
struct shared {
    pthread_barrier_t barrier;
    double edge[2][RANKS][2][SIDE]; /* first and last row of each */
    int64_t finished[2][RANKS];     /* newest step that is on disk */
    char claim[RANKS][CLAIM];
    double plate[SIDE][SIDE]; /* at the end */
};

struct rank {
    int rank, world;
    int64_t first, rows; /* of the plate: this rank's */
    double *now, *next;  /* (rows, SIDE) */
    double *passed;      /* (rows): heat that each has given off; summed over the steps */
    struct shared *shared;
    struct ckpt *ckpt;
    int64_t committed;
};

static void must(int rv, const struct err *err)
{
    if (!rv)
        return;
    fprintf(stderr, "heat: %s\n", err->text);
    exit(1);
}

/* ---- what is saved: two buffers by name, each a slice of a global array ---- */

enum { TEMPERATURE, PASSED, BUFFERS };

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    const struct rank *r = arg;
    (void)err;
    if (index == TEMPERATURE)
        memcpy(host, r->now, (size_t)(r->rows * SIDE) * sizeof *r->now);
    else
        memcpy(host, r->passed, (size_t)r->rows * sizeof *r->passed);
    return 0;
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    struct rank *r = arg;
    (void)err;
    char *to = index == TEMPERATURE ? (char *)r->now : (char *)r->passed;
    memcpy(to + at, host, (size_t)bytes);
    return 0;
}

static void open_checkpoints(struct rank *r, const char *dir, uint32_t epoch)
{
    struct err err;
    struct ckpt_tensor buffers[BUFFERS] = {
        [TEMPERATURE] = {.name = "temperature",
                         .dtype = CKPT_F64,
                         .dims = 2,
                         .global = {SIDE, SIDE},
                         .offset = {r->first, 0},
                         .shape = {r->rows, SIDE}},
        [PASSED] = {.name = "passed",
                    .dtype = CKPT_F64,
                    .dims = 1,
                    .global = {SIDE},
                    .offset = {r->first},
                    .shape = {r->rows}},
    };
    struct ckpt_options options = {.dir = dir,
                                   .node = "here", /* gethostname, where there are several */
                                   .run_id = RUN,
                                   .rank = r->rank,
                                   .world = r->world,
                                   .epoch = epoch,
                                   .generation = 1,
                                   .keep = 2,
                                   .leader = r->rank == 0}; /* one rank of each node */
    struct ckpt_io io = {.copy_out = copy_out, .copy_in = copy_in, .arg = r};
    must(ckpt_open(&r->ckpt, &options, buffers, BUFFERS, &io, &err), &err);
}

static void meet(struct rank *r)
{
    pthread_barrier_wait(&r->shared->barrier);
}

/* All ranks have `step` on disk: say so in the log. */
static void commit(struct rank *r, int64_t step)
{
    struct err err;
    const char *claims[RANKS];
    char *record = NULL, *claim = ckpt_claim(r->ckpt, step, &err);
    must(claim ? 0 : -1, &err);
    snprintf(r->shared->claim[r->rank], CLAIM, "%s", claim);
    free(claim);
    meet(r);
    for (int i = 0; i < r->world; i++)
        claims[i] = r->shared->claim[i];
    if (r->rank == 0)
        must((record = ckpt_record(claims, r->world, &err)) ? 0 : -1, &err);
    must(ckpt_commit(r->ckpt, step, record, &err), &err);
    free(record);
    r->committed = step;
}

/* ---- the plate ---- */

static double cell(int64_t row, int64_t column)
{
    return row > SIDE / 4 && row < SIDE / 2 && column < SIDE / 3 ? 100.0 : (double)(row % 7);
}

static void compute(struct rank *r, int parity)
{
    static const double cold[SIDE];
    struct shared *s = r->shared;
    for (int64_t i = 0; i < r->rows; i++) {
        const double *here = r->now + i * SIDE;
        const double *above = i ? here - SIDE : r->rank ? s->edge[parity][r->rank - 1][1] : cold;
        const double *below = i + 1 < r->rows          ? here + SIDE
                              : r->rank + 1 < r->world ? s->edge[parity][r->rank + 1][0]
                                                       : cold;
        double *to = r->next + i * SIDE;
        for (int64_t j = 0; j < SIDE; j++) {
            double left = j ? here[j - 1] : 0, right = j + 1 < SIDE ? here[j + 1] : 0;
            to[j] = here[j] + 0.2 * (above[j] + below[j] + left + right - 4 * here[j]);
        }
    }
}

/* What was saved may change from here on. */
static void take_over(struct rank *r)
{
    for (int64_t i = 0; i < r->rows; i++)
        r->passed[i] += r->now[i * SIDE] - r->next[i * SIDE];
    double *old = r->now;
    r->now = r->next;
    r->next = old;
}

static void step(struct rank *r, int64_t number)
{
    struct err err;
    struct shared *s = r->shared;
    int parity = (int)(number & 1);
    memcpy(s->edge[parity][r->rank][0], r->now, SIDE * sizeof(double));
    memcpy(s->edge[parity][r->rank][1], r->now + (r->rows - 1) * SIDE, SIDE * sizeof(double));
    must(ckpt_finished(r->ckpt, &s->finished[parity][r->rank], &err), &err);
    meet(r);
    compute(r, parity); /* beside the copy that the step before has begun, if it has */
    must(ckpt_save_join(r->ckpt, NULL, &err), &err);
    take_over(r);
    int64_t all = s->finished[parity][0]; /* the same on all ranks, so all commit or none */
    for (int i = 1; i < r->world; i++)
        if (s->finished[parity][i] < all)
            all = s->finished[parity][i];
    if (all > r->committed)
        commit(r, all);
}

/* ---- a rank's life ---- */

static void run(struct rank *r, int64_t begin, int64_t steps, int64_t kill_after)
{
    struct err err;
    for (int64_t done = begin; done < steps;) {
        step(r, done++);
        if (kill_after && done >= kill_after && r->committed > begin && r->rank == 0)
            raise(SIGKILL);
        struct ckpt_position position = {.step = done, .samples = done};
        if (done % EVERY == 0 || done == steps)
            must(ckpt_save_begin(r->ckpt, &position, &err), &err);
    }
    must(ckpt_save_join(r->ckpt, NULL, &err), &err);
    must(ckpt_wait(r->ckpt, ckpt_clock_ms() + WAIT_MS, &err), &err);
    int64_t finished;
    must(ckpt_finished(r->ckpt, &finished, &err), &err);
    meet(r);
    if (r->committed < finished) /* all waited for the same last one */
        commit(r, finished);
    memcpy(r->shared->plate[r->first], r->now, (size_t)(r->rows * SIDE) * sizeof *r->now);
    ckpt_close(r->ckpt, ckpt_clock_ms() + WAIT_MS);
}

static void be_rank(struct rank *r, const char *dir, const struct ckpt_decision *d, int64_t steps,
                    int64_t kill_after)
{
    struct err err;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody waits at the barrier for ever */
    r->first = SIDE * r->rank / r->world;
    r->rows = SIDE * (r->rank + 1) / r->world - r->first;
    r->now = calloc((size_t)(r->rows * SIDE), sizeof *r->now);
    r->next = calloc((size_t)(r->rows * SIDE), sizeof *r->next);
    r->passed = calloc((size_t)r->rows, sizeof *r->passed);
    r->committed = -1;
    if (!r->now || !r->next || !r->passed)
        exit(1);
    for (int64_t i = 0; i < r->rows * SIDE; i++)
        r->now[i] = cell(r->first + i / SIDE, i % SIDE);
    open_checkpoints(r, dir, d->epoch + 1);
    if (d->found) {
        must(ckpt_restore_from(r->ckpt, d, &err), &err);
        must(ckpt_adopt(r->ckpt, d->record, &err), &err);
    }
    must(ckpt_buffer_take(r->ckpt, &err), &err); /* or else the first save has to */
    meet(r);
    run(r, d->found ? d->position.step : 0, steps, kill_after);
    free(r->now);
    free(r->next);
    free(r->passed);
}

/* ---- the parent ---- */

/* What all ranks go on from. On several nodes each scans its folder, and all scans go to all. */
static void decide(const char *dir, struct ckpt_decision *d)
{
    struct err err;
    char *scan = ckpt_scan(dir, "here", RUN, &err);
    must(scan ? 0 : -1, &err);
    must(ckpt_decide((const char *const *)&scan, 1, -1, d, &err), &err);
    free(scan);
    if (*d->report)
        fprintf(stderr, "heat: %s", d->report);
}

static struct shared *share(int world)
{
    pthread_barrierattr_t attr;
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        exit(1);
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&s->barrier, &attr, (unsigned)world);
    return s;
}

/* 0 if all ended well; the first that does not takes the others with it. */
static int wait_for(const pid_t *pids, int world)
{
    int bad = 0, status;
    while (wait(&status) > 0 || errno == EINTR) {
        if (!status || bad)
            continue;
        bad = 1;
        for (int i = 0; i < world; i++)
            kill(pids[i], SIGKILL);
    }
    return bad;
}

static uint64_t hash(const struct shared *s)
{
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    const unsigned char *p = (const unsigned char *)s->plate;
    for (size_t i = 0; i < sizeof s->plate; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

int main(int argc, char **argv)
{
    struct ckpt_decision d;
    pid_t pids[RANKS];
    int world = argc > 3 ? atoi(argv[2]) : 0;
    int64_t steps = argc > 3 ? atoll(argv[3]) : 0;
    int64_t kill_after = argc > 5 && !strcmp(argv[4], "--kill") ? atoll(argv[5]) : 0;
    if (world < 1 || world > RANKS || steps < 1) {
        fprintf(stderr, "usage: heat DIR RANKS STEPS [--kill STEP]   (at most %d ranks)\n", RANKS);
        return 2;
    }
    decide(argv[1], &d);
    if (d.found)
        printf("goes on from step %lld of %d ranks\n", (long long)d.position.step, d.world);
    fflush(stdout);
    struct shared *shared = share(world);
    for (int rank = 0; rank < world; rank++) {
        struct rank r = {.rank = rank, .world = world, .shared = shared};
        if ((pids[rank] = fork()) < 0)
            return 1;
        if (!pids[rank]) {
            be_rank(&r, argv[1], &d, steps, kill_after);
            ckpt_decision_free(&d);
            return 0;
        }
    }
    ckpt_decision_free(&d);
    if (wait_for(pids, world)) {
        fprintf(stderr, "heat: a process died: start again to go on\n");
        return 1;
    }
    printf("%016llx after %lld steps\n", (unsigned long long)hash(shared), (long long)steps);
    return 0;
}
