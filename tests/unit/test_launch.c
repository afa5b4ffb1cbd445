/* test_launch.c - whole steps on loopback, without Slurm: a coordinator, agents with the
 * environment Slurm would give them, small workers. What each process ends with is compared with
 * what the contract says; a pipe that every process of a step inherits shows that none is left. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
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

#include <cmocka.h>

#include "base/clock.h"
#include "launch/coordinator.h"

enum {
    MAX_TASKS = 16,
    DEADLINE_MS = 60000, /* of a whole step on a busy machine; they take a fraction of a second */
    PATIENCE_MS = 2000,
    HEARTBEAT_MS = 100,
};

struct step {
    int nodes, tasks;    /* tasks on each node */
    int world;           /* ranks of the plan, all data parallel */
    const char *argv[6]; /* the worker and its arguments */

    char folder[64];
    struct coordinator_door door;
    pid_t coordinator, agents[MAX_TASKS];
    int n_agents;
    int status[MAX_TASKS]; /* wait statuses */
    int life;              /* our end of the line to the coordinator */
    int leak;              /* read end: at its end when no process of the step is left */
    int leak_write;
    char said[4096]; /* all that the coordinator told srun */
};

static const char *build_path(const char *name)
{
    static char path[8][PATH_MAX];
    static int turn;
    char *out = path[turn++ % 8];
    const char *build = getenv("GTRAIN_BUILD");
    snprintf(out, PATH_MAX, "%s/%s", build ? build : ".", name);
    return out;
}

static void make_folder(char *folder)
{
    strcpy(folder, "/tmp/gtrain-launch-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static void drop_folder(const char *folder)
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
                .patience_ms = PATIENCE_MS,
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

static void start_coordinator(struct step *s)
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

static void start_agents(struct step *s)
{
    for (int node = 0; node < s->nodes; node++)
        for (int local = 0; local < s->tasks; local++) {
            pid_t pid = fork();
            if (pid == 0)
                be_agent(s, node, local);
            s->agents[s->n_agents++] = pid;
        }
}

static void start(struct step *s, int nodes, int tasks, int world)
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
static int reap(struct step *s, pid_t pid, int64_t deadline)
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
static int finish(struct step *s)
{
    int64_t deadline = clock_ms() + DEADLINE_MS;
    for (int i = 0; i < s->n_agents; i++)
        s->status[i] = reap(s, s->agents[i], deadline);
    int status = reap(s, s->coordinator, deadline);
    hear(s);
    close(s->life);
    close(s->leak_write);
    struct pollfd left = {.fd = s->leak, .events = POLLIN};
    assert_int_equal(poll(&left, 1, 10000), 1);
    char byte;
    assert_int_equal(read(s->leak, &byte, 1), 0); /* nobody holds the other end */
    close(s->leak);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void read_file(const char *folder, const char *name, char *text, size_t room)
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

static int exit_of(const struct step *s, int agent)
{
    return WIFEXITED(s->status[agent]) ? WEXITSTATUS(s->status[agent]) : -1;
}

static int signal_of(const struct step *s, int agent)
{
    return WIFSIGNALED(s->status[agent]) ? WTERMSIG(s->status[agent]) : 0;
}

/* ---- the cases ---- */

/* 3 nodes of 2 tasks, 4 ranks: nodes 0 and 2 are under one leaf, so node 1 is the spare. */
static void ranks_and_exchange(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exchange", s.folder}};
    start(&s, 3, 2, 4);
    assert_int_equal(finish(&s), 0);
    for (int i = 0; i < s.n_agents; i++)
        assert_int_equal(exit_of(&s, i), 0);
    assert_string_equal(s.said, "end 0\n");
    static const char *const nodes[] = {"n0", "n0", "n2", "n2"};
    for (int rank = 0; rank < 4; rank++) {
        char name[16], text[1024], expected[1024];
        snprintf(name, sizeof name, "%d", rank);
        read_file(s.folder, name, text, sizeof text);
        snprintf(expected, sizeof expected,
                 "rank=%d world=4 local=%d/2 node=%s/%d epoch=7 generation=1 "
                 "run=0123456789abcdef plan=the plan\n",
                 rank, rank % 2, nodes[rank], rank / 2);
        assert_string_equal(text, expected);
    }
    drop_folder(s.folder);
}

static void has(const char *text, const char *line)
{
    const char *at = strstr(text, line);
    if (!at || (at != text && at[-1] != '\n'))
        fail_msg("no '%s' in:\n%s", line, text);
}

static void foreign_program(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "env", s.folder}};
    start(&s, 2, 2, 4);
    assert_int_equal(finish(&s), 0);
    char text[65536];
    read_file(s.folder, "3", text, sizeof text);
    has(text, "RANK=3\n");
    has(text, "WORLD_SIZE=4\n");
    has(text, "LOCAL_RANK=1\n");
    has(text, "LOCAL_WORLD_SIZE=2\n");
    has(text, "GROUP_RANK=1\n");
    has(text, "MASTER_ADDR=127.0.0.1\n");
    has(text, "GTRAIN_EPOCH=7\n");
    has(text, "GTRAIN_GENERATION=1\n");
    has(text, "GTRAIN_NODE=n1\n");
    has(text, "LEFT_ALONE=yes\n");
    assert_null(strstr(text, "SLURM_GTRAIN_"));
    assert_null(strstr(text, "left.yaml"));
    assert_null(strstr(text, s.door.secret));
    const char *port = strstr(text, "MASTER_PORT=");
    assert_non_null(port);
    assert_in_range(atoi(port + 12), 1024, 65535);
    drop_folder(s.folder);
}

static void exit_code_ends_all(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "3", "2"}};
    start(&s, 2, 2, 4);
    assert_int_equal(finish(&s), 3);
    for (int i = 0; i < 4; i++)
        assert_int_equal(exit_of(&s, i), i == 2 ? 3 : 1);
    assert_string_equal(s.said, "say rank 2 on node n1 ended with exit code 3\nend 3\n");
    drop_folder(s.folder);
}

