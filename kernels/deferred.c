/* deferred.c - a device for tests that runs as little, as late and in as odd an order as it may.
 *
 * Streams are queues of what was submitted: operations and waits. Nothing runs until a sync asks
 * for a position in a stream. Then the wrapper works out which positions of other streams that one
 * needs (through the waits before it), and runs those and no more, taking a stream by a random
 * number whenever several may go on. So what the events do not order runs in another order for
 * another seed, and what nobody waits for has not happened yet: a missing event is a wrong number.
 *
 * A position is a count of items ever submitted to a stream. An event is a (stream, position); a
 * wait copies the event's pair when it is submitted, because recording again replaces. A wait's
 * position was submitted before the wait, so waits cannot form a circle and some stream can always
 * go on. */
#include "kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kop.h"
#include "philox.h"

/* Most items that run from one stream before another is drawn. */
enum { LONGEST_BURST = 4 };

/* A place in a stream; stream NULL: already passed. */
struct place {
    struct kstream *stream;
    uint64_t position;
};

struct item {
    bool is_wait;
    struct place wait;
    struct kop op;
};

struct kstream {
    struct item *items; /* pending: items[head] is number done of the stream */
    size_t head, count, room;
    uint64_t done, target;
    struct kstream *next;
};

struct kevent {
    struct place place;
    struct kevent *next;
};

struct deferred {
    struct kernels base; /* first */
    struct kernels *inner;
    struct kstream *inner_stream; /* what runs, runs in one stream of the inner device */
    pthread_mutex_t lock;
    struct kstream *streams;
    struct kevent *events;
    uint64_t seed, draws;
    bool failed;
    struct err error;
};

static struct deferred *deferred_of(struct kernels *k)
{
    return (struct deferred *)k;
}

static void fail(struct deferred *d, const char *text)
{
    if (!d->failed)
        err_set(&d->error, "%s", text);
    d->failed = true;
}

static uint32_t draw(struct deferred *d, uint32_t below)
{
    uint64_t n = d->draws++;
    uint32_t out[4];
    philox4x32_10((uint32_t[]){(uint32_t)n, (uint32_t)(n >> 32), 0, 0},
                  (uint32_t[]){(uint32_t)d->seed, (uint32_t)(d->seed >> 32)}, out);
    return out[0] % below;
}

/* ---- running ---- */

static bool place_passed(struct place p)
{
    return p.stream == NULL || p.stream->done >= p.position;
}

/* Raise the targets of all streams that those with a target wait for, until nothing changes. */
static void spread_targets(struct deferred *d)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (struct kstream *s = d->streams; s != NULL; s = s->next)
            for (uint64_t at = s->done; at < s->target; at++) {
                struct item *item = &s->items[s->head + (at - s->done)];
                if (!item->is_wait || place_passed(item->wait))
                    continue;
                struct kstream *other = item->wait.stream;
                if (other->target < item->wait.position) {
                    other->target = item->wait.position;
                    changed = true;
                }
            }
    }
}

static bool can_run(const struct kstream *s)
{
    if (s->done >= s->target)
        return false;
    const struct item *first = &s->items[s->head];
    return !first->is_wait || place_passed(first->wait);
}

static void run_first(struct deferred *d, struct kstream *s)
{
    const struct item *first = &s->items[s->head];
    if (!first->is_wait)
        kernels_submit(d->inner, d->inner_stream, &first->op);
    s->done++;
    s->head++;
    s->count--;
}

/* One of the streams that can run, or NULL. */
static struct kstream *draw_stream(struct deferred *d)
{
    uint32_t able = 0;
    for (struct kstream *s = d->streams; s != NULL; s = s->next)
        able += can_run(s);
    if (able == 0)
        return NULL;
    uint32_t pick = draw(d, able);
    for (struct kstream *s = d->streams; s != NULL; s = s->next)
        if (can_run(s) && pick-- == 0)
            return s;
    return NULL;
}

