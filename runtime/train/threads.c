/* threads.c - ranks as threads. See threads.h.
 *
 * Devices and comms are opened before the first thread starts, so that a rank that cannot open is a
 * plain error, not peers who wait for it. */
#include "train/threads.h"

#include "memory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the run itself, and of what threads beside it need; NULL: nothing. */
struct hubs {
    struct comm_hub *run, *mirror, *carrier;
};

struct thread_rank {
    const struct threads_options *options;
    struct kernels *k;
    struct comm *comm;
    struct side mirror, carrier;
    int rank;
    pthread_t thread;
    enum train_end end;
    enum train_whose whose;
    struct err err;
};

int threads_of_rank(int asked, const struct plan *plan, int local_world)
{
    if (asked > 0)
        return asked;
    if (plan->training.threads > 0)
        return plan->training.threads;
    cpu_set_t mine;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int share = local_world > 0 ? (int)cores / local_world : 1;
    if (!sched_getaffinity(0, sizeof mine, &mine) && CPU_COUNT(&mine) < share)
        share = CPU_COUNT(&mine);
    return share < 1 ? 1 : share;
}

static struct kernels *open_device(const struct thread_rank *r, struct err *err)
{
    const struct threads_options *o = r->options;
    int threads = threads_of_rank(o->threads, o->plan, o->plan->world);
    struct kernels *k = kernels_open_cpu(threads, err);
    if (!k || !o->deferred_seed)
        return k;
    struct kernels *deferred = kernels_open_deferred(k, o->deferred_seed + (uint64_t)r->rank, err);
    if (!deferred)
        kernels_close(k);
    return deferred;
}

/* Rank, and where it is said to be. node: where its name may lie. */
static void set_place(struct train_identity *identity, const struct thread_rank *r, char node[16])
{
    const struct threads_options *o = r->options;
    int world = o->plan->world, here = o->node_ranks ? o->node_ranks : world;
    identity->rank = r->rank;
    identity->world = world;
    identity->local_rank = r->rank % here;
    identity->local_world = r->rank - identity->local_rank + here > world ? world % here : here;
    snprintf(node, 16, "n%d", r->rank / here);
    if (o->node_ranks)
        identity->node = node;
}

static void *run_rank(void *arg)
{
    char node[16];
    struct thread_rank *r = arg;
    const struct threads_options *o = r->options;
    struct train_options t = {.plan = o->plan,
                              .identity = o->identity,
                              .k = r->k,
                              .comm = r->comm,
                              .mirror = r->mirror,
                              .carrier = r->carrier,
                              .hooks = o->hooks,
                              .measure = o->measure,
                              .out_fd = o->out_fd,
                              .columns = o->columns};
    set_place(&t.identity, r, node);
    if (o->memory)
        t.identity.memory = o->memory + r->rank * CKPT_MEMORY_SLOTS;
    if (r->rank != o->step_rank)
        t.hooks.step = NULL;
    if (r->rank != 0)
        t.hooks.progress = NULL;
    r->end = train_run(&t, &r->whose, &r->err);
    return NULL;
}

/* The rank whose failure is the cause, -1: none failed. */
static int culprit(const struct thread_rank *ranks, int world)
{
    int lost = -1;
    for (int i = 0; i < world; i++) {
        if (ranks[i].end == TRAIN_DONE || ranks[i].end == TRAIN_STOPPED)
            continue;
        if (ranks[i].whose != TRAIN_PEERS)
            return i;
        if (lost < 0)
            lost = i;
    }
    return lost;
}

static enum train_end verdict(const struct thread_rank *ranks, int world, struct err *err)
{
    int rank = culprit(ranks, world);
    if (rank < 0)
        return ranks[0].end;
    if (ranks[rank].whose == TRAIN_MINE && world > 1)
        err_set(err, "rank %d: %s", rank, ranks[rank].err.text);
    else
        err_set(err, "%s", ranks[rank].err.text);
    return ranks[rank].end;
}

static int open_hubs(struct hubs *hubs, const struct threads_options *o, struct err *err)
{
    int world = o->plan->world;
    *hubs = (struct hubs){.run = comm_hub_open(world, err)};
    if (!hubs->run)
        return -1;
    if (o->memory && !(hubs->mirror = comm_hub_open(world, err)))
        return -1;
    if (o->plan->checkpoint.redundancy == PLAN_REDUNDANCY_NONE)
        return 0;
    hubs->carrier = comm_hub_open(world, err);
    return hubs->carrier ? 0 : -1;
}

static void close_hubs(struct hubs *hubs)
{
    comm_hub_close(hubs->run);
    comm_hub_close(hubs->mirror);
    comm_hub_close(hubs->carrier);
}

/* hub NULL: there is to be none. */
static int open_comm(struct comm **out, struct comm_hub *hub, const struct thread_rank *r,
                     struct err *err)
{
    *out = hub ? comm_open_local(hub, r->k, r->rank, err) : NULL;
    return hub && !*out ? -1 : 0;
}

static int open_ranks(const struct threads_options *options, const struct hubs *hubs,
                      struct thread_rank *ranks, struct err *err)
{
    for (int i = 0; i < options->plan->world; i++) {
        struct thread_rank *r = &ranks[i];
        *r = (struct thread_rank){.options = options, .rank = i};
        r->k = open_device(r, err);
        if (!r->k || open_comm(&r->comm, hubs->run, r, err) ||
            open_comm(&r->mirror.comm, hubs->mirror, r, err) ||
            open_comm(&r->carrier.comm, hubs->carrier, r, err))
            return err_prefix(err, "rank %d", i);
    }
    return 0;
}

static void close_ranks(struct thread_rank *ranks, int world)
{
    for (int i = 0; i < world; i++)
        if (ranks[i].comm)
            comm_close(ranks[i].comm);
    for (int i = 0; i < world; i++)
        if (ranks[i].k)
            kernels_close(ranks[i].k);
}

/* Of ranks that never ran: train_run takes them over. */
static void close_sides(struct thread_rank *ranks, int first, int world)
{
    for (int i = first; i < world; i++) {
        side_close(&ranks[i].mirror);
        side_close(&ranks[i].carrier);
    }
}

static enum train_end run_ranks(struct thread_rank *ranks, int world, struct err *err)
{
    int started = 0, rc = 0;
    while (started < world) {
        rc = pthread_create(&ranks[started].thread, NULL, run_rank, &ranks[started]);
        if (rc)
            break;
        started++;
    }
    if (rc)
        comm_abort(ranks[started].comm, "its thread could not be started");
    close_sides(ranks, started, world);
    for (int i = 0; i < started; i++)
        pthread_join(ranks[i].thread, NULL);
    if (!rc)
        return verdict(ranks, world, err);
    err_set_errno(err, rc, "starting a thread for rank %d of %d", started, world);
    return TRAIN_FAILED;
}

enum train_end threads_run(const struct threads_options *options, struct err *err)
{
    int world = options->plan->world;
    enum train_end end = TRAIN_FAILED;
    struct thread_rank *ranks = calloc((size_t)world, sizeof *ranks);
    if (!ranks) {
        err_set(err, "no memory for %d ranks", world);
        return end;
    }
    struct hubs hubs;
    if (!open_hubs(&hubs, options, err) && !open_ranks(options, &hubs, ranks, err))
        end = run_ranks(ranks, world, err);
    else
        close_sides(ranks, 0, world);
    close_ranks(ranks, world);
    close_hubs(&hubs);
    free(ranks);
    return end;
}
