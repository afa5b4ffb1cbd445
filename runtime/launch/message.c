/* message.c - encoding and decoding, field by field in one order; bounds are checked here, meaning
 * by whoever acts on a message. */
#include "launch/message.h"

#include <stdlib.h>
#include <string.h>

#include "launch/similar.h"

struct wire_frame *message_plain(enum message_type type)
{
    return wire_frame_new((uint16_t)type);
}

struct wire_frame *message_again(const struct wire_message *m)
{
    struct wire_frame *f = wire_frame_new(m->type);
    wire_put_raw(f, m->payload, m->bytes);
    return f;
}

struct wire_frame *message_challenge(const unsigned char nonce[AUTH_BYTES])
{
    struct wire_frame *f = wire_frame_new(MESSAGE_CHALLENGE);
    wire_put_raw(f, nonce, AUTH_BYTES);
    return f;
}

int message_get_challenge(const struct wire_message *m, unsigned char nonce[AUTH_BYTES])
{
    struct wire_reader r = wire_reader(m);
    wire_get_raw(&r, nonce, AUTH_BYTES);
    return wire_done(&r);
}

struct wire_frame *message_proof(const unsigned char nonce[AUTH_BYTES],
                                 const unsigned char mac[AUTH_BYTES])
{
    struct wire_frame *f = wire_frame_new(MESSAGE_PROOF);
    wire_put_raw(f, nonce, AUTH_BYTES);
    wire_put_raw(f, mac, AUTH_BYTES);
    return f;
}

int message_get_proof(const struct wire_message *m, unsigned char nonce[AUTH_BYTES],
                      unsigned char mac[AUTH_BYTES])
{
    struct wire_reader r = wire_reader(m);
    wire_get_raw(&r, nonce, AUTH_BYTES);
    wire_get_raw(&r, mac, AUTH_BYTES);
    return wire_done(&r);
}

struct wire_frame *message_welcome(const unsigned char mac[AUTH_BYTES])
{
    struct wire_frame *f = wire_frame_new(MESSAGE_WELCOME);
    wire_put_raw(f, mac, AUTH_BYTES);
    return f;
}

int message_get_welcome(const struct wire_message *m, unsigned char mac[AUTH_BYTES])
{
    struct wire_reader r = wire_reader(m);
    wire_get_raw(&r, mac, AUTH_BYTES);
    return wire_done(&r);
}

struct wire_frame *message_join(const struct message_join *v)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_JOIN);
    wire_put_u32(f, v->local_id);
    wire_put_u32(f, v->proc_id);
    return f;
}

int message_get_join(const struct wire_message *m, struct message_join *v)
{
    struct wire_reader r = wire_reader(m);
    v->local_id = wire_get_u32(&r);
    v->proc_id = wire_get_u32(&r);
    return wire_done(&r);
}

struct wire_frame *message_register(const struct message_register *v)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_REGISTER);
    wire_put_string(f, v->node);
    wire_put_string(f, v->topology);
    wire_put_string(f, v->address);
    wire_put_u16(f, v->port);
    wire_put_u32(f, v->node_id);
    wire_put_u32(f, v->nodes);
    wire_put_u32(f, v->tasks);
    wire_put_u32(f, v->local_tasks);
    wire_put_u32(f, v->cores);
    wire_put_u32(f, v->epoch);
    wire_put_u32(f, v->generation);
    return f;
}

int message_get_register(const struct wire_message *m, struct message_register *v)
{
    struct wire_reader r = wire_reader(m);
    wire_get_string(&r, v->node, sizeof v->node);
    wire_get_string(&r, v->topology, sizeof v->topology);
    wire_get_string(&r, v->address, sizeof v->address);
    v->port = wire_get_u16(&r);
    v->node_id = wire_get_u32(&r);
    v->nodes = wire_get_u32(&r);
    v->tasks = wire_get_u32(&r);
    v->local_tasks = wire_get_u32(&r);
    v->cores = wire_get_u32(&r);
    v->epoch = wire_get_u32(&r);
    v->generation = wire_get_u32(&r);
    return wire_done(&r);
}

struct wire_frame *message_refused(const char *text)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_REFUSED);
    wire_put_string(f, text);
    return f;
}

int message_get_refused(const struct wire_message *m, char text[MESSAGE_TEXT_BYTES])
{
    struct wire_reader r = wire_reader(m);
    wire_get_string(&r, text, MESSAGE_TEXT_BYTES);
    return wire_done(&r);
}

