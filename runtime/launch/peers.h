/* peers.h - the coordinator's connections, and the gate that keeps strangers out.
 *
 * Whoever connects is a stranger until it has proven the secret. Strangers have STRANGER_MS to do
 * so, WIRE_STRANGER_BYTES a message, and there are at most `max_strangers` of them: one more pushes
 * the oldest out. A node that is pushed out by a flood tries again. */
#ifndef GTRAIN_LAUNCH_PEERS_H
#define GTRAIN_LAUNCH_PEERS_H

#include <stdint.h>

#include "base/err.h"
#include "launch/auth.h"
#include "launch/runlog.h"
#include "launch/wire.h"

enum {
    PEERS_STRANGER_MS = 5000, /* a proof takes one round trip */
    PEERS_STRANGERS = 256,    /* at least; twice the nodes when that is more */
    PEERS_ACCEPTS = 64,       /* a turn: a flood must not keep the others waiting */
    PEERS_LOGGED = 20,        /* refused strangers that get a line each; the rest are counted */
};

enum peer_stage { PEER_STRANGER, PEER_PROVEN, PEER_NODE, PEER_DEAD };

struct peer {
    struct wire wire;
    enum peer_stage stage;
    int node;           /* index in the run, of a PEER_NODE; else -1 */
    int dismissed;      /* a lost node has been told to end */
    int waits_to_write; /* epoll watches for room to send */
    int64_t deadline;   /* of a stranger */
    unsigned char nonce[AUTH_BYTES];
    char from[32];              /* address:port */
    struct peer *before, *next; /* all peers, oldest first */
};

struct peers {
    int epoll, listener;
    struct auth_secret secret;
    struct peer *first, *last;
    int strangers, max_strangers;
    uint64_t refused;
    struct runlog *log;
};

int peers_open(struct peers *p, int nodes, int port_first, int port_last, struct runlog *log,
               struct err *err);
void peers_close(struct peers *p);

/* Take in who waits at the door. */
void peers_accept(struct peers *p, int64_t now);
/* A stranger has sent this. It is let in (stage PEER_PROVEN) or turned away. */
void peers_prove(struct peers *p, struct peer *peer, const struct wire_message *m);
/* Turn this one away: say why in the log. It is freed by peers_sweep. */
void peers_refuse(struct peers *p, struct peer *peer, const char *why);
/* Close without a word; freed by peers_sweep. */
void peers_drop(struct peers *p, struct peer *peer);
/* Turn away whose time is up; free the dead. Returns the next deadline, INT64_MAX if none. */
int64_t peers_sweep(struct peers *p, int64_t now);

/* Queue and send what goes at once. 0, or -1 when the connection is broken. */
int peers_send(struct peers *p, struct peer *peer, struct wire_frame *f);
int peers_flush(struct peers *p, struct peer *peer);

/* The address of this host that others most likely reach: that of the default route, else the first
 * interface that is up and not loopback. Nodes also try the one Slurm gives them. */
void peers_own_address(char address[64]);

#endif
