/* session.c - brings plan, launch, run folder, device and network together. See session.h. */
#include "train/session.h"

#include "base/clock.h"
#include "comm/mesh.h"
#include "launch/rundir.h"
#include "memory.h"
#include "train/run_folder.h"
#include "train/session_connect.h"
#include "train/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session {
    const struct session_options *options;
    struct launch *launch;
    struct launch_identity *identity;
    struct plan *plan;
    char dir[4096]; /* run folder */
    char run_id[80];
    uint32_t epoch;
    struct comm *comm;        /* where this process is one rank */
    bool memory;              /* somebody holds some for this rank's snapshots */
    int64_t told_ns, wait_ns; /* when progress was told last, and all waits until then */
    int lock;                 /* of the run folder, -1: not ours to hold */
    struct run_folder from;   /* what restore names, if that is a run folder */
};

/* ---- plan and run folder ---- */

struct plan *session_load_plan(const char *spec, struct err *err)
{
    char *path, **overrides;
    int n;
    if (plan_split(spec, &path, &overrides, &n, err))
        return NULL;
    struct plan *plan = plan_load(path, overrides, n, NULL, err);
    plan_split_free(path, overrides, n);
    return plan;
}

/* For the report, to load a checkpoint without the plan's file, and for errors to point into. */
static int write_plan(const char *dir, const char *text, size_t bytes, struct err *err)
{
    char path[4160], temporary[4176];
    snprintf(path, sizeof path, "%s/plan.yaml", dir);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    unlink(temporary); /* of a dead process, or a link to somewhere else */
    FILE *f = fopen(temporary, "wxe");
    if (!f)
        return err_set_errno(err, errno, "%s", temporary);
    bool bad = fwrite(text, 1, bytes, f) != bytes;
    bad |= fclose(f) != 0;
    if (bad || rename(temporary, path))
        return err_set_errno(err, errno, "%s", path);
    return 0;
}

/* Where the coordinator has placed fewer replicas than the plan has: what is different then. */
static int shrunk_overrides(const struct launch_identity *id, char data[32], char *overrides[3])
{
    int n = 0;
    if (id->replicas == id->planned_replicas)
        return 0;
    snprintf(data, 32, "parallel.data=%d", id->replicas);
    overrides[n++] = data;
    overrides[n++] = (char *)"parallel.uneven=true";
    if (id->world == 1) /* there is nobody to guard a rank's files */
        overrides[n++] = (char *)"checkpoint.redundancy=none";
    return n;
}

/* The coordinator's plan is the resolved one, line by line what rank 0 writes into the run folder:
 * so that is what errors name. */
static struct plan *take_plan(const struct launch_identity *id, struct err *err)
{
    char name[4160], data[32], *overrides[3];
    snprintf(name, sizeof name, "%s/plan.yaml", id->run_dir);
    if (id->rank == 0 && access(name, F_OK) &&
        write_plan(id->run_dir, id->plan_text, id->plan_bytes, err))
        return NULL;
    int n = shrunk_overrides(id, data, overrides);
    return plan_parse(id->plan_text, id->plan_bytes, name, overrides, n, NULL, err);
}

static int open_plan(struct session *s, struct err *err)
{
    const struct launch_identity *id = s->identity;
    if (id->plan_text)
        s->plan = take_plan(id, err);
    else if (s->options->plan)
        s->plan = session_load_plan(s->options->plan, err);
    else
        err_set(err, "no plan: use --plan FILE[,key=value...], or srun --gtrain-plan");
    if (!s->plan)
        return -1;
    /* A coordinator has locked its folder: no other will do. */
    const char *dir = *id->run_dir || !s->options->dir ? id->run_dir : s->options->dir;
    if (!*dir)
        dir = s->plan->run_dir;
    if (snprintf(s->dir, sizeof s->dir, "%s", dir) >= (int)sizeof s->dir)
        return err_set(err, "run folder: the path %.64s... is too long", dir);
    return 0;
}

