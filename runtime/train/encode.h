/* encode.h - ranks of a group keep parity of each other's checkpoint files (ckpt/parity.h).
 *
 * While a rank's file is written, from the moment its data stand in the writer's memory, a thread
 * of the rank (background.h) sends the others of its group chunks of it, and gets theirs; training
 * goes on. In turn x of a chunk a member sends to the one x before it and receives from the one x
 * behind it, so that each is busy with one at a time. What comes is added to the sums of the
 * parities this rank keeps; another thread writes those (parity_write.c). The chunks that hold
 * headers come last, when all members have told each other that their files are durable: so the
 * parities are complete only where the files are. Every message says whose it is, of which epoch,
 * generation, step and chunk, with a checksum, and is refused if that is not what is expected.
 *
 * Nobody is asked whether to begin: saves are the same on all ranks, in the same order. The copy of
 * the next state waits until its file has been sent, which is where training would, if a file took
 * longer than the time from one to the next.
 *
 * Why nobody waits in a circle, however unequal the members are: all go through the same row of
 * (step, chunk, turn), each at its own speed. In a turn a member starts its send and its receive,
 * and only then waits for both. Of those that are not at the end take one that is the least far in
 * the row: whom it sends to and whom it receives from have been through the same turn, or are in
 * it and start both halves without waiting for anybody, or have not begun with the step, as their
 * copy of it is not over. That needs their buffer, which their own earlier steps in the row hold,
 * and what training does up to that step, which the training of nobody in a later one can hold up:
 * that has been through it. So the turn ends. Between turns a member waits for its own disk alone;
 * while that is slow it tells the others again and again that it is not done, so that none of them
 * takes it for dead. */
#ifndef GTRAIN_ENCODE_H
#define GTRAIN_ENCODE_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "parity.h"
#include "plan/plan.h"
#include "train/background.h"
#include "train/encode_group.h"
#include "train/identity.h"

struct encode {
    const struct train_identity *identity; /* NULL: the plan asks for none */
    int members, keeps, member;
    int group;                         /* its name in the record */
    int ranks[PARITY_MEMBERS_MAX];     /* of the members */
    int64_t bytes[PARITY_MEMBERS_MAX]; /* of their files */
    int64_t header_bytes;              /* of the longest header among them */
    int64_t file_bytes;                /* of this rank's parities */
    int64_t word_ms;                   /* the others hear of this rank as often at least */
    struct ckpt_parity *writer;

    /* The thread's. */
    unsigned char *out, *in;     /* a message each: head, then chunks */
    struct parity_image *source; /* this rank's file; NULL: none is under way */
    int64_t step, chunk;         /* of the file; of the segments */
};

/* Who is in a group with whom: all ranks call, with the bytes of their files and of the headers in
 * them. A failure that does
 * not come from the network is the same on all: there are too few nodes. Where the run was placed
 * anew after a loss, one group of those that are left will do. */
int encode_find(struct encode *p, struct comm *comm, const struct mesh *mesh,
                const struct train_identity *identity, const struct plan *plan, int64_t file_bytes,
                int64_t header_bytes, struct err *err);

/* Once the folder is there. */
int encode_open(struct encode *p, const char *dir, uint64_t plan_hash, struct err *err);

/* The other members: in turn i + 1 this rank sends to to[i] and receives from from[i]. Returns how
 * many turns a chunk has. */
int encode_peers(const struct encode *p, int to[PARITY_MEMBERS_MAX], int from[PARITY_MEMBERS_MAX]);

/* In the thread, of each image that own shows: all of it, up to what the writer of parities has
 * still to write. All members call. The image is the caller's to release. */
int encode_run(struct encode *p, struct ckpt *own, const struct ckpt_image *image,
               struct background *b, struct err *err);

void encode_close(struct encode *p);

#endif
