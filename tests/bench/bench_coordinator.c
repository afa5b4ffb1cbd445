/* bench_coordinator: one job step of 2,048 nodes with 8 ranks each, and 16 spares, on loopback.
 *
 * The coordinator is the real one, in a process of its own. The nodes are one other process: a
 * connection each, which speaks the nodes' side of the protocol (proof, registration, ranks,
 * exchange, beats) and starts no workers. So the figures are the coordinator's and the kernel's,
 * with the clients' share on top; on a cluster that share is spread over the nodes.
 *
 * Phases: all connect at once until all have ranks; all ranks publish a 300-byte address and get
 * those that they ask for, as the mesh of 8 tensor x 16 pipeline x N data ranks needs them; for
 * comparison the exchange of all addresses with all ranks, which every node gets; a node's
 * connection closes until all others have their new assignment, and the addresses again; ten nodes
 * at once; all nodes of a switch; the orderly end. For each: wall time, the coordinator's CPU time,
 * the bytes it sent; for a loss also the time until the first node heard of what was decided. The
 * limit that the exchange is held against is one loopback connection that carries the same bytes,
 * measured in the same run.
 *
 * usage: bench_coordinator [NODES] */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/auth.h"
#include "launch/coordinator.h"
#include "launch/message.h"

enum {
    TASKS = 8,
    SPARES = 32,
    LEAF = 16, /* nodes under a switch */
    TENSOR = 8,
    PIPELINE = 16,
    BLOB_BYTES = 300,
    BEAT_MS = 1000,
    PATIENCE_MS = 60000,
    DEADLINE_MS = 120000, /* of a phase */
    SCRATCH = 1 << 20,
    EVENTS = 256,
    PLAN_BYTES = 2000,
};

struct node {
    int fd, id, alive;
    unsigned char header[WIRE_HEADER_BYTES];
    size_t in_header, in_payload, payload_bytes;
    unsigned char *payload; /* NULL while a payload is counted only */
    struct wire out;        /* its queue only; shares fd */
    unsigned char theirs[AUTH_BYTES], ours[AUTH_BYTES];
    int node_rank;
    uint32_t generation, answered, ended;
};

struct bench {
    struct coordinator_door door;
    struct auth_secret secret;
    pid_t coordinator;
    clockid_t cpu;
    int epoll, nodes, world;
    struct node *node;
    uint64_t received;
    int n_assigned, n_answered, n_ended; /* in the newest generation */
    uint32_t generation;
    int telling;           /* who is assigned anew says its addresses at once */
    int exchanges;         /* to everybody, not to who asks */
    double first_assigned; /* when the first heard of the newest generation */
    uint32_t *peers;       /* room for a rank's */
    int64_t next_beat;
    unsigned char scratch[SCRATCH];
};

