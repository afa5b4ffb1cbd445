/* sys.h - every system call of this room that changes or reads a disk goes through here.
 *
 * A hook may stand in front of each call: crash tests use it to kill the process at any boundary,
 * to shorten a transfer or to fail it. Without a hook (NULL) the calls are the plain ones,
 * restarted on EINTR. They return as the system call does, -1 with errno set on failure. */
#ifndef GTRAIN_CKPT_SYS_H
#define GTRAIN_CKPT_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ckpt_op {
    CKPT_OP_OPEN,
    CKPT_OP_RESERVE,
    CKPT_OP_WRITE,
    CKPT_OP_READ,
    CKPT_OP_WAIT, /* transfers are queued in the kernel, the process is about to wait for them */
    CKPT_OP_SYNC,
    CKPT_OP_RENAME,
    CKPT_OP_UNLINK,
    CKPT_OP_TRUNCATE,
    CKPT_OP_ROOM, /* is there space for `bytes`? fewer: no */
};

struct ckpt_hook {
    /* How many of `bytes` to transfer now (for other calls: 0 or more goes ahead), or -errno.
     * Called from any thread of the room. */
    ssize_t (*allow)(void *arg, enum ckpt_op op, size_t bytes);
    void *arg;
};

ssize_t sys_allow(const struct ckpt_hook *hook, enum ckpt_op op, size_t bytes);

int sys_open(const struct ckpt_hook *hook, int dirfd, const char *name, int flags, mode_t mode);
/* Sets the length and reserves the blocks. Where the file system cannot reserve (EOPNOTSUPP), only
 * the length is set. */
int sys_reserve(const struct ckpt_hook *hook, int fd, off_t bytes);
ssize_t sys_pwrite(const struct ckpt_hook *hook, int fd, const void *p, size_t n, off_t at);
ssize_t sys_pread(const struct ckpt_hook *hook, int fd, void *p, size_t n, off_t at);
/* To the end of a file opened with O_APPEND. */
ssize_t sys_append(const struct ckpt_hook *hook, int fd, const void *p, size_t n);
int sys_fsync(const struct ckpt_hook *hook, int fd);
/* Fails with EEXIST rather than replace. */
int sys_rename_new(const struct ckpt_hook *hook, int dirfd, const char *from, const char *to);
int sys_rename_over(const struct ckpt_hook *hook, int dirfd, const char *from, const char *to);
int sys_unlink(const struct ckpt_hook *hook, int dirfd, const char *name);
int sys_truncate(const struct ckpt_hook *hook, int fd, off_t bytes);
/* Has the file system so many bytes free, for who runs this? Where it does not say: true. */
bool sys_has_room(const struct ckpt_hook *hook, int fd, int64_t bytes);

#endif
