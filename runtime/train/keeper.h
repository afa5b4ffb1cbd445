/* keeper.h - checkpoints as the training loop sees them: restore at the start, save, commit.
 *
 * ckpt/ writes and reads one rank's file and makes the pure decisions; the keeper carries small
 * texts between ranks, lets reshard.h bring each rank its slices, and hands its tensors over. A
 * rank's file holds, for every tensor of its state, the weight under its model name and Adam's
 * moments under "exp_avg." and "exp_avg_sq." + name, and one tensor "gtrain.layout". */
#ifndef GTRAIN_KEEPER_H
#define GTRAIN_KEEPER_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "plan/plan.h"
#include "train/background.h"
#include "train/encode.h"
#include "train/identity.h"
#include "train/keeper_memory.h"
#include "train/partner.h"
#include "train/reshard.h"
#include "train/side.h"
#include "train/snapshot.h"
#include "train/state.h"
#include "train/state_table.h"
#include "train/trial.h"

enum { KEEPER_PARTS = STATE_TABLE_PARTS }; /* weight and two moments of each tensor, side by side */
enum { KEEPER_SAVES = PLAN_FILES_AHEAD_MOST + 1 };

/* What identity->restore asks for. */
struct keeper_wish {
    bool nothing;
    bool exact;        /* it is an error if there is none */
    int64_t step;      /* -1: any */
    uint32_t epoch;    /* only what this launch has written; 0: any */
    char dir[4096];    /* of each node; "": none */
    char shared[4096]; /* that all nodes see; "": none */
    char run_id[80];
};

/* The shared tier (keeper_drain.c). */
struct keeper_shared {
    char root[4096];          /* checkpoint.shared, "" without */
    char dir[4096];           /* root/<run_id>, where both tiers are; else "" */
    struct ckpt_drain *drain; /* where dir is */
    char *blob;               /* what lies in wish.shared, as rank 0 saw it; from keeper_find on */
    int64_t total_bytes;      /* of one checkpoint of all ranks; likewise */
    int64_t flight;           /* step on its way there, -1: none */
    bool owed;                /* the next one is due when that is over */
    int64_t copied;           /* newest step of which all ranks have a copy, -1: none */
    int64_t told;             /* newest that keeper_told told of */
    int64_t commits;          /* local ones of this start */
    char *record;             /* newest of those; owned */
    bool common;              /* keeper_drain_flush failed with the same text on all ranks */
    char trouble[128];        /* why copies fail, as it was told; "": they do not */
    bool used;                /* rank 0: the run has committed checkpoints, so it was there */
    struct err unread;        /* rank 0: why nobody knows what lies there; "": it is known */
};

struct keeper {
    struct ckpt *ckpt; /* NULL: the plan keeps no checkpoints */
    const struct plan *plan;
    struct kernels *k;
    struct comm *comm;
    const struct mesh *mesh;
    struct state *state;
    struct kstream *stream; /* what it has done before keeper_save_begin is saved */
    struct snapshot snapshot;
    bool restoring;    /* until the first save: what flush is about */
    bool saving;       /* from a save's begin to its join */
    int64_t stall_ns;  /* of the newest save that was joined */
    int64_t settle_ns; /* of the newest begun: how long it waited for those before it */
    const struct train_identity *identity;
    struct keeper_wish wish;
    char *scanned;                 /* what this node holds */
    char *scanned_shared;          /* rank 0: what wish.shared holds */
    struct ckpt_decision decision; /* from keeper_find */
    bool stepped_back;             /* a file of one before was found to be damaged */
    int rounds;                    /* decisions of one step that were */
    int rebuilt;                   /* files of the decision that were lost */
    int troubled;                  /* whose disk would not do for that, as all know; -1: none */
    struct keeper_shared shared;
    struct keeper_memory memory;
    bool widened;              /* keeper_widen was called */
    struct partner partner;    /* copies on another node; closed where the plan asks for none */
    struct encode encode;      /* parity in groups; likewise */
    struct side side;          /* for whichever the plan asks for, until `carrier` has it */
    struct background carrier; /* runs it; open from keeper_redundancy_start on */
    struct ckpt_image image;   /* that it is to carry next */
    struct reshard reshard; /* who has what of the decision; open from keeper_find to keeper_move */
    bool damaged;           /* a file was found to be, by keeper_restore or keeper_move, */
    int damaged_file;       /* of this number in the decision; -1: not known */
    int64_t layout[LAYOUT_WORDS];
    struct ckpt_tensor *tensors; /* this rank's slices, gtrain.layout last */
    int n_tensors;
    char *names;       /* theirs */
    char dir[4096];    /* <checkpoint.local>/<run_id>, or <checkpoint.shared>/... where there is
                        * no local; "": the plan keeps no checkpoints */
    int64_t committed; /* newest committed step, -1: none */
    int64_t trial_commits[CKPT_TRIAL_STEPS]; /* the first after a restore, while it is on trial */
    int n_trial_commits;
    int64_t saved;   /* newest step that was handed to the writer, or restored, -1: none */
    bool saved_here; /* it was the former */
    int64_t saves[KEEPER_SAVES]; /* steps handed to the writer; number n stands at n modulo that */
    int64_t n_saves;             /* ever */
};