struct mark {
    double wall, cpu;
    uint64_t bytes;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_coordinator: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct mark mark(const struct bench *b)
{
    return (struct mark){now_s(CLOCK_MONOTONIC), now_s(b->cpu), b->received};
}

static double report(const struct bench *b, const char *what, const struct mark *from)
{
    struct mark to = mark(b);
    printf("%-44s %9.3f s %9.3f s %12.3f MB\n", what, to.wall - from->wall, to.cpu - from->cpu,
           (double)(to.bytes - from->bytes) * 1e-6);
    fflush(stdout);
    return to.wall - from->wall;
}

/* ---- the coordinator ---- */

static void be_coordinator(const struct bench *b, int ready)
{
    static char plan[PLAN_BYTES];
    struct coordinator_door door;
    struct coordinator *c;
    struct err err;
    struct coordinator_options o = {
        .run = {.nodes = b->nodes,
                .tasks = b->nodes * TASKS,
                .spares = SPARES,
                .shape = {.inner = TENSOR,
                          .pipeline = PIPELINE,
                          .data = b->world / (TENSOR * PIPELINE),
                          .tasks = TASKS},
                .heartbeat_ms = BEAT_MS,
                .patience_ms = PATIENCE_MS,
                .restarts = 3,
                .epoch = 1,
                .generation = 1},
        .plan_text = plan,
        .plan_bytes = sizeof plan,
        .restore = "latest",
        .run_dir = "",
        .run_id = "0123456789abcdef",
        .life_fd = -1,
    };
    memset(plan, '#', sizeof plan);
    if (coordinator_open(&c, &o, &door, &err)) {
        fprintf(stderr, "bench_coordinator: %s\n", err.text);
        _exit(99);
    }
    if (write(ready, &door, sizeof door) != (ssize_t)sizeof door)
        _exit(98);
    close(ready);
    int code = coordinator_run(c);
    coordinator_close(c);
    _exit(code);
}

static void start_coordinator(struct bench *b)
{
    int ready[2];
    if (pipe2(ready, O_CLOEXEC))
        die("pipe");
    b->coordinator = fork();
    if (b->coordinator < 0)
        die("fork");
    if (b->coordinator == 0) {
        close(ready[0]);
        be_coordinator(b, ready[1]);
    }
    close(ready[1]);
    if (read(ready[0], &b->door, sizeof b->door) != (ssize_t)sizeof b->door)
        die("the coordinator does not start");
    close(ready[0]);
    if (auth_unhex(b->door.secret, b->secret.bytes, NULL) ||
        clock_getcpuclockid(b->coordinator, &b->cpu))
        die("the coordinator's door");
}

/* ---- a node's side of the protocol ---- */

/* As UCX's addresses over TCP are (153 bytes here): two random identities and a port of each rank,
 * the machine's identity and address, and the rest alike on all. */
static void put_blob(unsigned char blob[BLOB_BYTES], uint32_t rank, uint32_t generation)
{
    static const struct {
        int at, bytes, of_node;
    } own[] = {{1, 8, 0},   {29, 8, 0}, {77, 2, 0}, {108, 1, 0},
               {145, 1, 0}, {60, 8, 1}, {100, 4, 1}};
    memset(blob, 0x5a, BLOB_BYTES);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        uint64_t state = (own[i].of_node ? rank / TASKS : rank) * 0x9E3779B97F4A7C15u + i;
        state = (state ^ generation) * 0xBF58476D1CE4E5B9u;
        for (int k = 0; k < own[i].bytes; k++)
            blob[own[i].at + k] = (unsigned char)(state >> (8 * (7 - k)));
    }
}

static void flush(struct bench *b, struct node *n)
{
    int left = wire_flush(&n->out);
    struct epoll_event e = {.events = EPOLLIN | (left > 0 ? EPOLLOUT : 0), .data.ptr = n};
    if (left < 0 || epoll_ctl(b->epoll, EPOLL_CTL_MOD, n->fd, &e))
        die("a node's connection");
}

static void say(struct bench *b, struct node *n, struct wire_frame *f)
{
    wire_queue(&n->out, f);
    flush(b, n);
}

static void send_register(struct bench *b, struct node *n)
{
    struct message_register info = {.port = (uint16_t)(20000 + n->id),
                                    .node_id = (uint32_t)n->id,
                                    .nodes = (uint32_t)b->nodes,
                                    .tasks = (uint32_t)(b->nodes * TASKS),
                                    .local_tasks = TASKS,
                                    .cores = 128,
                                    .epoch = 0};
    snprintf(info.node, sizeof info.node, "node%05d", n->id);
    snprintf(info.topology, sizeof info.topology, "spine%d.leaf%d.node%05d", n->id / 256,
             n->id / LEAF, n->id);
    snprintf(info.address, sizeof info.address, "10.%d.%d.1", n->id / 256, n->id % 256);
    say(b, n, message_register(&info));
}

/* Along the axes, and 2^k away: what mesh_peers (comm/mesh.h) names in a large world. */
static uint32_t list_peers(const struct bench *b, uint32_t rank, uint32_t *peers)
{
    uint32_t n = 0, world = (uint32_t)b->world;
    const uint32_t stride[] = {1, TENSOR, TENSOR * PIPELINE, world};
    for (int axis = 0; axis < 3; axis++) {
        uint32_t size = stride[axis + 1] / stride[axis], own = rank / stride[axis] % size;
        for (uint32_t k = 0; k < size; k++)
            if (k != own)
                peers[n++] = rank + (k - own) * stride[axis];
    }
    for (uint32_t d = 1; d < world; d *= 2) {
        peers[n++] = (rank + d) % world;
        peers[n++] = (rank + world - d) % world;
    }
    return n;
}

