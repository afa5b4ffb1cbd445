/* coordinator.c - the loop: messages in, run.h decides, messages out. */
#include "launch/coordinator_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/coordinator_requeue.h"
#include "launch/message.h"
#include "launch/requeue.h"
#include "launch/takeover.h"

enum {
    LINGER_MS = 5000,    /* after the end, for the agents to kill their workers and leave */
    SRUN_GONE_MS = 2000, /* what the nodes said before srun's end has arrived by then */
    SRUN_LINE_BYTES = 1000,
    EVENTS = 64,
};

/* A line for the plugin in srun: `say TEXT` for the user, `end STATUS` at the very end. */
static void tell_srun(struct coordinator *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void tell_srun(struct coordinator *c, const char *format, ...)
{
    if (c->options.life_fd < 0)
        return;
    char line[SRUN_LINE_BYTES];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line - 1, format, ap);
    va_end(ap);
    if (n < 0)
        return;
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (send(c->options.life_fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        runlog_line(&c->log, "srun cannot be told: %m");
}

static void tell_line(void *coordinator, const char *line)
{
    tell_srun(coordinator, "%s", line);
}

/* Put down where we stand. A run goes on without, but not unnoticed. */
static void put_down(struct coordinator *c, const char *state, const char *text)
{
    struct err err = {""};
    if (runstate_lost(&c->record, &c->run) ||
        runstate_write(&c->record, c->options.run_dir, &c->run, state, text, &err))
        runlog_line(&c->log, "the run's state is not written down: %s",
                    *err.text ? err.text : "out of memory");
    relaunch_tell(&c->relaunch, &c->record, (struct relaunch_line){tell_line, c});
}

static void open_record(struct coordinator *c)
{
    const struct coordinator_options *o = &c->options;
    struct err err;
    if (o->run_dir && *o->run_dir && runstate_read(&c->record, o->run_dir, &err) < 0)
        runlog_line(&c->log, "%s: a new one is begun", err.text);
    runstate_begin(&c->record, o->job ? o->job : "", o->restarts, o->run.epoch);
    if (!o->follows) { /* a script's next srun begins anew, too */
        c->record.first_epoch = o->run.epoch;
        c->record.begun = -1;
    }
    relaunch_begin(&c->relaunch, o->job_nodes, o->relaunches, o->relaunches_left, &c->run,
                   &c->record);
    news_begin(&c->news, o->hook, o->comment ? o->job : NULL, o->run_dir, &c->record);
    put_down(c, "waiting", "");
}

int coordinator_open(struct coordinator **out, const struct coordinator_options *options,
                     struct coordinator_door *door, struct err *err)
{
    *out = NULL;
    struct coordinator *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    c->options = *options;
    c->log.fd = -1;
    c->peers.epoll = c->peers.listener = -1;
    if (run_open(&c->run, &options->run, clock_ms(), err))
        goto fail;
    runlog_open(&c->log, options->run_dir);
    if (exchange_open(&c->exchange, c->run.world, err) ||
        directory_open(&c->directory, c->run.world, err))
        goto fail;
    if (peers_open(&c->peers, options->run.nodes, options->port_first, options->port_last, &c->log,
                   err))
        goto fail;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    if (options->life_fd >= 0 &&
        epoll_ctl(c->peers.epoll, EPOLL_CTL_ADD, options->life_fd, &event)) {
        err_set_errno(err, errno, "cannot watch srun's end of the line");
        goto fail;
    }
    struct sockaddr_in at;
    socklen_t bytes = sizeof at;
    if (getsockname(c->peers.listener, (struct sockaddr *)&at, &bytes)) {
        err_set_errno(err, errno, "no port");
        goto fail;
    }
    door->port = ntohs(at.sin_port);
    peers_own_address(door->address);
    auth_hex(c->peers.secret.bytes, door->secret);
    runlog_line(&c->log, "epoch %u of run %s: waiting for %d nodes at %s:%u", options->run.epoch,
                options->run_id, options->run.nodes, door->address, door->port);
    open_record(c);
    *out = c;
    return 0;
fail:
    coordinator_close(c);
    return -1;
}

void coordinator_close(struct coordinator *c)
{
    if (!c)
        return;
    exchange_close(&c->exchange);
    directory_close(&c->directory);
    peers_close(&c->peers);
    runlog_close(&c->log);
    runstate_free(&c->record);
    relaunch_end(&c->relaunch);
    run_close(&c->run);
    free(c);
}

/* ---- connections and nodes ---- */

static struct peer *peer_of(struct coordinator *c, int node)
{
    for (struct peer *p = c->peers.first; p; p = p->next)
        if (p->node == node)
            return p;
    return NULL;
}

/* A node's connection is gone: in good order, or broken. */
static void lost_connection(struct coordinator *c, struct peer *peer, int orderly, const char *why)
{
    int node = peer->node;
    if (peer->stage == PEER_STRANGER) {
        peers_refuse(&c->peers, peer, why);
        return;
    }
    peers_drop(&c->peers, peer);
    if (node < 0)
        return;
    if (c->run.phase != RUN_ENDED)
        runlog_line(&c->log, "node %s: %s", c->run.nodes[node].info.node, why);
    if (orderly)
        run_closed(&c->run, node, clock_ms());
    else
        run_broken(&c->run, node, clock_ms());
}

void coordinator_send(struct coordinator *c, struct peer *peer, struct wire_frame *f)
{
    if (peers_send(&c->peers, peer, f))
        lost_connection(c, peer, 0, "its connection broke");
}

/* To every node with a connection; only those with ranks if `ranks`. Drops the caller's hold. */
void coordinator_send_all(struct coordinator *c, struct wire_frame *f, int ranks)
{
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        const struct run_node *node = p->stage == PEER_NODE ? &c->run.nodes[p->node] : NULL;
        if (node && node->state == RUN_NODE_UP && (!ranks || node->node_rank >= 0))
            coordinator_send(c, p, wire_frame_keep(f));
    }
    wire_frame_drop(f);
}

/* A launch that follows another in its job has the options of the first. What that named counts
 * only as long as the job has committed nothing (`since`); where the record does not tell when the
 * job began, it does not count at all. */
static const char *restore_of(const struct coordinator *c)
{
    const struct coordinator_options *o = &c->options;
    uint32_t first = c->record.first_epoch;
    if (o->follows && (!first || first >= o->run.epoch))
        return "latest";
    return o->restore ? o->restore : "";
}

static void send_assignment(struct coordinator *c, struct peer *peer, int spares)
{
    const struct run_node *node = &c->run.nodes[peer->node];
    const struct run_node *master = &c->run.nodes[run_find_node_rank(&c->run, 0)];
    const struct coordinator_options *o = &c->options;
    struct message_assign *a = calloc(1, sizeof *a);
    if (!a) {
        coordinator_send(c, peer, NULL);
        return;
    }
    *a = (struct message_assign){
        .epoch = o->run.epoch,
        .generation = c->run.config.generation,
        .world = (uint32_t)c->run.world,
        .local_world = (uint32_t)o->run.shape.tasks,
        .node_rank = node->node_rank,
        .spares = (uint32_t)spares,
        .replicas = (uint32_t)c->run.config.shape.data,
        .planned_replicas = (uint32_t)c->run.replicas,
        .heartbeat_ms = (uint32_t)o->run.heartbeat_ms,
        .patience_ms = (uint32_t)o->run.patience_ms,
        .since = c->record.first_epoch,
        .restarts = (uint32_t)o->restarts,
        .requeues =
            o->requeues > c->record.requeues ? (uint32_t)(o->requeues - c->record.requeues) : 0,
        .master_port = master->info.port,
        .plan = (char *)o->plan_text,
        .plan_bytes = o->plan_text ? o->plan_bytes : 0,
    };
    snprintf(a->address, sizeof a->address, "%s", node->info.address);
    snprintf(a->master_address, sizeof a->master_address, "%s", master->info.address);
    snprintf(a->run_id, sizeof a->run_id, "%s", o->run_id);
    snprintf(a->run_dir, sizeof a->run_dir, "%s", o->run_dir ? o->run_dir : "");
    snprintf(a->restore, sizeof a->restore, "%s", restore_of(c));
    coordinator_send(c, peer, message_assign(a));
    free(a);
}

/* Everybody's part in the generation that begins. */
static void assign_all(struct coordinator *c)
{
    int spares = run_spares(&c->run);
    c->generation = c->run.config.generation;
    exchange_begin(&c->exchange, c->run.world);
    directory_begin(&c->directory, c->run.world);
    runlog_placement(&c->log, c->options.run_dir, &c->run);
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        if (p->stage == PEER_NODE && c->run.nodes[p->node].state == RUN_NODE_UP)
            send_assignment(c, p, spares);
    }
}