/* What was restored, for the log. */
struct keeper_start {
    bool restored;
    struct ckpt_position position;
    char note[512]; /* what is worth an event: passed-over checkpoints, another arithmetic; or "" */
};

/* Four steps, so that all ranks can agree that each went well before the next: nobody may wait in
 * one for a rank that failed in another. Each -1 with err; keeper_close after any.
 *
 * keeper_open: name the folder, find what this node holds. committed: rank 0's, the newest step
 * that the run folder tells was committed; -1: none. */
int keeper_open(struct keeper *keeper, const struct plan *plan,
                const struct train_identity *identity, struct kernels *k, struct comm *comm,
                const struct mesh *mesh, struct state *state, struct kstream *stream,
                int64_t committed, struct err *err);

/* Exchange that, decide what identity->restore asks for, find out who has what of it. A failure
 * that does not come from the network is the same on all ranks, or, where keeper->troubled says
 * so, that of one rank. May be called again after
 * keeper_step_back. */
int keeper_find(struct keeper *keeper, struct err *err);

/* A later generation of a launch goes on from what the launch itself has committed, whatever
 * identity->restore says: keeper_find looks for nothing else at first. This tells whether it found
 * none: then all ranks call keeper_widen (no network), which turns to what identity->restore asks
 * for, and keeper_find again. */
bool keeper_found_nothing_own(const struct keeper *keeper);
int keeper_widen(struct keeper *keeper, struct err *err);

/* Open the writer; fill the state from a whole file, or plan the pieces it is made of, if there is
 * something to restore. No network. */
int keeper_restore(struct keeper *keeper, struct keeper_start *start, struct err *err);

/* All ranks call, once all have done that: the pieces move. */
int keeper_move(struct keeper *keeper, struct err *err);

/* All ranks are filled: the run goes on from there. */
int keeper_adopt(struct keeper *keeper, struct err *err);

/* A file of the decision turned out to be damaged: no decision takes it from there any more. All
 * ranks call, with the same. */
int keeper_mark_damaged(struct keeper *keeper, int file, struct err *err);

/* The decision's files cannot be used, on some rank, and that is marked: may it be decided anew
 * (then keeper_find and so on again)? A copy of the damaged file is taken, or a replica's; or it is
 * rebuilt; or an older checkpoint taken. All ranks call, and get the same answer. */
bool keeper_step_back(struct keeper *keeper);

/* After keeper_adopt, all ranks call: from now on files are carried to other nodes, where the plan
 * asks for it. */
int keeper_redundancy_start(struct keeper *keeper, struct err *err);

/* Before a save: the files that wait for their commit would be more than there was room for at the
 * start, and the oldest is newer than step `collected`, the newest that is known to have gone well:
 * it is too early. The same on all ranks. */
bool keeper_full(const struct keeper *keeper, int64_t collected);

/* Where they would be more and it is not too early: waits for the oldest and commits it. *committed
 * is its step, -1: none. All ranks call. */
int keeper_make_room(struct keeper *keeper, int64_t *committed, struct err *err);

/* The state after `step` steps, as the stream makes it: begin to copy it, in the background. It
 * must not be changed before the join. Does not wait. */
int keeper_save_begin(struct keeper *keeper, int64_t step, struct err *err);

/* What comes on `stream` may change the state. stall_ns: how long this rank was held by it, by
 * the begin and by making room; 0 where nothing was begun since. The copy waits until the file
 * before is written and has been sent. */
int keeper_save_join(struct keeper *keeper, struct kstream *stream, int64_t *stall_ns,
                     struct err *err);

/* What the newest checkpoint has cost this rank, in seconds: held it, and took until it was
 * durable, here and on other nodes; 0: not known. */
void keeper_cost(const struct keeper *keeper, double *stall_s, double *write_s);

/* Copies of what was restored may be lost with a node. */
bool keeper_degraded(const struct keeper *keeper);

/* Newest step durable on this rank, and its ward's copy or its parities, too; -1 none. No network.
 */
int keeper_finished(struct keeper *keeper, int64_t *step, struct err *err);

/* All ranks call with the same `durable` (newest step durable on every rank, -1 none). Commits it
 * unless it is committed already; *committed tells whether something new was. */
