/* log.c - reading and appending.
 *
 * The invariant: after log_append has returned 0, the line is on the disk whole, and everything in
 * front of it that checked before still does. An append starts by looking at the file anew, as a
 * process that was declared dead may have appended meanwhile: O_APPEND keeps two writers from
 * overwriting each other, and only a tail that does not check is ever cut. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc.h"
#include "folder.h"
#include "names.h"

enum { LINE_HEAD = 18 }; /* "LENGTH CRC " */

static uint32_t line_crc(const char *length, const char *text, size_t n)
{
    return crc32c(crc32c(0, length, 9), text, n);
}

char *log_line(const char *text)
{
    size_t n = strlen(text);
    if (n > UINT32_MAX - 64)
        return NULL;
    char *line = malloc(LINE_HEAD + n + 2);
    if (!line)
        return NULL;
    char length[10];
    snprintf(length, sizeof length, "%08zx ", n);
    snprintf(line, LINE_HEAD + n + 2, "%s%08" PRIx32 " %s\n", length, line_crc(length, text, n),
             text);
    return line;
}

/* Bytes of the line that starts here, newline included, 0 if none checks. That a byte stands in the
 * newline's place is enough: if another one does, it is damaged, and the next line, which would
 * otherwise be taken for a part of this, is whole. */
static int64_t line_at(const char *p, int64_t left)
{
    uint64_t length, crc;
    const char *at = p;
    if (left < LINE_HEAD + 1 || !take_hex(&at, 8, &length) || *at++ != ' ' ||
        !take_hex(&at, 8, &crc) || *at != ' ')
        return 0;
    if ((int64_t)length > left - LINE_HEAD - 1)
        return 0;
    return line_crc(p, p + LINE_HEAD, length) == crc ? LINE_HEAD + (int64_t)length + 1 : 0;
}

int log_next(struct log_reader *r, const char **text, int64_t *n)
{
    while (r->at < r->n) {
        const char *p = r->bytes + r->at;
        int64_t whole = line_at(p, r->n - r->at);
        if (whole) {
            *text = p + LINE_HEAD;
            *n = whole - LINE_HEAD - 1;
            r->at += whole;
            r->good = r->at;
            return 1;
        }
        const char *end = memchr(p, '\n', (size_t)(r->n - r->at));
        int64_t step = end ? end + 1 - p : r->n - r->at;
        r->at += step;
        r->skipped += step;
    }
    return 0;
}

/* Of n bytes, those up to the end of the last line that checks. */
static int64_t good_bytes(const char *bytes, int64_t n)
{
    struct log_reader r = {.bytes = bytes, .n = n};
    const char *text;
    int64_t length;
    while (log_next(&r, &text, &length))
        ;
    return r.good;
}

/* Cut the last `bad` bytes off, unless somebody has appended since it was `bytes` long. */
static int cut_tail(const char *name, int fd, off_t bytes, int64_t bad,
                    const struct ckpt_hook *hook, struct err *err)
{
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0)
        return err_set_errno(err, errno, "the commit log %s", name);
    if (bad && size == bytes && sys_truncate(hook, fd, size - bad))
        return err_set_errno(err, errno, "cutting the torn end of the commit log %s", name);
    return 0;
}

