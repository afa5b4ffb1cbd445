/* ucx.c - messages among processes and nodes, by UCX's tag matching.
 *
 * Sleeping: a wait progresses the worker until it has nothing to do, arms it (UCX refuses while
 * something is left) and polls its descriptor, so that a waiting rank leaves its core to others.
 *
 * After a failure the worker is not progressed again until close, and then only if UCX will not
 * write: it would write into buffers that their owners have freed. The lock orders the two: who has
 * held it after `failed` was set knows that the progress thread will not progress any more. */
#include "comm/ucx.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/clock.h"

/* How long the progress thread leaves the worker alone after it saw the rank's thread at it: long
 * against the gap between two messages of one collective, short against a layer's computation. */
#define PAUSE_MS 2

/* When UCX will neither progress nor sleep (see arm). A yield is all it takes as long as the peer
 * only needs the core; a peer that is busy or stopped is worth no more than a look now and then. */
#define BUSY_YIELDS   100
#define BUSY_SLEEP_US 500

/* ---- messages ---- */

static void finish(struct ucx_request *req, ucs_status_t status, size_t received)
{
    req->status = status;
    req->received = received;
    req->done = true;
}

static void on_sent(void *handle, ucs_status_t status, void *arg)
{
    (void)handle;
    struct ucx_request *req = arg;
    finish(req, status, req->base.bytes);
}

static void on_received(void *handle, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *arg)
{
    (void)handle;
    finish(arg, status, info->length);
}

static struct ucx_request *request_new(struct ucx_comm *c, struct comm_request what,
                                       struct err *err)
{
    struct ucx_request *req = calloc(1, sizeof *req);
    if (!req) {
        comm_fail(&c->base, err, "rank %d: out of memory for a message", c->base.rank);
        return NULL;
    }
    req->base = what;
    req->comm = c;
    req->older = c->requests;
    if (c->requests)
        c->requests->newer = req;
    c->requests = req;
    return req;
}

static void request_free(struct ucx_request *req)
{
    if (req->newer)
        req->newer->older = req->older;
    else
        req->comm->requests = req->older;
    if (req->older)
        req->older->newer = req->newer;
    if (req->handle)
        ucp_request_free(req->handle);
    free(req);
}

/* A receive whose message is there already completes by its callback, too: UCX 1.13 tells its
 * length in no other way. */
static void *submit(struct ucx_comm *c, struct ucx_request *req)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .user_data = req,
    };
    if (req->base.send) {
        param.cb.send = on_sent;
        return ucp_tag_send_nbx(c->peers[req->base.peer].ep, req->base.data, req->base.bytes,
                                ucx_tag(c, c->base.rank, req->base.tag), &param);
    }
    param.cb.recv = on_received;
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    return ucp_tag_recv_nbx(c->worker, (void *)req->base.data, req->base.bytes,
                            ucx_tag(c, req->base.peer, req->base.tag), UINT64_MAX, &param);
}

static int start(struct comm *base, struct comm_request what, struct comm_request **out,
                 struct err *err)
{
    struct ucx_comm *c = (struct ucx_comm *)base;
    int rv = -1;
    pthread_mutex_lock(&c->lock);
    struct ucx_request *req = NULL;
    if (!ucx_endpoint(c, what.peer, what.send, err))
        req = request_new(c, what, err);
    if (req) {
        void *handle = submit(c, req);
        if (UCS_PTR_IS_ERR(handle))
            finish(req, UCS_PTR_STATUS(handle), 0); /* the wait tells */
        else if (!handle)
            finish(req, UCS_OK, what.bytes);
        else
            req->handle = handle;
        *out = &req->base;
        rv = 0;
    }
    pthread_mutex_unlock(&c->lock);
    return rv;
}

int ucx_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
             struct comm_request **req, struct err *err)
{
    return start(c, (struct comm_request){data, bytes, peer, tag, true}, req, err);
}

