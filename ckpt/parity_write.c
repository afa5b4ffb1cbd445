/* parity_write.c - sums up parities chunk by chunk, and a thread that writes them. See parity.h.
 *
 * The caller adds the other members' segments to the sums of the current chunk; complete sums go
 * into a queue. The thread writes them where they belong, then what the file says of the group,
 * then the header, which holds the checksums of all that. */
#include "parity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "crc.h"
#include "folder.h"
#include "parity_file.h"
#include "record.h"

enum {
    QUEUE = 4,             /* chunks that wait for the disk: bounds the memory */
    NEXT_WAIT_MS = 600000, /* for a place in it: a disk that needs longer is broken */
    DONE_KEPT = 8,         /* steps remembered for the claim */
};

/* Sums of one chunk. */
struct parity_row {
    struct ckpt_position position;
    int64_t turn, chunk; /* its place in time, in the segment */
    unsigned char *sums; /* keeps chunks, malloc'ed */
};

struct parity_done {
    int64_t step;
    uint32_t digest;
};

struct ckpt_parity {
    char *dir;
    char run[CKPT_RUN_MAX + 1];
    int rank, world, member, dirfd;
    uint32_t epoch, generation;
    uint64_t plan_hash;
    struct parity_code code;
    int64_t late; /* chunks that come last */
    struct layout layout;
    int64_t about[PARITY_ABOUT_MOST]; /* tensor gtrain.group */
    const struct ckpt_hook *hook;

    /* The caller's. */
    struct parity_row row; /* sums NULL: no step is under way */
    int given;             /* members whose segments are in the sums */
    bool from[PARITY_MEMBERS_MAX];
    int64_t last_step;

    /* Between caller and thread, under lock. */
    pthread_mutex_t lock;
    pthread_cond_t to_thread, from_thread;
    pthread_t thread;
    struct parity_row queue[QUEUE];
    int first, n; /* the first is the thread's while busy */
    bool stop, failed, told;
    struct err failure;
    struct parity_done done[DONE_KEPT];
    int64_t n_done; /* ever */

    /* The thread's: the half it writes. */
    int fd; /* -1: none */
    char part[CKPT_NAME_ROOM];
    uint32_t *crcs;
    struct crc_stream stream;
    unsigned char *header;
};

static void make_name(const struct ckpt_parity *p, enum name_kind kind, int64_t step,
                      char out[CKPT_NAME_ROOM])
{
    struct ckpt_name name = {.kind = kind, .key = {p->epoch, p->generation, step}, .rank = p->rank};
    strcpy(name.run, p->run);
    name_format(&name, out);
}

/* ---- the thread ---- */

static void drop_part(struct ckpt_parity *p)
{
    if (p->fd < 0)
        return;
    close(p->fd);
    p->fd = -1;
    sys_unlink(p->hook, p->dirfd, p->part);
}

static int begin_file(struct ckpt_parity *p, const struct parity_row *row, struct err *err)
{
    int64_t bytes = p->layout.header_bytes + p->layout.data_bytes;
    make_name(p, NAME_PARITY_PART, row->position.step, p->part);
    p->stream = (struct crc_stream){.crcs = p->crcs};
    p->fd = sys_open(p->hook, p->dirfd, p->part, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (p->fd < 0)
        return err_set_errno(err, errno, "%s/%s", p->dir, p->part);
    if (sys_reserve(p->hook, p->fd, bytes))
        return err_set_errno(err, errno, "%s/%s: cannot reserve %" PRId64 " bytes", p->dir, p->part,
                             bytes);
    return 0;
}

static int write_at(struct ckpt_parity *p, const void *from, int64_t bytes, int64_t at,
                    struct err *err)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = sys_pwrite(p->hook, p->fd, (const char *)from + done, (size_t)(bytes - done),
                               at + done);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return err_set_errno(err, n ? errno : EIO, "%s/%s: writing at byte %" PRId64, p->dir,
                                 p->part, at + done);
        done += n;
    }
    return 0;
}

/* Bytes [at, at + bytes) of the data. A block of the checksums that begins in what was written
 * earlier goes on where that ended. */
static int write_data(struct ckpt_parity *p, const void *from, int64_t bytes, int64_t at,
                      struct err *err)
{
    p->stream.at = at;
    crc_feed(&p->stream, from, (size_t)bytes);
    return write_at(p, from, bytes, p->layout.header_bytes + at, err);
}

