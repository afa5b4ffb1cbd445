/* new_folder.c - see new_folder.h. */
#include "hf/new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/number.h"

enum {
    OPEN_FOLDERS = 8, /* that a walk holds open */
    DEPTH_MOST = 16,  /* of what is removed: a maker's is three deep */
    MARK_BYTES = 300,
    HOST_BYTES = 201,
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

/* Bytes of all entries of a folder that is open, which are removed, or only counted; fd is closed.
 * Follows no link. */
static int64_t walk(int fd, bool removes, int depth)
{
    int64_t bytes = 0;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return 0;
    }
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (!S_ISDIR(st.st_mode)) {
            bytes += (int64_t)st.st_size;
            if (removes)
                unlinkat(dirfd(d), e->d_name, 0);
        } else if (depth < DEPTH_MOST) {
            int in = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (in >= 0)
                bytes += walk(in, removes, depth + 1);
            if (removes)
                unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
        }
    }
    closedir(d);
    return bytes;
}

/* lock: its mark's, or -1; closed before the folder goes, as NFS keeps a name for an open file. */
static int64_t walk_folder(int at, const char *name, bool removes, int lock)
{
    int64_t bytes = 0;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        bytes = walk(fd, removes, 0);
    if (lock >= 0)
        close(lock);
    if (removes)
        unlinkat(at, name, AT_REMOVEDIR);
    return bytes;
}

static void remove_folder(int at, const char *name, int lock)
{
    walk_folder(at, name, true, lock);
}

/* ---- the mark ---- */

/* "?": it has none. */
static void own_host(char host[HOST_BYTES])
{
    if (gethostname(host, HOST_BYTES) || !*host)
        strcpy(host, "?");
    host[HOST_BYTES - 1] = 0;
}

