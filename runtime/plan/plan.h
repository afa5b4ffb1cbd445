/* plan.h - a plan file, checked and resolved: what to train, how, on how many ranks.
 *
 * plan_load is the only way to get one. After it every number has its final value (defaults filled
 * in, "auto" answered), every size divides, and world == product of the degrees. It knows nothing
 * of devices or of the network. */
#ifndef GTRAIN_PLAN_H
#define GTRAIN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum plan_precision { PLAN_F32, PLAN_F64, PLAN_BF16 };
enum plan_lr { PLAN_LR_COSINE, PLAN_LR_WSD, PLAN_LR_CONSTANT };
enum plan_schedule { PLAN_GPIPE, PLAN_1F1B };
enum plan_shard { PLAN_SHARD_NONE, PLAN_SHARD_OPTIMIZER, PLAN_SHARD_GRADIENTS, PLAN_SHARD_WEIGHTS };
enum plan_data_format { PLAN_DATA_TEXT, PLAN_DATA_BIN, PLAN_DATA_MEGATRON };
enum plan_redundancy {
    PLAN_REDUNDANCY_NONE,
    PLAN_REDUNDANCY_PARTNER,
    PLAN_REDUNDANCY_XOR, /* xor:N is rs:(N-1)+1 */
    PLAN_REDUNDANCY_RS
};
/* As wide as is of use: a group's files are all read to rebuild one. */
enum { PLAN_GROUP_MAX = 64, PLAN_PARITIES_MAX = 16 };

/* Llama 3. YAML keys are the field names. */
struct plan_model {
    int64_t layers, hidden, ffn, heads, kv_heads, head_dim,
        vocab;         /* head_dim default hidden/heads */
    bool tied;         /* head = embedding */
    double norm_eps;   /* 1e-5 */
    double init_std;   /* 0.02 */
    double rope_theta; /* 500000 */
    struct {
        bool on;       /* Llama-3 frequency scaling: YAML `rope_scaling: {factor: 8, ...}` */
        double factor; /* 8 */
        double low_freq_factor, high_freq_factor; /* 1, 4 */
        int64_t original_context;                 /* 8192 */
    } rope_scaling;
};

struct plan_data {
    enum plan_data_format format; /* format: text | bin | megatron */
    char **files;                 /* train: PATH or [PATH, ...], absolute after resolution */
    int n_files;
    char **val_files; /* validation: PATH or [PATH, ...]; none: val_fraction of each train file's
                         end */
    int n_val_files;
    double val_fraction; /* 0: no validation */
};

struct plan_training {
    int64_t steps;
    int64_t decay_steps;  /* default steps: where the schedule ends */
    int64_t warmup_steps; /* 0 */
    int64_t global_batch; /* samples a step */
    int64_t microbatch;   /* samples */
    int64_t sequence;     /* tokens a sample */
    uint64_t seed;
    enum plan_precision precision;
    double lr, min_lr;        /* min_lr default lr / 10 */
    enum plan_lr lr_schedule; /* lr_schedule: cosine | wsd | constant */
    int64_t wsd_decay_steps;  /* last steps of wsd that decay; default a tenth of decay_steps */
    double beta1, beta2, eps; /* 0.9, 0.95, 1e-8 */
    double weight_decay;      /* 0.1; matrices only, not norms */
    double clip;              /* 1.0; 0: none */
    int64_t val_every;        /* steps; 0: only at the end */
    int64_t val_batches;      /* global batches of a validation */
    int threads;              /* per rank; 0 = auto: max(1, cores / ranks on the node) */
};

struct plan_parallel {
    int tensor, context, expert, pipeline, virtual_stages, data; /* YAML key `virtual` */
    enum plan_schedule schedule;
    enum plan_shard shard;
    bool uneven; /* replicas may take unequal numbers of microbatches */
};

enum { PLAN_AUTO = -1 }; /* of a key that takes `auto` */

