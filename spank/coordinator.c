/* coordinator.c - one child of srun, a pipe it reports ready on, and a socket for the rest of its
 * life.
 *
 * The socket carries the coordinator's lines to us: `say TEXT` for the user, and `end STATUS` when
 * the run is over. Its other direction carries nothing: that it closes tells the coordinator that
 * srun is gone, however srun went. A lost node that Slurm has not noticed yet would keep srun
 * waiting for minutes after the run is over, so the listening thread then calls exit() itself. That
 * runs srun's own exit handlers, which end the step, and the other plugins'. */
#include "coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <slurm/spank.h>

#include "launches.h"
#include "spawn.h"

#define READY_MS                                                                                   \
    15000 /* a coordinator makes a folder and a socket: more is a broken file system               \
           */
#define GRACE_MS       2000 /* for srun to drain its tasks' output and end by itself */
#define DRAIN_MS       200  /* the same where the tasks do not end by themselves */
#define LEAVING_MS     5000 /* for the coordinator to finish its records */
#define LOOK_MS        20   /* between looks at whether srun has begun to end */
#define LINE_MAX_BYTES 1024

/* SPANK's hooks carry no pointer of ours between calls, and a process has one coordinator. */
static struct {
    pid_t pid;    /* 0: none, or gone */
    bool started; /* there was one, and it was ready */
    int life;
    pthread_t thread;
    bool listening;
    atomic_bool leaving; /* whoever sets it first, srun or the thread, ends the process */
    bool over;           /* `end` was heard */
    bool live_line;      /* may stand on the terminal that we print to */
    int status;
    char line[LINE_MAX_BYTES]; /* what has come of the next line */
    size_t have;
} me;

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* What comes from another process goes to a terminal: no control characters. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = '?';
}

