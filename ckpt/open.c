/* open.c - everything that must hold before the first step: options, folder, predecessors, space,
 * memory. Each check names what is wrong here rather than at the first save. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/number.h"
#include "crc.h"
#include "engine.h"
#include "folder.h"
#include "log.h"
#include "memory.h"
#include "thin.h"

static int check_options(const struct ckpt_options *o, const struct ckpt_io *io, struct err *err)
{
    if (!o->dir || !o->dir[0])
        return err_set(err, "no checkpoint folder is named");
    if (!o->run_id || !name_run_valid(o->run_id))
        return err_set(err, "the run id is '%.100s': use 1 to %d of [0-9a-z-]",
                       o->run_id ? o->run_id : "", CKPT_RUN_MAX);
    if (!o->node || !name_node_valid(o->node))
        return err_set(err, "the node's name is '%.150s': use 1 to %d of [0-9A-Za-z._-]",
                       o->node ? o->node : "", CKPT_NODE_MAX);
    if (o->world < 1 || o->world > CKPT_WORLD_MAX || o->rank < 0 || o->rank >= o->world)
        return err_set(err, "rank %d in a world of %d: use rank 0 to world - 1, world 1 to %d",
                       o->rank, o->world, CKPT_WORLD_MAX);
    if (o->keep < 2 || o->keep > CKPT_KEEP_MAX)
        return err_set(err, "keep is %d: use 2 (one may be damaged) to %d", o->keep, CKPT_KEEP_MAX);
    if (o->ahead < 0 || o->ahead > CKPT_KEEP_MAX)
        return err_set(err, "ahead is %d: use 0 to %d", o->ahead, CKPT_KEEP_MAX);
    if (!io || !io->copy_out || !io->copy_in)
        return err_set(err, "copy_out and copy_in are needed");
    return 0;
}

static int copy_options(struct ckpt *c, const struct ckpt_options *o, const struct ckpt_io *io,
                        struct err *err)
{
    c->dir = strdup(o->dir);
    c->node = strdup(o->node);
    if (!c->dir || !c->node)
        return err_set(err, "out of memory");
    strcpy(c->run, o->run_id);
    c->rank = o->rank;
    c->world = o->world;
    c->keep = o->keep;
    c->ahead = o->ahead;
    c->held = o->holds;
    c->ward = o->wards ? o->ward : -1;
    c->ward_bytes = o->wards ? o->ward_bytes : 0;
    c->parity_bytes = o->parity_bytes;
    c->epoch = o->epoch;
    c->generation = o->generation;
    c->plan_hash = o->plan_hash;
    c->leader = o->leader;
    c->io = *io;
    struct ckpt_name log = {.kind = NAME_LOG};
    strcpy(log.run, o->run_id);
    strcpy(log.node, o->node);
    name_format(&log, c->log_name);
    return 0;
}

/* A writer of this rank must be newer than all before it. Half-made files of older ones go. */
static int clear_predecessors(struct ckpt *c, const struct folder_list *list, struct err *err)
{
    for (int i = 0; i < list->n; i++) {
        const struct ckpt_name *name = &list->entries[i].name;
        char text[CKPT_NAME_ROOM];
        if (name->kind == NAME_LOG)
            continue;
        name_format(name, text);
        int age = engine_compare(c, &name->key);
        if (age >= 0 && name->rank == c->rank && name->kind != NAME_COPY_PART)
            return err_set(
                err,
                "checkpoint folder %s: %s is there, made by epoch %" PRIu32 " generation %" PRIu32
                "; this is %" PRIu32 " generation %" PRIu32 ": a new start needs a higher epoch",
                c->dir, text, name->key.epoch, name->key.generation, c->epoch, c->generation);
        bool goes = age < 0 && !name_complete(name->kind) && writer_owns(c, name);
        if (goes && sys_unlink(c->hook, c->dirfd, text) && errno != ENOENT)
            return err_set_errno(err, errno, "%s/%s: cannot drop this half-made file", c->dir,
                                 text);
    }
    return 0;
}

