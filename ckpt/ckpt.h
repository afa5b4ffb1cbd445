/* ckpt.h - checkpoints: copy the state aside, write it behind the training, commit, restore.
 *
 * A checkpoint of one rank is one safetensors file in a new inode; it counts only when a record
 * that says "all ranks' files of this step are complete and durable" stands in a commit log. The
 * order is
 *
 *   ckpt_save_begin the writer thread begins to copy the state
 *   (caller)        does what leaves the state as it is: a training step's forward and backward
 *   ckpt_save_join  the copy is over (the only part that stalls); the writer thread goes on alone:
 *                   temporary name -> all writes complete, lengths checked -> fsync -> rename ->
 *                   fsync of the folder  => ckpt_finished() tells the step
 *   (caller)        learns that every rank has finished the step (one number in a reduction it
 *                   makes anyway)
 *   ckpt_commit     appends the record to the log, fsync; then, and only then, drops older ones
 *
 * so a cut at any byte leaves the previous committed checkpoint whole. This library knows neither
 * training nor the network: the caller carries small blobs (ckpt_scan -> ckpt_decide) between
 * nodes.
 *
 * Not thread-safe except where said; one struct ckpt per rank. Every function returns 0, or -1 with
 * err set. */
#ifndef GTRAIN_CKPT_H
#define GTRAIN_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt;

/* The clock of every deadline here: milliseconds of CLOCK_MONOTONIC. A deadline is a point of it.
 */
int64_t ckpt_clock_ms(void);

/* The names are those of the safetensors format; the engine moves bytes and converts nothing. */
enum ckpt_dtype {
    CKPT_F64,
    CKPT_F32,
    CKPT_BF16,
    CKPT_I64,
    CKPT_F16,
    CKPT_I32,
    CKPT_I16,
    CKPT_I8,
    CKPT_U64,
    CKPT_U32,
    CKPT_U16,
    CKPT_U8,
    CKPT_BOOL,
    CKPT_F8_E4M3,
    CKPT_F8_E5M2,
};
enum { CKPT_MAX_DIMS = 4 };

/* A tensor as this rank holds it: the slice [offset, offset + shape) of the global tensor `name`.
 * In a rank's file its key is `name` where the slice is the whole, `name@o0,o1` otherwise. */
struct ckpt_tensor {
    const char *name;
    enum ckpt_dtype dtype;
    int dims;
    int64_t global[CKPT_MAX_DIMS], offset[CKPT_MAX_DIMS], shape[CKPT_MAX_DIMS];
};

/* Bring bytes of tensor number `index` (as registered) out of, or into, the caller's memory. The
 * slice is row-major; copy_out takes all of it, copy_in the bytes [at, at + bytes), cut between two
 * elements, all of them in one call or several. Either may return before the bytes have moved if
 * flush, called after the last and before host is used otherwise, waits for them. copy_out and then
 * flush are called in the writer's thread, copy_out also in ckpt_save_join, then for several
 * tensors at once; ckpt_save calls flush too. copy_in and its flush are called in ckpt_restore,
 * ckpt_restore_from and ckpt_fill_*, in the caller's thread. */
struct ckpt_io {
    int (*copy_out)(void *arg, int index, void *host, struct err *err);
    int (*copy_in)(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err);
    int (*flush)(void *arg, struct err *err); /* may be NULL */
    void *arg;
};

struct ckpt_options {
    const char *dir;    /* the run's checkpoint folder on this node (made if missing) */
    const char *node;   /* this node's name: whose log, and what the record says */
    const char *run_id; /* [0-9a-z-]{1,64}: files of another run are never touched */
    int rank, world;
    uint32_t epoch, generation; /* higher than any that wrote here: see ckpt_decision.epoch */
    uint64_t plan_hash;
    int keep;             /* committed checkpoints kept, >= 2 */
    int ahead;            /* finished ones that may wait for their commit when a save begins */
    int queue_depth;      /* 0: default */
    int64_t block_bytes;  /* 0: default; multiple of 4096 */
    bool no_uring;        /* use pwrite threads; also taken when io_uring is refused */
    bool replicated;      /* ranks with the same slices hold the same bytes: data parallel */
    bool holds;           /* ckpt_hold will be used: space for one file more */
    bool wards;           /* this rank keeps copies of another's files, too (copy.h): */
    int ward;             /* of this one; retention drops them as its own */
    int64_t ward_bytes;   /* of one of those; 0: about as many as this rank's */
    int64_t parity_bytes; /* beside each file this rank keeps one of so many (parity.h) */
    bool leader;          /* this rank keeps the node's commit log (one rank per node and folder) */
};

