/* remote.c - inside slurmstepd, in a task about to become the user's program: put the agent in
 * front.
 *
 * A step of ours is known by the coordinator's address in its environment. Only the first word of
 * the command changes, to the agent's path; the program's own word goes with the environment. So
 * what Slurm does around a task (prolog, labels, input, exit code) stays as it is. */
#include "remote.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <slurm/slurm.h>

/* What an inner srun would take up: dropped, so that a program that starts one gets a plain one. */
static const char *const not_for_workers[] = {"SLURM_NO_KILL", "SLURM_WAIT", "SLURM_KILL_BAD_EXIT",
                                              NULL};

int remote_init(struct self *self, spank_t sp)
{
    return args_register(sp, &self->cmdline);
}

/* Tasks of batch scripts, of interactive shells and of the external step are nobody's ranks. */
static bool is_normal_step(spank_t sp)
{
    uint32_t step = SLURM_BATCH_SCRIPT;

    return spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
           step < SLURM_MAX_NORMAL_STEP_ID;
}

/* The nodes reach srun where it reached them from; that is the one address that is known to work.
 */
static void aim_at_srun(spank_t sp, char *coordinator)
{
    char launcher[128], where[512];
    const char *port = strrchr(coordinator, ':');

    if (!port ||
        spank_getenv(sp, "SLURM_LAUNCH_NODE_IPADDR", launcher, sizeof(launcher)) != ESPANK_SUCCESS)
        return;
    snprintf(where, sizeof(where), "%s%s", launcher, port);
    spank_setenv(sp, "SLURM_GTRAIN_COORDINATOR", where, 1);
}

/* A last look, from inside: Slurm may have spread a number of tasks unevenly. */
static int refuse_uneven(spank_t sp)
{
    uint32_t here = 0, nodes = 0, all = 0;

    if (spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &here) != ESPANK_SUCCESS ||
        spank_get_item(sp, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS ||
        spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &all) != ESPANK_SUCCESS || here * nodes == all)
        return 0;
    slurm_error("gtrain: %u of %u tasks are on this node of %u: say -N%u --ntasks-per-node=%u",
                here, all, nodes, nodes, (all + nodes - 1) / nodes);
    return -1;
}

int remote_task_init(struct self *self, spank_t sp)
{
    char coordinator[300];
    char **argv = NULL;
    int argc = 0;

    if (spank_getenv(sp, "SLURM_GTRAIN_COORDINATOR", coordinator, sizeof(coordinator)) !=
            ESPANK_SUCCESS ||
        !is_normal_step(sp))
        return 0;
    if (refuse_uneven(sp) < 0)
        return -1;
    if (spank_get_item(sp, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc < 1) {
        slurm_error("gtrain: Slurm does not tell the task's command");
        return -1;
    }
    if (access(self->site.agent, X_OK) < 0) {
        slurm_error("gtrain: %s is missing or may not be run on this node: install gtrain here, or "
                    "name it in plugstack.conf with agent=PATH",
                    self->site.agent);
        return -1;
    }
    if (spank_setenv(sp, "SLURM_GTRAIN_PROGRAM", argv[0], 1) != ESPANK_SUCCESS) {
        slurm_error("gtrain: Slurm does not take the task's environment");
        return -1;
    }
    aim_at_srun(sp, coordinator);
    for (int i = 0; i < OPTION_COUNT; i++) {
        spank_unsetenv(sp, inherited_names[i]);
        spank_unsetenv(sp, variable_names[i]);
    }
    for (int i = 0; not_for_workers[i]; i++)
        spank_unsetenv(sp, not_for_workers[i]);
    argv[0] = (char *)self->site.agent;
    return 0;
}