/* Locked before it has its name. Where there are no locks there is no mark. */
static int make_mark(struct new_folder *f, struct err *err)
{
    char host[HOST_BYTES], text[MARK_BYTES];
    int dir = open(f->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = dir < 0
                 ? -1
                 : openat(dir, MARK_NEW, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int rv = fd < 0 ? err_set_errno(err, errno, "%s/" MARK, f->temp) : 0;
    own_host(host);
    int n = snprintf(text, sizeof text, MARK_TEXT "%d on %s\n", (int)getpid(), host);
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

/* Does the mark say that it was made on this host? */
static bool is_local(const char *text)
{
    char host[HOST_BYTES];
    const char *on = strstr(text, " on ");
    own_host(host);
    return on && strcmp(host, "?") && !strcmp(on + 4, host);
}

enum judged { OTHERS, AWAY, DEAD, ALIVE };

/* Whose a folder is. DEAD: the mark's lock, *lock, is ours now. ALIVE: text is what its maker says
 * of itself. AWAY: it is not locked, but was made on another host, and locks may be each host's
 * own. */
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
            it = is_local(text) ? DEAD : AWAY;
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
    if (it != DEAD)
        return tell_left(f, dir, entry, err);
    remove_folder(at, entry, lock);
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

/* ---- on request ---- */

/* NAME.part.DIGITS of any NAME */
static bool is_any_part(const char *entry)
{
    const char *dot = strrchr(entry, '.');
    size_t n = strlen(PART) - 1;
    return dot && dot[1] && !dot[1 + strspn(dot + 1, "0123456789")] && (size_t)(dot - entry) > n &&
           !strncmp(dot - n, PART, n);
}

static int prune_one(const struct new_folder_prune *p, int at, const char *entry, struct err *err)
{
    char text[MARK_BYTES], *path;
    struct stat st;
    int lock, rv = 0, folder = openat(at, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return 0;
    enum judged it = judge(folder, &lock, text);
    close(folder);
    if (it == OTHERS && !p->name && !p->whole)
        return 0; /* any program may call a folder so */
    if (asprintf(&path, "%s%s%s", p->dir, strcmp(p->dir, "/") ? "/" : "", entry) < 0) {
        if (lock >= 0)
            close(lock);
        return err_set(err, "no memory");
    }
    bool removes = it == DEAD && !p->dry_run;
    int64_t bytes = walk_folder(at, entry, removes, lock);
    if (removes && !fstatat(at, entry, &st, AT_SYMLINK_NOFOLLOW))
        rv = err_set(err, "%s cannot be removed", path);
    else
        p->tell(p->arg, path,
                it == DEAD    ? NEW_FOLDER_DEAD
                : it == ALIVE ? NEW_FOLDER_ALIVE
                : it == AWAY  ? NEW_FOLDER_AWAY
                              : NEW_FOLDER_UNKNOWN,
                bytes);
    free(path);
    return rv;
}

int new_folder_prune(const struct new_folder_prune *p, struct err *err)
{
    int rv = 0;
    DIR *d = opendir(p->dir);
    if (!d)
        return 0; /* what is wrong with it is told by who uses it for more */
    for (struct dirent *e; !rv && (e = readdir(d));)
        if (p->whole  ? !strcmp(e->d_name, p->whole)
            : p->name ? is_part(e->d_name, p->name)
                      : is_any_part(e->d_name))
            rv = prune_one(p, dirfd(d), e->d_name, err);
    closedir(d);
    return rv;
}

bool new_folder_is_part(const char *name)
{
    return is_any_part(name);
}

/* ---- */

static bool is_empty(int fd)
{
    int n = 0;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return false;
    }
    while (n < 3 && readdir(d))
        n++;
    closedir(d);
    return n < 3;
}

/* Is it an empty folder, which can be removed? No file system begins there. */
static bool makes_way(const char *path)
{
    struct stat st, up;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) || fstatat(fd, "..", &up, 0) || st.st_dev != up.st_dev) {
        close(fd);
        return false;
    }
    return is_empty(fd);
}

static int make(struct new_folder *f, struct err *err)
{
    struct stat st;
    if (!lstat(f->path, &st)) {
        f->over_empty = makes_way(f->path);
        if (!f->over_empty)
            return err_set(err, "%s is there already: name a new folder, or an empty one", f->path);
    } else if (errno != ENOENT) {
        return err_set_errno(err, errno, "%s", f->path);
    }
    if (look_around(f, err))
        return -1;
    if (mkdir(f->temp, 0777))
        return err_set_errno(err, errno, "cannot make %s", f->temp);
    if (!make_mark(f, err))
        return 0;
    remove_folder(AT_FDCWD, f->temp, -1);
    return -1;
}

/* Nothing can be renamed to . or .. */
static bool ends_in_dots(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return !strcmp(name, ".") || !strcmp(name, "..");
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
    if (ends_in_dots(f->path))
        err_set(err, "%s: a new folder cannot be called . or ..: name it by its own name", path);
    else if (!make(f, err))
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
    if (f->over_empty)
        rmdir(f->path); /* if it still is: what is in it now stays, and is an error below */
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
static int drop_mark(struct new_folder *f, struct err *err)
{
    char path[PATH_MAX];
    if (f->lock < 0)
        return 0;
    snprintf(path, sizeof path, "%s/" MARK, f->temp);
    if (unlink(path))
        return err_set_errno(err, errno, "%s", path);
    close(f->lock); /* NFS keeps a name for what is open */
    f->lock = -1;
    return sync_folder(f->temp, err);
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

int new_folder_room(const struct new_folder *f, int64_t bytes, struct err *err)
{
    struct statvfs fs;
    char need[NUMBER_BYTES], have[NUMBER_BYTES];
    if (statvfs(f->temp, &fs) || !fs.f_frsize)
        return 0; /* writing will tell */
    double room = (double)fs.f_bavail * (double)fs.f_frsize;
    if (room >= (double)bytes)
        return 0;
    return err_set(err, "%s would need %s, and its file system has %s left", f->path,
                   number_size((double)bytes, need), number_size(room, have));
}

void new_folder_abort(struct new_folder *f)
{
    if (f->temp)
        remove_folder(AT_FDCWD, f->temp, f->lock);
    f->lock = -1;
    forget(f);
}