struct wire_frame *message_assign(const struct message_assign *v)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_ASSIGN);
    wire_put_u32(f, v->epoch);
    wire_put_u32(f, v->generation);
    wire_put_u32(f, v->world);
    wire_put_u32(f, v->local_world);
    wire_put_u32(f, (uint32_t)v->node_rank);
    wire_put_u32(f, v->spares);
    wire_put_u32(f, v->replicas);
    wire_put_u32(f, v->planned_replicas);
    wire_put_u32(f, v->heartbeat_ms);
    wire_put_u32(f, v->patience_ms);
    wire_put_u32(f, v->since);
    wire_put_u32(f, v->restarts);
    wire_put_u32(f, v->requeues);
    wire_put_string(f, v->address);
    wire_put_string(f, v->master_address);
    wire_put_u16(f, v->master_port);
    wire_put_string(f, v->run_id);
    wire_put_string(f, v->run_dir);
    wire_put_string(f, v->restore);
    wire_put_bytes(f, v->plan, v->plan_bytes);
    return f;
}

/* Take a text of at most max bytes as a malloc'ed copy, NULL for an empty one. */
static char *get_text(struct wire_reader *r, size_t max, size_t *bytes)
{
    const unsigned char *at = wire_get_bytes(r, max, bytes);
    if (!*bytes)
        return NULL;
    char *text = malloc(*bytes + 1);
    if (!text) {
        r->bad = 1;
        return NULL;
    }
    memcpy(text, at, *bytes);
    text[*bytes] = 0;
    return text;
}

int message_get_assign(const struct wire_message *m, struct message_assign *v)
{
    struct wire_reader r = wire_reader(m);
    v->epoch = wire_get_u32(&r);
    v->generation = wire_get_u32(&r);
    v->world = wire_get_u32(&r);
    v->local_world = wire_get_u32(&r);
    v->node_rank = (int32_t)wire_get_u32(&r);
    v->spares = wire_get_u32(&r);
    v->replicas = wire_get_u32(&r);
    v->planned_replicas = wire_get_u32(&r);
    v->heartbeat_ms = wire_get_u32(&r);
    v->patience_ms = wire_get_u32(&r);
    v->since = wire_get_u32(&r);
    v->restarts = wire_get_u32(&r);
    v->requeues = wire_get_u32(&r);
    wire_get_string(&r, v->address, sizeof v->address);
    wire_get_string(&r, v->master_address, sizeof v->master_address);
    v->master_port = wire_get_u16(&r);
    wire_get_string(&r, v->run_id, sizeof v->run_id);
    wire_get_string(&r, v->run_dir, sizeof v->run_dir);
    wire_get_string(&r, v->restore, sizeof v->restore);
    v->plan = get_text(&r, MESSAGE_PLAN_BYTES, &v->plan_bytes);
    if (!wire_done(&r) && v->world && v->world <= MESSAGE_MAX_WORLD && v->local_world &&
        v->local_world <= MESSAGE_MAX_TASKS && v->node_rank >= -1 && v->heartbeat_ms)
        return 0;
    message_assign_free(v);
    return -1;
}

void message_assign_free(struct message_assign *v)
{
    free(v->plan);
    v->plan = NULL;
}

struct wire_frame *message_identity(const struct launch_identity *v)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_IDENTITY);
    wire_put_u32(f, (uint32_t)v->rank);
    wire_put_u32(f, (uint32_t)v->world);
    wire_put_u32(f, (uint32_t)v->local_rank);
    wire_put_u32(f, (uint32_t)v->local_world);
    wire_put_u32(f, (uint32_t)v->node_rank);
    wire_put_u32(f, (uint32_t)v->spares);
    wire_put_u32(f, (uint32_t)v->replicas);
    wire_put_u32(f, (uint32_t)v->planned_replicas);
    wire_put_u32(f, v->epoch);
    wire_put_u32(f, v->since);
    wire_put_u32(f, v->generation);
    wire_put_string(f, v->run_id);
    wire_put_string(f, v->node);
    wire_put_string(f, v->address);
    wire_put_string(f, v->restore);
    wire_put_string(f, v->run_dir);
    wire_put_bytes(f, v->plan_text, v->plan_bytes);
    return f;
}

