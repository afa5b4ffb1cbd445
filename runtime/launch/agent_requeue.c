/* agent_requeue.c - a batch job whose host has died, given back to the queue by an agent.
 *
 * Slurm never requeues such a job: it keeps running on the nodes that are left. All agents lose the
 * coordinator, and each waits as many seconds as its node has nodes before it: so the lowest that
 * lives acts, and Slurm then ends the others. One that comes too late sees that the job is not the
 * launch it was part of any more. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/agent.h"
#include "launch/requeue.h"

enum { TURN_MS = 1000 };

static int is_end(int number)
{
    return number == SIGTERM || number == SIGINT || number == SIGQUIT || number == SIGHUP;
}

/* 1 if the step was told to end meanwhile. */
static int wait_for_turn(int signals, int64_t until)
{
    struct signalfd_siginfo info;
    while (clock_ms() < until) {
        struct pollfd p = {.fd = signals, .events = POLLIN};
        if (poll(&p, 1, clock_left_ms(until)) <= 0)
            continue;
        if (read(signals, &info, sizeof info) != (ssize_t)sizeof info ||
            is_end((int)info.ssi_signo))
            return 1;
    }
    return 0;
}

void agent_requeue(const struct agent_env *env, const struct message_assign *last, int signals)
{
    struct requeue_job job;
    struct err err;
    if (!last->requeues || !*env->job ||
        wait_for_turn(signals, clock_ms() + (int64_t)TURN_MS * env->node_id) ||
        requeue_ask(env->job, (int)last->restarts, &job, &err))
        return;
    int host_lives = !strcmp(job.batch_host, env->node);
    struct requeue r = {.job_id = env->job,
                        .restarts = (int)last->restarts,
                        .keep = "", /* the batch host cannot be given back */
                        .exclude = host_lives ? "" : job.batch_host};
    if (requeue_do(&r, &job, &err))
        dprintf(STDERR_FILENO, "gtrain: job %s cannot be requeued: %s\n", env->job, err.text);
    requeue_job_free(&job);
}
