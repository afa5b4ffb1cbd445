/* drain.c - the caller's side of a drain, and its thread. See drain.h. */
#include "drain.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/number.h"
#include "drain_impl.h"
#include "log.h"
#include "record.h"

enum {
    CANCEL_MS = 5000, /* after which a thread is left to the file system that holds it */
    SPARE_LINES = 64, /* of the log, beyond those retention is about */
};

/* ---- the leader's thread: commit and retention ---- */

static void log_name(const struct ckpt_drain *d, char out[CKPT_NAME_ROOM])
{
    struct ckpt_name name = {.kind = NAME_LOG, .node = CKPT_SHARED_NODE};
    strcpy(name.run, d->run);
    name_format(&name, out);
}

/* The (epoch, generation) is lower than, the same as, higher than ours: -1, 0, 1. */
static int compare(const struct ckpt_drain *d, const struct ckpt_key *key)
{
    struct ckpt_key a = {key->epoch, key->generation, 0}, b = {d->epoch, d->generation, 0};
    return key_compare(&a, &b);
}

/* May the leader drop it? Halves only of dead writers; commits NULL: nothing else. */
static bool superseded(const struct ckpt_drain *d, const struct commits *commits,
                       const struct ckpt_name *name)
{
    int age = compare(d, &name->key);
    if (age > 0 || name->kind == NAME_LOG)
        return false;
    if (!name_complete(name->kind))
        return age < 0;
    return commits && d->keep > 0 && !retain_file(commits, d->keep, &name->key);
}

static int drop_superseded(struct ckpt_drain *d, const struct commits *commits,
                           const struct folder_list *list, struct err *err)
{
    int rv = 0;
    for (int i = 0; i < list->n; i++) {
        char name[CKPT_NAME_ROOM];
        if (!superseded(d, commits, &list->entries[i].name))
            continue;
        name_format(&list->entries[i].name, name);
        if (sys_unlink(d->hook, d->dirfd, name) && errno != ENOENT && !rv)
            rv = err_set_errno(err, errno, "%s/%s: cannot drop it", d->to, name);
    }
    return rv;
}

static int append_and_tidy(struct ckpt_drain *d, const char *record, const struct ckpt_key *key,
                           struct err *err)
{
    char log[CKPT_NAME_ROOM];
    struct folder_list list;
    log_name(d, log);
    int lines = d->keep ? d->keep + SPARE_LINES : INT_MAX;
    if (log_append(d->dirfd, log, record, lines, d->hook, err))
        return err_prefix(err, "shared folder %s", d->to);
    pthread_mutex_lock(&d->lock);
    d->committed = key->step;
    d->commits.own++;
    int rv = commits_add(&d->commits, key);
    pthread_mutex_unlock(&d->lock);
    if (rv)
        return err_set(err, "no memory for a commit");
    if (folder_list(d->dirfd, d->run, &list, err))
        return -1;
    rv = drop_superseded(d, &d->commits, &list, err); /* only this thread adds to commits now */
    folder_list_free(&list);
    return rv;
}

/* Called and left with the lock held; it is let go meanwhile. So is copy(). */
static void commit(struct ckpt_drain *d)
{
    char *record = d->commit;
    struct ckpt_key key = d->commit_key;
    struct err err;
    d->commit = NULL;
    pthread_mutex_unlock(&d->lock);
    int rv = append_and_tidy(d, record, &key, &err);
    free(record);
    pthread_mutex_lock(&d->lock);
    if (rv) {
        d->troubled = d->commit_failed = true;
        d->commit_failure = err;
    }
}

/* ---- the folder ---- */

/* What is committed there will be dropped in exchange, where something is dropped at all. What is
 * not goes after the next commit only: that one must fit beside it. */
static int check_space(const struct ckpt_drain *d, const struct commits *commits,
                       const struct folder_list *list, struct err *err)
{
    struct statvfs fs;
    int count = d->keep + 1;
    int64_t total_bytes = d->total_bytes;
    if (fstatvfs(d->dirfd, &fs))
        return err_set_errno(err, errno, "shared folder %s: its free space", d->to);
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    double needed = (double)count * (double)total_bytes;
    for (int i = 0; i < list->n && d->keep; i++)
        if (list->entries[i].name.kind == NAME_FILE &&
            commits_has(commits, &list->entries[i].name.key))
            free_bytes += (double)list->entries[i].bytes;
    if (free_bytes >= needed)
        return 0;
    char all[NUMBER_BYTES], one[NUMBER_BYTES], has[NUMBER_BYTES], lacks[NUMBER_BYTES];
    return err_set(err,
                   "shared folder %s: %d checkpoints of %s (one more than are kept) need %s, %s "
                   "are free, %s too few: choose another folder or a lower shared_keep",
                   d->to, count, number_size((double)total_bytes, one), number_size(needed, all),
                   number_size(free_bytes, has), number_size(needed - free_bytes, lacks));
}