int ucx_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
             struct comm_request **req, struct err *err)
{
    return start(c, (struct comm_request){data, bytes, peer, tag, false}, req, err);
}

void ucx_cancel_requests(struct ucx_comm *c)
{
    for (struct ucx_request *req = c->requests; req; req = req->older)
        if (!req->done && req->handle)
            ucp_request_cancel(c->worker, req->handle);
}

void ucx_free_handles(struct ucx_comm *c)
{
    for (struct ucx_request *req = c->requests; req; req = req->older) {
        if (req->handle)
            ucp_request_free(req->handle);
        req->handle = NULL;
    }
}

void ucx_free_requests(struct ucx_comm *c)
{
    while (c->requests)
        request_free(c->requests);
}

/* ---- waiting ---- */

/* How a finished request came out. */
static int outcome(struct ucx_comm *c, const struct ucx_request *req, struct err *err)
{
    const struct comm_request *m = &req->base;
    struct wire_text text;
    bool cut = req->status == UCS_ERR_MESSAGE_TRUNCATED;
    if (!m->send && (cut || (req->status == UCS_OK && req->received != m->bytes)))
        return comm_fail(
            &c->base, err, "rank %d expected %zu bytes from rank %d, which sent %zu (%s)",
            c->base.rank, m->bytes, m->peer, req->received, wire_tag_text(m->tag, &text));
    if (req->status == UCS_OK)
        return 0;
    if (cut)
        return comm_fail(&c->base, err,
                         "rank %d: the message %s was longer than that rank expected", c->base.rank,
                         wire_describe(m, &text));
    return comm_fail(&c->base, err, "rank %d: no message %s: %s", c->base.rank,
                     wire_describe(m, &text), ucs_status_string(req->status));
}

/* Progress until the request is done or there is nothing to do. Looks at `done` first: a message
 * that came before its sender went is a message. */
static int advance(struct ucx_comm *c, const struct ucx_request *req, struct err *err)
{
    while (!req->done) {
        if (comm_check(&c->base, err))
            return -1;
        unsigned events = ucp_worker_progress(c->worker);
        if (req->done)
            return 0;
        if (ucx_check_lost(c, err))
            return -1;
        if (!events)
            return 0;
        c->busy = 0;
    }
    return 0;
}

/* May the caller sleep? If not, there is more to progress, or the comm has failed.
 *
 * UCX also refuses while a shared-memory queue to a peer is full, and nothing tells when it is not:
 * then the core goes to others, above all to that peer, and if that does not help, for a while. */
static bool arm(struct ucx_comm *c, struct err *err)
{
    ucs_status_t status = ucp_worker_arm(c->worker);
    if (status == UCS_OK) {
        c->busy = 0;
        return true;
    }
    if (status != UCS_ERR_BUSY) {
        comm_fail(&c->base, err, "rank %d: UCX cannot sleep: %s", c->base.rank,
                  ucs_status_string(status));
        return false;
    }
    bool patient = c->busy++ >= BUSY_YIELDS;
    pthread_mutex_unlock(&c->lock);
    if (patient)
        nanosleep(&(struct timespec){.tv_nsec = BUSY_SLEEP_US * 1000}, NULL);
    else
        sched_yield();
    pthread_mutex_lock(&c->lock);
    return false;
}

/* Lock held; released in between. Until the worker has something to do, or nothing came in time. */
static int doze(struct ucx_comm *c, const struct ucx_request *req, int64_t deadline_ms,
                struct err *err)
{
    struct wire_text text;
    if (ucx_read_control(c, err))
        return -1;
    if (ucx_said_goodbye(c, req->base.peer))
        return comm_fail(&c->base, err, "rank %d: no message %s: that rank has closed",
                         c->base.rank, wire_describe(&req->base, &text));
    int left_ms = clock_left_ms(deadline_ms);
    if (!left_ms)
        return comm_fail(&c->base, err, "rank %d: no message %s within %lld ms", c->base.rank,
                         wire_describe(&req->base, &text), (long long)c->base.timeout_ms);
    if (!arm(c, err))
        return comm_check(&c->base, err);
    pthread_mutex_unlock(&c->lock);
    struct pollfd fds[] = {{.fd = c->worker_fd, .events = POLLIN},
                           {.fd = c->wake_fd, .events = POLLIN}};
    poll(fds, 2, left_ms);
    pthread_mutex_lock(&c->lock);
    return 0;
}

