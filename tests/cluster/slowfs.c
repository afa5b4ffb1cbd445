/* slowfs - a slow, or failing, disk for tests: a file system that passes everything to a folder,
 * writes late.
 *
 *   slowfs DELAY_MS BACKING MOUNTPOINT
 *
 * Each write of 4 KiB or more waits DELAY_MS before it lands in BACKING. The waiting happens here,
 * in another process than the writer's: writes of a writer that is killed land all the same, as on
 * a real device with a deep queue. BACKING/../slowfs.log has a line "write FILE OFFSET BYTES" for
 * each as it lands.
 *
 * While BACKING/../slowfs.mode holds one of these words, what would change something there fails
 * with that error (EIO, EROFS; ENOSPC: what takes space) or waits for another word (hang). Runs in
 * the foreground; ends when it is unmounted or on SIGTERM. */
#define FUSE_USE_VERSION 31
#include <fuse3/fuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { SLOW_BYTES = 4096, PATH_BYTES = 4096, LOOK_MS = 50, HANG_MS = 60000 };

struct slowfs {
    char backing[2048];
    long delay_ms;
    int log_fd;
};

static struct slowfs *self(void)
{
    return fuse_get_context()->private_data;
}

/* The word in slowfs.mode, "" if there is none. */
static void mode_now(char word[16])
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/../slowfs.mode", self()->backing);
    word[0] = 0;
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%15s", word) != 1)
        word[0] = 0;
    if (f)
        fclose(f);
}

/* What becomes of a change now: 0 or -errno. */
static int changing(int takes_space)
{
    char word[16];
    for (int waited_ms = 0; waited_ms < HANG_MS; waited_ms += LOOK_MS) {
        mode_now(word);
        if (strcmp(word, "hang") != 0)
            break;
        nanosleep(&(struct timespec){0, LOOK_MS * 1000000}, NULL);
    }
    if (!strcmp(word, "EIO"))
        return -EIO;
    if (!strcmp(word, "EROFS"))
        return -EROFS;
    return takes_space && !strcmp(word, "ENOSPC") ? -ENOSPC : 0;
}

/* The path below BACKING. */
static int full(char out[PATH_BYTES], const char *path)
{
    int n = snprintf(out, PATH_BYTES, "%s%s", self()->backing, path);
    return n > 0 && n < PATH_BYTES ? 0 : -ENAMETOOLONG;
}

static int outcome(int rc)
{
    return rc < 0 ? -errno : rc;
}

static int slow_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    char p[PATH_BYTES];
    if (fi && fi->fh)
        return outcome(fstat((int)fi->fh, st));
    return full(p, path) ?: outcome(lstat(p, st));
}

static int slow_readdir(const char *path, void *out, fuse_fill_dir_t fill, off_t offset,
                        struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
    (void)offset, (void)fi, (void)flags;
    char p[PATH_BYTES];
    int rc = full(p, path);
    if (rc)
        return rc;
    DIR *dir = opendir(p);
    if (!dir)
        return -errno;
    for (struct dirent *e; (e = readdir(dir));)
        if (fill(out, e->d_name, NULL, 0, 0))
            break;
    closedir(dir);
    return 0;
}

/* A name that is made belongs to the caller, as on a plain disk. */
static int give(int rc, const char *p)
{
    struct fuse_context *c = fuse_get_context();
    if (rc >= 0 && lchown(p, c->uid, c->gid))
        rc = -1;
    return outcome(rc);
}

static int slow_mkdir(const char *path, mode_t mode)
{
    char p[PATH_BYTES];
    return full(p, path) ?: changing(1) ?: give(mkdir(p, mode), p);
}

static int slow_unlink(const char *path)
{
    char p[PATH_BYTES];
    return full(p, path) ?: changing(0) ?: outcome(unlink(p));
}

static int slow_rmdir(const char *path)
{
    char p[PATH_BYTES];
    return full(p, path) ?: changing(0) ?: outcome(rmdir(p));
}

static int slow_rename(const char *from, const char *to, unsigned flags)
{
    char a[PATH_BYTES], b[PATH_BYTES];
    return full(a, from)
               ?: full(b, to) ?: changing(0) ?: outcome(renameat2(AT_FDCWD, a, AT_FDCWD, b, flags));
}

static int slow_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    (void)fi;
    char p[PATH_BYTES];
    return full(p, path) ?: outcome(chmod(p, mode));
}

