/* hf.h - published Llama weights in, trained weights out, as folders of the Hugging Face kind.
 *
 * Such a folder holds config.json and the weights, in model.safetensors or in several files named
 * by model.safetensors.index.json, float32, bfloat16 or float16. The tensors' names are those of
 * model.h. Both ways write a new folder under a temporary name beside it and rename it when all is
 * on disk, so OUT is there whole or not at all. */
#ifndef GTRAIN_HF_H
#define GTRAIN_HF_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt.h"
#include "hf/values.h"

/* Both return 0, or with err one of these; then nothing is left of OUT. */
enum {
    HF_UNFIT = -1,  /* what was given does not fit: another try will not help */
    HF_FAILED = -2, /* reading, writing, or it was stopped */
};

/* What the caller does meanwhile. Any may be NULL. */
struct hf_watch {
    const atomic_bool *stop; /* true: end soon, with an error */
    void (*tell)(void *arg, int file, int files,
                 int64_t bytes); /* that a file is written; from 1 */
    void *arg;
};

/* Make the run folder OUT: a checkpoint of step 0 with the folder's weights, as float32, a
 * plan.yaml whose model section is that of config.json, and run.json. The checkpoint has no moments
 * (they start at zero) and no plan hash: any plan with that model may go on from it. *parameters,
 * where not NULL: how many. */
int hf_import(const char *hf_dir, const char *out, const struct hf_watch *watch,
              int64_t *parameters, struct err *err);

struct hf_export_options {
    const char *run_dir; /* a run folder */
    const char *out;
    const char *like; /* a published folder, NULL: none; see like.h */
    enum hf_dtype dtype;
    int64_t step;        /* -1: the newest committed */
    int64_t shard_bytes; /* of tensors in one file, at most, unless one tensor is larger */
    struct hf_watch watch;
};

struct hf_exported {
    struct ckpt_position position; /* what was written */
    int64_t positions;             /* max_position_embeddings, as written */
    int copied;                    /* files of the folder that it is like */
    const char *note;              /* what a reader will not like, or NULL */
};

int hf_export(const struct hf_export_options *options, struct hf_exported *done, struct err *err);

#endif