static int write_header(struct ckpt_parity *p, const struct ckpt_position *position,
                        uint32_t *digest, struct err *err)
{
    struct file_meta meta = {.key = {p->epoch, p->generation, position->step},
                             .samples = position->samples,
                             .rank = p->rank,
                             .world = p->world,
                             .plan_hash = p->plan_hash};
    strcpy(meta.run, p->run);
    if (layout_header(&p->layout, &meta, p->crcs, p->header, digest, err))
        return -1;
    return write_at(p, p->header, p->layout.header_bytes, 0, err);
}

/* Length checked, durable, and under its final name. */
static int publish(struct ckpt_parity *p, int64_t step, struct err *err)
{
    char final[CKPT_NAME_ROOM];
    struct stat st;
    make_name(p, NAME_PARITY, step, final);
    if (fstat(p->fd, &st) || st.st_size != p->layout.header_bytes + p->layout.data_bytes)
        return err_set(err, "%s/%s: it has not the length it should have", p->dir, p->part);
    if (sys_fsync(p->hook, p->fd))
        return err_set_errno(err, errno, "%s/%s: fsync", p->dir, p->part);
    posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED); /* training has better use for the memory */
    if (sys_rename_new(p->hook, p->dirfd, p->part, final))
        return err_set_errno(err, errno, "%s/%s: renaming to its final name", p->dir, p->part);
    close(p->fd);
    p->fd = -1;
    if (sys_fsync(p->hook, p->dirfd))
        return err_set_errno(err, errno, "fsync of the checkpoint folder %s", p->dir);
    return 0;
}

static int finish_file(struct ckpt_parity *p, const struct parity_row *row, uint32_t *digest,
                       struct err *err)
{
    static const unsigned char zeros[CKPT_ALIGN];
    int64_t at = p->code.keeps * p->code.segment;
    int64_t about = (int64_t)sizeof *p->about * (PARITY_ABOUT_FIXED + p->code.members);
    if (write_data(p, p->about, about, at, err) ||
        write_data(p, zeros, p->layout.data_bytes - at - about, at + about, err) ||
        write_header(p, &row->position, digest, err))
        return -1;
    return publish(p, row->position.step, err);
}

static int take(struct ckpt_parity *p, const struct parity_row *row, uint32_t *digest,
                struct err *err)
{
    int64_t bytes = p->code.keeps * parity_chunk_bytes(&p->code, row->chunk);
    if ((row->turn == 0 && begin_file(p, row, err)) ||
        write_data(p, row->sums, bytes, p->code.keeps * row->chunk * PARITY_CHUNK, err))
        return -1;
    return row->turn + 1 == p->code.chunks ? finish_file(p, row, digest, err) : 0;
}

/* The first of the queue. Called and left with the lock held. */
static void turn(struct ckpt_parity *p)
{
    struct parity_row row = p->queue[p->first];
    struct err err;
    uint32_t digest = 0;
    bool skip = p->failed;
    pthread_mutex_unlock(&p->lock);
    int rv = skip ? 0 : take(p, &row, &digest, &err);
    if (rv)
        drop_part(p);
    free(row.sums);
    pthread_mutex_lock(&p->lock);
    p->first = (p->first + 1) % QUEUE;
    p->n--;
    if (rv) {
        p->failed = true;
        p->failure = err;
    } else if (!skip && row.turn + 1 == p->code.chunks) {
        p->done[p->n_done++ % DONE_KEPT] = (struct parity_done){row.position.step, digest};
    }
}

static void *thread_main(void *arg)
{
    struct ckpt_parity *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->n && !p->stop)
            pthread_cond_wait(&p->to_thread, &p->lock);
        if (p->stop)
            break;
        turn(p);
        pthread_cond_broadcast(&p->from_thread);
    }
    pthread_mutex_unlock(&p->lock);
    drop_part(p);
    return NULL;
}

/* ---- the caller ---- */

const struct parity_code *ckpt_parity_code(const struct ckpt_parity *p)
{
    return &p->code;
}

int64_t ckpt_parity_late(const struct ckpt_parity *p)
{
    return p->late;
}

/* Fresh sums for the chunk of a turn. */
static int begin_chunk(struct ckpt_parity *p, int64_t turn, struct err *err)
{
    p->row.turn = turn;
    p->row.chunk = parity_chunk(&p->code, p->late, turn);
    p->row.sums = calloc((size_t)p->code.keeps, (size_t)parity_chunk_bytes(&p->code, p->row.chunk));
    p->given = 0;
    memset(p->from, 0, sizeof p->from);
    return p->row.sums ? 0 : err_set(err, "no memory for a chunk of parity");
}

