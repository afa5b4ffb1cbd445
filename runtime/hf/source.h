/* source.h - the tensors of a folder with safetensors files, single or sharded. */
#ifndef GTRAIN_HF_SOURCE_H
#define GTRAIN_HF_SOURCE_H

#include <stdint.h>

#include "hf/values.h"
#include "safetensors.h"

struct hf_file {
    char *path;
    int fd;
    struct st_header header;
    int64_t data_at;
};

struct hf_tensor {
    const struct st_tensor *tensor;
    const struct hf_file *file;
};

struct hf_source {
    struct hf_file *files;
    int n_files;
    struct hf_tensor *tensors; /* of all files, by name */
    int64_t n_tensors;
};

/* Opens dir/model.safetensors.index.json and the files it names, or else dir/model.safetensors.
 * Headers are checked strictly; a name in two files, or one where the index and the file do not
 * agree, is an error. 0, or -1 with err; close after either. */
int hf_source_open(struct hf_source *s, const char *dir, struct err *err);

/* NULL: there is none of that name. */
const struct hf_tensor *hf_source_find(const struct hf_source *s, const char *name);

/* Its values. out has room for all. */
int hf_source_read(const struct hf_tensor *t, float *out, struct err *err);

void hf_source_close(struct hf_source *s);

#endif
