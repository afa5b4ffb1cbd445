/* client.c - which of the three ways we were started, and what is the same in all. */
#include "launch/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/client_kinds.h"
#include "launch/message.h"

static void open_alone(struct launch *l, struct launch_identity *id)
{
    l->kind = LAUNCH_ALONE;
    l->world = 1;
    *id = (struct launch_identity){
        .kind = LAUNCH_ALONE, .world = 1, .local_world = 1, .epoch = 0, .generation = 1};
    gethostname(id->node, sizeof id->node - 1);
}

static int agent_descriptor(const char *text, int *fd, struct err *err)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < 0 || v > 1 << 20)
        return err_set(err, "GTRAIN_AGENT_FD is '%.40s', not a descriptor", text);
    *fd = (int)v;
    return 0;
}

/* "5,6,7,8": descriptors of files without a name, ours to write. */
static int take_memory(const char *text, struct launch_identity *id, struct err *err)
{
    const char *at = text;
    for (id->n_memory = 0; *at && id->n_memory < LAUNCH_MEMORY_MAX; id->n_memory++) {
        char *end;
        struct stat st;
        errno = 0;
        long v = strtol(at, &end, 10);
        if (errno || end == at || v < 0 || v > 1 << 20 || (*end && *end != ',') ||
            fstat((int)v, &st) || !S_ISREG(st.st_mode) || st.st_nlink)
            break;
        fcntl((int)v, F_SETFD, FD_CLOEXEC);
        id->memory[id->n_memory] = (int)v;
        at = *end ? end + 1 : end;
    }
    if (!*at)
        return 0;
    return err_set(err,
                   "GTRAIN_MEMORY_FDS is '%.60s', not up to %d memfds: unset it to run without the "
                   "agent's memory",
                   text, LAUNCH_MEMORY_MAX);
}

int launch_open(struct launch **out, struct launch_identity *identity, struct err *err)
{
    *out = NULL;
    *identity = (struct launch_identity){0};
    struct launch *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(err, "out of memory");
    l->wire.fd = -1;
    int fd = -1, bad = 0;
    const char *agent = getenv("GTRAIN_AGENT_FD"), *memory = getenv("GTRAIN_MEMORY_FDS");
    if (agent)
        bad = agent_descriptor(agent, &fd, err) || client_agent_open(l, fd, identity, err) ||
              (memory && take_memory(memory, identity, err));
    else if (client_pmix_here())
        bad = client_pmix_open(l, identity, err);
    else
        open_alone(l, identity);
    if (bad) {
        launch_close(l, identity);
        return -1;
    }
    /* Once: a program that this one starts is not the agent's worker. */
    unsetenv("GTRAIN_AGENT_FD");
    unsetenv("GTRAIN_MEMORY_FDS");
    *out = l;
    return 0;
}

static int exchange_alone(const void *mine, size_t bytes, void **all, size_t *lengths,
                          struct err *err)
{
    unsigned char *copy = malloc(bytes + 1);
    if (!copy)
        return err_set(err, "out of memory");
    if (bytes)
        memcpy(copy, mine, bytes);
    copy[bytes] = 0;
    all[0] = copy;
    lengths[0] = bytes;
    return 0;
}

int launch_exchange(struct launch *l, const void *mine, size_t bytes, void **all, size_t *lengths,
                    int64_t deadline_ms, struct err *err)
{
    if (bytes > MESSAGE_BLOB_BYTES)
        return err_set(err, "%zu bytes to exchange, more than %d", bytes, MESSAGE_BLOB_BYTES);
    switch (l->kind) {
    case LAUNCH_AGENT:
        return client_agent_exchange(l, mine, bytes, all, lengths, deadline_ms, err);
    case LAUNCH_PMIX:
        return client_pmix_exchange(l, mine, bytes, all, lengths, deadline_ms, err);
    case LAUNCH_ALONE:
        break;
    }
    return exchange_alone(mine, bytes, all, lengths, err);
}

static int no_directory(struct err *err)
{
    return err_set(err, "this launch has no directory of addresses: use launch_exchange");
}

int launch_publish(struct launch *l, const void *address, size_t bytes, struct err *err)
{
    if (bytes > MESSAGE_BLOB_BYTES)
        return err_set(err, "an address of %zu bytes, more than %d", bytes, MESSAGE_BLOB_BYTES);
    return l->kind == LAUNCH_AGENT ? client_agent_publish(l, address, bytes, err)
                                   : no_directory(err);
}

int launch_find(struct launch *l, const int *ranks, int n, void **addresses, size_t *lengths,
                int64_t deadline_ms, struct err *err)
{
    return l->kind == LAUNCH_AGENT
               ? client_agent_find(l, ranks, n, addresses, lengths, deadline_ms, err)
               : no_directory(err);
}

void launch_progress(struct launch *l, int64_t step, uint32_t busy_us)
{
    if (l->kind != LAUNCH_AGENT || l->wire.fd < 0)
        return;
    client_agent_poll(l);
    if (l->wire.fd < 0 || wire_pending(&l->wire))
        return; /* the agent does not read: this report is lost, the next may not be */
    wire_queue(&l->wire, message_progress(client_agent_who(l), step, busy_us));
    client_agent_poll(l);
}

int launch_stop_asked(struct launch *l)
{
    if (l->kind == LAUNCH_AGENT && l->wire.fd >= 0)
        client_agent_poll(l);
    return l->stop;
}

int launch_done(struct launch *l, struct err *err)
{
    return l->kind == LAUNCH_AGENT ? client_agent_done(l, err) : 0;
}

void launch_close(struct launch *l, struct launch_identity *identity)
{
    if (identity) {
        free(identity->plan_text);
        identity->plan_text = NULL;
    }
    if (!l)
        return;
    wire_close(&l->wire);
    client_pmix_close(l);
    free(l);
}
