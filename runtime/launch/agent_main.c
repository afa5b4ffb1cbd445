/* agent_main.c - gtrain-agent: put in front of a step's program by the Slurm plugin. */
#include "launch/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "--version")) &&
        !getenv("SLURM_GTRAIN_SECRET")) {
        printf("gtrain-agent: started by srun --gtrain-plan=FILE, in front of the program of each "
               "task; see man gtrain-agent\n");
        return 0;
    }
    static struct agent_env env; /* lives as long as the process */
    struct err err;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    if (agent_env_take(&env, &err)) {
        dprintf(STDERR_FILENO, "gtrain-agent: %s\n", err.text);
        return 2;
    }
    if (!*env.program && argc < 2) {
        dprintf(STDERR_FILENO, "gtrain-agent: no program: SLURM_GTRAIN_PROGRAM is not set\n");
        return 2;
    }
    agent_memory_open(&env);
    agent_main(&env, argv, &mask);
}
