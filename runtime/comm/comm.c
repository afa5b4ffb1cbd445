/* comm.c - what all backends share: checks, tags, streams, statistics, and the final error.
 *
 * The invariant: `failed` is set once, after `why`. Every way into a backend goes past comm_check
 * first, and every wait of a backend looks at it, so after the first error nothing waits again. */
#include "comm/transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Longer than any step and any checkpoint of a peer, shorter than a person's patience. */
#define DEFAULT_TIMEOUT_MS 600000

int comm_init(struct comm *c, const struct transport_ops *ops, struct kernels *k, int rank,
              int world, struct err *err)
{
    if (world < 1 || rank < 0 || rank >= world)
        return err_set(err, "comm: rank %d is not in a world of %d", rank, world);
    int rc = pthread_mutex_init(&c->why_lock, NULL);
    if (rc)
        return err_set_errno(err, rc, "comm: mutex");
    c->ops = ops;
    c->k = k;
    c->rank = rank;
    c->world = world;
    c->timeout_ms = DEFAULT_TIMEOUT_MS;
    return 0;
}

void comm_release(struct comm *c)
{
    if (c->parts_free) {
        kernels_event_sync(c->k, c->parts_free, clock_ms() + c->timeout_ms, NULL);
        kernels_event_close(c->k, c->parts_free);
    }
    for (int dtype = 0; dtype <= K_I32; dtype++)
        if (c->parts[dtype].mem)
            kernels_free(c->k, &c->parts[dtype]);
    free(c->pending);
    pthread_mutex_destroy(&c->why_lock);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_world(const struct comm *c)
{
    return c->world;
}

bool comm_failed(const struct comm *c)
{
    return atomic_load(&c->failed);
}

void comm_set_timeout_ms(struct comm *c, int64_t timeout_ms)
{
    c->timeout_ms = timeout_ms;
}

void comm_stats(const struct comm *c, uint64_t *bytes_sent, int64_t *wait_ns)
{
    *bytes_sent = c->bytes_sent;
    *wait_ns = c->wait_ns;
}

/* ---- the final error ---- */

int comm_fail(struct comm *c, struct err *err, const char *format, ...)
{
    pthread_mutex_lock(&c->why_lock);
    if (!atomic_load(&c->failed)) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(c->why.text, sizeof c->why.text, format, ap);
        va_end(ap);
        atomic_store(&c->failed, true);
    }
    pthread_mutex_unlock(&c->why_lock);
    return err_set(err, "%s", c->why.text);
}

int comm_check(struct comm *c, struct err *err)
{
    if (!atomic_load(&c->failed))
        return 0;
    return err_set(err, "%s", c->why.text);
}

void comm_abort(struct comm *c, const char *why)
{
    comm_fail(c, NULL, "rank %d gave up: %s", c->rank, why);
    c->ops->wake(c);
}

void comm_close(struct comm *c)
{
    if (c)
        c->ops->close(c);
}

/* ---- wire tags ---- */

uint32_t wire_tag(enum wire_kind kind, uint32_t tag)
{
    return (uint32_t)kind << WIRE_KIND_SHIFT | tag;
}

uint32_t wire_tag_collective(int group_id, uint16_t sequence, uint32_t part)
{
    return (uint32_t)WIRE_COLLECTIVE << WIRE_KIND_SHIFT | (uint32_t)group_id << WIRE_GROUP_SHIFT |
           (uint32_t)sequence << WIRE_SEQUENCE_SHIFT | part;
}

const char *wire_tag_text(uint32_t tag, struct wire_text *out)
{
    static const char *const name[] = {"tag", "host tag", "", "control tag"};
    enum wire_kind kind = (enum wire_kind)(tag >> WIRE_KIND_SHIFT);
    if (kind == WIRE_COLLECTIVE)
        snprintf(out->text, sizeof out->text, "group %u, call %u, part %u",
                 tag >> WIRE_GROUP_SHIFT & (COMM_GROUP_IDS - 1),
                 tag >> WIRE_SEQUENCE_SHIFT & UINT16_MAX, tag & (WIRE_PARTS - 1));
    else
        snprintf(out->text, sizeof out->text, "%s %u", name[kind], tag & (WIRE_TAG_LIMIT - 1));
    return out->text;
}

const char *wire_describe(const struct comm_request *req, struct wire_text *out)
{
    struct wire_text tag;
    snprintf(out->text, sizeof out->text, "%s rank %d (%s, %zu bytes)", req->send ? "to" : "from",
             req->peer, wire_tag_text(req->tag, &tag), req->bytes);
    return out->text;
}

/* ---- starting and waiting ---- */

/* On the way in. Somebody else may have failed the comm while its backend moves bytes in a thread
 * of its own: our caller may free buffers next, so be sure that this is over. */
static int check_state(struct comm *c, struct err *err)
{
    if (!comm_check(c, err))
        return 0;
    c->ops->wake(c);
    return -1;
}

static int check_peer(struct comm *c, int peer, struct err *err)
{
    if (check_state(c, err))
        return -1;
    if (peer < 0 || peer >= c->world)
        return err_set(err, "comm: peer rank %d is not in a world of %d", peer, c->world);
    return 0;
}

int comm_start_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                    struct comm_request **req, struct err *err)
{
    if (check_peer(c, peer, err) || c->ops->send(c, data, bytes, peer, tag, req, err))
        return -1;
    c->bytes_sent += bytes;
    return 0;
}

