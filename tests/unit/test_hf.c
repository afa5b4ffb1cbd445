/* test_hf.c - published weights in, trained weights out.
 *
 * Folders are written here byte by byte, as transformers writes them. What an imported model says
 * of a text is compared with what transformers says (hf_oracle.py made the numbers); what comes out
 * again must be what went in, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "hf/config.h"
#include "hf/hf.h"
#include "hf/source.h"
#include "train/model.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train_rig.h"

enum { TENSORS_MAX = 64, VALUES_MAX = 2048, TOKENS = 20 };

static char folder[256], hf[300], out[300], back[300];

static void ok(int rv, const struct err *err)
{
    if (rv)
        fail_msg("%s", err->text);
}

/* ---- a folder as transformers writes it ---- */

static const char config_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"dtype\": "
    "\"float32\",\n"
    " \"head_dim\": 6, \"hidden_act\": \"silu\", \"hidden_size\": 16, \"initializer_range\": "
    "0.02,\n"
    " \"intermediate_size\": 24, \"max_position_embeddings\": 32, \"mlp_bias\": false,\n"
    " \"model_type\": \"llama\", \"num_attention_heads\": 4, \"num_hidden_layers\": 2,\n"
    " \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"rope_parameters\": {\"factor\": 4.0,\n"
    " \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,\n"
    " \"original_max_position_embeddings\": 8, \"rope_theta\": 1000.0, \"rope_type\": "
    "\"llama3\"},\n"
    " \"tie_word_embeddings\": false, \"vocab_size\": 13}\n";

static const struct plan_model shape = {
    .layers = 2, .hidden = 16, .ffn = 24, .heads = 4, .kv_heads = 2, .head_dim = 6, .vocab = 13};

/* A tensor to be written; what a test changes. */
struct tensor {
    char name[128], dtype[8];
    int64_t rows, cols; /* cols 0: a vector */
    int file;
    unsigned char bytes[VALUES_MAX * 4];
};

static struct tensor *tensors;
static int n_tensors, n_files;

