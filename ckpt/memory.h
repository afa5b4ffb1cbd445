/* memory.h - snapshots: a rank's state in memory that somebody else holds, so that it is there
 * still when the process is not.
 *
 * The memory is a few memfds (of gtrain-agent, or a test's). Each is a slot:
 *
 *   4096 bytes  what is in it: a word that says whether it is whole, then a claim (record.h)
 *   the rest    the image: byte for byte the file that a checkpoint of this state would be
 *
 * so whatever reads checkpoint files reads a slot, and checks the same CRC32Cs before it uses a
 * byte. The first half of the slots is for the rank's own state, the other half for another rank's,
 * its ward's, that comes in messages.
 *
 * The invariant: the word is cleared before the first byte of an image changes, and set after its
 * last byte and all checksums are there. A process killed in between leaves a slot that is not
 * whole. slots.h says which slot is filled next.
 *
 * Not thread-safe, but for ckpt_memory_copy of different pieces; one struct a rank. Functions
 * return 0, or -1 with err set. */
#ifndef GTRAIN_CKPT_MEMORY_H
#define GTRAIN_CKPT_MEMORY_H

#include "ckpt.h"
#include "names.h"

enum {
    CKPT_MEMORY_SLOTS = 4,
    CKPT_MEMORY_HEAD_BYTES = 4096,
    CKPT_MEMORY_NOTE = 120, /* bytes, with the NUL */
};

struct ckpt_memory;

struct ckpt_memory_options {
    const int *fds; /* CKPT_MEMORY_SLOTS of them, which stay the caller's */
    const char *node, *run_id;
    int rank, world;
    uint32_t epoch, generation;
    uint64_t plan_hash;
    /* Where tensor `index` stands, asked at each begin with the io's arg: host memory that keeps
     * its bytes until flush has returned. Where all tensors do, nothing is asked of copy_out; NULL,
     * the function or what it says: they are copied out. */
    const void *(*where)(void *arg, int index);
    int parts; /* ranks that are the same number modulo this hold the same bytes: replicas; 0: none
                */
};

/* Looks at what the slots hold; touches nothing. */
int ckpt_memory_open(struct ckpt_memory **out, const struct ckpt_memory_options *options,
                     const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                     struct err *err);
void ckpt_memory_close(struct ckpt_memory *m);

/* Bytes of this rank's image. */
int64_t ckpt_memory_bytes(const struct ckpt_memory *m);

/* Memory for both own slots and, where ward_bytes (of the ward's image) is not 0, for both of the
 * ward's: how much of it is not there yet, and taking it. */
int64_t ckpt_memory_lacks(const struct ckpt_memory *m, int64_t ward_bytes);
int ckpt_memory_take(struct ckpt_memory *m, int64_t ward_bytes, struct err *err);

/* The state that must be spared from now on, until another one is named. keep: the run was restored
 * from it. confirm: every rank and every partner has it; what this one holds of it for ranks that
 * it has nothing to do with any more (ward: whose it keeps, -1: nobody's) counts no more. */
void ckpt_memory_keep(struct ckpt_memory *m, const struct ckpt_key *key);
void ckpt_memory_confirm(struct ckpt_memory *m, const struct ckpt_key *key, int ward);

/* ---- the rank's own state: begin, copy every piece, seal ---- */

/* The state of that key, after so many samples. */
int ckpt_memory_begin(struct ckpt_memory *m, const struct ckpt_key *key, int64_t samples,
                      struct err *err);
/* Pieces of the state begun: tensors, or blocks of the image. */
int ckpt_memory_count(const struct ckpt_memory *m);
int ckpt_memory_copy(struct ckpt_memory *m, int piece, struct err *err);
/* All copies are begun: flush, then ckpt_memory_seal: checksums, header, and the slot counts. note:
 * what the caller wants to know with the state, of [0-9a-z:,-], or ""; it is in what
 * ckpt_memory_decide finds (rank 0's). */
int ckpt_memory_flush(struct ckpt_memory *m, struct err *err);
int ckpt_memory_seal(struct ckpt_memory *m, const char *note, struct err *err);

/* What was sealed last, or found: what it is, and its bytes. It travels as it is. */
struct ckpt_memory_head {
    int32_t rank, world;
    uint32_t epoch, generation;
    int64_t step, samples, bytes;
    uint64_t plan_hash;
    uint32_t digest, unused;
    char note[CKPT_MEMORY_NOTE];
};
const void *ckpt_memory_image(const struct ckpt_memory *m, struct ckpt_memory_head *head);

/* That state is there already, whole, from before: then nothing is to be filled. */
bool ckpt_memory_find(struct ckpt_memory *m, const struct ckpt_key *key);
bool ckpt_memory_find_ward(const struct ckpt_memory *m, const struct ckpt_key *key, int ward);

/* ---- the ward's ---- */

/* The head must name that rank and that state, of this plan and world, and a length that there is
 * room for. Then its bytes in order, where next says: the following n bytes of the slot, which
 * counts for nothing until end has checked every checksum. NULL: the head says there are fewer. */
int ckpt_memory_ward_begin(struct ckpt_memory *m, const struct ckpt_memory_head *head, int ward,
                           const struct ckpt_key *key, struct err *err);
void *ckpt_memory_ward_next(struct ckpt_memory *m, int64_t n, struct err *err);
int ckpt_memory_ward_end(struct ckpt_memory *m, struct err *err);

/* ---- restore ---- */

/* What whole slots of this run and epoch hold: a line "SLOT CLAIM" each. malloc'ed. */
char *ckpt_memory_scan(const struct ckpt_memory *m, struct err *err);

/* From all ranks' scans (scans[i] is rank i's), the newest state of which every rank's image is
 * somewhere, or that of a replica of it; a rank's own slot comes before its partner's. out->memory
 * is set, places say which rank has what. Pure. */
int ckpt_memory_decide(const char *const *scans, int n, struct ckpt_decision *out, struct err *err);

/* The image in a slot, to be read like any file, as long as m is open. */
int ckpt_memory_file(const struct ckpt_memory *m, int slot, struct ckpt_file **out,
                     struct err *err);

/* Check every byte of every whole slot; those that are damaged count no more. */
void ckpt_memory_verify(struct ckpt_memory *m);

/* Only to fill tensors, with ckpt_fill or ckpt_restore from memory: it has no folder and saves
 * nothing. */
int ckpt_open_filler(struct ckpt **out, const struct ckpt_tensor *tensors, int n_tensors,
                     const struct ckpt_io *io, struct err *err);

/* The run goes on from a state in memory, of that step, and what was adopted is what it would go
 * back to: it is kept, with those before it, until this state has proved good, too. */
void ckpt_try(struct ckpt *c, int64_t step);

/* No slot counts any more: what is in them leads nowhere. */
void ckpt_memory_forget(struct ckpt_memory *m);

#endif
