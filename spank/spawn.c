/* spawn.c - fork and exec from a process that is not ours.
 *
 * srun has threads by the time a coordinator starts, and another thread may hold any lock at the
 * moment of the fork: between fork and exec the child makes system calls and nothing else. srun
 * also has signals blocked and descriptors open (a pipe among them whose end tells a watchman that
 * srun is gone), none of which may be handed on. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <slurm/spank.h>

#define POLL_MS           2     /* between looks at a child that runs */
#define EXEC_FAILED       127   /* as a shell says it */
#define DESCRIPTORS_GUESS 65536 /* closed one by one where the kernel has no close_range */

/* In the child: every signal as a fresh process has it. */
static void reset_signals(void)
{
    sigset_t none;

    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the child: close `first` and all above. */
static void close_from(int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0) == 0)
        return;
#endif
    for (int fd = first; fd < DESCRIPTORS_GUESS; fd++)
        close(fd);
}

int spawn_wait(pid_t pid, int *status, int deadline_ms)
{
    const struct timespec pause = {0, POLL_MS * 1000000L};

    for (int waited = 0;; waited += POLL_MS) {
        pid_t got = waitpid(pid, status, WNOHANG);

        if (got == pid)
            return 1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (waited >= deadline_ms)
            return 0;
        nanosleep(&pause, NULL);
    }
}

int spawn_run(char *const argv[], int deadline_ms)
{
    int status, ended, nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t pid = nowhere < 0 ? -1 : fork();

    if (pid == 0) {
        reset_signals();
        dup2(nowhere, 0);
        dup2(nowhere, 1);
        close_from(3);
        execv(argv[0], argv);
        _exit(EXEC_FAILED);
    }
    if (nowhere >= 0)
        close(nowhere);
    if (pid < 0) {
        slurm_error("gtrain: cannot start %s: %s", argv[0], strerror(errno));
        return -1;
    }
    ended = spawn_wait(pid, &status, deadline_ms);
    if (ended == 0) {
        kill(pid, SIGKILL);
        spawn_wait(pid, &status, deadline_ms);
        slurm_error("gtrain: %s %s took more than %d s", argv[0], argv[1], deadline_ms / 1000);
        return -1;
    }
    if (ended < 0 || !WIFEXITED(status)) {
        slurm_error("gtrain: %s %s did not end by itself", argv[0], argv[1]);
        return -1;
    }
    if (WEXITSTATUS(status) == EXEC_FAILED) {
        slurm_error("gtrain: %s cannot be run", argv[0]);
        return -1;
    }
    return WEXITSTATUS(status);
}

/* In the child of spawn_detached, up to the exec. */
static void become_detached(char *const argv[], int fd3, int fd4)
{
    int nowhere, high3 = fcntl(fd3, F_DUPFD, 10), high4 = fcntl(fd4, F_DUPFD, 10);

    reset_signals();
    signal(SIGTERM, SIG_IGN); /* srun passes SIGTERM to its step; its end is what ends us */
    setsid();
    nowhere = open("/dev/null", O_RDWR);
    if (high3 < 0 || high4 < 0 || nowhere < 0)
        _exit(EXEC_FAILED);
    for (int fd = 0; fd < 3; fd++)
        dup2(nowhere, fd);
    dup2(high3, 3);
    dup2(high4, 4);
    close_from(5);
    execv(argv[0], argv);
    _exit(EXEC_FAILED);
}

pid_t spawn_detached(char *const argv[], int fd3, int fd4)
{
    pid_t pid = fork();

    if (pid == 0)
        become_detached(argv, fd3, fd4);
    return pid;
}