static int refuse(const struct ckpt *c, int files, int64_t needed, int64_t there, struct err *err)
{
    char all[NUMBER_BYTES], one[NUMBER_BYTES], has[NUMBER_BYTES], lacks[NUMBER_BYTES];
    if (c->thin)
        return err_set(err, "folder %s: a file of %s, %s are free, %s too few", c->dir,
                       number_size((double)needed, all), number_size((double)there, has),
                       number_size((double)(needed - there), lacks));
    return err_set(
        err,
        "checkpoint folder %s: rank %d needs %s (keep + %d%s: %d files of %s%s%s), %s are "
        "free, %s too few: choose another folder or a lower keep",
        c->dir, c->rank, number_size((double)needed, all), c->ahead + 1,
        c->ward >= 0 ? c->held ? ", twice, + 1" : ", twice"
        : c->held    ? " + 1"
                     : "",
        files, number_size((double)engine_file_bytes(c), one),
        c->parity_bytes ? ", and parity" : "", c->leader ? ", and a log" : "",
        number_size((double)there, has), number_size((double)(needed - there), lacks));
}

/* One file, at the limit that the process has. */
static int check_limit(const struct ckpt *c, struct err *err)
{
    struct rlimit limit;
    char one[NUMBER_BYTES], most[NUMBER_BYTES];
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= (rlim_t)engine_file_bytes(c))
        return 0;
    return err_set(err,
                   "checkpoint folder %s: rank %d's files are of %s, this process may make files "
                   "of %s: raise its limit (ulimit -f)",
                   c->dir, c->rank, number_size((double)engine_file_bytes(c), one),
                   number_size((double)limit.rlim_cur, most));
}

/* Room for keep + ahead + 1 files and a held one; what is there already will be dropped in
 * exchange, but not all at once. Others may write here: their sum is for ckpt_space. *deferred: the
 * first file cannot be reserved before something goes. */
static int check_space(struct ckpt *c, const struct folder_list *list, bool *deferred,
                       struct err *err)
{
    struct ckpt_space s;
    if (space_look(c, list, &s, err))
        return -1;
    int files = (c->keep + c->ahead + 1) * (c->ward >= 0 ? 2 : 1) + c->held;
    *deferred = s.available < engine_file_bytes(c) && s.loose > 0;
    if (s.all > s.available + s.there)
        return refuse(c, files, s.all, s.available + s.there, err);
    if (s.first <= s.available + s.loose)
        return 0;
    char needs[NUMBER_BYTES], has[NUMBER_BYTES], lacks[NUMBER_BYTES];
    int64_t there = s.available + s.loose;
    return err_set(err,
                   "checkpoint folder %s: until its first commit rank %d needs %s beside the %d "
                   "checkpoints that are kept, %s are free, %s too few: choose another folder",
                   c->dir, c->rank, number_size((double)s.first, needs), c->keep,
                   number_size((double)there, has), number_size((double)(s.first - there), lacks));
}

/* Not at the first commit, but now. */
static int check_log(const struct ckpt *c, struct err *err)
{
    if (!c->leader || !log_check(c->dirfd, c->log_name, c->hook, err))
        return 0;
    return err_prefix(err, "checkpoint folder %s", c->dir);
}

static int prepare_folder(struct ckpt *c, struct err *err)
{
    struct folder_list list;
    if (c->ward >= 0 && !c->ward_bytes)
        c->ward_bytes = engine_file_bytes(c);
    c->dirfd = folder_open_own(c->dir, c->hook, err);
    if (c->dirfd < 0 || folder_use(c->dirfd, c->dir, err) ||
        folder_list(c->dirfd, c->run, &list, err))
        return -1;
    int rv = -1;
    bool deferred = false;
    if (!clear_predecessors(c, &list, err) && !check_log(c, err) &&
        !commits_read(&c->commits, c->dirfd, c->dir, c->run, &list, err) && !check_limit(c, err) &&
        !check_space(c, &list, &deferred, err))
        rv = deferred ? 0 : writer_reserve(c, err);
    folder_list_free(&list);
    return rv;
}

/* Page-aligned, and no more than a place: what is not touched takes no memory. */
static int prepare_memory(struct ckpt *c, struct err *err)
{
    size_t bytes = (size_t)(c->thin ? thin_buffer_bytes(&c->layout) : engine_file_bytes(c));
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set_errno(err, errno, "a place for a copy of the state, %zu bytes", bytes);
    c->buffer = p;
    c->buffer_bytes = (int64_t)bytes;
    madvise(p, bytes, MADV_HUGEPAGE);
    c->crcs = calloc((size_t)crc_blocks(c->layout.data_bytes) + 1, sizeof *c->crcs);
    return c->crcs ? 0 : err_set(err, "out of memory");
}

