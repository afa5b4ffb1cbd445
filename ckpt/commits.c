/* commits.c - the commits that stand in a folder's logs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mark.h"
#include "record.h"
#include "retain.h"

static int read_log(struct commits *c, struct marks *marks, int dirfd, const char *dir,
                    const char *name, const char *run, struct err *err)
{
    char *bytes;
    int64_t n, length;
    const char *text;
    int rv = 0;
    if (folder_read(dirfd, name, CKPT_LOG_MOST_BYTES, &bytes, &n))
        return err_set_errno(err, errno, "%s/%s: cannot read this commit log", dir, name);
    struct log_reader r = {.bytes = bytes, .n = n};
    while (!rv && log_next(&r, &text, &length)) {
        struct record record;
        struct mark m;
        struct err unused; /* of a later version: scan notes it */
        if (mark_parse(text, length, &m)) {
            if (!strcmp(m.run, run) && marks_add(marks, &m))
                rv = err_set(err, "out of memory reading %s", name);
            continue;
        }
        if (record_parse(text, length, RECORD_COMMIT, &record, &unused))
            continue;
        if (!strcmp(record.meta.run, run) && commits_add(c, &record.meta.key))
            rv = err_set(err, "out of memory reading %s", name);
        record_free(&record);
    }
    free(bytes);
    return rv;
}

/* Retention does not count what no restore will take. */
static void leave_out_bad(struct commits *c, struct marks *marks)
{
    int n = 0;
    marks_settle(marks);
    for (int i = 0; i < c->n; i++)
        if (!marks_find(marks, &c->keys[i]))
            c->keys[n++] = c->keys[i];
    c->n = n;
}

int commits_read(struct commits *c, int dirfd, const char *dir, const char *run,
                 const struct folder_list *list, struct err *err)
{
    struct marks marks = {.n = 0};
    int rv = 0;
    for (int i = 0; !rv && i < list->n; i++) {
        char name[CKPT_NAME_ROOM];
        if (list->entries[i].name.kind != NAME_LOG)
            continue;
        name_format(&list->entries[i].name, name);
        rv = read_log(c, &marks, dirfd, dir, name, run, err);
    }
    leave_out_bad(c, &marks);
    marks_free(&marks);
    return rv;
}
