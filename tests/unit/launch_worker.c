/* launch_worker.c - a worker for test_launch: does one thing, as its first argument says.
 *
 *   exchange DIR N open, swap blobs N times (default 2), report steps, say done; writes DIR/RANK
 *   env DIR        a program that knows nothing of gtrain: writes its environment to DIR/RANK
 *   exit N R       rank R exits with N, the others wait for ever
 *   kill N R       rank R dies by signal N, the others wait for ever
 *   early R        rank R opens and exits 0 without saying done, the others wait for ever
 *   wait FILE      open, wait until FILE is there, say done
 *   again DIR R W  as exchange, but in the first generation rank R ends itself in way W (a signal's
 *                  number, or 0: hangs) after the exchange, and the others wait for ever
 *   hang [DIR]     write DIR/RANK, wait for ever, with a child and a grandchild that would wait too
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/client.h"

enum { LIFE_S = 120 }; /* nothing here outlives a broken test for long */

/* libpmix leaks a few bytes of its own, in builds with AddressSanitizer. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpmix";
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "launch_worker: %s: %s\n", what, why);
    exit(9);
}

static int own_rank(void)
{
    const char *rank = getenv("RANK");
    return rank ? atoi(rank) : -1;
}

static FILE *own_file(const char *dir, int rank)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", dir, rank);
    FILE *out = fopen(path, "wx"); /* a rank given out twice fails here */
    if (!out)
        fail(path, strerror(errno));
    return out;
}

/* The directory: "address of 3" is rank 3's; two are asked for in each turn, one of them twice. */
static void look_up(struct launch *l, const struct launch_identity *id, int turn)
{
    static int published;
    char mine[64];
    int other = (id->rank + turn) % id->world, wanted[3] = {other, id->rank, other};
    void *found[3];
    size_t lengths[3];
    struct err err;
    snprintf(mine, sizeof mine, "address of %d", id->rank);
    if (!published++ && launch_publish(l, mine, strlen(mine), &err))
        fail("publish", err.text);
    if (launch_find(l, wanted, 3, found, lengths, clock_ms() + 30000, &err))
        fail("find", err.text);
    for (int i = 0; i < 3; i++) {
        snprintf(mine, sizeof mine, "address of %d", wanted[i]);
        if (lengths[i] != strlen(mine) || strcmp(found[i], mine))
            fail("find", "another rank's address is wrong");
        free(found[i]);
    }
}

/* Blob of rank r in a turn: r + turn (modulo 32) times the byte 'a' + r. */
static void swap(struct launch *l, const struct launch_identity *id, int turn)
{
    char mine[64];
    size_t bytes = (size_t)(id->rank + turn % 32);
    void **all = calloc((size_t)id->world, sizeof *all);
    size_t *lengths = calloc((size_t)id->world, sizeof *lengths);
    struct err err;
    memset(mine, 'a' + id->rank, sizeof mine);
    if (!all || !lengths || launch_exchange(l, mine, bytes, all, lengths, clock_ms() + 30000, &err))
        fail("exchange", err.text);
    for (int r = 0; r < id->world; r++) {
        char expected[64] = {0};
        memset(expected, 'a' + r, (size_t)(r + turn % 32));
        if (lengths[r] != (size_t)(r + turn % 32) || strcmp(all[r], expected))
            fail("exchange", "another rank's blob is wrong");
        free(all[r]);
    }
    free(all);
    free(lengths);
    if (id->kind == LAUNCH_AGENT)
        look_up(l, id, turn);
}

static void do_exchange(const char *dir, int turns)
{
    struct launch *l;
    struct launch_identity id;
    struct err err;
    if (launch_open(&l, &id, &err))
        fail("open", err.text);
    if (id.kind == LAUNCH_PMIX)
        turns = 1; /* it has one exchange a launch */
    for (int turn = 0; turn < turns; turn++)
        swap(l, &id, turn);
    for (int step = 0; step < 3; step++)
        launch_progress(l, step, 0);
    FILE *out = own_file(dir, id.rank);
    fprintf(out, "rank=%d world=%d local=%d/%d node=%s/%d epoch=%u generation=%u run=%s plan=%s\n",
            id.rank, id.world, id.local_rank, id.local_world, id.node, id.node_rank, id.epoch,
            id.generation, id.run_id, id.plan_text ? id.plan_text : "");
    fclose(out);
    if (launch_done(l, &err))
        fail("done", err.text);
    launch_close(l, &id);
}