int message_get_identity(const struct wire_message *m, struct launch_identity *v)
{
    struct wire_reader r = wire_reader(m);
    v->rank = (int)wire_get_u32(&r);
    v->world = (int)wire_get_u32(&r);
    v->local_rank = (int)wire_get_u32(&r);
    v->local_world = (int)wire_get_u32(&r);
    v->node_rank = (int)wire_get_u32(&r);
    v->spares = (int)wire_get_u32(&r);
    v->replicas = (int)wire_get_u32(&r);
    v->planned_replicas = (int)wire_get_u32(&r);
    v->epoch = wire_get_u32(&r);
    v->since = wire_get_u32(&r);
    v->generation = wire_get_u32(&r);
    wire_get_string(&r, v->run_id, sizeof v->run_id);
    wire_get_string(&r, v->node, sizeof v->node);
    wire_get_string(&r, v->address, sizeof v->address);
    wire_get_string(&r, v->restore, sizeof v->restore);
    wire_get_string(&r, v->run_dir, sizeof v->run_dir);
    v->plan_text = get_text(&r, MESSAGE_PLAN_BYTES, &v->plan_bytes);
    if (!wire_done(&r) && v->world > 0 && v->world <= MESSAGE_MAX_WORLD && v->rank >= 0 &&
        v->rank < v->world && v->local_rank >= 0 && v->local_rank < v->local_world &&
        v->replicas >= 0 && v->replicas <= v->planned_replicas)
        return 0;
    free(v->plan_text);
    v->plan_text = NULL;
    return -1;
}

struct wire_frame *message_rank(enum message_type type, struct message_rank who)
{
    struct wire_frame *f = wire_frame_new((uint16_t)type);
    wire_put_u32(f, who.rank);
    wire_put_u32(f, who.generation);
    return f;
}

static void get_rank(struct wire_reader *r, struct message_rank *who)
{
    who->rank = wire_get_u32(r);
    who->generation = wire_get_u32(r);
}

int message_get_rank(const struct wire_message *m, struct message_rank *who)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, who);
    return r.bad ? -1 : 0;
}

struct wire_frame *message_progress(struct message_rank who, int64_t step, uint32_t busy_us)
{
    struct wire_frame *f = message_rank(MESSAGE_PROGRESS, who);
    wire_put_u64(f, (uint64_t)step);
    wire_put_u32(f, busy_us);
    return f;
}

int message_get_progress(const struct wire_message *m, struct message_rank *who, int64_t *step,
                         uint32_t *busy_us)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, who);
    *step = (int64_t)wire_get_u64(&r);
    *busy_us = wire_get_u32(&r);
    return wire_done(&r);
}

struct wire_frame *message_seen(const struct message_seen *v)
{
    struct wire_frame *f = message_rank(MESSAGE_SEEN, v->who);
    wire_put_u8(f, v->state);
    wire_put_u64(f, v->cpu_ms);
    return f;
}

int message_get_seen(const struct wire_message *m, struct message_seen *v)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, &v->who);
    v->state = wire_get_u8(&r);
    v->cpu_ms = wire_get_u64(&r);
    return wire_done(&r);
}

struct wire_frame *message_exchange(struct message_rank who, uint32_t turn, const void *blob,
                                    size_t bytes)
{
    struct wire_frame *f = message_rank(MESSAGE_EXCHANGE, who);
    wire_put_u32(f, turn);
    wire_put_bytes(f, blob, bytes);
    return f;
}

int message_get_exchange(const struct wire_message *m, struct message_rank *who, uint32_t *turn,
                         const unsigned char **blob, size_t *bytes)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, who);
    *turn = wire_get_u32(&r);
    *blob = wire_get_bytes(&r, MESSAGE_BLOB_BYTES, bytes);
    return wire_done(&r);
}

struct wire_frame *message_exchanged(uint32_t turn, uint32_t world, void *const *blobs,
                                     const size_t *bytes)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_EXCHANGED);
    wire_put_u32(f, turn);
    wire_put_u32(f, world);
    for (uint32_t i = 0; i < world; i++)
        similar_put(f, blobs[i], bytes[i], i ? blobs[i - 1] : NULL, i ? bytes[i - 1] : 0);
    return f;
}

int message_get_exchanged(const struct wire_message *m, uint32_t *turn, uint32_t world,
                          void **blobs, size_t *bytes)
{
    struct wire_reader r = wire_reader(m);
    *turn = wire_get_u32(&r);
    if (wire_get_u32(&r) != world)
        return -1;
    size_t left = WIRE_MAX_BYTES;
    memset(blobs, 0, world * sizeof *blobs);
    for (uint32_t i = 0; i < world && !r.bad; i++) {
        size_t most = left < MESSAGE_BLOB_BYTES ? left : MESSAGE_BLOB_BYTES;
        blobs[i] = similar_get(&r, most, i ? blobs[i - 1] : NULL, i ? bytes[i - 1] : 0, &bytes[i]);
        left -= bytes[i];
    }
    if (!wire_done(&r))
        return 0;
    for (uint32_t i = 0; i < world; i++) {
        free(blobs[i]);
        blobs[i] = NULL;
    }
    return -1;
}

