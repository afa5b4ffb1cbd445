/* runstate.c - see runstate.h. Written aside, synced and renamed, like run.json: a requeue that was
 * counted stays counted. */
#include "launch/runstate.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launch/run.h"

enum { RUNSTATE_MAX_BYTES = 16777216, RUNSTATE_FAILED_MAX = 10000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)(t.tv_nsec / 1000000) * 1e-3;
}

/* ---- reading ---- */

static void get_text(struct json_object *o, const char *key, char *text, size_t room)
{
    struct json_object *v;
    text[0] = 0;
    if (json_object_object_get_ex(o, key, &v) && json_object_is_type(v, json_type_string))
        snprintf(text, room, "%s", json_object_get_string(v));
}

static int64_t get_number(struct json_object *o, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(o, key, &v) ? json_object_get_int64(v) : 0;
}

static double get_time(struct json_object *o)
{
    struct json_object *v;
    return json_object_object_get_ex(o, "time", &v) ? json_object_get_double(v) : 0;
}

static int add_failed(struct runstate *r, const struct runstate_failed *f)
{
    if (r->n_failed == RUNSTATE_FAILED_MAX)
        return 0;
    struct runstate_failed *more = reallocarray(r->failed, (size_t)r->n_failed + 1, sizeof *more);
    if (!more)
        return -1;
    r->failed = more;
    r->failed[r->n_failed++] = *f;
    return 0;
}

static int get_failed(struct runstate *r, struct json_object *root)
{
    struct json_object *list;
    if (!json_object_object_get_ex(root, "failed", &list) ||
        !json_object_is_type(list, json_type_array))
        return 0;
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *o = json_object_array_get_idx(list, i);
        struct runstate_failed f = {.time = get_time(o),
                                    .epoch = (uint32_t)get_number(o, "epoch"),
                                    .generation = (uint32_t)get_number(o, "generation")};
        get_text(o, "node", f.node, sizeof f.node);
        get_text(o, "reason", f.reason, sizeof f.reason);
        if (*f.node && add_failed(r, &f))
            return -1;
    }
    return 0;
}

static int take(struct runstate *r, struct json_object *root)
{
    get_text(root, "job", r->job, sizeof r->job);
    get_text(root, "state", r->state, sizeof r->state);
    get_text(root, "text", r->text, sizeof r->text);
    r->epoch = (uint32_t)get_number(root, "epoch");
    r->first_epoch = (uint32_t)get_number(root, "first_epoch");
    r->generation = (uint32_t)get_number(root, "generation");
    r->restarts = (int)get_number(root, "restarts");
    r->requeues = (int)get_number(root, "requeues");
    r->relaunches = (int)get_number(root, "relaunches");
    r->world = (int)get_number(root, "world");
    r->replicas = (int)get_number(root, "replicas");
    r->planned_replicas = (int)get_number(root, "planned_replicas");
    r->spares = (int)get_number(root, "spares");
    r->step = get_number(root, "step");
    if (json_object_object_get_ex(root, "begun", NULL))
        r->begun = get_number(root, "begun");
    r->time = get_time(root);
    return get_failed(r, root);
}

int runstate_read(struct runstate *r, const char *dir, struct err *err)
{
    char path[PATH_MAX];
    *r = (struct runstate){.step = -1, .begun = -1};
    if (snprintf(path, sizeof path, "%s/state.json", dir) >= (int)sizeof path)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 12);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_set_errno(err, errno, "cannot open %s", path);
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = bytes >= 0 && bytes <= RUNSTATE_MAX_BYTES ? calloc(1, (size_t)bytes + 1) : NULL;
    int good = text && pread(fd, text, (size_t)bytes, 0) == (ssize_t)bytes;
    close(fd);
    struct json_object *root = good ? json_tokener_parse(text) : NULL;
    free(text);
    good = root && json_object_is_type(root, json_type_object) && !take(r, root);
    json_object_put(root);
    if (good)
        return 1;
    runstate_free(r);
    return err_set(err, "%s is not a record of a run's state", path);
}

void runstate_free(struct runstate *r)
{
    free(r->failed);
    *r = (struct runstate){.step = -1, .begun = -1};
}

/* ---- a launch ---- */

void runstate_begin(struct runstate *r, const char *job, int restarts, uint32_t epoch)
{
    if (!*job || strcmp(r->job, job)) {
        runstate_free(r);
        snprintf(r->job, sizeof r->job, "%s", job);
    } else if (restarts > r->restarts &&
               (!strcmp(r->state, "running") || !strcmp(r->state, "waiting"))) {
        r->requeues++;
    }
    r->restarts = restarts;
    r->epoch = epoch;
    r->generation = 1;
    r->step = -1;
}

static int is_recorded(const struct runstate *r, const char *node)
{
    for (int i = 0; i < r->n_failed; i++)
        if (r->failed[i].epoch == r->epoch && !strcmp(r->failed[i].node, node))
            return 1;
    return 0;
}

