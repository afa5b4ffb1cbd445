/* agent_env.c - what the agent reads from its environment, and what it leaves in the worker's. */
#include "launch/agent.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum { WORKER_VARIABLES = 16 };

/* Copy a variable and wipe it where it stood: environ's text is what /proc/PID/environ shows. */
static int take_secret(const char *name, char *text, size_t room, struct err *err)
{
    char *value = getenv(name);
    if (!value)
        return err_set(err, "%s is not set: run programs with srun --gtrain-plan=FILE", name);
    int fits = snprintf(text, room, "%s", value) < (int)room;
    explicit_bzero(value, strlen(value));
    unsetenv(name);
    return fits ? 0 : err_set(err, "%s is longer than %zu digits", name, room - 1);
}

static int take_number(const char *name, const char *other, uint32_t *value, struct err *err)
{
    const char *text = getenv(name);
    if (!text && other)
        text = getenv(other);
    if (!text)
        return err_set(err, "%s is not set: gtrain-agent runs in a Slurm step", name);
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (errno || end == text || *end || v > MESSAGE_MAX_WORLD)
        return err_set(err, "%s is '%.40s', not a number up to %d", name, text, MESSAGE_MAX_WORLD);
    *value = (uint32_t)v;
    return 0;
}

static void take_text(const char *name, char *text, size_t room)
{
    const char *value = getenv(name);
    snprintf(text, room, "%s", value ? value : "");
}

/* "ADDRESS:PORT" */
static int take_door(struct agent_env *env, struct err *err)
{
    char text[128];
    take_text("SLURM_GTRAIN_COORDINATOR", text, sizeof text);
    unsetenv("SLURM_GTRAIN_COORDINATOR");
    char *colon = strrchr(text, ':'), *end = text;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || *end || port < 1 || port > 65535 ||
        colon - text >= (int)sizeof env->door.address[0])
        return err_set(err, "SLURM_GTRAIN_COORDINATOR is '%.60s', not ADDRESS:PORT", text);
    *colon = 0;
    env->door.port = (uint16_t)port;
    snprintf(env->door.address[0], sizeof env->door.address[0], "%s", text);
    env->door.n = 1;
    take_text("SLURM_LAUNCH_NODE_IPADDR", env->door.address[1], sizeof env->door.address[1]);
    if (*env->door.address[1] && strcmp(env->door.address[1], text))
        env->door.n = 2;
    return 0;
}

uint32_t agent_local_tasks(const char *text, uint32_t node_id)
{
    for (;;) {
        char *end;
        unsigned long tasks = strtoul(text, &end, 10), times = 1;
        if (end == text || tasks < 1 || tasks > MESSAGE_MAX_TASKS)
            return 0;
        if (!strncmp(end, "(x", 2)) {
            const char *from = end + 2;
            times = strtoul(from, &end, 10);
            if (end == from || *end != ')' || times < 1)
                return 0;
            end++;
        }
        if (node_id < times)
            return (uint32_t)tasks;
        if (*end != ',')
            return 0;
        node_id -= (uint32_t)times;
        text = end + 1;
    }
}

static int take_place(struct agent_env *env, struct err *err)
{
    if (take_number("SLURM_NODEID", NULL, &env->node_id, err) ||
        take_number("SLURM_STEP_NUM_NODES", "SLURM_NNODES", &env->nodes, err) ||
        take_number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", &env->tasks, err) ||
        take_number("SLURM_PROCID", NULL, &env->proc_id, err) ||
        take_number("SLURM_LOCALID", NULL, &env->local_id, err))
        return -1;
    char text[4096];
    take_text("SLURM_STEP_TASKS_PER_NODE", text, sizeof text);
    if (!*text)
        take_text("SLURM_TASKS_PER_NODE", text, sizeof text);
    env->local_tasks = agent_local_tasks(text, env->node_id);
    if (env->local_id >= env->local_tasks)
        return err_set(err, "SLURM_STEP_TASKS_PER_NODE is '%.60s', which has no task %u on node %u",
                       text, env->local_id, env->node_id);
    take_text("SLURMD_NODENAME", env->node, sizeof env->node);
    if (!*env->node)
        return err_set(err, "SLURMD_NODENAME is not set: gtrain-agent runs in a Slurm step");
    take_text("SLURM_TOPOLOGY_ADDR", env->topology, sizeof env->topology);
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    snprintf(env->job, sizeof env->job, "%s", job ? job : "");
    snprintf(env->step, sizeof env->step, "%.24s.%.24s", job ? job : "", step ? step : "");
    return 0;
}

