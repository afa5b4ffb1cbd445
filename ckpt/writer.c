/* writer.c - the writer's thread: makes files, drops old ones, keeps one file reserved ahead.
 *
 * A file's way: an empty inode of this process (reserve) -> named .part -> data, then the header,
 * which holds the data's checksums -> length checked -> fsync -> renamed to its final name, never
 * over another -> fsync of the folder. Only then is it told to be finished. So a file under a final
 * name is complete and durable, whatever moment the machine stopped; and a write of a dead process
 * that lands late lands in an inode no successor uses. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "crc.h"
#include "engine.h"
#include "folder.h"
#include "thin.h"

int64_t engine_file_bytes(const struct ckpt *c)
{
    return c->layout.header_bytes + c->layout.data_bytes;
}

void engine_name(const struct ckpt *c, enum name_kind kind, int64_t step, char out[CKPT_NAME_ROOM])
{
    struct ckpt_name name = {.kind = kind, .key = {c->epoch, c->generation, step}, .rank = c->rank};
    strcpy(name.run, c->run);
    name_format(&name, out);
}

int engine_compare(const struct ckpt *c, const struct ckpt_key *key)
{
    struct ckpt_key a = {key->epoch, key->generation, 0}, b = {c->epoch, c->generation, 0};
    return key_compare(&a, &b);
}

/* Past the page cache where the file system lets us. */
static int create(struct ckpt *c, const char *name)
{
    int flags = O_RDWR | O_CREAT | O_EXCL;
    int fd = sys_open(c->hook, c->dirfd, name, flags | O_DIRECT, 0666);
    if (fd < 0 && errno == EINVAL) {
        unlinkat(c->dirfd, name, 0); /* some make the name before they refuse the flag */
        fd = sys_open(c->hook, c->dirfd, name, flags, 0666);
    }
    return fd;
}

int writer_reserve(struct ckpt *c, struct err *err)
{
    char name[CKPT_NAME_ROOM];
    if (c->reserve_fd >= 0)
        return 0;
    engine_name(c, NAME_RESERVE, -1, name);
    int fd = create(c, name);
    if (fd < 0)
        return err_set_errno(err, errno, "checkpoint folder %s: cannot make a file", c->dir);
    if (!sys_reserve(c->hook, fd, engine_file_bytes(c))) {
        c->reserve_fd = fd;
        return 0;
    }
    int errnum = errno;
    sys_unlink(c->hook, c->dirfd, name);
    close(fd);
    err_set_errno(err, errnum, "checkpoint folder %s: cannot reserve %" PRId64 " bytes", c->dir,
                  engine_file_bytes(c));
    errno = errnum;
    return -1;
}

static void feed_crc(void *stream, const unsigned char *p, size_t n)
{
    crc_feed(stream, p, n);
}

/* All bytes into fd, durable. */
static int write_bytes(struct ckpt *c, int fd, const struct ckpt_position *position,
                       uint32_t *digest, struct err *err)
{
    struct crc_stream stream = {.crcs = c->crcs};
    struct blockio_job data = {.fd = fd,
                               .write = true,
                               .memory = c->buffer + c->layout.header_bytes,
                               .offset = c->layout.header_bytes,
                               .bytes = c->layout.data_bytes,
                               .visit = feed_crc,
                               .arg = &stream,
                               .cancel = &c->cancel};
    struct blockio_job header = {.fd = fd,
                                 .write = true,
                                 .memory = c->buffer,
                                 .bytes = c->layout.header_bytes,
                                 .cancel = &c->cancel};
    struct file_meta meta = {.key = {c->epoch, c->generation, position->step},
                             .samples = position->samples,
                             .rank = c->rank,
                             .world = c->world,
                             .plan_hash = c->plan_hash};
    strcpy(meta.run, c->run);
    struct stat st;
    if ((c->thin ? thin_write(c, fd, &stream, err) : blockio_run(c->bio, &data, err)) ||
        layout_header(&c->layout, &meta, c->crcs, c->buffer, digest, err) ||
        blockio_run(c->bio, &header, err))
        return -1;
    if (fstat(fd, &st))
        return err_set_errno(err, errno, "looking at the length");
    if (st.st_size != engine_file_bytes(c))
        return err_set(err, "it is %" PRId64 " bytes long, not %" PRId64, (int64_t)st.st_size,
                       engine_file_bytes(c));
    if (sys_fsync(c->hook, fd))
        return err_set_errno(err, errno, "fsync");
    return atomic_load(&c->cancel) ? err_set(err, "cancelled") : 0;
}

