/* test_hf_refuse.c - published folders that are not what they should be, and what is passed over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf/hf.h"
#include "hf_rig.h"

static struct hf_rig rig;

/* Neither OUT nor what it would have become. */
static void nothing_is_left(void)
{
    struct dirent *e;
    DIR *d = opendir(rig.folder);
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "out", 3))
            fail_msg("%s was left behind", e->d_name);
    closedir(d);
}

static void refused(const char *says)
{
    struct err err;
    assert_int_equal(hf_import(rig.hf, rig.out, NULL, NULL, &err), HF_UNFIT);
    if (!strstr(err.text, says))
        fail_msg("'%s' does not say '%s'", err.text, says);
    assert_null(strchr(err.text, '\n'));
    nothing_is_left();
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
        {"\"mlp_bias\": false", "\"quantization_config\": {\"quant_method\": \"fp8\"}",
         "quantization_config is there"},
        {"\"mlp_bias\": false", "\"rope_scaling\": {\"rope_type\": \"default\"}",
         "rope_scaling and rope_parameters are both there and say different things"},
        {"\"mlp_bias\": false", "\"original_max_position_embeddings\": 9",
         "original_max_position_embeddings is 9 and, in the rotary settings, 8"},
        {"\"mlp_bias\": false", "\"eos_token_id\": \"</s>\"", "eos_token_id is \"<"},
        {"\"rope_theta\": 1000.0", "\"rope_theta\": 0.5",
         "a plan that gtrain does not train: plan.yaml:14:3: model.rope_theta is 0.5"},
        {"\"vocab_size\": 13", "\"vocab_size\": 14",
         "model.embed_tokens.weight has shape [13, 16]; config.json makes it [14, 16]"},
    };
    hf_rig_forget(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hf_rig_fill(&rig, false, HF_F32, 1);
        hf_rig_write(&rig, hf_rig_config_with(cases[i].from, cases[i].to));
        refused(cases[i].says);
    }
}

static void refuses_tensors_that_do_not_fit(void **state)
{
    (void)state;
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 1);
    strcpy(rig.tensors[4].name, "model.layers.0.self_attn.w_proj.weight");
    hf_rig_write(&rig, hf_rig_config);
    refused("model.layers.0.self_attn.v_proj.weight is missing");

    hf_rig_fill(&rig, false, HF_F32, 1);
    hf_rig_add(&rig, "model.layers.2.input_layernorm.weight", 16, 0);
    hf_rig_write(&rig, hf_rig_config);
    refused("model.layers.2.input_layernorm.weight is no tensor of the model");

    hf_rig_fill(&rig, false, HF_F32, 1);
    rig.tensors[1].rows = 4, rig.tensors[1].cols = 4;
    hf_rig_write(&rig, hf_rig_config);
    refused("model.layers.0.input_layernorm.weight has shape [4, 4]; config.json makes it [16]");

    hf_rig_fill(&rig, false, HF_F32, 1);
    strcpy(rig.tensors[1].dtype, "I32");
    hf_rig_write(&rig, hf_rig_config);
    refused("model.layers.0.input_layernorm.weight is I32: F32, BF16 or F16 is expected");

    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_write_text(&rig, "model-00001-of-00002.safetensors", "not");
    refused("model-00001-of-00002.safetensors: 3 bytes are too few");

    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_write_text(&rig, "model.safetensors.index.json",
                      "{\"weight_map\": {\"a\": \"../x.safetensors\"}}");
    refused("weight_map: a is in '../x.safetensors'");
    hf_rig_write_text(&rig, "model.safetensors.index.json",
                      "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}");
    refused("which the index does not name");
    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    rig.tensors[3].file ^= 1;
    hf_rig_write_index(&rig);
    refused("holds model.layers.0.self_attn.k_proj.weight, which the index says is in model-0000");
}

/* What is in the place of a file, but has no end, is no file, or is too much. */
static void refuses_what_is_no_file(void **state)
{
    (void)state;
    char path[400];
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", rig.hf);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    refused("model.safetensors.index.json: is not a regular file");
    assert_int_equal(remove(path), 0);
    hf_rig_write_text(&rig, "model.safetensors.index.json", "");
    refused("model.safetensors.index.json: this is no JSON object: it is cut");
    assert_int_equal(truncate(path, INT64_C(1) << 40), 0);
    refused("has 1099511627776 bytes");
    snprintf(path, sizeof path, "%s/config.json", rig.hf);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    refused("config.json: is not a regular file");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    refused("config.json: is not a regular file");
}

