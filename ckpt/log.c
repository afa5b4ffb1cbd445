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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Bytes of the line that starts here, newline included, 0 if none checks. */
static int64_t line_at(const char *p, int64_t left)
{
    uint64_t length, crc;
    const char *at = p;
    if (left < LINE_HEAD + 1 || !take_hex(&at, 8, &length) || *at++ != ' ' ||
        !take_hex(&at, 8, &crc) || *at != ' ')
        return 0;
    if ((int64_t)length > left - LINE_HEAD - 1 || p[LINE_HEAD + length] != '\n')
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

/* Cut what stands behind the last line that checks. */
static int cut_tail(int dirfd, const char *name, int fd, const struct ckpt_hook *hook,
                    struct err *err)
{
    char *bytes;
    int64_t n;
    if (folder_read(dirfd, name, CKPT_LOG_MOST_BYTES, &bytes, &n))
        return err_set_errno(err, errno, "reading the commit log %s", name);
    struct log_reader r = {.bytes = bytes, .n = n};
    const char *text;
    int64_t length;
    while (log_next(&r, &text, &length))
        ;
    free(bytes);
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0)
        return err_set_errno(err, errno, "the commit log %s", name);
    if (r.good < n && sys_truncate(hook, fd, size - (n - r.good)))
        return err_set_errno(err, errno, "cutting the torn end of the commit log %s", name);
    return 0;
}

static int append_all(int fd, const char *line, const struct ckpt_hook *hook)
{
    size_t left = strlen(line);
    while (left) {
        ssize_t n = sys_append(hook, fd, line, left);
        if (n < 0)
            return -1;
        if (!n) {
            errno = EIO;
            return -1;
        }
        line += n;
        left -= (size_t)n;
    }
    return 0;
}

int log_append(int dirfd, const char *name, const char *text, const struct ckpt_hook *hook,
               struct err *err)
{
    if (strchr(text, '\n'))
        return err_set(err, "a record for the commit log has a newline in it");
    char *line = log_line(text);
    if (!line)
        return err_set(err, "out of memory for a record of the commit log");
    int rv = -1, fd = sys_open(hook, dirfd, name, O_RDWR | O_APPEND, 0);
    bool made = fd < 0 && errno == ENOENT;
    if (made)
        fd = sys_open(hook, dirfd, name, O_RDWR | O_APPEND | O_CREAT | O_EXCL, 0666);
    if (fd < 0) {
        err_set_errno(err, errno, "opening the commit log %s", name);
        goto out;
    }
    if (cut_tail(dirfd, name, fd, hook, err))
        goto out;
    off_t before = lseek(fd, 0, SEEK_END);
    if (append_all(fd, line, hook) || sys_fsync(hook, fd) || (made && sys_fsync(hook, dirfd))) {
        err_set_errno(err, errno, "appending to the commit log %s", name);
        if (before >= 0 && !ftruncate(fd, before)) /* or the next append cuts it */
            fsync(fd);
        goto out;
    }
    rv = 0;
out:
    if (fd >= 0)
        close(fd);
    free(line);
    return rv;
}
