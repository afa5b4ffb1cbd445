/* bench_comm: all-reduce among processes of this machine, by the UCX backend.
 *
 * For 2, 4 and 8 processes and sizes from 1 KiB to 4 MiB: wall time of a call, CPU time of all
 * ranks together, and that CPU time per byte and rank. Each size is measured in rounds; the median
 * is printed, with the smallest and largest.
 *
 * The rival is spinning, the way UCX is usually driven: the same code with a poll() that returns at
 * once (defined below, in front of libc's). "spin/sleep" are the ratios of the wall times and of
 * the CPU times: above 1, sleeping is better. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ucx_world.h"

#define ROUNDS    5
#define MAX_RANKS 16
/* Bytes that a round moves per rank, at most this many calls. */
#define ROUND_BYTES (16u << 20)
#define ROUND_CALLS 200

static const size_t sizes[] = {1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

struct result {
    double wall_us, cpu_us; /* of one call; cpu: of this rank */
};

/* Shared with the children. */
static struct {
    int spin;
    struct result results[N_SIZES][ROUNDS][MAX_RANKS];
} * shared;

/* A wait has a deadline; the progress thread, which is not to spin, has none. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    if (shared && shared->spin && timeout_ms >= 0)
        timeout_ms = 0;
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
    return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &limit, NULL, 0);
}

static double cpu_us(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return 1e6 * (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static int measure(struct rank *r)
{
    int ranks[MAX_RANKS];
    for (int i = 0; i < r->world; i++)
        ranks[i] = i;
    struct comm_group g = {5, r->world, r->rank, ranks};
    for (size_t s = 0; s < N_SIZES; s++) {
        struct kbuf buf;
        if (kernels_alloc(r->k, K_F32, sizes[s] / 4, &buf, &r->err))
            return -1;
        size_t calls = ROUND_BYTES / sizes[s] < ROUND_CALLS ? ROUND_BYTES / sizes[s] : ROUND_CALLS;
        for (int round = -1; round < ROUNDS; round++) { /* round -1: warm */
            if (comm_barrier(r->comm, &g, &r->err))
                return -1;
            int64_t start_ns = clock_ns();
            double start_us = cpu_us();
            for (size_t i = 0; i < calls; i++)
                if (comm_all_reduce(r->comm, &g, r->stream, buf, COMM_SUM, &r->err))
                    return -1;
            struct result result = {(double)(clock_ns() - start_ns) / 1e3 / (double)calls,
                                    (cpu_us() - start_us) / (double)calls};
            if (round >= 0)
                shared->results[s][round][r->rank] = result;
        }
        kernels_free(r->k, &buf);
    }
    return comm_barrier(r->comm, &g, &r->err);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread {
    double low, median, high;
};

/* Of the rounds: the slowest rank's wall time, or all ranks' CPU time. */
static struct spread summary(size_t s, int world, int want_cpu)
{
    double values[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double most = 0, sum = 0;
        for (int r = 0; r < world; r++) {
            struct result *one = &shared->results[s][round][r];
            most = one->wall_us > most ? one->wall_us : most;
            sum += one->cpu_us;
        }
        values[round] = want_cpu ? sum : most;
    }
    qsort(values, ROUNDS, sizeof values[0], by_value);
    return (struct spread){values[0], values[ROUNDS / 2], values[ROUNDS - 1]};
}

static void report(int world, const struct result *spin)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        struct spread wall = summary(s, world, 0), cpu = summary(s, world, 1);
        printf("%5d %9zu %9.0f (%7.0f..%7.0f) %9.0f %12.3f", world, sizes[s], wall.median, wall.low,
               wall.high, cpu.median, cpu.median * 1e3 / (double)sizes[s] / world);
        if (spin)
            printf(" %9.2f %9.2f", spin[s].wall_us / wall.median, spin[s].cpu_us / cpu.median);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    int with_spin = argc < 2 || strcmp(argv[1], "--no-spin");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    printf("all-reduce, f32 sum, %ld cores\n", sysconf(_SC_NPROCESSORS_ONLN));
    printf("ranks     bytes   wall us (    low..   high)  CPU us,all ns/byte/rank   spin/sleep: "
           "wall, CPU\n");
    static const int worlds[] = {2, 4, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        struct result spin[N_SIZES];
        shared->spin = 1;
        if (with_spin && run_processes(worlds[w], measure, 600, -1))
            return 1;
        for (size_t s = 0; s < N_SIZES; s++)
            spin[s] =
                (struct result){summary(s, worlds[w], 0).median, summary(s, worlds[w], 1).median};
        shared->spin = 0;
        if (run_processes(worlds[w], measure, 600, -1))
            return 1;
        report(worlds[w], with_spin ? spin : NULL);
    }
    return 0;
}
