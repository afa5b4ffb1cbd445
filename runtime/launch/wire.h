/* wire.h - messages over a stream socket: framed, versioned, bounded, every field checked.
 *
 * A frame is 8 bytes (payload length u32, type u16, version u16; little-endian), then the payload.
 * A reader refuses a length above the limit of its connection before it keeps a byte of it, so a
 * stranger costs no more memory than the limit of strangers. Sockets never block here. */
#ifndef GTRAIN_LAUNCH_WIRE_H
#define GTRAIN_LAUNCH_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER_BYTES = 8,
    WIRE_STRANGER_BYTES = 128,      /* longest payload before the secret is proven */
    WIRE_MAX_BYTES = 256 * 1048576, /* longest payload ever: all ranks' blobs of an exchange */
};

/* An encoded message. It may wait in several queues at once, so it is counted. */
struct wire_frame;

/* Start a frame and fill it in order. Putting never fails; a frame that ran out of memory or over
 * WIRE_MAX_BYTES is refused by wire_queue. */
struct wire_frame *wire_frame_new(uint16_t type);
void wire_put_u8(struct wire_frame *f, uint8_t value);
void wire_put_u16(struct wire_frame *f, uint16_t value);
void wire_put_u32(struct wire_frame *f, uint32_t value);
void wire_put_u64(struct wire_frame *f, uint64_t value);
void wire_put_raw(struct wire_frame *f, const void *data, size_t bytes); /* no length before it */
void wire_put_bytes(struct wire_frame *f, const void *data, size_t bytes);
void wire_put_string(struct wire_frame *f, const char *text);
/* What stands behind the header, until more is put; NULL: the frame is NULL or has failed. */
const unsigned char *wire_frame_payload(const struct wire_frame *f, size_t *bytes);
struct wire_frame *wire_frame_keep(struct wire_frame *f); /* one more holder */
void wire_frame_drop(struct wire_frame *f);               /* NULL is fine */

/* A received message. payload belongs to the connection, until the next wire_next or wire_read. */
struct wire_message {
    uint16_t type;
    const unsigned char *payload;
    size_t bytes;
};

/* Reads a payload in order. A read past the end, or a field over its limit, sets `bad` and gives
 * zeros from then on: check once, with wire_done. */
struct wire_reader {
    const unsigned char *at, *end;
    int bad;
};

struct wire_reader wire_reader(const struct wire_message *m);
uint8_t wire_get_u8(struct wire_reader *r);
uint16_t wire_get_u16(struct wire_reader *r);
uint32_t wire_get_u32(struct wire_reader *r);
uint64_t wire_get_u64(struct wire_reader *r);
void wire_get_raw(struct wire_reader *r, void *data, size_t bytes);
/* A view of at most `max` bytes; *bytes its length. */
const unsigned char *wire_get_bytes(struct wire_reader *r, size_t max, size_t *bytes);
/* A copy of a string without NUL inside, shorter than room. */
void wire_get_string(struct wire_reader *r, char *text, size_t room);
/* 0 if all was well and nothing is left over, else -1. */
int wire_done(const struct wire_reader *r);

/* One end of a connection. Zeroed plus fd and limit is a good start (wire_open). */
struct wire {
    int fd;
    size_t limit; /* longest payload taken */
    unsigned char *in;
    size_t in_bytes, in_room, in_used;
    struct wire_frame **out; /* queue; out[0] has out_sent bytes gone already */
    size_t n_out, room_out, out_sent;
    int failed; /* a frame could not be kept: the stream has a hole and is given up */
};

void wire_open(struct wire *w, int fd, size_t limit); /* takes fd, makes it non-blocking */
void wire_close(struct wire *w);

enum wire_status {
    WIRE_OK,     /* took what was there */
    WIRE_CLOSED, /* the other end closed in good order */
    WIRE_BROKEN, /* a reset or another error: errno says which */
};

/* Read once what has arrived (a bounded piece); then take the messages with wire_next. */
enum wire_status wire_read(struct wire *w);
/* 1: *m is the next message; 0: none complete; -1: this is not our protocol, err says how. */
int wire_next(struct wire *w, struct wire_message *m, struct err *err);

/* Put a frame in the queue (takes the caller's hold on it). Sent by wire_flush. */
void wire_queue(struct wire *w, struct wire_frame *f);
/* 0: all gone; 1: some wait for the socket; -1: broken (errno). */
int wire_flush(struct wire *w);
int wire_pending(const struct wire *w);

#endif