/* Not at the first commit, but now. */
static int check_log(const struct ckpt_drain *d, struct err *err)
{
    char log[CKPT_NAME_ROOM];
    log_name(d, log);
    return log_check(d->dirfd, log, d->hook, err) ? err_prefix(err, "shared folder %s", d->to) : 0;
}

/* The folder, in use; it is not made: where a file system went away that would be below its place.
 */
static int open_there(const struct ckpt_drain *d, struct err *err)
{
    struct stat st;
    int fd;
    if (folder_open_read(d->to, &fd, err))
        return err_prefix(err, "shared");
    if (fd < 0)
        return err_set(err, "shared folder %s is not there (is the file system mounted?)", d->to);
    int rv = fstat(fd, &st) ? err_set_errno(err, errno, "shared folder %s", d->to) : 0;
    if (!rv && st.st_uid != geteuid())
        rv = err_set(err, "shared folder %s belongs to user %u, not to %u who runs this", d->to,
                     st.st_uid, geteuid());
    if (!rv)
        rv = folder_use(fd, d->to, err);
    if (!rv)
        return fd;
    close(fd);
    return -1;
}

/* commits: as the log there has them, for the leader. */
static int read_folder(struct ckpt_drain *d, struct commits *commits, struct err *err)
{
    struct folder_list list;
    if (!d->leader)
        return 0;
    if (folder_list(d->dirfd, d->run, &list, err))
        return err_prefix(err, "shared folder %s", d->to);
    struct err later; /* what cannot be dropped now is tried again behind each commit */
    drop_superseded(d, NULL, &list, &later);
    int rv = check_log(d, err) || commits_read(commits, d->dirfd, d->to, d->run, &list, err) ||
                     check_space(d, commits, &list, err)
                 ? -1
                 : 0;
    folder_list_free(&list);
    return rv;
}

/* Before the first copy. */
static int prepare_folder(struct ckpt_drain *d, struct err *err)
{
    struct commits read = {.no_trial = true}; /* the next copy comes late: space here is dear */
    d->dirfd = open_there(d, err);
    if (d->dirfd < 0)
        return -1;
    if (read_folder(d, &read, err)) {
        commits_free(&read);
        close(d->dirfd);
        d->dirfd = -1;
        return -1;
    }
    pthread_mutex_lock(&d->lock);
    read.restored = d->commits.restored;
    read.restored_from = d->commits.restored_from;
    commits_free(&d->commits);
    d->commits = read;
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* A file system that went away and came back has no use for what was opened there before. Where the
 * folder is not to be had, the copy will say why. Only the thread uses dirfd. */
static void open_again(struct ckpt_drain *d)
{
    struct err err;
    int fd = open_there(d, &err);
    if (fd < 0)
        return;
    close(d->dirfd);
    d->dirfd = fd;
}

static void copy(struct ckpt_drain *d)
{
    struct drain_job job = d->job;
    struct err err;
    bool again = d->troubled;
    pthread_mutex_unlock(&d->lock);
    if (again && !d->unready)
        open_again(d);
    if (d->unready) /* nothing was committed here so far: that takes a copy of every rank */
        d->unready = prepare_folder(d, &err);
    int rv = d->unready ? -1 : drain_copy(d, &job, &err);
    pthread_mutex_lock(&d->lock);
    d->state = rv ? CKPT_DRAIN_FAILED : CKPT_DRAIN_DONE;
    d->troubled = rv;
    if (rv)
        d->failure = err;
}

/* Space for the next one; where it cannot be dropped now, retention does it later. */
static void abandon(struct ckpt_drain *d)
{
    struct drain_job job = d->abandoned;
    d->abandon = false;
    pthread_mutex_unlock(&d->lock);
    sys_unlink(d->hook, d->dirfd, job.path);
    pthread_mutex_lock(&d->lock);
}

static void *drain_main(void *arg)
{
    struct ckpt_drain *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stop || d->commit || d->abandon) {
        d->busy = true;
        if (d->commit)
            commit(d);
        else if (d->abandon)
            abandon(d);
        else if (d->state == CKPT_DRAIN_COPYING)
            copy(d);
        else
            d->busy = false;
        if (d->busy) {
            d->busy = false;
            pthread_cond_broadcast(&d->from_thread);
        } else {
            pthread_cond_wait(&d->to_thread, &d->lock);
        }
    }
    d->exited = true;
    pthread_cond_broadcast(&d->from_thread);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static struct timespec point(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = (long)(ns % 1000000000)};
}

