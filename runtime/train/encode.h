/* encode.h - ranks of a group keep parity of each other's checkpoint files (ckpt/parity.h).
 *
 * Once the tally has told that every rank's file of a step is durable, all ranks begin, at the same
 * step, without asking anybody. Between two steps each then sends the others of its group chunks of
 * its file, as many as all of them do, and gets theirs: in turn x a member sends to the one x
 * before it and receives from the one x behind it, so that each is busy with one at a time and
 * nobody waits in a circle. What comes is added to the sums of the parities this rank keeps. Before
 * the next save begins, the parities of the one before are complete. Every message says whose it
 * is, of which epoch, generation, step and chunk, with a checksum, and is refused if that is not
 * what is expected. */
#ifndef GTRAIN_ENCODE_H
#define GTRAIN_ENCODE_H

#include "ckpt.h"
#include "comm/mesh.h"
#include "parity.h"
#include "plan/plan.h"
#include "train/identity.h"
#include "train/encode_group.h"

struct encode {
    struct comm *comm; /* NULL: the plan asks for none */
    const struct train_identity *identity;
    int members, keeps, member;
    int group;                         /* its name in the record */
    int ranks[PARITY_MEMBERS_MAX];     /* of the members */
    int64_t bytes[PARITY_MEMBERS_MAX]; /* of their files */
    int64_t file_bytes;                /* of this rank's parities */
    struct ckpt_parity *writer;
    unsigned char *out, *in; /* a message each: head, then chunks */

    /* The step under way. */
    struct parity_source *source; /* this rank's file; NULL: none is */
    struct ckpt_position position;
    int64_t chunk;
    int turn;     /* 1 to members - 1 */
    int64_t done; /* newest step of which all is with the writer, -1: none */
};

/* Who is in a group with whom: all ranks call, with the bytes of their files. A failure that does
 * not come from the network is the same on all: there are too few nodes. Where the run was placed
 * anew after a loss, one group of those that are left will do. */
int encode_find(struct encode *p, struct comm *comm, const struct mesh *mesh,
                const struct train_identity *identity, const struct plan *plan, int64_t file_bytes,
                struct err *err);

/* Once the folder is there. */
int encode_open(struct encode *p, const char *dir, uint64_t plan_hash, struct err *err);

/* Every rank's file of a step is durable, and this is the newest such: its turn. All ranks call
 * with the same. Does nothing where it is known. */
int encode_begin(struct encode *p, struct ckpt *own, const struct ckpt_position *position,
                 struct err *err);

/* Between two steps: so many messages that the file is over well before the next is due, `every`
 * steps (0: not known) after it. All ranks call, with the same. */
int encode_turn(struct encode *p, int64_t every, struct err *err);

/* All ranks call: what is under way to its end. */
int encode_settle(struct encode *p, struct err *err);

void encode_close(struct encode *p);

#endif
