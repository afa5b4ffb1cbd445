/* agent.c - one task: starts the worker, speaks for it, passes signals, cleans up behind it.
 *
 * A worker's death right after a signal to the step is an order that was obeyed, not a failure. The
 * agent outlives its worker until the coordinator says what is next. That is a new generation: then
 * whatever the worker has left is killed, and a worker started anew with the new assignment. Or it
 * is the end: the agent leaves as its worker left, or with 0 (all is done), or with 1 (somebody
 * else failed). No worker starts while anything of the one before is alive. */
#include "launch/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/hub.h"

enum {
    EVENTS = 32,
    RETRY_MS = 50,
    ORDER_LATE_MS = 100, /* between Slurm's signal to the worker and that to us */
};

struct agent {
    const struct agent_env *env;
    char **argv;
    const sigset_t *mask; /* as it was before us: the worker's */
    int epoll;
    struct hub *hub; /* of local task 0 only */

    struct agent_link {
        struct watch watch;
        struct agent *agent;
    } to_hub, to_worker, to_signals;
    struct wire up;   /* to the hub; fd -1 until found */
    struct wire down; /* to the worker; fd -1: none */
    int signals;      /* signalfd */
    int64_t join_by, try_at;

    struct message_assign *assign; /* the newest; NULL until the hub has one */
    pid_t worker;                  /* 0: none (any more) */
    int exec_failed;               /* read end: why the worker's program could not be executed */
    int64_t stop_by;               /* what the last generation left is being killed; 0: not */
    int exited, status;            /* of this generation's worker */
    int opened, done;
    int64_t signalled;        /* when the step got a signal that ends programs */
    int owed;                 /* one that came while there was no worker to obey it; 0: none */
    int leaving, code;        /* how the step ends */
    int told;                 /* ... by the coordinator */
    void (*pipe_action)(int); /* the worker's SIGPIPE */
};

/* Signals by which people end programs. */
static int ends_programs(int number)
{
    return number == SIGTERM || number == SIGINT || number == SIGQUIT || number == SIGHUP ||
           number == SIGUSR1 || number == SIGUSR2 || number == SIGALRM || number == SIGXCPU;
}

static void leave(struct agent *a, int code, const char *text)
{
    if (a->leaving)
        return;
    a->leaving = 1;
    a->code = code;
    if (text && *text)
        dprintf(STDERR_FILENO, "gtrain: %s\n", text);
}

/* ---- the hub's side ---- */

static void send_up(struct agent *a, struct wire_frame *f)
{
    if (a->up.fd < 0)
        wire_frame_drop(f);
    else if (watch_send(a->epoll, &a->to_hub.watch, &a->up, f))
        wire_close(&a->up);
}

static struct message_rank who(const struct agent *a)
{
    const struct message_assign *m = a->assign;
    return (struct message_rank){.rank = (uint32_t)m->node_rank * m->local_world + a->env->local_id,
                                 .generation = m->generation};
}

static void join(struct agent *a, int fd)
{
    wire_open(&a->up, fd, WIRE_MAX_BYTES);
    struct message_join m = {.local_id = a->env->local_id, .proc_id = a->env->proc_id};
    if (watch_add(a->epoll, &a->to_hub.watch, fd))
        wire_close(&a->up);
    else
        send_up(a, message_join(&m));
}

static void find_hub(struct agent *a, int64_t now)
{
    if (a->up.fd >= 0 || a->leaving || now < a->try_at)
        return;
    a->try_at = now + RETRY_MS;
    int fd = agent_socket_connect(a->env);
    if (fd >= 0) {
        join(a, fd);
        a->join_by = INT64_MAX;
    } else if (now >= a->join_by || (errno != ECONNREFUSED && errno != EAGAIN)) {
        char text[256];
        snprintf(text, sizeof text, "node %s: local task %u cannot reach the agent of task 0: %s",
                 a->env->node, a->env->local_id, strerror(errno));
        leave(a, 1, text);
    }
}

/* ---- the worker's side ---- */

