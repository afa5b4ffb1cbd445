/* hf_rig.c - see hf_rig.h. */
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

#include "hf_rig.h"
#include "safetensors.h"
#include "train/model.h"
#include "train_rig.h"

enum { TENSORS_MAX = 64 };

const char hf_rig_config[] =
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

int64_t hf_rig_count(const struct hf_rig_tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static double formula(int number, int64_t i, bool norm)
{
    double at = (double)i;
    return 0.4 * sin(1.7 * number + 0.9 * at + 0.001 * at * at) + norm;
}

void hf_rig_fill(struct hf_rig *rig, bool tied, enum hf_dtype dtype, int files)
{
    struct plan_model model = shape;
    model.tied = tied;
    rig->n_tensors = model_count(&model);
    rig->n_files = files;
    for (int k = 0; k < rig->n_tensors; k++) {
        struct model_tensor m;
        struct hf_rig_tensor *t = &rig->tensors[k];
        double values[HF_RIG_VALUES];
        model_tensor(&model, k, &m);
        snprintf(t->name, sizeof t->name, "%s", m.name);
        snprintf(t->dtype, sizeof t->dtype, "%s", hf_dtype_tag(dtype));
        t->rows = m.matrix ? m.rows : m.cols;
        t->cols = m.matrix ? m.cols : 0;
        t->file = (k * 7) % files;
        assert_in_range(hf_rig_count(t), 1, HF_RIG_VALUES);
        for (int64_t i = 0; i < hf_rig_count(t); i++)
            values[i] = formula(k, i, !m.matrix);
        assert_int_equal(hf_narrow(dtype, values, (size_t)hf_rig_count(t), t->bytes),
                         hf_rig_count(t));
    }
}

size_t hf_rig_size(const struct hf_rig_tensor *t)
{
    const struct st_type *type = st_type_find(t->dtype);
    return (size_t)hf_rig_count(t) * (size_t)type->bytes;
}

void hf_rig_write_text(const struct hf_rig *rig, const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", rig->hf, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void file_name(const struct hf_rig *rig, int file, char name[64])
{
    if (rig->n_files == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", file + 1, rig->n_files);
}

static void write_file(const struct hf_rig *rig, int file)
{
    char path[400], name[64], *json = NULL;
    size_t bytes, at = 0;
    FILE *header = open_memstream(&json, &bytes);
    fprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int k = 0; k < rig->n_tensors; k++) {
        const struct hf_rig_tensor *t = &rig->tensors[k];
        if (t->file != file)
            continue;
        fprintf(header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name, t->dtype,
                t->rows);
        if (t->cols)
            fprintf(header, ",%" PRId64, t->cols);
        fprintf(header, "],\"data_offsets\":[%zu,%zu]}", at, at + hf_rig_size(t));
        at += hf_rig_size(t);
    }
    fputc('}', header);
    fclose(header);
    file_name(rig, file, name);
    snprintf(path, sizeof path, "%s/%s", rig->hf, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t length = bytes;
    fwrite(&length, sizeof length, 1, f);
    fwrite(json, 1, bytes, f);
    for (int k = 0; k < rig->n_tensors; k++)
        if (rig->tensors[k].file == file)
            fwrite(rig->tensors[k].bytes, 1, hf_rig_size(&rig->tensors[k]), f);
    assert_int_equal(fclose(f), 0);
    free(json);
}

void hf_rig_write_index(const struct hf_rig *rig)
{
    char path[400], name[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", rig->hf);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fprintf(f, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int k = 0; k < rig->n_tensors; k++) {
        file_name(rig, rig->tensors[k].file, name);
        fprintf(f, "%s\"%s\": \"%s\"", k ? ", " : "", rig->tensors[k].name, name);
    }
    fprintf(f, "}}");
    assert_int_equal(fclose(f), 0);
}

void hf_rig_write(const struct hf_rig *rig, const char *config)
{
    if (!access(rig->hf, F_OK))
        rig_folder_remove(rig->hf);
    assert_int_equal(mkdir(rig->hf, 0777), 0);
    hf_rig_write_text(rig, "config.json", config);
    for (int file = 0; file < rig->n_files; file++)
        write_file(rig, file);
    if (rig->n_files > 1)
        hf_rig_write_index(rig);
}

const char *hf_rig_config_with(const char *from, const char *to)
{
    static char text[sizeof hf_rig_config + 256];
    const char *at = strstr(hf_rig_config, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - hf_rig_config), hf_rig_config, to,
             at + strlen(from));
    return text;
}

const char *hf_rig_tied_config(void)
{
    return hf_rig_config_with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
}

void hf_rig_forget(const struct hf_rig *rig)
{
    if (!access(rig->out, F_OK))
        rig_folder_remove(rig->out);
    if (!access(rig->back, F_OK))
        rig_folder_remove(rig->back);
}

const struct hf_rig_tensor *hf_rig_tensor(const struct hf_rig *rig, const char *name)
{
    for (int k = 0; k < rig->n_tensors; k++)
        if (!strcmp(rig->tensors[k].name, name))
            return &rig->tensors[k];
    return NULL;
}

void hf_rig_add(struct hf_rig *rig, const char *name, int64_t rows, int64_t cols)
{
    struct hf_rig_tensor *t = &rig->tensors[rig->n_tensors++];
    *t = (struct hf_rig_tensor){.rows = rows, .cols = cols};
    snprintf(t->name, sizeof t->name, "%s", name);
    strcpy(t->dtype, "F32");
}

/* ---- */

void hf_rig_ok(int rv, const struct err *err)
{
    if (rv)
        fail_msg("%s", err->text);
}

void hf_rig_make(struct hf_rig *rig)
{
    rig_folder_make(rig->folder);
    snprintf(rig->hf, sizeof rig->hf, "%s/hf", rig->folder);
    snprintf(rig->out, sizeof rig->out, "%s/out", rig->folder);
    snprintf(rig->back, sizeof rig->back, "%s/back", rig->folder);
    rig->tensors = calloc(TENSORS_MAX, sizeof *rig->tensors);
    assert_non_null(rig->tensors);
}

void hf_rig_remove(struct hf_rig *rig)
{
    free(rig->tensors);
    rig_folder_remove(rig->folder);
}
