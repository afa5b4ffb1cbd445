/* retain.h - which files may go. Pure.
 *
 * Kept: the newest `keep` committed checkpoints; what is newer than the newest committed one (it
 * may be committed yet); and the checkpoint this run was restored from, until `keep` commits of its
 * own stand, as what lies between may be what could not be read; and one that is held. Everything
 * else of a lower or the same (epoch, generation) goes. Checkpoints that are marked bad do not
 * count.
 *
 * While what was restored is on trial (CKPT_TRIAL_STEPS), the run's own commits are as suspect as
 * that, and may all turn out bad with it; then a restore takes the next older one, and so on. So
 * they take nobody's place: of them the newest two stay, and `keep` of what was there, from what
 * was restored on. That is more than `keep`: on a node, where there is space.
 *
 * Where there is not, no more than `keep` of what earlier starts have left is kept, whatever they
 * left, and this start's take their places one by one: neither what was never committed, nor what
 * was passed over for what was restored. (A record of those may lie on a node that is away.)
 *
 * Two commits are what makes dropping at commit time safe: a rank drops step C after C's commit,
 * and C's commit is only begun when every rank has finished C, which it told after it had returned
 * from committing B. So when A goes, every node's log has B or C, and both are whole. */
#ifndef GTRAIN_CKPT_RETAIN_H
#define GTRAIN_CKPT_RETAIN_H

#include "folder.h"

enum { CKPT_KEEP_MAX = 1000 };

struct commits {
    struct ckpt_key *keys; /* newest first, unique */
    int n;
    int own; /* committed by this writer */
    bool restored;
    bool no_trial; /* what was restored is not on trial here */
    bool tight;    /* nor is there space for a trial, or for what is most likely of no use */
    struct ckpt_key restored_from;
    int64_t trial_step; /* from which the trial counts: that one's, or of a newer state in memory */
    bool held;          /* somebody reads it still: the drain to the shared folder */
    struct ckpt_key held_key;
};

/* 0, or -1 when out of memory. A key that is there already changes nothing. */
int commits_add(struct commits *c, const struct ckpt_key *key);
bool commits_has(const struct commits *c, const struct ckpt_key *key);
/* All of a run in the logs of a folder; dir: its name, for errors. */
int commits_read(struct commits *c, int dirfd, const char *dir, const char *run,
                 const struct folder_list *list, struct err *err);
void commits_free(struct commits *c);

bool retain_file(const struct commits *c, int keep, const struct ckpt_key *file);

#endif
