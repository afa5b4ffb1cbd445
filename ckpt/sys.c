/* sys.c - the system calls, each with the hook in front. */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

ssize_t sys_allow(const struct ckpt_hook *hook, enum ckpt_op op, size_t bytes)
{
    return hook ? hook->allow(hook->arg, op, bytes) : (ssize_t)bytes;
}

/* 0 to go on, -1 with errno set where the hook refuses. */
static int permit(const struct ckpt_hook *hook, enum ckpt_op op)
{
    ssize_t n = sys_allow(hook, op, 0);
    if (n >= 0)
        return 0;
    errno = (int)-n;
    return -1;
}

/* A file that grows beyond the process' limit (ulimit -f) is an error, EFBIG; that the kernel sends
 * SIGXFSZ as well, which ends the process, is held back and forgotten. */
struct no_signal {
    sigset_t old;
    bool was_pending;
};

static void hold_signal(struct no_signal *s)
{
    sigset_t limit, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    sigpending(&pending);
    s->was_pending = sigismember(&pending, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &s->old);
}

static void forget_signal(const struct no_signal *s)
{
    int errnum = errno;
    sigset_t limit;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (!s->was_pending)
        sigtimedwait(&limit, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &s->old, NULL);
    errno = errnum;
}

int sys_open(const struct ckpt_hook *hook, int dirfd, const char *name, int flags, mode_t mode)
{
    if (permit(hook, CKPT_OP_OPEN))
        return -1;
    int fd;
    do
        fd = openat(dirfd, name, flags | O_CLOEXEC | O_NOFOLLOW, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int sys_reserve(const struct ckpt_hook *hook, int fd, off_t bytes)
{
    if (permit(hook, CKPT_OP_RESERVE))
        return -1;
    int rc;
    struct no_signal limit;
    hold_signal(&limit);
    do
        rc = fallocate(fd, 0, 0, bytes);
    while (rc && errno == EINTR);
    if (rc && errno == EOPNOTSUPP)
        rc = ftruncate(fd, bytes);
    forget_signal(&limit);
    return rc;
}

ssize_t sys_pwrite(const struct ckpt_hook *hook, int fd, const void *p, size_t n, off_t at)
{
    ssize_t most = sys_allow(hook, CKPT_OP_WRITE, n);
    if (most < 0) {
        errno = (int)-most;
        return -1;
    }
    ssize_t done;
    do
        done = pwrite(fd, p, (size_t)most, at);
    while (done < 0 && errno == EINTR);
    return done;
}

ssize_t sys_pread(const struct ckpt_hook *hook, int fd, void *p, size_t n, off_t at)
{
    ssize_t most = sys_allow(hook, CKPT_OP_READ, n);
    if (most < 0) {
        errno = (int)-most;
        return -1;
    }
    ssize_t done;
    do
        done = pread(fd, p, (size_t)most, at);
    while (done < 0 && errno == EINTR);
    return done;
}

ssize_t sys_append(const struct ckpt_hook *hook, int fd, const void *p, size_t n)
{
    ssize_t most = sys_allow(hook, CKPT_OP_WRITE, n);
    if (most < 0) {
        errno = (int)-most;
        return -1;
    }
    ssize_t done;
    struct no_signal limit;
    hold_signal(&limit);
    do
        done = write(fd, p, (size_t)most);
    while (done < 0 && errno == EINTR);
    forget_signal(&limit);
    return done;
}

int sys_fsync(const struct ckpt_hook *hook, int fd)
{
    if (permit(hook, CKPT_OP_SYNC))
        return -1;
    int rc;
    do
        rc = fsync(fd);
    while (rc && errno == EINTR);
    return rc;
}

int sys_rename_new(const struct ckpt_hook *hook, int dirfd, const char *from, const char *to)
{
    if (permit(hook, CKPT_OP_RENAME))
        return -1;
    int rc = renameat2(dirfd, from, dirfd, to, RENAME_NOREPLACE);
    if (!rc || (errno != EINVAL && errno != ENOSYS))
        return rc;
    /* Network file systems lack the flag. Names hold epoch, generation and rank, so that only this
     * process can be making `to`: looking first is enough. */
    if (!faccessat(dirfd, to, F_OK, AT_SYMLINK_NOFOLLOW)) {
        errno = EEXIST;
        return -1;
    }
    return renameat(dirfd, from, dirfd, to);
}

int sys_rename_over(const struct ckpt_hook *hook, int dirfd, const char *from, const char *to)
{
    return permit(hook, CKPT_OP_RENAME) ? -1 : renameat(dirfd, from, dirfd, to);
}

int sys_unlink(const struct ckpt_hook *hook, int dirfd, const char *name)
{
    return permit(hook, CKPT_OP_UNLINK) ? -1 : unlinkat(dirfd, name, 0);
}

int sys_truncate(const struct ckpt_hook *hook, int fd, off_t bytes)
{
    return permit(hook, CKPT_OP_TRUNCATE) ? -1 : ftruncate(fd, bytes);
}

bool sys_has_room(const struct ckpt_hook *hook, int fd, int64_t bytes)
{
    struct statvfs fs;
    if (sys_allow(hook, CKPT_OP_ROOM, (size_t)bytes) < bytes)
        return false;
    return fstatvfs(fd, &fs) || (double)fs.f_bavail * (double)fs.f_frsize >= (double)bytes;
}
