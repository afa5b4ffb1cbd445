/* catalog.h - everything known of a run's checkpoints, joined from the scans of all nodes. Pure.
 *
 * A scan (ckpt_scan) is text, a line each:
 *   scan 1
 *   node NAME
 *   dir PATH             bytes up to 20 hex, '%' and 7f written %XX
 *   epoch N              the newest epoch in any name or record
 *   record COMMIT...     a record of its logs that checks
 *   mark TEXT            likewise a mark (mark.h)
 *   file NAME BYTES      a rank's file, or its parities
 *   damaged NAME BYTES   likewise, but reading it has failed
 *   note TEXT            what was odd, for people */
#ifndef GTRAIN_CKPT_CATALOG_H
#define GTRAIN_CKPT_CATALOG_H

#include "mark.h"
#include "record.h"

struct catalog_file {
    struct ckpt_name name;
    char path[CKPT_NAME_ROOM];
    int64_t bytes;
    int source; /* index into sources */
    bool damaged;
};

struct catalog {
    struct catalog_source {
        char *node, *dir;
    } * sources; /* one a blob */
    int n_sources;
    struct record *records; /* newest first, no two alike */
    char **texts;           /* theirs */
    int n_records;
    struct catalog_file *files; /* by path, then node */
    int n_files;
    struct marks marks; /* settled */
    uint32_t epoch;
    char *notes; /* lines */
};

int catalog_make(struct catalog *out, const char *const *blobs, int n, struct err *err);
void catalog_free(struct catalog *c);

/* Where a record's rank lies: on its node, or else on any that has a file of that name and length.
 * NULL: nowhere; *why (may be NULL) then says what is there instead. */
const struct catalog_file *catalog_find(const struct catalog *c, const struct record *r, int rank,
                                        const char **why);
/* Likewise its parities. */
const struct catalog_file *catalog_find_parity(const struct catalog *c, const struct record *r,
                                               int rank);

/* The rank's file can be had from what its group has (parity.h). */
bool catalog_can_rebuild(const struct catalog *c, const struct record *r, int rank);

/* The blob text for ckpt_scan; used by it alone. */
void scan_print_escaped(FILE *out, const char *text);

#endif