/* Without a coordinator somebody else must: one process locks the folder and counts the launch. A
 * run that goes back to an older checkpoint counts as launched again. */
static int claim_folder(struct session *s, struct err *err)
{
    if (s->lock < 0)
        s->lock = rundir_lock(s->dir, err);
    if (s->lock < 0)
        return -1;
    return rundir_next_epoch(s->dir, s->run_id, &s->epoch, err);
}

static const char *restore_asked(const struct session *s)
{
    return s->options->restore ? s->options->restore : s->identity->restore;
}

/* Restore may name a run folder: its checkpoints are where its plan says. */
static int open_from(struct session *s, struct err *err)
{
    const char *restore = restore_asked(s);
    if (!strchr(restore, '/') || !run_folder_is(restore))
        return 0;
    return run_folder_open(&s->from, restore, NULL, err) ? err_prefix(err, "restore") : 0;
}

static void fill_identity(const struct session *s, struct train_identity *out)
{
    const struct launch_identity *id = s->identity;
    bool run_folder = s->from.plan != NULL;
    *out = (struct train_identity){.rank = id->rank,
                                   .world = id->world,
                                   .local_rank = id->local_rank,
                                   .local_world = id->local_world,
                                   .spares = id->spares,
                                   .planned_replicas = id->planned_replicas,
                                   .epoch = s->epoch,
                                   .since = id->since,
                                   .generation = id->generation,
                                   .node = id->node,
                                   .topology = getenv("SLURM_TOPOLOGY_ADDR"),
                                   .run_id = s->run_id,
                                   .run_dir = s->dir,
                                   .restore = restore_asked(s),
                                   .from_run_id = run_folder ? s->from.run_id : NULL,
                                   .from_local = s->from.local,
                                   .from_shared = s->from.shared,
                                   .memory = s->memory ? id->memory : NULL};
}

/* ---- hooks ---- */

static int stop_asked(void *arg)
{
    struct session *s = arg;
    if (s->options->stop_asked && s->options->stop_asked(s->options->arg))
        return 1;
    return s->launch ? launch_stop_asked(s->launch) : 0;
}

/* The folder's plan is that of its checkpoints: one that was refused leaves no trace there. A
 * coordinator's is written as it is, also for fewer replicas: the next launch has all of them
 * again. */
static int accepted(void *arg, struct err *err)
{
    const struct session *s = arg;
    const struct launch_identity *id = s->identity;
    if (id->plan_text)
        return write_plan(s->dir, id->plan_text, id->plan_bytes, err);
    return write_plan(s->dir, s->plan->text, strlen(s->plan->text), err);
}

static void progress(void *arg, int64_t step)
{
    struct session *s = arg;
    uint64_t unused;
    int64_t now_ns = clock_ns(), wait_ns = 0, busy_us = 0;
    if (!s->launch)
        return;
    if (s->comm)
        comm_stats(s->comm, &unused, &wait_ns);
    if (s->comm && s->told_ns)
        busy_us = (now_ns - s->told_ns - (wait_ns - s->wait_ns)) / 1000;
    s->told_ns = now_ns;
    s->wait_ns = wait_ns;
    launch_progress(s->launch, step, busy_us > 0 && busy_us < UINT32_MAX ? (uint32_t)busy_us : 0);
}

static void step(void *arg, const struct metrics_step *line)
{
    struct session *s = arg;
    if (s->options->step && s->identity->rank == 0)
        s->options->step(s->options->arg, line);
}

static struct train_hooks hooks_of(struct session *s)
{
    return (struct train_hooks){.stop_asked = stop_asked,
                                .progress = progress,
                                .step = step,
                                .accepted = accepted,
                                .arg = s};
}

/* ---- all ranks as threads here ---- */