/* Where the training stands: written into every file and into the record. */
struct ckpt_position {
    int64_t step;    /* completed steps */
    int64_t samples; /* consumed */
};

/* Open: makes the folder, checks that it is a folder of ours, writable, and has room for
 * `keep + ahead + 1` states (reserved with fallocate one ahead), removes half-made files of dead
 * writers of this rank and run with a lower (epoch, generation). Fails where this or a higher
 * (epoch, generation) has been at work: a successor must be newer. tensors and io are copied (names
 * too). */
int ckpt_open(struct ckpt **out, const struct ckpt_options *options,
              const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
              struct err *err);

/* The copy that a save makes needs memory, as much as the state. ckpt_open gives it a place, but
 * takes none: a restore has it for itself. ckpt_buffer_take takes it, best after the restore: the
 * first save does otherwise, and is held for it. ckpt_buffer_bytes: how much, once it is taken. */
int64_t ckpt_buffer_bytes(const struct ckpt *c);
int ckpt_buffer_take(struct ckpt *c, struct err *err);

/* Before the first save: what this writer's files will yet take in the folder, beside the one that
 * is reserved: all, in the end; and before its first commit. Then of the folder, the same for all
 * who write there: what files of earlier starts take, which all go in exchange; those of them that
 * may go before the first commit; and what is free.
 *
 * ckpt_open looks at its own files alone. Where several ranks have one file system, and all are
 * open, the sum of `all` must fit into available + there, that of `first` into available + loose.
 * If the latter is more than what is available alone, all of them must call ckpt_tighten before any
 * saves: it drops what is loose. One that is alone there need not: its first save does. */
struct ckpt_space {
    int64_t all, first;
    int64_t there, loose, available;
};
int ckpt_space(struct ckpt *c, struct ckpt_space *out, struct err *err);
int ckpt_tighten(struct ckpt *c, int64_t deadline_ms, struct err *err);

/* Begin to copy the state, as it is now, in the writer's thread; if the write before is still
 * going, once that is over. The state must stay as it is until the join. Does not wait. step must
 * be above that of the save before. */
int ckpt_save_begin(struct ckpt *c, const struct ckpt_position *position, struct err *err);

/* Wait, ten minutes at most, until copy_out has returned for every tensor, and help with it. Then
 * the state may change, where copy_out returns before the bytes have moved after those: order that
 * as copy_out's side can (an event), or flush. The write goes on by itself. *stall_ns, where not
 * NULL: how long the caller was held, here and by the begin. Nothing was begun: 0. */
int ckpt_save_join(struct ckpt *c, int64_t *stall_ns, struct err *err);

/* Both, and flush: the state may change when it returns. */
int ckpt_save(struct ckpt *c, const struct ckpt_position *position, int64_t *stall_ns,
              struct err *err);

/* The newest step whose file is complete and durable here, -1 if none. A failed write is an error,
 * here, once: the training decides whether to go on. Never blocks. */
int ckpt_finished(struct ckpt *c, int64_t *step, struct err *err);

/* How long the newest finished file took, from the end of the copy until it was durable; 0: none
 * is.
 */
int64_t ckpt_write_ns(struct ckpt *c);

/* Wait for the writer to be idle: nothing to copy, nothing to write, nothing to drop. deadline_ms:
 * a ckpt_clock_ms() point. */
int ckpt_wait(struct ckpt *c, int64_t deadline_ms, struct err *err);

/* All ranks have finished `step`: append the record (leader), then drop, in the writer's thread,
 * what retention allows (every rank its own files; the leader also those of older generations whose
 * rank now runs elsewhere). `record` text comes from ckpt_record(); NULL will do where this rank is
 * not the leader. Every rank must have returned from it before any rank can learn that all have
 * finished the next step: that makes two kept checkpoints enough. */
int ckpt_commit(struct ckpt *c, int64_t step, const char *record, struct err *err);

/* The record's line for a step, from what each rank says of its file: ranks[i] from ckpt_claim() of
 * rank i. malloc'ed. Pure. */
char *ckpt_record(const char *const *claims, int world, struct err *err);

/* This rank's claim for a finished step: node, path relative to dir, bytes, digest, position. One
 * line, malloc'ed. */
char *ckpt_claim(struct ckpt *c, int64_t step, struct err *err);

/* Where this rank's file of a finished step is, to be copied elsewhere; what it holds is malloc'ed
 * (node, path). */