int agent_env_take(struct agent_env *env, struct err *err)
{
    char hex[AUTH_HEX_BYTES];
    *env = (struct agent_env){0};
    if (take_secret("SLURM_GTRAIN_SECRET", hex, sizeof hex, err) ||
        auth_unhex(hex, env->secret.bytes, err))
        return -1;
    explicit_bzero(hex, sizeof hex);
    if (take_door(env, err) || take_place(env, err))
        return -1;
    take_text("SLURM_GTRAIN_PROGRAM", env->program, sizeof env->program);
    return 0;
}

int agent_env_hides(const char *variable)
{
    static const char *const names[] = {
        "SLURM_GTRAIN_",      "GTRAIN_PLAN=",   "GTRAIN_SPARES=",  "GTRAIN_RESTORE=",
        "GTRAIN_DIR=",        "RANK=",          "WORLD_SIZE=",     "LOCAL_RANK=",
        "LOCAL_WORLD_SIZE=",  "GROUP_RANK=",    "MASTER_ADDR=",    "MASTER_PORT=",
        "GTRAIN_EPOCH=",      "GTRAIN_RUN_ID=", "GTRAIN_RUN_DIR=", "GTRAIN_GENERATION=",
        "GTRAIN_AGENT_FD=",   "GTRAIN_NODE=",   "GTRAIN_ADDRESS=", "GTRAIN_COLUMNS=",
        "GTRAIN_MEMORY_FDS=",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(variable, names[i], strlen(names[i])))
            return 1;
    /* The plugin's options, as Slurm hands them down: a step inside the program must not inherit
     * them. */
    size_t name = strcspn(variable, "=");
    const char *option = strstr(variable, "SPANK_OPTION_gtrain");
    return option && option < variable + name;
}

static int add(char **list, int *n, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int add(char **list, int *n, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int bytes = vasprintf(&list[*n], format, ap);
    va_end(ap);
    if (bytes < 0)
        return -1;
    ++*n;
    return 0;
}

char **agent_env_worker(const struct agent_env *env, const struct message_assign *a, int agent_fd)
{
    int n = 0, count = 0;
    char memory[64];
    agent_memory_print(env, memory, sizeof memory);
    while (environ[count])
        count++;
    char **list = calloc((size_t)count + WORKER_VARIABLES + 1, sizeof *list);
    if (!list)
        return NULL;
    for (int i = 0; i < count; i++)
        if (!agent_env_hides(environ[i]))
            list[n++] = environ[i];
    const char *columns = getenv("SLURM_GTRAIN_COLUMNS"); /* the plugin may not say */
    uint32_t rank = (uint32_t)a->node_rank * a->local_world + env->local_id;
    if (add(list, &n, "RANK=%u", rank) || add(list, &n, "WORLD_SIZE=%u", a->world) ||
        add(list, &n, "LOCAL_RANK=%u", env->local_id) ||
        add(list, &n, "LOCAL_WORLD_SIZE=%u", a->local_world) ||
        add(list, &n, "GROUP_RANK=%d", a->node_rank) ||
        add(list, &n, "MASTER_ADDR=%s", a->master_address) ||
        add(list, &n, "MASTER_PORT=%u", a->master_port) ||
        add(list, &n, "GTRAIN_EPOCH=%u", a->epoch) ||
        add(list, &n, "GTRAIN_GENERATION=%u", a->generation) ||
        add(list, &n, "GTRAIN_RUN_ID=%s", a->run_id) ||
        add(list, &n, "GTRAIN_RUN_DIR=%s", a->run_dir) ||
        add(list, &n, "GTRAIN_NODE=%s", env->node) ||
        add(list, &n, "GTRAIN_ADDRESS=%s", a->address) ||
        add(list, &n, "GTRAIN_AGENT_FD=%d", agent_fd) ||
        (*memory && add(list, &n, "GTRAIN_MEMORY_FDS=%s", memory)) ||
        (columns && add(list, &n, "GTRAIN_COLUMNS=%s", columns)))
        return NULL;
    return list;
}
