/* reshard_move.c - the meetings in which pieces move. See reshard.h.
 *
 * Who asks sends the list of its pieces, once; who serves sends their bytes, those of a window one
 * after the other, as one stream cut into messages. A rank that cannot read what it should serve
 * remembers why and sends zeros: what is said in a meeting never depends on how the reading went,
 * so nobody is left waiting; nothing of it is used, as all hear of the failure before the first
 * step. */
#include "train/reshard.h"

#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATE_PART = 64, /* a message has so much of the asking rank's state, */
    MESSAGE_LEAST = 64 << 10,
    MESSAGE_MOST = 4 << 20, /* within these: memory on both sides */
    PIECES_MAX = 1 << 24,   /* asked of one rank */
    WINDOWS_MAX = 1 << 26,  /* of a rank: of 16 MiB, a million gigabytes */
    RESHARD_TAG = 3 << 20,  /* beside the tags of activations (execute.c) */
};

/* One piece, as it is asked for. */
struct request {
    struct ckpt_piece piece;
    int64_t bytes;
};

/* What comes before a list of them. */
struct opening {
    int64_t n, message_bytes;
};

/* What a peer wants from here. */
struct asked {
    struct request *list; /* by window */
    int64_t n, next;      /* next: those before it have been sent */
    int64_t message_bytes;
};

struct move {
    struct reshard *r;
    struct ckpt *ckpt;
    struct files files;
    struct asked *asked;             /* by peer */
    int window, windows;             /* being moved; of this rank and of those that ask it */
    int first, end;                  /* this rank's pieces of the window */
    unsigned char *message;          /* room for the longest, */
    int64_t message_bytes, my_bytes; /* of the stream being moved; of what this rank asks for */
    int peer;
    int64_t left, filled; /* of the stream to the peer: not yet sent, in the message */
    int64_t promised;     /* of the piece being read: not yet in the stream */
    bool failed;          /* reading did, first for this reason */
    struct err why;
};

/* n more bytes of the piece being read. */
static int count(struct move *m, size_t n, struct err *err)
{
    m->promised -= (int64_t)n;
    return m->promised < 0 ? err_set(err, "a piece is larger than it was asked for") : 0;
}

static int put_here(void *arg, const void *p, size_t n, struct err *err)
{
    struct move *m = arg;
    if (count(m, n, err))
        return -1;
    return ckpt_fill_put(m->ckpt, p, n, err);
}

static int send_message(struct move *m, struct err *err)
{
    size_t n = (size_t)m->filled;
    m->left -= m->filled;
    m->filled = 0;
    return comm_host_send(m->r->comm, m->message, n, m->peer, RESHARD_TAG, err);
}

/* p NULL: zeros */
static int put_there(void *arg, const void *p, size_t n, struct err *err)
{
    struct move *m = arg;
    if (count(m, n, err)) {
        m->promised += (int64_t)n; /* none of them is in the stream */
        return -1;
    }
    for (size_t done = 0; done < n;) {
        size_t room = (size_t)(m->message_bytes - m->filled);
        size_t part = n - done < room ? n - done : room;
        if (p)
            memcpy(m->message + m->filled, (const char *)p + done, part);
        else
            memset(m->message + m->filled, 0, part);
        m->filled += (int64_t)part;
        done += part;
        if ((m->filled == m->message_bytes || m->filled == m->left) && send_message(m, err))
            return -1;
    }
    return 0;
}

static int open_file(void *r, int number, struct ckpt_file **out, struct err *err)
{
    return reshard_open_file(r, number, out, err);
}

/* A piece to where `put` brings it. Reading may fail (then remembered); -1: putting did. */
static int read_piece(struct move *m, const struct ckpt_piece *piece, int64_t bytes,
                      int (*put)(void *arg, const void *p, size_t n, struct err *err),
                      struct err *err)
{
    struct err why = {{0}};
    struct ckpt_file *file = m->failed ? NULL : files_get(&m->files, piece->source, &why);
    m->promised = bytes;
    if (file && !ckpt_file_read_piece(file, piece, put, m, &why) && !m->promised)
        return 0;
    if (comm_failed(m->r->comm))
        return err_set(err, "%s", why.text);
    if (file && !*why.text)
        err_set(&why, "a piece is smaller than it was asked for");
    if (!m->failed) {
        m->why = why;
        m->r->damaged_file = piece->source;
    }
    m->failed = m->r->damaged = true;
    return put == put_here || m->promised <= 0 ? 0 : put_there(m, NULL, (size_t)m->promised, err);
}