static enum train_end run_local(struct session *s, struct err *err)
{
    struct threads_options t = {.plan = s->plan,
                                .hooks = hooks_of(s),
                                .measure = true,
                                .out_fd = s->options->out_fd,
                                .columns = s->options->columns,
                                .threads = s->options->threads};
    enum train_end end;
    if (train_check(s->plan, err))
        return TRAIN_REFUSED;
    do {
        if (claim_folder(s, err))
            return TRAIN_REFUSED;
        fill_identity(s, &t.identity);
        end = threads_run(&t, err);
    } while (end == TRAIN_BACK);
    return end;
}

/* ---- one rank of several processes ---- */

static struct comm *open_comm(struct session *s, struct kernels *k, struct comm_hub **hub,
                              struct err *err)
{
    const struct launch_identity *id = s->identity;
    const void *address;
    size_t bytes;
    if (id->world == 1) {
        *hub = comm_hub_open(1, err);
        return *hub ? comm_open_local(*hub, k, 0, err) : NULL;
    }
    struct comm *comm = comm_open_ucx(k, id->rank, id->world, id->generation,
                                      *id->address ? id->address : NULL, &address, &bytes, err);
    if (comm && session_connect(comm, s->launch, id, s->plan, address, bytes, err)) {
        comm_close(comm);
        return NULL;
    }
    return comm;
}

/* What rank 0 knows of the run, when no coordinator has told everybody. */
struct shared {
    char run_id[80];
    uint32_t epoch;
    int failed;
    char text[1024];
};

static int share_folder(struct session *s, struct comm *comm, bool *common, struct err *err)
{
    const struct launch_identity *id = s->identity;
    struct shared shared = {0};
    if (id->kind == LAUNCH_AGENT) {
        snprintf(s->run_id, sizeof s->run_id, "%s", id->run_id);
        s->epoch = id->epoch;
        return 0;
    }
    if (id->rank == 0) {
        shared.failed = claim_folder(s, err) != 0;
        snprintf(shared.text, sizeof shared.text, "%s", shared.failed ? err->text : "");
        snprintf(shared.run_id, sizeof shared.run_id, "%s", s->run_id);
        shared.epoch = s->epoch;
    }
    struct mesh mesh;
    int degree[MESH_AXES] = {1, 1, 1, 1, id->world};
    if (mesh_open(&mesh, degree, id->rank, err))
        return -1;
    int rv = comm_host_broadcast(comm, &mesh.all, &shared, sizeof shared, 0, err);
    mesh_close(&mesh);
    if (rv)
        return -1;
    snprintf(s->run_id, sizeof s->run_id, "%s", shared.run_id);
    s->epoch = shared.epoch;
    *common = shared.failed;
    return shared.failed ? err_set(err, "%s", shared.text) : 0;
}

static int open_side(const struct session *s, struct kernels *k, struct side *side, struct err *err)
{
    const struct launch_identity *id = s->identity;
    side->comm =
        comm_open_ucx(k, id->rank, id->world, id->generation, *id->address ? id->address : NULL,
                      &side->address, &side->address_bytes, err);
    return side->comm ? 0 : -1;
}

/* What snapshots need, where the launch has memory that outlives this process, and files that are
 * kept on other nodes, too: comms of the same ranks, to be connected by them (train.h). */
static int open_sides(struct session *s, struct kernels *k, struct train_options *t,
                      struct err *err)
{
    const struct launch_identity *id = s->identity;
    const struct plan_checkpoint *c = &s->plan->checkpoint;
    s->memory = id->kind == LAUNCH_AGENT && id->n_memory >= CKPT_MEMORY_SLOTS && c->snapshots != 0;
    t->mirror = t->carrier = (struct side){.comm = NULL};
    if (id->world == id->local_world)
        return 0;
    if (s->memory && open_side(s, k, &t->mirror, err))
        return -1;
    if (c->redundancy == PLAN_REDUNDANCY_NONE || !open_side(s, k, &t->carrier, err))
        return 0;
    side_close(&t->mirror);
    return -1;
}