static int64_t count_of(const struct tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static double formula(int number, int64_t i, bool norm)
{
    double at = (double)i;
    return 0.4 * sin(1.7 * number + 0.9 * at + 0.001 * at * at) + norm;
}

/* All tensors of the model by the formula, in dtype, dealt to so many files. */
static void fill_tensors(bool tied, enum hf_dtype dtype, int files)
{
    struct plan_model model = shape;
    model.tied = tied;
    n_tensors = model_count(&model);
    n_files = files;
    for (int k = 0; k < n_tensors; k++) {
        struct model_tensor m;
        struct tensor *t = &tensors[k];
        double values[VALUES_MAX];
        model_tensor(&model, k, &m);
        snprintf(t->name, sizeof t->name, "%s", m.name);
        snprintf(t->dtype, sizeof t->dtype, "%s", hf_dtype_tag(dtype));
        t->rows = m.matrix ? m.rows : m.cols;
        t->cols = m.matrix ? m.cols : 0;
        t->file = (k * 7) % files;
        assert_in_range(count_of(t), 1, VALUES_MAX);
        for (int64_t i = 0; i < count_of(t); i++)
            values[i] = formula(k, i, !m.matrix);
        assert_int_equal(hf_narrow(dtype, values, (size_t)count_of(t), t->bytes), count_of(t));
    }
}

static size_t size_of(const struct tensor *t)
{
    const struct st_type *type = st_type_find(t->dtype);
    return (size_t)count_of(t) * (size_t)type->bytes;
}

static void write_text(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", hf, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void file_name(int file, char name[64])
{
    if (n_files == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, n_files);
}

static void write_file(int file)
{
    char path[400], name[64], *json = NULL;
    size_t bytes, at = 0;
    FILE *header = open_memstream(&json, &bytes);
    fprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int k = 0; k < n_tensors; k++) {
        const struct tensor *t = &tensors[k];
        if (t->file != file)
            continue;
        fprintf(header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name, t->dtype,
                t->rows);
        if (t->cols)
            fprintf(header, ",%" PRId64, t->cols);
        fprintf(header, "],\"data_offsets\":[%zu,%zu]}", at, at + size_of(t));
        at += size_of(t);
    }
    fputc('}', header);
    fclose(header);
    file_name(file, name);
    snprintf(path, sizeof path, "%s/%s", hf, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t length = bytes;
    fwrite(&length, sizeof length, 1, f);
    fwrite(json, 1, bytes, f);
    for (int k = 0; k < n_tensors; k++)
        if (tensors[k].file == file)
            fwrite(tensors[k].bytes, 1, size_of(&tensors[k]), f);
    assert_int_equal(fclose(f), 0);
    free(json);
}

static void write_index(void)
{
    char path[400], name[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", hf);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int k = 0; k < n_tensors; k++) {
        file_name(tensors[k].file, name);
        fprintf(f, "%s\"%s\": \"%s\"", k ? ", " : "", tensors[k].name, name);
    }
    fprintf(f, "}}");
    assert_int_equal(fclose(f), 0);
}

static void write_folder(const char *config)
{
    if (!access(hf, F_OK))
        rig_folder_remove(hf);
    assert_int_equal(mkdir(hf, 0777), 0);
    write_text("config.json", config);
    for (int file = 0; file < n_files; file++)
        write_file(file);
    if (n_files > 1)
        write_index();
}

/* config_text with one part put in place of another. */
static const char *changed(const char *from, const char *to)
{
    static char text[sizeof config_text + 256];
    const char *at = strstr(config_text, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config_text), config_text, to,
             at + strlen(from));
    return text;
}

static const char *tied_config(void)
{
    return changed("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
}

static void forget_outputs(void)
{
    if (!access(out, F_OK))
        rig_folder_remove(out);
    if (!access(back, F_OK))
        rig_folder_remove(back);
}

/* ---- what goes in comes out ---- */

static const struct tensor *tensor_of(const char *name)
{
    for (int k = 0; k < n_tensors; k++)
        if (!strcmp(tensors[k].name, name))
            return &tensors[k];
    return NULL;
}

/* The folder `back` holds the tensors that were written, with the same bits. */
static void same_tensors(void)
{
    struct hf_source s;
    struct err err;
    ok(hf_source_open(&s, back, &err), &err);
    assert_int_equal(s.n_tensors, n_tensors);
    for (int64_t i = 0; i < s.n_tensors; i++) {
        const struct st_tensor *is = s.tensors[i].tensor;
        const struct tensor *was = tensor_of(is->name);
        unsigned char bytes[VALUES_MAX * 4];
        assert_non_null(was);
        assert_string_equal(is->type->name, was->dtype);
        assert_int_equal(is->dims, was->cols ? 2 : 1);
        assert_int_equal(is->shape[0], was->rows);
        assert_int_equal(is->end - is->begin, size_of(was));
        assert_int_equal(pread(s.tensors[i].file->fd, bytes, size_of(was),
                               s.tensors[i].file->data_at + is->begin),
                         size_of(was));
        if (memcmp(bytes, was->bytes, size_of(was)))
            fail_msg("%s has other bits than it had", is->name);
    }
    hf_source_close(&s);
}

static void same_config(bool tied)
{
    struct hf_config c;
    struct err err;
    char path[400];
    snprintf(path, sizeof path, "%s/config.json", back);
    ok(hf_config_read(path, &c, &err), &err);
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
}

/* Both infinities, quiet and signalling NaNs of both signs, the smallest numbers, the largest
 * finite one and -0, as bits of the dtype, at the start of a tensor. */
static void add_odd_values(enum hf_dtype dtype, struct tensor *t)
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
        struct ckpt_position position;
        int64_t parameters;
        forget_outputs();
        fill_tensors(cases[i].tied, cases[i].dtype, cases[i].files);
        add_odd_values(cases[i].dtype, &tensors[2]);
        write_folder(cases[i].tied ? tied_config() : config_text);
        ok(hf_import(hf, out, &parameters, &err), &err);
        int64_t count = 0;
        for (int k = 0; k < n_tensors; k++)
            count += count_of(&tensors[k]);
        assert_int_equal(parameters, count);
        struct hf_export_options o = {.run_dir = out,
                                      .out = back,
                                      .dtype = cases[i].dtype,
                                      .step = -1,
                                      .shard_bytes = cases[i].files == 1 ? 1 << 20 : 3000};
        ok(hf_export(&o, &position, &err), &err);
        assert_int_equal(position.step, 0);
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
    forget_outputs();
    fill_tensors(false, HF_F32, 2);
    write_folder(config_text);
    ok(hf_import(hf, out, NULL, &err), &err);
    ok(run_folder_open(&f, out, NULL, &err), &err);
    const char *dir = f.shared;
    struct score_options o = {.plan = f.plan,
                              .source = {.dirs = &dir, .n_dirs = 1, .run_id = f.run_id},
                              .tokens = tokens,
                              .n = TOKENS,
                              .threads = 1,
                              .score = take_score,
                              .arg = &seen};
    ok(sample_score(&o, NULL, &err), &err);
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
    snprintf(run_dir, 400, "%s/run", folder);
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
               RIG_VOCAB, folder);
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
    snprintf(first, sizeof first, "checkpoint.local=%s/checkpoints", folder);
    snprintf(after, sizeof after, "checkpoint.local=%s/after", folder);
    struct rig_run writer = {
        .folder = folder,
        .steps = 4,
        .changes = {"training.precision=float32", "model.tied=true", first, "checkpoint.every=4"}};
    rig_train_well(&writer, &own);
    describe_run(run_dir);
    forget_outputs();
    struct hf_export_options o = {
        .run_dir = run_dir, .out = back, .dtype = HF_F32, .step = 4, .shard_bytes = 1 << 30};
    ok(hf_export(&o, NULL, &err), &err);
    ok(hf_import(back, out, NULL, &err), &err);
    ok(run_folder_open(&imported, out, NULL, &err), &err);
    for (int i = 0; i < 2; i++) {
        struct rig_run next = {.folder = folder,
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

/* ---- what is refused ---- */

/* Nothing is left of it: neither OUT nor what it would have become. */
static void refused(const char *says)
{
    struct err err;
    struct dirent *e;
    assert_int_equal(hf_import(hf, out, NULL, &err), -1);
    if (!strstr(err.text, says))
        fail_msg("'%s' does not say '%s'", err.text, says);
    assert_null(strchr(err.text, '\n'));
    DIR *d = opendir(folder);
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "out", 3))
            fail_msg("%s was left behind", e->d_name);
    closedir(d);
}

static void refuses_other_models(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"llama\"", "\"mistral\"", "model_type is \"mistral\": only \"llama\" is built here"},
        {"\"silu\"", "\"gelu\"", "hidden_act is \"gelu\""},
        {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias is true"},
        {"\"mlp_bias\": false", "\"mlp_bias\": 1", "mlp_bias is a int: true or false"},
        {"\"llama3\"", "\"yarn\"", "rope_type is \"yarn\""},
        {"\"factor\": 4.0,", "", "factor is missing"},
        {"\"hidden_size\": 16, ", "", "hidden_size is missing"},
        {"\"vocab_size\": 13", "\"vocab_size\": 13.5", "vocab_size is 13.5: a whole number"},
        {"\"vocab_size\": 13", "\"vocab_size\": -1", "vocab_size is -1: a whole number"},
        {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "does not divide"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", "rms_norm_eps is 0: a number above 0"},
        {"{\"architectures\"", "[\"architectures\"", "this is no JSON object"},
        {"\"vocab_size\": 13}", "\"vocab_size\": 13", "this is no JSON object: it is cut"},
        {"\"vocab_size\": 13}", "\"vocab_size\": 13} }",
         "this is no JSON object: something stands behind it"},
        {"\"factor\": 4.0,", "\"factor\": 4.0, \"partial_rotary_factor\": 0.5,",
         "partial_rotary_factor is 0.5: only 1"},
        {"\"mlp_bias\": false", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"},
        {"\"factor\": 4.0,", "\"full_attention\": {\"factor\": 4.0},",
         "full_attention is an object"},
        {"\"vocab_size\": 13", "\"vocab_size\": 14",
         "model.embed_tokens.weight has shape [13, 16]; config.json makes it [14, 16]"},
    };
    forget_outputs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill_tensors(false, HF_F32, 1);
        write_folder(changed(cases[i].from, cases[i].to));
        refused(cases[i].says);
    }
}

static void add_tensor(const char *name, int64_t rows, int64_t cols)
{
    struct tensor *t = &tensors[n_tensors++];
    *t = (struct tensor){.rows = rows, .cols = cols};
    snprintf(t->name, sizeof t->name, "%s", name);
    strcpy(t->dtype, "F32");
}

static void refuses_tensors_that_do_not_fit(void **state)
{
    (void)state;
    forget_outputs();
    fill_tensors(false, HF_F32, 1);
    strcpy(tensors[4].name, "model.layers.0.self_attn.w_proj.weight");
    write_folder(config_text);
    refused("model.layers.0.self_attn.v_proj.weight is missing");

    fill_tensors(false, HF_F32, 1);
    add_tensor("model.layers.2.input_layernorm.weight", 16, 0);
    write_folder(config_text);
    refused("model.layers.2.input_layernorm.weight is no tensor of the model");

    fill_tensors(false, HF_F32, 1);
    tensors[1].rows = 4, tensors[1].cols = 4;
    write_folder(config_text);
    refused("model.layers.0.input_layernorm.weight has shape [4, 4]; config.json makes it [16]");

    fill_tensors(false, HF_F32, 1);
    strcpy(tensors[1].dtype, "I32");
    write_folder(config_text);
    refused("model.layers.0.input_layernorm.weight is I32: F32, BF16 or F16 is expected");

    fill_tensors(false, HF_F32, 2);
    write_folder(config_text);
    write_text("model-00001-of-00002.safetensors", "not");
    refused("model-00001-of-00002.safetensors: 3 bytes are too few");

    fill_tensors(false, HF_F32, 2);
    write_folder(config_text);
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
    refused("weight_map: a is in '../x.safetensors'");
    write_text("model.safetensors.index.json",
               "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}");
    refused("which the index does not say");
}

/* What is in the place of a file, but has no end, is no file, or is too much. */
static void refuses_what_is_no_file(void **state)
{
    (void)state;
    char path[400];
    forget_outputs();
    fill_tensors(false, HF_F32, 2);
    write_folder(config_text);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", hf);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    refused("model.safetensors.index.json: is not a regular file");
    assert_int_equal(remove(path), 0);
    write_text("model.safetensors.index.json", "");
    refused("model.safetensors.index.json: this is no JSON object: it is cut");
    assert_int_equal(truncate(path, INT64_C(1) << 40), 0);
    refused("has 1099511627776 bytes");
    snprintf(path, sizeof path, "%s/config.json", hf);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    refused("config.json: is not a regular file");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    refused("config.json: is not a regular file");
}

/* Old folders hold tables that follow from config.json; a tied one may hold the head as well. */
static void passes_over_what_is_known(void **state)
{
    (void)state;
    struct err err;
    fill_tensors(true, HF_F32, 1);
    add_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 3, 0);
    add_tensor("lm_head.weight", 13, 16);
    memcpy(tensors[n_tensors - 1].bytes, tensors[0].bytes, size_of(&tensors[0]));
    write_folder(tied_config());
    forget_outputs();
    ok(hf_import(hf, out, NULL, &err), &err);
    forget_outputs();
    tensors[n_tensors - 1].bytes[0] ^= 1;
    write_folder(tied_config());
    refused("lm_head.weight in");
}

