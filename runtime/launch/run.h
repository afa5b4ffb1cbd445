/* run.h - what the coordinator knows of a step, and every decision it takes. No input or output
 * here, and no clock: who calls says what time it is. So each rule can be tried as a table.
 *
 * Gathering: nodes register until all are there, then ranks are placed and it is running. When
 * those that are there have been enough for all ranks of the plan for config.start_patience_ms, the
 * others are not waited for; one that comes after all is a spare. With fewer it never starts so
 * soon. Where none has come for half that time, srun is asked who of them cannot: those are not
 * waited for once two answers agree, and too few without them are the end. Running: ranks finish,
 * fail or are lost with their node. A failure ends a generation (takeover.h); the next begins with
 * the nodes that live, unless it is the end. The first cause decides the end's code and text;
 * nothing changes them afterwards but a cause that explains it better and comes within SETTLE_MS (a
 * rank that says "my peer is gone" is often heard before the peer's own death).
 */
#ifndef GTRAIN_LAUNCH_RUN_H
#define GTRAIN_LAUNCH_RUN_H

#include <stdint.h>

#include "base/err.h"
#include "launch/message.h"
#include "launch/placement.h"
#include "launch/progress.h"

enum {
    RUN_SETTLE_MS = 200,    /* see above; nobody notices so short a wait */
    RUN_FOLLOW_MS = 50,     /* a worker killed by a signal: its node may be dying, too */
    RUN_GATHER_MS = 120000, /* from the first node to the last: prologs and slow file systems */
    RUN_BLAME_MS =
        10000, /* for srun to say who is to blame for what it has ended; it asks for 3 s */
    RUN_ORDER_MS = 30000, /* after a death on order, for the others to follow: Slurm's KillWait */
};

/* Exit codes of `gtrain train` after which no other try helps, or only one on another node, or the
 * next generation begins with an older checkpoint: that is no failure of the rank's, but not for
 * ever: each marks a checkpoint of the last few steps. */
enum { RUN_EXIT_REFUSED = 2, RUN_EXIT_DIVERGED = 3, RUN_EXIT_UNFIT = 4, RUN_EXIT_BACK = 5 };
enum { RUN_BACKS_MOST = 16 }; /* while the run gets no further */

struct run_config {
    int nodes, tasks; /* of the step, as srun counts them */
    int spares;       /* at least so many spare nodes */
    struct placement_shape shape;
    int least_data; /* replicas to go on with when no spare is left; 0: with all or not at all */
    int64_t heartbeat_ms, patience_ms;
    int64_t start_patience_ms; /* once nodes are there for all ranks, for those that are missing; 0:
                                  as long as for those that are needed, RUN_GATHER_MS */
    int64_t stall_ms; /* a run that makes no step for so long at least is looked at; 0: none is */
    int64_t steps;    /* of the whole run, 0: not known */
    int restarts;     /* of a rank that fails again and again, before it is called a bug */
    uint32_t epoch, generation;
};

enum run_node_state {
    RUN_NODE_UP,
    RUN_NODE_SUSPECT, /* its connection broke: it may come back within the patience */
    RUN_NODE_LOST,
    RUN_NODE_GONE, /* closed after the end */
};

struct run_node {
    struct message_register info;
    enum run_node_state state;
    int node_rank; /* -1: spare; -2: not placed yet */
    int64_t heard; /* when it last said anything, or its connection broke */
    char why[128]; /* it was lost */
};

struct run_rank {
    int node; /* index */
    int opened, done, exited;
    struct message_exited how;
    int64_t step;      /* last one reported complete in this generation, -1 none */
    int64_t begin;     /* the first one reported: what was restored */
    int failures;      /* its own, since the run last got further */
    int64_t failed_at; /* how far the run was at the last of them */
    struct progress_rank progress;
};

enum run_phase { RUN_GATHERING, RUN_RUNNING, RUN_ENDED };

/* How well a cause explains an end or a failure; the higher replaces the lower. */
enum run_cause { RUN_CAUSE_NONE, RUN_CAUSE_PEER, RUN_CAUSE_SURE, RUN_CAUSE_NODE };

/* What ends the generation that runs. */
struct run_failure {
    enum run_cause cause; /* NONE: nothing does */
    int rank;             /* whose own failure it is, -1: its node was lost */
    uint8_t code;         /* the run's, if it is the end */
    int64_t silent_ms;    /* from its last sign of life until it was noticed */
    int64_t noticed, act_at;
    char text[MESSAGE_TEXT_BYTES];
};

/* When the newest generation reached what, all ranks of it; 0: not yet. */
struct run_phases {
    int64_t silent_ms, noticed, decided, opened, met, restored, stepped;
    int n_opened, n_restored, n_stepped; /* ranks */
};

