/* hub_tasks.c - the hub's side towards the node's tasks. See hub.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/hub_impl.h"

static void task_gone(struct hub *h, struct hub_task *t);

void hub_send_down(struct hub *h, struct hub_task *t, struct wire_frame *f)
{
    if (!t->present)
        wire_frame_drop(f);
    else if (watch_send(h->epoll, &t->watch, &t->wire, f))
        task_gone(h, t);
}

void hub_send_down_all(struct hub *h, struct wire_frame *f)
{
    for (int i = 0; i < h->n_all; i++)
        if (h->all[i].local_id >= 0)
            hub_send_down(h, &h->all[i], wire_frame_keep(f));
    wire_frame_drop(f);
}

struct message_rank hub_rank_of(const struct hub *h, const struct hub_task *t)
{
    const struct message_assign *a = &h->assigned;
    return (struct message_rank){.rank = (uint32_t)a->node_rank * a->local_world +
                                         (uint32_t)t->local_id,
                                 .generation = a->generation};
}

/* What the tasks have said is of the generation before. */
void hub_forget(struct hub *h)
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
        hub_start(h, clock_ms());
}

static int task_says(struct hub *h, struct hub_task *t, const struct wire_message *m)
{
    struct message_rank is, should = hub_rank_of(h, t);
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
    if (hub_running(h))
        hub_send_up(h, message_again(m));
    return 0;
}

/* Nobody is there to speak for this task any more, nor to start a worker. */
static void report_gone(struct hub *h, struct hub_task *t)
{
    struct message_exited how = {
        .who = hub_rank_of(h, t), .signal = SIGKILL, .flags = EXITED_NO_AGENT};
    wire_frame_drop(t->exited);
    t->exited = message_exited(&how);
    if (hub_running(h))
        hub_send_up(h, wire_frame_keep(t->exited));
}

/* Some may have gone while the node was a spare, or between two generations. */
void hub_check_tasks(struct hub *h)
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
        hub_end_here(h, text);
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

int hub_add_task(struct hub *h, int fd)
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

void hub_handle_listener(struct watch *w, uint32_t events)
{
    struct hub *h = ((struct hub_listener *)w)->hub;
    (void)events;
    int fd = accept4(h->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (agent_socket_check(fd))
        close(fd);
    else
        hub_add_task(h, fd);
}