static void place_all(struct coordinator *c)
{
    struct err err;
    int missing = c->run.config.nodes - c->run.n_nodes;
    if (run_place(&c->run, &err)) {
        run_stop(&c->run, 1, err.text, clock_ms());
        return;
    }
    runlog_line(
        &c->log,
        "%d nodes are there: generation %u starts with %d ranks (%d of %d replicas), %d spare",
        c->run.n_nodes, c->run.config.generation, c->run.world, c->run.config.shape.data,
        c->run.replicas, run_spares(&c->run));
    if (missing) {
        runlog_line(&c->log, "%d more have not come: they are not waited for", missing);
        tell_srun(c, "say %d of %d nodes have come: the run starts without the others",
                  c->run.n_nodes, c->run.config.nodes);
    }
    c->replicas = c->run.config.shape.data;
    assign_all(c);
    if (c->options.job_nodes)
        tell_srun(c, "placed");
    put_down(c, "running", "");
}

/* A node that was given up may still be there, or come back: it is to end what it runs. */
static void dismiss_lost(struct coordinator *c)
{
    const struct message_end end = {.code = 1};
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        if (p->stage == PEER_NODE && !p->dismissed &&
            c->run.nodes[p->node].state == RUN_NODE_LOST) {
            p->dismissed = 1;
            coordinator_send(c, p, message_end(&end));
        }
    }
}

