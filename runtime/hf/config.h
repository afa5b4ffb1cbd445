/* config.h - config.json of a Llama folder, read and written. */
#ifndef GTRAIN_HF_CONFIG_H
#define GTRAIN_HF_CONFIG_H

#include <stdio.h>

#include "base/number.h"
#include "hf/values.h"
#include "plan/plan.h"

/* The ids of special tokens, bos, eos, pad, as JSON: a number or a list; NULL: not said. */
enum { HF_TOKENS = 3 };
struct hf_tokens {
    char *text[HF_TOKENS];
};

struct hf_config {
    struct plan_model model;
    int64_t positions; /* max_position_embeddings */
    struct hf_tokens tokens;
};

/* 0, or -1 with err = "FILE: key ...": another kind of model, a key that is missing, of the wrong
 * kind or with a value that this program does not build. Keys that do not bear on the model's
 * arithmetic are passed over. Both ways of writing the rotary frequencies are read (rope_theta with
 * rope_scaling, and rope_parameters); where both are there and differ, that is an error. Free after
 * success; after failure there is nothing to free. */
int hf_config_read(const char *path, struct hf_config *out, struct err *err);
void hf_config_free(struct hf_config *c);

/* number_text, and always with a point: some readers tell whole numbers from others by it. */
const char *hf_real(double value, char text[NUMBER_BYTES]);

/* The file for a model, in the older way, which all programs read. tokens may be NULL. 0, or -1 if
 * out has an error. */
int hf_config_write(FILE *out, const struct plan_model *model, int64_t positions,
                    enum hf_dtype dtype, const struct hf_tokens *tokens);

#endif
