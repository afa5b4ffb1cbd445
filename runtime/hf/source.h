/* source.h - the tensors of a folder with safetensors files, single or sharded. */
#ifndef GTRAIN_HF_SOURCE_H
#define GTRAIN_HF_SOURCE_H

#include <stdbool.h>
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
 * agree (but for hf_is_table), is an error, and so is a model.safetensors beside an index that does
 * not name it. Links are followed: a downloader's cache is made of them. 0, or -1 with err; close
 * after either. */
int hf_source_open(struct hf_source *s, const char *dir, struct err *err);

/* NULL: there is none of that name. */
const struct hf_tensor *hf_source_find(const struct hf_source *s, const char *name);

int64_t hf_source_count(const struct hf_tensor *t); /* of its values */

/* Values [first, first + n). */
int hf_source_read(const struct hf_tensor *t, int64_t first, int64_t n, float *out,
                   struct err *err);

/* Is the name that of a table of rotary frequencies? Old folders hold them, and many an index names
 * some that were taken out of the files since. They follow from config.json. */
bool hf_is_table(const char *name);

void hf_source_close(struct hf_source *s);

#endif