void drain_pace(struct ckpt_drain *d, int64_t start_ns, int64_t bytes)
{
    if (!d->bytes_per_s)
        return;
    double due_ns = (double)start_ns + (double)bytes / (double)d->bytes_per_s * 1e9;
    struct timespec at = point((int64_t)due_ns);
    pthread_mutex_lock(&d->lock);
    while (!d->hurry && !atomic_load(&d->cancel) && (double)clock_ns() < due_ns)
        pthread_cond_timedwait(&d->to_thread, &d->lock, &at);
    pthread_mutex_unlock(&d->lock);
}

/* ---- opening ---- */

static int check_options(const struct ckpt_drain_options *o, struct err *err)
{
    if (!o->from || !o->to || !o->run_id || !name_run_valid(o->run_id) || o->world < 1 ||
        o->world > CKPT_WORLD_MAX || o->rank < 0 || o->rank >= o->world || o->keep < 0 ||
        o->keep > CKPT_KEEP_MAX || o->bytes_per_s < 0)
        return err_set(err,
                       "a drain of rank %d of %d that keeps %d: use two folders, a run id, a rank "
                       "below the world, keep from 0 to %d",
                       o->rank, o->world, o->keep, CKPT_KEEP_MAX);
    return 0;
}

static int copy_options(struct ckpt_drain *d, const struct ckpt_drain_options *o, struct err *err)
{
    d->from = strdup(o->from);
    d->to = strdup(o->to);
    if (!d->from || !d->to)
        return err_set(err, "no memory for a drain");
    strcpy(d->run, o->run_id);
    d->rank = o->rank;
    d->world = o->world;
    d->epoch = o->epoch;
    d->generation = o->generation;
    d->keep = o->keep;
    d->bytes_per_s = o->bytes_per_s;
    d->total_bytes = o->total_bytes;
    d->leader = o->leader;
    return 0;
}

static int start_thread(struct ckpt_drain *d, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&d->thread, NULL, drain_main, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? err_set_errno(err, rc, "starting the thread that copies checkpoints") : 0;
}

static void init_lock(struct ckpt_drain *d)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->to_thread, &attr);
    pthread_cond_init(&d->from_thread, &attr);
    pthread_condattr_destroy(&attr);
}

static void drain_free(struct ckpt_drain *d)
{
    if (d->dirfd >= 0)
        close(d->dirfd);
    commits_free(&d->commits);
    pthread_cond_destroy(&d->to_thread);
    pthread_cond_destroy(&d->from_thread);
    pthread_mutex_destroy(&d->lock);
    free(d->record);
    free(d->commit);
    free(d->from);
    free(d->to);
    free(d);
}