struct ckpt_place;
int ckpt_own_file(struct ckpt *c, int64_t step, struct ckpt_place *out, struct err *err);

/* The run goes on from this committed record (ckpt_decision.record): all ranks call it after
 * ckpt_open. The leader's log gets it where it lacks it, and retention spares its files until
 * `keep` commits of our own stand. */
int ckpt_adopt(struct ckpt *c, const char *record, struct err *err);

/* Keep this writer's file of a finished step, whatever retention says, until another is held or
 * (-1) none: it is being copied elsewhere. ckpt_options.holds makes room for it. */
void ckpt_hold(struct ckpt *c, int64_t step);

/* ---- restore ---- */

/* What a node's folder holds: records in its log that check, files that exist with the right
 * length. A text blob, malloc'ed; an absent folder gives an empty one. */
char *ckpt_scan(const char *dir, const char *node, const char *run_id, struct err *err);

/* A checkpoint that is whole, but from which a run went on to a step that was not finite. */
struct ckpt_mark {
    uint32_t epoch, generation; /* that wrote it */
    int64_t step, nan_step;     /* of it; that was not finite */
};

/* Steps after a restore within which the checkpoint may be to blame for one that is not finite; so
 * long what would be restored in its place is kept, too, where there is space (retain.h). */
enum { CKPT_TRIAL_STEPS = 10 };

/* Say so, durably, in the folder's log (bad), or take it back. epoch, generation: of who says so;
 * what a later one says holds. Every node's folder, and the shared one, should hear it. */
int ckpt_mark_write(const char *dir, const char *node, const char *run_id,
                    const struct ckpt_mark *marks, int n, bool bad, uint32_t epoch,
                    uint32_t generation, struct err *err);

/* From everyone's blobs, the newest committed step that is whole and not marked bad, not newer than
 * max_step (-1: any), and where each rank's file lies: a replica's, where its own is gone. Pure:
 * all ranks get the same answer. */
struct ckpt_decision {
    bool found;
    int passed_over; /* newer committed ones that are not whole */
    struct ckpt_position position;
    uint32_t epoch;                             /* the newest epoch seen anywhere, found or not */
    uint32_t written_epoch, written_generation; /* whose record it is */
    int world;                                  /* that wrote it */
    uint64_t plan_hash;
    struct ckpt_place {
        char *node;
        char *path; /* absolute on that node */
        int64_t bytes;
        uint32_t digest;
        bool replica;     /* it is not the rank's own file, but one with the same slices */
        int holder, slot; /* holder - 1 is the rank that has it in a slot of its memory, and path
                             is only its name; 0: it is a file */
    } * places;           /* world; freed by ckpt_decision_free */
    bool memory;          /* from ckpt_memory_decide: record is NULL */
    char *note;           /* then what came with rank 0's state, "": nothing */
    /* Files that lie nowhere and can be rebuilt: 0 but from ckpt_decide_rebuilt (parity.h). Their
     * places have no node and no path. */
    int lost;
    struct ckpt_place *parities; /* world: of each rank, no node where there is none */
    char *record;                /* the committed record, for ckpt_adopt */
    bool marked;                 /* it is marked bad (ckpt_decide_named) */
    bool older; /* there is another, of an earlier step, that is whole and not marked */
    struct ckpt_mark *marks; /* all that hold, of whatever checkpoints */
    int n_marks;
    char *report; /* what was newer and why it was passed over; for the log. May be "" */
};
int ckpt_decide(const char *const *blobs, int n, int64_t max_step, struct ckpt_decision *out,
                struct err *err);
/* The same for who names that step: of it a mark does not count. */
int ckpt_decide_named(const char *const *blobs, int n, int64_t step, struct ckpt_decision *out,
                      struct err *err);
void ckpt_decision_free(struct ckpt_decision *d);

/* A rank's file, checked: header, bounds, every CRC before a byte is used. */
struct ckpt_file;
int ckpt_file_open(struct ckpt_file **out, const char *path, struct err *err);
int ckpt_file_open_memory(struct ckpt_file **out, const void *data, size_t bytes, struct err *err);
int ckpt_file_count(const struct ckpt_file *f);
/* Tensor i without pad tensors; name and shapes valid until close. */
int ckpt_file_tensor(const struct ckpt_file *f, int i, struct ckpt_tensor *out);
/* Read and check its bytes into host (product of shape * dtype bytes). */
int ckpt_file_read(struct ckpt_file *f, int i, void *host, struct err *err);
/* Read all and check every CRC. */
int ckpt_file_verify(struct ckpt_file *f, struct err *err);
/* What ckpt_place.digest must be: it stands for every byte of the file. */
uint32_t ckpt_file_digest(const struct ckpt_file *f);
int ckpt_file_position(const struct ckpt_file *f, struct ckpt_position *out, uint64_t *plan_hash);
void ckpt_file_close(struct ckpt_file *f);