static void signal_ends_all(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "kill", "11", "0"}};
    start(&s, 2, 1, 2);
    assert_int_equal(finish(&s), 128 + SIGSEGV);
    assert_int_equal(signal_of(&s, 0), SIGSEGV);
    assert_int_equal(exit_of(&s, 1), 1);
    has(s.said, "say rank 0 on node n0 ended with signal 11 (Segmentation fault)\n");
    drop_folder(s.folder);
}

static void early_end_is_a_failure(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "early", "1"}};
    start(&s, 1, 2, 2);
    assert_int_equal(finish(&s), 1);
    assert_int_equal(exit_of(&s, 0), 1);
    assert_int_equal(exit_of(&s, 1), 1);
    has(s.said, "say rank 1 on node n0 ended before its work was done\n");
    drop_folder(s.folder);
}

/* The step must be running before it is hurt: the placement is written then. */
static void wait_for(const struct step *s, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    for (int64_t until = clock_ms() + DEADLINE_MS; access(path, F_OK);) {
        if (clock_ms() > until)
            fail_msg("no %s", path);
        usleep(2000);
    }
}

static void lost_agent(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "0", "99"}};
    start(&s, 2, 2, 4);
    wait_for(&s, "placement.txt");
    kill(s.agents[2], SIGKILL);
    assert_int_equal(finish(&s), 1);
    assert_int_equal(exit_of(&s, 0), 1);
    assert_int_equal(exit_of(&s, 1), 1);
    assert_int_equal(signal_of(&s, 2), SIGKILL);
    assert_int_equal(exit_of(&s, 3), 1);
    assert_string_equal(s.said, "say node n1 is lost (ranks 2-3): its agent is gone\nend 1\n");
    drop_folder(s.folder);
}

static void silent_node(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "0", "99"}};
    start(&s, 2, 1, 2);
    wait_for(&s, "placement.txt");
    kill(s.agents[1], SIGSTOP);
    int64_t began = clock_ms();
    s.status[0] = reap(&s, s.agents[0], began + DEADLINE_MS);
    assert_true(clock_ms() - began >= PATIENCE_MS);
    kill(s.agents[1], SIGKILL);
    s.agents[0] = s.agents[1];
    s.n_agents = 1;
    assert_int_equal(finish(&s), 1);
    has(s.said, "say node n1 is lost (rank 1): it is silent for 2.0 s\n");
    drop_folder(s.folder);
}

static void signals_are_orders(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "hang"}};
    start(&s, 2, 1, 2);
    wait_for(&s, "placement.txt");
    usleep(100000); /* let them start; a signal before that ends the agent the same way */
    for (int i = 0; i < 2; i++)
        kill(s.agents[i], SIGTERM);
    assert_int_equal(finish(&s), 128 + SIGTERM);
    assert_int_equal(signal_of(&s, 0), SIGTERM);
    assert_int_equal(signal_of(&s, 1), SIGTERM);
    drop_folder(s.folder);
}

static void srun_gone(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "hang"}};
    start(&s, 2, 1, 2);
    wait_for(&s, "placement.txt");
    shutdown(s.life, SHUT_WR);
    assert_int_equal(finish(&s), 1);
    has(s.said, "end 1\n");
    drop_folder(s.folder);
}

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
    const char *long_mode = getenv("GTRAIN_LONG");
    return long_mode && *long_mode && *long_mode != '0' ? 10000 : 500;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_exchange),
        cmocka_unit_test(foreign_program),
        cmocka_unit_test(exit_code_ends_all),
        cmocka_unit_test(signal_ends_all),
        cmocka_unit_test(early_end_is_a_failure),
        cmocka_unit_test(lost_agent),
        cmocka_unit_test(silent_node),
        cmocka_unit_test(signals_are_orders),
        cmocka_unit_test(srun_gone),
        cmocka_unit_test(strangers_change_nothing),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