struct plan_checkpoint {
    char *local;                /* node-local folder, may be NULL: no checkpoints there */
    char *shared;               /* folder all nodes see, may be NULL; relative: to the run folder */
    int64_t shared_every;       /* every so many local ones are copied; 0: the last only */
    int shared_keep;            /* copied checkpoints kept; 0: all */
    int64_t shared_bytes_per_s; /* of one rank, while it trains; 0: unbounded */
    int64_t every;              /* steps; 0: never; PLAN_AUTO: from what a checkpoint costs */
    int keep;                   /* committed checkpoints kept, >= 2 */
    int64_t snapshots;          /* steps between copies in the nodes' memory; 0: none; PLAN_AUTO */
    enum plan_redundancy redundancy;
    int group_files, group_parities; /* of xor and rs: P and K, a group is P + K nodes; else 0 */
    int queue_depth;                 /* writes in flight a rank */
    int64_t block_bytes;             /* of one write */
};

struct plan_resilience {
    int spares;                /* nodes */
    int64_t heartbeat_ms;      /* 1000 */
    int64_t patience_ms;       /* 10000 */
    int64_t start_patience_ms; /* 30000: with nodes for all ranks, for those that are missing */
    int64_t comm_timeout_ms;   /* 600000: one wait in a collective */
    int64_t stall_ms;          /* without a step, before it is looked who hangs */
    int restarts;      /* of a crashed worker on a healthy node, before it is called a bug */
    int relaunches;    /* 3: of a step in its allocation, without progress in between */
    int requeues;      /* 10: of a batch job that has run out of nodes */
    bool shrink;       /* fewer replicas where no spare is left: */
    int min_data;      /* 1: so many at least */
    double mtbf_hours; /* between failures of one node */
};

/* Where a checked value stands in the file, for errors found later (a world that does not fit, a
 * file that is too short): plan_where(). */
struct plan_mark;

struct plan {
    char *path;    /* absolute; of a plan that came as text: its name */
    char *source;  /* the file as errors call it: as the caller named it */
    char *name;    /* run.name; default: file name without directory and extension */
    char *run_dir; /* --gtrain-dir or run.dir; default NAME.run in base_dir */
    struct plan_model model;
    struct plan_data data;
    struct plan_training training;
    struct plan_parallel parallel;
    struct plan_checkpoint checkpoint;
    struct plan_resilience resilience;

    int world;               /* product of the degrees */
    int64_t accumulation;    /* microbatches a step and data-parallel replica, at least; */
    int extra;               /* the first so many replicas take one more (parallel.uneven) */
    int64_t parameters;      /* of the whole model, a tied head counted once */
    struct plan_mark *marks; /* owned */
    int n_marks;
    char *text; /* the resolved plan as canonical YAML: what travels to the nodes */
};

/* Read and check. overrides: "section.key=value" strings, later ones win, values as YAML; null (or
 * nothing) means as if the key were not there. base_dir: what relative paths in the plan are
 * resolved against (NULL: the current folder); absolute. On failure NULL and err =
 * "FILE:LINE:COLUMN: section.key is X, but ...: use ...", where the place is that of the key, or
 * "FILE,section.key=X: ..." for an override. */
struct plan *plan_load(const char *path, char *const *overrides, int n_overrides,
                       const char *base_dir, struct err *err);

/* The same from text (a plan that came over the wire is its own canonical text). name: for errors.
 */
struct plan *plan_parse(const char *text, size_t length, const char *name, char *const *overrides,
                        int n_overrides, const char *base_dir, struct err *err);

void plan_free(struct plan *plan);

/* Take "FILE[,key=value...]" (the value of --gtrain-plan) apart. A comma inside [] is part of a
 * value. *path and *overrides (and each of its strings) are malloc'ed: plan_split_free. Does not
 * look into keys and values. -1: no file, or brackets that do not close. */
int plan_split(const char *option, char **path, char ***overrides, int *n_overrides,
               struct err *err);
void plan_split_free(char *path, char **overrides, int n_overrides);

/* err = "FILE:LINE:COLUMN: " + message, the place where key ("training.global_batch") stands. -1.
 */
