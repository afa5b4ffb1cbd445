/* collective.c - collectives on device buffers, by messages between all members.
 *
 * Sums go in rank order: the member who adds holds everyone's part side by side in its scratch and
 * has the device add them 0..n-1. The result of an element so depends on the group's order alone,
 * not on its place, on the size of the call or on the backend, and is the same on all members.
 *
 * Two ways, the same bits:
 *   slices  member i adds slice i of everybody's buffer, then sends the sum to all. Each rank moves
 *           about twice the buffer, whatever the size of the group.
 *   whole   everybody sends everything to everybody and adds all. One exchange instead of two: for
 *           small buffers, where what counts is how often a rank must wake up.
 *
 * Long buffers go through in chunks, so that scratch stays bounded.
 *
 * Order with the stream: comm_sync before the first message (inputs are ready, nobody reads what is
 * received into), comm_sync again before a sum is sent on. The scratch is free again when the event
 * parts_free has passed, which the next collective waits for, on whatever stream it is. */
#include "comm/transport.h"

#include "base/clock.h"

/* All-reduce goes the whole way as long as a rank sends at most this many bytes. Measured over
 * shared memory, CPU time of all ranks, whole against slices: 56 KiB sent 0.71, 64 KiB 0.66, 192
 * KiB 1.0, 448 KiB 2.7. */
#define WHOLE_BYTES (128u << 10)

/* Bound of the scratch: large enough that messages are long, small against a model's memory. */
#define SCRATCH_BYTES (64u << 20)

enum part { PART_REDUCE, PART_GATHER };

/* One collective that is going on. */
struct call {
    struct comm *c;
    const struct comm_group *group;
    struct kstream *stream;
    uint16_t sequence;
    struct err *err;
};

static size_t buf_bytes(struct kbuf buf)
{
    return buf.count * kdtype_bytes(buf.dtype);
}

/* The elements of slice i when count elements are cut into n, the first ones longer by one where n
 * does not divide. */
static struct kbuf slice_of(struct kbuf buf, int i, int n)
{
    size_t size = buf.count / (size_t)n, longer = buf.count % (size_t)n, at = (size_t)i;
    return kbuf_slice(buf, at * size + (at < longer ? at : longer), size + (at < longer));
}

/* Part i of n equal ones. */
static struct kbuf part_of(struct kbuf buf, int i, int n)
{
    size_t size = buf.count / (size_t)n;
    return kbuf_slice(buf, (size_t)i * size, size);
}

/* Who is `step` places after me, round the group: so that not all send to the same rank first. */
static int after_me(const struct call *call, int step)
{
    return (call->group->me + step) % call->group->size;
}

static int send_to(struct call *call, struct kbuf buf, int member, enum part part)
{
    if (!buf.count)
        return 0;
    return comm_add_send(call->c, kernels_address(call->c->k, buf), buf_bytes(buf),
                         call->group->ranks[member],
                         wire_tag_collective(call->group->id, call->sequence, part), call->err);
}

static int recv_from(struct call *call, struct kbuf buf, int member, enum part part)
{
    if (!buf.count)
        return 0;
    return comm_add_recv(call->c, kernels_address(call->c->k, buf), buf_bytes(buf),
                         call->group->ranks[member],
                         wire_tag_collective(call->group->id, call->sequence, part), call->err);
}

/* Scratch for `count` elements that nobody uses any more. */
static int take_parts(struct call *call, enum kdtype dtype, size_t count, struct kbuf *out)
{
    struct comm *c = call->c;
    if (!c->parts_free && !(c->parts_free = kernels_event_open(c->k, call->err)))
        return -1;
    if (kernels_event_sync(c->k, c->parts_free, clock_ms() + c->timeout_ms, call->err))
        return -1;
    struct kbuf *parts = &c->parts[dtype];
    if (parts->count < count) {
        if (parts->mem)
            kernels_free(c->k, parts);
        if (kernels_alloc(c->k, dtype, count, parts, call->err))
            return err_prefix(call->err, "comm: scratch of a collective");
    }
    *out = kbuf_slice(*parts, 0, count);
    return 0;
}

static void submit_copy(struct call *call, struct kbuf out, struct kbuf in)
{
    KSUBMIT(call->c->k, call->stream, COPY, copy, .out = out, .in = in);
}

