/* reshard_move.c - the meetings in which pieces move. See reshard.h.
 *
 * Who asks sends the number of its pieces, then the list of them; who serves sends their bytes, one
 * after the other, as one stream cut into messages of MESSAGE_BYTES. A rank that cannot read what
 * it should serve remembers why and sends zeros: what is said in a meeting never depends on how the
 * reading went, so nobody is left waiting; nothing of it is used, as all hear of the failure before
 * the first step. */
#include "train/reshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 4 << 20 }; /* bounds both sides' memory */
enum { PIECES_MAX = 1 << 22 };    /* asked for in one meeting */
enum { RESHARD_TAG = 3 << 20 };   /* beside the tags of activations (execute.c) */

/* One piece, as it is asked for. */
struct request {
    struct ckpt_piece piece;
    int64_t bytes;
};

struct move {
    struct reshard *r;
    struct ckpt *ckpt;
    struct ckpt_file *file; /* the last one read from, and its number */
    int file_number;
    unsigned char *message; /* MESSAGE_BYTES */
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
        size_t room = MESSAGE_BYTES - (size_t)m->filled, part = n - done < room ? n - done : room;
        if (p)
            memcpy(m->message + m->filled, (const char *)p + done, part);
        else
            memset(m->message + m->filled, 0, part);
        m->filled += (int64_t)part;
        done += part;
        if ((m->filled == MESSAGE_BYTES || m->filled == m->left) && send_message(m, err))
            return -1;
    }
    return 0;
}

static struct ckpt_file *open_file(struct move *m, int file, struct err *err)
{
    if (m->file && m->file_number == file)
        return m->file;
    ckpt_file_close(m->file);
    m->file = NULL;
    m->file_number = file;
    return reshard_open_file(m->r, file, &m->file, err) ? NULL : m->file;
}

