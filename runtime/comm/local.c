/* local.c - ranks as threads of one process: messages are copies from buffer to buffer.
 *
 * The hub has, for every receiving rank, a list of sends and a list of receives that have not met.
 * A message that starts looks for its partner in the other list, and who comes second copies,
 * outside the lock, straight from one buffer into the other: nothing is buffered, so a send is done
 * when it was received. Both sides sleep on their rank's condition.
 *
 * Invariant: a buffer is touched only while both requests are marked COPYING, and neither wait nor
 * close returns while a request of theirs is. A failure (deadline, abort, sizes that differ, a
 * close with messages under way) is the hub's, so all ranks learn of it at once. */
#include "comm/transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum request_state { POSTED, COPYING, DONE };
enum rank_state { NOT_OPEN, OPEN, CLOSED };

struct local_request {
    struct comm_request base;
    enum request_state state;
    int owner;                           /* rank */
    struct local_request *next;          /* in its mailbox list, while POSTED */
    struct local_request *newer, *older; /* all of the owner's */
};

/* What has been posted for one receiving rank, oldest first. */
struct mailbox {
    struct local_request *sends, *recvs;
};

struct hub_rank {
    struct mailbox box;
    pthread_cond_t changed;
    enum rank_state state;
    int copying; /* requests of this rank in state COPYING */
};

struct comm_hub {
    int world;
    pthread_mutex_t lock;
    bool failed;
    struct err why;
    struct hub_rank ranks[];
};

struct local_comm {
    struct comm base;
    struct comm_hub *hub;
    struct local_request *requests; /* not waited for yet */
};

/* ---- the hub ---- */

static int cond_init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc)
        return rc;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
}

struct comm_hub *comm_hub_open(int world, struct err *err)
{
    if (world < 1) {
        err_set(err, "comm: a world of %d ranks: must be at least 1", world);
        return NULL;
    }
    struct comm_hub *hub = calloc(1, sizeof *hub + (size_t)world * sizeof hub->ranks[0]);
    if (!hub) {
        err_set_errno(err, ENOMEM, "comm: hub of %d ranks", world);
        return NULL;
    }
    int rc = pthread_mutex_init(&hub->lock, NULL);
    while (!rc && hub->world < world) {
        rc = cond_init_monotonic(&hub->ranks[hub->world].changed);
        hub->world += !rc;
    }
    if (rc) {
        err_set_errno(err, rc, "comm: hub of %d ranks", world);
        comm_hub_close(hub);
        return NULL;
    }
    return hub;
}