struct wire_frame *message_publish(struct message_rank who, const void *address, size_t bytes)
{
    struct wire_frame *f = message_rank(MESSAGE_PUBLISH, who);
    wire_put_bytes(f, address, bytes);
    return f;
}

int message_get_publish(const struct wire_message *m, struct message_rank *who,
                        const unsigned char **address, size_t *bytes)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, who);
    *address = wire_get_bytes(&r, MESSAGE_BLOB_BYTES, bytes);
    return wire_done(&r);
}

struct wire_frame *message_ask(const struct message_ask *v)
{
    struct wire_frame *f = message_rank(MESSAGE_ASK, v->who);
    wire_put_u32(f, v->turn);
    wire_put_u32(f, v->n);
    for (uint32_t i = 0; i < v->n; i++)
        wire_put_u32(f, v->wanted[i]);
    return f;
}

int message_get_ask(const struct wire_message *m, struct message_ask *v)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, &v->who);
    v->turn = wire_get_u32(&r);
    v->n = wire_get_u32(&r);
    /* As many as have come: a number alone takes no memory. */
    v->wanted = !r.bad && v->n == (size_t)(r.end - r.at) / sizeof *v->wanted
                    ? calloc((size_t)v->n + 1, sizeof *v->wanted)
                    : NULL;
    if (!v->wanted)
        return -1;
    for (uint32_t i = 0; i < v->n; i++)
        v->wanted[i] = wire_get_u32(&r);
    if (!wire_done(&r))
        return 0;
    free(v->wanted);
    v->wanted = NULL;
    return -1;
}

struct wire_frame *message_answer(uint32_t rank, uint32_t turn, uint32_t n, const void *first,
                                  size_t first_bytes)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_ANSWER);
    wire_put_u32(f, rank);
    wire_put_u32(f, turn);
    wire_put_u32(f, n);
    wire_put_bytes(f, first, first_bytes);
    return f;
}

int message_get_answer_to(const struct wire_message *m, uint32_t *rank, uint32_t *turn)
{
    struct wire_reader r = wire_reader(m);
    *rank = wire_get_u32(&r);
    *turn = wire_get_u32(&r);
    return r.bad ? -1 : 0;
}

int message_get_answer(const struct wire_message *m, uint32_t n, void **addresses, size_t *bytes)
{
    struct wire_reader r = wire_reader(m);
    size_t first_bytes, left = WIRE_MAX_BYTES;
    wire_get_u32(&r);
    wire_get_u32(&r);
    if (wire_get_u32(&r) != n)
        return -1;
    const unsigned char *first = wire_get_bytes(&r, MESSAGE_BLOB_BYTES, &first_bytes);
    memset(addresses, 0, n * sizeof *addresses);
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        size_t most = left < MESSAGE_BLOB_BYTES ? left : MESSAGE_BLOB_BYTES;
        addresses[i] = similar_get(&r, most, first, first_bytes, &bytes[i]);
        left -= bytes[i];
    }
    if (!wire_done(&r))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        free(addresses[i]);
        addresses[i] = NULL;
    }
    return -1;
}

struct wire_frame *message_exited(const struct message_exited *v)
{
    struct wire_frame *f = message_rank(MESSAGE_EXITED, v->who);
    wire_put_u8(f, v->signal);
    wire_put_u8(f, v->code);
    wire_put_u8(f, v->flags);
    return f;
}

int message_get_exited(const struct wire_message *m, struct message_exited *v)
{
    struct wire_reader r = wire_reader(m);
    get_rank(&r, &v->who);
    v->signal = wire_get_u8(&r);
    v->code = wire_get_u8(&r);
    v->flags = wire_get_u8(&r);
    return wire_done(&r);
}

struct wire_frame *message_port(uint16_t port)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_PORT);
    wire_put_u16(f, port);
    return f;
}

int message_get_port(const struct wire_message *m, uint16_t *port)
{
    struct wire_reader r = wire_reader(m);
    *port = wire_get_u16(&r);
    return wire_done(&r);
}

struct wire_frame *message_end(const struct message_end *v)
{
    struct wire_frame *f = wire_frame_new(MESSAGE_END);
    wire_put_u8(f, v->code);
    wire_put_string(f, v->text);
    return f;
}

int message_get_end(const struct wire_message *m, struct message_end *v)
{
    struct wire_reader r = wire_reader(m);
    v->code = wire_get_u8(&r);
    wire_get_string(&r, v->text, sizeof v->text);
    return wire_done(&r);
}