static void send_identity(struct agent *a)
{
    struct launch_identity *id = calloc(1, sizeof *id);
    struct wire_frame *f = NULL;
    if (id) {
        const struct message_assign *m = a->assign;
        *id = (struct launch_identity){
            .rank = (int)who(a).rank,
            .world = (int)m->world,
            .local_rank = (int)a->env->local_id,
            .local_world = (int)m->local_world,
            .node_rank = m->node_rank,
            .spares = (int)m->spares,
            .replicas = (int)m->replicas,
            .planned_replicas = (int)m->planned_replicas,
            .epoch = m->epoch,
            .since = m->since,
            .generation = m->generation,
            .plan_text = m->plan,
            .plan_bytes = m->plan_bytes,
        };
        snprintf(id->run_id, sizeof id->run_id, "%s", m->run_id);
        snprintf(id->node, sizeof id->node, "%s", a->env->node);
        snprintf(id->address, sizeof id->address, "%s", m->address);
        snprintf(id->restore, sizeof id->restore, "%s", m->restore);
        snprintf(id->run_dir, sizeof id->run_dir, "%s", m->run_dir);
        f = message_identity(id);
    }
    free(id);
    if (!f || watch_send(a->epoll, &a->to_worker.watch, &a->down, f))
        wire_close(&a->down);
}

/* 0, or -1 if this is nothing a worker says. */
static int take_from_worker(struct agent *a, const struct wire_message *m)
{
    struct message_rank is, should = who(a);
    if (message_get_rank(m, &is) || is.rank != should.rank || is.generation != should.generation)
        return -1;
    switch (m->type) {
    case MESSAGE_OPENED:
        a->opened = 1;
        send_identity(a);
        break;
    case MESSAGE_DONE:
        a->done = 1;
        break;
    case MESSAGE_EXCHANGE:
    case MESSAGE_PUBLISH:
    case MESSAGE_ASK:
    case MESSAGE_PROGRESS:
        break;
    default:
        return -1;
    }
    send_up(a, message_again(m));
    return 0;
}

/* Take what has come. Returns 0 while there may be more. */
static int read_worker(struct agent *a)
{
    enum wire_status status = wire_read(&a->down);
    struct wire_message m;
    struct err err;
    int more = 0, bad = 0, any = 0;
    while (a->down.fd >= 0 && !bad && (more = wire_next(&a->down, &m, &err)) > 0) {
        bad = take_from_worker(a, &m);
        any = 1;
    }
    /* A program that talks nonsense on this descriptor loses it, nothing else. */
    if (bad || more < 0 || status != WIRE_OK) {
        wire_close(&a->down);
        return -1;
    }
    return any ? 0 : -1;
}

static void handle_worker(struct watch *w, uint32_t events)
{
    struct agent *a = ((struct agent_link *)w)->agent;
    if (a->down.fd < 0)
        return;
    if (events & EPOLLOUT && watch_send(a->epoll, w, &a->down, NULL))
        wire_close(&a->down);
    else
        read_worker(a);
}

static void be_worker(struct agent *a, pid_t parent, int fd, int failed)
{
    char **env = agent_env_worker(a->env, a->assign, fd);
    char **argv = a->argv;
    const char *program = a->env->program;
    if (!*program) { /* the plugin put us in front: the program is our first argument */
        argv++;
        program = argv[0];
    } else {
        argv[0] = (char *)program;
    }
    signal(SIGPIPE, a->pipe_action);
    sigprocmask(SIG_SETMASK, a->mask, NULL);
    fcntl(fd, F_SETFD, 0);
    agent_memory_pass(a->env);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    if (!env)
        errno = ENOMEM;
    else
        execvpe(program, argv, env);
    int why = errno;
    if (write(failed, &why, sizeof why) == (ssize_t)sizeof why)
        dprintf(STDERR_FILENO, "gtrain-agent: execve(): %s: %s\n", program, strerror(why));
    _exit(why); /* as slurmstepd does */
}

