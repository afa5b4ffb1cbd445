/* launch_step.h - a whole step on loopback, without Slurm: a coordinator, agents with the
 * environment Slurm would give them, and launch_worker as the program. A pipe that every process of
 * the step inherits shows that none is left. Fails the test where something is not as it should be.
 */
#ifndef TESTS_LAUNCH_STEP_H
#define TESTS_LAUNCH_STEP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "base/clock.h"
#include "launch/coordinator.h"

enum {
    MAX_TASKS = 16,
    DEADLINE_MS = 60000, /* of a whole step on a busy machine; they take a fraction of a second */
    PATIENCE_MS = 30000, /* none is given up because the machine is busy */
    SHORT_MS = 2000,     /* where one is to be given up */
    HEARTBEAT_MS = 100,
};

struct step {
    int nodes, tasks;    /* tasks on each node */
    int world;           /* ranks of the plan, all data parallel */
    int64_t patience_ms; /* 0: PATIENCE_MS */
    int restarts;        /* of a rank that fails by itself */
    const char *argv[6]; /* the worker and its arguments */

    char folder[64];
    struct coordinator_door door;
    pid_t coordinator, agents[MAX_TASKS];
    int n_agents;
    int status[MAX_TASKS]; /* wait statuses */
    int life;              /* our end of the line to the coordinator */
    int leak;              /* read end: at its end when no process of the step is left */
    int leak_write;
    char said[4096]; /* all that the coordinator told srun */
};

/* The path of a program of the build; good for the next few calls. */
const char *build_path(const char *name);
void make_folder(char *folder);
void drop_folder(const char *folder);

/* nodes, tasks, world and argv[1...] say what step; start does all, or in two steps. */
void start(struct step *s, int nodes, int tasks, int world);
void start_coordinator(struct step *s);
void start_agents(struct step *s);
/* Wait until the step has written this file into its folder. */
void wait_for(const struct step *s, const char *name);
/* Wait for a child; past the deadline it is killed. */
int reap(struct step *s, pid_t pid, int64_t deadline);
/* Wait for all, see that nothing is left. Returns the coordinator's exit code. */
int finish(struct step *s);

int exit_of(const struct step *s, int agent);   /* -1: a signal ended it */
int signal_of(const struct step *s, int agent); /* 0: none */
void read_file(const char *folder, const char *name, char *text, size_t room);
/* One of the lines of text is this (with its newline), or begins so. */
void has(const char *text, const char *line);

#endif