int ckpt_parity_begin(struct ckpt_parity *p, const struct ckpt_position *position, struct err *err)
{
    if (p->row.sums || position->step <= p->last_step)
        return err_set(err,
                       "the parities of step %" PRId64 " cannot follow those of step %" PRId64 "%s",
                       position->step, p->last_step, p->row.sums ? ", which are under way" : "");
    p->last_step = position->step;
    p->row.position = *position;
    return begin_chunk(p, 0, err);
}

int ckpt_parity_add(struct ckpt_parity *p, int source, const void *chunks, size_t bytes,
                    struct err *err)
{
    size_t n = (size_t)parity_chunk_bytes(&p->code, p->row.chunk), at = 0;
    int data = parity_data(&p->code);
    if (!p->row.sums || source < 0 || source >= p->code.members || source == p->member ||
        p->from[source])
        return err_set(err, "a segment of member %d, which is not expected", source);
    for (int k = 0; k < p->code.keeps; k++) {
        int segment = parity_wants(&p->code, p->member, k, source);
        if (segment < 0)
            continue;
        if (at + n > bytes)
            return err_set(err, "%zu bytes of member %d are too few", bytes, source);
        parity_add(parity_weight(&p->code, data + k, segment), (const char *)chunks + at,
                   p->row.sums + (size_t)k * n, n);
        at += n;
    }
    if (at != bytes)
        return err_set(err, "%zu bytes of member %d, but %zu are expected", bytes, source, at);
    p->from[source] = true;
    p->given++;
    return 0;
}

/* With the lock held: until at most `most` chunks wait. */
static bool wait_for_room(struct ckpt_parity *p, int most, int64_t deadline_ms)
{
    struct timespec at = clock_point(deadline_ms);
    while (p->n > most)
        if (pthread_cond_timedwait(&p->from_thread, &p->lock, &at) == ETIMEDOUT)
            return p->n <= most;
    return true;
}

int ckpt_parity_next(struct ckpt_parity *p, struct err *err)
{
    if (!p->row.sums || p->given != p->code.members - 1)
        return err_set(err, "%d of %d members have given their segments", p->given,
                       p->code.members - 1);
    pthread_mutex_lock(&p->lock);
    bool room = wait_for_room(p, QUEUE - 1, clock_ms() + NEXT_WAIT_MS);
    if (room)
        p->queue[(p->first + p->n++) % QUEUE] = p->row;
    pthread_cond_signal(&p->to_thread);
    pthread_mutex_unlock(&p->lock);
    if (!room)
        return err_set(err, "checkpoint folder %s has not taken a chunk of parity for %d s", p->dir,
                       NEXT_WAIT_MS / 1000);
    p->row.sums = NULL;
    return p->row.turn + 1 < p->code.chunks ? begin_chunk(p, p->row.turn + 1, err) : 0;
}

int ckpt_parity_finished(struct ckpt_parity *p, int64_t *step, struct err *err)
{
    pthread_mutex_lock(&p->lock);
    *step = p->n_done ? p->done[(p->n_done - 1) % DONE_KEPT].step : -1;
    int rv = p->failed && !p->told ? -1 : 0;
    if (rv && err)
        *err = p->failure;
    p->told |= rv != 0;
    pthread_mutex_unlock(&p->lock);
    return rv;
}

int ckpt_parity_wait(struct ckpt_parity *p, int64_t deadline_ms, struct err *err)
{
    pthread_mutex_lock(&p->lock);
    bool idle = wait_for_room(p, 0, deadline_ms);
    pthread_mutex_unlock(&p->lock);
    return idle ? 0 : err_set(err, "the writer of parities is not done by the deadline");
}

char *ckpt_parity_claim(struct ckpt_parity *p, int64_t step, int group, const char *claim,
                        struct err *err)
{
    struct parity_done done = {.step = -1};
    struct record r;
    char name[CKPT_NAME_ROOM], *text = NULL;
    pthread_mutex_lock(&p->lock);
    for (int64_t i = p->n_done - 1; i >= 0 && i >= p->n_done - DONE_KEPT; i--)
        if (p->done[i % DONE_KEPT].step == step)
            done = p->done[i % DONE_KEPT];
    pthread_mutex_unlock(&p->lock);
    if (done.step != step) {
        err_set(err, "rank %d has no finished parity of step %" PRId64, p->rank, step);
        return NULL;
    }
    if (record_parse(claim, (int64_t)strlen(claim), RECORD_CLAIM, &r, err))
        return NULL;
    make_name(p, NAME_PARITY, step, name);
    r.ranks[0].parity =
        (struct record_parity){.path = name,
                               .bytes = p->layout.header_bytes + p->layout.data_bytes,
                               .digest = done.digest,
                               .group = group,
                               .member = p->member,
                               .keeps = p->code.keeps};
    text = record_print(&r, RECORD_CLAIM);
    if (!text)
        err_set(err, "out of memory");
    r.ranks[0].parity.path = NULL;
    record_free(&r);
    return text;
}

