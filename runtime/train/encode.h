/* encode.h - ranks of a group keep parity of each other's checkpoint files (ckpt/parity.h).
 *
 * Once the tally has told that every rank's file of a step is durable, all ranks begin, without
 * asking anybody, and training goes on: a thread of each rank (background.h) sends the others of
 * its group chunks of its file, as it still stands in the writer's memory, and gets theirs. In turn
 * x of a chunk a member sends to the one x before it and receives from the one x behind it, so that
 * each is busy with one at a time. What comes is added to the sums of the parities this rank keeps;
 * another thread writes those (parity_write.c). Before the next save begins, the parities of the
 * one before are complete. Every message says whose it is, of which epoch, generation, step and
 * chunk, with a checksum, and is refused if that is not what is expected.
 *
 * Why nobody waits in a circle, however unequal the members are: all go through the same row of
 * (step, chunk, turn), each at its own speed, as saves are the same on all and one is not begun
 * before the parity of the one before is complete. In a turn a member starts its send and its
 * receive, and only then waits for both. Of those that are not at the end take one that is the
 * least far in the row: whom it sends to and whom it receives from have been through the same turn,
 * or are in it and start both halves without waiting for anybody. So its turn ends. Between turns a
 * member waits for its own disk alone, which has a deadline, and never for its training thread;
 * that one waits for its own thread here, and otherwise talks on another comm. */
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
    int64_t file_bytes;                /* of this rank's parities */
    struct ckpt_parity *writer;

    /* From encode_begin on the thread's, until encode_run is over. */
    unsigned char *out, *in;      /* a message each: head, then chunks */
    struct parity_source *source; /* this rank's file; NULL: none is under way */
    int64_t step, chunk;          /* of the file; of the segments */
};

/* Who is in a group with whom: all ranks call, with the bytes of their files. A failure that does
 * not come from the network is the same on all: there are too few nodes. Where the run was placed
 * anew after a loss, one group of those that are left will do. */
int encode_find(struct encode *p, struct comm *comm, const struct mesh *mesh,
                const struct train_identity *identity, const struct plan *plan, int64_t file_bytes,
                struct err *err);

/* Once the folder is there. */
int encode_open(struct encode *p, const char *dir, uint64_t plan_hash, struct err *err);

/* The other members: in turn i + 1 this rank sends to to[i] and receives from from[i]. Returns how
 * many turns a chunk has. */
int encode_peers(const struct encode *p, int to[PARITY_MEMBERS_MAX], int from[PARITY_MEMBERS_MAX]);

/* Every rank's file of a step is durable: its turn. own must not save again until encode_run is
 * over. No network. */
int encode_begin(struct encode *p, struct ckpt *own, const struct ckpt_position *position,
                 struct err *err);

/* After that, in the thread: all of it, up to what the writer has still to write. All members
 * call. */
int encode_run(struct encode *p, struct background *b, struct err *err);

void encode_close(struct encode *p);

#endif
