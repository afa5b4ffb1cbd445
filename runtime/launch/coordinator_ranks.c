/* coordinator_ranks.c - what the coordinator does with messages about ranks: swaps and addresses,
 * how far they are, how they end. */
#include <stdlib.h>

#include "base/clock.h"
#include "launch/coordinator_impl.h"
#include "launch/message.h"

/* 0, or -1 if this is no message of a rank on that node. */
static int take_exchange(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct exchange *x = &c->exchange;
    struct message_rank who;
    uint32_t turn;
    const unsigned char *blob;
    size_t bytes;
    if (message_get_exchange(m, &who, &turn, &blob, &bytes) ||
        run_opened(&c->run, peer->node, who.rank, clock_ms()))
        return -1;
    switch (exchange_take(x, who.rank, turn, blob, bytes)) {
    case EXCHANGE_STRANGE:
        return -1;
    case EXCHANGE_KEPT:
        break;
    case EXCHANGE_AGAIN:
        coordinator_send(c, peer, wire_frame_keep(x->answer));
        break;
    case EXCHANGE_DONE:
        run_met(&c->run, clock_ms());
        coordinator_send_all(c, wire_frame_keep(x->answer), 1);
        break;
    case EXCHANGE_TOO_LONG:
        run_stop(&c->run, 1, "the ranks' addresses are too long for one exchange", clock_ms());
        break;
    case EXCHANGE_NO_MEMORY:
        run_stop(&c->run, 1, "the coordinator is out of memory", clock_ms());
        break;
    }
    return 0;
}

/* What the ranks of a node have asked for, if it is there. */
static void answer_node(struct coordinator *c, struct peer *peer)
{
    int tasks = c->run.config.shape.tasks, failed;
    for (int k = 0; peer->stage == PEER_NODE && k < tasks; k++) {
        int first = c->run.nodes[peer->node].node_rank * tasks;
        struct wire_frame *f =
            first < 0 ? NULL : directory_answer(&c->directory, (uint32_t)(first + k), &failed);
        if (f)
            coordinator_send(c, peer, f);
        else if (first >= 0 && failed)
            run_stop(&c->run, 1, "the coordinator is out of memory", clock_ms());
    }
}

static int take_publish(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct message_rank who;
    const unsigned char *address;
    size_t bytes;
    struct err err;
    if (message_get_publish(m, &who, &address, &bytes) ||
        run_opened(&c->run, peer->node, who.rank, clock_ms()))
        return -1;
    int all = directory_publish(&c->directory, who.rank, address, bytes, &err);
    if (all < 0)
        run_stop(&c->run, 1, err.text, clock_ms());
    if (all <= 0)
        return 0;
    run_met(&c->run, clock_ms());
    for (struct peer *p = c->peers.first, *next; p; p = next) {
        next = p->next;
        if (p->stage == PEER_NODE && c->run.nodes[p->node].state == RUN_NODE_UP)
            answer_node(c, p);
    }
    return 0;
}

static int take_ask(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct message_ask ask;
    if (message_get_ask(m, &ask))
        return -1;
    int bad = run_opened(&c->run, peer->node, ask.who.rank, clock_ms()) ||
              directory_ask(&c->directory, &ask);
    free(ask.wanted);
    if (!bad)
        answer_node(c, peer);
    return bad ? -1 : 0;
}

static int take_exited(struct coordinator *c, struct peer *peer, const struct wire_message *m)
{
    struct message_exited how;
    char way[64];
    if (message_get_exited(m, &how) || run_exited(&c->run, peer->node, &how, clock_ms()))
        return -1;
    run_describe_exit(&how, way, sizeof way);
    runlog_line(&c->log, "rank %u on node %s: %s%s%s, last step %lld", how.who.rank,
                c->run.nodes[peer->node].info.node, way,
                how.flags & EXITED_ORDERED ? ", on a signal to the step" : "",
                how.flags & EXITED_DONE ? ", done" : "",
                (long long)c->run.ranks[how.who.rank].step);
    return 0;
}

int coordinator_take_from_rank(struct coordinator *c, struct peer *peer,
                               const struct wire_message *m)
{
    struct message_rank who;
    struct message_seen seen;
    int64_t step;
    uint32_t busy_us;
    if (message_get_rank(m, &who) || who.generation > c->run.config.generation)
        return -1;
    if (who.generation < c->run.config.generation)
        return 0; /* it was on its way when the next began */
    switch (m->type) {
    case MESSAGE_OPENED:
        return run_opened(&c->run, peer->node, who.rank, clock_ms());
    case MESSAGE_DONE:
        return run_done(&c->run, peer->node, who.rank);
    case MESSAGE_PROGRESS:
        if (message_get_progress(m, &who, &step, &busy_us) ||
            run_progress(&c->run, peer->node, who.rank, step, busy_us, clock_ms()))
            return -1;
        coordinator_tell_recovery(c);
        return 0;
    case MESSAGE_EXCHANGE:
        return take_exchange(c, peer, m);
    case MESSAGE_PUBLISH:
        return take_publish(c, peer, m);
    case MESSAGE_ASK:
        return take_ask(c, peer, m);
    case MESSAGE_EXITED:
        return take_exited(c, peer, m);
    case MESSAGE_SIGNALLED:
        return run_signalled(&c->run, peer->node, who.rank);
    case MESSAGE_SEEN:
        return message_get_seen(m, &seen) ? -1
                                          : run_seen(&c->run, peer->node, who.rank,
                                                     (char)seen.state, (int64_t)seen.cpu_ms);
    default:
        return -1;
    }
}
