/* space.c - see space.h; and what a folder has (ckpt_space). */
#include "space.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "engine.h"
#include "folder.h"
#include "log.h"

enum {
    RANK_LOG_BYTES = 512, /* of a rank in a line: two names of files, one of a node, numbers */
    LINE_LOG_BYTES = 512, /* of the rest of it */
};

/* Sizes come from plans: no sum of theirs, nor of some of those, may wrap. */
static int64_t sum(double bytes)
{
    return bytes < 1e18 ? (int64_t)bytes : INT64_C(1000000000000000000);
}

static double file(int64_t bytes)
{
    return bytes ? (double)bytes + SPACE_FILE_BYTES : 0;
}

static double checkpoint(const struct space_use *u)
{
    return file(u->own) + file(u->ward) + file(u->parity);
}

int64_t space_all(const struct space_use *u)
{
    return sum((u->keep + u->ahead + 1) * checkpoint(u) + u->held * file(u->own) + (double)u->log);
}

int64_t space_first(const struct space_use *u)
{
    return sum((u->ahead + 1) * checkpoint(u) + (double)u->log);
}

int64_t space_log(int world, int lines)
{
    double line = LINE_LOG_BYTES + (double)world * RANK_LOG_BYTES;
    /* while it is shortened there are two; what it has grown to by then, and what is kept */
    return sum((double)CKPT_LOG_COMPACT_BYTES + line * (lines + 1));
}

/* ---- the folder ---- */

static struct space_use use_of(const struct ckpt *c, const struct folder_list *list)
{
    struct space_use u = {.keep = c->keep,
                          .ahead = c->ahead,
                          .held = c->held,
                          .own = engine_file_bytes(c),
                          .ward = c->ward_bytes,
                          .parity = c->parity_bytes};
    if (c->thin) /* one file, and no more */
        return (struct space_use){.own = u.own};
    if (!c->leader)
        return u;
    u.log = space_log(c->world, engine_log_lines(c));
    for (int i = 0; i < list->n; i++) {
        char name[CKPT_NAME_ROOM];
        name_format(&list->entries[i].name, name);
        int64_t blocks = list->entries[i].bytes / SPACE_FILE_BYTES + 1;
        if (!strcmp(name, c->log_name))
            u.log = u.log > blocks * SPACE_FILE_BYTES ? u.log - blocks * SPACE_FILE_BYTES : 0;
    }
    return u;
}

int space_look(const struct ckpt *c, const struct folder_list *list, struct ckpt_space *out,
               struct err *err)
{
    struct statvfs fs;
    struct space_use use = use_of(c, list);
    struct commits commits = c->commits;
    int64_t reserved = c->reserve_fd >= 0 ? engine_file_bytes(c) + SPACE_FILE_BYTES : 0;
    if (fstatvfs(c->dirfd, &fs))
        return err_set_errno(err, errno, "checkpoint folder %s: its free space", c->dir);
    *out = (struct ckpt_space){.all = space_all(&use) - reserved,
                               .first = space_first(&use) - reserved,
                               .available = sum((double)fs.f_bavail * (double)fs.f_frsize)};
    commits.tight = true;
    for (int i = 0; i < list->n; i++) {
        const struct folder_entry *e = &list->entries[i];
        if (e->name.kind == NAME_LOG || engine_compare(c, &e->name.key) >= 0)
            continue;
        int64_t bytes = e->bytes + SPACE_FILE_BYTES; /* as it is asked for */
        out->there += bytes;
        if (writer_may_drop(c, &commits, &e->name))
            out->loose += bytes;
    }
    return 0;
}

int ckpt_space(struct ckpt *c, struct ckpt_space *out, struct err *err)
{
    struct folder_list list;
    if (folder_list(c->dirfd, c->run, &list, err))
        return -1;
    pthread_mutex_lock(&c->lock);
    int rv = space_look(c, &list, out, err);
    pthread_mutex_unlock(&c->lock);
    folder_list_free(&list);
    return rv;
}

int ckpt_tighten(struct ckpt *c, int64_t deadline_ms, struct err *err)
{
    pthread_mutex_lock(&c->lock);
    c->commits.tight = true;
    c->tidy_wanted = true;
    pthread_cond_signal(&c->to_writer);
    pthread_mutex_unlock(&c->lock);
    return ckpt_wait(c, deadline_ms, err);
}
