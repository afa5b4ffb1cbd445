/* gtrain.h - libgtrain: launch, train and checkpoint from a program of your own.
 *
 *   cc prog.c $(pkg-config --cflags --libs gtrain)
 *
 * Two ways to use it. A program that trains what a plan describes calls gtrain_train(). A program
 * with a training loop of its own asks who it is (gtrain_open, gtrain_rank, ...), swaps addresses
 * or seeds with the other ranks (gtrain_exchange), tells how far it is (gtrain_progress), looks
 * whether it should stop (gtrain_stop_asked) and ends with gtrain_done(). It may write its
 * checkpoints with ckpt_* (ckpt.h).
 *
 * The same program runs under `srun --gtrain-plan`, under PMIx (srun --mpi=pmix, mpirun), and
 * alone as one rank.
 *
 * Nothing here prints or exits. Functions that can fail return -1 (or NULL) and put one line of
 * text into `error`, cut to error_bytes; error may be NULL. A handle is used by one thread. */
#ifndef GTRAIN_H
#define GTRAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- who am I ---- */

struct gtrain;

/* Find out how this process was launched. Blocks for 60 s at most. Close with gtrain_close. */
struct gtrain *gtrain_open(char *error, size_t error_bytes);
void gtrain_close(struct gtrain *g);

int gtrain_rank(const struct gtrain *g);
int gtrain_world(const struct gtrain *g);
int gtrain_local_rank(const struct gtrain *g); /* on this node */
int gtrain_local_world(const struct gtrain *g);
int gtrain_spares(const struct gtrain *g); /* nodes that wait */

/* Launches of the run so far, this one included; and assignments of ranks within this launch. */
uint32_t gtrain_epoch(const struct gtrain *g);
uint32_t gtrain_generation(const struct gtrain *g);

/* Valid until gtrain_close. "" where nobody has said. */
const char *gtrain_node(const struct gtrain *g);
const char *gtrain_run_dir(const struct gtrain *g);
const char *gtrain_restore(const struct gtrain *g);   /* latest | none | STEP | PATH */
const char *gtrain_plan_text(const struct gtrain *g); /* the resolved plan, YAML */

/* ---- a training loop of your own ---- */

/* All ranks give a blob and get everybody's in rank order: all[i] is malloc'ed, of lengths[i]
 * bytes; free each. all and lengths have gtrain_world entries. Once per launch under PMIx, any
 * number of times otherwise. Fails after timeout_ms. */
int gtrain_exchange(struct gtrain *g, const void *mine, size_t bytes, void **all, size_t *lengths,
                    int64_t timeout_ms, char *error, size_t error_bytes);

/* `step` steps are done. Never blocks. */
void gtrain_progress(struct gtrain *g, int64_t step);

/* 1 if the launcher asks for an orderly stop (write a checkpoint, gtrain_done, exit 0). Never
 * blocks. */
int gtrain_stop_asked(struct gtrain *g);

/* This rank's work is done: its exit is not a failure. A rank that exits without it is one. */
int gtrain_done(struct gtrain *g, char *error, size_t error_bytes);

/* ---- a plan ---- */

struct gtrain_plan;

/* Read, check and resolve "FILE[,section.key=value...]". NULL: error says what is wrong, where, and
 * what would be right. Free with gtrain_plan_free. */
struct gtrain_plan *gtrain_plan_load(const char *plan, char *error, size_t error_bytes);
void gtrain_plan_free(struct gtrain_plan *plan);

/* Ranks that its degrees multiply to; steps; samples a step; tokens a sample. */
int gtrain_plan_world(const struct gtrain_plan *plan);
int64_t gtrain_plan_steps(const struct gtrain_plan *plan);
int64_t gtrain_plan_global_batch(const struct gtrain_plan *plan);
int64_t gtrain_plan_sequence(const struct gtrain_plan *plan);

/* The resolved plan, as canonical YAML. Valid until gtrain_plan_free. */
const char *gtrain_plan_yaml(const struct gtrain_plan *plan);

/* ---- a plan, trained ---- */

/* What became of gtrain_train. The numbers are also the exit codes of `gtrain train`. */
enum gtrain_end {
    GTRAIN_DONE = 0,
    GTRAIN_FAILED = 1,   /* the machine or a peer: worth another try */
    GTRAIN_REFUSED = 2,  /* plan, data or checkpoint do not fit: another try will not help */
    GTRAIN_DIVERGED = 3, /* the loss is not a number any more */
    GTRAIN_UNFIT = 4,    /* this node alone cannot go on (a full disk): worth a try on another */
    GTRAIN_BACK = 5, /* what was restored is no good, and is marked: the launcher starts the next
                        generation, which takes an older checkpoint */
};

/* Zero-fill, then set what you want. */
struct gtrain_train_options {
    const char *plan;    /* FILE[,section.key=value...]; NULL: the launcher's */
    const char *dir;     /* run folder; NULL: the launcher's or the plan's */
    const char *restore; /* latest | none | STEP | PATH; NULL: the launcher's, or latest */
    int local;           /* not 0: all ranks of the plan as threads of this process */
    int threads;         /* of each rank; 0: the plan's, or cores / ranks */
    int out_fd;          /* where rank 0 shows its progress; -1: nowhere */
    int columns;         /* of the terminal behind out_fd, for a line that is redrawn in place; -1:
                          * plain lines; 0: as out_fd itself says */
    /* May be NULL. Asked once a step: not 0 ends the run in order, with a checkpoint. */
    int (*stop_asked)(void *arg);
    /* May be NULL. On rank 0 after each step: completed steps and the mean loss, nats a token. */
    void (*step)(void *arg, int64_t step, double loss);
    void *arg;
};

/* Train. All ranks call. g: from gtrain_open, or NULL: found out and closed inside. A run that was
 * asked to stop is GTRAIN_DONE. *speak, where not NULL: 1 if this process is the one to tell people
 * the error (all ranks get one, often the same). */
enum gtrain_end gtrain_train(struct gtrain *g, const struct gtrain_train_options *options,
                             int *speak, char *error, size_t error_bytes);

/* "0.1.0". */
const char *gtrain_version(void);

#ifdef __cplusplus
}
#endif

#endif
