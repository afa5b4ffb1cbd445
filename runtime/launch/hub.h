/* hub.h - a node's one connection to the coordinator, shared by the agents of its tasks.
 *
 * It lives in the agent of local task 0. It waits for all local tasks, registers the node, and then
 * passes messages: what a task says goes up if it is about its own rank, what the coordinator says
 * goes down to all. It remembers what each task has said last, so that a connection that breaks can
 * be made again without losing a word. It answers each heartbeat and so has no clock of its own
 * while all is well. */
#ifndef GTRAIN_LAUNCH_HUB_H
#define GTRAIN_LAUNCH_HUB_H

#include "launch/agent.h"

struct hub;

enum {
    HUB_TRY_MS = 3000,  /* one attempt to connect and prove */
    HUB_PAUSE_MS = 200, /* between attempts */
    HUB_ORPHAN = 3,     /* patiences that the workers go on without a coordinator */
    HUB_SILENCES = 3,   /* patiences of silence before the connection is made anew */
};

/* own_fd: our end of a socket whose other end is the agent's own task. */
int hub_open(struct hub **out, const struct agent_env *env, int epoll, int own_fd, int64_t now,
             struct err *err);
void hub_close(struct hub *h);

/* Time passes. Returns when it wants to be called next. */
int64_t hub_tick(struct hub *h, int64_t now);

/* 1 when the end has been told to all tasks and those but our own have left. */
int hub_finished(const struct hub *h);

/* What it was told last; NULL: nothing yet. */
const struct message_assign *hub_assigned(const struct hub *h);
/* 1 if it has ended because the coordinator was away for too long. */
int hub_orphaned(const struct hub *h);

#endif
