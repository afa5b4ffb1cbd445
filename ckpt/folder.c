/* folder.c - opening and listing a checkpoint folder. */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { PRUNE_WAIT_MS = 30000, PRUNE_LOOK_MS = 20 }; /* for who prunes: some thousand unlinks */

/* mkdir -p. Each new folder's name is made durable in the one above it. */
static int make_path(const char *dir, struct err *err)
{
    char *path = strdup(dir);
    if (!path)
        return err_set(err, "out of memory");
    int at = openat(AT_FDCWD, path[0] == '/' ? "/" : ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    char *rest = path, *part;
    bool failed = false;
    while (at >= 0 && !failed && (part = strsep(&rest, "/"))) {
        if (!*part)
            continue;
        bool made = !mkdirat(at, part, 0777);
        failed = !made && errno != EEXIST;
        if (failed) {
            err_set_errno(err, errno, "checkpoint folder %s: cannot make %s", dir, part);
            break;
        }
        if (made)
            fsync(at); /* not all file systems can; without it a crash loses an empty folder */
        int next = openat(at, part, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
        if (next < 0)
            err_set_errno(err, errno, "checkpoint folder %s: %s", dir, part);
        close(at);
        at = next;
    }
    bool done = at >= 0 && !failed;
    if (at >= 0)
        close(at);
    free(path);
    return done ? 0 : -1;
}

static int open_checked(const char *dir, int *fd, struct stat *st, struct err *err)
{
    *fd = -1;
    if (lstat(dir, st))
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_set_errno(err, errno, "%s", dir);
    if (S_ISLNK(st->st_mode))
        return err_set(err, "checkpoint folder %s is a symbolic link: name the folder it points to",
                       dir);
    if (!S_ISDIR(st->st_mode))
        return err_set(err, "checkpoint folder %s is not a folder: choose another name", dir);
    *fd = open(dir, O_DIRECTORY | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return err_set_errno(err, errno, "checkpoint folder %s", dir);
    if (!fstat(*fd, st))
        return 0;
    int rv = err_set_errno(err, errno, "checkpoint folder %s", dir);
    close(*fd);
    *fd = -1;
    return rv;
}

/* "a/b/" is "a/b", or a link in its place would be followed. malloc'ed. */
static char *without_slashes(const char *dir)
{
    char *path = strdup(dir);
    for (size_t n = path ? strlen(path) : 0; n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    return path;
}

int folder_open_read(const char *dir, int *fd, struct err *err)
{
    struct stat st;
    *fd = -1;
    char *path = without_slashes(dir);
    int rv = path ? open_checked(path, fd, &st, err) : err_set(err, "out of memory");
    free(path);
    return rv;
}

static int open_own(const char *dir, const struct ckpt_hook *hook, struct err *err)
{
    struct stat st;
    int fd;
    ssize_t allowed = sys_allow(hook, CKPT_OP_OPEN, 0);
    if (allowed < 0)
        return err_set_errno(err, (int)-allowed, "checkpoint folder %s", dir);
    if (open_checked(dir, &fd, &st, err))
        return -1;
    if (fd < 0 && (make_path(dir, err) || open_checked(dir, &fd, &st, err)))
        return -1;
    if (fd < 0)
        return err_set(err, "checkpoint folder %s vanished while it was made", dir);
    if (st.st_uid == geteuid())
        return fd;
    close(fd);
    return err_set(err,
                   "checkpoint folder %s belongs to user %u, not to %u who runs this: choose a "
                   "folder of your own",
                   dir, st.st_uid, geteuid());
}

int folder_open_own(const char *dir, const struct ckpt_hook *hook, struct err *err)
{
    char *path = without_slashes(dir);
    int fd = path ? open_own(path, hook, err) : err_set(err, "out of memory");
    free(path);
    return fd;
}

int folder_use(int fd, const char *dir, struct err *err)
{
    int64_t deadline = clock_ms() + PRUNE_WAIT_MS;
    while (flock(fd, LOCK_SH | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            return 0;
        if (clock_ms() >= deadline)
            return err_set(err, "checkpoint folder %s is being pruned, for over %d s", dir,
                           PRUNE_WAIT_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = PRUNE_LOOK_MS * 1000000}, NULL);
    }
    return 0;
}

int folder_take(int fd, const char *dir, bool unsure, struct err *err)
{
    if (!flock(fd, LOCK_EX | LOCK_NB))
        return 0;
    if (errno == EWOULDBLOCK)
        return err_set(err, "checkpoint folder %s is in use by a run: wait for its end", dir);
    if (unsure)
        return 0;
    return err_set_errno(err, errno,
                         "checkpoint folder %s: whether a run is using it cannot be told here; "
                         "name its run folder instead",
                         dir);
}

static int add_entry(struct folder_list *l, const struct ckpt_name *name, int64_t bytes)
{
    if (!(l->n & (l->n - 1))) {
        void *more = reallocarray(l->entries, l->n ? (size_t)l->n * 2 : 1, sizeof *l->entries);
        if (!more)
            return -1;
        l->entries = more;
    }
    l->entries[l->n++] = (struct folder_entry){*name, bytes};
    return 0;
}

int folder_list(int fd, const char *run, struct folder_list *out, struct err *err)
{
    memset(out, 0, sizeof *out);
    int own = openat(fd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        int rv = err_set_errno(err, errno, "listing the checkpoint folder");
        if (own >= 0)
            close(own);
        return rv;
    }
    int rv = 0;
    struct dirent *e;
    while (!rv && (errno = 0, e = readdir(d))) {
        struct ckpt_name name;
        struct stat st;
        name_parse(e->d_name, &name);
        if (name.kind == NAME_FOREIGN || (run && strcmp(name.run, run)) ||
            fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
            continue;
        if (add_entry(out, &name, st.st_size))
            rv = err_set(err, "out of memory listing the checkpoint folder");
    }
    if (!rv && errno && !e)
        rv = err_set_errno(err, errno, "listing the checkpoint folder");
    closedir(d);
    if (rv)
        folder_list_free(out);
    return rv;
}

void folder_list_free(struct folder_list *l)
{
    free(l->entries);
    memset(l, 0, sizeof *l);
}

int folder_read(int dirfd, const char *name, int64_t most, char **text, int64_t *bytes)
{
    struct stat st;
    *text = NULL;
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    int rv = -1;
    if (fstat(fd, &st))
        goto out;
    int64_t skip = st.st_size > most ? st.st_size - most : 0, want = st.st_size - skip;
    *text = malloc((size_t)want + 1);
    if (!*text)
        goto out;
    *bytes = 0;
    while (*bytes < want) {
        ssize_t n = sys_pread(NULL, fd, *text + *bytes, (size_t)(want - *bytes), skip + *bytes);
        if (n < 0)
            goto out;
        if (!n)
            break;
        *bytes += n;
    }
    (*text)[*bytes] = 0;
    rv = 0;
out:
    close(fd);
    if (rv) {
        free(*text);
        *text = NULL;
    }
    return rv;
}
