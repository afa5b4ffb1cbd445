/* test_launch_hostile.c - strangers at the coordinator's door, and connections that break. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch_step.h"

/* ---- strangers ---- */

static int knock(const struct step *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(s->door.port)};
    inet_pton(AF_INET, s->door.address, &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
    ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
    (void)n; /* it may have been turned away already */
}

static int strangers(void)
{
    const char *long_mode = getenv("GTRAIN_TEST_LONG");
    return long_mode && !strcmp(long_mode, "yes") ? 10000 : 500;
}

static void strangers_change_nothing(void **state)
{
    (void)state;
    char file[128];
    struct step s = {.argv = {0, "wait", file}};
    s.nodes = 2, s.tasks = 2, s.world = 4;
    s.argv[0] = build_path("tests/unit/launch_worker");
    start_coordinator(&s);
    snprintf(file, sizeof file, "%s/go", s.folder);
    /* Some knock before the nodes, the rest while the step runs; none says a sensible thing. */
    unsigned char garbage[4096], wrong[72] = {64, 0, 0, 0, 2, 0, 1, 0}, huge[8];
    memset(garbage, 0x5a, sizeof garbage);
    memset(huge, 0xff, sizeof huge);
    int fds[64], n = strangers();
    memset(fds, -1, sizeof fds);
    for (int i = 0; i < n; i++) {
        if (i == n / 4) {
            start_agents(&s);
            wait_for(&s, "placement.txt");
        }
        int *fd = &fds[i % 64];
        if (*fd >= 0)
            close(*fd);
        *fd = knock(&s);
        if (*fd < 0)
            continue;
        if (i % 5 == 0)
            say(*fd, garbage, sizeof garbage);
        else if (i % 5 == 1)
            say(*fd, wrong, sizeof wrong); /* a whole proof, of another secret */
        else if (i % 5 == 2)
            say(*fd, wrong, 20); /* half of it */
        else if (i % 5 == 3)
            say(*fd, huge, sizeof huge);
    }
    int go = open(file, O_WRONLY | O_CREAT, 0600);
    assert_true(go >= 0);
    close(go);
    assert_int_equal(finish(&s), 0);
    for (int i = 0; i < 64; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (int i = 0; i < s.n_agents; i++)
        assert_int_equal(exit_of(&s, i), 0);
    assert_string_equal(s.said, "end 0\n");
    char log[65536];
    read_file(s.folder, "coordinator.log", log, sizeof log);
    assert_non_null(strstr(log, "it does not know the secret"));
    drop_folder(s.folder);
}

/* ---- broken connections ---- */

enum { PROXY_PAIRS = 16, PROXY_CUTS = 5, PROXY_CUT_BYTES = 20000 };

struct proxy {
    int listener;
    uint16_t to; /* the coordinator's port */
    int fds[PROXY_PAIRS][2];
};

static int loopback(uint16_t port, int listen_there)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* accepted ones inherit it */
    int bad = listen_there ? bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 16)
                           : connect(fd, (struct sockaddr *)&at, sizeof at);
    if (bad)
        close(fd);
    return bad ? -1 : fd;
}

/* Close both ways with a reset, not in good order. */
static void proxy_cut(int pair[2])
{
    struct linger now = {.l_onoff = 1};
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) {
            setsockopt(pair[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
            close(pair[i]);
        }
        pair[i] = -1;
    }
}

static void proxy_accept(struct proxy *p)
{
    int fd = accept(p->listener, NULL, NULL);
    for (int i = 0; fd >= 0 && i < PROXY_PAIRS; i++) {
        if (p->fds[i][0] >= 0)
            continue;
        p->fds[i][0] = fd;
        p->fds[i][1] = loopback(p->to, 0);
        if (p->fds[i][1] < 0)
            proxy_cut(p->fds[i]);
        return;
    }
}

/* Returns the bytes passed. */
static ssize_t proxy_pass(int pair[2], int from)
{
    char bytes[4096];
    ssize_t n = recv(pair[from], bytes, sizeof bytes, 0);
    if (n > 0 && send(pair[!from], bytes, (size_t)n, MSG_NOSIGNAL) == n)
        return n;
    close(pair[0]);
    close(pair[1]);
    pair[0] = pair[1] = -1;
    return 0;
}

/* Pass bytes between nodes and coordinator; cut all connections a few times: the 400 turns of the
 * test come to some 160,000 bytes. */
static void run_proxy(struct proxy *p)
{
    int cuts = 0;
    ssize_t passed = 0;
    memset(p->fds, -1, sizeof p->fds);
    for (int64_t until = clock_ms() + DEADLINE_MS; clock_ms() < until;) {
        struct pollfd fds[1 + 2 * PROXY_PAIRS] = {{.fd = p->listener, .events = POLLIN}};
        for (int i = 0; i < 2 * PROXY_PAIRS; i++)
            fds[1 + i] = (struct pollfd){.fd = p->fds[i / 2][i % 2], .events = POLLIN};
        poll(fds, 1 + 2 * PROXY_PAIRS, 20);
        if (fds[0].revents)
            proxy_accept(p);
        for (int i = 0; i < 2 * PROXY_PAIRS; i++)
            if (fds[1 + i].fd >= 0 && fds[1 + i].revents && p->fds[i / 2][i % 2] == fds[1 + i].fd)
                passed += proxy_pass(p->fds[i / 2], i % 2);
        if (cuts < PROXY_CUTS && passed > (cuts + 1) * PROXY_CUT_BYTES) {
            for (int i = 0; i < PROXY_PAIRS; i++)
                proxy_cut(p->fds[i]);
            cuts++;
        }
    }
    _exit(0);
}

/* Resets in the middle of hundreds of exchanges: not a blob is lost or doubled. */
static void resets_lose_nothing(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exchange", s.folder, "400"}, .nodes = 2, .tasks = 2, .world = 4};
    struct proxy p;
    struct sockaddr_in at;
    socklen_t bytes = sizeof at;
    s.argv[0] = build_path("tests/unit/launch_worker");
    start_coordinator(&s);
    p.listener = loopback(0, 1);
    p.to = s.door.port;
    assert_true(p.listener >= 0);
    assert_int_equal(getsockname(p.listener, (struct sockaddr *)&at, &bytes), 0);
    s.door.port = ntohs(at.sin_port);
    pid_t proxy = fork();
    if (proxy == 0) {
        close(s.leak_write);
        run_proxy(&p);
    }
    close(p.listener);
    start_agents(&s);
    int code = finish(&s);
    kill(proxy, SIGKILL);
    waitpid(proxy, NULL, 0);
    assert_int_equal(code, 0);
    char log[65536];
    read_file(s.folder, "coordinator.log", log, sizeof log);
    assert_non_null(strstr(log, "came back"));
    assert_string_equal(s.said, "end 0\n");
    drop_folder(s.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_change_nothing),
        cmocka_unit_test(resets_lose_nothing),
    };
    return cmocka_run_group_tests_name("launch_hostile", tests, NULL, NULL);
}
