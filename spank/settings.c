/* settings.c - sets variables for the moment in which Slurm reads them, then puts them back.
 *
 * Options on the command line still win over these, as over any such variable. */
#include "settings.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Without these the first lost node, or the first task that ends, takes the step with it. */
static const char *const step_settings[][2] = {
    {"SLURM_NO_KILL", "set"}, {"SLURM_WAIT", "0"}, {"SLURM_KILL_BAD_EXIT", "0"}, {NULL, NULL}};

/* The same for the allocation; sbatch and salloc each read theirs and not the other's. */
static const char *const job_settings[][2] = {
    {"SBATCH_NO_KILL", "set"}, {"SALLOC_NO_KILL", "set"}, {NULL, NULL}};

#define SETTINGS_MAX 5

/* The environment is the process's, so what is owed to it is too: one list per process. */
static struct {
    const char *name;
    char *before; /* NULL: was not set */
} changed[SETTINGS_MAX];
static int changes;

static bool is_changed(const char *name)
{
    for (int i = 0; i < changes; i++)
        if (!strcmp(changed[i].name, name))
            return true;
    return false;
}

static void set(const char *name, const char *value)
{
    const char *before = getenv(name);

    if (is_changed(name) || changes == SETTINGS_MAX)
        return;
    changed[changes].name = name;
    changed[changes++].before = before ? strdup(before) : NULL;
    setenv(name, value, 1);
}

void settings_for_step(void)
{
    for (int i = 0; step_settings[i][0]; i++)
        set(step_settings[i][0], step_settings[i][1]);
    /* Slurm's PMIx server kills the step when one rank dies; who wants it says so. This one stays:
     * srun sets it for every step, and slurmstepd takes it from there. */
    setenv("SLURM_MPI_TYPE", "none", 0);
}

void settings_for_even_tasks(const char *tasks_per_node)
{
    if (!getenv("SLURM_NTASKS_PER_NODE"))
        set("SLURM_NTASKS_PER_NODE", tasks_per_node);
}

void settings_for_live_line(void)
{
    set("SLURM_UNBUFFEREDIO", "1");
}

void settings_for_job(void)
{
    for (int i = 0; job_settings[i][0]; i++)
        set(job_settings[i][0], job_settings[i][1]);
}

void settings_restore(void)
{
    for (; changes > 0; changes--) {
        const char *name = changed[changes - 1].name;
        char *before = changed[changes - 1].before;

        if (before)
            setenv(name, before, 1);
        else
            unsetenv(name);
        free(before);
    }
}
