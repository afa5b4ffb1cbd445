/* new_folder.c - see new_folder.h. */
#include "hf/new_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_FOLDERS = 8 }; /* that a walk holds open */

static void forget(struct new_folder *f)
{
    free(f->path);
    free(f->temp);
    *f = (struct new_folder){0};
}

static int make(struct new_folder *f, struct err *err)
{
    struct stat st;
    if (!lstat(f->path, &st))
        return err_set(err, "%s is there already: name a new folder", f->path);
    if (errno != ENOENT)
        return err_set_errno(err, errno, "%s", f->path);
    if (mkdir(f->temp, 0777))
        return err_set_errno(err, errno, "cannot make %s", f->temp);
    return 0;
}

int new_folder_begin(struct new_folder *f, const char *path, struct err *err)
{
    *f = (struct new_folder){.path = strdup(path)};
    for (size_t n = f->path ? strlen(f->path) : 0; n > 1 && f->path[n - 1] == '/'; n--)
        f->path[n - 1] = 0;
    if (!f->path || !*f->path || asprintf(&f->temp, "%s.part.%d", f->path, (int)getpid()) < 0) {
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

int new_folder_commit(struct new_folder *f, struct err *err)
{
    int errnum = nftw(f->temp, sync_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    int rv = errnum ? err_set_errno(err, errnum > 0 ? errnum : errno, "fsync below %s", f->temp)
                    : give_name(f, err);
    if (rv) {
        new_folder_abort(f);
        return -1;
    }
    rv = sync_parent(f->path, err);
    forget(f);
    return rv;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void new_folder_abort(struct new_folder *f)
{
    if (f->temp)
        nftw(f->temp, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    forget(f);
}