/* Where two names share a tensor some writers keep the one, some the other. */
static void takes_the_head_for_the_embedding(void **state)
{
    (void)state;
    struct err err;
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, true, HF_F32, 1);
    strcpy(rig.tensors[0].name, "lm_head.weight");
    hf_rig_write(&rig, hf_rig_tied_config());
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
    hf_rig_forget(&rig);
    hf_rig_write(&rig, hf_rig_config); /* not tied: it is another tensor */
    refused("model.embed_tokens.weight is missing");
}

/* A table that was taken out of the files, and one that was left in, whatever the index says. */
static void passes_over_old_tables(void **state)
{
    (void)state;
    struct err err;
    char command[900];
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_add(&rig, "model.layers.0.self_attn.rotary_emb.inv_freq", 3, 0);
    hf_rig_write(&rig, hf_rig_config);
    snprintf(command, sizeof command,
             "sed -i 's/layers.0.self_attn.rotary_emb/layers.1.self_attn.rotary_emb/' "
             "'%s/model.safetensors.index.json'",
             rig.hf);
    assert_int_equal(system(command), 0);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
}

/* Two sets of weights: some programs would take the one, some the other. */
static void refuses_two_sets(void **state)
{
    (void)state;
    struct err err;
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 2);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_write_text(&rig, "model.safetensors", "");
    refused("model.safetensors is there too, and the index does not name it");
    hf_rig_fill(&rig, false, HF_F32, 1); /* an index of one file is well */
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_write_index(&rig);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
}

static void says_what_is_no_such_folder(void **state)
{
    (void)state;
    char path[400];
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 1);
    hf_rig_write(&rig, hf_rig_config);
    snprintf(path, sizeof path, "%s/model.safetensors", rig.hf);
    assert_int_equal(remove(path), 0);
    hf_rig_write_text(&rig, "pytorch_model.bin", "");
    refused("holds neither model.safetensors nor model.safetensors.index.json");
    assert_int_equal(symlink("model.safetensors", path), 0);
    refused("model.safetensors: Too many levels of symbolic links");
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    refused("model.safetensors is not a file");
}

/* Old folders hold tables that follow from config.json; a tied one may hold the head as well. */
static void passes_over_what_is_known(void **state)
{
    (void)state;
    struct err err;
    hf_rig_fill(&rig, true, HF_F32, 1);
    hf_rig_add(&rig, "model.layers.0.self_attn.rotary_emb.inv_freq", 3, 0);
    hf_rig_add(&rig, "lm_head.weight", 13, 16);
    memcpy(rig.tensors[rig.n_tensors - 1].bytes, rig.tensors[0].bytes,
           hf_rig_size(&rig.tensors[0]));
    hf_rig_write(&rig, hf_rig_tied_config());
    hf_rig_forget(&rig);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
    hf_rig_forget(&rig);
    rig.tensors[rig.n_tensors - 1].bytes[0] ^= 1;
    hf_rig_write(&rig, hf_rig_tied_config());
    refused("lm_head.weight in");
}

static void ends_when_it_is_stopped(void **state)
{
    (void)state;
    struct err err;
    atomic_bool stop = true;
    struct hf_watch watch = {.stop = &stop};
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 1);
    hf_rig_write(&rig, hf_rig_config);
    assert_int_equal(hf_import(rig.hf, rig.out, &watch, NULL, &err), HF_FAILED);
    assert_non_null(strstr(err.text, "interrupted"));
    nothing_is_left();
}

static void never_writes_over_a_folder(void **state)
{
    (void)state;
    struct err err;
    hf_rig_fill(&rig, false, HF_F32, 1);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_forget(&rig);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
    assert_int_equal(hf_import(rig.hf, rig.out, NULL, NULL, &err), HF_UNFIT);
    assert_non_null(strstr(err.text, "is there already"));
    struct hf_export_options o = {
        .run_dir = rig.out, .out = rig.hf, .dtype = HF_F32, .step = -1, .shard_bytes = 1 << 30};
    assert_int_equal(hf_export(&o, NULL, &err), HF_UNFIT);
    assert_non_null(strstr(err.text, "is there already"));
    o.out = rig.back;
    o.step = 7;
    assert_int_equal(hf_export(&o, NULL, &err), HF_UNFIT);
    assert_non_null(strstr(err.text, "no committed checkpoint of step 7"));
    assert_int_not_equal(access(rig.back, F_OK), 0);
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
        cmocka_unit_test(refuses_other_models),
        cmocka_unit_test(refuses_tensors_that_do_not_fit),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_two_sets),
        cmocka_unit_test(says_what_is_no_such_folder),
        cmocka_unit_test(passes_over_what_is_known),
        cmocka_unit_test(takes_the_head_for_the_embedding),
        cmocka_unit_test(passes_over_old_tables),
        cmocka_unit_test(ends_when_it_is_stopped),
        cmocka_unit_test(never_writes_over_a_folder),
    };
    return cmocka_run_group_tests_name("hf refuse", tests, make, remove_all);
}