static void start_worker(struct agent *a)
{
    int pair[2], failed[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        leave(a, 1, "no socket for the worker");
        return;
    }
    if (pipe2(failed, O_CLOEXEC | O_NONBLOCK)) {
        close(pair[0]);
        close(pair[1]);
        leave(a, 1, "no pipe for the worker");
        return;
    }
    pid_t parent = getpid();
    a->worker = fork();
    if (a->worker == 0)
        be_worker(a, parent, pair[1], failed[1]);
    close(pair[1]);
    close(failed[1]);
    a->exec_failed = failed[0];
    if (a->worker < 0) {
        close(pair[0]);
        a->worker = 0;
        leave(a, 1, "cannot start a process for the worker");
        return;
    }
    wire_open(&a->down, pair[0], WIRE_MAX_BYTES);
    if (watch_add(a->epoll, &a->to_worker.watch, pair[0]))
        wire_close(&a->down);
}

static void handle_signals(struct watch *w, uint32_t events);

/* Ended by a signal that people send, or with the exit code that shells make of it. */
static int looks_ordered(int status)
{
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
    return ends_programs(number);
}

/* Slurm may signal the worker before us. A death that looks like an order waits a moment for our
 * own copy of the signal. */
static void hear_order(struct agent *a)
{
    int64_t until = clock_ms() + ORDER_LATE_MS;
    while (!a->signalled && clock_ms() < until) {
        struct pollfd p = {.fd = a->signals, .events = POLLIN};
        if (poll(&p, 1, clock_left_ms(until)) > 0)
            handle_signals(&a->to_signals.watch, EPOLLIN);
    }
}

/* 1 if the worker's program was never executed. */
static int never_ran(struct agent *a)
{
    int why;
    int never = a->exec_failed >= 0 && read(a->exec_failed, &why, sizeof why) > 0;
    if (a->exec_failed >= 0)
        close(a->exec_failed);
    a->exec_failed = -1;
    return never;
}

static void report_exit(struct agent *a, int status, int flags)
{
    struct message_exited how = {.who = who(a), .flags = (uint8_t)flags};
    a->exited = 1;
    a->status = status;
    if (WIFSIGNALED(status))
        how.signal = (uint8_t)WTERMSIG(status);
    else
        how.code = (uint8_t)WEXITSTATUS(status);
    if (a->signalled && clock_ms() - a->signalled < AGENT_ORDER_MS)
        how.flags |= EXITED_ORDERED;
    how.flags |= (uint8_t)((a->opened ? EXITED_OPENED : 0) | (a->done ? EXITED_DONE : 0));
    send_up(a, message_exited(&how));
}

static void worker_exited(struct agent *a, int status)
{
    a->worker = 0;
    if (looks_ordered(status))
        hear_order(a);
    while (a->down.fd >= 0 && !read_worker(a))
        continue; /* its last words */
    wire_close(&a->down);
    kill_children(clock_ms() + AGENT_KILL_MS);
    report_exit(a, status, never_ran(a) ? EXITED_NEVER : 0);
}

static void reap(struct agent *a)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == a->worker)
            worker_exited(a, status);
}

/* Input is the worker's. Held by us, or by a spare that never reads it, it would fill up and stop
 * srun from passing it to the others. */
static void drop_input(void)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0)
        return;
    dup2(nothing, STDIN_FILENO);
    if (nothing != STDIN_FILENO)
        close(nothing);
}

/* ---- what the hub says ---- */

/* The worker of the generation before, whatever it is doing: it is killed, and the loop goes on
 * (others need our sign of life) until nothing of it is left. */
static void stop_worker(struct agent *a)
{
    wire_close(&a->down);
    never_ran(a);
    a->worker = 0;
    a->exited = a->status = a->opened = a->done = 0;
    a->stop_by = clock_ms() + AGENT_STOP_MS;
}