struct run {
    struct run_config config;
    enum run_phase phase;
    struct run_node *nodes;
    int n_nodes, room_nodes;
    struct run_rank *ranks; /* for the whole plan's world; the first `world` are in use */
    int world;              /* ranks now */
    int replicas;           /* of the plan; config.shape.data: those that there are now */
    int64_t first_node, last_tick;
    int64_t full_at;  /* since when there have been nodes for all ranks; -1: there are not */
    int late;         /* some nodes did not come in time: it goes on without them */
    int64_t few_at;   /* since when too few will come, whoever comes; -1: enough may */
    int64_t asked_at; /* when srun was last asked who of the missing cannot come, or one came */
    int asked;        /* so often; not again before there is an answer */
    int answers;
    int absent;       /* missing nodes of which two answers in a row said so */
    int absent_once;  /* the last one */
    int64_t furthest; /* step any rank has ever completed, -1 none */
    int ordered;      /* a rank ended on a signal to the step: nothing is taken over any more */
    int backs;        /* RUN_EXIT_BACK since it last got further */
    int64_t back_at;  /* how far it was at the last of them */
    int machine;      /* the end is for want of nodes: on others the run could go on */

    struct progress progress;
    struct run_failure failure;
    struct run_phases phases;
    char action[MESSAGE_TEXT_BYTES]; /* what the newest generation changed, for people */

    enum run_cause cause;
    int64_t end_at; /* when the cause becomes the end */
    uint8_t code;
    char text[MESSAGE_TEXT_BYTES];
};

/* Check that such a step can hold the plan: even tasks, enough nodes. */
int run_open(struct run *run, const struct run_config *config, int64_t now, struct err *err);
void run_close(struct run *run);

/* A node registers, or comes back. Returns its index, or -1 with what to tell it. */
int run_register(struct run *run, const struct message_register *info, int64_t now,
                 struct err *err);
/* All nodes are there that will be waited for, enough for all ranks, none placed yet. */
int run_complete(const struct run *run);
/* Give out ranks; the phase becomes RUNNING. */
int run_place(struct run *run, struct err *err);
/* What crosses a switch, once placed. */
struct placement_cost run_placement_cost(const struct run *run);
/* "rank 3" or "ranks 2-3" of that node. */
void run_describe_ranks(const struct run *run, int node, char *text, size_t room);
/* The nodes as placement.h sees them, and where they are; malloc'ed, to be freed also on -1 (memory
 * is out). */
int run_as_placement(const struct run *run, struct placement_node **nodes, int **node_rank);
/* srun gave up launching the step: this node, one of n, did not answer. What it launched on the
 * others it has ended, so none of those is lost. Nothing once ranks are placed. */
void run_not_launched(struct run *run, const char *node, int n, int64_t now);
/* srun was asked (run.asked) who of the nodes that have not come cannot come: n, of which this is
 * one. */
void run_absent(struct run *run, const char *node, int n, int64_t now);
/* Give a node up. */
void run_lose(struct run *run, int node, const char *why, int64_t silent_ms, int64_t now);
/* Give the nodes' ranks their nodes; what ranks said is forgotten. */
void run_seat(struct run *run);
/* The run ends with this, at the time `at` unless a better cause comes first. */
void run_end_because(struct run *run, enum run_cause cause, uint8_t code, const char *text,
                     int64_t at);
/* The index of the node with this node rank. */
int run_find_node_rank(const struct run *run, int node_rank);
int run_spares(const struct run *run); /* spare nodes that are up */

void run_heard(struct run *run, int node, int64_t now);
void run_broken(struct run *run, int node, int64_t now); /* its connection broke: patience begins */
void run_closed(struct run *run, int node, int64_t now); /* it closed in good order: dead now */

/* About ranks. -1: that node has no such rank, or it has ended already. */
int run_opened(struct run *run, int node, uint32_t rank, int64_t now);
int run_done(struct run *run, int node, uint32_t rank);
int run_progress(struct run *run, int node, uint32_t rank, int64_t step, uint32_t busy_us,
                 int64_t now);
int run_seen(struct run *run, int node, uint32_t rank, char state, int64_t cpu_ms);
/* Its worker was told to end by a signal to the step. */
int run_signalled(struct run *run, int node, uint32_t rank);
int run_exited(struct run *run, int node, const struct message_exited *how, int64_t now);

/* All ranks have each other's addresses. */
void run_met(struct run *run, int64_t now);

/* srun is gone, or an error of the coordinator's own: end with this. */
void run_stop(struct run *run, uint8_t code, const char *text, int64_t now);

/* Time passes: find the lost, end what is to end. Where config.generation is another one
 * afterwards, all nodes that are up need their new assignment. */
void run_tick(struct run *run, int64_t now);
/* When run_tick has to be called again at the latest. */
int64_t run_next_tick(const struct run *run, int64_t now);

/* "signal 9 (Killed)" or "exit code 3". */
void run_describe_exit(const struct message_exited *how, char *text, size_t room);

#endif