void comm_hub_close(struct comm_hub *hub)
{
    if (!hub)
        return;
    for (int r = 0; r < hub->world; r++)
        pthread_cond_destroy(&hub->ranks[r].changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

static void wake_all(struct comm_hub *hub)
{
    for (int r = 0; r < hub->world; r++)
        pthread_cond_broadcast(&hub->ranks[r].changed);
}

/* The hub's lock is held. Takes over what c failed with, if it is the first. */
static void fail_all(struct local_comm *c)
{
    if (!c->hub->failed) {
        c->hub->failed = true;
        comm_check(&c->base, &c->hub->why);
    }
    wake_all(c->hub);
}

/* ---- matching ---- */

static void list_append(struct local_request **list, struct local_request *req)
{
    while (*list)
        list = &(*list)->next;
    *list = req;
}

static void list_remove(struct local_request **list, struct local_request *req)
{
    while (*list && *list != req)
        list = &(*list)->next;
    if (*list)
        *list = req->next;
    req->next = NULL;
}

static struct local_request *find_partner(struct local_request *list,
                                          const struct local_request *req)
{
    for (; list; list = list->next)
        if (list->owner == req->base.peer && list->base.peer == req->owner &&
            list->base.tag == req->base.tag)
            return list;
    return NULL;
}

static struct mailbox *box_of(struct comm_hub *hub, const struct local_request *req)
{
    return &hub->ranks[req->base.send ? req->base.peer : req->owner].box;
}

static void set_state(struct comm_hub *hub, struct local_request *req, enum request_state state)
{
    struct hub_rank *rank = &hub->ranks[req->owner];
    rank->copying += (state == COPYING) - (req->state == COPYING);
    req->state = state;
    if (state == DONE)
        pthread_cond_broadcast(&rank->changed);
}

/* Lock held; released during the copy. */
static void copy_pair(struct comm_hub *hub, struct local_request *send, struct local_request *recv)
{
    set_state(hub, send, COPYING);
    set_state(hub, recv, COPYING);
    pthread_mutex_unlock(&hub->lock);
    if (send->base.bytes)
        memcpy((void *)recv->base.data, send->base.data, send->base.bytes);
    pthread_mutex_lock(&hub->lock);
    set_state(hub, send, DONE);
    set_state(hub, recv, DONE);
}

/* Lock held. Meets the partner, or waits for it in the mailbox. */
static int post(struct local_comm *c, struct local_request *req, struct err *err)
{
    struct comm_hub *hub = c->hub;
    struct mailbox *box = box_of(hub, req);
    struct local_request *other = find_partner(req->base.send ? box->recvs : box->sends, req);
    if (!other) {
        list_append(req->base.send ? &box->sends : &box->recvs, req);
        return 0;
    }
    list_remove(req->base.send ? &box->recvs : &box->sends, other);
    struct local_request *send = req->base.send ? req : other;
    struct local_request *recv = req->base.send ? other : req;
    if (send->base.bytes != recv->base.bytes) {
        struct wire_text tag;
        return comm_fail(&c->base, err,
                         "rank %d expected %zu bytes from rank %d, which sent %zu (%s)",
                         recv->owner, recv->base.bytes, send->owner, send->base.bytes,
                         wire_tag_text(req->base.tag, &tag));
    }
    copy_pair(hub, send, recv);
    return 0;
}

static void release_request(struct local_comm *c, struct local_request *req)
{
    if (req->newer)
        req->newer->older = req->older;
    else
        c->requests = req->older;
    if (req->older)
        req->older->newer = req->newer;
    free(req);
}

static int start(struct comm *base, struct comm_request what, struct comm_request **out,
                 struct err *err)
{
    struct local_comm *c = (struct local_comm *)base;
    struct comm_hub *hub = c->hub;
    struct local_request *req = calloc(1, sizeof *req);
    if (!req)
        return comm_fail(base, err, "rank %d: out of memory for a message", base->rank);
    req->base = what;
    req->owner = base->rank;
    req->older = c->requests;
    if (c->requests)
        c->requests->newer = req;
    c->requests = req;

    pthread_mutex_lock(&hub->lock);
    int rv;
    struct wire_text text;
    if (hub->failed)
        rv = comm_fail(base, err, "%s", hub->why.text);
    else if (hub->ranks[what.peer].state == CLOSED)
        rv = comm_fail(base, err, "rank %d: no message %s: that rank has closed", base->rank,
                       wire_describe(&what, &text));
    else
        rv = post(c, req, err);
    if (rv)
        fail_all(c);
    pthread_mutex_unlock(&hub->lock);
    *out = rv ? NULL : &req->base;
    return rv;
}

static int local_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                      struct comm_request **req, struct err *err)
{
    return start(c, (struct comm_request){data, bytes, peer, tag, true}, req, err);
}

static int local_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                      struct comm_request **req, struct err *err)
{
    return start(c, (struct comm_request){data, bytes, peer, tag, false}, req, err);
}

/* ---- waiting ---- */

