/* agent.h - the agent of a task: between slurmstepd and the user's program.
 *
 * One process per task. All agents of a node reach the coordinator through one of them, that of the
 * lowest local task: it also runs the hub (hub.h). To the hub every task is alike, its own too. */
#ifndef GTRAIN_LAUNCH_AGENT_H
#define GTRAIN_LAUNCH_AGENT_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "launch/auth.h"
#include "launch/message.h"

enum {
    AGENT_JOIN_MS = 60000,  /* to find the node's hub and the coordinator: others start late too */
    AGENT_LEAVE_MS = 5000,  /* for the other tasks of the node to leave before the hub goes */
    AGENT_KILL_MS = 5000,   /* for killed processes to be gone */
    AGENT_STOP_MS = 60000,  /* likewise, of a big worker: its memory is given back first */
    AGENT_MEMORY_FDS = 4,   /* held for the worker: two for its own state, two for another's */
    AGENT_ORDER_MS = 30000, /* a death so soon after a signal to the step obeyed it (KillWait) */
};

/* What Slurm and the plugin say in the environment. */
struct agent_env {
    struct auth_secret secret;
    struct {
        char address[2][64]; /* the coordinator's, and the host's that srun runs on by Slurm */
        int n;
        uint16_t port;
    } door;
    char program[MESSAGE_PATH_BYTES]; /* to run; "" = argv[1] */
    char node[MESSAGE_NAME_BYTES], topology[MESSAGE_TEXT_BYTES];
    char step[64]; /* JOB.STEP, for the name of the node's socket */
    char job[32];  /* SLURM_JOB_ID */
    uint32_t node_id, nodes, tasks, proc_id, local_id, local_tasks;
    int memory[AGENT_MEMORY_FDS], n_memory; /* agent_memory_open */
};

/* Read it and take it out: the secret is wiped where it stood, so that neither the worker nor
 * /proc shows it. */
int agent_env_take(struct agent_env *env, struct err *err);
/* Memory that workers inherit, one after the other; none where the kernel has none to give. pass:
 * in a worker, before its exec. print: "5,6,7,8". */
void agent_memory_open(struct agent_env *env);
void agent_memory_pass(const struct agent_env *env);
void agent_memory_print(const struct agent_env *env, char *text, size_t room);

/* "2(x4),1" and node 4 -> 1; 0 if it makes no sense. Pure. */
uint32_t agent_local_tasks(const char *tasks_per_node, uint32_t node_id);
/* 1 if a worker must not see this variable ("NAME=value"). Pure. */
int agent_env_hides(const char *variable);
/* The worker's environment: ours without what is hidden, and RANK, WORLD_SIZE and so on. NULL
 * when memory is out. */
char **agent_env_worker(const struct agent_env *env, const struct message_assign *a, int agent_fd);

/* The abstract unix socket of a node's hub: its name cannot be guessed without the secret. */
int agent_socket_listen(const struct agent_env *env, struct err *err);
/* -1 with errno: not there yet (ECONNREFUSED), or worse. */
int agent_socket_connect(const struct agent_env *env);
/* 0 if the process at the other end has our user id. */
int agent_socket_check(int fd);

/* Cores we may use. */
int agent_cores(void);
/* This node's address as the others see it: that of our end of the connection to the coordinator,
 * or "". */
void agent_address(const struct agent_env *env, int connection, char address[64]);
/* A port that is free now, and kept so until *reserved (-1 at first) is closed. 0: none. */
uint16_t agent_reserve_port(int *reserved);

/* Something the loop watches. */
struct watch {
    void (*handle)(struct watch *w, uint32_t events);
    int wants_out;
};
/* Watch fd from now on, or change whether it waits for room to write. */
int watch_add(int epoll, struct watch *w, int fd);
int watch_out(int epoll, struct watch *w, int fd, int wants_out);
/* Queue a frame (NULL: none) on the wire and send what goes. -1: broken. */
int watch_send(int epoll, struct watch *w, struct wire *wire, struct wire_frame *f);

/* What a process does (its state as in /proc, 0: it is not there), and the milliseconds of CPU it
 * has used. */
char agent_look(pid_t pid, uint64_t *cpu_ms);

/* Kill all children, and theirs as they become ours (we are their subreaper), until none is left
 * (0) or the time is up (-1). Only direct children are signalled, so no number is ever taken for
 * another process. */
int kill_children(int64_t deadline_ms);
/* One round of that; 1 while some are left. */
int kill_round(void);

/* The coordinator is lost, and with it, as like as not, the batch host: whose job will not be
 * requeued by anybody but us. The lowest node that lives does it, if it is a batch job. Returns at
 * once when the step is signalled (`signals`: a signalfd), as Slurm does when another was first. */
void agent_requeue(const struct agent_env *env, const struct message_assign *last, int signals);

/* Leave as the worker left: the same exit code, or the same signal. */
void exit_like(int status, const sigset_t *mask) __attribute__((noreturn));

/* Be the agent: never returns. argv as main got it. */
void agent_main(const struct agent_env *env, char **argv, const sigset_t *mask)
    __attribute__((noreturn));

#endif
