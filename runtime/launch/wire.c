/* wire.c - frames, the queue of a connection, and reading fields with every length checked. */
#include "launch/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_BYTES = 65536,   /* of one wire_read: keeps turns between connections short */
    FIRST_IN_BYTES = 256, /* a stranger's buffer; grows as bytes arrive, not as they are promised */
    FIRST_FRAME_BYTES = 128,
};

struct wire_frame {
    int holders;
    int bad;
    size_t bytes, room; /* header included */
    unsigned char *data;
};

static void store_u16(unsigned char *at, uint16_t v)
{
    at[0] = (unsigned char)v;
    at[1] = (unsigned char)(v >> 8);
}

static void store_u32(unsigned char *at, uint32_t v)
{
    store_u16(at, (uint16_t)v);
    store_u16(at + 2, (uint16_t)(v >> 16));
}

static uint16_t load_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t load_u32(const unsigned char *at)
{
    return load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

struct wire_frame *wire_frame_new(uint16_t type)
{
    struct wire_frame *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->holders = 1;
    unsigned char header[WIRE_HEADER_BYTES] = {0};
    store_u16(header + 4, type);
    store_u16(header + 6, WIRE_VERSION);
    wire_put_raw(f, header, sizeof header);
    return f;
}

void wire_put_raw(struct wire_frame *f, const void *data, size_t bytes)
{
    if (!f || f->bad || !bytes)
        return;
    if (bytes > (size_t)WIRE_MAX_BYTES + WIRE_HEADER_BYTES - f->bytes) {
        f->bad = 1;
        return;
    }
    if (f->bytes + bytes > f->room) {
        size_t room = f->room ? f->room : FIRST_FRAME_BYTES;
        while (room < f->bytes + bytes)
            room *= 2;
        unsigned char *more = realloc(f->data, room);
        if (!more) {
            f->bad = 1;
            return;
        }
        f->data = more;
        f->room = room;
    }
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += bytes;
}

void wire_put_u8(struct wire_frame *f, uint8_t value)
{
    wire_put_raw(f, &value, 1);
}

void wire_put_u16(struct wire_frame *f, uint16_t value)
{
    unsigned char b[2];
    store_u16(b, value);
    wire_put_raw(f, b, sizeof b);
}

void wire_put_u32(struct wire_frame *f, uint32_t value)
{
    unsigned char b[4];
    store_u32(b, value);
    wire_put_raw(f, b, sizeof b);
}

void wire_put_u64(struct wire_frame *f, uint64_t value)
{
    wire_put_u32(f, (uint32_t)value);
    wire_put_u32(f, (uint32_t)(value >> 32));
}

void wire_put_bytes(struct wire_frame *f, const void *data, size_t bytes)
{
    if (f && bytes > WIRE_MAX_BYTES)
        f->bad = 1;
    wire_put_u32(f, (uint32_t)bytes);
    wire_put_raw(f, data, bytes);
}

void wire_put_string(struct wire_frame *f, const char *text)
{
    wire_put_bytes(f, text, strlen(text));
}

const unsigned char *wire_frame_payload(const struct wire_frame *f, size_t *bytes)
{
    *bytes = 0;
    if (!f || f->bad || f->bytes < WIRE_HEADER_BYTES)
        return NULL;
    *bytes = f->bytes - WIRE_HEADER_BYTES;
    return f->data + WIRE_HEADER_BYTES;
}

struct wire_frame *wire_frame_keep(struct wire_frame *f)
{
    if (f)
        f->holders++;
    return f;
}

void wire_frame_drop(struct wire_frame *f)
{
    if (!f || --f->holders)
        return;
    free(f->data);
    free(f);
}

struct wire_reader wire_reader(const struct wire_message *m)
{
    return (struct wire_reader){.at = m->payload, .end = m->payload + m->bytes};
}

/* The next n bytes, or NULL (and bad) if there are fewer. */
static const unsigned char *take(struct wire_reader *r, size_t n)
{
    if (r->bad || n > (size_t)(r->end - r->at)) {
        r->bad = 1;
        return NULL;
    }
    const unsigned char *at = r->at;
    r->at += n;
    return at;
}

uint8_t wire_get_u8(struct wire_reader *r)
{
    const unsigned char *at = take(r, 1);
    return at ? *at : 0;
}

uint16_t wire_get_u16(struct wire_reader *r)
{
    const unsigned char *at = take(r, 2);
    return at ? load_u16(at) : 0;
}

uint32_t wire_get_u32(struct wire_reader *r)
{
    const unsigned char *at = take(r, 4);
    return at ? load_u32(at) : 0;
}

uint64_t wire_get_u64(struct wire_reader *r)
{
    uint64_t low = wire_get_u32(r);
    return low | (uint64_t)wire_get_u32(r) << 32;
}

void wire_get_raw(struct wire_reader *r, void *data, size_t bytes)
{
    const unsigned char *at = take(r, bytes);
    if (at)
        memcpy(data, at, bytes);
    else
        memset(data, 0, bytes);
}

const unsigned char *wire_get_bytes(struct wire_reader *r, size_t max, size_t *bytes)
{
    *bytes = wire_get_u32(r);
    if (*bytes > max)
        r->bad = 1;
    const unsigned char *at = take(r, *bytes);
    if (!at)
        *bytes = 0;
    return at;
}

void wire_get_string(struct wire_reader *r, char *text, size_t room)
{
    size_t bytes;
    const unsigned char *at = wire_get_bytes(r, room - 1, &bytes);
    if (bytes && memchr(at, 0, bytes)) {
        r->bad = 1;
        bytes = 0;
    }
    if (bytes)
        memcpy(text, at, bytes);
    text[bytes] = 0;
}

int wire_done(const struct wire_reader *r)
{
    return r->bad || r->at != r->end ? -1 : 0;
}

void wire_open(struct wire *w, int fd, size_t limit)
{
    *w = (struct wire){.fd = fd, .limit = limit};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void wire_close(struct wire *w)
{
    if (w->fd >= 0)
        close(w->fd);
    for (size_t i = 0; i < w->n_out; i++)
        wire_frame_drop(w->out[i]);
    free(w->out);
    free(w->in);
    *w = (struct wire){.fd = -1};
}

/* Room for at least one more byte, and no more than a message of the limit can use. */
static int make_room(struct wire *w)
{
    if (w->in_used) {
        memmove(w->in, w->in + w->in_used, w->in_bytes - w->in_used);
        w->in_bytes -= w->in_used;
        w->in_used = 0;
    }
    size_t most = w->limit + WIRE_HEADER_BYTES;
    if (w->in_bytes < w->in_room || w->in_room >= most)
        return 0;
    size_t room = w->in_room ? w->in_room * 2 : FIRST_IN_BYTES;
    if (room > most)
        room = most;
    unsigned char *more = realloc(w->in, room);
    if (!more)
        return -1;
    w->in = more;
    w->in_room = room;
    return 0;
}

enum wire_status wire_read(struct wire *w)
{
    if (make_room(w))
        return WIRE_BROKEN;
    size_t room = w->in_room - w->in_bytes;
    if (!room)
        return WIRE_OK; /* full of messages not taken yet */
    if (room > READ_BYTES)
        room = READ_BYTES;
    ssize_t n = recv(w->fd, w->in + w->in_bytes, room, 0);
    if (n == 0)
        return WIRE_CLOSED;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? WIRE_OK : WIRE_BROKEN;
    w->in_bytes += (size_t)n;
    return WIRE_OK;
}

int wire_next(struct wire *w, struct wire_message *m, struct err *err)
{
    size_t have = w->in_bytes - w->in_used;
    if (have < WIRE_HEADER_BYTES)
        return 0;
    const unsigned char *header = w->in + w->in_used;
    uint32_t bytes = load_u32(header);
    uint16_t version = load_u16(header + 6);
    if (version != WIRE_VERSION)
        return err_set(err, "a message of protocol version %u, not %d", version, WIRE_VERSION);
    if (bytes > w->limit)
        return err_set(err, "a message of %u bytes, longer than %zu", bytes, w->limit);
    if (have - WIRE_HEADER_BYTES < bytes)
        return 0;
    *m = (struct wire_message){
        .type = load_u16(header + 4), .payload = header + WIRE_HEADER_BYTES, .bytes = bytes};
    w->in_used += WIRE_HEADER_BYTES + bytes;
    return 1;
}

void wire_queue(struct wire *w, struct wire_frame *f)
{
    if (f && !f->bad && w->n_out == w->room_out) {
        size_t room = w->room_out ? w->room_out * 2 : 4;
        struct wire_frame **more = realloc(w->out, room * sizeof *more);
        if (more) {
            w->out = more;
            w->room_out = room;
        }
    }
    if (!f || f->bad || w->n_out == w->room_out) {
        wire_frame_drop(f);
        w->failed = 1;
        return;
    }
    store_u32(f->data, (uint32_t)(f->bytes - WIRE_HEADER_BYTES));
    w->out[w->n_out++] = f;
}

int wire_flush(struct wire *w)
{
    if (w->failed) {
        errno = ENOBUFS;
        return -1;
    }
    while (w->n_out) {
        struct wire_frame *f = w->out[0];
        ssize_t n = send(w->fd, f->data + w->out_sent, f->bytes - w->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 1 : -1;
        w->out_sent += (size_t)n;
        if (w->out_sent < f->bytes)
            continue;
        wire_frame_drop(f);
        w->out_sent = 0;
        w->n_out--;
        memmove(w->out, w->out + 1, w->n_out * sizeof *w->out);
    }
    return 0;
}

int wire_pending(const struct wire *w)
{
    return w->n_out > 0;
}
