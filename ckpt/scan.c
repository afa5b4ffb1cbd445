/* scan.c - what one folder holds, as text that travels (catalog.h has its form). */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/control.h"
#include "catalog.h"
#include "folder.h"
#include "log.h"
#include "parity.h"

/* Of a log, the newest records, and older ones with a file still here: retention has dropped the
 * others' files. */
enum { SCAN_RECORDS = 64 };

struct scan {
    FILE *out;
    int fd;
    const char *run;
    uint32_t epoch; /* the newest seen */
};

static bool has_a_file(const struct scan *s, const struct record *r)
{
    for (int rank = 0; rank < r->n; rank++) {
        const struct record_rank *k = &r->ranks[rank];
        if (!faccessat(s->fd, k->path, F_OK, AT_SYMLINK_NOFOLLOW) ||
            (k->parity.path && !faccessat(s->fd, k->parity.path, F_OK, AT_SYMLINK_NOFOLLOW)))
            return true;
    }
    return false;
}

/* What somebody else's line says, and terminals may get to see. */
static void print_note(FILE *out, const char *text)
{
    fputs("note a record cannot be read: ", out);
    for (size_t i = 0; text[i]; i++)
        fputc(text_is_control(text, i) ? '?' : text[i], out);
    fputc('\n', out);
}

static void print_record(struct scan *s, const char *text, int64_t n, bool newest)
{
    struct record r;
    struct mark m;
    struct err why;
    if (mark_parse(text, n, &m)) {
        if (!strcmp(m.run, s->run))
            fprintf(s->out, "mark %.*s\n", (int)n, text);
        return;
    }
    if (record_parse(text, n, RECORD_COMMIT, &r, &why)) {
        print_note(s->out, why.text);
        return;
    }
    if (!strcmp(r.meta.run, s->run)) {
        if (newest || has_a_file(s, &r))
            fprintf(s->out, "record %.*s\n", (int)n, text);
        if (r.meta.key.epoch > s->epoch)
            s->epoch = r.meta.key.epoch;
    }
    record_free(&r);
}

static void print_log(struct scan *s, const char *name)
{
    char *bytes;
    int64_t n, lines = 0, line = 0, length;
    const char *text;
    if (folder_read(s->fd, name, CKPT_LOG_MOST_BYTES, &bytes, &n)) {
        fprintf(s->out, "note the log %s cannot be read\n", name);
        return;
    }
    struct log_reader r = {.bytes = bytes, .n = n};
    while (log_next(&r, &text, &length))
        lines++;
    if (r.skipped)
        fprintf(s->out, "note %" PRId64 " bytes of the log %s do not check and are passed over\n",
                r.skipped, name);
    r = (struct log_reader){.bytes = bytes, .n = n};
    while (log_next(&r, &text, &length))
        print_record(s, text, length, line++ >= lines - SCAN_RECORDS);
    free(bytes);
}

static void print_folder(FILE *out, int fd, const char *run, const struct folder_list *list)
{
    struct scan s = {.out = out, .fd = fd, .run = run};
    for (int i = 0; i < list->n; i++) {
        const struct ckpt_name *name = &list->entries[i].name;
        char text[CKPT_NAME_ROOM];
        name_format(name, text);
        if (name->kind == NAME_LOG)
            print_log(&s, text);
        else if (name->key.epoch > s.epoch)
            s.epoch = name->key.epoch;
        if (name_complete(name->kind))
            fprintf(out, "file %s %" PRId64 "\n", text, list->entries[i].bytes);
    }
    fprintf(out, "epoch %" PRIu32 "\n", s.epoch);
}

char *ckpt_scan_mark(char *blob, const char *name, int64_t bytes, bool damaged)
{
    char *text = NULL;
    size_t size, length = strlen(name);
    FILE *out = open_memstream(&text, &size);
    for (const char *line = blob; out && *line;) {
        const char *end = strchrnul(line, '\n'), *word = strchr(line, ' ');
        bool same = (!strncmp(line, "file ", 5) || !strncmp(line, "damaged ", 8)) &&
                    !strncmp(word + 1, name, length) && word[1 + length] == ' ';
        if (!same)
            fprintf(out, "%.*s\n", (int)(end - line), line);
        line = *end ? end + 1 : end;
    }
    free(blob);
    if (!out)
        return NULL;
    fprintf(out, "%s %s %" PRId64 "\n", damaged ? "damaged" : "file", name, bytes);
    if (!fclose(out))
        return text;
    free(text);
    return NULL;
}

char *ckpt_scan(const char *dir, const char *node, const char *run_id, struct err *err)
{
    struct folder_list list = {.n = 0};
    char *text = NULL, absolute[PATH_MAX];
    size_t bytes;
    int fd;
    if (!name_run_valid(run_id) || !name_node_valid(node)) {
        err_set(err, "run '%s' on node '%s': a run is 1 to 64 of [0-9a-z-], a node [0-9A-Za-z._-]",
                run_id, node);
        return NULL;
    }
    if (folder_open_read(dir, &fd, err))
        return NULL;
    if (fd >= 0 && folder_list(fd, run_id, &list, err)) {
        close(fd);
        return NULL;
    }
    FILE *out = open_memstream(&text, &bytes);
    if (out) {
        fprintf(out, "scan 1\nnode %s\ndir ", node);
        scan_print_escaped(out, realpath(dir, absolute) ? absolute : dir);
        fputc('\n', out);
        if (fd >= 0)
            print_folder(out, fd, run_id, &list);
    }
    if (!out || fclose(out)) {
        free(out ? text : NULL);
        text = NULL;
        err_set(err, "out of memory scanning %s", dir);
    }
    if (fd >= 0)
        close(fd);
    folder_list_free(&list);
    return text;
}