static int slow_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
    (void)fi;
    char p[PATH_BYTES];
    return full(p, path) ?: outcome(lchown(p, uid, gid));
}

static int slow_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    char p[PATH_BYTES];
    if (fi && fi->fh)
        return outcome(ftruncate((int)fi->fh, size));
    return full(p, path) ?: outcome(truncate(p, size));
}

static int slow_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
    (void)fi;
    char p[PATH_BYTES];
    return full(p, path) ?: outcome(utimensat(AT_FDCWD, p, times, AT_SYMLINK_NOFOLLOW));
}

static int opened(int fd, struct fuse_file_info *fi)
{
    if (fd < 0)
        return -errno;
    fi->fh = (uint64_t)fd;
    return 0;
}

static int slow_open(const char *path, struct fuse_file_info *fi)
{
    char p[PATH_BYTES];
    return full(p, path) ?: opened(open(p, fi->flags & ~(O_DIRECT | O_APPEND)), fi);
}

static int slow_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    char p[PATH_BYTES];
    int rc = full(p, path) ?: changing(1);
    if (rc)
        return rc;
    int fd = open(p, (fi->flags & ~(O_DIRECT | O_APPEND)) | O_CREAT, mode);
    if (fd < 0)
        return -errno;
    rc = give(0, p);
    return rc ?: opened(fd, fi);
}

static int slow_read(const char *path, char *out, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    (void)path;
    return outcome((int)pread((int)fi->fh, out, size, offset));
}

static int slow_write(const char *path, const char *data, size_t size, off_t offset,
                      struct fuse_file_info *fi)
{
    struct slowfs *fs = self();
    if (size >= SLOW_BYTES) {
        struct timespec pause = {fs->delay_ms / 1000, fs->delay_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    int rc = changing(1) ?: outcome((int)pwrite((int)fi->fh, data, size, offset));
    if (size >= SLOW_BYTES && rc >= 0)
        dprintf(fs->log_fd, "write %s %lld %zu\n", path, (long long)offset, size);
    return rc;
}

static int slow_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)path;
    return changing(0) ?: outcome(data_only ? fdatasync((int)fi->fh) : fsync((int)fi->fh));
}

static int slow_fallocate(const char *path, int mode, off_t offset, off_t length,
                          struct fuse_file_info *fi)
{
    (void)path;
    return changing(1) ?: outcome(fallocate((int)fi->fh, mode, offset, length));
}

static int slow_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    return outcome(close((int)fi->fh));
}

static int slow_statfs(const char *path, struct statvfs *out)
{
    char p[PATH_BYTES];
    return full(p, path) ?: outcome(statvfs(p, out));
}

static void *slow_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
    conn->want |= conn->capable & FUSE_CAP_ASYNC_DIO;
    config->kernel_cache = 0;
    return fuse_get_context()->private_data;
}

static const struct fuse_operations operations = {
    .init = slow_init,
    .getattr = slow_getattr,
    .readdir = slow_readdir,
    .mkdir = slow_mkdir,
    .unlink = slow_unlink,
    .rmdir = slow_rmdir,
    .rename = slow_rename,
    .chmod = slow_chmod,
    .chown = slow_chown,
    .truncate = slow_truncate,
    .utimens = slow_utimens,
    .open = slow_open,
    .create = slow_create,
    .read = slow_read,
    .write = slow_write,
    .fsync = slow_fsync,
    .fallocate = slow_fallocate,
    .release = slow_release,
    .statfs = slow_statfs,
};

int main(int argc, char **argv)
{
    static struct slowfs fs;
    if (argc != 4 || (fs.delay_ms = strtol(argv[1], NULL, 10)) < 0 || fs.delay_ms > 60000 ||
        !realpath(argv[2], fs.backing)) {
        fprintf(stderr, "usage: slowfs DELAY_MS BACKING MOUNTPOINT\n");
        return 2;
    }
    char log[PATH_BYTES];
    snprintf(log, sizeof log, "%s/../slowfs.log", fs.backing);
    fs.log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fs.log_fd < 0) {
        perror(log);
        return 1;
    }
    char *args[] = {argv[0], "-f", "-o", "allow_other,default_permissions,max_threads=64",
                    argv[3], NULL};
    umask(0);
    return fuse_main(5, args, &operations, &fs);
}