static void never_writes_over_a_folder(void **state)
{
    (void)state;
    struct err err;
    fill_tensors(false, HF_F32, 1);
    write_folder(config_text);
    forget_outputs();
    ok(hf_import(hf, out, NULL, &err), &err);
    assert_int_equal(hf_import(hf, out, NULL, &err), -1);
    assert_non_null(strstr(err.text, "is there already"));
    struct hf_export_options o = {
        .run_dir = out, .out = hf, .dtype = HF_F32, .step = -1, .shard_bytes = 1 << 30};
    assert_int_equal(hf_export(&o, NULL, &err), -1);
    assert_non_null(strstr(err.text, "is there already"));
    o.out = back;
    o.step = 7;
    assert_int_equal(hf_export(&o, NULL, &err), -1);
    assert_non_null(strstr(err.text, "no committed checkpoint of step 7"));
    assert_int_not_equal(access(back, F_OK), 0);
}

/* ---- number formats ---- */

static void narrow_one(enum hf_dtype dtype, double value, unsigned want)
{
    uint16_t got = 0;
    assert_int_equal(hf_narrow(dtype, &value, 1, &got), 1);
    if (got != want)
        fail_msg("%a as %s is %04x, not %04x", value, hf_dtype_name(dtype), got, want);
}

/* IEEE 754 by hand: ties go to the even neighbour, the smallest half is 2^-24. */
static void numbers_by_hand(void **state)
{
    (void)state;
    static const struct {
        double value;
        unsigned want;
    } halves[] = {{1, 0x3c00},           {-2, 0xc000},         {65504, 0x7bff},
                  {0x1p-14, 0x0400},     {0x1p-24, 0x0001},    {0x1p-25, 0x0000},
                  {0x1.8p-24, 0x0002},   {0x1.8p-25, 0x0001},  {0x1.002p0, 0x3c00},
                  {0x1.006p0, 0x3c02},   {0x1.0021p0, 0x3c01}, {0x1.ff8p-15, 0x03ff},
                  {0x1.ffcp-15, 0x0400}, {-0.0, 0x8000},       {65519.99, 0x7bff}};
    static const struct {
        double value;
        unsigned want;
    } bfloats[] = {{1, 0x3f80},
                   {-2, 0xc000},
                   {0x1.01p0, 0x3f80},
                   {0x1.03p0, 0x3f82},
                   {0x1.0101p0, 0x3f81},
                   {0x1p-133, 0x0001},
                   {0x1.fep127, 0x7f7f},
                   {INFINITY, 0x7f80},
                   {1 + 0x1p-8 + 0x1p-40, 0x3f81},
                   {-1 - 0x3p-8 + 0x1p-40, 0xbf81},
                   {0x1p-134 + 0x1p-180, 0x0001},
                   {-0x1p-1000, 0x8000}};
    uint16_t got;
    float f;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        narrow_one(HF_F16, halves[i].value, halves[i].want);
    for (size_t i = 0; i < sizeof bfloats / sizeof *bfloats; i++)
        narrow_one(HF_BF16, bfloats[i].value, bfloats[i].want);
    assert_int_equal(hf_narrow(HF_F16, (double[]){1, 65520}, 2, (uint16_t[2]){0}), 1);
    assert_int_equal(hf_narrow(HF_BF16, (double[]){0x1.ffp127}, 1, &got), 0);
    assert_int_equal(hf_narrow(HF_F32, (double[]){1e39}, 1, &f), 0);
}

