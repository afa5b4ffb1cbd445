/* launches.c - see launches.h. */
#include "launches.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <slurm/spank.h>

#include "probe.h"
#include "reexec.h"
#include "relaunch.h"

#define LEFT_VARIABLE  "SLURM_GTRAIN_RELAUNCH" /* of a new launch: how many may follow it */
#define LIST_MAX_BYTES 120000                  /* Linux takes words of 128 KiB */

/* Of this srun: SPANK's hooks carry no pointer of ours. */
static struct {
    bool inside; /* an allocation that stays when srun ends */
    int argc;
    const struct cmdline *cmdline;
    int wanted_nodes, tasks_per_node;
    struct nodes step, job, lost;
    char *job_nodes;
    atomic_int left, needed; /* the coordinator's word, as a thread of its own hears it */
    atomic_bool placed, again;
    char **words; /* of the new launch */
    char count[16], tasks[16], per_node[16], left_then[16];
} me;

int launches_save(const struct self *self)
{
    const char *job = getenv("SLURM_JOB_ID");

    me.inside = job && *job && self->argc > 0;
    me.argc = self->argc;
    me.cmdline = &self->cmdline;
    if (!me.inside || reexec_save(self->argc, self->argv) == 0)
        return 0;
    slurm_error("gtrain: how srun was started cannot be kept: %s", strerror(errno));
    return -1;
}

bool launches_again(void)
{
    return getenv(LEFT_VARIABLE) != NULL;
}

/* "n0,n1"; NULL when it is too long to be handed on, or memory is out: no new launch then. */
static char *join(const struct nodes *nodes)
{
    size_t room = 1;
    char *list;

    for (int i = 0; i < nodes->count; i++)
        room += strlen(nodes->name[i]) + 1;
    list = room < LIST_MAX_BYTES ? calloc(1, room) : NULL;
    for (int i = 0; list && i < nodes->count; i++) {
        strcat(list, i ? "," : "");
        strcat(list, nodes->name[i]);
    }
    return list;
}

int launches_begin(spank_t sp, int nodes, int tasks_per_node)
{
    uint32_t job, step;
    bool known = spank_get_item(sp, S_JOB_ID, &job) == ESPANK_SUCCESS &&
                 spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
                 probe_step(&me.step, job, step) == 0;

    if (!me.inside)
        return 0; /* where they are not known, none is looked for */
    me.wanted_nodes = nodes;
    me.tasks_per_node = tasks_per_node;
    if (!known || probe_expand(&me.job, getenv("SLURM_JOB_NODELIST")) < 0) {
        slurm_error("gtrain: Slurm does not tell the step's nodes");
        return -1;
    }
    me.job_nodes = me.job.count ? join(&me.job) : NULL;
    me.inside = me.job_nodes != NULL;
    return 0;
}

const char *launches_job_nodes(void)
{
    return me.job_nodes;
}

const char *launches_left(void)
{
    const char *left = getenv(LEFT_VARIABLE);

    return left && *left && left[strspn(left, "0123456789")] == '\0' && strlen(left) < 5 ? left
                                                                                         : NULL;
}

/* Tell which nodes of the step do not answer, a line each; none if Slurm does not say. */
static void name_silent(const char *word, void (*tell)(const char *line))
{
    struct nodes silent;
    char line[300];

    if (probe_silent(&silent, &me.step) < 0)
        return;
    for (int i = 0; i < silent.count; i++) {
        snprintf(line, sizeof(line), "%s %s\n", word, silent.name[i]);
        tell(line);
    }
    nodes_free(&silent);
}

void launches_hear(const char *line, void (*tell)(const char *line))
{
    int left, needed;

    if (sscanf(line, "relaunch %d %d", &left, &needed) == 2) {
        me.left = left;
        me.needed = needed;
    } else if (!strncmp(line, "lost ", 5)) {
        nodes_add(&me.lost, line + 5);
    } else if (!strcmp(line, "placed")) {
        me.placed = true;
    } else if (!strcmp(line, "again")) {
        me.again = true;
    } else if (!strcmp(line, "missing")) {
        name_silent("absent", tell);
        tell("asked\n");
    }
}

bool launches_follow(void)
{
    return me.inside && me.left > 0;
}

void launches_want(void)
{
    me.again = true;
}

void launches_name_silent(void (*tell)(const char *line))
{
    if (launches_follow() && !me.placed)
        name_silent("silent", tell);
}

/* The nodes, in Slurm's words; NULL after one line in Slurm's log. */
static char *choose(void)
{
    struct nodes silent = {NULL, 0}, pick = {NULL, 0};
    char *list = NULL;

    if (probe_silent(&silent, &me.job) < 0) {
        slurm_error("gtrain: no new launch: Slurm does not say which nodes it still has");
        return NULL;
    }
    for (int i = 0; i < silent.count; i++)
        nodes_add(&me.lost, silent.name[i]);
    nodes_free(&silent);
    if (relaunch_pick(&pick, &me.step, &me.job, &me.lost, me.wanted_nodes) == 0 &&
        pick.count >= me.needed)
        list = probe_compress(&pick);
    else
        slurm_error("gtrain: no new launch: %d nodes of the job are left, and the plan needs %d",
                    pick.count, me.needed);
    snprintf(me.count, sizeof(me.count), "%d", pick.count);
    snprintf(me.tasks, sizeof(me.tasks), "%d", pick.count * me.tasks_per_node);
    snprintf(me.per_node, sizeof(me.per_node), "%d", me.tasks_per_node);
    nodes_free(&pick);
    return list;
}

void launches_prepare(void)
{
    char *list;

    if (!launches_follow() || !me.again || me.words || !(list = choose()))
        return;
    /* Slurm may not know yet that a node is lost, and then has the others' processors in use:
     * --overlap. Its output goes on where it was. */
    char *more[] = {"--overlap", "--open-mode=append", "-N",        me.count, "-w", list, "-n",
                    me.tasks,    "--ntasks-per-node",  me.per_node, NULL};

    snprintf(me.left_then, sizeof(me.left_then), "%d", me.left - 1);
    me.words = relaunch_words(me.cmdline, me.argc, reexec_argv(), more);
    slurm_spank_log("gtrain: the step is launched again on %s nodes (%s)", me.count, list);
}

void launches_go(void)
{
    if (!me.words)
        return;
    fflush(NULL);
    reexec_run(me.words, LEFT_VARIABLE, me.left_then);
    slurm_error("gtrain: the step cannot be launched again: %s", strerror(errno));
}