/* run.h has begun the next generation. */
static void take_over(struct coordinator *c)
{
    const struct run *run = &c->run;
    runlog_line(&c->log, "%s; %s: generation %u starts", run->failure.text, run->action,
                run->config.generation);
    tell_srun(c, "say %s; %s: generation %u starts", run->failure.text, run->action,
              run->config.generation);
    runlog_event(&c->log, c->options.run_dir, "failure", run->furthest, run->failure.text);
    if (run->config.shape.data < c->replicas)
        runlog_event(&c->log, c->options.run_dir, "shrink", run->furthest, run->action);
    c->replicas = run->config.shape.data;
    assign_all(c);
    c->recovering = 1;
    put_down(c, "running", run->failure.text);
}

/* Training goes on: say how long that took. A program that does not report steps never comes here.
 */
void coordinator_tell_recovery(struct coordinator *c)
{
    const struct run *run = &c->run;
    char phases[256], text[320];
    if (relaunch_progress(&c->relaunch, run, &c->record))
        put_down(c, "running", c->record.text);
    if (!c->recovering || !run->phases.stepped)
        return;
    c->recovering = 0;
    takeover_describe(&run->phases, phases, sizeof phases);
    int64_t step = run->ranks[0].begin;
    snprintf(text, sizeof text, "generation %u goes on from step %lld: %s", run->config.generation,
             (long long)step, phases);
    runlog_line(&c->log, "%s", text);
    tell_srun(c, "say %s", text);
    runlog_event(&c->log, c->options.run_dir, "takeover", step, text);
    put_down(c, "running", text);
}

static void take_register(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct message_register info;
    struct err err;
    if (m->type != MESSAGE_REGISTER || message_get_register(m, &info)) {
        peers_refuse(&c->peers, peer, "it proved the secret, but does not register properly");
        return;
    }
    int node = run_register(&c->run, &info, clock_ms(), &err);
    if (node < 0) {
        peers_send(&c->peers, peer, message_refused(err.text));
        peers_refuse(&c->peers, peer, err.text);
        return;
    }
    struct peer *old = peer_of(c, node);
    if (old)
        peers_drop(&c->peers, old); /* half open: the node knows better */
    peer->stage = PEER_NODE;
    peer->node = node;
    runlog_line(&c->log, "node %s %s from %s (%u tasks, %u cores, topology %s)", info.node,
                info.generation || old ? "came back" : "registered", peer->from, info.local_tasks,
                info.cores, *info.topology ? info.topology : "none");
    if (c->run.phase == RUN_GATHERING || info.generation == c->run.config.generation)
        return;
    send_assignment(c, peer, run_spares(&c->run)); /* it did not hear the newest, or came late */
    if (!info.generation && !old && c->run.phase == RUN_RUNNING) {
        runlog_placement(&c->log, c->options.run_dir, &c->run);
        put_down(c, "running", c->record.text);
    }
}

static int take_from_node(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct run_node *node = &c->run.nodes[peer->node];
    if (node->state == RUN_NODE_LOST)
        return 0; /* it has been told to end */
    if (m->type == MESSAGE_BEAT)
        return 0;
    if (m->type == MESSAGE_PORT)
        return message_get_port(m, &node->info.port);
    return coordinator_take_from_rank(c, peer, m);
}

