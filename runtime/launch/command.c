/* command.c - see command.h. */
#include "launch/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

void command_close_above_stderr(void)
{
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, 3U, ~0U, 0U))
        return;
#endif
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < most; fd++)
        close(fd);
}

/* In a child up to its exec: nothing of ours is handed on. */
static void become(char *const argv[], int out)
{
    int nowhere = open("/dev/null", O_RDWR);
    sigset_t none;
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    dup2(nowhere, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    command_close_above_stderr();
    /* scontrol leaves scripts where it shrinks a job. Nobody can make a file there. */
    if (chdir("/proc"))
        _exit(126);
    execvp(argv[0], argv);
    _exit(127);
}

int command_read(int fd, char *text, size_t room, int64_t deadline)
{
    size_t have = 0;
    ssize_t n = 1;
    while (n) {
        char rest[512];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, clock_left_ms(deadline)) <= 0 && clock_ms() >= deadline)
            return -1;
        int full = have + 1 >= room;
        n = read(fd, full ? rest : text + have, full ? sizeof rest : room - 1 - have);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
        have += full || n < 0 ? 0 : (size_t)n;
        text[have] = 0;
    }
    return 0;
}

/* The program's name and, where it has one, its first word. */
static void name(char *const argv[], char *text, size_t room)
{
    const char *slash = strrchr(argv[0], '/');
    snprintf(text, room, "%.64s%s%.64s", slash ? slash + 1 : argv[0], argv[1] ? " " : "",
             argv[1] ? argv[1] : "");
}

int command_run(char *const argv[], int deadline_ms, char *text, size_t room, struct err *err)
{
    int out[2], status = -1, late = 0;
    char what[160];
    name(argv, what, sizeof what);
    text[0] = 0;
    if (pipe2(out, O_CLOEXEC))
        return err_set_errno(err, errno, "no pipe");
    pid_t pid = fork();
    if (pid == 0)
        become(argv, out[1]);
    close(out[1]);
    if (pid < 0) {
        close(out[0]);
        return err_set_errno(err, errno, "no process for %s", what);
    }
    if ((late = command_read(out[0], text, room, clock_ms() + deadline_ms))) {
        setpgid(pid, pid); /* it may not have come to it */
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL);
    }
    close(out[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (late)
        return err_set(err, "%s took more than %d s", what, deadline_ms / 1000);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return err_set(err, "%s is not found", argv[0]);
    if (*text)
        return err_set(err, "%s: %.*s", what, (int)strcspn(text, "\n"), text);
    return err_set(err, "%s ended with %s %d", what, WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* The child of a child: whoever collects orphans collects it. */
static void detached(int fd, void (*work)(int fd, void *arg), void *arg)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE};
    int nowhere = open("/dev/null", O_RDWR);
    sigset_t none;
    setsid();
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int kept = dup2(fd < 0 ? nowhere : fd, STDIN_FILENO); /* below those that are closed next */
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    command_close_above_stderr();
    work(fd < 0 ? -1 : kept, arg);
    _exit(0);
}

int command_detach(int fd, void (*work)(int fd, void *arg), void *arg)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        pid = fork();
        if (pid == 0)
            detached(fd, work, arg);
        _exit(pid < 0);
    }
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -1;
}