static void tell(const char *line)
{
    if (send(me.life, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        slurm_error("gtrain: the coordinator cannot be told: %s", strerror(errno));
}

static void hear_line(char *line)
{
    make_printable(line);
    if (!strncmp(line, "say ", 4)) {
        /* To the first column, and clear: the rank that drew there draws again below. */
        if (me.live_line && write(STDERR_FILENO, "\r\033[K", 4) < 0)
            me.live_line = false;
        slurm_spank_log("gtrain: %s", line + 4);
    } else if (!strncmp(line, "end ", 4)) {
        int status = atoi(line + 4);

        me.over = true;
        me.status = status >= 0 && status <= 255 ? status : 1;
    } else {
        launches_hear(line, tell);
    }
}

/* Take what the socket has. Returns false once the coordinator has closed it. */
static bool hear(void)
{
    ssize_t n = read(me.life, me.line + me.have, sizeof(me.line) - 1 - me.have);
    char *end;

    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    if (n == 0)
        return false;
    me.have += (size_t)n;
    while ((end = memchr(me.line, '\n', me.have))) {
        size_t length = (size_t)(end - me.line) + 1;

        *end = '\0';
        hear_line(me.line);
        me.have -= length;
        memmove(me.line, end + 1, me.have);
    }
    if (me.have == sizeof(me.line) - 1)
        me.have = 0; /* no line is as long as this */
    return true;
}

/* Listen until the coordinator has closed (returns false), or the time is up, or the run is over
 * (returns true). A time of -1 has no end: srun's own life bounds it. */
static bool listen_until(int64_t deadline, bool stop_when_over)
{
    struct pollfd p = {me.life, POLLIN, 0};

    while (!(stop_when_over && me.over)) {
        int64_t left = deadline < 0 ? -1 : deadline - now_ms();

        if (deadline >= 0 && left <= 0)
            break;
        if (poll(&p, 1, (int)left) > 0 && !hear())
            return false;
    }
    return true;
}

/* The coordinator has gone without a word. The step is over then, if it can be launched again;
 * without a coordinator it would only go on until the next failure. */
static void gone_alone(void)
{
    slurm_error("gtrain: the coordinator ended before the run did");
    if (!launches_follow())
        return;
    launches_want();
    me.over = true;
    me.status = EXIT_FAILURE;
}

static void *listen_thread(void *unused)
{
    bool expected = false, open = listen_until(-1, true);
    int64_t grace_ms = me.over ? GRACE_MS : DRAIN_MS, over_ms = now_ms();

    (void)unused;
    if (!me.over && !atomic_load(&me.leaving))
        gone_alone();
    if (!me.over)
        return NULL;
    if (open)
        open = listen_until(over_ms + grace_ms, false);
    for (int64_t until = over_ms + grace_ms; now_ms() < until && !atomic_load(&me.leaving);)
        poll(NULL, 0, LOOK_MS);
    if (atomic_compare_exchange_strong(&me.leaving, &expected, true))
        exit(me.status);
    /* srun ends by itself: hear the last words. */
    if (open)
        listen_until(now_ms() + LEAVING_MS, false);
    return NULL;
}

/* The thread takes no signals: srun has its own for them. */
static int start_thread(void)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&me.thread, NULL, listen_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    me.listening = rc == 0;
    return rc ? -1 : 0;
}

static bool is_made_of(const char *text, const char *allowed, size_t shortest)
{
    return strlen(text) >= shortest && text[strspn(text, allowed)] == '\0';
}

/* `ADDRESS PORT SECRETHEX`, or `error TEXT`. */
static int read_contact(char *line, struct contact *contact)
{
    char extra;

    make_printable(line);
    if (!strncmp(line, "error ", 6)) {
        slurm_error("gtrain: %s", line + 6);
        return -1;
    }
    if (sscanf(line, "%255s %7s %256s %c", contact->address, contact->port, contact->secret,
               &extra) != 3 ||
        !is_made_of(contact->port, "0123456789", 1) ||
        !is_made_of(contact->secret, "0123456789abcdefABCDEF", 32)) {
        slurm_error("gtrain: the coordinator's first line is not understood: gtrain and its plugin "
                    "are of different versions");
        return -1;
    }
    return 0;
}

/* Read the one line from the pipe. Returns 0 with `line` filled, -1 after one line in Slurm's log.
 */
static int read_ready(int fd, char *line, size_t size)
{
    int64_t deadline = now_ms() + READY_MS;
    size_t have = 0;
    char *end;

    while (have < size - 1) {
        struct pollfd p = {fd, POLLIN, 0};
        int64_t left = deadline - now_ms();
        ssize_t n;

        if (left <= 0) {
            slurm_error("gtrain: the coordinator was not ready within %d s", READY_MS / 1000);
            return -1;
        }
        if (poll(&p, 1, (int)left) <= 0)
            continue;
        n = read(fd, line + have, size - 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
        line[have] = '\0';
        if ((end = strchr(line, '\n'))) {
            *end = '\0';
            return 0;
        }
    }
    slurm_error("gtrain: the coordinator ended before it was ready");
    return -1;
}

static int talk(int ready, struct contact *contact)
{
    char line[LINE_MAX_BYTES];

    if (read_ready(ready, line, sizeof(line)) < 0 || read_contact(line, contact) < 0)
        return -1;
    if (start_thread() < 0) {
        slurm_error("gtrain: no thread to listen to the coordinator");
        return -1;
    }
    return 0;
}

int coordinator_start(char *const argv[], bool live_line, struct contact *contact)
{
    int ready[2] = {-1, -1}, life[2] = {-1, -1}, rv = -1;

    me.live_line = live_line && isatty(STDERR_FILENO);
    if (pipe2(ready, O_CLOEXEC) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life) < 0 ||
        (me.pid = spawn_detached(argv, ready[1], life[1])) < 0) {
        slurm_error("gtrain: cannot start %s: %s", argv[0], strerror(errno));
        me.pid = 0;
        goto done;
    }
    close(ready[1]);
    close(life[1]);
    ready[1] = life[1] = -1;
    me.life = life[0];
    life[0] = -1;
    rv = talk(ready[0], contact);
    me.started = rv == 0;
    if (rv < 0)
        coordinator_end();
done:
    for (int i = 0; i < 2; i++) {
        if (ready[i] >= 0)
            close(ready[i]);
        if (life[i] >= 0)
            close(life[i]);
    }
    return rv;
}

/* Wait until the thread has heard the coordinator's last words, or hear them here if the thread is
 * the one that ends srun (or never started). */
static void hear_last_words(void)
{
    struct timespec until;

    if (!me.listening || pthread_equal(pthread_self(), me.thread)) {
        listen_until(now_ms() + LEAVING_MS, false);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVING_MS / 1000;
    pthread_timedjoin_np(me.thread, NULL, &until);
}

void coordinator_end(void)
{
    int status;

    if (me.pid <= 0)
        return;
    atomic_store(&me.leaving, true);
    if (!me.over)
        launches_name_silent(tell);
    shutdown(me.life, SHUT_WR);
    hear_last_words();
    if (spawn_wait(me.pid, &status, LEAVING_MS) == 0) {
        kill(me.pid, SIGKILL);
        spawn_wait(me.pid, &status, LEAVING_MS);
    }
    me.pid = 0;
}

int coordinator_status(int status)
{
    if (!me.started || (status != 0 && !(me.over && me.status == 0)))
        return status;
    return me.over ? me.status : EXIT_FAILURE;
}
