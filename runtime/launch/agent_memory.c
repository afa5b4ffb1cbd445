/* agent_memory.c - memory that outlives a worker: memfds that the agent makes before its first
 * worker and holds as long as it lives; each worker inherits them.
 *
 * They have no size until a worker gives them one, so what does not use them costs nothing. The
 * agent never looks into them: what is in there says of itself what it is, and the next worker
 * checks it (ckpt/memory.h). With the agent they are gone. */
#include "launch/agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void agent_memory_open(struct agent_env *env)
{
    for (env->n_memory = 0; env->n_memory < AGENT_MEMORY_FDS; env->n_memory++) {
        int fd = memfd_create("gtrain-memory", MFD_CLOEXEC);
        if (fd < 0)
            break;
        env->memory[env->n_memory] = fd;
    }
    if (env->n_memory == AGENT_MEMORY_FDS)
        return;
    while (env->n_memory > 0) /* a part is no use to anybody */
        close(env->memory[--env->n_memory]);
}

void agent_memory_pass(const struct agent_env *env)
{
    for (int i = 0; i < env->n_memory; i++)
        fcntl(env->memory[i], F_SETFD, 0);
}

void agent_memory_print(const struct agent_env *env, char *text, size_t room)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < env->n_memory && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%d", i ? "," : "", env->memory[i]);
}
