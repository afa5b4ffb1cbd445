/* keeper_memory.h - the keeper's newest tier: states in memory that the nodes hold. See keeper.h,
 * mirror.h, ckpt/memory.h. */
#ifndef GTRAIN_KEEPER_MEMORY_H
#define GTRAIN_KEEPER_MEMORY_H

#include "ckpt.h"
#include "memory.h"
#include "train/memory_room.h"
#include "train/mirror.h"
#include "train/side.h"
#include "train/snapshot.h"

struct keeper;

struct keeper_memory {
    struct ckpt_memory *slots;     /* NULL: nobody holds memory for us, or the plan wants none */
    struct side side;              /* for the mirror, until it has it */
    struct mirror mirror;          /* open from keeper_memory_start on, where slots are */
    struct snapshot snapshot;      /* the stream that its copies go on */
    struct ckpt_decision recorded; /* where keeper.decision is of memory: the newest on disk, be
                                    * it of an earlier launch */
    struct ckpt *filler; /* where the plan has no files: what pieces are put together in */
    int (*note)(void *arg, int64_t step, char note[CKPT_MEMORY_NOTE], struct err *err);
    void *note_arg;    /* as in mirror_options; set before keeper_memory_start */
    int64_t newest;    /* step of the one begun last, or of the start */
    int retries;       /* decisions whose slots turned out to be damaged */
    int partner, ward; /* ranks, -1: none */
    bool forget;       /* at the close: the run goes back behind what memory has */
    bool unfit;        /* keeper_memory_start: this node has too little */
    bool same_cut;     /* what was restored is cut as this run cuts its state */
    bool joined;       /* mirror.key is whole; the sum that tells everybody is to come */
};

/* All functions: 0, or -1 with err; all ranks call, unless said. */

/* Leaves memory.side as it is. No network. */
int keeper_memory_open(struct keeper *keeper, struct err *err);

/* In a later generation of a launch: if memory holds something as new as keeper->decision, that
 * becomes the decision, and the old one `recorded`. */
int keeper_memory_find(struct keeper *keeper, struct err *err);

/* The decision was of memory, and is damaged: look again, without what is damaged. No network. */
void keeper_memory_step_back(struct keeper *keeper);

/* What the pieces of the decision are put together in. No network. */
int keeper_memory_fill(struct keeper *keeper, struct err *err);

/* After the restore: choose partners, check that the memory for snapshots and for the copy that
 * files are written from fits, take it. What does not fit is refused with the same text on all
 * ranks: *common; in a later generation it is the node's failure (memory.unfit). memory.side
 * becomes the mirror's. */
int keeper_memory_start(struct keeper *keeper, bool *common, struct err *err);

/* The state after `step` steps, as the stream makes it; restored: that which the run begins with.
 * It must not be changed before the join. Does not wait; no network. */
int keeper_memory_begin(struct keeper *keeper, int64_t step, struct err *err);
int keeper_memory_begin_restored(struct keeper *keeper, int64_t step, struct err *err);

/* Seconds that the newest whole snapshot cost this rank at most: how long it was held, and what the
 * mirror's thread computed, as if that had been on a core that training wants. Each is told once;
 * 0: none is whole that has not been told. */
double keeper_memory_cost(struct keeper *keeper);

/* Before the sum that the update needs: what was begun is whole on this rank, and its ward's.
 * What comes on `stream` may change the state. */
int keeper_memory_join(struct keeper *keeper, struct kstream *stream, int64_t *stall_ns,
                       struct err *err);

/* That sum is there: all have joined. No network. */
void keeper_memory_confirm(struct keeper *keeper);

/* Is another rank's death the reason for a failure here? No network. */
bool keeper_memory_lost_peers(const struct keeper *keeper);

void keeper_memory_close(struct keeper *keeper, bool orderly);

/* ---- pure, for tests ---- */

/* What a rank needs and its node has. */
struct memory_need {
    char node[256];
    int64_t image;     /* bytes of its state in a slot */
    int64_t ward;      /* of its ward's */
    int64_t live;      /* bytes that its training state takes already */
    int64_t copy;      /* what its file is written from */
    int64_t lacks;     /* of all that, what is not taken yet */
    int64_t available; /* on the node, as this rank sees it */
    char why[MEMORY_ROOM_WHY];
};

/* Does it fit on every node? -1: *where not, and err says so with the sum. */
int keeper_memory_fits(const struct memory_need *ranks, int world, const char **where,
                       struct err *err);

#endif