static enum train_end train_rank(struct session *s, struct kernels *k, struct comm *comm,
                                 enum train_whose *whose, struct err *err)
{
    bool common = false;
    struct train_options t = {.plan = s->plan,
                              .k = k,
                              .comm = comm,
                              .hooks = hooks_of(s),
                              .measure = true,
                              .out_fd = s->options->out_fd,
                              .columns = s->options->columns};
    enum train_end end;
    do {
        if (share_folder(s, comm, &common, err)) {
            *whose = common ? TRAIN_COMMON : comm_failed(comm) ? TRAIN_PEERS : TRAIN_MINE;
            return TRAIN_REFUSED;
        }
        if (open_sides(s, k, &t, err)) {
            *whose = TRAIN_MINE;
            return TRAIN_FAILED;
        }
        fill_identity(s, &t.identity);
        end = train_run(&t, whose, err);
    } while (end == TRAIN_BACK && s->identity->kind != LAUNCH_AGENT);
    return end;
}

static enum train_end run_rank(struct session *s, enum train_whose *whose, struct err *err)
{
    struct comm_hub *hub = NULL;
    struct comm *comm = NULL;
    enum train_end end = TRAIN_FAILED;
    if (s->plan->world != s->identity->world) {
        *whose = TRAIN_COMMON;
        err_set(err, "the plan's degrees make %d ranks, but this launch has %d%s", s->plan->world,
                s->identity->world,
                s->identity->world == 1 ? ": use --local for ranks as threads of one process, or "
                                          "srun --gtrain-plan"
                                        : "");
        return TRAIN_REFUSED;
    }
    int threads = threads_of_rank(s->options->threads, s->plan, s->identity->local_world);
    struct kernels *k = kernels_open_cpu(threads, err);
    if (k)
        comm = open_comm(s, k, &hub, err);
    s->comm = comm;
    if (comm) {
        end = train_rank(s, k, comm, whose, err);
        s->comm = NULL;
        comm_close(comm);
    }
    comm_hub_close(hub);
    if (k)
        kernels_close(k);
    return end;
}

/* ---- */

static enum train_end run_session(struct session *s, enum train_whose *whose, struct err *err)
{
    *whose = TRAIN_COMMON;
    if (open_plan(s, err) || train_check(s->plan, err) || open_from(s, err))
        return TRAIN_REFUSED;
    if (s->options->local)
        return run_local(s, err);
    *whose = TRAIN_MINE;
    enum train_end end = run_rank(s, whose, err);
    if ((end == TRAIN_DONE || end == TRAIN_STOPPED) && launch_done(s->launch, err))
        return TRAIN_FAILED;
    return end;
}

enum train_end session_run(const struct session_options *options, struct launch *launch,
                           struct launch_identity *identity, bool *speak, struct err *err)
{
    struct launch_identity own = {.world = 1, .local_world = 1, .generation = 1};
    struct session s = {.options = options, .launch = launch, .identity = identity, .lock = -1};
    enum train_whose whose = TRAIN_MINE;
    enum train_end end = TRAIN_FAILED;
    *speak = true;
    if (!launch) {
        s.identity = &own;
        if (options->local)
            gethostname(own.node, sizeof own.node - 1);
        else if (launch_open(&s.launch, &own, err))
            return TRAIN_FAILED;
    }
    end = run_session(&s, &whose, err);
    *speak = whose == TRAIN_MINE || s.identity->rank == 0;
    if (whose == TRAIN_MINE && s.identity->world > 1)
        err_prefix(err, "rank %d on %s", s.identity->rank, s.identity->node);
    plan_free(s.plan);
    run_folder_close(&s.from);
    if (s.lock >= 0)
        close(s.lock);
    if (!launch && s.launch)
        launch_close(s.launch, &own);
    return end;
}
