/* client_agent.c - a worker's side of the socket to its agent. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "launch/client_kinds.h"
#include "launch/message.h"

enum {
    OPEN_MS = 60000, /* the agent answers at once, unless the machine is drowning */
    DONE_MS = 10000,
};

static int gone(struct launch *l, struct err *err)
{
    wire_close(&l->wire);
    return err_set(err, "the agent of this task is gone");
}

/* The next message of this type by the deadline; others are dealt with on the way. */
static int await(struct launch *l, enum message_type type, struct wire_message *m,
                 int64_t deadline_ms, const char *what, struct err *err)
{
    for (;;) {
        if (l->wire.fd < 0)
            return gone(l, err);
        struct err why;
        int more;
        while ((more = wire_next(&l->wire, m, &why)) > 0) {
            if (m->type == (uint16_t)type)
                return 0;
            if (m->type == MESSAGE_STOP)
                l->stop = 1;
        }
        if (more < 0) {
            wire_close(&l->wire);
            return err_set(err, "the agent of this task sent %s", why.text);
        }
        int left = wire_flush(&l->wire);
        if (left < 0)
            return gone(l, err);
        struct pollfd p = {.fd = l->wire.fd, .events = (short)(POLLIN | (left ? POLLOUT : 0))};
        int ready = poll(&p, 1, clock_left_ms(deadline_ms));
        if (ready == 0 && clock_ms() >= deadline_ms)
            return err_set(err, "no %s from the agent of this task within the time allowed", what);
        if (ready > 0 && p.revents & (POLLIN | POLLHUP | POLLERR) && wire_read(&l->wire) != WIRE_OK)
            return gone(l, err);
    }
}

struct message_rank client_agent_who(const struct launch *l)
{
    return (struct message_rank){.rank = (uint32_t)l->rank, .generation = l->generation};
}

static uint32_t variable(const char *name)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

int client_agent_open(struct launch *l, int fd, struct launch_identity *id, struct err *err)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) || type != SOCK_STREAM)
        return err_set(err,
                       "GTRAIN_AGENT_FD names descriptor %d, which is no socket: unset it to "
                       "run without the agent",
                       fd);
    l->rank = (int)variable("RANK");
    l->generation = variable("GTRAIN_GENERATION");
    l->kind = LAUNCH_AGENT;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    wire_open(&l->wire, fd, WIRE_MAX_BYTES);
    wire_queue(&l->wire, message_rank(MESSAGE_OPENED, client_agent_who(l)));
    struct wire_message m;
    if (await(l, MESSAGE_IDENTITY, &m, clock_ms() + OPEN_MS, "identity", err))
        return -1;
    if (message_get_identity(&m, id))
        return err_set(err, "the agent of this task sent an identity that makes no sense");
    id->kind = LAUNCH_AGENT;
    l->rank = id->rank;
    l->world = id->world;
    l->generation = id->generation;
    return 0;
}

int client_agent_exchange(struct launch *l, const void *mine, size_t bytes, void **all,
                          size_t *lengths, int64_t deadline_ms, struct err *err)
{
    uint32_t turn = l->turn++, answered;
    if (l->wire.fd < 0)
        return gone(l, err);
    wire_queue(&l->wire, message_exchange(client_agent_who(l), turn, mine, bytes));
    struct wire_message m;
    if (await(l, MESSAGE_EXCHANGED, &m, deadline_ms, "answer of all ranks", err))
        return -1;
    if (message_get_exchanged(&m, &answered, (uint32_t)l->world, all, lengths))
        return err_set(err, "the agent of this task sent blobs that make no sense");
    if (answered == turn)
        return 0;
    for (int i = 0; i < l->world; i++)
        free(all[i]);
    return err_set(err, "an answer to exchange %u instead of %u", answered, turn);
}

int client_agent_publish(struct launch *l, const void *address, size_t bytes, struct err *err)
{
    if (l->wire.fd < 0)
        return gone(l, err);
    wire_queue(&l->wire, message_publish(client_agent_who(l), address, bytes));
    return wire_flush(&l->wire) < 0 ? gone(l, err) : 0;
}

int client_agent_find(struct launch *l, const int *ranks, int n, void **addresses, size_t *lengths,
                      int64_t deadline_ms, struct err *err)
{
    struct message_ask ask = {.who = client_agent_who(l), .turn = l->asked++, .n = (uint32_t)n};
    struct wire_message m;
    uint32_t rank, turn;
    ask.wanted = calloc((size_t)n + 1, sizeof *ask.wanted);
    if (!ask.wanted)
        return err_set(err, "no memory to ask for %d addresses", n);
    for (int i = 0; i < n; i++)
        ask.wanted[i] = (uint32_t)ranks[i];
    if (l->wire.fd >= 0)
        wire_queue(&l->wire, message_ask(&ask));
    free(ask.wanted);
    if (await(l, MESSAGE_ANSWER, &m, deadline_ms, "addresses", err))
        return -1;
    if (message_get_answer_to(&m, &rank, &turn) || rank != ask.who.rank || turn != ask.turn ||
        message_get_answer(&m, ask.n, addresses, lengths))
        return err_set(err, "the agent of this task sent addresses that make no sense");
    return 0;
}

int client_agent_poll(struct launch *l)
{
    struct wire_message m;
    struct err err;
    int more = 0;
    if (wire_flush(&l->wire) < 0 || wire_read(&l->wire) != WIRE_OK)
        return gone(l, NULL);
    while ((more = wire_next(&l->wire, &m, &err)) > 0)
        if (m.type == MESSAGE_STOP)
            l->stop = 1;
    return more < 0 ? gone(l, NULL) : 0;
}

int client_agent_done(struct launch *l, struct err *err)
{
    if (l->wire.fd < 0)
        return gone(l, err);
    wire_queue(&l->wire, message_rank(MESSAGE_DONE, client_agent_who(l)));
    int64_t deadline = clock_ms() + DONE_MS;
    for (;;) {
        int left = wire_flush(&l->wire);
        if (left <= 0)
            return left < 0 ? gone(l, err) : 0;
        struct pollfd p = {.fd = l->wire.fd, .events = POLLOUT};
        if (poll(&p, 1, clock_left_ms(deadline)) == 0)
            return err_set(err, "the agent of this task does not listen");
    }
}
