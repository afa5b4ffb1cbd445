/* scan.c - what one folder holds, as text that travels (catalog.h has its form). */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "catalog.h"
#include "folder.h"
#include "log.h"

/* Of a log, the newest records are enough: retention has dropped the files of all but a few. */
enum { SCAN_RECORDS = 64 };

static void print_record(FILE *out, const char *run, const char *text, int64_t n, uint32_t *epoch)
{
    struct record r;
    struct err why;
    if (record_parse(text, n, RECORD_COMMIT, &r, &why)) {
        fprintf(out, "note a record cannot be read: %s\n", why.text);
        return;
    }
    if (!strcmp(r.meta.run, run)) {
        fprintf(out, "record %.*s\n", (int)n, text);
        if (r.meta.key.epoch > *epoch)
            *epoch = r.meta.key.epoch;
    }
    record_free(&r);
}

static void print_log(FILE *out, int fd, const char *name, const char *run, uint32_t *epoch)
{
    struct {
        const char *text;
        int64_t n;
    } newest[SCAN_RECORDS];
    char *bytes;
    int64_t n, seen = 0;
    if (folder_read(fd, name, CKPT_LOG_MOST_BYTES, &bytes, &n)) {
        fprintf(out, "note the log %s cannot be read\n", name);
        return;
    }
    struct log_reader r = {.bytes = bytes, .n = n};
    const char *text;
    int64_t length;
    while (log_next(&r, &text, &length)) {
        newest[seen % SCAN_RECORDS].text = text;
        newest[seen++ % SCAN_RECORDS].n = length;
    }
    for (int64_t i = seen > SCAN_RECORDS ? seen - SCAN_RECORDS : 0; i < seen; i++)
        print_record(out, run, newest[i % SCAN_RECORDS].text, newest[i % SCAN_RECORDS].n, epoch);
    if (r.skipped)
        fprintf(out, "note %" PRId64 " bytes of the log %s do not check and are passed over\n",
                r.skipped, name);
    free(bytes);
}

static void print_folder(FILE *out, int fd, const char *run, const struct folder_list *list)
{
    uint32_t epoch = 0;
    for (int i = 0; i < list->n; i++) {
        const struct ckpt_name *name = &list->entries[i].name;
        char text[CKPT_NAME_ROOM];
        name_format(name, text);
        if (name->kind == NAME_LOG)
            print_log(out, fd, text, run, &epoch);
        else if (name->key.epoch > epoch)
            epoch = name->key.epoch;
        if (name->kind == NAME_FILE)
            fprintf(out, "file %s %" PRId64 "\n", text, list->entries[i].bytes);
    }
    fprintf(out, "epoch %" PRIu32 "\n", epoch);
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
