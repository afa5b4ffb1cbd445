/* job.c - the check of a plan, done by the gtrain command so that no parser is loaded into Slurm.
 */
#include "job.h"

#include <stdio.h>
#include <unistd.h>

#include "spawn.h"

#define CHECK_MS 60000 /* a plan and the first bytes of its data, on a slow shared file system */

int job_check_plan(const struct self *self, const struct args *args, const struct shape *shape)
{
    char nodes[16], tasks[16];
    char *argv[16];
    int n = 0;

    if (access(self->site.gtrain, X_OK) < 0) {
        slurm_error("gtrain: %s is missing or may not be run on this host: install gtrain here, or "
                    "name it in plugstack.conf with gtrain=PATH",
                    self->site.gtrain);
        return -1;
    }
    argv[n++] = (char *)self->site.gtrain;
    argv[n++] = "plan";
    argv[n++] = "check";
    argv[n++] = (char *)args->plan;
    if (*args->spares) {
        argv[n++] = "--spares";
        argv[n++] = (char *)args->spares;
    }
    if (shape->nodes) {
        snprintf(nodes, sizeof(nodes), "%d", shape->nodes);
        argv[n++] = "--nodes";
        argv[n++] = nodes;
    }
    if (shape->tasks_per_node) {
        snprintf(tasks, sizeof(tasks), "%d", shape->tasks_per_node);
        argv[n++] = "--tasks-per-node";
        argv[n++] = tasks;
    }
    if (self->site.cli_filter)
        argv[n++] = "--spares-added";
    if (cmdline_runs_train(&self->cmdline, self->argc, self->argv))
        argv[n++] = "--for-train";
    argv[n] = NULL;
    /* What is wrong with the plan the command has said by itself. */
    return spawn_run(argv, CHECK_MS) == 0 ? 0 : -1;
}
