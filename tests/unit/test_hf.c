/* test_hf.c - published weights in, trained weights out.
 *
 * What an imported model says of a text is compared with what transformers says (hf_oracle.py made
 * the numbers); what comes out again must be what went in, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf/config.h"
#include "hf/hf.h"
#include "hf/source.h"
#include "hf_rig.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train_rig.h"

enum { TOKENS = 20 };

static struct hf_rig rig;

/* ---- what goes in comes out ---- */

/* The folder `back` holds the tensors that were written, with the same bits. */
static void same_tensors(void)
{
    struct hf_source s;
    struct err err;
    hf_rig_ok(hf_source_open(&s, rig.back, &err), &err);
    assert_int_equal(s.n_tensors, rig.n_tensors);
    for (int64_t i = 0; i < s.n_tensors; i++) {
        const struct st_tensor *is = s.tensors[i].tensor;
        const struct hf_rig_tensor *was = hf_rig_tensor(&rig, is->name);
        unsigned char bytes[HF_RIG_VALUES * 4];
        assert_non_null(was);
        assert_string_equal(is->type->name, was->dtype);
        assert_int_equal(is->dims, was->cols ? 2 : 1);
        assert_int_equal(is->shape[0], was->rows);
        assert_int_equal(is->end - is->begin, hf_rig_size(was));
        assert_int_equal(pread(s.tensors[i].file->fd, bytes, hf_rig_size(was),
                               s.tensors[i].file->data_at + is->begin),
                         hf_rig_size(was));
        if (memcmp(bytes, was->bytes, hf_rig_size(was)))
            fail_msg("%s has other bits than it had", is->name);
    }
    hf_source_close(&s);
}

static void same_config(bool tied)
{
    struct hf_config c;
    struct err err;
    char path[400];
    snprintf(path, sizeof path, "%s/config.json", rig.back);
    hf_rig_ok(hf_config_read(path, &c, &err), &err);
    assert_int_equal(c.model.layers, 2);
    assert_int_equal(c.model.hidden, 16);
    assert_int_equal(c.model.ffn, 24);
    assert_int_equal(c.model.heads, 4);
    assert_int_equal(c.model.kv_heads, 2);
    assert_int_equal(c.model.head_dim, 6);
    assert_int_equal(c.model.vocab, 13);
    assert_int_equal(c.model.tied, tied);
    assert_true(c.model.norm_eps == 1e-5 && c.model.rope_theta == 1000);
    assert_true(c.model.rope_scaling.on && c.model.rope_scaling.factor == 4);
    assert_true(c.model.rope_scaling.low_freq_factor == 1);
    assert_true(c.model.rope_scaling.high_freq_factor == 4);
    assert_int_equal(c.model.rope_scaling.original_context, 8);
    assert_int_equal(c.positions, 32);
    hf_config_free(&c);
}

/* Both infinities, quiet and signalling NaNs of both signs, the smallest numbers, the largest
 * finite one and -0, as bits of the dtype, at the start of a tensor. */
static void add_odd_values(enum hf_dtype dtype, struct hf_rig_tensor *t)
{
    static const uint32_t odd[HF_DTYPES][9] = {
        [HF_F32] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xff812345, 0x00000001,
                    0x807fffff, 0x7f7fffff, 0x80000000},
        [HF_BF16] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffbf, 0x0001, 0x807f, 0x7f7f, 0x8000},
        [HF_F16] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfdff, 0x0001, 0x83ff, 0x7bff, 0x8000}};
    size_t bytes = hf_dtype_bytes(dtype);
    for (size_t i = 0; i < sizeof odd[0] / sizeof odd[0][0]; i++)
        memcpy(t->bytes + i * bytes, &odd[dtype][i], bytes); /* the machine is little-endian */
}

