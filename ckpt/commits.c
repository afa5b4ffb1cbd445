/* commits.c - the commits that stand in a folder's logs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "record.h"
#include "retain.h"

static int read_log(struct commits *c, int dirfd, const char *dir, const char *name,
                    const char *run, struct err *err)
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
        struct err unused; /* of a later version: scan notes it */
        if (record_parse(text, length, RECORD_COMMIT, &record, &unused))
            continue;
        if (!strcmp(record.meta.run, run) && commits_add(c, &record.meta.key))
            rv = err_set(err, "out of memory reading %s", name);
        record_free(&record);
    }
    free(bytes);
    return rv;
}

int commits_read(struct commits *c, int dirfd, const char *dir, const char *run,
                 const struct folder_list *list, struct err *err)
{
    for (int i = 0; i < list->n; i++) {
        char name[CKPT_NAME_ROOM];
        if (list->entries[i].name.kind != NAME_LOG)
            continue;
        name_format(&list->entries[i].name, name);
        if (read_log(c, dirfd, dir, name, run, err))
            return -1;
    }
    return 0;
}