/* ---- opening ---- */

static int make_layout(const struct ckpt_parity_options *o, struct parity_code *code,
                       struct layout *layout, struct err *err)
{
    int64_t longest = 0;
    for (int i = 0; i < o->members; i++)
        if (o->file_bytes[i] > longest)
            longest = o->file_bytes[i];
    if (parity_code_make(code, o->members, o->keeps, longest, err))
        return -1;
    int64_t words = code->keeps * code->segment / 8, about = PARITY_ABOUT_FIXED + code->members;
    struct ckpt_tensor tensors[] = {
        {.name = PARITY_TENSOR, .dtype = CKPT_I64, .dims = 1, .global = {words}, .shape = {words}},
        {.name = PARITY_ABOUT_TENSOR,
         .dtype = CKPT_I64,
         .dims = 1,
         .global = {about},
         .shape = {about}}};
    return layout_make(layout, tensors, 2, err);
}

int64_t ckpt_parity_bytes(const struct ckpt_parity_options *options, struct err *err)
{
    struct parity_code code;
    struct layout layout;
    if (make_layout(options, &code, &layout, err))
        return 0;
    int64_t bytes = layout.header_bytes + layout.data_bytes;
    layout_free(&layout);
    return bytes;
}

static void free_parity(struct ckpt_parity *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->queue[(p->first + i) % QUEUE].sums);
    if (p->dirfd >= 0)
        close(p->dirfd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->to_thread);
    pthread_cond_destroy(&p->from_thread);
    layout_free(&p->layout);
    free(p->row.sums);
    free(p->crcs);
    free(p->header);
    free(p->dir);
    free(p);
}

static int start(struct ckpt_parity *p, struct err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&p->thread, NULL, thread_main, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? err_set_errno(err, rc, "starting the writer of parities") : 0;
}

static void init_lock(struct ckpt_parity *p)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->to_thread, NULL);
    pthread_cond_init(&p->from_thread, &attr);
    pthread_condattr_destroy(&attr);
}

static int prepare(struct ckpt_parity *p, const struct ckpt_parity_options *o, struct err *err)
{
    if (!name_run_valid(o->run_id) || o->member < 0 || o->member >= o->members)
        return err_set(err, "parities of member %d of run '%.100s'", o->member, o->run_id);
    strcpy(p->run, o->run_id);
    if (make_layout(o, &p->code, &p->layout, err))
        return -1;
    p->late = parity_late(&p->code, o->header_bytes);
    p->about[PARITY_ABOUT_MEMBERS] = o->members;
    p->about[PARITY_ABOUT_KEEPS] = o->keeps;
    p->about[PARITY_ABOUT_MEMBER] = o->member;
    p->about[PARITY_ABOUT_SEGMENT] = p->code.segment;
    for (int i = 0; i < o->members; i++)
        p->about[PARITY_ABOUT_FIXED + i] = o->file_bytes[i];
    p->crcs = calloc((size_t)crc_blocks(p->layout.data_bytes) + 1, sizeof *p->crcs);
    p->header = malloc((size_t)p->layout.header_bytes);
    p->dir = strdup(o->dir);
    if (!p->crcs || !p->header || !p->dir)
        return err_set(err, "out of memory");
    p->dirfd = folder_open_own(o->dir, o->hook, err);
    return p->dirfd < 0 ? -1 : 0;
}

int ckpt_parity_open(struct ckpt_parity **out, const struct ckpt_parity_options *o, struct err *err)
{
    *out = NULL;
    struct ckpt_parity *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, "out of memory");
    init_lock(p);
    p->dirfd = p->fd = -1;
    p->last_step = -1;
    p->rank = o->rank;
    p->world = o->world;
    p->member = o->member;
    p->epoch = o->epoch;
    p->generation = o->generation;
    p->plan_hash = o->plan_hash;
    p->hook = o->hook;
    if (prepare(p, o, err) || start(p, err)) {
        free_parity(p);
        return -1;
    }
    *out = p;
    return 0;
}

void ckpt_parity_close(struct ckpt_parity *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->to_thread);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    free_parity(p);
}