static void import_then_export(void **state)
{
    (void)state;
    static const struct {
        bool tied;
        enum hf_dtype dtype;
        int files;
    } cases[] = {{false, HF_F32, 1}, {false, HF_BF16, 3}, {true, HF_F16, 1}, {true, HF_BF16, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err;
        struct hf_exported done;
        int64_t parameters;
        hf_rig_forget(&rig);
        hf_rig_fill(&rig, cases[i].tied, cases[i].dtype, cases[i].files);
        add_odd_values(cases[i].dtype, &rig.tensors[2]);
        hf_rig_write(&rig, cases[i].tied ? hf_rig_tied_config() : hf_rig_config);
        hf_rig_ok(hf_import(rig.hf, rig.out, NULL, &parameters, &err), &err);
        int64_t count = 0;
        for (int k = 0; k < rig.n_tensors; k++)
            count += hf_rig_count(&rig.tensors[k]);
        assert_int_equal(parameters, count);
        struct hf_export_options o = {.run_dir = rig.out,
                                      .out = rig.back,
                                      .dtype = cases[i].dtype,
                                      .step = -1,
                                      .shard_bytes = cases[i].files == 1 ? 1 << 20 : 3000};
        hf_rig_ok(hf_export(&o, &done, &err), &err);
        assert_int_equal(done.position.step, 0);
        same_tensors();
        same_config(cases[i].tied);
    }
}

/* ---- the numbers of others ---- */

/* hf_oracle.py: of each token after those before it. */
static const double published[TOKENS - 1] = {
    -2.8014982, -4.0367194, -4.4686790, -0.9431306, -2.5838085, -2.1160053, -5.5855521,
    -3.9660713, -0.8188882, -2.5118032, -3.4452984, -3.8897593, -2.7095635, -2.8403803,
    -4.9179272, -4.2254412, -1.7158849, -1.5836297, -2.7717871};

static void take_score(void *arg, int32_t token, double log_probability)
{
    int *at = arg;
    (void)token;
    assert_in_range(*at, 0, TOKENS - 2);
    if (!(fabs(log_probability - published[*at]) < 1e-5))
        fail_msg("token %d: %.9f, transformers says %.7f", *at + 1, log_probability,
                 published[*at]);
    ++*at;
}

static void says_what_transformers_says(void **state)
{
    (void)state;
    struct err err;
    struct run_folder f;
    int32_t tokens[TOKENS];
    int seen = 0;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (5 * i * i + 3 * i + 1) % 13;
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
    hf_rig_ok(run_folder_open(&f, rig.out, NULL, &err), &err);
    const char *dir = f.shared;
    struct score_options o = {.plan = f.plan,
                              .source = {.dirs = &dir, .n_dirs = 1, .run_id = f.run_id},
                              .tokens = tokens,
                              .n = TOKENS,
                              .threads = 1,
                              .score = take_score,
                              .arg = &seen};
    hf_rig_ok(sample_score(&o, NULL, &err), &err);
    assert_int_equal(seen, TOKENS - 1);
    tokens[3] = 13;
    assert_int_equal(sample_score(&o, NULL, &err), -1);
    assert_non_null(strstr(err.text, "token 3 is 13; the model knows 0 to 12"));
    run_folder_close(&f);
}

/* ---- training from there ---- */

/* A run's weights, out and in again: the next run starts where that one ended, but for the moments.
 */
static void write_line(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void write_line(const char *path, const char *format, ...)
{
    va_list args;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    assert_int_equal(fclose(f), 0);
}

/* The run folder FOLDER/run of a run of the rig, whose checkpoints lie in FOLDER/checkpoints. */
static void describe_run(char run_dir[400])
{
    char path[500];
    snprintf(run_dir, 400, "%s/run", rig.folder);
    assert_int_equal(mkdir(run_dir, 0777), 0);
    snprintf(path, sizeof path, "%s/run.json", run_dir);
    write_line(path, "{\"run_id\": \"0123456789abcdef\", \"epoch\": 1}");
    snprintf(path, sizeof path, "%s/plan.yaml", run_dir);
    write_line(path,
               "model: {layers: 4, hidden: 32, ffn: 48, heads: 4, kv_heads: 2, head_dim: 8,\n"
               "        vocab: %d, tied: true}\n"
               "data: {train: x}\n"
               "training: {steps: 2, global_batch: 8, sequence: 16}\n"
               "checkpoint: {local: %s/checkpoints}\n",
               RIG_VOCAB, rig.folder);
}

static void trains_on_in_any_layout(void **state)
{
    (void)state;
    static const char *const layouts[][2] = {{NULL, NULL},
                                             {"parallel.tensor=2", "parallel.pipeline=2"}};
    struct rig_result r[2], own;
    struct err err;
    struct run_folder imported;
    char run_dir[400], first[400], after[400];
    snprintf(first, sizeof first, "checkpoint.local=%s/checkpoints", rig.folder);
    snprintf(after, sizeof after, "checkpoint.local=%s/after", rig.folder);
    struct rig_run writer = {
        .folder = rig.folder,
        .steps = 4,
        .changes = {"training.precision=float32", "model.tied=true", first, "checkpoint.every=4"}};
    rig_train_well(&writer, &own);
    describe_run(run_dir);
    hf_rig_forget(&rig);
    struct hf_export_options o = {
        .run_dir = run_dir, .out = rig.back, .dtype = HF_F32, .step = 4, .shard_bytes = 1 << 30};
    hf_rig_ok(hf_export(&o, NULL, &err), &err);
    hf_rig_ok(hf_import(rig.back, rig.out, NULL, NULL, &err), &err);
    hf_rig_ok(run_folder_open(&imported, rig.out, NULL, &err), &err);
    for (int i = 0; i < 2; i++) {
        struct rig_run next = {.folder = rig.folder,
                               .steps = 4,
                               .changes = {"training.precision=float32", "model.tied=true", after,
                                           layouts[i][0], layouts[i][1]},
                               .restore = imported.shared};
        rig_train_well(&next, &r[i]);
        assert_int_equal(r[i].first, 1);
    }
    run_folder_close(&imported);
    assert_true(r[0].loss[0] < own.loss[0]); /* it does know what had been learnt */
    for (int i = 0; i < 4; i++)
        if (!(fabs(r[1].loss[i] - r[0].loss[i]) < 1e-5 * r[0].loss[i]))
            fail_msg("step %d: %.9g in pieces, %.9g on one rank", i + 1, r[1].loss[i],
                     r[0].loss[i]);
}

/* ---- as people have it ---- */

/* hf becomes what a downloader keeps: a snapshot of links to files that are named by their content.
 */
static void make_cache(void)
{
    char command[1200];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir blobs snap && n=0 && for f in *.*; do n=$((n + 1)); "
             "mv $f blobs/$n; ln -s ../blobs/$n snap/$f; done",
             rig.hf);
    assert_int_equal(system(command), 0);
    strcat(rig.hf, "/snap");
}

static void read_back(const char *name, char text[4096])
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", rig.back, name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there", path);
    text[fread(text, 1, 4095, f)] = 0;
    fclose(f);
}

