/* data.h - samples from token files: a sample is a function of (seed, global sample index).
 *
 * All files of a split are one row of non-overlapping windows of `sequence` + 1 tokens (the last
 * token of one is the first of the next, and a window lies within one file). Sample i of epoch e =
 * i / windows is window perm_e(i % windows), perm_e a Feistel permutation keyed by (seed, e): no
 * table, any layout, any restart. Files are memory-mapped; nothing is read ahead of use. */
#ifndef GTRAIN_DATA_H
#define GTRAIN_DATA_H

#include <stdint.h>

#include "base/err.h"
#include "plan/plan.h"

struct data;

enum data_split { DATA_TRAIN, DATA_VALIDATION };

/* Opens and checks the files: format, length, that each token is below model.vocab (checked once
 * over the whole file, in parallel with nothing: seconds per GB). NULL in *out and 0 if the split
 * is empty by plan. Errors name file and offset, and the plan's line. */
int data_open(struct data **out, const struct plan *plan, enum data_split split, struct err *err);

int64_t data_windows(const struct data *d);
int64_t data_tokens(const struct data *d);

/* The validation split is not permuted: sample i is window i % windows. tokens: sequence + 1. */
void data_sample(const struct data *d, int64_t index, int32_t *tokens);

void data_close(struct data *d);

#endif