/* Every half and bfloat there is, there and back. */
static void all_halves_come_back(void **state)
{
    (void)state;
    for (int dtype = HF_BF16; dtype <= HF_F16; dtype++)
        for (unsigned bits = 0; bits < 65536; bits++) {
            uint16_t is = (uint16_t)bits, again;
            float wide;
            hf_widen((enum hf_dtype)dtype, &is, 1, &wide);
            double value = wide;
            assert_int_equal(hf_narrow((enum hf_dtype)dtype, &value, 1, &again), 1);
            if (isnan(wide))
                assert_true((again & 0x7fff) > (dtype == HF_BF16 ? 0x7f80 : 0x7c00));
            else
                assert_int_equal(again, is);
        }
}

static int make(void **state)
{
    (void)state;
    rig_folder_make(folder);
    snprintf(hf, sizeof hf, "%s/hf", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(back, sizeof back, "%s/back", folder);
    tensors = calloc(TENSORS_MAX, sizeof *tensors);
    return tensors ? 0 : -1;
}

static int remove_all(void **state)
{
    (void)state;
    free(tensors);
    rig_folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_by_hand),
        cmocka_unit_test(all_halves_come_back),
        cmocka_unit_test(import_then_export),
        cmocka_unit_test(says_what_transformers_says),
        cmocka_unit_test(trains_on_in_any_layout),
        cmocka_unit_test(refuses_other_models),
        cmocka_unit_test(refuses_tensors_that_do_not_fit),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(passes_over_what_is_known),
        cmocka_unit_test(never_writes_over_a_folder),
    };
    return cmocka_run_group_tests_name("hf", tests, make, remove_all);
}
