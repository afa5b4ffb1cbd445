/* mark.h - checkpoints that are whole and yet no good: what a run that restored one found out.
 *
 * A mark is a line in the commit logs, beside the records:
 *
 *   bad v=1 run=R epoch=1 generation=1 step=100 by=2.1 nan=105
 *   good v=1 run=R epoch=1 generation=1 step=100 by=3.1
 *
 * The first says that the launch and generation `by` restored that checkpoint and step `nan` was
 * not finite; the second takes that back. Of several marks of a checkpoint the one of the highest
 * `by` holds, on whatever node it stands; of two of the same, the bad one. */
#ifndef GTRAIN_CKPT_MARK_H
#define GTRAIN_CKPT_MARK_H

#include "ckpt.h"
#include "names.h"

struct mark {
    char run[CKPT_RUN_MAX + 1];
    struct ckpt_key key;
    struct ckpt_key by; /* step is 0 */
    bool bad;
    int64_t nan_step; /* of a bad one, else 0 */
};

/* n bytes of text are a line of this kind, good or not. */
bool mark_is(const char *text, int64_t n);
/* False: it is none, or not in exactly this spelling. */
bool mark_parse(const char *text, int64_t n, struct mark *out);
/* malloc'ed; NULL: no memory */
char *mark_print(const struct mark *m);

struct marks {
    struct mark *list;
    int n;
};

int marks_add(struct marks *m, const struct mark *mark); /* -1: no memory */
/* Leaves the marks that hold and are bad, sorted by key. */
void marks_settle(struct marks *m);
/* Of settled ones; NULL: the checkpoint has none. */
const struct mark *marks_find(const struct marks *m, const struct ckpt_key *key);
void marks_free(struct marks *m);

#endif