static bool asks(const struct reshard *r, int rank)
{
    return r->whole[rank] < 0;
}

/* This rank has the piece from that one. */
static bool is_from(const struct reshard *r, const struct ckpt_piece *piece, int rank)
{
    return reshard_reader(r, piece->source, r->mesh->rank) == rank;
}

/* ---- who wants what of whom ---- */

static int send_requests(struct move *m, struct err *err)
{
    struct reshard *r = m->r;
    struct opening o = {.message_bytes = m->my_bytes};
    struct request *list = calloc((size_t)r->n_pieces + 1, sizeof *list);
    if (!list)
        return err_set(err, "no memory to ask for %d pieces", r->n_pieces);
    for (int i = 0; i < r->n_pieces; i++)
        if (is_from(r, &r->pieces[i], m->peer))
            list[o.n++] = (struct request){r->pieces[i], r->piece_bytes[i]};
    int rv = comm_host_send(r->comm, &o, sizeof o, m->peer, RESHARD_TAG, err);
    if (!rv && o.n)
        rv = comm_host_send(r->comm, list, (size_t)o.n * sizeof *list, m->peer, RESHARD_TAG, err);
    free(list);
    return rv;
}

static int check_request(const struct move *m, const struct request *q, int window, struct err *err)
{
    int file = q->piece.source;
    if (file >= 0 && file < m->r->decision->world && m->r->server[file] == m->r->mesh->rank &&
        q->piece.window >= window && q->piece.window < WINDOWS_MAX && q->bytes >= 0 &&
        q->bytes <= m->r->decision->places[file].bytes)
        return 0;
    return err_set(err, "rank %d asks for a piece of file %d, in window %d after %d", m->peer, file,
                   q->piece.window, window);
}

static int receive_requests(struct move *m, struct err *err)
{
    struct asked *a = &m->asked[m->peer];
    struct opening o;
    if (comm_host_recv(m->r->comm, &o, sizeof o, m->peer, RESHARD_TAG, err))
        return -1;
    if (o.n < 0 || o.n > PIECES_MAX || o.message_bytes < 1 || o.message_bytes > MESSAGE_MOST)
        return err_set(err, "rank %d asks for %lld pieces in messages of %lld bytes", m->peer,
                       (long long)o.n, (long long)o.message_bytes);
    a->n = o.n;
    a->message_bytes = o.message_bytes;
    if (!a->n)
        return 0;
    if (m->message_bytes < a->message_bytes)
        m->message_bytes = a->message_bytes;
    a->list = calloc((size_t)a->n, sizeof *a->list);
    if (!a->list)
        return err_set(err, "no memory for %lld pieces", (long long)a->n);
    if (comm_host_recv(m->r->comm, a->list, (size_t)a->n * sizeof *a->list, m->peer, RESHARD_TAG,
                       err))
        return -1;
    for (int64_t i = 0; i < a->n; i++)
        if (check_request(m, &a->list[i], i ? a->list[i - 1].piece.window : 0, err))
            return -1;
    if (m->windows <= a->list[a->n - 1].piece.window)
        m->windows = a->list[a->n - 1].piece.window + 1;
    return 0;
}

/* ---- a window ---- */

static int take_local(struct move *m, struct err *err)
{
    struct reshard *r = m->r;
    for (int i = m->first; i < m->end; i++) {
        if (!is_from(r, &r->pieces[i], r->mesh->rank))
            continue;
        if (ckpt_fill_piece(m->ckpt, &r->pieces[i], err) ||
            read_piece(m, &r->pieces[i], r->piece_bytes[i], put_here, err))
            return -1;
    }
    return 0;
}

/* This rank's pieces of the window, those that are the peer's. */
static int ask(struct move *m, struct err *err)
{
    struct reshard *r = m->r;
    int64_t left = 0, have = 0, at = 0;
    for (int i = m->first; i < m->end; i++)
        left += is_from(r, &r->pieces[i], m->peer) ? r->piece_bytes[i] : 0;
    for (int i = m->first; left + have - at && i < m->end; i++) {
        if (!is_from(r, &r->pieces[i], m->peer))
            continue;
        if (ckpt_fill_piece(m->ckpt, &r->pieces[i], err))
            return -1;
        for (int64_t wanted = r->piece_bytes[i]; wanted > 0;) {
            if (at == have) {
                have = left < m->my_bytes ? left : m->my_bytes;
                at = 0;
                left -= have;
                if (comm_host_recv(r->comm, m->message, (size_t)have, m->peer, RESHARD_TAG, err))
                    return -1;
            }
            int64_t part = have - at < wanted ? have - at : wanted;
            if (ckpt_fill_put(m->ckpt, m->message + at, (size_t)part, err))
                return -1;
            at += part;
            wanted -= part;
        }
    }
    return 0;
}

