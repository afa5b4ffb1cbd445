/* like.h - what an exported folder takes over from the published one that the model came from.
 *
 * Weights and what config.json says of the model's arithmetic are the run's. But programs that talk
 * to a model need more, which training does not know: the tokenizer's files, the ids of the tokens
 * that begin and end a text, how far the positions go. */
#ifndef GTRAIN_HF_LIKE_H
#define GTRAIN_HF_LIKE_H

#include "hf/config.h"

/* dir's config.json, which must describe the same model. 0, or -1 with err; hf_config_free after
 * success. */
int like_open(const char *dir, const struct plan_model *model, struct hf_config *out,
              struct err *err);

/* Copies those of the files that such folders have for the tokenizer and for generation, as far as
 * dir has them, into the new folder `to`; durable. Links are followed, no other thing than a file
 * is read. *n: how many. */
int like_copy(const char *dir, const char *to, int *n, struct err *err);

#endif
