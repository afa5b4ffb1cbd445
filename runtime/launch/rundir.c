/* rundir.c - DIR/lock and DIR/run.json.
 *
 * The lock is flock: it goes with its holder, however that dies, also over NFS. The file's text
 * (who holds it) is for people only and decides nothing. run.json is written aside, synced and
 * renamed, and the folder synced: an epoch that anybody has seen is never given out again. */
#include "launch/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { RUN_JSON_MAX_BYTES = 4096 };
enum { LOOKED_AT_MS = 200 }; /* a look at the lock takes no tenth of that */

static int make_parents(const char *dir, struct err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 1);
    for (char *slash = path + 1; *slash; slash++) {
        if (*slash != '/')
            continue;
        *slash = 0;
        if (mkdir(path, 0777) && errno != EEXIST)
            return err_set_errno(err, errno, "run folder %s: cannot make %s", dir, path);
        *slash = '/';
    }
    if (mkdir(path, 0777) && errno != EEXIST)
        return err_set_errno(err, errno, "cannot make the run folder %s", dir);
    return 0;
}

static void write_holder(int fd)
{
    char host[256] = "?", text[512];
    gethostname(host, sizeof host - 1);
    const char *job = getenv("SLURM_JOB_ID");
    int n = snprintf(text, sizeof text, "%s%s%sprocess %d on %s\n", job ? "job " : "",
                     job ? job : "", job ? ", " : "", (int)getpid(), host);
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) < 0)
        return; /* only for people: the lock holds without it */
}

static void read_holder(int fd, char *text, size_t room)
{
    ssize_t n = pread(fd, text, room - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    text[strcspn(text, "\n")] = 0;
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

/* 0, or errno. */
static int take_lock(int fd, int64_t deadline_ms)
{
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK || clock_ms() >= deadline_ms)
            return errno;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return 0;
}

int rundir_holder(const char *dir, char *text, size_t room)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/lock", dir) >= (int)sizeof path)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    int held = !flock(fd, LOCK_SH | LOCK_NB) ? 0 : errno == EWOULDBLOCK ? 1 : -1;
    if (held > 0)
        read_holder(fd, text, room);
    close(fd);
    return held;
}

int rundir_lock(const char *dir, struct err *err)
{
    if (make_parents(dir, err))
        return -1;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/lock", dir) >= (int)sizeof path)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 6);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return err_set_errno(err, errno, "cannot open %s", path);
    /* Somebody may only be looking (rundir_holder). */
    int why = take_lock(fd, clock_ms() + LOOKED_AT_MS);
    if (!why) {
        write_holder(fd);
        return fd;
    }
    char holder[256];
    read_holder(fd, holder, sizeof holder);
    close(fd);
    if (why != EWOULDBLOCK)
        return err_set_errno(err, why, "cannot lock %s", path);
    return err_set(err,
                   "the run folder %s is in use by %s: wait for it, or name another folder with "
                   "--gtrain-dir",
                   dir, *holder ? holder : "another process");
}

static int read_run_json(const char *path, char run_id[RUNDIR_ID_BYTES], uint32_t *epoch,
                         struct err *err)
{
    /* Not waiting: a FIFO that nobody writes would be waited for without end. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_set_errno(err, errno, "cannot open %s", path);
    char text[RUN_JSON_MAX_BYTES + 1];
    ssize_t n = read(fd, text, RUN_JSON_MAX_BYTES);
    int why = errno;
    close(fd);
    if (n < 0)
        return err_set_errno(err, why, "cannot read %s", path);
    text[n] = 0;
    struct json_object *root = json_tokener_parse(text), *id = NULL, *number = NULL;
    int good =
        root && json_object_object_get_ex(root, "run_id", &id) &&
        json_object_object_get_ex(root, "epoch", &number) &&
        json_object_is_type(id, json_type_string) && json_object_is_type(number, json_type_int) &&
        strlen(json_object_get_string(id)) == RUNDIR_ID_BYTES - 1 &&
        strspn(json_object_get_string(id), "0123456789abcdef") == RUNDIR_ID_BYTES - 1 &&
        json_object_get_int64(number) >= 0 && json_object_get_int64(number) < (int64_t)UINT32_MAX;
    if (good) {
        snprintf(run_id, RUNDIR_ID_BYTES, "%s", json_object_get_string(id));
        *epoch = (uint32_t)json_object_get_int64(number);
    }
    json_object_put(root);
    if (!good)
        return err_set(err,
                       "%s is not {\"run_id\": \"16 hex digits\", \"epoch\": N}: name another "
                       "folder with --gtrain-dir, or put the file right",
                       path);
    return 0;
}

static int write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        text += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int sync_folder(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int bad = fsync(fd);
    close(fd);
    return bad;
}

static int write_run_json(const char *dir, const char *path, const char *run_id, uint32_t epoch,
                          struct err *err)
{
    char temporary[PATH_MAX], text[128];
    snprintf(temporary, sizeof temporary, "%s/run.json.new", dir);
    int n = snprintf(text, sizeof text, "{\"run_id\": \"%s\", \"epoch\": %" PRIu32 "}\n", run_id,
                     epoch);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_set_errno(err, errno, "cannot make %s", temporary);
    int bad = write_all(fd, text, (size_t)n) || fsync(fd);
    int why = errno;
    close(fd);
    if (!bad && (rename(temporary, path) || sync_folder(dir))) {
        bad = 1;
        why = errno;
    }
    if (bad) {
        unlink(temporary);
        return err_set_errno(err, why, "cannot write %s", path);
    }
    return 0;
}

int rundir_next_epoch(const char *dir, char run_id[RUNDIR_ID_BYTES], uint32_t *epoch,
                      struct err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/run.json.new", dir) >= (int)sizeof path)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 14);
    snprintf(path, sizeof path, "%s/run.json", dir);
    uint32_t last = 0;
    run_id[0] = 0;
    if (read_run_json(path, run_id, &last, err))
        return -1;
    if (!run_id[0]) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return err_set_errno(err, errno, "no random bytes from the kernel");
        snprintf(run_id, RUNDIR_ID_BYTES, "%016" PRIx64, random);
    }
    *epoch = last + 1;
    return write_run_json(dir, path, run_id, *epoch, err);
}

int rundir_read_id(const char *dir, char run_id[RUNDIR_ID_BYTES], struct err *err)
{
    char path[PATH_MAX];
    uint32_t epoch;
    run_id[0] = 0;
    if (snprintf(path, sizeof path, "%s/run.json", dir) >= (int)sizeof path)
        return err_set(err, "run folder: the path is longer than %d bytes", PATH_MAX - 10);
    if (read_run_json(path, run_id, &epoch, err))
        return -1;
    return run_id[0] ? 0 : err_set(err, "%s is not a run folder: there is no run.json in it", dir);
}