static int append_all(int fd, const char *bytes, size_t left, const struct ckpt_hook *hook)
{
    while (left) {
        ssize_t n = sys_append(hook, fd, bytes, left);
        if (n < 0)
            return -1;
        if (!n) {
            errno = EIO;
            return -1;
        }
        bytes += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Where the newest `lines` lines that check begin. */
static const char *newest_lines(const char *bytes, int64_t n, int lines)
{
    struct log_reader r = {.bytes = bytes, .n = n};
    const char *text, *from = bytes;
    int64_t length, total = 0, seen = 0;
    while (log_next(&r, &text, &length))
        total++;
    for (r = (struct log_reader){.bytes = bytes, .n = n};
         seen < total - lines && log_next(&r, &text, &length); seen++)
        from = text + length + 1;
    return from;
}

/* A new file with the newest lines takes the log's name. A cut anywhere leaves the old or the new
 * one; what a dead process left of an attempt is dropped first. */
static int compact(int dirfd, const char *name, const char *bytes, int64_t n, int lines,
                   const struct ckpt_hook *hook, struct err *err)
{
    char fresh[CKPT_NAME_ROOM + 8];
    snprintf(fresh, sizeof fresh, "%s.new", name);
    if (sys_unlink(hook, dirfd, fresh) && errno != ENOENT)
        return err_set_errno(err, errno, "dropping %s", fresh);
    const char *from = newest_lines(bytes, n, lines);
    int fd = sys_open(hook, dirfd, fresh, O_RDWR | O_APPEND | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return err_set_errno(err, errno, "making %s", fresh);
    int rv = 0;
    if (append_all(fd, from, (size_t)(bytes + n - from), hook) || sys_fsync(hook, fd) ||
        sys_rename_over(hook, dirfd, fresh, name) || sys_fsync(hook, dirfd)) {
        rv = err_set_errno(err, errno, "shortening the commit log %s", name);
        unlinkat(dirfd, fresh, 0);
    }
    close(fd);
    return rv;
}

/* Opened for appending, -1 with err. A log that is no file of ours is not touched. absent: errno
 * is ENOENT then, and err as it was. */
static int open_log(int dirfd, const char *name, bool *absent, struct stat *st,
                    const struct ckpt_hook *hook, struct err *err)
{
    int fd = sys_open(hook, dirfd, name, O_RDWR | O_APPEND | O_NONBLOCK, 0);
    *absent = fd < 0 && errno == ENOENT;
    if (fd >= 0 && !fstat(fd, st) && S_ISREG(st->st_mode) && st->st_uid == geteuid())
        return fd;
    int errnum = errno;
    if (fd >= 0 || errnum == ELOOP || errnum == EISDIR || errnum == ENXIO)
        err_set(err, "the commit log %s is not a file of user %u, who runs this: move it away",
                name, geteuid());
    else if (!*absent)
        err_set_errno(err, errnum, "opening the commit log %s", name);
    if (fd >= 0)
        close(fd);
    return -1;
}

int log_check(int dirfd, const char *name, const struct ckpt_hook *hook, struct err *err)
{
    struct stat st;
    bool absent;
    int fd = open_log(dirfd, name, &absent, &st, hook, err);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || absent ? 0 : -1;
}

/* Looks at the log as it is now, and leaves it ready for the next line. One with a second name, in
 * a backup made of hard links or anywhere, is left as it is, and a copy takes its place here. */
static int prepare(int dirfd, const char *name, int keep_lines, const struct ckpt_hook *hook,
                   struct err *err)
{
    char *bytes;
    int64_t n;
    bool absent;
    struct stat st;
    int fd = open_log(dirfd, name, &absent, &st, hook, err);
    if (fd < 0)
        return absent ? 0 : -1;
    if (folder_read(dirfd, name, CKPT_LOG_MOST_BYTES, &bytes, &n)) {
        close(fd);
        return err_set_errno(err, errno, "reading the commit log %s", name);
    }
    int rv;
    int64_t good = good_bytes(bytes, n);
    if (good > CKPT_LOG_COMPACT_BYTES)
        rv = compact(dirfd, name, bytes, good, keep_lines, hook, err);
    else if (st.st_nlink > 1)
        rv = compact(dirfd, name, bytes, good, INT_MAX, hook, err);
    else
        rv = cut_tail(name, fd, st.st_size, n - good, hook, err);
    close(fd);
    free(bytes);
    return rv;
}

/* The bytes that were appended last, `length` of them, begin a line: the file begins with them, or
 * a newline is in front. -1 with errno: it cannot be seen. */
static int begins_line(int fd, size_t length)
{
    char before;
    off_t end = lseek(fd, 0, SEEK_CUR), at = end - (off_t)length; /* where the last write ended */
    if (end < 0)
        return -1;
    if (at <= 0)
        return 1;
    ssize_t n = sys_pread(NULL, fd, &before, 1, at - 1);
    return n < 0 ? -1 : n == 1 && before == '\n';
}

/* A process that was declared dead may have appended half a line since the log was looked at: this
 * one then begins in the middle of that, and is written once more behind its own newline. */
static int append_whole(int fd, const char *line, const struct ckpt_hook *hook)
{
    size_t length = strlen(line);
    if (append_all(fd, line, length, hook))
        return -1;
    int whole = begins_line(fd, length);
    return whole ? whole < 0 ? -1 : 0 : append_all(fd, line, length, hook);
}

static int append_line(int dirfd, const char *name, const char *line, const struct ckpt_hook *hook,
                       struct err *err)
{
    int fd = sys_open(hook, dirfd, name, O_RDWR | O_APPEND, 0);
    bool made = fd < 0 && errno == ENOENT;
    if (made)
        fd = sys_open(hook, dirfd, name, O_RDWR | O_APPEND | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return err_set_errno(err, errno, "opening the commit log %s", name);
    int rv = 0;
    off_t before = lseek(fd, 0, SEEK_END);
    if (append_whole(fd, line, hook) || sys_fsync(hook, fd) || (made && sys_fsync(hook, dirfd))) {
        rv = err_set_errno(err, errno, "appending to the commit log %s", name);
        if (before >= 0 && !ftruncate(fd, before)) /* or the next append cuts it */
            fsync(fd);
    }
    close(fd);
    return rv;
}

int log_append(int dirfd, const char *name, const char *text, int keep_lines,
               const struct ckpt_hook *hook, struct err *err)
{
    if (strchr(text, '\n'))
        return err_set(err, "a record for the commit log has a newline in it");
    char *line = log_line(text);
    if (!line)
        return err_set(err, "out of memory for a record of the commit log");
    int rv = prepare(dirfd, name, keep_lines, hook, err);
    if (!rv)
        rv = append_line(dirfd, name, line, hook, err);
    free(line);
    return rv;
}