/* What the first generation leaves in the agent's memory; 0: nothing is there. */
static long memory_of(const struct launch_identity *id)
{
    int64_t word = 0;
    if (id->n_memory < 1)
        fail("memory", "the agent has given none");
    if (pread(id->memory[id->n_memory - 1], &word, sizeof word, 4096) < 0)
        fail("memory", strerror(errno));
    return (long)word;
}

static void leave_memory(const struct launch_identity *id)
{
    int64_t word = 1000 + id->rank;
    if (memory_of(id) || pwrite(id->memory[id->n_memory - 1], &word, sizeof word, 4096) < 0)
        fail("memory", "it is not new");
}

static void do_again(const char *dir, int rank, int way)
{
    struct launch *l;
    struct launch_identity id;
    struct err err;
    if (launch_open(&l, &id, &err))
        fail("open", err.text);
    swap(l, &id, 1);
    if (id.generation == 1) {
        launch_progress(l, 3, 0);
        leave_memory(&id);
        char name[4096];
        snprintf(name, sizeof name, "%s/first.%d", dir, id.rank);
        FILE *out = fopen(name, "w");
        if (out)
            fclose(out);
        if (way && fork() == 0)
            fork(); /* what it leaves behind must be gone, too */
        else if (id.rank == rank && way)
            raise(way);
        sleep(LIFE_S);
        exit(8);
    }
    swap(l, &id, 2);
    launch_progress(l, 3, 0);
    launch_progress(l, 4, 0);
    char first = 0;
    FILE *out = own_file(dir, id.rank);
    fprintf(out, "rank=%d node=%s generation=%u port=%s stdin=%d memory=%ld\n", id.rank, id.node,
            id.generation, getenv("MASTER_PORT"), (int)read(0, &first, 1), memory_of(&id));
    fclose(out);
    if (launch_done(l, &err))
        fail("done", err.text);
    launch_close(l, &id);
}

static void do_env(const char *dir)
{
    extern char **environ;
    FILE *out = own_file(dir, own_rank());
    for (char **v = environ; *v; v++)
        fprintf(out, "%s\n", *v);
    fclose(out);
}

static void do_wait(const char *file)
{
    struct launch *l;
    struct launch_identity id;
    struct err err;
    if (launch_open(&l, &id, &err))
        fail("open", err.text);
    for (int64_t until = clock_ms() + LIFE_S * 1000; access(file, F_OK) && clock_ms() < until;)
        usleep(10000);
    swap(l, &id, 1);
    if (launch_done(l, &err))
        fail("done", err.text);
    launch_close(l, &id);
}

static void wait_for_ever(void)
{
    sleep(LIFE_S);
    exit(8);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        fail("usage", "launch_worker MODE [ARGUMENT...]");
    const char *mode = argv[1];
    int number = argc > 2 ? atoi(argv[2]) : 0, rank = argc > 3 ? atoi(argv[3]) : 0;
    if (!strcmp(mode, "exchange")) {
        do_exchange(argv[2], rank ? rank : 2);
    } else if (!strcmp(mode, "env")) {
        do_env(argv[2]);
    } else if (!strcmp(mode, "wait")) {
        do_wait(argv[2]);
    } else if (!strcmp(mode, "again")) {
        do_again(argv[2], rank, argc > 4 ? atoi(argv[4]) : 0);
    } else if (!strcmp(mode, "exit")) {
        if (own_rank() == rank)
            return number;
        wait_for_ever();
    } else if (!strcmp(mode, "kill")) {
        if (own_rank() == rank)
            raise(number);
        wait_for_ever();
    } else if (!strcmp(mode, "early")) {
        struct launch *l;
        struct launch_identity id;
        if (launch_open(&l, &id, NULL))
            return 9;
        if (own_rank() == number) {
            launch_close(l, &id);
            return 0;
        }
        wait_for_ever();
    } else if (!strcmp(mode, "hang")) {
        if (fork() == 0)
            fork();
        else if (argc > 2)
            fclose(own_file(argv[2], own_rank()));
        wait_for_ever();
    } else {
        fail("no such mode", mode);
    }
    return 0;
}