int comm_start_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                    struct comm_request **req, struct err *err)
{
    if (check_peer(c, peer, err))
        return -1;
    return c->ops->recv(c, data, bytes, peer, tag, req, err);
}

int comm_wait(struct comm *c, struct comm_request **req, struct err *err)
{
    if (!*req)
        return 0;
    int64_t start_ns = clock_ns();
    int rv = c->ops->wait(c, *req, start_ns / 1000000 + c->timeout_ms, err);
    c->wait_ns += clock_ns() - start_ns;
    *req = NULL;
    return rv;
}

int comm_sync(struct comm *c, struct kstream *stream, struct err *err)
{
    if (!stream)
        return 0;
    return kernels_stream_sync(c->k, stream, clock_ms() + c->timeout_ms, err);
}

static int check_tag(uint32_t tag, struct err *err)
{
    if (tag >= WIRE_TAG_LIMIT)
        return err_set(err, "comm: tag %u: must be below %u", tag, WIRE_TAG_LIMIT);
    return 0;
}

int comm_send(struct comm *c, struct kstream *stream, struct kbuf buf, int peer, uint32_t tag,
              struct comm_request **req, struct err *err)
{
    *req = NULL;
    if (check_tag(tag, err) || comm_sync(c, stream, err))
        return -1;
    return comm_start_send(c, kernels_address(c->k, buf), buf.count * kdtype_bytes(buf.dtype), peer,
                           wire_tag(WIRE_P2P, tag), req, err);
}

int comm_recv(struct comm *c, struct kstream *stream, struct kbuf buf, int peer, uint32_t tag,
              struct comm_request **req, struct err *err)
{
    *req = NULL;
    if (check_tag(tag, err) || comm_sync(c, stream, err))
        return -1;
    return comm_start_recv(c, kernels_address(c->k, buf), buf.count * kdtype_bytes(buf.dtype), peer,
                           wire_tag(WIRE_P2P, tag), req, err);
}

int comm_host_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                   struct err *err)
{
    struct comm_request *req = NULL;
    if (check_tag(tag, err) ||
        comm_start_send(c, data, bytes, peer, wire_tag(WIRE_HOST, tag), &req, err))
        return -1;
    return comm_wait(c, &req, err);
}

int comm_host_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                   struct err *err)
{
    struct comm_request *req = NULL;
    if (check_tag(tag, err) ||
        comm_start_recv(c, data, bytes, peer, wire_tag(WIRE_HOST, tag), &req, err))
        return -1;
    return comm_wait(c, &req, err);
}

int comm_host_exchange(struct comm *c, const void *out, size_t out_bytes, int to, void *in,
                       size_t in_bytes, int from, uint32_t tag, struct err *err)
{
    struct comm_request *sent = NULL, *got = NULL;
    if (check_tag(tag, err) ||
        (from >= 0 &&
         comm_start_recv(c, in, in_bytes, from, wire_tag(WIRE_HOST, tag), &got, err)) ||
        (to >= 0 && comm_start_send(c, out, out_bytes, to, wire_tag(WIRE_HOST, tag), &sent, err)))
        return -1; /* what was started is the comm's, which has failed */
    return comm_wait(c, &got, err) || comm_wait(c, &sent, err) ? -1 : 0;
}

/* ---- several at once, for collectives ---- */

/* Room for one more request, made before it is started: a started one must not get lost. */
static int reserve_pending(struct comm *c, struct err *err)
{
    if (c->n_pending < c->max_pending)
        return 0;
    int max = c->max_pending ? c->max_pending * 2 : 16;
    struct comm_request **pending = realloc(c->pending, (size_t)max * sizeof *pending);
    if (!pending)
        return comm_fail(c, err, "rank %d: out of memory for %d messages", c->rank, max);
    c->pending = pending;
    c->max_pending = max;
    return 0;
}

int comm_add_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                  struct err *err)
{
    if (reserve_pending(c, err) ||
        comm_start_send(c, data, bytes, peer, tag, &c->pending[c->n_pending], err))
        return -1;
    c->n_pending++;
    return 0;
}

int comm_add_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag, struct err *err)
{
    if (reserve_pending(c, err) ||
        comm_start_recv(c, data, bytes, peer, tag, &c->pending[c->n_pending], err))
        return -1;
    c->n_pending++;
    return 0;
}

/* After a failure the rest is left to the backend's close: the comm is of no more use. */
int comm_wait_all(struct comm *c, struct err *err)
{
    int rv = 0;
    for (int i = 0; i < c->n_pending && !rv; i++)
        rv = comm_wait(c, &c->pending[i], err);
    c->n_pending = 0;
    return rv;
}

int comm_enter(struct comm *c, const struct comm_group *group, const char *what, uint16_t *sequence,
               struct err *err)
{
    if (check_state(c, err))
        return -1;
    if (group->id < 0 || group->id >= COMM_GROUP_IDS)
        return err_set(err, "comm: %s: group id %d: must be in 0..%d", what, group->id,
                       COMM_GROUP_IDS - 1);
    if (group->me < 0 || group->me >= group->size || group->ranks[group->me] != c->rank)
        return err_set(err, "comm: %s: rank %d is not member %d of group %d", what, c->rank,
                       group->me, group->id);
    *sequence = c->sequence[group->id]++;
    c->n_pending = 0;
    return 0;
}