int ucx_wait(struct comm *base, struct comm_request *request, int64_t deadline_ms, struct err *err)
{
    struct ucx_comm *c = (struct ucx_comm *)base;
    struct ucx_request *req = (struct ucx_request *)request;
    int rv = 0;
    pthread_mutex_lock(&c->lock);
    c->waiting = true;
    c->waits++;
    while (!(rv = advance(c, req, err)) && !req->done) {
        ucx_drop_old(c);
        if ((rv = doze(c, req, deadline_ms, err)))
            break;
    }
    if (!rv)
        rv = outcome(c, req, err);
    if (rv)
        ucx_tell_failure(c);
    c->waiting = false;
    if (c->parked)
        pthread_cond_signal(&c->resume);
    if (req->done)
        request_free(req); /* one that is not done is UCX's until close */
    pthread_mutex_unlock(&c->lock);
    return rv;
}

void ucx_wake(struct comm *base)
{
    struct ucx_comm *c = (struct ucx_comm *)base;
    pthread_mutex_lock(&c->lock);
    ucx_tell_failure(c);
    pthread_mutex_unlock(&c->lock);
    if (eventfd_write(c->wake_fd, 1))
        return; /* only when 2^64 - 2 wakes are pending: it is awake */
}

/* ---- the progress thread ---- */

/* Lock held. The rank's thread is at the worker: sleep a little, and if the same wait still goes on
 * then, until it ends. So a busy rank costs few wake-ups, and an idle one none. */
static void stand_aside(struct ucx_comm *c)
{
    uint64_t seen = c->waits;
    int64_t at_ns = clock_ns() + PAUSE_MS * 1000000;
    struct timespec at = {at_ns / 1000000000, at_ns % 1000000000};
    while (!c->stop && pthread_cond_timedwait(&c->resume, &c->lock, &at) != ETIMEDOUT)
        ;
    c->parked = true;
    while (!c->stop && c->waiting && c->waits == seen)
        pthread_cond_wait(&c->resume, &c->lock);
    c->parked = false;
}

/* Lock held; released while it sleeps. */
static void progress_and_sleep(struct ucx_comm *c)
{
    while (ucp_worker_progress(c->worker))
        c->busy = 0;
    ucx_check_lost(c, NULL);
    if (!arm(c, NULL))
        return;
    pthread_mutex_unlock(&c->lock);
    struct pollfd fds[] = {{.fd = c->worker_fd, .events = POLLIN},
                           {.fd = c->stop_fd, .events = POLLIN}};
    poll(fds, 2, -1);
    pthread_mutex_lock(&c->lock);
}

static void *thread_main(void *arg)
{
    struct ucx_comm *c = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&c->lock);
    while (!c->stop && !atomic_load(&c->base.failed)) {
        if (c->waiting || c->waits != seen) {
            seen = c->waits;
            stand_aside(c);
        } else {
            progress_and_sleep(c);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int ucx_thread_start(struct ucx_comm *c, struct err *err)
{
    int rc = pthread_create(&c->thread, NULL, thread_main, c);
    if (rc)
        return err_set_errno(err, rc, "comm: progress thread of rank %d", c->base.rank);
    c->thread_runs = true;
    return 0;
}

void ucx_thread_stop(struct ucx_comm *c)
{
    if (!c->thread_runs)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->resume);
    pthread_mutex_unlock(&c->lock);
    eventfd_write(c->stop_fd, 1);
    pthread_join(c->thread, NULL);
    c->thread_runs = false;
}