/* A turn of that, and then the new worker. Returns when the next is due. */
static int64_t go_on_stopping(struct agent *a, int64_t now)
{
    if (!a->stop_by || a->leaving)
        return INT64_MAX;
    if (kill_round()) {
        if (now >= a->stop_by)
            leave(a, 1, "what is left of the worker does not die");
        return now + 1;
    }
    a->stop_by = 0;
    if (a->assign->node_rank >= 0 && a->owed)
        report_exit(a, a->owed, 0); /* the step was told to end while it had no worker */
    else if (a->assign->node_rank >= 0)
        start_worker(a);
    drop_input(); /* it was the first generation's */
    return INT64_MAX;
}

static void take_assign(struct agent *a, const struct wire_message *m)
{
    struct message_assign *next = calloc(1, sizeof *next);
    if (a->leaving || !next || message_get_assign(m, next)) {
        free(next);
        leave(a, 1, "an assignment that makes no sense");
        return;
    }
    if (a->assign)
        message_assign_free(a->assign);
    free(a->assign);
    a->assign = next;
    stop_worker(a);
    go_on_stopping(a, clock_ms());
}

static void look(struct agent *a)
{
    if (!a->assign || a->assign->node_rank < 0)
        return;
    struct message_seen seen = {.who = who(a)};
    seen.state = (uint8_t)agent_look(a->worker, &seen.cpu_ms);
    send_up(a, message_seen(&seen));
}

static void take_from_hub(struct agent *a, const struct wire_message *m)
{
    struct message_end end;
    switch (m->type) {
    case MESSAGE_ASSIGN:
        take_assign(a, m);
        return;
    case MESSAGE_EXCHANGED:
    case MESSAGE_ANSWER:
    case MESSAGE_STOP:
        if (a->down.fd >= 0 &&
            watch_send(a->epoll, &a->to_worker.watch, &a->down, message_again(m)))
            wire_close(&a->down);
        return;
    case MESSAGE_LOOK:
        look(a);
        return;
    case MESSAGE_END:
        a->told = 1;
        if (message_get_end(m, &end))
            leave(a, 1, "a last word that makes no sense");
        else
            leave(a, end.code ? 1 : 0, a->env->local_id == 0 ? end.text : "");
        return;
    default:
        return;
    }
}

static void handle_hub(struct watch *w, uint32_t events)
{
    struct agent *a = ((struct agent_link *)w)->agent;
    if (a->up.fd < 0)
        return;
    if (events & EPOLLOUT && watch_send(a->epoll, w, &a->up, NULL)) {
        wire_close(&a->up);
    } else {
        enum wire_status status = wire_read(&a->up);
        struct wire_message m;
        struct err err;
        int more = 0;
        while (a->up.fd >= 0 && (more = wire_next(&a->up, &m, &err)) > 0)
            take_from_hub(a, &m);
        if (more < 0 || status != WIRE_OK)
            wire_close(&a->up);
    }
    if (a->up.fd < 0)
        leave(a, 1, ""); /* with its hub the node is lost: others say so */
}

/* ---- signals ---- */

static void take_signal(struct agent *a, int number)
{
    if (number == SIGCHLD) {
        reap(a);
        return;
    }
    if (ends_programs(number))
        a->signalled = clock_ms();
    if (a->worker > 0) {
        /* It may have had it from Slurm already: programs must bear a signal twice. */
        kill(a->worker, number);
        if (number == SIGTERM || number == SIGINT || number == SIGQUIT || number == SIGHUP)
            send_up(a, message_rank(MESSAGE_SIGNALLED, who(a)));
        if (number == SIGTERM && a->opened && a->down.fd >= 0 &&
            watch_send(a->epoll, &a->to_worker.watch, &a->down, message_plain(MESSAGE_STOP)))
            wire_close(&a->down);
    } else if (number != SIGTERM && number != SIGINT && number != SIGQUIT && number != SIGHUP) {
        return;
    } else if (a->exited || a->stop_by) {
        a->owed = number;
    } else {
        /* No worker to obey it: it is for us. */
        leave(a, 1, "");
        a->exited = 1;
        a->status = number;
    }
}

