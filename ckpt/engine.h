/* engine.h - struct ckpt, shared by the files that make up the engine: ckpt.c (what the caller's
 * thread does), save.c (what both do), image.c, open.c, writer.c (what the writer's thread does),
 * restore.c.
 */
#ifndef GTRAIN_CKPT_ENGINE_H
#define GTRAIN_CKPT_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "blockio.h"
#include "image.h"
#include "layout.h"
#include "retain.h"
#include "runs.h"
#include "sys.h"
#include "windows.h"

enum {
    /* How long a save waits for the write before it, a restore for the writer: a drive that needs
     * longer is broken. */
    ENGINE_WAIT_MS = 600000,
    /* After a cancel, how long close waits for transfers that are in the kernel. */
    ENGINE_CANCEL_MS = 5000,
    /* Finished files remembered for ckpt_claim; commits come long before this many saves pass. */
    ENGINE_DONE_KEPT = 8,
};

/* A file that is complete and durable. */
struct done_file {
    struct ckpt_position position;
    uint32_t digest;
    int64_t write_ns; /* from the buffer being full to here */
};

struct ckpt {
    /* Set by open, then only read. */
    char *dir, *node;
    char run[CKPT_RUN_MAX + 1];
    int rank, world, keep, ahead, ward; /* ward: -1 none */
    int held;                           /* held: 1 where ckpt_hold will be used */
    int64_t ward_bytes;                 /* of each of its files, 0: none */
    int64_t parity_bytes;               /* beside each file, in one of its own */
    bool filler;                        /* no folder, no thread: ckpt_open_filler */
    uint32_t epoch, generation;
    uint64_t plan_hash;
    uint64_t cut; /* as in a record; 0 where not replicated */
    bool leader;
    struct ckpt_io io;
    struct layout layout;
    const struct ckpt_hook *hook;
    int dirfd;
    char log_name[CKPT_NAME_ROOM];
    bool thin;             /* thin.h: the buffer is for some tensors at a time */
    unsigned char *buffer; /* the next file: header room, then the data; not of a filler */
    int64_t buffer_bytes;
    uint32_t *crcs;
    struct blockio *bio;

    /* The caller's thread. */
    int64_t last_step; /* of the save before */
    bool begun;        /* a save, not joined yet */
    int64_t begin_ns;  /* how long the caller was held by it */

    bool taken; /* the buffer's memory is */

    /* Between ckpt_fill_begin and end: the window that is filled, and the piece that is put. */
    struct windows windows; /* of the tensors; from the first use on */
    unsigned char *stage;   /* one of them; NULL: not begun */
    int window, part;       /* it, and its first part */
    struct runs runs;
    const struct window_part *into; /* the part it belongs to; NULL: no piece */
    int64_t run_at, run_left;       /* of the run begun */

    /* Between caller and writer, under lock. While write_wanted, the buffer is the writer's. */
    pthread_mutex_t lock;
    pthread_cond_t to_writer, from_writer;
    pthread_t thread;
    bool write_wanted, tidy_wanted, tidying, flushing, stop, exited;
    struct ckpt_position position; /* of the wanted write */
    bool no_file;                  /* its copy failed: it is flushed, not written */
    bool copy_wanted;              /* once the buffer is nobody's */
    int copy_next, copying;        /* tensor to be taken next; how many are under way */
    bool copy_failed;
    struct err copy_failure;
    struct ckpt_position next; /* of the wanted copy */
    struct done_file done[ENGINE_DONE_KEPT];
    int64_t n_done; /* ever; done[i % KEPT] */
    struct commits commits;
    bool failed;
    struct err failure;
    atomic_bool cancel;
    bool (*show)(void *arg, const struct ckpt_image *image); /* NULL: to nobody */
    void *show_arg;
    bool shown; /* the buffer is read by who it was shown to */

    /* The writer's (and open's): the next file, empty, its space reserved. */
    int reserve_fd; /* -1: none */
};

/* ckpt_open with a hook in front of the system calls. */
int ckpt_open_hooked(struct ckpt **out, const struct ckpt_options *options,
                     const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                     const struct ckpt_hook *hook, struct err *err);

int64_t engine_file_bytes(const struct ckpt *c);
/* The bytes of the tensors. */
int64_t engine_state_bytes(const struct ckpt *c);
/* The caller's copy_in and flush. */
int engine_copy_in(const struct ckpt *c, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err);
int engine_flush(const struct ckpt *c, struct err *err);
/* Name of this rank's file of a step (-1: its reserve). */
void engine_name(const struct ckpt *c, enum name_kind kind, int64_t step, char out[CKPT_NAME_ROOM]);
/* The (epoch, generation) is lower than, the same as, higher than this writer's: -1, 0, 1. */
int engine_compare(const struct ckpt *c, const struct ckpt_key *key);
/* Lines a log keeps when it is shortened. */
int engine_log_lines(const struct ckpt *c);

/* With the lock held: is there a tensor to copy and room for it; copy those that nobody has taken
 * (the lock is let go meanwhile), and if they were the last let the writer have the buffer. */
bool save_can_copy(const struct ckpt *c);
void save_copy(struct ckpt *c);

/* The data of the next file are complete (image.h). In the writer's thread, with the lock held. */
void image_show(struct ckpt *c);

/* What the folder has, and what this writer needs there; with the lock held, or before there is a
 * thread. */
int space_look(const struct ckpt *c, const struct folder_list *list, struct ckpt_space *out,
               struct err *err);

/* Does retention let go of the entry, which is no log, whosever it is? */
bool writer_may_drop(const struct ckpt *c, const struct commits *commits,
                     const struct ckpt_name *name);
/* Is it this writer's to drop? */
bool writer_owns(const struct ckpt *c, const struct ckpt_name *name);
/* Makes the reserve file where there is none. */
int writer_reserve(struct ckpt *c, struct err *err);
void *writer_main(void *ckpt);
/* Frees everything; the thread must be gone. */
void engine_free(struct ckpt *c);

#endif
