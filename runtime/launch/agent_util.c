/* agent_util.c - the node's socket, watching descriptors, killing what is left, leaving. */
#include "launch/agent.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- the node's socket ---- */

static socklen_t socket_name(const struct agent_env *env, struct sockaddr_un *at)
{
    static const unsigned char zero[AUTH_BYTES] = {0};
    unsigned char place[AUTH_BYTES] = {0}, digest[AUTH_BYTES] = {0};
    char hex[AUTH_HEX_BYTES];
    memcpy(place, &env->node_id, sizeof env->node_id);
    auth_proof(&env->secret, "socket", place, zero, digest, NULL);
    auth_hex(digest, hex);
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "gtrain-%s-%.16s", env->step, hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int agent_socket_listen(const struct agent_env *env, struct err *err)
{
    struct sockaddr_un at;
    socklen_t bytes = socket_name(env, &at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&at, bytes) && !listen(fd, SOMAXCONN))
        return fd;
    err_set_errno(err, errno, "cannot make the node's socket %s", at.sun_path + 1);
    if (fd >= 0)
        close(fd);
    return -1;
}

int agent_socket_connect(const struct agent_env *env)
{
    struct sockaddr_un at;
    socklen_t bytes = socket_name(env, &at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&at, bytes) && !agent_socket_check(fd))
        return fd;
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return -1;
}

int agent_socket_check(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
        return -1;
    errno = EPERM;
    return peer.uid == getuid() ? 0 : -1;
}

/* ---- this node ---- */

int agent_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    return CPU_COUNT(&set);
}

void agent_address(const struct agent_env *env, int connection, char address[64])
{
    struct sockaddr_in at = {0}, to = {.sin_family = AF_INET, .sin_port = htons(9)};
    socklen_t bytes = sizeof at;
    address[0] = 0;
    if (!getsockname(connection, (struct sockaddr *)&at, &bytes))
        inet_ntop(AF_INET, &at.sin_addr, address, 64);
    if (strncmp(address, "127.", 4) || env->nodes == 1)
        return;
    /* On the coordinator's own host: no use to other nodes. That of the route to it is. */
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bytes = sizeof at;
    if (fd >= 0 && inet_pton(AF_INET, env->door.address[0], &to.sin_addr) == 1 &&
        !connect(fd, (struct sockaddr *)&to, sizeof to) &&
        !getsockname(fd, (struct sockaddr *)&at, &bytes))
        inet_ntop(AF_INET, &at.sin_addr, address, 64);
    if (fd >= 0)
        close(fd);
}

uint16_t agent_reserve_port(int *reserved)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    if (*reserved < 0)
        *reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*reserved < 0)
        return 0;
    if (getsockname(*reserved, (struct sockaddr *)&at, &bytes) || at.sin_port)
        return ntohs(at.sin_port);
    at = (struct sockaddr_in){.sin_family = AF_INET};
    if (bind(*reserved, (struct sockaddr *)&at, sizeof at) ||
        getsockname(*reserved, (struct sockaddr *)&at, &bytes))
        return 0;
    return ntohs(at.sin_port);
}

/* ---- the loop ---- */

int watch_add(int epoll, struct watch *w, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
    w->wants_out = 0;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int watch_out(int epoll, struct watch *w, int fd, int wants_out)
{
    if (w->wants_out == wants_out)
        return 0;
    struct epoll_event event = {.events = EPOLLIN | (wants_out ? EPOLLOUT : 0), .data.ptr = w};
    w->wants_out = wants_out;
    return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

int watch_send(int epoll, struct watch *w, struct wire *wire, struct wire_frame *f)
{
    if (f)
        wire_queue(wire, f);
    int left = wire_flush(wire);
    return left < 0 || watch_out(epoll, w, wire->fd, left) ? -1 : 0;
}

/* ---- processes ---- */

char agent_look(pid_t pid, uint64_t *cpu_ms)
{
    char path[64], text[1024], state = 0;
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    *cpu_ms = 0;
    FILE *in = pid > 0 ? fopen(path, "re") : NULL;
    if (!in)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = 0;
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    if (!name_end || sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                            &state, &user, &system) != 3)
        return 0;
    *cpu_ms = (uint64_t)(user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
    return state;
}

/* ---- the end of processes ---- */

/* The kernel's list of our children; where it has none, look through all processes. */
static int kill_listed(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *in = fopen(path, "re");
    if (!in)
        return -1;
    int pid;
    while (fscanf(in, "%d", &pid) == 1)
        kill(pid, SIGKILL);
    fclose(in);
    return 0;
}

static void kill_searched(void)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));) {
        int pid = atoi(e->d_name), parent;
        char path[64], text[512];
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *in = pid > 0 ? fopen(path, "re") : NULL;
        if (!in)
            continue;
        size_t n = fread(text, 1, sizeof text - 1, in);
        fclose(in);
        text[n] = 0;
        const char *name_end = strrchr(text, ')');
        if (name_end && sscanf(name_end + 1, " %*c %d", &parent) == 1 && parent == getpid())
            kill(pid, SIGKILL);
    }
    if (proc)
        closedir(proc);
}

int kill_round(void)
{
    /* A killed child's children become ours and are killed in the next round. */
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        continue;
    if (pid < 0 && errno == ECHILD)
        return 0;
    if (kill_listed())
        kill_searched();
    return 1;
}

int kill_children(int64_t deadline_ms)
{
    while (kill_round()) {
        if (clock_ms() >= deadline_ms)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 0;
}

void exit_like(int status, const sigset_t *mask)
{
    if (!WIFSIGNALED(status))
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    /* The worker's own core, if any, is the one of interest. */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    signal(WTERMSIG(status), SIG_DFL);
    sigset_t open = *mask;
    sigdelset(&open, WTERMSIG(status));
    sigprocmask(SIG_SETMASK, &open, NULL);
    raise(WTERMSIG(status));
    _exit(128 + WTERMSIG(status));
}
