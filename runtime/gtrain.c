/* gtrain.c - the public face: thin over launch/client.h and train/session.h. See gtrain.h. */
#include "gtrain.h"

#include "base/clock.h"
#include "config.h"
#include "launch/client.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>

struct gtrain {
    struct launch *launch;
    struct launch_identity identity;
};

static int report(const struct err *err, char *error, size_t error_bytes)
{
    if (error && error_bytes)
        snprintf(error, error_bytes, "%s", err->text);
    return -1;
}

struct gtrain *gtrain_open(char *error, size_t error_bytes)
{
    struct err err;
    struct gtrain *g = calloc(1, sizeof *g);
    if (!g)
        err_set(&err, "no memory");
    else if (!launch_open(&g->launch, &g->identity, &err))
        return g;
    free(g);
    report(&err, error, error_bytes);
    return NULL;
}

void gtrain_close(struct gtrain *g)
{
    if (!g)
        return;
    launch_close(g->launch, &g->identity);
    free(g);
}

int gtrain_rank(const struct gtrain *g)
{
    return g->identity.rank;
}

int gtrain_world(const struct gtrain *g)
{
    return g->identity.world;
}

int gtrain_local_rank(const struct gtrain *g)
{
    return g->identity.local_rank;
}

int gtrain_local_world(const struct gtrain *g)
{
    return g->identity.local_world;
}

int gtrain_spares(const struct gtrain *g)
{
    return g->identity.spares;
}

uint32_t gtrain_epoch(const struct gtrain *g)
{
    return g->identity.epoch;
}

uint32_t gtrain_generation(const struct gtrain *g)
{
    return g->identity.generation;
}

const char *gtrain_node(const struct gtrain *g)
{
    return g->identity.node;
}

const char *gtrain_run_dir(const struct gtrain *g)
{
    return g->identity.run_dir;
}

const char *gtrain_restore(const struct gtrain *g)
{
    return g->identity.restore;
}

const char *gtrain_plan_text(const struct gtrain *g)
{
    return g->identity.plan_text ? g->identity.plan_text : "";
}

int gtrain_exchange(struct gtrain *g, const void *mine, size_t bytes, void **all, size_t *lengths,
                    int64_t timeout_ms, char *error, size_t error_bytes)
{
    struct err err;
    if (launch_exchange(g->launch, mine, bytes, all, lengths, clock_ms() + timeout_ms, &err))
        return report(&err, error, error_bytes);
    return 0;
}

void gtrain_progress(struct gtrain *g, int64_t step)
{
    launch_progress(g->launch, step, 0);
}

int gtrain_stop_asked(struct gtrain *g)
{
    return launch_stop_asked(g->launch);
}

int gtrain_done(struct gtrain *g, char *error, size_t error_bytes)
{
    struct err err;
    return launch_done(g->launch, &err) ? report(&err, error, error_bytes) : 0;
}

/* ---- a plan ---- */

struct gtrain_plan {
    struct plan *plan;
};

struct gtrain_plan *gtrain_plan_load(const char *plan, char *error, size_t error_bytes)
{
    struct err err;
    struct gtrain_plan *p = calloc(1, sizeof *p);
    if (!p)
        err_set(&err, "no memory");
    else if ((p->plan = session_load_plan(plan, &err)))
        return p;
    free(p);
    report(&err, error, error_bytes);
    return NULL;
}

void gtrain_plan_free(struct gtrain_plan *plan)
{
    if (!plan)
        return;
    plan_free(plan->plan);
    free(plan);
}

int gtrain_plan_world(const struct gtrain_plan *plan)
{
    return plan->plan->world;
}

int64_t gtrain_plan_steps(const struct gtrain_plan *plan)
{
    return plan->plan->training.steps;
}

int64_t gtrain_plan_global_batch(const struct gtrain_plan *plan)
{
    return plan->plan->training.global_batch;
}

int64_t gtrain_plan_sequence(const struct gtrain_plan *plan)
{
    return plan->plan->training.sequence;
}

const char *gtrain_plan_yaml(const struct gtrain_plan *plan)
{
    return plan->plan->text;
}

/* ---- training ---- */

static int ask_stop(void *arg)
{
    const struct gtrain_train_options *o = arg;
    return o->stop_asked ? o->stop_asked(o->arg) : 0;
}

static void tell_step(void *arg, const struct metrics_step *s)
{
    const struct gtrain_train_options *o = arg;
    if (o->step)
        o->step(o->arg, s->step, s->loss);
}

static enum gtrain_end public_end(enum train_end end)
{
    switch (end) {
    case TRAIN_DONE:
    case TRAIN_STOPPED:
        return GTRAIN_DONE;
    case TRAIN_REFUSED:
        return GTRAIN_REFUSED;
    case TRAIN_DIVERGED:
        return GTRAIN_DIVERGED;
    case TRAIN_UNFIT:
        return GTRAIN_UNFIT;
    case TRAIN_BACK:
        return GTRAIN_BACK;
    case TRAIN_FAILED:
        break;
    }
    return GTRAIN_FAILED;
}

enum gtrain_end gtrain_train(struct gtrain *g, const struct gtrain_train_options *options,
                             int *speak, char *error, size_t error_bytes)
{
    struct err err = {{0}};
    bool mine = true;
    struct session_options o = {.plan = options->plan,
                                .dir = options->dir,
                                .restore = options->restore,
                                .local = options->local != 0,
                                .threads = options->threads,
                                .out_fd = options->out_fd,
                                .columns = options->columns,
                                .stop_asked = ask_stop,
                                .step = tell_step,
                                .arg = (void *)options};
    enum train_end end =
        session_run(&o, g ? g->launch : NULL, g ? &g->identity : NULL, &mine, &err);
    if (speak)
        *speak = mine;
    report(&err, error, error_bytes);
    return public_end(end);
}

const char *gtrain_version(void)
{
    return PACKAGE_VERSION;
}
