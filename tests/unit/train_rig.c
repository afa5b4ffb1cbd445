/* train_rig.c - see train_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "train_rig.h"

enum { TOKENS = 20000 };

static const char *const plan_format =
    "model: {layers: 4, hidden: 32, ffn: 48, heads: 4, kv_heads: 2, head_dim: 8, vocab: %d,\n"
    "        init_std: 0.08}\n"
    "data: {format: bin, train: %s/tokens.bin, val_fraction: 0.1}\n"
    "training: {steps: %d, warmup_steps: 3, global_batch: 8, microbatch: 2, sequence: 16,\n"
    "           seed: 5, lr: 1e-2, precision: float64, val_every: 10, val_batches: 2}\n";

/* A token is the one before, moved by one of three steps that hang on it: 1.1 nats to be learnt out
 * of 4.1. */
static uint16_t next_token(uint16_t token, uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    int choice = (int)(*random >> 33) % 3;
    return (uint16_t)((token * 7 + choice * 5 + 3) % RIG_VOCAB);
}

void rig_folder_make(char folder[256])
{
    char path[300];
    int32_t header[256] = {20240520, 1, TOKENS};
    uint64_t random = 1;
    uint16_t token = 0;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, 256, "%s/gtrain-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokens.bin", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    for (int i = 0; i < TOKENS; i++) {
        token = next_token(token, &random);
        assert_int_equal(fwrite(&token, sizeof token, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void rig_folder_remove(const char *folder)
{
    assert_int_equal(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

struct watch {
    const struct rig_run *run;
    struct rig_result *out;
    atomic_int done; /* steps, as rank 0 sees them */
};

static void on_step(void *arg, const struct metrics_step *s)
{
    struct watch *w = arg;
    struct rig_result *r = w->out;
    if (r->n == 0)
        r->first = s->step;
    if (r->n < RIG_MAX_STEPS) {
        r->loss[r->n] = s->loss;
        r->norm[r->n] = s->grad_norm;
        r->val_loss[r->n] = s->val_loss;
        r->n++;
    }
    atomic_store(&w->done, (int)s->step);
}

static int on_stop_asked(void *arg)
{
    struct watch *w = arg;
    return w->run->stop_after > 0 && atomic_load(&w->done) >= w->run->stop_after;
}

static struct plan *load(const struct rig_run *run, struct err *err)
{
    char text[2048];
    int n = 0;
    while (n < RIG_CHANGES && run->changes[n])
        n++;
    snprintf(text, sizeof text, plan_format, RIG_VOCAB, run->folder, run->steps);
    return plan_parse(text, strlen(text), "rig", (char *const *)run->changes, n, "/", err);
}

void rig_train(const struct rig_run *run, struct rig_result *out)
{
    struct watch w = {.run = run, .out = out};
    *out = (struct rig_result){0};
    struct plan *plan = load(run, &out->err);
    if (!plan)
        fail_msg("%s", out->err.text);
    struct threads_options o = {
        .plan = plan,
        .identity = {.epoch = run->epoch ? run->epoch : 1,
                     .generation = run->generation ? run->generation : 1,
                     .node = "here",
                     .run_id = run->run_id ? run->run_id : "0123456789abcdef",
                     .run_dir = run->records ? run->folder : NULL,
                     .restore = run->restore},
        .hooks = {.stop_asked = on_stop_asked, .step = on_step, .arg = &w},
        .out_fd = -1,
        .threads = run->threads ? run->threads : 1,
        .deferred_seed = run->deferred_seed,
        .node_ranks = run->node_ranks,
        .memory = run->memory,
    };
    out->end = threads_run(&o, &out->err);
    plan_free(plan);
}

void rig_write_plan(const struct rig_run *run)
{
    char path[300];
    struct err err;
    struct plan *plan = load(run, &err);
    if (!plan)
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/plan.yaml", run->folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(plan->text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    plan_free(plan);
}

void rig_train_well(const struct rig_run *run, struct rig_result *out)
{
    rig_train(run, out);
    if (out->end != TRAIN_DONE)
        fail_msg("ended with %d: %s", (int)out->end, out->err.text);
    assert_int_equal(out->first + out->n - 1, run->steps);
}
