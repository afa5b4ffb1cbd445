/* step.h - what ends a training step: gradients summed over replicas, their norm, the update.
 *
 * Everything that all ranks must learn of a step travels in one small vector of f64, the *tally*,
 * summed over all ranks in the norm's reduction. Each entry is filled by exactly one rank and zero
 * elsewhere (a split tensor's square sum: by each tensor rank its part), so the sum gathers:
 *
 *   [tensors]       square sum of each tensor's gradient, in the model's order
 *   [global batch]  loss of each sample, in global order
 *   [world]         1 + newest step of which this rank's checkpoint file is durable, and its share
 *                   of copies or parity; 0: none
 *   [world]         how this rank's copy to the shared folder stands: 1 + its step when it is
 *                   durable, minus that when it failed, 0 else
 *   [world]         seconds that the newest checkpoint held this rank
 *   [world]         seconds from there until its file was durable; 0: none is
 *   [world]         seconds that the newest snapshot in memory cost this rank; 0: none is
 *   [1]             steps between checkpoints, as rank 0 decides; 0: not decided
 *   [1]             likewise between snapshots
 *   [1]             how many ranks were asked to stop
 *   [2]             norm and clip factor, written by the device after the reduction
 *
 * Sums over it are in index order, so that the bits depend neither on pipeline nor on microbatch.
 * The host reads the tally one step late. Host memory that the device reads or writes exists
 * twice, by step parity; the read back of step n-1 is over before step n+1 fills its half. */
#ifndef GTRAIN_STEP_H
#define GTRAIN_STEP_H

#include "comm/mesh.h"
#include "train/state.h"

/* What a rank tells the others: entries of the tally, in this order. */
enum step_tells {
    STEP_FINISHED,
    STEP_COPIED,
    STEP_STALL,
    STEP_WRITE,
    STEP_SNAPSHOT,
    STEP_BY_RANK, /* those before have an entry for each rank */
    STEP_EVERY = STEP_BY_RANK,
    STEP_SNAPSHOT_EVERY,
    STEP_STOP,
    STEP_WORDS
};

/* before_sum: before the sum over all ranks that the update needs, so what all have done by then
 * all know of in before_update, which is called before the update is submitted: what comes on the
 * stream changes the state. -1 with err ends the step. Either may be NULL. */
struct step_guard {
    int (*before_sum)(void *arg, struct kstream *stream, struct err *err);
    int (*before_update)(void *arg, struct kstream *stream, struct err *err);
    void *arg;
};

struct step {
    struct step_guard guard;
    const struct plan *plan;
    struct kernels *k;
    struct comm *comm;
    const struct mesh *mesh;
    struct state *state;
    int n_tensors, n_samples, world;
    struct kbuf tally;                      /* f64, as above */
    struct kbuf reduced;                    /* the part of it that is summed over ranks */
    struct kbuf sums, losses, norm, factor; /* parts of it */
    struct kbuf word[STEP_WORDS];           /* likewise: where this rank's words go */
    struct kbuf values;                     /* f64 (KSTEP_COUNT) */
    struct kbuf spare_losses; /* f64 (microbatch): where ranks that do not report put theirs */
    struct step_host {
        double *tally; /* as the device's */
        double values[KSTEP_COUNT];
        double word[STEP_WORDS];
        struct kevent *filled; /* the device has read values and words */
        struct kevent *read;   /* the tally is here */
    } host[2];
    double *validated; /* (n_samples), of a validation: a tally may be read meanwhile */
    int64_t number;    /* of the step that runs now, 0-based */
};

/* What a rank has to tell the others. */
struct step_word {
    int64_t finished;                    /* newest checkpoint step durable here, -1: none */
    int64_t copied;                      /* as in the tally */
    double stall_s, write_s, snapshot_s; /* likewise */
    int64_t every, snapshot_every;       /* likewise; rank 0 */
    bool stop;                           /* asked to stop */
};

/* What the ranks learnt of one step. */
struct step_result {
    double loss; /* nats a token */
    double norm;
    int64_t finished; /* newest checkpoint step durable on all ranks, -1: none */
    int64_t copied;   /* as in the tally, once no rank's is 0: what all have, or the failed one's */
    int copied_rank;  /* the first with that */
    double stall_s, write_s, snapshot_s; /* the most that any rank has */
    int64_t every, snapshot_every;       /* as in the tally */
    bool stop;                           /* somebody was asked to stop */
};

int step_open(struct step *s, struct kernels *k, struct comm *comm, const struct mesh *mesh,
              const struct plan *plan, struct state *state, struct err *err);

/* Begin step `number`: learning rate and what this rank has to tell go to the device on `stream`.
 */
int step_begin(struct step *s, struct kstream *stream, int64_t number, const struct step_word *word,
               struct err *err);

/* Where the losses of local microbatch `microbatch` go. */
struct kbuf step_losses(const struct step *s, int64_t microbatch);

/* The actions, each on the stream given. 0, or -1 with err when communication fails, or the guard.
 */
int step_reduce_tied(struct step *s, struct kstream *stream, struct err *err);
int step_reduce_grads(struct step *s, struct kstream *stream, struct err *err);
int step_norm(struct step *s, struct kstream *stream, struct err *err);
int step_optimizer(struct step *s, struct kstream *stream, struct err *err);
void step_read_back(struct step *s, struct kstream *stream);

/* Wait for the tally of step `number` (this one or the one before) and read it. From any thread
 * that step_begin of step number + 2 waits for. */
int step_collect(struct step *s, int64_t number, struct step_result *out, struct err *err);

/* After a validation's forwards: sum of the losses of one global batch, in sample order, the same
 * on all ranks. Waits. */
int step_sum_losses(struct step *s, struct kstream *stream, double *sum, struct err *err);

void step_close(struct step *s);

#endif