static void send_blobs(struct bench *b, struct node *n)
{
    unsigned char blob[BLOB_BYTES];
    for (uint32_t k = 0; n->node_rank >= 0 && k < TASKS; k++) {
        struct message_rank who = {(uint32_t)n->node_rank * TASKS + k, n->generation};
        put_blob(blob, who.rank, n->generation);
        wire_queue(&n->out, message_rank(MESSAGE_OPENED, who));
        if (b->exchanges) {
            wire_queue(&n->out, message_exchange(who, 0, blob, sizeof blob));
            continue;
        }
        struct message_ask ask = {.who = who, .wanted = b->peers};
        ask.n = list_peers(b, who.rank, b->peers);
        wire_queue(&n->out, message_publish(who, blob, sizeof blob));
        wire_queue(&n->out, message_ask(&ask));
    }
    flush(b, n);
}

static void take_assign(struct bench *b, struct node *n, const struct wire_message *m)
{
    struct message_assign *a = calloc(1, sizeof *a);
    if (!a || message_get_assign(m, a))
        die("an assignment makes no sense");
    n->node_rank = a->node_rank;
    n->generation = a->generation;
    if (a->generation > b->generation) { /* losses that were noticed one by one */
        b->generation = a->generation;
        b->n_assigned = b->n_answered = 0;
    }
    if (a->generation == b->generation && !b->n_assigned)
        b->first_assigned = now_s(CLOCK_MONOTONIC);
    b->n_assigned += a->generation == b->generation;
    message_assign_free(a);
    free(a);
    if (b->telling)
        send_blobs(b, n);
}

static void check_answer(const struct bench *b, const struct node *n, const struct wire_message *m)
{
    void **blobs = calloc((size_t)b->world, sizeof *blobs);
    size_t *bytes = calloc((size_t)b->world, sizeof *bytes);
    unsigned char expected[BLOB_BYTES];
    uint32_t turn;
    if (!blobs || !bytes || message_get_exchanged(m, &turn, (uint32_t)b->world, blobs, bytes))
        die("an answer makes no sense");
    for (int i = 0; i < b->world; i++) {
        put_blob(expected, (uint32_t)i, n->generation);
        if (bytes[i] != BLOB_BYTES || memcmp(blobs[i], expected, BLOB_BYTES))
            die("an answer is wrong");
        free(blobs[i]);
    }
    free(blobs);
    free(bytes);
}

static void check_found(const struct bench *b, const struct node *n, const struct wire_message *m)
{
    static void *found[65536];
    static size_t bytes[65536];
    unsigned char expected[BLOB_BYTES];
    uint32_t rank, turn;
    if (message_get_answer_to(m, &rank, &turn))
        die("an answer makes no sense");
    uint32_t n_peers = list_peers(b, rank, b->peers);
    if (message_get_answer(m, n_peers, found, bytes))
        die("an answer makes no sense");
    for (uint32_t i = 0; i < n_peers; i++) {
        put_blob(expected, b->peers[i], n->generation);
        if (bytes[i] != BLOB_BYTES || memcmp(found[i], expected, BLOB_BYTES))
            die("an answer is wrong");
        free(found[i]);
    }
}

static void take(struct bench *b, struct node *n, const struct wire_message *m)
{
    unsigned char mac[AUTH_BYTES];
    switch (m->type) {
    case MESSAGE_CHALLENGE:
        if (message_get_challenge(m, n->theirs) || auth_random(n->ours, NULL) ||
            auth_proof(&b->secret, "node", n->theirs, n->ours, mac, NULL))
            die("a proof");
        say(b, n, message_proof(n->ours, mac));
        return;
    case MESSAGE_WELCOME:
        send_register(b, n);
        return;
    case MESSAGE_ASSIGN:
        take_assign(b, n, m);
        return;
    case MESSAGE_EXCHANGED:
        if (m->payload)
            check_answer(b, n, m);
        b->n_answered++;
        return;
    case MESSAGE_ANSWER:
        if (m->payload)
            check_found(b, n, m);
        b->n_answered++;
        return;
    case MESSAGE_END:
        n->ended = 1;
        b->n_ended++;
        return;
    case MESSAGE_BEAT:
        return;
    default:
        fprintf(stderr, "bench_coordinator: message %u to node %d\n", m->type, n->id);
        exit(1);
    }
}

/* Answers of an exchange are only counted, but for the first node's: they would fill the memory. */
static void begin_payload(struct node *n)
{
    uint32_t bytes;
    uint16_t type;
    memcpy(&bytes, n->header, sizeof bytes);
    memcpy(&type, n->header + 4, sizeof type);
    n->payload_bytes = bytes;
    n->in_payload = 0;
    if ((type != MESSAGE_EXCHANGED && type != MESSAGE_ANSWER) || n->node_rank == 0) {
        n->payload = malloc(bytes + 1);
        if (!n->payload)
            die("memory");
    }
}

