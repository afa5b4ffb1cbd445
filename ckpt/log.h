/* log.h - the commit log: lines that check themselves, appended, never changed in place.
 *
 *   LENGTH CRC TEXT\n    8 hex digits: bytes of TEXT; 8 hex digits: CRC32C of "LENGTH TEXT"
 *
 * A process can die, or the disk fill, in the middle of an append. Such a tail does not check: it
 * is passed over by readers and cut off before the next append. A damaged line further up costs
 * only itself. */
#ifndef GTRAIN_CKPT_LOG_H
#define GTRAIN_CKPT_LOG_H

#include <stdint.h>

#include "base/err.h"
#include "sys.h"

/* A log longer than this is read from its end: older records are long superseded. */
#define CKPT_LOG_MOST_BYTES (INT64_C(256) << 20)

/* Every append reads the log, so it must stay small; a record of a thousand ranks is 0.1 MB. */
#define CKPT_LOG_COMPACT_BYTES (INT64_C(8) << 20)

/* The line for text (no newlines in it), with its newline; malloc'ed, NULL: no memory. */
char *log_line(const char *text);

/* Steps through a log's bytes: *at starts at 0. Gives the next line that checks (*text, *n bytes,
 * not terminated) and true; false at the end. *good is the end of the last line that checked,
 * *skipped the bytes passed over on the way; both start at 0. */
struct log_reader {
    const char *bytes;
    int64_t n, at, good, skipped;
};
int log_next(struct log_reader *r, const char **text, int64_t *n);

/* Whether a line could be appended: there is no log yet, or it is a file of ours. */
int log_check(int dirfd, const char *name, const struct ckpt_hook *hook, struct err *err);

/* Appends a line and makes it durable; on failure the file is as before (or its tail does not
 * check). The file is made where missing; folder is synced then. One that has grown beyond
 * CKPT_LOG_COMPACT_BYTES is first replaced, by rename, with its newest keep_lines lines. One
 * that has another name too (a hard link) is first replaced by a copy: what has that name keeps. */
int log_append(int dirfd, const char *name, const char *text, int keep_lines,
               const struct ckpt_hook *hook, struct err *err);

#endif