/* From a cache, and out again like it. */
static void takes_over_what_it_does_not_know(void **state)
{
    (void)state;
    char text[4096], hf[300];
    struct err err;
    struct hf_exported done;
    strcpy(hf, rig.hf);
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_BF16, 2);
    hf_rig_write(&rig, hf_rig_config_with("\"vocab_size\": 13",
                                          "\"vocab_size\": 13, \"bos_token_id\": 7, "
                                          "\"eos_token_id\": [3, 4], \"pad_token_id\": null"));
    hf_rig_write_text(&rig, "tokenizer.json", "{\"a\": 1}");
    hf_rig_write_text(&rig, "generation_config.json", "{\"b\": 2}");
    hf_rig_write_text(&rig, "training.log", "not for others");
    make_cache();
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
    struct hf_export_options o = {.run_dir = rig.out,
                                  .out = rig.back,
                                  .like = rig.hf,
                                  .dtype = HF_BF16,
                                  .step = -1,
                                  .shard_bytes = 3000};
    hf_rig_ok(hf_export(&o, &done, &err), &err);
    same_tensors();
    assert_int_equal(done.copied, 2);
    assert_int_equal(done.positions, 32);
    read_back("tokenizer.json", text);
    assert_string_equal(text, "{\"a\": 1}");
    read_back("config.json", text);
    assert_non_null(strstr(text, "\"bos_token_id\": 7,"));
    assert_non_null(strstr(text, "\"eos_token_id\": [ 3, 4 ],"));
    assert_non_null(strstr(text, "\"pad_token_id\": null,"));
    const char *inner = strstr(text, "\"rope_scaling\""); /* converters want it outside, too */
    const char *original = strstr(text, "\"original_max_position_embeddings\": 8");
    assert_true(inner && original && original < inner);
    assert_non_null(strstr(inner, "\"original_max_position_embeddings\": 8"));
    rig_folder_remove(rig.back);
    o.like = NULL; /* nothing is invented */
    hf_rig_ok(hf_export(&o, &done, &err), &err);
    assert_int_equal(done.copied, 0);
    read_back("config.json", text);
    assert_non_null(strstr(text, "\"eos_token_id\": null,"));
    strcpy(rig.hf, hf);
}

