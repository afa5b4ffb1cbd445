/* shared.c - the folder of the shared tier: made by one rank, seen by all. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "drain.h"
#include "folder.h"

/* Between two looks at a folder that another node has made. */
enum { LOOK_MS = 50 };

/* The folder `path` is in, malloc'ed; path has no slash at its end. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static char *without_slashes(const char *dir)
{
    char *path = strdup(dir);
    for (size_t n = path ? strlen(path) : 0; n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    return path;
}

/* 0 where it is there already; it is checked when it is opened. */
static int make_below(const char *path, const char *parent, struct err *err)
{
    struct stat st;
    if (!lstat(path, &st))
        return 0;
    int fd = open(parent, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(err, errno,
                             "shared folder %s: the folder it is in, %s, cannot be used (is the "
                             "file system mounted?)",
                             path, parent);
    int rv = mkdir(path, 0777) && errno != EEXIST
                 ? err_set_errno(err, errno, "shared folder %s: cannot be made", path)
                 : 0;
    if (!rv)
        fsync(fd); /* not all file systems can; without it a crash loses an empty folder */
    close(fd);
    return rv;
}

static int check_folder(const char *path, bool own, struct err *err)
{
    struct err why;
    int fd = own ? folder_open_own(path, NULL, &why) : -1, rv = 0;
    if (own ? fd < 0 : folder_open_read(path, &fd, &why))
        return err_set(err, "shared folder: %s", why.text);
    if (fd < 0)
        return err_set(err, "shared folder %s vanished while it was made", path);
    if (own && faccessat(fd, ".", W_OK | X_OK, AT_EACCESS))
        rv = err_set_errno(err, errno, "shared folder %s: cannot be written", path);
    close(fd);
    return rv;
}

static int make_shared(const char *shared, const char *run_id, struct err *err)
{
    char *run = NULL, *above = parent_of(shared);
    int rv = -1;
    if (!above || asprintf(&run, "%s/%s", shared, run_id) < 0)
        err_set(err, "no memory for a path");
    else if (!make_below(shared, above, err) && !check_folder(shared, false, err) &&
             !make_below(run, shared, err))
        rv = check_folder(run, true, err);
    free(run);
    free(above);
    return rv;
}

int ckpt_shared_make(const char *shared, const char *run_id, struct err *err)
{
    char *path = without_slashes(shared);
    int rv = path ? make_shared(path, run_id, err) : err_set(err, "no memory for a path");
    free(path);
    return rv;
}

int ckpt_shared_see(const char *dir, int64_t deadline_ms, struct err *err)
{
    for (;;) {
        struct err why;
        int fd;
        if (folder_open_read(dir, &fd, &why))
            return err_set(err, "shared folder: %s", why.text);
        if (fd >= 0) {
            close(fd);
            return check_folder(dir, true, err);
        }
        if (clock_ms() >= deadline_ms)
            return err_set(err,
                           "shared folder %s: rank 0 has made it, but it is not there on this "
                           "node: all nodes must see the same file system",
                           dir);
        struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
        nanosleep(&pause, NULL);
    }
}
