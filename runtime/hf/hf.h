/* hf.h - published Llama weights in, trained weights out, as folders of the Hugging Face kind.
 *
 * Such a folder holds config.json and the weights, in model.safetensors or in several files named
 * by model.safetensors.index.json, float32, bfloat16 or float16. The tensors' names are those of
 * model.h. Both ways write a new folder under a temporary name beside it and rename it when all is
 * on disk, so OUT is there whole or not at all. */
#ifndef GTRAIN_HF_H
#define GTRAIN_HF_H

#include <stdint.h>

#include "base/err.h"
#include "ckpt.h"
#include "hf/values.h"

/* Make the run folder OUT: a checkpoint of step 0 with the folder's weights, as float32, a
 * plan.yaml whose model section is that of config.json, and run.json. The checkpoint has no moments
 * (they start at zero) and no plan hash: any plan with that model may go on from it. *parameters,
 * where not NULL: how many. */
int hf_import(const char *hf_dir, const char *out, int64_t *parameters, struct err *err);

struct hf_export_options {
    const char *run_dir; /* a run folder */
    const char *out;
    enum hf_dtype dtype;
    int64_t step;        /* -1: the newest committed */
    int64_t shard_bytes; /* of tensors in one file, at most, unless one tensor is larger */
};

/* *position, where not NULL: what was written. */
int hf_export(const struct hf_export_options *options, struct ckpt_position *position,
              struct err *err);

#endif