static void run_until(struct deferred *d, struct place p)
{
    if (place_passed(p))
        return;
    for (struct kstream *s = d->streams; s != NULL; s = s->next)
        s->target = s->done;
    p.stream->target = p.position;
    spread_targets(d);
    for (struct kstream *s = draw_stream(d); s != NULL; s = draw_stream(d))
        for (uint32_t left = 1 + draw(d, LONGEST_BURST); left > 0 && can_run(s); left--)
            run_first(d, s);
}

/* With the lock held. */
static int sync_place(struct deferred *d, struct place p, int64_t deadline_ms, struct err *err)
{
    run_until(d, p);
    int rc = kernels_stream_sync(d->inner, d->inner_stream, deadline_ms, err);
    if (rc == 0 && d->failed)
        rc = err_set(err, "%s", d->error.text);
    return rc;
}

/* ---- streams and events ---- */

/* Room for one more item behind the pending ones; what has been done makes room first. */
static int make_room(struct kstream *s)
{
    if (s->head + s->count < s->room)
        return 0;
    if (s->head > s->count) {
        memcpy(s->items, &s->items[s->head], s->count * sizeof(*s->items));
        s->head = 0;
        return 0;
    }
    size_t room = s->room > 0 ? 2 * s->room : 64;
    struct item *items = realloc(s->items, room * sizeof(*items));
    if (items == NULL)
        return -1;
    s->items = items;
    s->room = room;
    return 0;
}

static void push(struct deferred *d, struct kstream *s, const struct item *item)
{
    if (make_room(s) != 0) {
        fail(d, "deferred: no memory for a queued operation");
        return;
    }
    s->items[s->head + s->count++] = *item;
}

static struct place end_of(struct kstream *s)
{
    return (struct place){s, s->done + s->count};
}

static void deferred_submit(struct kernels *k, struct kstream *stream, const struct kop *op)
{
    struct deferred *d = deferred_of(k);
    struct item item = {.op = *op};
    pthread_mutex_lock(&d->lock);
    push(d, stream, &item);
    pthread_mutex_unlock(&d->lock);
}

static struct kstream *deferred_stream_open(struct kernels *k, struct err *err)
{
    struct deferred *d = deferred_of(k);
    struct kstream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        err_set(err, "no memory for a stream");
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    return s;
}

/* Who waited for a stream that is gone has nothing to wait for. */
static void forget_stream(struct deferred *d, const struct kstream *gone)
{
    for (struct kstream *s = d->streams; s != NULL; s = s->next)
        for (size_t i = s->head; i < s->head + s->count; i++)
            if (s->items[i].is_wait && s->items[i].wait.stream == gone)
                s->items[i].wait.stream = NULL;
    for (struct kevent *e = d->events; e != NULL; e = e->next)
        if (e->place.stream == gone)
            e->place.stream = NULL;
}

static void deferred_stream_close(struct kernels *k, struct kstream *stream)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    if (stream->count > 0)
        fail(d, "deferred: a stream was closed before a sync had passed all of it");
    for (struct kstream **at = &d->streams; *at != NULL; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    forget_stream(d, stream);
    pthread_mutex_unlock(&d->lock);
    free(stream->items);
    free(stream);
}

static struct kevent *deferred_event_open(struct kernels *k, struct err *err)
{
    struct deferred *d = deferred_of(k);
    struct kevent *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        err_set(err, "no memory for an event");
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    e->next = d->events;
    d->events = e;
    pthread_mutex_unlock(&d->lock);
    return e;
}

static void deferred_event_close(struct kernels *k, struct kevent *event)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    for (struct kevent **at = &d->events; *at != NULL; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    pthread_mutex_unlock(&d->lock);
    free(event);
}

static void deferred_event_record(struct kernels *k, struct kevent *event, struct kstream *stream)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    event->place = end_of(stream);
    pthread_mutex_unlock(&d->lock);
}