bool writer_owns(const struct ckpt *c, const struct ckpt_name *name)
{
    int age = engine_compare(c, &name->key);
    bool own = name->rank == c->rank || name->rank == c->ward;
    return age == 0 ? own : age < 0 && (own || c->leader);
}

bool writer_may_drop(const struct ckpt *c, const struct commits *commits,
                     const struct ckpt_name *name)
{
    bool older = engine_compare(c, &name->key) < 0;
    if (!name_complete(name->kind))
        return older;
    if (commits->tight && older && !commits_has(commits, &name->key))
        return true;
    struct commits view = *commits; /* who copies this rank's file needs nothing else */
    view.held = view.held && name->kind == NAME_FILE && name->rank == c->rank;
    return !retain_file(&view, c->keep, &name->key);
}

static int drop_superseded(struct ckpt *c, const struct commits *commits, struct err *err)
{
    struct folder_list list;
    int rv = 0;
    if (folder_list(c->dirfd, c->run, &list, err))
        return -1;
    for (int i = 0; i < list.n; i++) {
        char name[CKPT_NAME_ROOM];
        const struct ckpt_name *entry = &list.entries[i].name;
        if (entry->kind == NAME_LOG || !writer_owns(c, entry) ||
            !writer_may_drop(c, commits, entry))
            continue;
        name_format(entry, name);
        if (sys_unlink(c->hook, c->dirfd, name) && errno != ENOENT && !rv)
            rv = err_set_errno(err, errno, "%s/%s: cannot drop it", c->dir, name);
    }
    folder_list_free(&list);
    return rv;
}

/* Is there space for what is written before this is asked again, beside the next file: a ward's
 * and parity, by others than this thread, who cannot make any; and all that of files that may run
 * ahead of their commit. Each rank that writes to this folder waits for its own: whoever holds a
 * reserve, or is writing, may be one. */
static bool room_for_others(struct ckpt *c)
{
    struct folder_list list;
    struct err unused;
    int64_t own = engine_file_bytes(c), beside = c->ward_bytes + c->parity_bytes;
    int64_t each = beside + c->ahead * (own + beside), writers = 0;
    if (!each || folder_list(c->dirfd, c->run, &list, &unused))
        return true;
    for (int i = 0; i < list.n; i++) {
        const struct ckpt_name *name = &list.entries[i].name;
        writers += (name->kind == NAME_RESERVE || name->kind == NAME_PART) &&
                   !engine_compare(c, &name->key);
    }
    folder_list_free(&list);
    return sys_has_room(c->hook, c->dirfd, each * (writers > 1 ? writers : 1));
}

/* With the lock held. -1: no memory. */
static int copy_commits(const struct ckpt *c, struct commits *out)
{
    *out = c->commits;
    out->keys = calloc((size_t)out->n + 1, sizeof *out->keys);
    if (!out->keys)
        return -1;
    if (out->n)
        memcpy(out->keys, c->commits.keys, (size_t)out->n * sizeof *out->keys);
    return 0;
}

/* Where there is no space for the next file, what is kept only while there is goes first: before
 * the first commit nobody else makes any. */
static int reserve_at_need(struct ckpt *c, struct err *err)
{
    struct commits commits;
    struct err unused;
    if (!writer_reserve(c, err))
        return 0;
    if (errno != ENOSPC && errno != EDQUOT)
        return -1;
    pthread_mutex_lock(&c->lock);
    int rc = copy_commits(c, &commits);
    pthread_mutex_unlock(&c->lock);
    if (rc)
        return -1;
    commits.tight = true;
    drop_superseded(c, &commits, &unused); /* what is left is told by the reserve */
    commits_free(&commits);
    return writer_reserve(c, err);
}

/* Called and left with the lock held; it is let go while dropping. */
static void tidy(struct ckpt *c)
{
    struct err err;
    struct commits commits;
    c->tidy_wanted = false;
    if (copy_commits(c, &commits))
        return; /* the next commit tries again */
    c->tidying = true;
    pthread_mutex_unlock(&c->lock);
    /* before the first commit nothing has taken the place of anything */
    int rc = commits.own || commits.tight ? drop_superseded(c, &commits, &err) : 0;
    struct err unused; /* no space now: the next save tries again, and tells */
    bool room = c->thin || (!writer_reserve(c, &unused) && room_for_others(c));
    if (!room && !commits.tight) {
        commits.tight = true;
        if (drop_superseded(c, &commits, &err))
            rc = -1;
        writer_reserve(c, &unused);
    }
    commits_free(&commits);
    pthread_mutex_lock(&c->lock);
    c->tidying = false;
    if (rc && !c->failed) {
        c->failed = true;
        c->failure = err;
    }
}

