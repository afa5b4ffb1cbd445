/* new_folder.c - see new_folder.h. */
#include "hf/new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OPEN_FOLDERS = 8, /* that a walk holds open */
    DEPTH_MOST = 16,  /* of what is removed: a maker's is three deep */
    MARK_BYTES = 300,
};

#define PART      ".part."
#define MARK      ".gtrain-part"
#define MARK_NEW  ".gtrain-part.new"
#define MARK_TEXT "made by gtrain, process "

static void forget(struct new_folder *f)
{
    if (f->lock >= 0)
        close(f->lock);
    free(f->path);
    free(f->temp);
    free(f->left);
    *f = (struct new_folder){.lock = -1};
}

/* ---- removing ---- */

/* Of a folder that is open, all entries; fd is closed. Follows no link. */
static void empty_folder(int fd, int depth)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (!unlinkat(dirfd(d), e->d_name, 0) || depth == DEPTH_MOST)
            continue;
        int in = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (in >= 0)
            empty_folder(in, depth + 1);
        unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    closedir(d);
}

static void remove_folder(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        empty_folder(fd, 0);
    unlinkat(at, name, AT_REMOVEDIR);
}

/* ---- the mark ---- */

/* Locked before it has its name. Where there are no locks there is no mark. */
static int make_mark(struct new_folder *f, struct err *err)
{
    char host[256] = "?", text[MARK_BYTES];
    int dir = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = dir < 0
                 ? -1
                 : openat(dir, MARK_NEW, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int rv = fd < 0 ? err_set_errno(err, errno, "%s/" MARK, f->temp) : 0;
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, MARK_TEXT "%d on %.200s\n", (int)getpid(), host);
    if (!rv && flock(fd, LOCK_EX | LOCK_NB)) {
        unlinkat(dir, MARK_NEW, 0);
        close(fd);
        fd = -1;
    } else if (!rv && (write(fd, text, (size_t)n) != n || renameat(dir, MARK_NEW, dir, MARK))) {
        rv = err_set_errno(err, errno, "%s/" MARK, f->temp);
        close(fd);
        fd = -1;
    }
    if (dir >= 0)
        close(dir);
    f->lock = fd;
    return rv;
}

enum judged { OTHERS, DEAD, ALIVE };

/* Whose a folder is. DEAD: the mark's lock, *lock, is ours now. ALIVE: text is what its maker says
 * of itself. */
