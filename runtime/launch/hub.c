/* hub.c - see hub.h. Its life: GATHERING the local tasks, then CONNECTING, PROVING, REGISTERED
 * (waiting for ranks or running), back to CONNECTING when the connection breaks, ENDED. The tasks'
 * side is hub_tasks.c's. */
#include "launch/hub_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static void drop_up(struct hub *h)
{
    wire_close(&h->wire);
}

/* The end, by our own judgement: the coordinator is gone, or refused us. */
void hub_end_here(struct hub *h, const char *text)
{
    if (h->state == HUB_ENDED)
        return;
    h->state = HUB_ENDED;
    struct message_end end = {.code = 1};
    snprintf(end.text, sizeof end.text, "node %s: %s", h->env->node, text);
    hub_send_down_all(h, message_end(&end));
    drop_up(h);
}

/* ---- up: to the coordinator ---- */

static void connection_failed(struct hub *h, int64_t now);

void hub_send_up(struct hub *h, struct wire_frame *f)
{
    if (h->wire.fd < 0)
        wire_frame_drop(f);
    else if (watch_send(h->epoll, &h->up.watch, &h->wire, f))
        connection_failed(h, clock_ms());
}

int hub_running(const struct hub *h)
{
    return h->state == HUB_REGISTERED && h->has_assigned && h->assigned.node_rank >= 0;
}

/* Tell again all that the coordinator may not have heard. */
static void tell_again(struct hub *h)
{
    for (int i = 0; i < h->n_all && hub_running(h); i++) {
        struct hub_task *t = &h->all[i];
        if (t->local_id < 0)
            continue;
        if (t->opened)
            hub_send_up(h, message_rank(MESSAGE_OPENED, hub_rank_of(h, t)));
        if (t->exchange)
            hub_send_up(h, wire_frame_keep(t->exchange));
        if (t->address)
            hub_send_up(h, wire_frame_keep(t->address));
        if (t->ask)
            hub_send_up(h, wire_frame_keep(t->ask));
        if (t->done)
            hub_send_up(h, message_rank(MESSAGE_DONE, hub_rank_of(h, t)));
        if (t->exited)
            hub_send_up(h, wire_frame_keep(t->exited));
    }
}

/* Kept free until ranks are given out; the worker may have it then, and the next is looked for. */
static uint16_t next_port(struct hub *h)
{
    if (h->reserved >= 0)
        close(h->reserved);
    h->reserved = -1;
    return agent_reserve_port(&h->reserved);
}

static void register_node(struct hub *h)
{
    const struct agent_env *env = h->env;
    struct message_register r = {
        .node_id = env->node_id,
        .nodes = env->nodes,
        .tasks = env->tasks,
        .local_tasks = env->local_tasks,
        .cores = (uint32_t)agent_cores(),
        .port = next_port(h),
    };
    if (h->has_assigned) {
        r.epoch = h->assigned.epoch;
        r.generation = h->assigned.generation;
    }
    snprintf(r.node, sizeof r.node, "%s", env->node);
    snprintf(r.topology, sizeof r.topology, "%s", env->topology);
    agent_address(env, h->wire.fd, r.address);
    h->state = HUB_REGISTERED;
    hub_send_up(h, message_register(&r));
    tell_again(h);
}

static void take_assign(struct hub *h, const struct wire_message *m)
{
    struct message_assign *a = calloc(1, sizeof *a);
    if (!a || message_get_assign(m, a) || a->local_world != h->env->local_tasks) {
        if (a)
            message_assign_free(a);
        free(a);
        hub_end_here(h, "an assignment from the coordinator that makes no sense");
        return;
    }
    message_assign_free(a); /* the tasks read the plan, the hub needs it not */
    if (!h->has_assigned || a->generation > h->assigned.generation) {
        h->assigned = *a;
        h->has_assigned = 1;
        hub_forget(h);
        hub_send_up(h, message_port(next_port(h)));
        hub_send_down_all(h, message_again(m));
        hub_check_tasks(h);
    }
    free(a);
}

/* Everybody's blobs: to the tasks that wait for this turn. */
static void take_exchanged(struct hub *h, const struct wire_message *m)
{
    struct wire_reader r = wire_reader(m);
    uint32_t turn = wire_get_u32(&r);
    struct wire_frame *f = message_again(m);
    for (int i = 0; i < h->n_all; i++) {
        struct hub_task *t = &h->all[i];
        if (!t->exchange || t->turn != turn)
            continue;
        wire_frame_drop(t->exchange);
        t->exchange = NULL;
        hub_send_down(h, t, wire_frame_keep(f));
    }
    wire_frame_drop(f);
}