/* Fill this rank's tensors (same layout as written) from its file through io.copy_in. Each byte is
 * handed over after its CRC was checked, while later ones are still being read: after a failure the
 * tensors hold parts of it and of what was there before, and must not be used. */
int ckpt_restore(struct ckpt *c, struct ckpt_file *file, struct ckpt_position *position,
                 struct err *err);

/* The same from all files of a decision, which must all be seen here, whatever layout wrote them:
 * this rank's slices are put together from where they lie, by their tensors' names. A tensor of
 * which the files do not hold every element is an error. After a failure the tensors must not be
 * used. */
int ckpt_restore_from(struct ckpt *c, const struct ckpt_decision *decision, struct err *err);

/* ---- restore into another layout, piece by piece ---- */

/* What a rank's file holds, as text that travels: a line a tensor, in the order given (or the
 * file's), "NAME DTYPE GLOBAL OFFSET SHAPE", the last three as "1,2" ("-": a scalar). Files cut
 * alike have the same text. malloc'ed. Pure. */
char *ckpt_table(const struct ckpt_tensor *tensors, int n, struct err *err);
char *ckpt_file_table(const struct ckpt_file *f, struct err *err);
/* A table's hash: tables are told apart by it, never trusted. Not 0. Pure. */
uint64_t ckpt_cut(const char *table);

/* A box of a tensor, in the global tensor's coordinates, that is in a file and is wanted. */
struct ckpt_piece {
    int source, from; /* index of the table; the tensor's in it */
    int to;           /* of the wanted tensor */
    int window;       /* in which it is put in place (ckpt_fill_order); 0 before */
    int64_t offset[CKPT_MAX_DIMS], shape[CKPT_MAX_DIMS];
};

/* The pieces that make up the wanted slices, in the order of those. Where several tables have an
 * element the first does: give near ones first, and to each replica another order. A hole, or a
 * tensor of another shape or dtype, is an error. *pieces is malloc'ed. Pure. */
int ckpt_pieces(const struct ckpt_tensor *wanted, int n, const char *const *tables, int n_tables,
                struct ckpt_piece **pieces, int *n_pieces, struct err *err);

/* Bytes of a box of that dtype. */
int64_t ckpt_piece_bytes(const struct ckpt_piece *piece, const struct ckpt_tensor *tensor);

/* A piece out of a file (tensor piece->from), row-major, in portions, each checked by its CRC
 * before take gets it. What take returns, if not 0, ends it. Reads the blocks of 1 MiB that hold
 * the piece, no others. */
int ckpt_file_read_piece(struct ckpt_file *f, const struct ckpt_piece *piece,
                         int (*take)(void *arg, const void *p, size_t n, struct err *err),
                         void *arg, struct err *err);

/* Fill this rank's tensors piece by piece, through a buffer of a sixteenth of the state, 16 MiB at
 * most: in it a window of the state is put together, whole rows of a tensor or several whole
 * tensors, and handed over through io.copy_in before the next. So a window's pieces must come
 * together, whatever files they are in. ckpt_fill_order cuts what ckpt_pieces gives where windows
 * end and sorts it: by window, then source, tensor there and place. *pieces is freed and replaced.
 *
 * begin waits for the writer; then for each piece ckpt_fill_piece, and its bytes, row-major, in
 * portions; end hands the last window over. Within a window any order will do. A tensor that gets
 * no piece, and every element without, is zero. After a failure the tensors hold parts of what came
 * and of what was there before. */
int ckpt_fill_order(struct ckpt *c, struct ckpt_piece **pieces, int *n, struct err *err);
int ckpt_fill_begin(struct ckpt *c, struct err *err);
int ckpt_fill_piece(struct ckpt *c, const struct ckpt_piece *piece, struct err *err);
int ckpt_fill_put(struct ckpt *c, const void *p, size_t n, struct err *err);
int ckpt_fill_end(struct ckpt *c, struct err *err);

/* Waits for the writer up to the deadline (a ckpt_clock_ms() point; 0: not at all), then cancels
 * it; an unfinished file is unlinked. A writer that the kernel does not let go is left behind, with
 * its memory, after another few seconds. */
void ckpt_close(struct ckpt *c, int64_t deadline_ms);

#ifdef __cplusplus
}
#endif

#endif
