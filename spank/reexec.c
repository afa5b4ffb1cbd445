/* reexec.c - see reexec.h.
 *
 * Whatever else was opened is closed by the exec. The process of srun that ends its step if srun
 * ends without a word waits for such a close. */
#include "reexec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DESCRIPTORS_KEPT  256   /* higher ones of the user's are not looked for */
#define DESCRIPTORS_GUESS 65536 /* marked one by one where the kernel cannot mark them all */
#define CLOEXEC_RANGE     4U    /* CLOSE_RANGE_CLOEXEC, younger than the call itself */

extern char **environ;

/* The program's, so one per process. */
static struct {
    char path[4096]; /* not /proc/self/exe: the process's name would be "exe" then */
    char **argv, **environ;
    bool open[DESCRIPTORS_KEPT];
    sigset_t blocked;
} saved;

/* A copy that nobody changes: programs cut their words where they stand. */
static char **copy_words(char *const words[], int n)
{
    char **copy = calloc((size_t)n + 1, sizeof(*copy));

    for (int i = 0; copy && i < n; i++)
        if (!(copy[i] = strdup(words[i])))
            return NULL;
    return copy;
}

int reexec_save(int argc, char *const argv[])
{
    int n = 0;

    if (readlink("/proc/self/exe", saved.path, sizeof(saved.path) - 1) < 0)
        return -1;
    while (environ && environ[n])
        n++;
    saved.argv = copy_words(argv, argc);
    saved.environ = copy_words(environ, n);
    for (int fd = 0; fd < DESCRIPTORS_KEPT; fd++) {
        int flags = fcntl(fd, F_GETFD);

        saved.open[fd] = flags >= 0 && !(flags & FD_CLOEXEC);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &saved.blocked);
    return saved.argv && saved.environ ? 0 : -1;
}

char *const *reexec_argv(void)
{
    return saved.argv;
}

static void close_on_exec(void)
{
    bool all = false;

#ifdef SYS_close_range
    all = syscall(SYS_close_range, 3U, ~0U, CLOEXEC_RANGE) == 0;
#endif
    for (int fd = 3; !all && fd < DESCRIPTORS_GUESS; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (int fd = 3; fd < DESCRIPTORS_KEPT; fd++)
        if (saved.open[fd])
            fcntl(fd, F_SETFD, 0);
}

void reexec_run(char *const argv[], const char *variable, const char *value)
{
    int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (nowhere < 0 || !saved.environ)
        return;
    environ = saved.environ;
    if (setenv(variable, value, 1) < 0)
        return;
    dup2(nowhere, STDIN_FILENO);
    close_on_exec();
    for (int s = 1; s < NSIG; s++) {
        struct sigaction action;

        /* What is ignored stays so: perhaps the user's nohup. A handler is gone with its program.
         */
        if (sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            signal(s, SIG_DFL);
    }
    /* An interrupt that came meanwhile waits behind the mask: it ends us here, as it should. */
    pthread_sigmask(SIG_SETMASK, &saved.blocked, NULL);
    execv(saved.path, argv);
}