/* What transformers makes of each way to write the rotary settings; the rest is as in the config.
 */
static void reads_rotary_settings_as_transformers_does(void **state)
{
    (void)state;
    static const char all[] = "\"rope_parameters\": {\"factor\": 4.0,\n"
                              " \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,\n"
                              " \"original_max_position_embeddings\": 8, \"rope_theta\": 1000.0, "
                              "\"rope_type\": \"llama3\"}";
#define LLAMA3                                                                                     \
    "\"rope_type\": \"llama3\", \"factor\": 2.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": " \
    "1"
    static const struct {
        const char *text;
        double theta;
        bool on;
        int64_t original;
    } cases[] = {
        {"\"a\": 1", 10000, false, 0},
        {"\"rope_theta\": 55", 55, false, 0},
        {"\"rope_theta\": 55, \"rope_scaling\": null", 55, false, 0},
        {"\"rope_theta\": 55, \"rope_scaling\": {}", 55, false, 0},
        {"\"rope_theta\": 55, \"rope_parameters\": {\"rope_type\": \"default\"}", 55, false, 0},
        {"\"rope_theta\": 55, \"rope_parameters\": {\"rope_theta\": 66}", 66, false, 0},
        {"\"rope_scaling\": {" LLAMA3 ", \"rope_theta\": 77.5}", 77.5, true, 32},
        {"\"rope_scaling\": {" LLAMA3 "}, \"rope_theta\": 77.5", 77.5, true, 32},
        {"\"rope_scaling\": {" LLAMA3 "}, \"original_max_position_embeddings\": 9", 10000, true, 9},
        {"\"rope_scaling\": {" LLAMA3 ", \"original_max_position_embeddings\": 9}", 10000, true, 9},
        {"\"rope_scaling\": {" LLAMA3 ", \"type\": \"linear\"}", 10000, true, 32},
        {"\"rope_scaling\": {\"type\": \"default\", \"factor\": 2}", 10000, false, 0},
        {"\"rope_scaling\": {" LLAMA3 "}, \"rope_parameters\": {" LLAMA3 "}", 10000, true, 32},
    };
    char path[400];
    snprintf(path, sizeof path, "%s/config.json", rig.hf);
    hf_rig_fill(&rig, false, HF_F32, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hf_config c;
        struct err err;
        hf_rig_write(&rig, hf_rig_config_with(all, cases[i].text));
        hf_rig_ok(hf_config_read(path, &c, &err), &err);
        if (c.model.rope_theta != cases[i].theta || c.model.rope_scaling.on != cases[i].on ||
            c.model.rope_scaling.original_context != cases[i].original)
            fail_msg("%s: theta %g, scaling %d of %" PRId64, cases[i].text, c.model.rope_theta,
                     c.model.rope_scaling.on, c.model.rope_scaling.original_context);
        hf_config_free(&c);
    }
#undef LLAMA3
}

static int make(void **state)
{
    (void)state;
    hf_rig_make(&rig);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    hf_rig_remove(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_then_export),
        cmocka_unit_test(says_what_transformers_says),
        cmocka_unit_test(reads_rotary_settings_as_transformers_does),
        cmocka_unit_test(trains_on_in_any_layout),
        cmocka_unit_test(takes_over_what_it_does_not_know),
    };
    return cmocka_run_group_tests_name("hf", tests, make, remove_all);
}