int plan_error(const struct plan *plan, const char *key, struct err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Layers [*first, *first + *count) of a pipeline stage: as even as can be; where layers do not
 * divide, the first and last stage, which also hold embedding and head, get the fewer ones. Pure.
 */
void plan_stage_layers(const struct plan *plan, int stage, int64_t *first, int64_t *count);

/* Weights of one stage's layers, embedding and head, over all its tensor ranks; a tied head counts
 * on the first and the last stage. Pure. */
int64_t plan_stage_parameters(const struct plan *plan, int stage);

/* Bytes one rank of a pipeline stage needs, by use. An estimate from the shapes alone: see
 * plan_memory in shape.c for the formula. */
struct plan_memory {
    double weights, gradients, optimizer, activations;
};
struct plan_memory plan_memory(const struct plan *plan, int stage);

/* Bytes of host memory that checkpoints take on a rank of that stage, beside its state's own: the
 * copy that files are written from; two slots for the rank's state in the memory that its node
 * holds; two for that of a rank on another node, the largest there may be. 0 where the plan does
 * without. Pure. */
struct plan_host_memory {
    double copy, own, wards;
};
struct plan_host_memory plan_host_memory(const struct plan *plan, int stage);

/* Microbatches [*first, *first + *count) of a step are the replica's: as even as can be, in order,
 * the first replicas take one more where they do not divide. Pure. */
void plan_replica_microbatches(const struct plan *plan, int replica, int64_t *first,
                               int64_t *count);

/* The most microbatches that a replica takes in a step. Pure. */
int64_t plan_most_microbatches(const struct plan *plan);

/* Sets of saved activations a stage holds at once: min(m, p - stage) for 1f1b, m for gpipe,
 * m the most microbatches of a replica. */
int64_t plan_stage_slots(const struct plan *plan, int stage);

/* Nodes a step needs with this many tasks per node: world / tasks (must divide) + spares. -1: err.
 */
int plan_nodes(const struct plan *plan, int tasks_per_node, int spares, struct err *err);

/* Does a step of `nodes` nodes with `tasks_per_node` tasks each hold the plan's ranks and `spares`
 * spare nodes? nodes is the total, spares included; what it has beyond the need are more spares. 0
 * for nodes or tasks: not known, so not checked. spares < 0: the plan's. -1: err names the srun
 * options that are right. Pure. */
int plan_check_counts(const struct plan *plan, int nodes, int tasks_per_node, int spares,
                      struct err *err);

/* checkpoint.redundancy as it is written: "rs:4+2". */
enum { PLAN_REDUNDANCY_BYTES = 32 };
void plan_redundancy_text(const struct plan_checkpoint *c, char text[PLAN_REDUNDANCY_BYTES]);
/* Nodes that redundancy needs, spares not counted: 1 for none. Pure. */
int plan_redundancy_nodes(const struct plan_checkpoint *c);

/* Finished files of a rank that wait for their commit when the next save begins. A rank tells at a
 * step's begin which file it has, and all know when that step's tally is read, which is after the
 * next step was submitted: with a checkpoint each step three are on that way. Fewer would make each
 * save wait for a commit. Pure. */
enum { PLAN_FILES_AHEAD_MOST = 3 };
int plan_files_ahead(const struct plan_checkpoint *c);

/* Learning rate of a step (0-based). Pure. Warm-up (step+1)/warmup * lr, then the schedule. */
double plan_lr(const struct plan_training *t, int64_t step);

/* Model FLOPs of one token, forward and backward: 6 N' + 12 L C T', N' = matrices' parameters (head
 * included, embedding look-up not), attention counted causal (T' = T/2). Source: Narayanan et al.
 * 2021 eq. 3, Llama-shaped. */
double plan_flops_per_token(const struct plan *plan);

/* A hash (64 bits, hex in text form 16 digits) over everything that decides the bits of a run, for
 * the checkpoint: model, data files' names, training, seed; not folders, not parallel degrees. */
uint64_t plan_hash(const struct plan *plan);

/* The exact text the hash is over. malloc'ed. */
char *plan_hash_text(const struct plan *plan);

/* What of it differs, for an error: "model.layers: 5, now 6; training.seed: 1, now 2". malloc'ed,
 * "" where nothing does, NULL: no memory. Pure. */
char *plan_difference(const struct plan *was, const struct plan *now);

/* Human text of the resolved plan, rank map included. tasks_per_node: for what a node needs; 0: not
 * known. 0, or -1 if out has an error. */
int plan_print(const struct plan *plan, int tasks_per_node, FILE *out);

#endif
