/* client_kinds.h - the three ways behind client.h. */
#ifndef GTRAIN_LAUNCH_CLIENT_KINDS_H
#define GTRAIN_LAUNCH_CLIENT_KINDS_H

#include "launch/client.h"
#include "launch/message.h"
#include "launch/wire.h"

struct launch {
    enum launch_kind kind;
    int rank, world;
    uint32_t generation;
    struct wire wire; /* to the agent; fd -1: none */
    uint32_t turn;    /* of the next exchange */
    uint32_t asked;   /* questions so far */
    int stop;         /* the launcher asks for one */
    int pmix_open;    /* initialised, not finalised */
    char pmix_space[256];
};

int client_agent_open(struct launch *l, int fd, struct launch_identity *id, struct err *err);
int client_agent_exchange(struct launch *l, const void *mine, size_t bytes, void **all,
                          size_t *lengths, int64_t deadline_ms, struct err *err);
int client_agent_publish(struct launch *l, const void *address, size_t bytes, struct err *err);
int client_agent_find(struct launch *l, const int *ranks, int n, void **addresses, size_t *lengths,
                      int64_t deadline_ms, struct err *err);
/* Send what waits and take what came, without waiting. -1: the agent is gone. */
int client_agent_poll(struct launch *l);
/* As messages name this rank. */
struct message_rank client_agent_who(const struct launch *l);
int client_agent_done(struct launch *l, struct err *err);

/* 1 if the environment says that a PMIx server started us. */
int client_pmix_here(void);
int client_pmix_open(struct launch *l, struct launch_identity *id, struct err *err);
int client_pmix_exchange(struct launch *l, const void *mine, size_t bytes, void **all,
                         size_t *lengths, int64_t deadline_ms, struct err *err);
void client_pmix_close(struct launch *l);

#endif