/* Addresses: to the task that has asked. */
static void take_answer(struct hub *h, const struct wire_message *m)
{
    uint32_t rank, turn, first = hub_running(h) ? hub_rank_of(h, &(struct hub_task){0}).rank : 0;
    if (message_get_answer_to(m, &rank, &turn) || !hub_running(h) || rank < first ||
        rank - first >= h->env->local_tasks)
        return;
    struct hub_task *t = h->tasks[rank - first];
    if (!t || !t->ask)
        return;
    wire_frame_drop(t->ask);
    t->ask = NULL;
    hub_send_down(h, t, message_again(m));
}

static void take_from_coordinator(struct hub *h, const struct wire_message *m)
{
    char text[MESSAGE_TEXT_BYTES];
    struct message_end end;
    switch (m->type) {
    case MESSAGE_BEAT:
        if (!wire_pending(&h->wire))
            hub_send_up(h, message_plain(MESSAGE_BEAT));
        return;
    case MESSAGE_ASSIGN:
        take_assign(h, m);
        return;
    case MESSAGE_EXCHANGED:
        take_exchanged(h, m);
        return;
    case MESSAGE_ANSWER:
        take_answer(h, m);
        return;
    case MESSAGE_REFUSED:
        hub_end_here(h, message_get_refused(m, text) ? "refused by the coordinator" : text);
        return;
    case MESSAGE_STOP:
    case MESSAGE_LOOK:
        hub_send_down_all(h, message_again(m));
        return;
    case MESSAGE_END:
        if (message_get_end(m, &end)) {
            hub_end_here(h, "the coordinator's last word makes no sense");
            return;
        }
        h->state = HUB_ENDED;
        hub_send_down_all(h, message_again(m));
        return;
    default:
        return; /* nothing a coordinator of this version says */
    }
}

/* Before the coordinator has proven itself only two messages are known. */
static void take_proof(struct hub *h, const struct wire_message *m)
{
    unsigned char mac[AUTH_BYTES], expected[AUTH_BYTES];
    const struct auth_secret *secret = &h->env->secret;
    int bad = -1;
    if (m->type == MESSAGE_CHALLENGE && !message_get_challenge(m, h->theirs) &&
        !auth_random(h->nonce, NULL) &&
        !auth_proof(secret, "node", h->theirs, h->nonce, mac, NULL)) {
        hub_send_up(h, message_proof(h->nonce, mac));
        return;
    }
    if (m->type == MESSAGE_WELCOME && !message_get_welcome(m, mac))
        bad = auth_proof(secret, "coordinator", h->theirs, h->nonce, expected, NULL) ||
              !auth_equal(mac, expected);
    if (bad) {
        connection_failed(h, clock_ms()); /* somebody else listens there: try the other address */
        return;
    }
    h->wire.limit = WIRE_MAX_BYTES;
    register_node(h);
}

