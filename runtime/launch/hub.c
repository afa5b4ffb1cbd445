/* hub.c - see hub.h. Its life: GATHERING the local tasks, then CONNECTING, PROVING, REGISTERED
 * (waiting for ranks or running), back to CONNECTING when the connection breaks, ENDED. */
#include "launch/hub.h"

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

enum hub_state { HUB_GATHERING, HUB_CONNECTING, HUB_PROVING, HUB_REGISTERED, HUB_ENDED };

struct hub_task {
    struct watch watch; /* first: the loop hands back a pointer to it */
    struct hub *hub;
    struct wire wire;
    int local_id; /* -1 until it has joined */
    int present;  /* its connection is there */
    int opened, done;
    uint32_t turn;               /* of the exchange it waits for */
    struct wire_frame *exchange; /* sent and not answered yet, or NULL */
    struct wire_frame *address;  /* that it has published, or NULL */
    struct wire_frame *ask;      /* not answered yet, or NULL */
    struct wire_frame *exited;   /* its worker's end, or NULL */
};

struct hub {
    const struct agent_env *env;
    int epoll;
    enum hub_state state;

    struct hub_listener {
        struct watch watch;
        struct hub *hub;
        int fd;
    } listener;
    struct hub_task **tasks; /* by local id; NULL until joined */
    struct hub_task *all;    /* room for all that may ever connect */
    int n_all, room_all, joined;

    struct hub_up {
        struct watch watch;
        struct hub *hub;
    } up;
    struct wire wire; /* to the coordinator; fd -1: none */
    int attempt;      /* which address is tried */
    int64_t attempt_at, give_up_at, heard;
    unsigned char nonce[AUTH_BYTES], theirs[AUTH_BYTES];

    int reserved; /* a socket that keeps MASTER_PORT free until ranks are given out; -1 */
    struct message_assign assigned;
    int has_assigned;
    int orphaned;
};

/* ---- down: to the tasks ---- */

static void task_gone(struct hub *h, struct hub_task *t);

static void send_down(struct hub *h, struct hub_task *t, struct wire_frame *f)
{
    if (!t->present)
        wire_frame_drop(f);
    else if (watch_send(h->epoll, &t->watch, &t->wire, f))
        task_gone(h, t);
}

static void send_down_all(struct hub *h, struct wire_frame *f)
{
    for (int i = 0; i < h->n_all; i++)
        if (h->all[i].local_id >= 0)
            send_down(h, &h->all[i], wire_frame_keep(f));
    wire_frame_drop(f);
}

static void drop_up(struct hub *h)
{
    wire_close(&h->wire);
}

/* The end, by our own judgement: the coordinator is gone, or refused us. */
static void end_here(struct hub *h, const char *text)
{
    if (h->state == HUB_ENDED)
        return;
    h->state = HUB_ENDED;
    struct message_end end = {.code = 1};
    snprintf(end.text, sizeof end.text, "node %s: %s", h->env->node, text);
    send_down_all(h, message_end(&end));
    drop_up(h);
}

/* ---- up: to the coordinator ---- */

static void connection_failed(struct hub *h, int64_t now);
static void check_tasks(struct hub *h);

static void send_up(struct hub *h, struct wire_frame *f)
{
    if (h->wire.fd < 0)
        wire_frame_drop(f);
    else if (watch_send(h->epoll, &h->up.watch, &h->wire, f))
        connection_failed(h, clock_ms());
}

static struct message_rank rank_of(const struct hub *h, const struct hub_task *t)
{
    const struct message_assign *a = &h->assigned;
    return (struct message_rank){.rank = (uint32_t)a->node_rank * a->local_world +
                                         (uint32_t)t->local_id,
                                 .generation = a->generation};
}

static int running(const struct hub *h)
{
    return h->state == HUB_REGISTERED && h->has_assigned && h->assigned.node_rank >= 0;
}

