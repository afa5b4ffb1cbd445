/* record.h - what one rank claims of its file, and the record that joins all claims. Text, one
 * line, words of key=value:
 *
 *   claim v=1 run=R epoch=1 generation=1 step=100 samples=800 plan=0123456789abcdef world=2
 *         rank=1 node=n2 path=FILE bytes=4096 digest=89abcdef cut=0123456789abcdef
 *   commit v=1 run=R ... world=2 rank=0 node=... path=... bytes=... digest=... rank=1 node=...
 *
 * and, where the rank has parities (parity.h), behind its digest
 *
 *   parity=FILE parity_bytes=4096 parity_digest=89abcdef
 *         parity_group=0 parity_member=1 parity_keeps=1
 *
 * Readers pass over keys they do not know, so that more can be added behind either part. cut is
 * there where ranks that are cut alike hold the same bytes (ckpt_options.replicated): files with
 * the same one stand in for each other. */
#ifndef GTRAIN_CKPT_RECORD_H
#define GTRAIN_CKPT_RECORD_H

#include "layout.h"

/* A rank's parities. Of a group, all ranks with the same number, each has one of the members 0 to
 * n - 1. */
struct record_parity {
    char *path; /* likewise on `node`; NULL: none */
    int64_t bytes;
    uint32_t digest;
    int group, member, keeps;
    unsigned words; /* seen, while it is parsed */
};

struct record_rank {
    char *node, *path; /* path is a plain file name in the folder of `node` */
    int64_t bytes;
    uint32_t digest;
    uint64_t cut; /* a hash of the slices in it; 0: nobody else has the same bytes */
    struct record_parity parity;
};

struct record {
    struct file_meta meta; /* of a claim, with its rank; of a commit rank is 0 */
    int n;                 /* 1 for a claim, meta.world for a commit */
    struct record_rank *ranks;
};

enum record_kind { RECORD_CLAIM, RECORD_COMMIT };

/* malloc'ed; NULL: no memory */
char *record_print(const struct record *r, enum record_kind kind);
/* n bytes of text. Strict in what it knows; err says which word is wrong. */
int record_parse(const char *text, int64_t n, enum record_kind kind, struct record *out,
                 struct err *err);
void record_free(struct record *r);

#endif
