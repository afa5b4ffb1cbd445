/* launch_step.c - see launch_step.h. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch_step.h"

const char *build_path(const char *name)
{
    static char path[8][PATH_MAX];
    static int turn;
    char *out = path[turn++ % 8];
    const char *build = getenv("GTRAIN_BUILD");
    snprintf(out, PATH_MAX, "%s/%s", build ? build : ".", name);
    return out;
}

void make_folder(char *folder)
{
    strcpy(folder, "/tmp/gtrain-launch-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

void drop_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(folder);
}

/* ---- a step ---- */

static void run_coordinator(struct step *s, int ready, int life)
{
    struct coordinator_options o = {
        .run = {.nodes = s->nodes,
                .tasks = s->nodes * s->tasks,
                .shape = {.inner = 1, .pipeline = 1, .data = s->world, .tasks = s->tasks},
                .heartbeat_ms = HEARTBEAT_MS,
                .patience_ms = s->patience_ms ? s->patience_ms : PATIENCE_MS,
                .restarts = s->restarts,
                .epoch = 7,
                .generation = 1},
        .plan_text = "the plan",
        .plan_bytes = 8,
        .restore = "latest",
        .run_dir = s->folder,
        .run_id = "0123456789abcdef",
        .life_fd = life,
    };
    struct coordinator *c;
    struct err err;
    if (coordinator_open(&c, &o, &s->door, &err)) {
        fprintf(stderr, "%s\n", err.text);
        _exit(99);
    }
    snprintf(s->door.address, sizeof s->door.address, "127.0.0.1");
    if (write(ready, &s->door, sizeof s->door) != (ssize_t)sizeof s->door)
        _exit(98);
    close(ready);
    int code = coordinator_run(c);
    coordinator_close(c);
    _exit(code);
}

void start_coordinator(struct step *s)
{
    int ready[2], life[2], leak[2];
    make_folder(s->folder);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe(leak), 0);
    assert_int_equal(fcntl(leak[0], F_SETFD, FD_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life), 0);
    s->leak = leak[0];
    s->leak_write = leak[1];
    s->life = life[0];
    s->coordinator = fork();
    if (s->coordinator == 0) {
        close(life[0]);
        close(leak[0]);
        run_coordinator(s, ready[1], life[1]);
    }
    close(ready[1]);
    close(life[1]);
    assert_int_equal(read(ready[0], &s->door, sizeof s->door), sizeof s->door);
    close(ready[0]);
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void be_agent(const struct step *s, int node, int local)
{
    char text[128];
    snprintf(text, sizeof text, "%s:%u", s->door.address, s->door.port);
    setenv("SLURM_GTRAIN_COORDINATOR", text, 1);
    setenv("SLURM_GTRAIN_SECRET", s->door.secret, 1);
    setenv("SLURM_GTRAIN_PROGRAM", s->argv[0], 1);
    snprintf(text, sizeof text, "n%d", node);
    setenv("SLURMD_NODENAME", text, 1);
    snprintf(text, sizeof text, "spine.leaf%d.n%d", node % 2, node);
    setenv("SLURM_TOPOLOGY_ADDR", text, 1);
    snprintf(text, sizeof text, "%d(x%d)", s->tasks, s->nodes);
    setenv("SLURM_STEP_TASKS_PER_NODE", text, 1);
    set_number("SLURM_NODEID", node);
    set_number("SLURM_STEP_NUM_NODES", s->nodes);
    set_number("SLURM_STEP_NUM_TASKS", s->nodes * s->tasks);
    set_number("SLURM_PROCID", node * s->tasks + local);
    set_number("SLURM_LOCALID", local);
    set_number("SLURM_JOB_ID", (int)getppid());
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("GTRAIN_PLAN", "left.yaml", 1);
    setenv("SLURM_SPANK__SLURM_SPANK_OPTION_gtrain_gtrain_plan", "left.yaml", 1);
    setenv("LEFT_ALONE", "yes", 1);
    setpgid(0, 0); /* as slurmstepd does */
    execv(build_path("gtrain-agent"), (char *const *)s->argv);
    _exit(97);
}

void start_agents(struct step *s)
{
    for (int node = 0; node < s->nodes; node++)
        for (int local = 0; local < s->tasks; local++) {
            pid_t pid = fork();
            if (pid == 0)
                be_agent(s, node, local);
            s->agents[s->n_agents++] = pid;
        }
}

void start(struct step *s, int nodes, int tasks, int world)
{
    s->nodes = nodes;
    s->tasks = tasks;
    s->world = world;
    s->argv[0] = build_path("tests/unit/launch_worker");
    start_coordinator(s);
    start_agents(s);
}

static void hear(struct step *s)
{
    size_t have = strlen(s->said);
    ssize_t n = recv(s->life, s->said + have, sizeof s->said - 1 - have, MSG_DONTWAIT);
    if (n > 0)
        s->said[have + (size_t)n] = 0;
}

/* Wait for a child; whoever takes too long is killed, so that a test fails and does not hang. */
int reap(struct step *s, pid_t pid, int64_t deadline)
{
    int status;
    for (;;) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        hear(s);
        if (clock_ms() > deadline)
            kill(pid, SIGKILL);
        usleep(2000);
    }
}

/* Wait for all, see that nothing is left. Returns the coordinator's exit code. */
int finish(struct step *s)
{
    int64_t deadline = clock_ms() + DEADLINE_MS;
    for (int i = 0; i < s->n_agents; i++)
        s->status[i] = reap(s, s->agents[i], deadline);
    int status = reap(s, s->coordinator, deadline);
    hear(s);
    close(s->life);
    close(s->leak_write);
    struct pollfd left = {.fd = s->leak, .events = POLLIN};
    assert_int_equal(poll(&left, 1, DEADLINE_MS), 1);
    char byte;
    assert_int_equal(read(s->leak, &byte, 1), 0); /* nobody holds the other end */
    close(s->leak);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void read_file(const char *folder, const char *name, char *text, size_t room)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail_msg("%s: %s", path, strerror(errno));
    ssize_t n = read(fd, text, room - 1);
    text[n < 0 ? 0 : n] = 0;
    close(fd);
}

int exit_of(const struct step *s, int agent)
{
    return WIFEXITED(s->status[agent]) ? WEXITSTATUS(s->status[agent]) : -1;
}

int signal_of(const struct step *s, int agent)
{
    return WIFSIGNALED(s->status[agent]) ? WTERMSIG(s->status[agent]) : 0;
}

void has(const char *text, const char *line)
{
    const char *at = strstr(text, line);
    if (!at || (at != text && at[-1] != '\n'))
        fail_msg("no '%s' in:\n%s", line, text);
}

/* The step must be running before it is hurt: the placement is written then. */
void wait_for(const struct step *s, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    for (int64_t until = clock_ms() + DEADLINE_MS; access(path, F_OK);) {
        if (clock_ms() > until)
            fail_msg("no %s", path);
        usleep(2000);
    }
}