static void take_message(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    if (peer->stage == PEER_STRANGER) {
        peers_prove(&c->peers, peer, m);
    } else if (peer->stage == PEER_PROVEN) {
        take_register(c, peer, m);
    } else if (take_from_node(c, peer, m)) {
        runlog_line(&c->log, "node %s sent a message (type %u) that makes no sense",
                    c->run.nodes[peer->node].info.node, m->type);
        lost_connection(c, peer, 0, "its connection is given up");
    }
}

static void handle_peer(struct coordinator *c, struct peer *peer, uint32_t events)
{
    if (peer->stage == PEER_DEAD)
        return;
    if (events & EPOLLOUT && peers_flush(&c->peers, peer)) {
        lost_connection(c, peer, 0, "its connection broke");
        return;
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    enum wire_status status = wire_read(&peer->wire);
    char broken[160];
    if (status == WIRE_BROKEN)
        snprintf(broken, sizeof broken, "its connection broke: %s", strerror(errno));
    if (peer->node >= 0 && status == WIRE_OK)
        run_heard(&c->run, peer->node, clock_ms());
    struct wire_message m;
    struct err err;
    int more = 0;
    while (peer->stage != PEER_DEAD && (more = wire_next(&peer->wire, &m, &err)) > 0)
        take_message(c, peer, &m);
    if (peer->stage == PEER_DEAD)
        return;
    if (more < 0)
        lost_connection(c, peer, 0, err.text);
    else if (status == WIRE_CLOSED)
        lost_connection(c, peer, 1, "it closed its connection");
    else if (status == WIRE_BROKEN)
        lost_connection(c, peer, 0, broken);
}

/* ---- the end ---- */

static void say_end(struct coordinator *c, const char *text)
{
    runlog_line(&c->log, "end %u: %s", c->run.code, text);
    if (c->run.code)
        tell_srun(c, "say %s", text);
}

/* What looks like lost nodes may be an order. */
static void find_order(struct coordinator *c)
{
    const struct coordinator_options *o = &c->options;
    struct run *run = &c->run;
    size_t used = strlen(run->text);
    if (!run->machine || !run->code)
        return;
    int cancelled = !c->relaunch.silent && o->job && *o->job && o->step &&
                    requeue_step_cancelled(o->job, o->step);
    if (cancelled)
        snprintf(run->text + used, sizeof run->text - used, "; the step was cancelled");
    if (cancelled || run->progress.signalled)
        run->machine = 0;
}

static int launch_again(struct coordinator *c)
{
    struct relaunch *r = &c->relaunch;
    char text[MESSAGE_TEXT_BYTES + 128];
    if (!relaunch_possible(r, &c->run, &c->record, c->srun_gone > 0))
        return 0;
    c->record.relaunches++;
    snprintf(text, sizeof text, "%s; the step is launched again (%d of %d times without progress)",
             c->run.text, r->limit - r->left + 1, r->limit);
    say_end(c, text);
    runlog_event(&c->log, c->options.run_dir, "failure", c->run.furthest, text);
    put_down(c, "relaunched", text);
    tell_srun(c, "again");
    return 1;
}

/* For want of nodes the step may be launched again on others of the job, or the job go back into
 * the queue. Else this is the end. */
static void end_or_go_on(struct coordinator *c)
{
    struct run *run = &c->run;
    char more[MESSAGE_TEXT_BYTES + 128];
    if (runstate_lost(&c->record, run))
        runlog_line(&c->log, "out of memory for the nodes that failed");
    find_order(c);
    if (launch_again(c))
        return;
    if (coordinator_requeue(&c->record, run, c->options.requeues, c->options.run_dir, &c->log,
                            say_end, c, more, sizeof more))
        return;
    size_t used = strlen(run->text);
    snprintf(run->text + used, sizeof run->text - used, "%s", more);
    say_end(c, run->text);
    put_down(c, run->code ? "failed" : "ended", run->text);
}

/* The user sees one line why: from srun, or, where there is no srun, from one node's agent. */
static void announce_end(struct coordinator *c)
{
    struct message_end end = {.code = c->run.code};
    end_or_go_on(c);
    const char *why = c->run.code && c->options.life_fd < 0 ? c->run.text : "";
    if (c->peers.refused)
        runlog_line(&c->log, "%llu strangers were refused", (unsigned long long)c->peers.refused);
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        if (p->stage != PEER_NODE || p->dismissed)
            continue;
        snprintf(end.text, sizeof end.text, "%s",
                 c->run.nodes[p->node].state == RUN_NODE_UP ? why : "");
        if (*end.text)
            why = "";
        coordinator_send(c, p, message_end(&end));
    }
}

