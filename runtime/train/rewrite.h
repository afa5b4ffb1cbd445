/* rewrite.h - a committed checkpoint, written again in the layout of another plan.
 *
 * The state is the same, bit for bit; so are position and plan hash, and a run goes on from it as
 * it would have from the source. What a rank of the new layout holds is put together as a restore
 * does (ckpt_pieces), one rank after the other and a tensor after the other (alone.h): memory is
 * that of the largest tensor, or 16 MiB, and the blocks of the files that are open. */
#ifndef GTRAIN_REWRITE_H
#define GTRAIN_REWRITE_H

#include <stdatomic.h>

#include "plan/plan.h"
#include "files.h"
#include "train/weights.h"

/* An open source. */
struct rewrite {
    const struct plan *plan;
    struct ckpt_decision decision;
    int64_t layout[8];    /* gtrain.layout, as it will be: LAYOUT_WORDS are used */
    char **tables;        /* one for each way in which the files are cut */
    int *files, n_tables; /* the first file of each */
    struct files open;
};

/* The newest checkpoint of the source (step -1), or that of a step, which must be one that the plan
 * goes on from. 0, or -1 with err; rewrite_close after either. */
int rewrite_open(struct rewrite *r, const struct weights_source *source, int64_t step,
                 const struct plan *plan, struct err *err);

struct rewrite_target {
    const char *dir, *run_id; /* made if missing; the record names the shared folder's node */
    uint32_t epoch;
    void (*tell)(void *arg, int rank, int64_t bytes); /* of tensors; after each, may be NULL */
    void *arg;
    const atomic_bool *stop; /* true: end soon, with an error; may be NULL */
};

/* Bytes of all ranks' tensors: what the files need, about. -1 with err. */
int64_t rewrite_bytes(struct rewrite *r, struct err *err);

/* All ranks' files, then the record: cut anywhere before there is no checkpoint. */
int rewrite_write(struct rewrite *r, const struct rewrite_target *target, struct err *err);

void rewrite_close(struct rewrite *r);

#endif