/* out = everyone's part in rank order; the parts are scratch, which is free afterwards. */
static void submit_sum(struct call *call, struct kbuf out, struct kbuf parts, enum comm_op op)
{
    struct kop kop = {.kind = op == COMM_SUM ? KOP_SUM_N : KOP_MAX_N,
                      .sum_n = {out, parts, call->group->size}};
    kernels_submit(call->c->k, call->stream, &kop);
    kernels_event_record(call->c->k, call->c->parts_free, call->stream);
}

/* Member i's part comes to stand at i in `parts`; mine is a copy of `own`. */
static int gather_parts(struct call *call, struct kbuf parts, struct kbuf own, enum part part)
{
    int n = call->group->size;
    for (int step = 1; step < n; step++) {
        int from = after_me(call, n - step);
        if (recv_from(call, part_of(parts, from, n), from, part))
            return -1;
    }
    submit_copy(call, part_of(parts, call->group->me, n), own);
    return 0;
}

static int begin(struct call *call, const char *what)
{
    if (comm_enter(call->c, call->group, what, &call->sequence, call->err))
        return -1;
    return comm_sync(call->c, call->stream, call->err);
}

/* ---- all-reduce ---- */

static int all_reduce_whole(struct call *call, struct kbuf buf, enum comm_op op)
{
    int n = call->group->size;
    struct kbuf parts;
    if (take_parts(call, buf.dtype, buf.count * (size_t)n, &parts) ||
        gather_parts(call, parts, buf, PART_REDUCE))
        return -1;
    for (int step = 1; step < n; step++)
        if (send_to(call, buf, after_me(call, step), PART_REDUCE))
            return -1;
    if (comm_wait_all(call->c, call->err))
        return -1;
    submit_sum(call, buf, parts, op);
    return 0;
}

/* Slice i of everybody comes to member i, who adds. */
static int reduce_slices(struct call *call, struct kbuf buf, enum comm_op op)
{
    int n = call->group->size;
    struct kbuf mine = slice_of(buf, call->group->me, n), parts;
    if (take_parts(call, buf.dtype, mine.count * (size_t)n, &parts) ||
        gather_parts(call, parts, mine, PART_REDUCE))
        return -1;
    for (int step = 1; step < n; step++) {
        int to = after_me(call, step);
        if (send_to(call, slice_of(buf, to, n), to, PART_REDUCE))
            return -1;
    }
    if (comm_wait_all(call->c, call->err))
        return -1;
    submit_sum(call, mine, parts, op);
    return comm_sync(call->c, call->stream, call->err);
}

static int gather_slices(struct call *call, struct kbuf buf)
{
    int n = call->group->size;
    for (int step = 1; step < n; step++) {
        int from = after_me(call, n - step);
        if (recv_from(call, slice_of(buf, from, n), from, PART_GATHER))
            return -1;
    }
    struct kbuf mine = slice_of(buf, call->group->me, n);
    for (int step = 1; step < n; step++)
        if (send_to(call, mine, after_me(call, step), PART_GATHER))
            return -1;
    return comm_wait_all(call->c, call->err);
}

int comm_all_reduce(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf buf, enum comm_op op, struct err *err)
{
    struct call call = {c, group, stream, 0, err};
    if (group->size == 1 || !buf.count)
        return comm_check(c, err);
    if (begin(&call, "all-reduce"))
        return -1;
    if (buf_bytes(buf) <= WHOLE_BYTES / (unsigned)(group->size - 1))
        return all_reduce_whole(&call, buf, op);
    size_t chunk = SCRATCH_BYTES / kdtype_bytes(buf.dtype);
    for (size_t at = 0; at < buf.count; at += chunk) {
        struct kbuf now = kbuf_slice(buf, at, buf.count - at < chunk ? buf.count - at : chunk);
        if (reduce_slices(&call, now, op) || gather_slices(&call, now))
            return -1;
    }
    return 0;
}

/* ---- reduce-scatter ---- */

