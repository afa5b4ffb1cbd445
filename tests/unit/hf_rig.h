/* hf_rig.h - a published Llama folder, written byte by byte as transformers writes it: a tiny model
 * whose weights are a formula. For the programs that test import and export. */
#ifndef GTRAIN_TEST_HF_RIG_H
#define GTRAIN_TEST_HF_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "hf/values.h"

enum { HF_RIG_VALUES = 2048 }; /* of a tensor at most */

/* A tensor to be written; what a test changes. */
struct hf_rig_tensor {
    char name[128], dtype[8];
    int64_t rows, cols; /* cols 0: a vector */
    int file;
    unsigned char bytes[HF_RIG_VALUES * 4];
};

struct hf_rig {
    char folder[256];                  /* of the test, */
    char hf[300], out[300], back[300]; /* in it: published, the run folder, exported again */
    struct hf_rig_tensor *tensors;
    int n_tensors, n_files;
};

void hf_rig_make(struct hf_rig *rig);
void hf_rig_remove(struct hf_rig *rig);

/* Fails the test if rv is not 0. */
void hf_rig_ok(int rv, const struct err *err);

/* The newer way of transformers: rope_parameters; llama3, not tied. */
extern const char hf_rig_config[];
/* It, with one part put in place of another; until the next call. */
const char *hf_rig_config_with(const char *from, const char *to);
const char *hf_rig_tied_config(void);

/* All tensors of the model by the formula, in dtype, dealt to so many files. */
void hf_rig_fill(struct hf_rig *rig, bool tied, enum hf_dtype dtype, int files);
/* One more, of zeros. */
void hf_rig_add(struct hf_rig *rig, const char *name, int64_t rows, int64_t cols);
const struct hf_rig_tensor *hf_rig_tensor(const struct hf_rig *rig, const char *name);
int64_t hf_rig_count(const struct hf_rig_tensor *t);
size_t hf_rig_size(const struct hf_rig_tensor *t);

/* The folder hf, anew; with an index where there are several files. */
void hf_rig_write(const struct hf_rig *rig, const char *config);
void hf_rig_write_index(const struct hf_rig *rig);
void hf_rig_write_text(const struct hf_rig *rig, const char *name, const char *text);

/* Removes out and back. */
void hf_rig_forget(const struct hf_rig *rig);

#endif
