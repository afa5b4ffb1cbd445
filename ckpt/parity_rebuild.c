/* parity_rebuild.c - a lost file on this node's disk again. See parity.h.
 *
 * It is written under a temporary name and read back whole, against its own checksums and the
 * digest in the commit record, before it gets its name; so nobody can use a byte of it before that,
 * and a damaged file of that name is replaced only by a good one. A file of this run gets the name
 * it had. One of another run, whose folder is only read, is put among this run's own, as one of
 * epoch 0: older than all, so that it goes with the next commit. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "folder.h"
#include "parity.h"
#include "record.h"

struct parity_rebuild {
    const struct ckpt_hook *hook;
    char *dir;
    int dirfd, fd;
    char part[CKPT_NAME_ROOM], name[CKPT_NAME_ROOM];
    int64_t bytes, header_bytes; /* the latter 0: not known yet */
    uint32_t digest;
    struct parity_code code;
};

static int set_name(struct ckpt_name *out, const char *run_id, const struct ckpt_decision *d,
                    int rank, struct err *err)
{
    struct record record;
    if (record_parse(d->record, (int64_t)strlen(d->record), RECORD_COMMIT, &record, err))
        return -1;
    *out = (struct ckpt_name){.kind = NAME_FILE, .key = record.meta.key, .rank = rank};
    if (strcmp(record.meta.run, run_id))
        out->key.epoch = out->key.generation = 0;
    record_free(&record);
    strcpy(out->run, run_id);
    return 0;
}

static int prepare(struct parity_rebuild *r, const char *run_id, const struct ckpt_decision *d,
                   int rank, struct err *err)
{
    struct parity_group group;
    struct ckpt_name name;
    if (!name_run_valid(run_id))
        return err_set(err, "the run id is '%.100s'", run_id);
    if (parity_group_of(d, rank, &group, err) || set_name(&name, run_id, d, rank, err))
        return -1;
    name_format(&name, r->name);
    name.kind = NAME_PART;
    name_format(&name, r->part);
    r->code = group.code;
    r->bytes = d->places[rank].bytes;
    r->digest = d->places[rank].digest;
    r->dirfd = folder_open_own(r->dir, r->hook, err);
    if (r->dirfd < 0)
        return -1;
    if (sys_unlink(r->hook, r->dirfd, r->part) && errno != ENOENT) /* of a dead rebuild */
        return err_set_errno(err, errno, "%s/%s: cannot drop this half-made file", r->dir, r->part);
    r->fd = sys_open(r->hook, r->dirfd, r->part, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (r->fd < 0)
        return err_set_errno(err, errno, "%s/%s", r->dir, r->part);
    if (sys_reserve(r->hook, r->fd, r->bytes))
        return err_set_errno(err, errno,
                             "%s: cannot reserve %" PRId64 " bytes to rebuild rank %d's file",
                             r->dir, r->bytes, rank);
    return 0;
}

int parity_rebuild_open(struct parity_rebuild **out, const char *dir, const char *run_id,
                        const struct ckpt_decision *d, int rank, const struct ckpt_hook *hook,
                        struct err *err)
{
    *out = NULL;
    struct parity_rebuild *r = calloc(1, sizeof *r);
    if (!r || !(r->dir = strdup(dir))) {
        free(r);
        return err_set(err, "out of memory");
    }
    r->hook = hook;
    r->dirfd = r->fd = -1;
    if (prepare(r, run_id, d, rank, err)) {
        parity_rebuild_close(r);
        return -1;
    }
    *out = r;
    return 0;
}

static int write_at(struct parity_rebuild *r, const unsigned char *bytes, int64_t n, int64_t at,
                    struct err *err)
{
    while (n > 0) {
        ssize_t now = sys_pwrite(r->hook, r->fd, bytes, (size_t)n, at);
        if (now < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (now <= 0)
            return err_set_errno(err, now ? errno : EIO, "%s/%s: writing at byte %" PRId64, r->dir,
                                 r->part, at);
        bytes += now;
        n -= now;
        at += now;
    }
    return 0;
}

/* The header's length stands at the file's beginning. */
static int take_header(struct parity_rebuild *r, const unsigned char *bytes, struct err *err)
{
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    if (length > (uint64_t)r->bytes - 8)
        return err_set(err, "%s/%s: what was rebuilt begins with a header of %" PRIu64 " bytes",
                       r->dir, r->part, length);
    r->header_bytes = (int64_t)length + 8;
    return 0;
}

/* As much of [at, at + n) as lies before end. */
static int64_t before(int64_t end, int64_t at, int64_t n)
{
    return end <= at ? 0 : end - at < n ? end - at : n;
}

int parity_rebuild_put(struct parity_rebuild *r, int segment, int64_t chunk, const void *bytes,
                       struct err *err)
{
    const unsigned char *from = bytes;
    int64_t at = segment * r->code.segment + chunk * PARITY_CHUNK,
            n = parity_chunk_bytes(&r->code, chunk);
    if (at == 0 && take_header(r, from, err))
        return -1;
    if (!r->header_bytes)
        return err_set(err, "a file is rebuilt from its beginning on");
    int64_t data_at = parity_data_at(&r->code, r->header_bytes);
    int64_t head = before(r->header_bytes, at, n), gap = before(data_at, at, n);
    if (write_at(r, from, head, at, err))
        return -1;
    at += gap - data_at + r->header_bytes; /* in the file; behind its end are only zeros */
    return write_at(r, from + gap, before(r->bytes, at, n - gap), at, err);
}

int parity_rebuild_check(struct parity_rebuild *r, struct err *err)
{
    struct ckpt_file *f;
    char *path;
    if (asprintf(&path, "%s/%s", r->dir, r->part) < 0)
        return err_set(err, "out of memory");
    int rv = ckpt_file_open(&f, path, err);
    if (!rv) {
        f->hook = r->hook;
        rv = ckpt_file_verify(f, err);
        if (!rv && (f->bytes != r->bytes || ckpt_file_digest(f) != r->digest))
            rv = err_set(err, "%s: what was rebuilt is not the file that the commit record names",
                         path);
        ckpt_file_close(f);
    }
    free(path);
    return rv;
}

int parity_rebuild_finish(struct parity_rebuild *r, struct err *err)
{
    if (sys_fsync(r->hook, r->fd))
        return err_set_errno(err, errno, "%s/%s: fsync", r->dir, r->part);
    if (sys_rename_over(r->hook, r->dirfd, r->part, r->name))
        return err_set_errno(err, errno, "%s/%s: renaming to its final name", r->dir, r->part);
    close(r->fd);
    r->fd = -1;
    if (sys_fsync(r->hook, r->dirfd))
        return err_set_errno(err, errno, "fsync of the checkpoint folder %s", r->dir);
    return 0;
}

char *parity_rebuild_path(const char *dir, const char *run_id, const struct ckpt_decision *d,
                          int rank, struct err *err)
{
    struct ckpt_name name;
    char text[CKPT_NAME_ROOM], *path;
    if (set_name(&name, run_id, d, rank, err))
        return NULL;
    name_format(&name, text);
    if (asprintf(&path, "%s/%s", dir, text) >= 0)
        return path;
    err_set(err, "out of memory");
    return NULL;
}

void parity_rebuild_close(struct parity_rebuild *r)
{
    if (!r)
        return;
    if (r->fd >= 0) {
        close(r->fd);
        sys_unlink(r->hook, r->dirfd, r->part);
    }
    if (r->dirfd >= 0)
        close(r->dirfd);
    free(r->dir);
    free(r);
}
