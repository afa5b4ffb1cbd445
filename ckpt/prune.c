/* prune.c - see prune.h. */
#include "prune.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog.h"
#include "folder.h"

static const char half_made[] = "half made by a writer that is gone";

static bool has_key(const struct ckpt_key *keys, int n, const struct ckpt_key *key)
{
    for (int i = 0; i < n; i++)
        if (!key_compare(&keys[i], key))
            return true;
    return false;
}

const char *prune_decide(const struct prune_view *v, int keep, const struct ckpt_name *name)
{
    if (name->kind == NAME_PART || name->kind == NAME_COPY_PART || name->kind == NAME_PARITY_PART ||
        name->kind == NAME_RESERVE)
        return half_made;
    if (!name_complete(name->kind) || v->n_good < 2)
        return NULL;
    if (has_key(v->committed, v->n_committed, &name->key))
        return v->n_good >= keep && key_compare(&name->key, &v->good[keep - 1]) < 0
                   ? "older than the checkpoints kept"
                   : NULL;
    return key_compare(&name->key, &v->good[1]) < 0 ? "never committed here, and superseded" : NULL;
}

/* ---- what the folder shows ---- */

static bool node_is_here(const struct folder_list *list, const char *node)
{
    for (int i = 0; i < list->n; i++)
        if (list->entries[i].name.kind == NAME_LOG && !strcmp(list->entries[i].name.node, node))
            return true;
    return false;
}

static bool is_good(const struct catalog *c, const struct record *r, const struct folder_list *list)
{
    int here = 0;
    if (marks_find(&c->marks, &r->meta.key))
        return false;
    for (int rank = 0; rank < r->n; rank++)
        if (catalog_find(c, r, rank, NULL))
            here++;
        else if (node_is_here(list, r->ranks[rank].node))
            return false;
    return here > 0;
}

/* Keys of the view are malloc'ed, in one array. */
static int look(const struct prune_options *o, const struct folder_list *list,
                struct prune_view *view, struct err *err)
{
    struct catalog c;
    char *blob = ckpt_scan(o->dir, "here", o->run, err);
    *view = (struct prune_view){.good = NULL};
    if (!blob || catalog_make(&c, (const char *const *)&blob, 1, err)) {
        free(blob);
        return -1;
    }
    free(blob);
    struct ckpt_key *keys = calloc((size_t)c.n_records * 2 + 1, sizeof *keys);
    struct ckpt_key *good = keys ? keys + c.n_records : NULL;
    for (int i = 0; keys && i < c.n_records; i++) {
        const struct ckpt_key *key = &c.records[i].meta.key;
        if (!has_key(keys, view->n_committed, key))
            keys[view->n_committed++] = *key;
        if (is_good(&c, &c.records[i], list) && !has_key(good, view->n_good, key))
            good[view->n_good++] = *key;
    }
    view->committed = keys;
    view->good = good;
    catalog_free(&c);
    return keys ? 0 : err_set(err, "out of memory");
}

/* ---- dropping ---- */

/* Halves, then what is oldest. */
static int by_age(const void *a, const void *b)
{
    const struct ckpt_name *x = &((const struct folder_entry *)a)->name;
    const struct ckpt_name *y = &((const struct folder_entry *)b)->name;
    if (name_complete(x->kind) != name_complete(y->kind))
        return name_complete(x->kind) ? 1 : -1;
    int order = key_compare(&x->key, &y->key);
    return order ? order : x->rank - y->rank;
}

static int drop(const struct prune_options *o, int fd, const char *name, int64_t bytes,
                const char *why, struct prune_result *result, struct err *err)
{
    if (!o->dry_run && sys_unlink(o->hook, fd, name)) {
        if (errno == ENOENT)
            return 0;
        return err_set_errno(err, errno, "%s/%s: cannot be dropped", o->dir, name);
    }
    result->files++;
    result->bytes += bytes;
    if (o->tell)
        o->tell(o->arg, name, bytes, why);
    return 0;
}

/* What a writer that died while it shortened the log has left: RUN.NODE.commits.new. */
static bool is_new_log(const char *text, const char *run)
{
    static const char suffix[] = ".new";
    char log[CKPT_NAME_ROOM];
    struct ckpt_name name;
    size_t n = strlen(text), tail = sizeof suffix - 1;
    if (n <= tail || n - tail >= sizeof log || strcmp(text + n - tail, suffix))
        return false;
    memcpy(log, text, n - tail);
    log[n - tail] = 0;
    name_parse(log, &name);
    return name.kind == NAME_LOG && !strcmp(name.run, run);
}

static int drop_new_logs(const struct prune_options *o, int fd, struct prune_result *result,
                         struct err *err)
{
    int own = openat(fd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC), rv = 0;
    DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        rv = err_set_errno(err, errno, "listing %s", o->dir);
        if (own >= 0)
            close(own);
        return rv;
    }
    for (struct dirent *e; !rv && (e = readdir(d));) {
        struct stat st;
        if (is_new_log(e->d_name, o->run) && !fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(st.st_mode))
            rv = drop(o, fd, e->d_name, st.st_size, half_made, result, err);
    }
    closedir(d);
    return rv;
}

static int drop_listed(const struct prune_options *o, int fd, struct folder_list *list,
                       const struct prune_view *view, struct prune_result *result, struct err *err)
{
    if (list->n)
        qsort(list->entries, (size_t)list->n, sizeof *list->entries, by_age);
    for (int i = 0; i < list->n; i++) {
        const struct folder_entry *e = &list->entries[i];
        const char *why = prune_decide(view, o->keep, &e->name);
        char name[CKPT_NAME_ROOM];
        name_format(&e->name, name);
        if (why && drop(o, fd, name, e->bytes, why, result, err))
            return -1;
    }
    return 0;
}

static int prune(const struct prune_options *o, int fd, struct prune_result *result,
                 struct err *err)
{
    struct folder_list list;
    struct prune_view view = {.good = NULL};
    if (folder_take(fd, o->dir, o->locked, err) || folder_list(fd, o->run, &list, err))
        return -1;
    int rv = look(o, &list, &view, err);
    result->good = view.n_good;
    if (!rv)
        rv = drop_new_logs(o, fd, result, err) || drop_listed(o, fd, &list, &view, result, err) ? -1
                                                                                                : 0;
    if (!o->dry_run && result->files && sys_fsync(o->hook, fd) && !rv)
        rv = err_set_errno(err, errno, "fsync of %s", o->dir);
    free((void *)view.committed);
    folder_list_free(&list);
    return rv;
}

int prune_folder(const struct prune_options *o, struct prune_result *result, struct err *err)
{
    *result = (struct prune_result){.files = 0};
    if (o->keep < 2)
        return err_set(err, "keep is %d: use 2 (one may be damaged) or more", o->keep);
    if (!name_run_valid(o->run))
        return err_set(err, "'%.100s' is no run id", o->run);
    if (access(o->dir, F_OK)) /* opening would make it */
        return err_set_errno(err, errno, "%s", o->dir);
    int fd = folder_open_own(o->dir, o->hook, err);
    if (fd < 0)
        return -1;
    int rv = prune(o, fd, result, err);
    close(fd);
    return rv;
}
