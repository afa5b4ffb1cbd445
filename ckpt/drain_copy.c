/* drain_copy.c - one rank's file from the local folder to the shared one.
 *
 * Every byte is checked before it is written: the header against the digest in the record, the data
 * against the header's CRCs. The header goes last, so that a half is no safetensors file even for
 * who takes it by its name. The name it gets in the end is this rank's, epoch's and generation's
 * own: nobody else makes it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "crc.h"
#include "drain_impl.h"
#include "file.h"

static int write_all(struct ckpt_drain *d, int fd, const unsigned char *p, int64_t n, int64_t at,
                     struct err *err)
{
    while (n) {
        ssize_t done = sys_pwrite(d->hook, fd, p, (size_t)n, at);
        if (done < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (done <= 0)
            return err_set_errno(err, done ? errno : EIO, "writing at byte %" PRId64, at);
        p += done;
        at += done;
        n -= done;
    }
    return 0;
}

static int copy_header(struct ckpt_drain *d, struct ckpt_file *f, int fd, struct err *err)
{
    unsigned char *header = malloc((size_t)f->header_bytes);
    if (!header)
        return err_set(err, "no memory for a header of %" PRId64 " bytes", f->header_bytes);
    int rv = file_read_at(f, header, f->header_bytes, 0, err);
    if (!rv && crc32c(0, header, (size_t)f->header_bytes) != f->digest)
        rv = err_set(err, "%s: the header read differently a second time", f->path);
    if (!rv)
        rv = write_all(d, fd, header, f->header_bytes, 0, err);
    free(header);
    return rv;
}

static int copy_bytes(struct ckpt_drain *d, struct ckpt_file *f, int fd, struct err *err)
{
    int64_t start_ns = clock_ns();
    for (int64_t i = 0; i < crc_blocks(f->data_bytes); i++) {
        int64_t at = i * CKPT_CRC_BLOCK, left = f->data_bytes - at;
        int64_t n = left < CKPT_CRC_BLOCK ? left : CKPT_CRC_BLOCK;
        const unsigned char *p = file_block(f, i, err);
        if (!p || write_all(d, fd, p, n, f->header_bytes + at, err))
            return -1;
        atomic_fetch_add(&d->copied, n);
        drain_pace(d, start_ns, at + n);
        if (atomic_load(&d->cancel))
            return err_set(err, "cancelled");
    }
    return copy_header(d, f, fd, err);
}

/* All of it at its place, on the disk behind that folder. */
static int fill(struct ckpt_drain *d, struct ckpt_file *f, int fd, struct err *err)
{
    struct stat st;
    if (sys_reserve(d->hook, fd, f->bytes))
        return err_set_errno(err, errno, "reserving %" PRId64 " bytes", f->bytes);
    if (copy_bytes(d, f, fd, err))
        return -1;
    if (fstat(fd, &st))
        return err_set_errno(err, errno, "looking at the length");
    if (st.st_size != f->bytes)
        return err_set(err, "it is %" PRId64 " bytes long, not %" PRId64, (int64_t)st.st_size,
                       f->bytes);
    if (sys_fsync(d->hook, fd))
        return err_set_errno(err, errno, "fsync");
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* training has better use for the memory */
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

/* The name of our half; one left by an attempt of our own that could not be unlinked goes first. */
static int create(struct ckpt_drain *d, const char *name)
{
    int flags = O_RDWR | O_CREAT | O_EXCL;
    int fd = sys_open(d->hook, d->dirfd, name, flags, 0666);
    if (fd >= 0 || errno != EEXIST)
        return fd;
    if (sys_unlink(d->hook, d->dirfd, name) && errno != ENOENT)
        return -1;
    return sys_open(d->hook, d->dirfd, name, flags, 0666);
}

/* A server may do a rename and lose its answer; the client's second try then fails. */
static int rename_done(struct ckpt_drain *d, int fd, const char *from, const char *to)
{
    struct stat ours, there;
    if (!sys_rename_over(d->hook, d->dirfd, from, to))
        return 0;
    int why = errno;
    if (why == ENOENT && !fstat(fd, &ours) && !fstatat(d->dirfd, to, &there, AT_SYMLINK_NOFOLLOW) &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
        return 0;
    errno = why;
    return -1;
}

static int write_copy(struct ckpt_drain *d, const struct drain_job *job, struct ckpt_file *f,
                      struct err *err)
{
    char part[CKPT_NAME_ROOM];
    struct ckpt_name name = {.kind = NAME_PART, .key = job->key, .rank = d->rank};
    strcpy(name.run, d->run);
    name_format(&name, part);
    int rv = -1, fd = create(d, part);
    const char *now = part;
    if (fd < 0) {
        err_set_errno(err, errno, "%s/%s", d->to, part);
        strcpy(d->left, part); /* a server may have made it and lost its answer */
        return -1;
    }
    if (fill(d, f, fd, err))
        err_prefix(err, "%s/%s", d->to, part);
    else if (rename_done(d, fd, part, job->path))
        err_set_errno(err, errno, "%s/%s: renaming to its final name", d->to, part);
    else
        now = job->path, rv = 0;
    if (!rv && sys_fsync(d->hook, d->dirfd))
        rv = err_set_errno(err, errno, "fsync of the shared folder %s", d->to);
    if (close(fd) && !rv) /* where network file systems tell of lost writes at the latest */
        rv = err_set_errno(err, errno, "closing %s/%s", d->to, now);
    if (rv && sys_unlink(d->hook, d->dirfd, now) && errno != ENOENT)
        strcpy(d->left, now);
    return rv;
}

/* What a copy that failed could not take back goes before another is made: there is never more than
 * one. */
static int drop_left(struct ckpt_drain *d, struct err *err)
{
    if (d->left[0] && sys_unlink(d->hook, d->dirfd, d->left) && errno != ENOENT)
        return err_set_errno(err, errno, "%s/%s: cannot drop it", d->to, d->left);
    d->left[0] = 0;
    return 0;
}

int drain_copy(struct ckpt_drain *d, const struct drain_job *job, struct err *err)
{
    char *path;
    struct ckpt_file *f;
    if (drop_left(d, err))
        return -1;
    if (asprintf(&path, "%s/%s", d->from, job->path) < 0)
        return err_set(err, "no memory for a path");
    int rv = ckpt_file_open(&f, path, err);
    if (!rv) {
        f->hook = d->hook;
        if (f->bytes != job->bytes || f->digest != job->digest)
            rv = err_set(err, "%s is not the file that the commit record names", path);
        else
            rv = write_copy(d, job, f, err);
        ckpt_file_close(f);
    }
    free(path);
    return rv;
}