/* A node that is connected and not given up: a silent one may never close its connection. */
static int anyone_left(const struct coordinator *c)
{
    for (const struct peer *p = c->peers.first; p; p = p->next)
        if (p->stage == PEER_NODE && c->run.nodes[p->node].state == RUN_NODE_UP)
            return 1;
    return 0;
}

static void beat(struct coordinator *c, int64_t now)
{
    if (now < c->next_beat)
        return;
    c->next_beat = now + c->run.config.heartbeat_ms;
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        if (p->stage == PEER_NODE && !wire_pending(&p->wire))
            coordinator_send(c, p, message_plain(MESSAGE_BEAT));
    }
}

/* srun's end. What the nodes have said and we have not read yet may explain it: that comes first.
 */
static void handle_life(struct coordinator *c)
{
    char bytes[512];
    ssize_t n = read(c->options.life_fd, bytes, sizeof bytes);
    if (n > 0 && (relaunch_hear(&c->relaunch, bytes, (size_t)n, &c->run, &c->record) ||
                  relaunch_answer(&c->relaunch, &c->run, &c->record, clock_ms())))
        runlog_line(&c->log, "out of memory for the nodes that failed");
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    epoll_ctl(c->peers.epoll, EPOLL_CTL_DEL, c->options.life_fd, NULL);
    c->srun_gone = clock_ms();
    runlog_line(&c->log, "srun is gone");
    relaunch_blame(&c->relaunch, &c->run, &c->record, c->srun_gone);
}

static void turn(struct coordinator *c, int64_t deadline)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(c->peers.epoll, events, EVENTS, clock_left_ms(deadline));
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &c->peers)
            peers_accept(&c->peers, clock_ms());
        else if (events[i].data.ptr == c)
            handle_life(c);
        else
            handle_peer(c, events[i].data.ptr, events[i].events);
    }
}

/* What is to be done with all peers, once a millisecond at most: thousands of nodes that start or
 * finish make many turns in one. Returns when to look again. */
static int64_t walk_peers(struct coordinator *c, int64_t now)
{
    if (now == c->walked)
        return now + 1;
    c->walked = now;
    dismiss_lost(c);
    return peers_sweep(&c->peers, now);
}

/* What progress.h wants asked, and has found. */
static void look(struct coordinator *c)
{
    struct progress *p = &c->run.progress;
    if (p->asked < p->looks) {
        p->asked = p->looks;
        coordinator_send_all(c, message_plain(MESSAGE_LOOK), 1);
    }
    if (!*p->slow)
        return;
    runlog_line(&c->log, "%s", p->slow);
    runlog_event(&c->log, c->options.run_dir, "slow", p->step, p->slow);
    p->slow[0] = 0;
}

/* Time passes. Returns when the next turn has to be over. */
static int64_t tick(struct coordinator *c)
{
    int64_t now = clock_ms();
    if (c->srun_gone && (now - c->srun_gone > SRUN_GONE_MS || !anyone_left(c)))
        run_stop(&c->run, 1, "srun ended before the run did", now);
    run_tick(&c->run, now);
    if (c->asked != c->run.asked) {
        c->asked = c->run.asked;
        tell_srun(c, "missing");
    }
    if (run_complete(&c->run))
        place_all(c);
    if (c->generation && c->generation != c->run.config.generation)
        take_over(c);
    look(c);
    int64_t walk = walk_peers(c, now);
    beat(c, now);
    if (c->run.phase == RUN_ENDED && c->leave_by == INT64_MAX) {
        announce_end(c);
        c->leave_by = now + LINGER_MS;
    }
    if (c->generation) /* before that there is nothing to say */
        news_tell(&c->news, &c->run, &c->record, &c->log, c->recovering, now);
    int64_t next = run_next_tick(&c->run, now);
    if (c->srun_gone && c->run.phase != RUN_ENDED && next > c->srun_gone + SRUN_GONE_MS + 1)
        next = c->srun_gone + SRUN_GONE_MS + 1;
    if (walk < next)
        next = walk;
    return c->leave_by < next ? c->leave_by : next;
}

int coordinator_run(struct coordinator *c)
{
    int64_t deadline = 0;
    c->leave_by = INT64_MAX;
    while (c->leave_by == INT64_MAX || (anyone_left(c) && clock_ms() < c->leave_by)) {
        turn(c, deadline);
        deadline = tick(c);
    }
    tell_srun(c, "end %u", c->run.code);
    return c->run.code;
}