int runstate_lost(struct runstate *r, const struct run *run)
{
    for (int i = 0; i < run->n_nodes; i++) {
        const struct run_node *node = &run->nodes[i];
        if (node->state != RUN_NODE_LOST || is_recorded(r, node->info.node))
            continue;
        struct runstate_failed f = {
            .time = now(), .epoch = r->epoch, .generation = run->config.generation};
        snprintf(f.node, sizeof f.node, "%s", node->info.node);
        snprintf(f.reason, sizeof f.reason, "%s", node->why);
        if (add_failed(r, &f))
            return -1;
    }
    return 0;
}

int runstate_failed(struct runstate *r, const char *node, const char *reason)
{
    struct runstate_failed f = {.time = now(), .epoch = r->epoch, .generation = r->generation};
    if (is_recorded(r, node))
        return 0;
    snprintf(f.node, sizeof f.node, "%s", node);
    snprintf(f.reason, sizeof f.reason, "%s", reason);
    return add_failed(r, &f);
}

char *runstate_excluded(const struct runstate *r)
{
    size_t room = 1, used = 0;
    for (int i = 0; i < r->n_failed; i++)
        room += strlen(r->failed[i].node) + 1;
    char *text = calloc(1, room);
    for (int i = 0; text && i < r->n_failed; i++) {
        int seen = 0;
        for (int k = 0; k < i; k++)
            seen |= !strcmp(r->failed[k].node, r->failed[i].node);
        if (!seen)
            used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "",
                                     r->failed[i].node);
    }
    return text;
}

/* ---- writing ---- */

static void put(struct json_object *o, const char *key, struct json_object *value)
{
    json_object_object_add(o, key, value);
}

static struct json_object *encode(const struct runstate *r)
{
    struct json_object *root = json_object_new_object(), *list = json_object_new_array();
    put(root, "state", json_object_new_string(r->state));
    put(root, "job", json_object_new_string(r->job));
    put(root, "time", json_object_new_double(r->time));
    put(root, "epoch", json_object_new_int64(r->epoch));
    put(root, "first_epoch", json_object_new_int64(r->first_epoch));
    put(root, "generation", json_object_new_int64(r->generation));
    put(root, "world", json_object_new_int(r->world));
    put(root, "replicas", json_object_new_int(r->replicas));
    put(root, "planned_replicas", json_object_new_int(r->planned_replicas));
    put(root, "spares", json_object_new_int(r->spares));
    put(root, "step", json_object_new_int64(r->step));
    put(root, "begun", json_object_new_int64(r->begun));
    put(root, "relaunches", json_object_new_int(r->relaunches));
    put(root, "restarts", json_object_new_int(r->restarts));
    put(root, "requeues", json_object_new_int(r->requeues));
    put(root, "text", json_object_new_string(r->text));
    for (int i = 0; i < r->n_failed; i++) {
        const struct runstate_failed *f = &r->failed[i];
        struct json_object *o = json_object_new_object();
        put(o, "node", json_object_new_string(f->node));
        put(o, "time", json_object_new_double(f->time));
        put(o, "epoch", json_object_new_int64(f->epoch));
        put(o, "generation", json_object_new_int64(f->generation));
        put(o, "reason", json_object_new_string(f->reason));
        json_object_array_add(list, o);
    }
    put(root, "failed", list);
    return root;
}

static int write_aside(const char *temporary, const char *text, struct err *err)
{
    size_t bytes = strlen(text);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_set_errno(err, errno, "cannot make %s", temporary);
    errno = ENOSPC; /* what a short write means */
    int bad = write(fd, text, bytes) != (ssize_t)bytes || fsync(fd);
    int why = errno;
    close(fd);
    return bad ? err_set_errno(err, why, "cannot write %s", temporary) : 0;
}

int runstate_write(struct runstate *r, const char *dir, const struct run *run, const char *state,
                   const char *text, struct err *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    if (!dir || !*dir)
        return 0;
    if (snprintf(path, sizeof path, "%s/state.json", dir) >= (int)sizeof path ||
        snprintf(temporary, sizeof temporary, "%s/state.json.new", dir) >= (int)sizeof temporary)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 16);
    snprintf(r->state, sizeof r->state, "%s", state);
    snprintf(r->text, sizeof r->text, "%s", text);
    r->generation = run->config.generation;
    r->world = run->world;
    r->replicas = run->config.shape.data;
    r->planned_replicas = run->replicas;
    r->spares = run_spares(run);
    r->step = run->furthest;
    r->time = now();
    struct json_object *root = encode(r);
    const char *json =
        json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED);
    int bad = json ? write_aside(temporary, json, err) : err_set(err, "out of memory");
    json_object_put(root);
    if (!bad && rename(temporary, path))
        bad = err_set_errno(err, errno, "cannot write %s", path);
    return bad;
}