static void handle_signals(struct watch *w, uint32_t events)
{
    struct agent *a = ((struct agent_link *)w)->agent;
    struct signalfd_siginfo info;
    (void)events;
    while (read(a->signals, &info, sizeof info) == (ssize_t)sizeof info)
        take_signal(a, (int)info.ssi_signo);
}

static int open_signals(struct agent *a)
{
    static const int faults[] = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,
                                 SIGABRT, SIGTRAP, SIGSYS, SIGPIPE};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&set, faults[i]);
    if (sigprocmask(SIG_SETMASK, &set, NULL))
        return -1;
    a->pipe_action = signal(SIGPIPE, SIG_IGN);
    a->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return a->signals < 0 ? -1 : watch_add(a->epoll, &a->to_signals.watch, a->signals);
}

/* ---- the whole ---- */

static int open_agent(struct agent *a, struct err *err)
{
    int64_t now = clock_ms();
    a->up.fd = a->down.fd = a->exec_failed = -1;
    a->to_hub = (struct agent_link){.watch.handle = handle_hub, .agent = a};
    a->to_worker = (struct agent_link){.watch.handle = handle_worker, .agent = a};
    a->to_signals = (struct agent_link){.watch.handle = handle_signals, .agent = a};
    a->join_by = now + AGENT_JOIN_MS;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (a->epoll < 0 || open_signals(a))
        return err_set_errno(err, errno, "cannot watch signals");
    if (a->env->local_id > 0)
        return 0;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return err_set_errno(err, errno, "no socket");
    if (hub_open(&a->hub, a->env, a->epoll, pair[0], now, err)) {
        close(pair[1]);
        return -1;
    }
    a->join_by = INT64_MAX;
    join(a, pair[1]);
    return 0;
}

static int64_t turn(struct agent *a, int64_t deadline)
{
    struct epoll_event events[EVENTS];
    int timeout = deadline == INT64_MAX ? -1 : clock_left_ms(deadline);
    int n = epoll_wait(a->epoll, events, EVENTS, timeout);
    for (int i = 0; i < n; i++) {
        struct watch *w = events[i].data.ptr;
        w->handle(w, events[i].events);
    }
    int64_t now = clock_ms(), next = INT64_MAX;
    if (a->up.fd < 0 && !a->leaving) {
        find_hub(a, now);
        next = a->try_at;
    }
    int64_t stop = go_on_stopping(a, now);
    if (stop < next)
        next = stop;
    int64_t hub = a->hub ? hub_tick(a->hub, now) : INT64_MAX;
    return hub < next ? hub : next;
}

/* The step is over: no process of ours stays. */
static void clean_up(struct agent *a)
{
    wire_close(&a->down);
    kill_children(clock_ms() + AGENT_KILL_MS);
    wire_close(&a->up);
    int64_t leave_by = clock_ms() + AGENT_LEAVE_MS;
    while (a->hub && a->told && !hub_finished(a->hub) && clock_ms() < leave_by)
        turn(a, leave_by);
    hub_close(a->hub);
}

void agent_main(const struct agent_env *env, char **argv, const sigset_t *mask)
{
    struct agent a = {.env = env, .argv = argv, .mask = mask};
    struct err err;
    if (open_agent(&a, &err)) {
        dprintf(STDERR_FILENO, "gtrain-agent: %s\n", err.text);
        hub_close(a.hub);
        _exit(1);
    }
    int64_t next = 0;
    while (!a.leaving)
        next = turn(&a, next);
    int orphaned = a.hub && hub_orphaned(a.hub);
    struct message_assign last = {.requeues = 0};
    if (orphaned)
        last = *hub_assigned(a.hub);
    clean_up(&a);
    if (orphaned)
        agent_requeue(env, &last, a.signals);
    /* Done, or a failure of our own: as the worker left. Else somebody else's failure. */
    int own = a.exited && (a.code == 0 || a.status != 0);
    exit_like(own ? a.status : a.code << 8, mask);
}
