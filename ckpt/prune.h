/* prune.h - what may go from a folder of checkpoints that no run is using.
 *
 * While a run goes on, its writers drop what retention allows (retain.h). What is left behind by
 * writers that died, or by a higher `keep`, is dropped here, when nobody writes. One folder is
 * looked at alone, and what other nodes hold is not known. So only what this folder shows counts:
 * a checkpoint is good if its record is in a log here, it is not marked bad, some of its files are
 * here, and all are that the record places on a node whose log is here.
 *
 *   halves (.part, .reserve, a log's .new)    go: nobody is writing them
 *   the newest `keep` good checkpoints        stay, and all that is newer than the oldest of them
 *   committed ones older than those           go
 *   complete files without a record here      go if older than the second-newest good checkpoint:
 *                                             the record may stand on another node
 *
 * With fewer than two good checkpoints no complete file goes. The oldest goes first, so whenever
 * it is cut short the folder holds what it would have held had retention been cut short there. */
#ifndef GTRAIN_CKPT_PRUNE_H
#define GTRAIN_CKPT_PRUNE_H

#include "base/err.h"
#include "names.h"
#include "sys.h"

struct prune_options {
    const char *dir, *run;
    int keep; /* >= 2 */
    bool dry_run;
    bool locked; /* the caller holds the run's lock: a folder that cannot be locked will do */
    void (*tell)(void *arg, const char *name, int64_t bytes, const char *why); /* for each file */
    void *arg;
    const struct ckpt_hook *hook; /* may be NULL */
};

/* What went, or would go, and how many good checkpoints stay. */
struct prune_result {
    int files, good;
    int64_t bytes;
};

/* 0, or -1 with err: the folder is in use, is somebody else's, or a file could not be dropped. */
int prune_folder(const struct prune_options *options, struct prune_result *result, struct err *err);

/* What a folder shows, for the decision. Keys newest first. */
struct prune_view {
    const struct ckpt_key *good;
    int n_good;
    const struct ckpt_key *committed; /* all with a record, the good ones among them */
    int n_committed;
};

/* Why the file goes; NULL: it stays. Pure. */
const char *prune_decide(const struct prune_view *view, int keep, const struct ckpt_name *name);

#endif
