/* drain.h - the shared tier: committed files copied, behind the training, to a folder that all
 * nodes see.
 *
 * Each rank copies its own file of one checkpoint; nothing here knows whether the others are done.
 * The order is
 *
 *   ckpt_drain_start    all ranks, with the same committed record: the thread reads the local file,
 *                       checking every CRC, and writes it under a temporary name -> length checked
 *                       -> fsync -> rename -> fsync of the folder  => ckpt_drain_poll() tells
 *   (caller)            learns that every rank has its copy, in a reduction it makes anyway
 *   ckpt_drain_commit   leader: the record, with CKPT_SHARED_NODE for every node, goes to the
 *                       folder's log, by the thread; what retention allows is dropped after it
 *
 * The folder is usually on a network file system, where one node sees late what another did, and
 * where a call may take minutes. So nobody waits for a call but the thread; a reader goes by the
 * record and checks lengths and CRCs; names are never taken as a sign that something is complete;
 * one rank alone, the leader, makes the folder, lists it and drops from it.
 *
 * Not thread-safe; one a rank. Functions return 0, or -1 with err set. */
#ifndef GTRAIN_CKPT_DRAIN_H
#define GTRAIN_CKPT_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* What records and scans call the shared folder; no node may have this name. */
#define CKPT_SHARED_NODE "shared"

/* For the leader, before anybody opens: makes SHARED and SHARED/RUN where missing. The folder that
 * SHARED is in must be there: a file system that is not mounted is not papered over. Refused: links
 * and other users' folders, folders that cannot be written. */
int ckpt_shared_make(const char *shared, const char *run_id, struct err *err);

/* For the others, once it is made: waits until this node sees the folder too. deadline_ms: a
 * clock_ms() point. */
int ckpt_shared_see(const char *dir, int64_t deadline_ms, struct err *err);

struct ckpt_drain;

struct ckpt_drain_options {
    const char *from; /* ckpt_options.dir */
    const char *to;   /* SHARED/RUN */
    const char *run_id;
    int rank, world;
    uint32_t epoch, generation; /* of this writer, as in ckpt_options */
    int keep;                   /* checkpoints kept there; 0: all */
    int64_t bytes_per_s;        /* 0: unbounded */
    int64_t total_bytes;        /* leader: of one checkpoint of all ranks */
    bool later;                 /* it was there: the thread opens it, and where that cannot be done
                                   copies fail, with the reason, until it can */
    bool leader;                /* one rank of the run */
};

/* Checks the folder (unless `later`) and (leader) its free space; the leader drops half-made copies
 * of lower (epoch, generation). */
int ckpt_drain_open(struct ckpt_drain **out, const struct ckpt_drain_options *options,
                    struct err *err);

/* Start the copy of this rank's file in a record that ckpt_commit has taken. The one before must be
 * over. The file must stay (ckpt_hold) until this one is. */
int ckpt_drain_start(struct ckpt_drain *d, const char *record, struct err *err);

enum ckpt_drain_state { CKPT_DRAIN_IDLE, CKPT_DRAIN_COPYING, CKPT_DRAIN_DONE, CKPT_DRAIN_FAILED };

/* How the copy started last stands. *step (may be NULL): of which checkpoint; *bytes (may be NULL):
 * copied so far; why: filled if it failed. Never blocks. */
enum ckpt_drain_state ckpt_drain_poll(struct ckpt_drain *d, int64_t *step, int64_t *bytes,
                                      struct err *why);

/* Leader: all ranks' copies of the record started last are durable. Handed to the thread. */
int ckpt_drain_commit(struct ckpt_drain *d, struct err *err);

/* The copy started last, over here, failed on another rank and will not be committed: its file
 * goes, by the thread, before anything else is copied. */
void ckpt_drain_abandon(struct ckpt_drain *d);

/* Leader: newest step whose record is in the folder's log by this writer, -1 none. An append that
 * failed is an error, here, once. Never blocks. */
int ckpt_drain_committed(struct ckpt_drain *d, int64_t *step, struct err *err);

/* Leader: the run goes on from this record: retention spares its files until `keep` of our own
 * stand. */
int ckpt_drain_adopt(struct ckpt_drain *d, const char *record, struct err *err);

/* From now on as fast as it goes: somebody waits. */
void ckpt_drain_hurry(struct ckpt_drain *d);

/* Until the thread is idle (true) or the deadline. */
bool ckpt_drain_wait(struct ckpt_drain *d, int64_t deadline_ms);

/* Cancels a copy, whose half is unlinked. A thread that the file system does not let go is left
 * behind after a few seconds. */
void ckpt_drain_close(struct ckpt_drain *d);

#endif