/* Lock held. Why this wait must end without its message, or 0. */
static int check_wait(struct local_comm *c, const struct local_request *req, int64_t deadline_ms,
                      struct err *err)
{
    struct comm_hub *hub = c->hub;
    struct wire_text text;
    if (hub->failed)
        return comm_fail(&c->base, err, "%s", hub->why.text);
    if (comm_check(&c->base, err))
        return -1;
    if (hub->ranks[req->base.peer].state == CLOSED)
        return comm_fail(&c->base, err, "rank %d: no message %s: that rank has closed",
                         c->base.rank, wire_describe(&req->base, &text));
    if (clock_ms() >= deadline_ms)
        return comm_fail(&c->base, err, "rank %d: no message %s within %lld ms", c->base.rank,
                         wire_describe(&req->base, &text), (long long)c->base.timeout_ms);
    return 0;
}

static void sleep_until(struct comm_hub *hub, int rank, int64_t deadline_ms)
{
    struct timespec at = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    pthread_cond_timedwait(&hub->ranks[rank].changed, &hub->lock, &at);
}

/* Lock held. A copy that has begun is short; nobody gives up a buffer while it runs. */
static void await_copies(struct local_comm *c)
{
    while (c->hub->ranks[c->base.rank].copying)
        pthread_cond_wait(&c->hub->ranks[c->base.rank].changed, &c->hub->lock);
}

static int local_wait(struct comm *base, struct comm_request *request, int64_t deadline_ms,
                      struct err *err)
{
    struct local_comm *c = (struct local_comm *)base;
    struct local_request *req = (struct local_request *)request;
    int rv = 0;
    pthread_mutex_lock(&c->hub->lock);
    while (!rv && req->state != DONE) {
        if (req->state == COPYING)
            await_copies(c);
        else if (!(rv = check_wait(c, req, deadline_ms, err)))
            sleep_until(c->hub, base->rank, deadline_ms);
    }
    if (rv) {
        fail_all(c);
        await_copies(c);
        struct mailbox *box = box_of(c->hub, req);
        list_remove(req->base.send ? &box->sends : &box->recvs, req);
    }
    pthread_mutex_unlock(&c->hub->lock);
    release_request(c, req);
    return rv;
}

static void local_wake(struct comm *base)
{
    struct local_comm *c = (struct local_comm *)base;
    pthread_mutex_lock(&c->hub->lock);
    fail_all(c);
    pthread_mutex_unlock(&c->hub->lock);
}

/* ---- open and close ---- */

static void local_close(struct comm *base)
{
    struct local_comm *c = (struct local_comm *)base;
    struct comm_hub *hub = c->hub;
    pthread_mutex_lock(&hub->lock);
    for (struct local_request *req = c->requests; req; req = req->older) {
        if (req->state != POSTED)
            continue;
        struct wire_text text;
        comm_fail(base, NULL, "rank %d has closed with a message under way %s", base->rank,
                  wire_describe(&req->base, &text));
        fail_all(c);
        struct mailbox *box = box_of(hub, req);
        list_remove(req->base.send ? &box->sends : &box->recvs, req);
    }
    await_copies(c);
    hub->ranks[base->rank].state = CLOSED;
    wake_all(hub);
    pthread_mutex_unlock(&hub->lock);
    while (c->requests)
        release_request(c, c->requests);
    comm_release(base);
    free(c);
}

static const struct transport_ops local_ops = {
    .send = local_send,
    .recv = local_recv,
    .wait = local_wait,
    .wake = local_wake,
    .close = local_close,
};

struct comm *comm_open_local(struct comm_hub *hub, struct kernels *k, int rank, struct err *err)
{
    struct local_comm *c = calloc(1, sizeof *c);
    if (!c) {
        err_set_errno(err, ENOMEM, "comm: rank %d", rank);
        return NULL;
    }
    c->hub = hub;
    if (comm_init(&c->base, &local_ops, k, rank, hub->world, err)) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&hub->lock);
    bool taken = hub->ranks[rank].state != NOT_OPEN;
    hub->ranks[rank].state = OPEN;
    pthread_mutex_unlock(&hub->lock);
    if (taken) {
        err_set(err, "comm: rank %d of this hub is open already", rank);
        comm_release(&c->base);
        free(c);
        return NULL;
    }
    return &c->base;
}