static void end_payload(struct bench *b, struct node *n)
{
    struct wire_message m = {.payload = n->payload, .bytes = n->payload_bytes};
    memcpy(&m.type, n->header + 4, sizeof m.type);
    n->in_header = 0;
    take(b, n, &m);
    free(n->payload);
    n->payload = NULL;
}

static void digest(struct bench *b, struct node *n, const unsigned char *at, size_t left)
{
    while (left) {
        if (n->in_header < WIRE_HEADER_BYTES) {
            n->header[n->in_header++] = *at++;
            left--;
            if (n->in_header < WIRE_HEADER_BYTES)
                continue;
            begin_payload(n);
        }
        size_t piece = n->payload_bytes - n->in_payload;
        piece = piece < left ? piece : left;
        if (n->payload)
            memcpy(n->payload + n->in_payload, at, piece);
        n->in_payload += piece;
        at += piece;
        left -= piece;
        if (n->in_payload == n->payload_bytes)
            end_payload(b, n);
    }
}

static void drop(struct bench *b, struct node *n)
{
    n->alive = 0;
    wire_close(&n->out); /* closes fd: an orderly end of the connection */
    free(n->payload);
    n->payload = NULL;
    (void)b;
}

static void handle(struct bench *b, struct node *n, uint32_t events)
{
    if (!n->alive)
        return;
    if (events & EPOLLOUT)
        flush(b, n);
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    ssize_t got = recv(n->fd, b->scratch, sizeof b->scratch, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        die("the coordinator closed a connection");
    b->received += (uint64_t)got;
    digest(b, n, b->scratch, (size_t)got);
}

static void beat(struct bench *b)
{
    int64_t now = clock_ms();
    if (now < b->next_beat)
        return;
    b->next_beat = now + BEAT_MS;
    for (int i = 0; i < b->nodes; i++)
        if (b->node[i].alive && b->node[i].generation)
            say(b, &b->node[i], message_plain(MESSAGE_BEAT));
}

/* Run the nodes until *count is `enough`. */
static void run_until(struct bench *b, const int *count, int enough)
{
    struct epoll_event events[EVENTS];
    int64_t deadline = clock_ms() + DEADLINE_MS;
    while (*count < enough) {
        if (clock_ms() > deadline) {
            fprintf(stderr, "bench_coordinator: %d of %d within %d s\n", *count, enough,
                    DEADLINE_MS / 1000);
            exit(1);
        }
        int n = epoll_wait(b->epoll, events, EVENTS, 100);
        for (int i = 0; i < n; i++)
            handle(b, events[i].data.ptr, events[i].events);
        beat(b);
    }
}

/* ---- phases ---- */

static void connect_all(struct bench *b)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(b->door.port)};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (int i = 0; i < b->nodes; i++) {
        struct node *n = &b->node[i];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
            die("connect");
        *n = (struct node){.fd = fd, .id = i, .alive = 1, .node_rank = -1};
        wire_open(&n->out, fd, WIRE_MAX_BYTES);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = n};
        if (epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &e))
            die("epoll");
    }
}

/* All ranks' addresses, to everybody or to who asks. */
static double addresses(struct bench *b, int exchanges, const char *what)
{
    struct mark from = mark(b);
    b->n_answered = 0;
    b->telling = 1;
    b->exchanges = exchanges;
    for (int i = 0; i < b->nodes; i++)
        if (b->node[i].alive)
            send_blobs(b, &b->node[i]);
    run_until(b, &b->n_answered, exchanges ? b->world / TASKS : b->world);
    b->telling = 0;
    return report(b, what, &from);
}

/* Is it one of the nodes to be lost? Any with ranks but rank 0's, or, of one switch, all there are.
 */
static int is_victim(const struct node *n, int leaf)
{
    return n->alive && (leaf < 0 ? n->node_rank > 0 : n->id / LEAF == leaf);
}

/* A switch, all of whose nodes have ranks, but not rank 0. */
static int whole_leaf(const struct bench *b)
{
    for (int leaf = b->nodes / LEAF - 1; leaf >= 0; leaf--) {
        int good = 1;
        for (int k = 0; k < LEAF; k++)
            good &= b->node[leaf * LEAF + k].alive && b->node[leaf * LEAF + k].node_rank > 0;
        if (good)
            return leaf;
    }
    return -1;
}