/* The peer's, that are here. */
static int serve(struct move *m, struct err *err)
{
    struct asked *a = &m->asked[m->peer];
    int64_t end = a->next;
    m->left = m->filled = 0;
    m->message_bytes = a->message_bytes;
    for (; end < a->n && a->list[end].piece.window == m->window; end++)
        m->left += a->list[end].bytes;
    for (; a->next < end; a->next++)
        if (read_piece(m, &a->list[a->next].piece, a->list[a->next].bytes, put_there, err))
            return -1;
    return 0;
}

/* ---- all meetings ---- */

/* Of this rank with that one, each asking in its turn, if it asks at all. */
static int meet(struct move *m, int peer, int (*asking)(struct move *m, struct err *err),
                int (*asked)(struct move *m, struct err *err), struct err *err)
{
    int me = m->r->mesh->rank;
    m->peer = peer;
    for (int turn = 0; turn < 2; turn++) {
        int who = (turn == 0) == (me < peer) ? me : peer;
        if (asks(m->r, who) && (who == me ? asking(m, err) : asked(m, err)))
            return err_prefix(err, "restoring with rank %d", peer);
    }
    return 0;
}

static int meet_all(struct move *m, int (*asking)(struct move *m, struct err *err),
                    int (*asked)(struct move *m, struct err *err), struct err *err)
{
    int me = m->r->mesh->rank, world = m->r->mesh->world, rounds = 1;
    while (rounds < world)
        rounds *= 2;
    for (int x = 1; x < rounds; x++)
        if ((me ^ x) < world && meet(m, me ^ x, asking, asked, err))
            return -1;
    return 0;
}

static int move_windows(struct move *m, struct err *err)
{
    const struct reshard *r = m->r;
    for (m->window = 0; m->window < m->windows; m->window++) {
        for (m->first = m->end; m->end < r->n_pieces; m->end++)
            if (r->pieces[m->end].window != m->window)
                break;
        if (take_local(m, err) || meet_all(m, ask, serve, err))
            return -1;
    }
    return 0;
}

static int open_move(struct move *m, struct err *err)
{
    const struct reshard *r = m->r;
    int64_t state = asks(r, r->mesh->rank) ? 0 : r->decision->places[r->whole[r->mesh->rank]].bytes;
    for (int i = 0; i < r->n_pieces; i++)
        state += r->piece_bytes[i];
    int64_t bytes = state / STATE_PART;
    bytes = bytes < MESSAGE_MOST ? bytes : MESSAGE_MOST;
    m->my_bytes = m->message_bytes = bytes > MESSAGE_LEAST ? bytes : MESSAGE_LEAST;
    m->files = (struct files){.open = open_file, .arg = m->r, .most = files_most(state)};
    m->windows = r->n_pieces ? r->pieces[r->n_pieces - 1].window + 1 : 0;
    m->asked = calloc((size_t)r->mesh->world, sizeof *m->asked);
    return m->asked ? 0 : err_set(err, "no memory to restore");
}

static void close_move(struct move *m)
{
    for (int i = 0; m->asked && i < m->r->mesh->world; i++)
        free(m->asked[i].list);
    free(m->asked);
    free(m->message);
    files_close(&m->files);
}

static int move(struct move *m, struct err *err)
{
    bool me = asks(m->r, m->r->mesh->rank);
    if (open_move(m, err) || (me && ckpt_fill_begin(m->ckpt, err)) ||
        meet_all(m, send_requests, receive_requests, err))
        return -1;
    m->message = malloc((size_t)m->message_bytes);
    if (!m->message)
        return err_set(err, "no memory to restore");
    if (move_windows(m, err))
        return -1;
    return me && !m->failed ? ckpt_fill_end(m->ckpt, err) : 0;
}

int reshard_move(struct reshard *r, struct ckpt *c, struct err *err)
{
    if (!r->moves)
        return 0;
    struct move m = {.r = r, .ckpt = c};
    int rv = move(&m, err);
    close_move(&m);
    if (rv) /* the others wait for a rank that has stopped */
        comm_abort(r->comm, err->text);
    else if (m.failed)
        rv = err_set(err, "%s", m.why.text);
    return rv;
}