/* Elements [at, at + count) of every part. */
static int reduce_scatter_chunk(struct call *call, struct kbuf out, struct kbuf in, size_t at,
                                size_t count)
{
    int n = call->group->size;
    struct kbuf parts, own = kbuf_slice(part_of(in, call->group->me, n), at, count);
    if (take_parts(call, in.dtype, count * (size_t)n, &parts) ||
        gather_parts(call, parts, own, PART_REDUCE))
        return -1;
    for (int step = 1; step < n; step++) {
        int to = after_me(call, step);
        if (send_to(call, kbuf_slice(part_of(in, to, n), at, count), to, PART_REDUCE))
            return -1;
    }
    if (comm_wait_all(call->c, call->err))
        return -1;
    submit_sum(call, kbuf_slice(out, at, count), parts, COMM_SUM);
    return 0;
}

/* Both buffers of a call that has one part a member: `large` has group->size times `small`. */
static int check_parts(const struct call *call, const char *what, struct kbuf small,
                       struct kbuf large)
{
    if (small.dtype != large.dtype)
        return err_set(call->err, "comm: %s: in and out are %s and %s: must be the same", what,
                       kdtype_name(small.dtype), kdtype_name(large.dtype));
    if (small.count * (size_t)call->group->size != large.count)
        return err_set(call->err, "comm: %s: %zu elements in all, but %d parts of %zu", what,
                       large.count, call->group->size, small.count);
    return 0;
}

int comm_reduce_scatter(struct comm *c, const struct comm_group *group, struct kstream *stream,
                        struct kbuf out, struct kbuf in, struct err *err)
{
    struct call call = {c, group, stream, 0, err};
    if (check_parts(&call, "reduce-scatter", out, in))
        return -1;
    if (!in.count)
        return comm_check(c, err);
    if (begin(&call, "reduce-scatter"))
        return -1;
    size_t chunk = SCRATCH_BYTES / kdtype_bytes(in.dtype) / (size_t)group->size;
    chunk += !chunk;
    for (size_t at = 0; at < out.count; at += chunk)
        if (reduce_scatter_chunk(&call, out, in, at,
                                 out.count - at < chunk ? out.count - at : chunk))
            return -1;
    return 0;
}

/* ---- moving only ---- */

int comm_all_gather(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf out, struct kbuf in, struct err *err)
{
    struct call call = {c, group, stream, 0, err};
    if (check_parts(&call, "all-gather", in, out))
        return -1;
    if (!out.count)
        return comm_check(c, err);
    if (begin(&call, "all-gather"))
        return -1;
    int n = group->size;
    for (int step = 1; step < n; step++) {
        int from = after_me(&call, n - step);
        if (recv_from(&call, part_of(out, from, n), from, PART_GATHER))
            return -1;
    }
    for (int step = 1; step < n; step++)
        if (send_to(&call, in, after_me(&call, step), PART_GATHER))
            return -1;
    if (comm_wait_all(c, err))
        return -1;
    struct kbuf mine = part_of(out, group->me, n);
    if (mine.mem != in.mem || mine.offset != in.offset) /* gathered in place: it is there already */
        submit_copy(&call, mine, in);
    return 0;
}

int comm_all_to_all(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf out, struct kbuf in, struct err *err)
{
    struct call call = {c, group, stream, 0, err};
    int n = group->size;
    if (in.count != out.count || in.dtype != out.dtype || in.count % (size_t)n)
        return err_set(err,
                       "comm: all-to-all: %zu elements of %s in, %zu of %s out: must be the "
                       "same, and a multiple of %d",
                       in.count, kdtype_name(in.dtype), out.count, kdtype_name(out.dtype), n);
    if (!out.count)
        return comm_check(c, err);
    if (begin(&call, "all-to-all"))
        return -1;
    for (int step = 1; step < n; step++) {
        int from = after_me(&call, n - step);
        if (recv_from(&call, part_of(out, from, n), from, PART_GATHER))
            return -1;
    }
    for (int step = 1; step < n; step++) {
        int to = after_me(&call, step);
        if (send_to(&call, part_of(in, to, n), to, PART_GATHER))
            return -1;
    }
    if (comm_wait_all(c, err))
        return -1;
    submit_copy(&call, part_of(out, group->me, n), part_of(in, group->me, n));
    return 0;
}

int comm_broadcast(struct comm *c, const struct comm_group *group, struct kstream *stream,
                   struct kbuf buf, int root_index, struct err *err)
{
    if (comm_sync(c, stream, err))
        return -1;
    return comm_host_broadcast(c, group, kernels_address(c->k, buf), buf_bytes(buf), root_index,
                               err);
}