/* Nodes end; until all others know what they are now. */
static void lose(struct bench *b, int n, int leaf, const char *what)
{
    int left = 0;
    struct mark from = mark(b);
    b->generation++;
    b->n_assigned = 0;
    for (int i = 1; i < b->nodes && n; i++)
        if (is_victim(&b->node[i], leaf)) {
            drop(b, &b->node[i]);
            n--;
        }
    for (int i = 0; i < b->nodes; i++)
        left += b->node[i].alive;
    run_until(b, &b->n_assigned, left);
    report(b, what, &from);
    printf("%-44s %9.3f s\n", "  of which: until the first has it", b->first_assigned - from.wall);
}

static void finish(struct bench *b)
{
    int left = 0, status;
    struct mark from = mark(b);
    for (int i = 0; i < b->nodes; i++) {
        struct node *n = &b->node[i];
        left += n->alive;
        for (uint32_t k = 0; n->alive && n->node_rank >= 0 && k < TASKS; k++) {
            struct message_exited how = {.who = {(uint32_t)n->node_rank * TASKS + k, n->generation},
                                         .flags = EXITED_OPENED | EXITED_DONE};
            wire_queue(&n->out, message_rank(MESSAGE_DONE, how.who));
            wire_queue(&n->out, message_exited(&how));
        }
        if (n->alive)
            flush(b, n);
    }
    run_until(b, &b->n_ended, left);
    report(b, "end: all ranks done, all nodes told", &from);
    for (int i = 0; i < b->nodes; i++)
        if (b->node[i].alive)
            drop(b, &b->node[i]);
    if (waitpid(b->coordinator, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
        die("the coordinator did not end well");
}

/* Seconds that one loopback connection takes for so many bytes: measured on a part of them. */
static double limit_s(uint64_t bytes)
{
    enum { PIECE = 1 << 18, PIECES = 4096 };
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    static unsigned char piece[PIECE];
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &size))
        die("a listener");
    double from = now_s(CLOCK_MONOTONIC);
    pid_t writer = fork();
    if (writer == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof at))
            _exit(1);
        for (int i = 0; i < PIECES; i++)
            for (size_t sent = 0; sent < PIECE;) {
                ssize_t n = write(fd, piece + sent, PIECE - sent);
                if (n <= 0)
                    _exit(1);
                sent += (size_t)n;
            }
        _exit(0);
    }
    int fd = accept(listener, NULL, NULL);
    double all = 0;
    for (ssize_t n; (n = read(fd, piece, sizeof piece)) > 0;)
        all += (double)n;
    close(fd);
    close(listener);
    waitpid(writer, NULL, 0);
    return (now_s(CLOCK_MONOTONIC) - from) * (double)bytes / all;
}

int main(int argc, char **argv)
{
    int used = argc > 1 ? atoi(argv[1]) : 2048;
    struct rlimit files;
    struct bench *b = calloc(1, sizeof *b);
    if (!b || used < 16 || used % 16) {
        fprintf(stderr, "usage: bench_coordinator [NODES], a multiple of 16\n");
        return 2;
    }
    b->nodes = used + SPARES;
    b->world = used * TASKS;
    b->generation = 1;
    b->node = calloc((size_t)b->nodes, sizeof *b->node);
    b->peers = calloc((size_t)b->world + 64, sizeof *b->peers);
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!b->node || !b->peers || b->epoll < 0)
        die("memory");
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    start_coordinator(b);

    printf("%d nodes, %d ranks, %d spare nodes %18s %11s %15s\n", used, b->world, SPARES, "wall",
           "CPU", "sent");
    struct mark from = mark(b);
    connect_all(b);
    run_until(b, &b->n_assigned, b->nodes);
    report(b, "start: connect, prove, register, all assigned", &from);
    addresses(b, 0, "addresses, to who asks");
    uint64_t before = b->received;
    double first = addresses(b, 1, "for comparison: all addresses to all");
    uint64_t bytes = b->received - before;
    lose(b, 1, -1, "a node lost: until all have their assignment");
    addresses(b, 0, "  and the addresses");
    lose(b, 10, -1, "ten at once: until all have their assignment");
    addresses(b, 0, "  and the addresses");
    int leaf = whole_leaf(b);
    if (leaf >= 0) {
        lose(b, LEAF, leaf, "a switch of 16: until all have theirs");
        addresses(b, 0, "  and the addresses");
    }
    finish(b);
    double limit = limit_s(bytes);
    printf(
        "the exchange takes %.2f times as long as one loopback connection for its bytes (%.3f s)\n",
        first / limit, limit);
    return 0;
}