/* A piece to where `put` brings it. Reading may fail (then remembered); -1: putting did. */
static int read_piece(struct move *m, const struct ckpt_piece *piece, int64_t bytes,
                      int (*put)(void *arg, const void *p, size_t n, struct err *err),
                      struct err *err)
{
    struct err why = {{0}};
    struct ckpt_file *file = m->failed ? NULL : open_file(m, piece->source, &why);
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

/* ---- the two sides of a meeting ---- */

static bool asks(const struct reshard *r, int rank)
{
    return r->whole[rank] < 0;
}

/* This rank has the piece from that one. */
static bool is_from(const struct reshard *r, const struct ckpt_piece *piece, int rank)
{
    return reshard_reader(r, piece->source, r->mesh->rank) == rank;
}

static int take_local(struct move *m, struct err *err)
{
    struct reshard *r = m->r;
    for (int i = 0; i < r->n_pieces; i++) {
        if (!is_from(r, &r->pieces[i], r->mesh->rank))
            continue;
        if (ckpt_fill_piece(m->ckpt, &r->pieces[i], err) ||
            read_piece(m, &r->pieces[i], r->piece_bytes[i], put_here, err))
            return -1;
    }
    return 0;
}

static int send_requests(struct move *m, int64_t *n, struct err *err)
{
    struct reshard *r = m->r;
    struct request *list = calloc((size_t)r->n_pieces + 1, sizeof *list);
    if (!list)
        return err_set(err, "no memory to ask for %d pieces", r->n_pieces);
    *n = 0;
    for (int i = 0; i < r->n_pieces; i++)
        if (is_from(r, &r->pieces[i], m->peer))
            list[(*n)++] = (struct request){r->pieces[i], r->piece_bytes[i]};
    int rv = comm_host_send(r->comm, n, sizeof *n, m->peer, RESHARD_TAG, err);
    if (!rv && *n)
        rv = comm_host_send(r->comm, list, (size_t)*n * sizeof *list, m->peer, RESHARD_TAG, err);
    free(list);
    return rv;
}

static int receive_pieces(struct move *m, struct err *err)
{
    struct reshard *r = m->r;
    int64_t left = 0, have = 0, at = 0;
    for (int i = 0; i < r->n_pieces; i++)
        left += is_from(r, &r->pieces[i], m->peer) ? r->piece_bytes[i] : 0;
    for (int i = 0; i < r->n_pieces; i++) {
        if (!is_from(r, &r->pieces[i], m->peer))
            continue;
        if (ckpt_fill_piece(m->ckpt, &r->pieces[i], err))
            return -1;
        for (int64_t wanted = r->piece_bytes[i]; wanted > 0;) {
            if (at == have) {
                have = left < MESSAGE_BYTES ? left : MESSAGE_BYTES;
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

static int ask(struct move *m, struct err *err)
{
    int64_t n;
    if (send_requests(m, &n, err))
        return -1;
    return n ? receive_pieces(m, err) : 0;
}

static int receive_requests(struct move *m, struct request **list, int64_t *n, struct err *err)
{
    *list = NULL;
    if (comm_host_recv(m->r->comm, n, sizeof *n, m->peer, RESHARD_TAG, err))
        return -1;
    if (*n < 0 || *n > PIECES_MAX)
        return err_set(err, "rank %d asks for %lld pieces", m->peer, (long long)*n);
    if (!*n)
        return 0;
    *list = calloc((size_t)*n, sizeof **list);
    if (!*list)
        return err_set(err, "no memory for %lld pieces", (long long)*n);
    return comm_host_recv(m->r->comm, *list, (size_t)*n * sizeof **list, m->peer, RESHARD_TAG, err);
}

static int check_request(const struct move *m, const struct request *q, struct err *err)
{
    if (q->piece.source >= 0 && q->piece.source < m->r->decision->world &&
        m->r->server[q->piece.source] == m->r->mesh->rank && q->bytes >= 0 &&
        q->bytes <= m->r->decision->places[q->piece.source].bytes)
        return 0;
    return err_set(err, "rank %d asks for a piece of file %d", m->peer, q->piece.source);
}

static int serve(struct move *m, struct err *err)
{
    struct request *list;
    int64_t n;
    int rv = receive_requests(m, &list, &n, err);
    m->left = m->filled = 0;
    for (int64_t i = 0; !rv && i < n; i++) {
        rv = check_request(m, &list[i], err);
        m->left += list[i].bytes;
    }
    for (int64_t i = 0; !rv && i < n; i++)
        rv = read_piece(m, &list[i].piece, list[i].bytes, put_there, err);
    free(list);
    return rv;
}

static int meet(struct move *m, int peer, struct err *err)
{
    struct reshard *r = m->r;
    int me = r->mesh->rank;
    m->peer = peer;
    for (int turn = 0; turn < 2; turn++) {
        int asking = (turn == 0) == (me < peer) ? me : peer;
        if (asks(r, asking) && (asking == me ? ask(m, err) : serve(m, err)))
            return err_prefix(err, "restoring with rank %d", peer);
    }
    return 0;
}

static int meet_all(struct move *m, struct err *err)
{
    int me = m->r->mesh->rank, world = m->r->mesh->world, rounds = 1;
    while (rounds < world)
        rounds *= 2;
    if (asks(m->r, me) && (ckpt_fill_begin(m->ckpt, err) || take_local(m, err)))
        return -1;
    for (int x = 1; x < rounds; x++)
        if ((me ^ x) < world && meet(m, me ^ x, err))
            return -1;
    return asks(m->r, me) && !m->failed ? ckpt_fill_end(m->ckpt, err) : 0;
}

int reshard_move(struct reshard *r, struct ckpt *c, struct err *err)
{
    if (!r->moves)
        return 0;
    struct move m = {.r = r, .ckpt = c, .message = malloc(MESSAGE_BYTES)};
    int rv = m.message ? meet_all(&m, err) : err_set(err, "no memory to restore");
    ckpt_file_close(m.file);
    free(m.message);
    if (rv) /* the others wait for a rank that has stopped */
        comm_abort(r->comm, err->text);
    else if (m.failed)
        rv = err_set(err, "%s", m.why.text);
    return rv;
}