static void deferred_event_wait(struct kernels *k, struct kstream *stream, struct kevent *event)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    struct item item = {.is_wait = true, .wait = event->place};
    if (!place_passed(item.wait))
        push(d, stream, &item);
    pthread_mutex_unlock(&d->lock);
}

static int deferred_event_sync(struct kernels *k, struct kevent *event, int64_t deadline_ms,
                               struct err *err)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    int rc = sync_place(d, event->place, deadline_ms, err);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int deferred_stream_sync(struct kernels *k, struct kstream *stream, int64_t deadline_ms,
                                struct err *err)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    int rc = sync_place(d, end_of(stream), deadline_ms, err);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* ---- memory ---- */

static int deferred_alloc(struct kernels *k, enum kdtype dtype, size_t count, struct kbuf *out,
                          struct err *err)
{
    return kernels_alloc(deferred_of(k)->inner, dtype, count, out, err);
}

/* The name of a pending operation that uses mem, or NULL. */
static const char *pending_use(const struct deferred *d, const struct kmem *mem)
{
    struct kop_use uses[KOP_MAX_USES];
    for (struct kstream *s = d->streams; s != NULL; s = s->next)
        for (size_t i = s->head; i < s->head + s->count; i++) {
            if (s->items[i].is_wait)
                continue;
            int n = kop_uses(&s->items[i].op, uses);
            for (int u = 0; u < n; u++)
                if (uses[u].buf.mem == mem)
                    return kop_name(s->items[i].op.kind);
        }
    return NULL;
}

static void deferred_free(struct kernels *k, struct kbuf *buf)
{
    struct deferred *d = deferred_of(k);
    pthread_mutex_lock(&d->lock);
    const char *user = pending_use(d, buf->mem);
    if (user != NULL) {
        /* The memory is kept until the inner device closes: what is queued may still run. */
        char text[128];
        snprintf(text, sizeof(text), "free: a %s that uses the buffer has not been synced", user);
        fail(d, text);
    }
    pthread_mutex_unlock(&d->lock);
    if (user == NULL)
        kernels_free(d->inner, buf);
}

static void *deferred_address(struct kernels *k, struct kbuf buf)
{
    return kernels_address(deferred_of(k)->inner, buf);
}

static size_t deferred_bytes(const struct kernels *k, size_t *peak_bytes)
{
    return kernels_bytes(((const struct deferred *)k)->inner, peak_bytes);
}

static const char *deferred_signature(const struct kernels *k)
{
    return kernels_signature(((const struct deferred *)k)->inner);
}

static void deferred_close(struct kernels *k)
{
    struct deferred *d = deferred_of(k);
    for (struct kstream *s = d->streams, *next; s != NULL; s = next) {
        next = s->next;
        free(s->items);
        free(s);
    }
    for (struct kevent *e = d->events, *next; e != NULL; e = next) {
        next = e->next;
        free(e);
    }
    kernels_stream_close(d->inner, d->inner_stream);
    kernels_close(d->inner);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static const struct kernels_ops deferred_ops = {
    .close = deferred_close,
    .alloc = deferred_alloc,
    .free = deferred_free,
    .address = deferred_address,
    .stream_open = deferred_stream_open,
    .stream_close = deferred_stream_close,
    .event_open = deferred_event_open,
    .event_close = deferred_event_close,
    .event_record = deferred_event_record,
    .event_wait = deferred_event_wait,
    .event_sync = deferred_event_sync,
    .stream_sync = deferred_stream_sync,
    .submit = deferred_submit,
    .bytes = deferred_bytes,
    .signature = deferred_signature,
};

struct kernels *kernels_open_deferred(struct kernels *inner, uint64_t seed, struct err *err)
{
    struct deferred *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        err_set(err, "no memory for a deferring device");
        return NULL;
    }
    d->inner_stream = kernels_stream_open(inner, err);
    if (d->inner_stream == NULL) {
        free(d);
        return NULL;
    }
    d->base.ops = &deferred_ops;
    d->inner = inner;
    d->seed = seed;
    pthread_mutex_init(&d->lock, NULL);
    return &d->base;
}