void hub_start(struct hub *h, int64_t now)
{
    h->state = HUB_CONNECTING;
    h->attempt_at = now + HUB_TRY_MS;
    const char *address = h->env->door.address[h->attempt++ % h->env->door.n];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(h->env->door.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1 ||
        (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) {
        if (fd >= 0)
            close(fd);
        h->attempt_at = now + HUB_PAUSE_MS;
        return;
    }
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    wire_open(&h->wire, fd, WIRE_STRANGER_BYTES);
    if (watch_add(h->epoll, &h->up.watch, fd) || watch_out(h->epoll, &h->up.watch, fd, 1)) {
        drop_up(h);
        h->attempt_at = now + HUB_PAUSE_MS;
    }
}

static void connection_failed(struct hub *h, int64_t now)
{
    drop_up(h);
    if (h->state == HUB_ENDED)
        return;
    if (h->state == HUB_REGISTERED)
        h->give_up_at =
            now + (h->has_assigned ? (int64_t)HUB_ORPHAN * h->assigned.patience_ms : AGENT_JOIN_MS);
    h->state = HUB_CONNECTING;
    h->attempt_at = now + HUB_PAUSE_MS;
}

static void handle_up(struct watch *w, uint32_t events)
{
    struct hub *h = ((struct hub_up *)w)->hub;
    if (h->wire.fd < 0)
        return;
    if (h->state == HUB_CONNECTING) {
        int why = 0;
        socklen_t bytes = sizeof why;
        if (getsockopt(h->wire.fd, SOL_SOCKET, SO_ERROR, &why, &bytes) || why) {
            connection_failed(h, clock_ms());
            return;
        }
        if (!(events & EPOLLOUT))
            return;
        h->state = HUB_PROVING;
    }
    if (events & EPOLLOUT && watch_send(h->epoll, &h->up.watch, &h->wire, NULL)) {
        connection_failed(h, clock_ms());
        return;
    }
    enum wire_status status = wire_read(&h->wire);
    if (status == WIRE_OK)
        h->heard = clock_ms();
    struct wire_message m;
    struct err err;
    int more = 0;
    while (h->wire.fd >= 0 && (more = wire_next(&h->wire, &m, &err)) > 0) {
        if (h->state == HUB_PROVING)
            take_proof(h, &m);
        else
            take_from_coordinator(h, &m);
    }
    if (h->wire.fd >= 0 && (more < 0 || status != WIRE_OK))
        connection_failed(h, clock_ms());
}

/* ---- the whole ---- */

int hub_open(struct hub **out, const struct agent_env *env, int epoll, int own_fd, int64_t now,
             struct err *err)
{
    struct hub *h = *out = calloc(1, sizeof *h);
    if (!h) {
        close(own_fd);
        return err_set(err, "out of memory");
    }
    h->env = env;
    h->epoll = epoll;
    h->wire.fd = h->reserved = h->listener.fd = -1;
    h->listener.watch.handle = hub_handle_listener;
    h->listener.hub = h->up.hub = h;
    h->up.watch.handle = handle_up;
    h->give_up_at = now + AGENT_JOIN_MS;
    h->room_all = (int)env->local_tasks + 16; /* a few that go before they join */
    h->all = calloc((size_t)h->room_all, sizeof *h->all);
    h->tasks = calloc(env->local_tasks, sizeof *h->tasks);
    if (!h->all || !h->tasks) {
        close(own_fd);
        return err_set(err, "out of memory for %u tasks", env->local_tasks);
    }
    if (hub_add_task(h, own_fd))
        return err_set_errno(err, errno, "cannot watch a socket");
    if (env->local_tasks == 1)
        return 0;
    h->listener.fd = agent_socket_listen(env, err);
    if (h->listener.fd < 0)
        return -1;
    if (watch_add(epoll, &h->listener.watch, h->listener.fd))
        return err_set_errno(err, errno, "cannot watch the node's socket");
    return 0;
}

void hub_close(struct hub *h)
{
    if (!h)
        return;
    drop_up(h);
    for (int i = 0; i < h->n_all; i++)
        wire_close(&h->all[i].wire);
    hub_forget(h);
    if (h->listener.fd >= 0)
        close(h->listener.fd);
    if (h->reserved >= 0)
        close(h->reserved);
    free(h->all);
    free(h->tasks);
    free(h);
}

static void give_up(struct hub *h)
{
    char text[256];
    if (h->state == HUB_GATHERING)
        snprintf(text, sizeof text, "only %d of %u tasks have started within %d s", h->joined,
                 h->env->local_tasks, AGENT_JOIN_MS / 1000);
    else if (h->has_assigned)
        snprintf(text, sizeof text, "the coordinator (srun's host) has been away for %.1f s",
                 (double)HUB_ORPHAN * h->assigned.patience_ms * 1e-3);
    else
        snprintf(text, sizeof text,
                 "no way to the coordinator at %s port %u within %d s: nodes must reach srun's "
                 "host (SrunPortRange helps with firewalls)",
                 h->env->door.address[0], h->env->door.port, AGENT_JOIN_MS / 1000);
    h->orphaned = h->has_assigned;
    hub_end_here(h, text);
}

/* REGISTERED: the coordinator beats; if it is silent for long, make the connection anew. */
static int64_t check_silence(struct hub *h, int64_t now)
{
    int64_t limit =
        h->has_assigned ? (int64_t)HUB_SILENCES * h->assigned.patience_ms : (int64_t)AGENT_JOIN_MS;
    if (now - h->heard >= limit) {
        connection_failed(h, now);
        return h->attempt_at;
    }
    return h->heard + limit;
}

int64_t hub_tick(struct hub *h, int64_t now)
{
    switch (h->state) {
    case HUB_ENDED:
        return INT64_MAX;
    case HUB_REGISTERED:
        return check_silence(h, now);
    case HUB_GATHERING:
    case HUB_CONNECTING:
    case HUB_PROVING:
        break;
    }
    if (now >= h->give_up_at) {
        give_up(h);
        return INT64_MAX;
    }
    if (h->state == HUB_GATHERING)
        return h->give_up_at;
    if (now >= h->attempt_at) {
        drop_up(h);
        hub_start(h, now);
    }
    return h->attempt_at < h->give_up_at ? h->attempt_at : h->give_up_at;
}

int hub_finished(const struct hub *h)
{
    if (h->state != HUB_ENDED)
        return 0;
    for (int i = 0; i < h->n_all; i++)
        if (h->all[i].present && h->all[i].local_id > 0)
            return 0;
    return 1;
}

const struct message_assign *hub_assigned(const struct hub *h)
{
    return h->has_assigned ? &h->assigned : NULL;
}

int hub_orphaned(const struct hub *h)
{
    return h->orphaned;
}
