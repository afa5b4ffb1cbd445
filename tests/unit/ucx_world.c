#include "ucx_world.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_RANKS     16
#define ADDRESS_BYTES 4096

/* In memory that forked ranks share. */
struct exchange {
    pthread_barrier_t barrier;
    size_t bytes[MAX_RANKS];
    unsigned char address[MAX_RANKS][ADDRESS_BYTES];
};

static void *exchange_open(int world)
{
    struct exchange *x =
        mmap(NULL, sizeof *x, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attr;
    if (x == MAP_FAILED)
        return NULL;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&x->barrier, &attr, (unsigned)world);
    pthread_barrierattr_destroy(&attr);
    return x;
}

static void exchange_close(void *x)
{
    munmap(x, sizeof(struct exchange));
}

/* A rank that cannot open still comes to the barrier, with an empty address. */
static struct comm *join(void *shared, struct kernels *k, int rank, int world,
                         const struct comm_directory *directory, struct err *err)
{
    struct exchange *x = shared;
    const void *mine = NULL;
    size_t bytes = 0;
    struct comm *c = comm_open_ucx(k, rank, world, 1, "127.0.0.1", &mine, &bytes, err);
    x->bytes[rank] = c && bytes <= ADDRESS_BYTES ? bytes : 0;
    if (x->bytes[rank])
        memcpy(x->address[rank], mine, bytes);
    pthread_barrier_wait(&x->barrier);
    void *addresses[MAX_RANKS];
    for (int r = 0; r < world; r++) {
        addresses[r] = directory && r != rank ? NULL : x->address[r];
        if (c && !x->bytes[r]) {
            err_set(err, "rank %d did not open", r);
            comm_close(c);
            return NULL;
        }
    }
    if (c && directory)
        comm_set_directory(c, directory);
    if (c && comm_connect_ucx(c, addresses, x->bytes, err)) {
        comm_close(c);
        return NULL;
    }
    return c;
}

static struct comm *exchange_join(void *shared, struct kernels *k, int rank, int world,
                                  struct err *err)
{
    return join(shared, k, rank, world, NULL, err);
}

static int find(void *shared, int rank, void **address, size_t *bytes, struct err *err)
{
    const struct exchange *x = shared;
    *bytes = x->bytes[rank];
    *address = malloc(*bytes);
    if (!*address)
        return err_set(err, "no memory");
    memcpy(*address, x->address[rank], *bytes);
    return 0;
}

static struct comm *find_join(void *shared, struct kernels *k, int rank, int world, struct err *err)
{
    struct comm_directory directory = {find, shared};
    return join(shared, k, rank, world, &directory, err);
}

const struct backend ucx_find_backend = {exchange_open, exchange_close, find_join, 0};
const struct backend ucx_backend = {exchange_open, exchange_close, exchange_join, 0};

static _Noreturn void child(void *shared, int rank, int world, comm_case run, unsigned patience_s)
{
    struct rank r = {.rank = rank, .world = world};
    alarm(patience_s);
    int rv = run_rank(&ucx_backend, shared, &r, run);
    if (rv)
        fprintf(stderr, "world %d, rank %d: %s\n", world, rank, r.err.text);
    fflush(NULL);
    _exit(rv ? 1 : 0);
}

int run_processes(int world, comm_case run, unsigned patience_s, int killed)
{
    pid_t pids[MAX_RANKS];
    void *shared = exchange_open(world);
    int rv = shared ? 0 : -1;
    fflush(NULL);
    for (int i = 0; i < world && shared; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            child(shared, i, world, run, patience_s);
        if (pids[i] < 0)
            abort();
    }
    for (int n = 0; n < world && shared; n++) {
        /* In the order they end: a dead process that nobody has waited for looks alive to UCX. */
        int status = 0, i = 0;
        pid_t pid = waitpid(-1, &status, 0);
        while (i < world - 1 && pids[i] != pid)
            i++;
        int expected = i == killed ? SIGKILL : 0;
        if (status == expected)
            continue;
        fprintf(stderr, "world %d, rank %d: wait status %#x, expected %#x\n", world, i, status,
                expected);
        rv = -1;
    }
    if (shared)
        exchange_close(shared);
    return rv;
}