static int write_file(struct ckpt *c, const struct ckpt_position *position, struct done_file *done,
                      struct err *err)
{
    char reserve[CKPT_NAME_ROOM], part[CKPT_NAME_ROOM], final[CKPT_NAME_ROOM];
    engine_name(c, NAME_RESERVE, -1, reserve);
    engine_name(c, NAME_PART, position->step, part);
    engine_name(c, NAME_FILE, position->step, final);
    if (reserve_at_need(c, err))
        return -1;
    const char *name = reserve; /* what the file is called now */
    int fd = c->reserve_fd, rv = -1;
    c->reserve_fd = -1;
    if (sys_rename_new(c->hook, c->dirfd, reserve, part)) {
        err_set_errno(err, errno, "%s/%s: renaming", c->dir, reserve);
        goto out;
    }
    name = part;
    if (write_bytes(c, fd, position, &done->digest, err)) {
        err_prefix(err, "%s/%s", c->dir, part);
        goto out;
    }
    if (sys_rename_new(c->hook, c->dirfd, part, final)) {
        err_set_errno(err, errno, "%s/%s: renaming to its final name", c->dir, part);
        goto out;
    }
    name = final;
    if (sys_fsync(c->hook, c->dirfd)) {
        err_set_errno(err, errno, "fsync of the checkpoint folder %s", c->dir);
        goto out;
    }
    done->position = *position;
    rv = 0;
out:
    if (rv)
        sys_unlink(c->hook, c->dirfd, name);
    close(fd);
    return rv;
}

/* Woken for a copy, this thread must not take the core of the training thread that woke it: as a
 * batch thread it preempts nobody when it wakes, and has its share all the same. While it writes it
 * is woken by the drive, for a moment only, and a drive that waits is lost time: then it is an
 * ordinary thread. Where the policy is another one, somebody has chosen it. */
static void set_batch(bool on)
{
    int policy, from = on ? SCHED_OTHER : SCHED_BATCH;
    struct sched_param param;
    if (!pthread_getschedparam(pthread_self(), &policy, &param) && policy == from)
        pthread_setschedparam(pthread_self(), on ? SCHED_BATCH : SCHED_OTHER, &param);
}

/* Called and left with the lock held; it is let go while writing. A copy that failed is flushed,
 * and told by the join. */
static void write_wanted(struct ckpt *c)
{
    struct err err;
    struct done_file done = {.digest = 0};
    struct ckpt_position position = c->position;
    int64_t start = clock_ns();
    bool copied = !c->no_file;
    c->flushing = true;
    pthread_mutex_unlock(&c->lock);
    int rc = engine_flush(c, &err);
    pthread_mutex_lock(&c->lock);
    c->flushing = false;
    if (!rc && copied)
        image_show(c);
    pthread_cond_broadcast(&c->from_writer);
    pthread_mutex_unlock(&c->lock);
    if (!rc && copied) {
        set_batch(false);
        rc = write_file(c, &position, &done, &err);
        set_batch(true);
    }
    done.write_ns = clock_ns() - start;
    pthread_mutex_lock(&c->lock);
    c->write_wanted = false;
    if (!copied)
        return;
    if (!rc) {
        c->done[c->n_done++ % ENGINE_DONE_KEPT] = done;
    } else {
        c->failed = true;
        c->failure = err;
    }
}

static void drop_reserve(struct ckpt *c)
{
    char name[CKPT_NAME_ROOM];
    if (c->reserve_fd < 0)
        return;
    engine_name(c, NAME_RESERVE, -1, name);
    sys_unlink(c->hook, c->dirfd, name);
    close(c->reserve_fd);
    c->reserve_fd = -1;
}

void *writer_main(void *ckpt)
{
    struct ckpt *c = ckpt;
    set_batch(true);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!save_can_copy(c) && !c->write_wanted && !c->tidy_wanted &&
               (c->copy_wanted || !c->stop))
            pthread_cond_wait(&c->to_writer, &c->lock);
        if (save_can_copy(c)) /* first: somebody is going to wait for it */
            save_copy(c);
        else if (c->tidy_wanted) /* next: it makes room for the write */
            tidy(c);
        else if (c->write_wanted)
            write_wanted(c);
        else
            break;
        pthread_cond_broadcast(&c->from_writer);
    }
    pthread_mutex_unlock(&c->lock);
    drop_reserve(c);
    pthread_mutex_lock(&c->lock);
    c->exited = true;
    pthread_cond_broadcast(&c->from_writer);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