/* Tell again all that the coordinator may not have heard. */
static void tell_again(struct hub *h)
{
    for (int i = 0; i < h->n_all && running(h); i++) {
        struct hub_task *t = &h->all[i];
        if (t->local_id < 0)
            continue;
        if (t->opened)
            send_up(h, message_rank(MESSAGE_OPENED, rank_of(h, t)));
        if (t->exchange)
            send_up(h, wire_frame_keep(t->exchange));
        if (t->address)
            send_up(h, wire_frame_keep(t->address));
        if (t->ask)
            send_up(h, wire_frame_keep(t->ask));
        if (t->done)
            send_up(h, message_rank(MESSAGE_DONE, rank_of(h, t)));
        if (t->exited)
            send_up(h, wire_frame_keep(t->exited));
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
    send_up(h, message_register(&r));
    tell_again(h);
}

/* What the tasks have said is of the generation before. */
static void forget(struct hub *h)
{
    for (int i = 0; i < h->n_all; i++) {
        struct hub_task *t = &h->all[i];
        wire_frame_drop(t->exchange);
        wire_frame_drop(t->address);
        wire_frame_drop(t->ask);
        wire_frame_drop(t->exited);
        t->exchange = t->address = t->ask = t->exited = NULL;
        t->opened = t->done = 0;
    }
}

static void take_assign(struct hub *h, const struct wire_message *m)
{
    struct message_assign *a = calloc(1, sizeof *a);
    if (!a || message_get_assign(m, a) || a->local_world != h->env->local_tasks) {
        if (a)
            message_assign_free(a);
        free(a);
        end_here(h, "an assignment from the coordinator that makes no sense");
        return;
    }
    message_assign_free(a); /* the tasks read the plan, the hub needs it not */
    if (!h->has_assigned || a->generation > h->assigned.generation) {
        h->assigned = *a;
        h->has_assigned = 1;
        forget(h);
        send_up(h, message_port(next_port(h)));
        send_down_all(h, message_again(m));
        check_tasks(h);
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
        send_down(h, t, wire_frame_keep(f));
    }
    wire_frame_drop(f);
}

/* Addresses: to the task that has asked. */
static void take_answer(struct hub *h, const struct wire_message *m)
{
    uint32_t rank, turn, first = running(h) ? rank_of(h, &(struct hub_task){0}).rank : 0;
    if (message_get_answer_to(m, &rank, &turn) || !running(h) || rank < first ||
        rank - first >= h->env->local_tasks)
        return;
    struct hub_task *t = h->tasks[rank - first];
    if (!t || !t->ask)
        return;
    wire_frame_drop(t->ask);
    t->ask = NULL;
    send_down(h, t, message_again(m));
}

static void take_from_coordinator(struct hub *h, const struct wire_message *m)
{
    char text[MESSAGE_TEXT_BYTES];
    struct message_end end;
    switch (m->type) {
    case MESSAGE_BEAT:
        if (!wire_pending(&h->wire))
            send_up(h, message_plain(MESSAGE_BEAT));
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
        end_here(h, message_get_refused(m, text) ? "refused by the coordinator" : text);
        return;
    case MESSAGE_STOP:
    case MESSAGE_LOOK:
        send_down_all(h, message_again(m));
        return;
    case MESSAGE_END:
        if (message_get_end(m, &end)) {
            end_here(h, "the coordinator's last word makes no sense");
            return;
        }
        h->state = HUB_ENDED;
        send_down_all(h, message_again(m));
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
        send_up(h, message_proof(h->nonce, mac));
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

static void start_attempt(struct hub *h, int64_t now)
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

/* ---- the tasks ---- */

static int enough_tasks(struct hub *h)
{
    return h->joined == (int)h->env->local_tasks;
}

static void task_join(struct hub *h, struct hub_task *t, const struct wire_message *m)
{
    struct message_join join;
    if (m->type != MESSAGE_JOIN || message_get_join(m, &join) ||
        join.local_id >= h->env->local_tasks || h->tasks[join.local_id]) {
        task_gone(h, t);
        return;
    }
    t->local_id = (int)join.local_id;
    h->tasks[join.local_id] = t;
    h->joined++;
    if (h->state == HUB_GATHERING && enough_tasks(h))
        start_attempt(h, clock_ms());
}

static int task_says(struct hub *h, struct hub_task *t, const struct wire_message *m)
{
    struct message_rank is, should = rank_of(h, t);
    uint32_t turn;
    const unsigned char *blob;
    size_t bytes;
    if (!h->has_assigned || message_get_rank(m, &is))
        return -1;
    if (is.generation < should.generation)
        return 0; /* it was on its way when the next began */
    if (is.generation != should.generation || is.rank != should.rank)
        return -1;
    switch (m->type) {
    case MESSAGE_OPENED:
        t->opened = 1;
        break;
    case MESSAGE_DONE:
        t->done = 1;
        break;
    case MESSAGE_EXCHANGE:
        if (message_get_exchange(m, &is, &turn, &blob, &bytes) || t->exchange)
            return -1;
        t->turn = turn;
        t->exchange = message_again(m);
        break;
    case MESSAGE_PUBLISH:
        if (t->address)
            return -1;
        t->address = message_again(m);
        break;
    case MESSAGE_ASK:
        if (t->ask)
            return -1;
        t->ask = message_again(m);
        break;
    case MESSAGE_EXITED:
        t->exited = message_again(m);
        break;
    case MESSAGE_PROGRESS:
    case MESSAGE_SEEN:
    case MESSAGE_SIGNALLED:
        break;
    default:
        return -1;
    }
    if (running(h))
        send_up(h, message_again(m));
    return 0;
}

/* Nobody is there to speak for this task any more, nor to start a worker. */
static void report_gone(struct hub *h, struct hub_task *t)
{
    struct message_exited how = {.who = rank_of(h, t), .signal = SIGKILL, .flags = EXITED_NO_AGENT};
    wire_frame_drop(t->exited);
    t->exited = message_exited(&how);
    if (running(h))
        send_up(h, wire_frame_keep(t->exited));
}

/* Some may have gone while the node was a spare, or between two generations. */
static void check_tasks(struct hub *h)
{
    for (int i = 0; i < h->n_all && h->assigned.node_rank >= 0; i++)
        if (h->all[i].local_id >= 0 && !h->all[i].present)
            report_gone(h, &h->all[i]);
}

/* A task's agent is gone. Before the end that is its worker's death too. */
static void task_gone(struct hub *h, struct hub_task *t)
{
    if (!t->present)
        return;
    t->present = 0;
    wire_close(&t->wire);
    if (t->local_id < 0 || h->state == HUB_ENDED)
        return;
    char text[128];
    snprintf(text, sizeof text, "the agent of local task %d is gone", t->local_id);
    if (h->has_assigned && h->assigned.node_rank >= 0)
        report_gone(h, t);
    else
        end_here(h, text);
}

static void handle_task(struct watch *w, uint32_t events)
{
    struct hub_task *t = (struct hub_task *)w;
    struct hub *h = t->hub;
    if (!t->present)
        return;
    if (events & EPOLLOUT && watch_send(h->epoll, &t->watch, &t->wire, NULL)) {
        task_gone(h, t);
        return;
    }
    enum wire_status status = wire_read(&t->wire);
    struct wire_message m;
    struct err err;
    int more = 0, bad = 0;
    while (t->present && !bad && (more = wire_next(&t->wire, &m, &err)) > 0) {
        if (t->local_id < 0)
            task_join(h, t, &m);
        else
            bad = task_says(h, t, &m);
    }
    if (t->present && (bad || more < 0 || status != WIRE_OK))
        task_gone(h, t);
}

static int add_task(struct hub *h, int fd)
{
    if (h->n_all == h->room_all) {
        close(fd);
        return -1;
    }
    struct hub_task *t = &h->all[h->n_all++];
    *t = (struct hub_task){.watch.handle = handle_task, .hub = h, .local_id = -1, .present = 1};
    wire_open(&t->wire, fd, WIRE_MAX_BYTES);
    if (watch_add(h->epoll, &t->watch, fd)) {
        task_gone(h, t);
        return -1;
    }
    return 0;
}

static void handle_listener(struct watch *w, uint32_t events)
{
    struct hub *h = ((struct hub_listener *)w)->hub;
    (void)events;
    int fd = accept4(h->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (agent_socket_check(fd))
        close(fd);
    else
        add_task(h, fd);
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
    h->listener.watch.handle = handle_listener;
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
    if (add_task(h, own_fd))
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
    for (int i = 0; i < h->n_all; i++) {
        wire_close(&h->all[i].wire);
        wire_frame_drop(h->all[i].exchange);
        wire_frame_drop(h->all[i].exited);
    }
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
    end_here(h, text);
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
        start_attempt(h, now);
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
