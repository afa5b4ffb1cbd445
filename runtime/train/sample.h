/* sample.h - continue a text with a trained model, or say how likely one is. */
#ifndef GTRAIN_SAMPLE_H
#define GTRAIN_SAMPLE_H

#include "plan/plan.h"
#include "train/weights.h"

struct sample_options {
    const struct plan *plan; /* of any layout: its model, precision and sequence count here */
    struct weights_source source;
    const char *prompt; /* bytes are tokens */
    int64_t tokens;     /* to add */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* choose among the k likeliest; 0: among all */
    uint64_t seed;
    int threads;
    void (*token)(void *arg, int32_t token); /* called with each as it is drawn */
    void *arg;
};

/* *position, where not NULL: the checkpoint that was used. The same options give the same tokens.
 */
int sample_run(const struct sample_options *options, struct ckpt_position *position,
               struct err *err);

struct score_options {
    const struct plan *plan; /* as above */
    struct weights_source source;
    const int32_t *tokens; /* n, at least 2 */
    int64_t n;
    int threads;
    /* Called for each token but the first, in order: the natural logarithm of its probability after
     * those before it. */
    void (*score)(void *arg, int32_t token, double log_probability);
    void *arg;
};

/* Windows of `sequence` tokens are run one after the other; a token sees what is before it in its
 * window. *position as above. */
int sample_score(const struct score_options *options, struct ckpt_position *position,
                 struct err *err);

/* Draw from logits: a number in [0, vocab). uniform in [0, 1). Pure; logits are changed. */
int32_t sample_draw(double *logits, int64_t vocab, double temperature, int64_t top_k,
                    double uniform);

#endif