int ckpt_drain_open_hooked(struct ckpt_drain **out, const struct ckpt_drain_options *options,
                           const struct ckpt_hook *hook, struct err *err)
{
    *out = NULL;
    if (check_options(options, err))
        return -1;
    struct ckpt_drain *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(err, "no memory for a drain");
    d->hook = hook;
    d->dirfd = -1;
    d->committed = -1;
    init_lock(d);
    int rv = copy_options(d, options, err);
    if (!rv) {
        d->unready = options->later; /* no call there but the thread's */
        rv = (!d->unready && prepare_folder(d, err)) || start_thread(d, err) ? -1 : 0;
    }
    if (rv) {
        drain_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

int ckpt_drain_open(struct ckpt_drain **out, const struct ckpt_drain_options *options,
                    struct err *err)
{
    return ckpt_drain_open_hooked(out, options, NULL, err);
}

/* ---- the caller's side ---- */

/* The record as it will stand in the shared folder's log; job: this rank's part. */
static char *shared_record(const struct ckpt_drain *d, const char *text, struct drain_job *job,
                           struct err *err)
{
    struct record r;
    char *out = NULL;
    if (record_parse(text, (int64_t)strlen(text), RECORD_COMMIT, &r, err))
        return NULL;
    if (strcmp(r.meta.run, d->run) || r.n != d->world) {
        err_set(err, "a record of run %s and %d ranks for a drain of run %s and %d", r.meta.run,
                r.n, d->run, d->world);
        goto out;
    }
    *job = (struct drain_job){
        .key = r.meta.key, .bytes = r.ranks[d->rank].bytes, .digest = r.ranks[d->rank].digest};
    strcpy(job->path, r.ranks[d->rank].path);
    for (int i = 0; i < r.n; i++) {
        free(r.ranks[i].node);
        r.ranks[i].node = strdup(CKPT_SHARED_NODE);
        free(r.ranks[i].parity.path); /* it stays with the local files */
        r.ranks[i].parity = (struct record_parity){0};
        if (!r.ranks[i].node)
            goto memory;
    }
    out = record_print(&r, RECORD_COMMIT);
memory:
    if (!out)
        err_set(err, "no memory for a record");
out:
    record_free(&r);
    return out;
}

int ckpt_drain_start(struct ckpt_drain *d, const char *record, struct err *err)
{
    struct drain_job job;
    char *text = shared_record(d, record, &job, err);
    if (!text)
        return -1;
    pthread_mutex_lock(&d->lock);
    bool free_now = d->state != CKPT_DRAIN_COPYING;
    if (free_now) {
        free(d->record);
        d->record = text;
        d->job = job;
        d->state = CKPT_DRAIN_COPYING;
        atomic_store(&d->copied, 0);
        pthread_cond_broadcast(&d->to_thread);
    }
    pthread_mutex_unlock(&d->lock);
    if (free_now)
        return 0;
    free(text);
    return err_set(err, "a copy to the shared folder is still going");
}

enum ckpt_drain_state ckpt_drain_poll(struct ckpt_drain *d, int64_t *step, int64_t *bytes,
                                      struct err *why)
{
    pthread_mutex_lock(&d->lock);
    enum ckpt_drain_state state = d->state;
    if (step)
        *step = state == CKPT_DRAIN_IDLE ? -1 : d->job.key.step;
    if (bytes)
        *bytes = atomic_load(&d->copied);
    if (why && state == CKPT_DRAIN_FAILED)
        *why = d->failure;
    pthread_mutex_unlock(&d->lock);
    return state;
}

int ckpt_drain_commit(struct ckpt_drain *d, struct err *err)
{
    int rv = 0;
    pthread_mutex_lock(&d->lock);
    if (!d->leader || d->state != CKPT_DRAIN_DONE || !d->record) {
        rv = err_set(err, "a copy can be committed once, by the leader, when it is complete");
    } else {
        /* One that is still waited for is superseded by this. */
        free(d->commit);
        d->commit = d->record;
        d->commit_key = d->job.key;
        d->record = NULL;
        pthread_cond_broadcast(&d->to_thread);
    }
    pthread_mutex_unlock(&d->lock);
    return rv;
}

void ckpt_drain_abandon(struct ckpt_drain *d)
{
    pthread_mutex_lock(&d->lock);
    if (d->state == CKPT_DRAIN_DONE && d->record) { /* the leader has no record: it is committed */
        d->abandon = true;
        d->abandoned = d->job;
        d->state = CKPT_DRAIN_IDLE;
        pthread_cond_broadcast(&d->to_thread);
    }
    pthread_mutex_unlock(&d->lock);
}

int ckpt_drain_committed(struct ckpt_drain *d, int64_t *step, struct err *err)
{
    pthread_mutex_lock(&d->lock);
    int rv = d->commit_failed ? -1 : 0;
    *step = d->committed;
    if (rv && err)
        *err = d->commit_failure;
    d->commit_failed = false;
    pthread_mutex_unlock(&d->lock);
    return rv;
}

int ckpt_drain_adopt(struct ckpt_drain *d, const char *record, struct err *err)
{
    struct record r;
    if (record_parse(record, (int64_t)strlen(record), RECORD_COMMIT, &r, err))
        return -1;
    pthread_mutex_lock(&d->lock);
    d->commits.restored = true;
    d->commits.restored_from = r.meta.key;
    pthread_mutex_unlock(&d->lock);
    record_free(&r);
    return 0;
}

void ckpt_drain_hurry(struct ckpt_drain *d)
{
    pthread_mutex_lock(&d->lock);
    d->hurry = true;
    pthread_cond_broadcast(&d->to_thread);
    pthread_mutex_unlock(&d->lock);
}

/* With the lock held. */
static bool idle(const struct ckpt_drain *d)
{
    return d->exited || (!d->busy && !d->commit && !d->abandon && d->state != CKPT_DRAIN_COPYING);
}

bool ckpt_drain_wait(struct ckpt_drain *d, int64_t deadline_ms)
{
    struct timespec at = clock_point(deadline_ms);
    pthread_mutex_lock(&d->lock);
    while (!idle(d) && !pthread_cond_timedwait(&d->from_thread, &d->lock, &at))
        ;
    bool done = idle(d);
    pthread_mutex_unlock(&d->lock);
    return done;
}

void ckpt_drain_close(struct ckpt_drain *d)
{
    if (!d)
        return;
    struct timespec at = clock_point(clock_ms() + CANCEL_MS);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    atomic_store(&d->cancel, true);
    pthread_cond_broadcast(&d->to_thread);
    while (!d->exited && !pthread_cond_timedwait(&d->from_thread, &d->lock, &at))
        ;
    bool gone = d->exited;
    pthread_mutex_unlock(&d->lock);
    if (gone) {
        pthread_join(d->thread, NULL);
        drain_free(d);
    } else {
        pthread_detach(d->thread);
    }
}