int keeper_commit(struct keeper *keeper, int64_t durable, bool *committed, struct err *err);

/* ---- the shared tier; all do nothing where the plan has not both ---- */

/* What this rank's word in the tally is: step_word.copied. */
int64_t keeper_copied(struct keeper *keeper);

struct keeper_news {
    int64_t step;    /* -1: none */
    struct err text; /* a failure; "": the step's record stands in the shared folder */
};

/* All ranks call with what the tally gave; a copy that is over is committed, or its failure told.
 */
int keeper_heard(struct keeper *keeper, int64_t copied, int rank, struct keeper_news *news,
                 struct err *err);

/* Rank 0: is a record durable, or lost, since it was asked last? */
bool keeper_told(struct keeper *keeper, struct keeper_news *news);

/* `step`, the last, was restored and not saved again, and the shared folder has not got it. */
bool keeper_drain_lacks(const struct keeper *keeper, int64_t step);

/* All ranks call, after keeper_flush: the newest commit is there when it returns 0. */
int keeper_drain_flush(struct keeper *keeper, struct err *err);

/* All ranks call: wait for the last save and commit it. */
int keeper_flush(struct keeper *keeper, bool *committed, struct err *err);

/* Step `step` (1-based) was not finite. All ranks get the same answer. */
enum trial_verdict keeper_judge(const struct keeper *keeper, int64_t step);

/* What was restored (but for a state in memory), and what has been committed since, is marked bad;
 * or what was marked for the same step is not any more (*newest: such a one's step). All ranks
 * call, with no step under way; then the keeper can only be closed. */
int keeper_condemn(struct keeper *keeper, int64_t step, struct err *err);
int keeper_acquit(struct keeper *keeper, int64_t step, int64_t *newest, struct err *err);

/* Is another rank's death the reason for a failure here? No network. */
bool keeper_lost_peers(const struct keeper *keeper);

/* orderly: a write that is under way, and files to be dropped, are waited for. Otherwise the write
 * is cancelled: nobody is left to commit it. */
void keeper_close(struct keeper *keeper, bool orderly);

/* ---- between keeper.c, keeper_save.c, keeper_wish.c, keeper_restore.c, keeper_redundancy.c,
 * keeper_trial.c and keeper_drain.c ---- */

/* All ranks call; a failure not of the network is the same on all. */
int keeper_redundancy_find(struct keeper *keeper, struct err *err);
char *keeper_claim(struct keeper *keeper, int64_t step, struct err *err);
/* As rebuild_lost. */
int keeper_rebuild(struct keeper *keeper, struct err *err);

const struct ckpt_decision *keeper_on_disk(const struct keeper *keeper);
/* Whatever is on its way to other nodes has been sent, and what comes from there has come: all
 * ranks must have begun to save as much. */
int keeper_redundancy_settle(struct keeper *keeper, struct err *err);
void keeper_redundancy_close(struct keeper *keeper, bool orderly);
struct ckpt_io keeper_io(struct keeper *keeper);
struct ckpt *keeper_filler(const struct keeper *keeper); /* NULL: nothing is to be restored */
int keeper_copy_out(struct keeper *keeper, struct snapshot *snapshot, int index, void *host,
                    struct err *err);
/* Where the host may read that tensor; NULL: it must be copied out. */
const void *keeper_where(const struct keeper *keeper, int index);

/* What identity->restore asks for; the second for a plan that has no checkpoints: refuses to
 * restore what it would not look for. */
int keeper_read_wish(struct keeper *keeper, struct err *err);
int keeper_refuse_wish(const struct keeper *keeper, struct err *err);
int keeper_scan(struct keeper *keeper, struct err *err);
int keeper_fill(struct keeper *keeper, struct keeper_start *start, struct err *err);
int keeper_mark(struct keeper *keeper, const struct ckpt_mark *marks, int n, bool bad,
                struct err *err);

/* Rank 0 makes the shared folder (keeper_open); the others see it (keeper_restore). */
int keeper_drain_make(struct keeper *keeper, struct err *err);
int keeper_drain_see(struct keeper *keeper, struct err *err);
/* What lies there, as ckpt_scan, for rank 0; "" for the others, and where a later generation cannot
 * look: then shared.unread says why. malloc'ed; NULL with err. */
char *keeper_drain_scan(struct keeper *keeper, struct err *err);
int64_t keeper_drain_bytes(const struct keeper *keeper); /* of this rank's file, about */
int keeper_drain_open(struct keeper *keeper, struct err *err);
/* All ranks, after a commit; takes the record over. */
int keeper_drain_committed(struct keeper *keeper, char *record, struct err *err);
void keeper_drain_close(struct keeper *keeper);

#endif
