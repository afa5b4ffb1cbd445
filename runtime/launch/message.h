/* message.h - what the coordinator, the node's agents and a worker say to each other.
 *
 * Three hops, one vocabulary: coordinator - hub (TCP, one connection a node), hub - agent (unix
 * socket, one a task), agent - worker (socketpair). What passes through is passed on unread:
 *
 *   coordinator          hub of a node            agent of a task         worker
 *     CHALLENGE ->
 *              <- PROOF
 *     WELCOME   ->               <- JOIN
 *              <- REGISTER
 *     ASSIGN    ->               ASSIGN ->               <- OPENED
 *                                                        IDENTITY ->
 *              <- OPENED, EXCHANGE, PUBLISH, ASK, PROGRESS, DONE ----------
 *     EXCHANGED, ANSWER -------------------------------------------------->
 *              <- EXITED ------------------
 *     ASSIGN    ->               ASSIGN ->      (the next generation: the worker is killed
 *              <- PORT                           and started anew)
 *     LOOK      ->               LOOK ->        (what does your worker do?)
 *              <- SEEN, SIGNALLED ---------
 *     END       ->               END ->
 *     BEAT both ways, once a heartbeat;  REFUSED -> with the reason;  STOP -> worker
 *
 * A message about a rank names it and its generation, and who passes it on checks that it may: what
 * is left of an older generation is dropped. */
#ifndef GTRAIN_LAUNCH_MESSAGE_H
#define GTRAIN_LAUNCH_MESSAGE_H

#include <stdint.h>

#include "launch/auth.h"
#include "launch/client.h"
#include "launch/wire.h"

enum message_type {
    MESSAGE_CHALLENGE = 1,
    MESSAGE_PROOF,
    MESSAGE_WELCOME,
    MESSAGE_JOIN,
    MESSAGE_REGISTER,
    MESSAGE_REFUSED,
    MESSAGE_ASSIGN,
    MESSAGE_OPENED,
    MESSAGE_IDENTITY,
    MESSAGE_EXCHANGE,
    MESSAGE_EXCHANGED,
    MESSAGE_PROGRESS,
    MESSAGE_DONE,
    MESSAGE_EXITED,
    MESSAGE_STOP,
    MESSAGE_END,
    MESSAGE_BEAT,
    MESSAGE_PORT,
    MESSAGE_LOOK,
    MESSAGE_SEEN,
    MESSAGE_SIGNALLED,
    MESSAGE_PUBLISH,
    MESSAGE_ASK,
    MESSAGE_ANSWER,
};

enum {
    MESSAGE_NAME_BYTES = 256,
    MESSAGE_TEXT_BYTES = 1024,
    MESSAGE_PATH_BYTES = 4096,
    MESSAGE_PLAN_BYTES = 1048576, /* longest plan text */
    MESSAGE_BLOB_BYTES = 1048576, /* longest blob of one rank in an exchange */
    MESSAGE_MAX_TASKS = 1024,     /* on one node */
    MESSAGE_MAX_WORLD = 1048576,
};

/* A task reports to its node's hub. */
struct message_join {
    uint32_t local_id, proc_id;
};

/* A node reports, all of its tasks present. `generation` 0: for the first time; else it lost its
 * connection and goes on with the ranks of that generation. */
struct message_register {
    char node[MESSAGE_NAME_BYTES];
    char topology[MESSAGE_TEXT_BYTES]; /* SLURM_TOPOLOGY_ADDR, "spine.leaf.node", or "" */
    char address[64];                  /* towards the other nodes */
    uint16_t port; /* free there now: MASTER_PORT of the next generation if rank 0 comes here */
    uint32_t node_id, nodes, tasks; /* as Slurm counts: SLURM_NODEID, all nodes, all tasks */
    uint32_t local_tasks, cores;
    uint32_t epoch, generation;
};

/* What a node is to be. */
struct message_assign {
    uint32_t epoch, generation;
    uint32_t world, local_world;
    int32_t node_rank; /* -1: a spare */
    uint32_t spares;
    uint32_t replicas, planned_replicas; /* now, and in the plan */
    uint32_t heartbeat_ms, patience_ms;
    uint32_t since; /* the job's first epoch: what was committed from it on goes before `restore` */
    uint32_t restarts, requeues; /* of the job: so far as Slurm counts, and how many may follow */
    char address[64];            /* this node's own, towards the others */
    char master_address[64];
    uint16_t master_port;
    char run_id[17];
    char run_dir[MESSAGE_PATH_BYTES], restore[MESSAGE_PATH_BYTES];
    char *plan; /* owned when decoded; plan_bytes long, and a NUL */
    size_t plan_bytes;
};

enum {
    EXITED_ORDERED = 1,  /* right after a signal to the step */
    EXITED_OPENED = 2,   /* it used launch/client.h */
    EXITED_DONE = 4,     /* and said done */
    EXITED_NEVER = 8,    /* the program could not be executed: code is errno */
    EXITED_NO_AGENT = 16 /* its agent is gone, too: nothing can be started there any more */
};

/* Whom a message is about. */
struct message_rank {
    uint32_t rank, generation;
};