int64_t ckpt_buffer_bytes(const struct ckpt *c)
{
    return c->buffer_bytes;
}

/* Touched here: a save must not pay for page faults. */
int ckpt_buffer_take(struct ckpt *c, struct err *err)
{
    size_t bytes = (size_t)ckpt_buffer_bytes(c);
    int rc = -1;
    if (c->taken || !bytes)
        return 0;
#ifdef MADV_POPULATE_WRITE
    rc = madvise(c->buffer, bytes, MADV_POPULATE_WRITE);
    if (rc && errno != EINVAL) /* a kernel that does not know it */
        return err_set_errno(err, errno, "memory for a copy of the state, %zu bytes", bytes);
#endif
    if (rc)
        memset(c->buffer, 0, bytes);
    c->taken = true;
    return 0;
}

static int start_thread(struct ckpt *c, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&c->thread, NULL, writer_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? err_set_errno(err, rc, "starting the checkpoint writer") : 0;
}

static void init_lock(struct ckpt *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->to_writer, NULL);
    pthread_cond_init(&c->from_writer, &attr);
    pthread_condattr_destroy(&attr);
}

static int find_cut(struct ckpt *c, const struct ckpt_tensor *tensors, int n, struct err *err)
{
    char *table = ckpt_table(tensors, n, err);
    if (!table)
        return -1;
    c->cut = ckpt_cut(table);
    free(table);
    return 0;
}

static int open_writer(struct ckpt **out, const struct ckpt_options *options,
                       const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                       const struct ckpt_hook *hook, bool thin, struct err *err)
{
    *out = NULL;
    if (check_options(options, io, err))
        return -1;
    struct ckpt *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    c->hook = hook;
    c->thin = thin;
    c->dirfd = c->reserve_fd = -1;
    c->last_step = -1;
    init_lock(c);
    if (copy_options(c, options, io, err) || layout_make(&c->layout, tensors, n_tensors, err) ||
        (options->replicated && find_cut(c, tensors, n_tensors, err)) ||
        blockio_open(&c->bio, options->queue_depth, options->block_bytes, options->no_uring, hook,
                     err) ||
        prepare_folder(c, err) || prepare_memory(c, err) || start_thread(c, err)) {
        char name[CKPT_NAME_ROOM];
        engine_name(c, NAME_RESERVE, -1, name);
        if (c->reserve_fd >= 0)
            unlinkat(c->dirfd, name, 0);
        engine_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

int ckpt_open_hooked(struct ckpt **out, const struct ckpt_options *options,
                     const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                     const struct ckpt_hook *hook, struct err *err)
{
    return open_writer(out, options, tensors, n_tensors, io, hook, false, err);
}

int ckpt_open_thin(struct ckpt **out, const struct ckpt_options *options,
                   const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                   struct err *err)
{
    return open_writer(out, options, tensors, n_tensors, io, NULL, true, err);
}

int ckpt_open_filler(struct ckpt **out, const struct ckpt_tensor *tensors, int n_tensors,
                     const struct ckpt_io *io, struct err *err)
{
    *out = NULL;
    struct ckpt *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    c->dirfd = c->reserve_fd = -1;
    c->last_step = -1;
    c->filler = true;
    c->io = *io;
    init_lock(c);
    if (layout_make(&c->layout, tensors, n_tensors, err)) {
        engine_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

int ckpt_open(struct ckpt **out, const struct ckpt_options *options,
              const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
              struct err *err)
{
    return ckpt_open_hooked(out, options, tensors, n_tensors, io, NULL, err);
}

void engine_free(struct ckpt *c)
{
    if (c->buffer)
        munmap(c->buffer, (size_t)c->buffer_bytes);
    if (c->reserve_fd >= 0)
        close(c->reserve_fd);
    if (c->dirfd >= 0)
        close(c->dirfd);
    blockio_close(c->bio);
    layout_free(&c->layout);
    windows_free(&c->windows);
    free(c->stage);
    commits_free(&c->commits);
    pthread_cond_destroy(&c->to_writer);
    pthread_cond_destroy(&c->from_writer);
    pthread_mutex_destroy(&c->lock);
    free(c->crcs);
    free(c->dir);
    free(c->node);
    free(c);
}
