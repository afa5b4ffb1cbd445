#include "launch/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/message.h"

enum { OWN_DESCRIPTORS = 32 };

/* A listener on the first free port from a random start in the range, so that jobs on one host
 * seldom meet. */
static int bind_listener(int fd, int first, int last, struct err *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    unsigned char random[AUTH_BYTES];
    if (auth_random(random, err))
        return -1;
    int n = last - first + 1;
    int start = (random[0] | random[1] << 8) % n;
    for (int i = 0; i < n; i++) {
        at.sin_port = htons((uint16_t)(first + (start + i) % n));
        if (!bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, SOMAXCONN))
            return 0;
        if (errno != EADDRINUSE && errno != EACCES)
            return err_set_errno(err, errno, "cannot listen on port %d", ntohs(at.sin_port));
    }
    return err_set(err, "no free port in %d-%d for the coordinator", first, last);
}

/* One descriptor a node, one a stranger, and a few of our own. */
static int raise_descriptor_limit(int nodes, int strangers, struct err *err)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)nodes + (rlim_t)strangers + OWN_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= needed)
        return 0;
    if (limit.rlim_max < needed)
        return err_set(err, "%d nodes need %llu descriptors, but ulimit -n allows %llu: raise it",
                       nodes, (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

int peers_open(struct peers *p, int nodes, int port_first, int port_last, struct runlog *log,
               struct err *err)
{
    *p = (struct peers){.epoll = -1, .listener = -1, .log = log};
    p->max_strangers = 2 * nodes > PEERS_STRANGERS ? 2 * nodes : PEERS_STRANGERS;
    if (raise_descriptor_limit(nodes, p->max_strangers, err) || auth_random(p->secret.bytes, err))
        return -1;
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->epoll < 0 || p->listener < 0) {
        err_set_errno(err, errno, "cannot make the coordinator's socket");
        goto fail;
    }
    if (bind_listener(p->listener, port_first, port_last, err))
        goto fail;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = p};
    if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->listener, &event)) {
        err_set_errno(err, errno, "cannot watch the coordinator's socket");
        goto fail;
    }
    return 0;
fail:
    peers_close(p);
    return -1;
}

void peers_close(struct peers *p)
{
    while (p->first) {
        peers_drop(p, p->first);
        peers_sweep(p, INT64_MIN);
    }
    if (p->listener >= 0)
        close(p->listener);
    if (p->epoll >= 0)
        close(p->epoll);
    p->listener = p->epoll = -1;
    explicit_bzero(&p->secret, sizeof p->secret);
}

static struct peer *oldest_stranger(struct peers *p)
{
    for (struct peer *peer = p->first; peer; peer = peer->next)
        if (peer->stage == PEER_STRANGER)
            return peer;
    return NULL;
}

static void greet(struct peers *p, int fd, const struct sockaddr_in *from, int64_t now)
{
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer) {
        close(fd);
        return;
    }
    wire_open(&peer->wire, fd, WIRE_STRANGER_BYTES);
    peer->node = -1;
    peer->deadline = now + PEERS_STRANGER_MS;
    char ip[INET_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET, &from->sin_addr, ip, sizeof ip);
    snprintf(peer->from, sizeof peer->from, "%s:%d", ip, ntohs(from->sin_port));
    peer->before = p->last;
    if (p->last)
        p->last->next = peer;
    else
        p->first = peer;
    p->last = peer;
    p->strangers++;
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event) || auth_random(peer->nonce, NULL) ||
        peers_send(p, peer, message_challenge(peer->nonce)))
        peers_refuse(p, peer, "its connection broke");
}

void peers_own_address(char address[64])
{
    snprintf(address, 64, "127.0.0.1");
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, "192.0.2.1",
              &to.sin_addr); /* nothing is sent: only the route is asked for */
    socklen_t bytes = sizeof to;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int found = fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to) &&
                !getsockname(fd, (struct sockaddr *)&to, &bytes) &&
                inet_ntop(AF_INET, &to.sin_addr, address, 64);
    if (fd >= 0)
        close(fd);
    struct ifaddrs *all = NULL;
    if (found || getifaddrs(&all))
        return;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
            i->ifa_flags & IFF_LOOPBACK)
            continue;
        inet_ntop(AF_INET, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, address, 64);
        break;
    }
    freeifaddrs(all);
}