/* A worker is gone. */
struct message_exited {
    struct message_rank who;
    uint8_t signal; /* 0: it exited with `code` */
    uint8_t code;
    uint8_t flags; /* EXITED_* */
};

struct message_end {
    uint8_t code;
    char text[MESSAGE_TEXT_BYTES]; /* to be printed by this node, or "" */
};

/* Encoders return a frame for wire_queue; NULL when memory is out, which wire_queue takes. Decoders
 * return 0, or -1 when a field is missing, over its limit or left over. */
struct wire_frame *message_plain(enum message_type type);
struct wire_frame *message_challenge(const unsigned char nonce[AUTH_BYTES]);
int message_get_challenge(const struct wire_message *m, unsigned char nonce[AUTH_BYTES]);
struct wire_frame *message_proof(const unsigned char nonce[AUTH_BYTES],
                                 const unsigned char mac[AUTH_BYTES]);
int message_get_proof(const struct wire_message *m, unsigned char nonce[AUTH_BYTES],
                      unsigned char mac[AUTH_BYTES]);
struct wire_frame *message_welcome(const unsigned char mac[AUTH_BYTES]);
int message_get_welcome(const struct wire_message *m, unsigned char mac[AUTH_BYTES]);

struct wire_frame *message_join(const struct message_join *v);
int message_get_join(const struct wire_message *m, struct message_join *v);
struct wire_frame *message_register(const struct message_register *v);
int message_get_register(const struct wire_message *m, struct message_register *v);
struct wire_frame *message_refused(const char *text);
int message_get_refused(const struct wire_message *m, char text[MESSAGE_TEXT_BYTES]);
struct wire_frame *message_assign(const struct message_assign *v);
int message_get_assign(const struct wire_message *m, struct message_assign *v);
void message_assign_free(struct message_assign *v);

struct wire_frame *message_identity(const struct launch_identity *v);
int message_get_identity(const struct wire_message *m, struct launch_identity *v);

/* What an agent saw of its worker. */
struct message_seen {
    struct message_rank who;
    uint8_t state;   /* as in /proc: R, S, D, T, ...; 0: there is none */
    uint64_t cpu_ms; /* that it has used */
};

/* OPENED, DONE, SIGNALLED: about a rank, nothing else. */
struct wire_frame *message_rank(enum message_type type, struct message_rank who);
/* Whom any message about a rank is about (OPENED, EXCHANGE, PUBLISH, ASK, PROGRESS, ...). */
int message_get_rank(const struct wire_message *m, struct message_rank *who);
/* busy_us: spent by the rank itself since the report before; 0: not known. */
struct wire_frame *message_progress(struct message_rank who, int64_t step, uint32_t busy_us);
int message_get_progress(const struct wire_message *m, struct message_rank *who, int64_t *step,
                         uint32_t *busy_us);
struct wire_frame *message_seen(const struct message_seen *v);
int message_get_seen(const struct wire_message *m, struct message_seen *v);
struct wire_frame *message_exchange(struct message_rank who, uint32_t turn, const void *blob,
                                    size_t bytes);
int message_get_exchange(const struct wire_message *m, struct message_rank *who, uint32_t *turn,
                         const unsigned char **blob, size_t *bytes);
/* Everybody's blobs, in rank order. */
struct wire_frame *message_exchanged(uint32_t turn, uint32_t world, void *const *blobs,
                                     const size_t *bytes);
/* blobs[i] malloc'ed with a NUL behind; none left allocated on failure. */
int message_get_exchanged(const struct wire_message *m, uint32_t *turn, uint32_t world,
                          void **blobs, size_t *bytes);
/* A rank's address, for whoever asks (directory.h). */
struct wire_frame *message_publish(struct message_rank who, const void *address, size_t bytes);
int message_get_publish(const struct wire_message *m, struct message_rank *who,
                        const unsigned char **address, size_t *bytes);
/* Whose addresses a rank wants. */
struct message_ask {
    struct message_rank who;
    uint32_t turn, n;
    uint32_t *wanted; /* n ranks; owned when decoded */
};
struct wire_frame *message_ask(const struct message_ask *v);
int message_get_ask(const struct wire_message *m, struct message_ask *v);
/* Begins the answer to rank's question `turn`; n coded addresses follow, each as it differs from
 * `first`. */
struct wire_frame *message_answer(uint32_t rank, uint32_t turn, uint32_t n, const void *first,
                                  size_t first_bytes);
/* Only whose it is. */
int message_get_answer_to(const struct wire_message *m, uint32_t *rank, uint32_t *turn);
/* addresses[i] malloc'ed with a NUL behind; none left allocated on failure. */
int message_get_answer(const struct wire_message *m, uint32_t n, void **addresses, size_t *bytes);
struct wire_frame *message_exited(const struct message_exited *v);
int message_get_exited(const struct wire_message *m, struct message_exited *v);
/* A node's free port, as in message_register. */
struct wire_frame *message_port(uint16_t port);
int message_get_port(const struct wire_message *m, uint16_t *port);
struct wire_frame *message_end(const struct message_end *v);
int message_get_end(const struct wire_message *m, struct message_end *v);

/* A message as it came, to be passed on. */
struct wire_frame *message_again(const struct wire_message *m);

#endif