static enum judged judge(int folder, int *lock, char text[MARK_BYTES])
{
    struct stat st;
    enum judged it = OTHERS;
    *lock = -1;
    if (fstat(folder, &st) || st.st_uid != geteuid())
        return OTHERS;
    int fd = openat(folder, MARK, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid()
                    ? -1
                    : pread(fd, text, MARK_BYTES - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    text[strcspn(text, "\n")] = 0;
    if (!strncmp(text, MARK_TEXT, strlen(MARK_TEXT))) {
        if (!flock(fd, LOCK_EX | LOCK_NB))
            it = DEAD;
        else if (errno == EWOULDBLOCK)
            it = ALIVE;
    }
    if (it == DEAD)
        *lock = fd;
    else if (fd >= 0)
        close(fd);
    return it;
}

/* ---- what others have left ---- */

/* NAME.part.DIGITS */
static bool is_part(const char *entry, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(entry, name, n) || strncmp(entry + n, PART, strlen(PART)))
        return false;
    const char *digits = entry + n + strlen(PART);
    return *digits && !digits[strspn(digits, "0123456789")];
}

static int tell_left(struct new_folder *f, const char *dir, const char *entry, struct err *err)
{
    char *more;
    if (asprintf(&more, "%s%s%s%s%s", f->left ? f->left : "", f->left ? ", " : "", dir,
                 strcmp(dir, "/") ? "/" : "", entry) < 0)
        return err_set(err, "no memory");
    free(f->left);
    f->left = more;
    return 0;
}

static int look_at(struct new_folder *f, int at, const char *dir, const char *entry,
                   struct err *err)
{
    char text[MARK_BYTES];
    int lock, folder = openat(at, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return 0; /* no folder: nobody's */
    enum judged it = judge(folder, &lock, text);
    close(folder);
    if (it == ALIVE)
        return err_set(err, "%s is being %s, in %s/%s: wait for it, or name another folder",
                       f->path, text, dir, entry);
    if (it == OTHERS)
        return tell_left(f, dir, entry, err);
    remove_folder(at, entry);
    close(lock);
    return 0;
}

static int look_around(struct new_folder *f, struct err *err)
{
    char *copies[2] = {strdup(f->path), strdup(f->path)};
    const char *dir = copies[0] ? dirname(copies[0]) : NULL;
    const char *name = copies[1] ? basename(copies[1]) : NULL;
    DIR *d = dir && name ? opendir(dir) : NULL;
    int rv = dir && name ? 0 : err_set(err, "no memory");
    /* One that cannot be listed may still be written to. */
    for (struct dirent *e; d && !rv && (e = readdir(d));)
        if (is_part(e->d_name, name))
            rv = look_at(f, dirfd(d), dir, e->d_name, err);
    if (d)
        closedir(d);
    free(copies[0]);
    free(copies[1]);
    return rv;
}

/* ---- */

static int make(struct new_folder *f, struct err *err)
{
    struct stat st;
    if (!lstat(f->path, &st))
        return err_set(err, "%s is there already: name a new folder", f->path);
    if (errno != ENOENT)
        return err_set_errno(err, errno, "%s", f->path);
    if (look_around(f, err))
        return -1;
    if (mkdir(f->temp, 0777))
        return err_set_errno(err, errno, "cannot make %s", f->temp);
    if (!make_mark(f, err))
        return 0;
    remove_folder(AT_FDCWD, f->temp);
    return -1;
}

int new_folder_begin(struct new_folder *f, const char *path, struct err *err)
{
    *f = (struct new_folder){.path = strdup(path), .lock = -1};
    for (size_t n = f->path ? strlen(f->path) : 0; n > 1 && f->path[n - 1] == '/'; n--)
        f->path[n - 1] = 0;
    if (!f->path || !*f->path || asprintf(&f->temp, "%s" PART "%d", f->path, (int)getpid()) < 0) {
        f->temp = NULL;
        forget(f);
        return err_set(err, *path ? "no memory" : "which folder? Its name is empty");
    }
    if (!make(f, err))
        return 0;
    forget(f);
    return -1;
}

static int sync_folder(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rv = fd < 0 || fsync(fd) ? err_set_errno(err, errno, "fsync of %s", path) : 0;
    if (fd >= 0)
        close(fd);
    return rv;
}

static int sync_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    struct err unused;
    (void)st, (void)ftw;
    return type == FTW_DP && sync_folder(path, &unused) ? errno ? errno : EIO : 0;
}

static int sync_parent(const char *path, struct err *err)
{
    char *copy = strdup(path);
    int rv = copy ? sync_folder(dirname(copy), err) : err_set(err, "no memory");
    free(copy);
    return rv;
}

/* Never over something that came there meanwhile. */
static int give_name(const struct new_folder *f, struct err *err)
{
    if (!renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return err_set_errno(err, errno, "renaming %s to %s", f->temp, f->path);
    struct stat st; /* a file system that cannot promise it */
    if (!lstat(f->path, &st))
        return err_set(err, "%s has come into being meanwhile", f->path);
    return rename(f->temp, f->path)
               ? err_set_errno(err, errno, "renaming %s to %s", f->temp, f->path)
               : 0;
}

/* The mark goes last: what has none is nobody's to remove. */
static int drop_mark(const struct new_folder *f, struct err *err)
{
    char path[PATH_MAX];
    if (f->lock < 0)
        return 0;
    snprintf(path, sizeof path, "%s/" MARK, f->temp);
    return unlink(path) ? err_set_errno(err, errno, "%s", path) : sync_folder(f->temp, err);
}

int new_folder_commit(struct new_folder *f, struct err *err)
{
    int errnum = nftw(f->temp, sync_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS), rv = 0;
    if (errnum)
        rv = err_set_errno(err, errnum > 0 ? errnum : errno, "fsync below %s", f->temp);
    if (rv || drop_mark(f, err) || give_name(f, err)) {
        new_folder_abort(f);
        return -1;
    }
    rv = sync_parent(f->path, err);
    forget(f);
    return rv;
}

void new_folder_abort(struct new_folder *f)
{
    if (f->temp)
        remove_folder(AT_FDCWD, f->temp);
    forget(f);
}