void peers_accept(struct peers *p, int64_t now)
{
    for (int i = 0; i < PEERS_ACCEPTS; i++) {
        struct sockaddr_in from = {0};
        socklen_t bytes = sizeof from;
        int fd =
            accept4(p->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct peer *oldest = NULL;
        if (p->strangers >= p->max_strangers || (fd < 0 && (errno == EMFILE || errno == ENFILE)))
            oldest = oldest_stranger(p);
        if (oldest)
            peers_refuse(p, oldest, "too many connections without a proof");
        if (fd < 0)
            return;
        greet(p, fd, &from, now);
    }
}

void peers_drop(struct peers *p, struct peer *peer)
{
    if (peer->stage == PEER_DEAD)
        return;
    if (peer->stage == PEER_STRANGER)
        p->strangers--;
    peer->stage = PEER_DEAD;
    peer->node = -1;
    wire_close(&peer->wire); /* epoll forgets a closed descriptor */
}

void peers_refuse(struct peers *p, struct peer *peer, const char *why)
{
    if (peer->stage == PEER_DEAD)
        return;
    p->refused++;
    if (p->refused <= PEERS_LOGGED)
        runlog_line(p->log, "refused %s: %s", peer->from, why);
    if (p->refused == PEERS_LOGGED)
        runlog_line(p->log, "more of these are only counted");
    peers_drop(p, peer);
}

void peers_prove(struct peers *p, struct peer *peer, const struct wire_message *m)
{
    unsigned char nonce[AUTH_BYTES], mac[AUTH_BYTES], ours[AUTH_BYTES];
    if (m->type != MESSAGE_PROOF || message_get_proof(m, nonce, mac)) {
        peers_refuse(p, peer, "it does not speak our protocol");
        return;
    }
    if (auth_proof(&p->secret, "node", peer->nonce, nonce, ours, NULL) || !auth_equal(ours, mac)) {
        peers_refuse(p, peer, "it does not know the secret");
        return;
    }
    if (auth_proof(&p->secret, "coordinator", peer->nonce, nonce, mac, NULL) ||
        peers_send(p, peer, message_welcome(mac))) {
        peers_refuse(p, peer, "its connection broke");
        return;
    }
    peer->stage = PEER_PROVEN;
    peer->wire.limit = WIRE_MAX_BYTES;
    p->strangers--;
}

int64_t peers_sweep(struct peers *p, int64_t now)
{
    int64_t next_deadline = INT64_MAX;
    for (struct peer *peer = p->first, *next; peer; peer = next) {
        next = peer->next;
        if (peer->stage == PEER_STRANGER && now >= peer->deadline)
            peers_refuse(p, peer, "it did not prove the secret in time");
        if (peer->stage == PEER_STRANGER && peer->deadline < next_deadline)
            next_deadline = peer->deadline;
        if (peer->stage != PEER_DEAD)
            continue;
        if (peer->before)
            peer->before->next = next;
        else
            p->first = next;
        if (next)
            next->before = peer->before;
        else
            p->last = peer->before;
        free(peer);
    }
    return next_deadline;
}

int peers_send(struct peers *p, struct peer *peer, struct wire_frame *f)
{
    wire_queue(&peer->wire, f);
    return peers_flush(p, peer);
}

int peers_flush(struct peers *p, struct peer *peer)
{
    int left = wire_flush(&peer->wire);
    if (left < 0)
        return -1;
    if (left != peer->waits_to_write) {
        struct epoll_event event = {.events = EPOLLIN | (left ? EPOLLOUT : 0), .data.ptr = peer};
        if (epoll_ctl(p->epoll, EPOLL_CTL_MOD, peer->wire.fd, &event))
            return -1;
        peer->waits_to_write = left;
    }
    return 0;
}
