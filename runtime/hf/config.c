/* config.c - see config.h. */
#include "hf/config.h"

#include "hf/json_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Longer than any real one. */
enum { CONFIG_MAX_BYTES = 1 << 20 };

static const char *kind_of(const struct json_object *o)
{
    return o ? json_type_to_name(json_object_get_type(o)) : "null";
}

static struct json_object *get(const struct json_object *o, const char *key)
{
    struct json_object *value = NULL;
    return json_object_object_get_ex(o, key, &value) ? value : NULL;
}

/* A whole number from 1; fallback 0: it must be there. */
static int take_whole(const struct json_object *o, const char *key, int64_t most, int64_t fallback,
                      int64_t *out, struct err *err)
{
    struct json_object *value = get(o, key);
    if (!value && fallback) {
        *out = fallback;
        return 0;
    }
    if (!value)
        return err_set(err, "%s is missing", key);
    *out = json_object_get_int64(value);
    if (json_object_get_type(value) == json_type_int && *out >= 1 && *out <= most)
        return 0;
    return err_set(err, "%s is %.60s: a whole number from 1 to %" PRId64 " is expected", key,
                   json_object_to_json_string(value), most);
}

/* A number above 0; fallback NAN: it must be there. */
static int take_real(const struct json_object *o, const char *key, double fallback, double *out,
                     struct err *err)
{
    struct json_object *value = get(o, key);
    enum json_type type = json_object_get_type(value);
    if (!value && isnan(fallback))
        return err_set(err, "%s is missing", key);
    *out = value ? json_object_get_double(value) : fallback;
    if ((!value || type == json_type_double || type == json_type_int) && isfinite(*out) && *out > 0)
        return 0;
    return err_set(err, "%s is %.60s: a number above 0 is expected", key,
                   json_object_to_json_string(value));
}

static int take_bool(const struct json_object *o, const char *key, bool *out, struct err *err)
{
    struct json_object *value = get(o, key);
    *out = json_object_get_boolean(value);
    if (!value || json_object_get_type(value) == json_type_boolean)
        return 0;
    return err_set(err, "%s is a %s: true or false is expected", key, kind_of(value));
}

static int check_whole_heads(const struct json_object *o, struct err *err)
{
    struct json_object *part = get(o, "partial_rotary_factor");
    if (!part || json_object_get_double(part) == 1)
        return 0;
    return err_set(err, "partial_rotary_factor is %.60s: only 1 is built here",
                   json_object_to_json_string(part));
}

/* These decide the arithmetic, and one value of each is built here. */
static int check_kind(const struct json_object *o, struct err *err)
{
    static const struct {
        const char *key, *only;
        bool required;
    } words[] = {{"model_type", "llama", true}, {"hidden_act", "silu", false}};
    static const char *const off[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct json_object *value = get(o, words[i].key);
        if (value ? json_object_get_type(value) == json_type_string &&
                        !strcmp(json_object_get_string(value), words[i].only)
                  : !words[i].required)
            continue;
        return err_set(err, "%s is %.60s: only \"%s\" is built here", words[i].key,
                       value ? json_object_to_json_string(value) : "missing", words[i].only);
    }
    if (check_whole_heads(o, err))
        return -1;
    if (get(o, "quantization_config"))
        return err_set(err, "quantization_config is there: only weights in float32, bfloat16 or "
                            "float16 are read");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        bool on;
        if (take_bool(o, off[i], &on, err))
            return -1;
        if (on)
            return err_set(err, "%s is true: only models without are built here", off[i]);
    }
    return 0;
}

/* Not one set for each kind of layer. */
static int check_rope_keys(const struct json_object *rope, struct err *err)
{
    if (check_whole_heads(rope, err))
        return -1;
    json_object_object_foreach((struct json_object *)rope, key, value)
    {
        if (json_object_get_type(value) == json_type_object)
            return err_set(err, "%.60s is an object: one set of rotary settings is expected", key);
    }
    return 0;
}

/* Where the frequencies were not scaled: said here or one level above, else all positions. */
static int take_original(const struct json_object *o, const struct json_object *scaling,
                         int64_t positions, int64_t *out, struct err *err)
{
    static const char key[] = "original_max_position_embeddings";
    const int64_t most = INT64_C(1) << 40;
    int64_t above;
    if (take_whole(o, key, most, positions, &above, err) ||
        take_whole(scaling, key, most, above, out, err))
        return -1;
    if (get(o, key) && *out != above)
        return err_set(err, "%s is %" PRId64 " and, in the rotary settings, %" PRId64, key, above,
                       *out);
    return 0;
}

static int take_scaling(const struct json_object *o, const struct json_object *scaling,
                        int64_t positions, struct plan_model *m, struct err *err)
{
    struct json_object *type = get(scaling, "rope_type");
    if (!type)
        type = get(scaling, "type"); /* as it was called first */
    const char *name = type ? json_object_get_string(type) : "default";
    if (!strcmp(name, "default"))
        return 0;
    if (strcmp(name, "llama3"))
        return err_set(
            err, "rope_type is \"%.40s\": only \"llama3\" and \"default\" are built here", name);
    m->rope_scaling.on = true;
    return take_real(scaling, "factor", NAN, &m->rope_scaling.factor, err) ||
                   take_real(scaling, "low_freq_factor", NAN, &m->rope_scaling.low_freq_factor,
                             err) ||
                   take_real(scaling, "high_freq_factor", NAN, &m->rope_scaling.high_freq_factor,
                             err) ||
                   take_original(o, scaling, positions, &m->rope_scaling.original_context, err)
               ? -1
               : 0;
}

/* What stands under the key; NULL: nothing, or an empty object. */
static int take_object(const struct json_object *o, const char *key, struct json_object **out,
                       struct err *err)
{
    *out = get(o, key);
    if (*out && json_object_get_type(*out) != json_type_object)
        return err_set(err, "%s is a %s: an object is expected", key, kind_of(*out));
    if (*out && !json_object_object_length(*out))
        *out = NULL;
    return 0;
}

/* theta stands above the object, or in it, which counts more; 10000 is what the library takes where
 * nothing is said. */
static int take_rope_from(const struct json_object *o, const struct json_object *object,
                          int64_t positions, struct plan_model *m, struct err *err)
{
    if (take_real(o, "rope_theta", 10000, &m->rope_theta, err))
        return -1;
    if (!object)
        return 0;
    return take_real(object, "rope_theta", m->rope_theta, &m->rope_theta, err) ||
                   check_rope_keys(object, err) || take_scaling(o, object, positions, m, err)
               ? -1
               : 0;
}

static bool same_rope(const struct plan_model *a, const struct plan_model *b)
{
    return a->rope_theta == b->rope_theta && a->rope_scaling.on == b->rope_scaling.on &&
           a->rope_scaling.factor == b->rope_scaling.factor &&
           a->rope_scaling.low_freq_factor == b->rope_scaling.low_freq_factor &&
           a->rope_scaling.high_freq_factor == b->rope_scaling.high_freq_factor &&
           a->rope_scaling.original_context == b->rope_scaling.original_context;
}

/* The older way, rope_theta and rope_scaling, or the newer, both in rope_parameters. Of programs
 * that know both some read the one first and some the other. */
static int take_rope(const struct json_object *o, int64_t positions, struct plan_model *m,
                     struct err *err)
{
    struct json_object *older, *newer;
    struct plan_model other = *m;
    if (take_object(o, "rope_scaling", &older, err) ||
        take_object(o, "rope_parameters", &newer, err) ||
        take_rope_from(o, newer ? newer : older, positions, m, err))
        return -1;
    if (!newer || !older)
        return 0;
    if (take_rope_from(o, older, positions, &other, err))
        return -1;
    return same_rope(m, &other)
               ? 0
               : err_set(err, "rope_scaling and rope_parameters are both there and say different "
                              "things: remove the one that is not meant");
}

static int take_model(const struct json_object *o, struct hf_config *c, struct err *err)
{
    struct plan_model *m = &c->model;
    const int64_t most = 1 << 24;
    if (take_whole(o, "num_hidden_layers", 10000, 0, &m->layers, err) ||
        take_whole(o, "hidden_size", most, 0, &m->hidden, err) ||
        take_whole(o, "intermediate_size", most, 0, &m->ffn, err) ||
        take_whole(o, "num_attention_heads", 4096, 0, &m->heads, err) ||
        take_whole(o, "num_key_value_heads", 4096, m->heads, &m->kv_heads, err) ||
        take_whole(o, "vocab_size", most, 0, &m->vocab, err) ||
        take_whole(o, "max_position_embeddings", INT64_C(1) << 40, 2048, &c->positions, err))
        return -1;
    if (!get(o, "head_dim") && m->hidden % m->heads)
        return err_set(err,
                       "head_dim is missing, and hidden_size %" PRId64 " does not divide by "
                       "num_attention_heads %" PRId64,
                       m->hidden, m->heads);
    if (m->heads % m->kv_heads)
        return err_set(err,
                       "num_key_value_heads is %" PRId64 ", which does not divide "
                       "num_attention_heads %" PRId64,
                       m->kv_heads, m->heads);
    if (take_whole(o, "head_dim", 4096, m->hidden / m->heads, &m->head_dim, err) ||
        take_real(o, "rms_norm_eps", 1e-6, &m->norm_eps, err) ||
        take_real(o, "initializer_range", 0.02, &m->init_std, err) ||
        take_bool(o, "tie_word_embeddings", &m->tied, err))
        return -1;
    return take_rope(o, c->positions, m, err);
}

static const char *const token_keys[HF_TOKENS] = {"bos_token_id", "eos_token_id", "pad_token_id"};

/* A number, or a list of numbers. */
static bool is_tokens(const struct json_object *o)
{
    if (json_object_get_type(o) != json_type_array)
        return json_object_get_type(o) == json_type_int;
    for (size_t i = 0; i < json_object_array_length(o); i++)
        if (json_object_get_type(json_object_array_get_idx(o, i)) != json_type_int)
            return false;
    return true;
}

static int take_tokens(const struct json_object *o, struct hf_tokens *tokens, struct err *err)
{
    for (int i = 0; i < HF_TOKENS; i++) {
        struct json_object *value = get(o, token_keys[i]);
        if (!value)
            continue;
        if (!is_tokens(value))
            return err_set(err, "%s is %.60s: a whole number, or a list of such, is expected",
                           token_keys[i], json_object_to_json_string(value));
        if (!(tokens->text[i] = strdup(json_object_to_json_string(value))))
            return err_set(err, "no memory");
    }
    return 0;
}

int hf_config_read(const char *path, struct hf_config *out, struct err *err)
{
    memset(out, 0, sizeof *out);
    struct json_object *o = json_file_read(path, CONFIG_MAX_BYTES, err);
    int rv =
        o && !check_kind(o, err) && !take_model(o, out, err) && !take_tokens(o, &out->tokens, err)
            ? 0
            : -1;
    json_object_put(o);
    if (rv)
        hf_config_free(out);
    return rv ? err_prefix(err, "%s", path) : 0;
}

void hf_config_free(struct hf_config *c)
{
    for (int i = 0; i < HF_TOKENS; i++)
        free(c->tokens.text[i]);
    memset(c, 0, sizeof *c);
}

const char *hf_real(double value, char text[NUMBER_BYTES])
{
    number_text(value, text);
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    return text;
}

/* null where nobody knows: what a reader takes where nothing is said is another model's. */
static void write_tokens(FILE *out, const struct hf_tokens *tokens)
{
    for (int i = 0; i < HF_TOKENS; i++) {
        const char *text = tokens && tokens->text[i] ? tokens->text[i] : "null";
        fprintf(out, "  \"%s\": %s,\n", token_keys[i], text);
    }
}

int hf_config_write(FILE *out, const struct plan_model *m, int64_t positions, enum hf_dtype dtype,
                    const struct hf_tokens *tokens)
{
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];
    fprintf(out, "{\n"
                 "  \"architectures\": [\"LlamaForCausalLM\"],\n"
                 "  \"attention_bias\": false,\n");
    write_tokens(out, tokens);
    fprintf(out,
            "  \"head_dim\": %" PRId64 ",\n"
            "  \"hidden_act\": \"silu\",\n"
            "  \"hidden_size\": %" PRId64 ",\n"
            "  \"initializer_range\": %s,\n"
            "  \"intermediate_size\": %" PRId64 ",\n"
            "  \"max_position_embeddings\": %" PRId64 ",\n"
            "  \"mlp_bias\": false,\n"
            "  \"model_type\": \"llama\",\n"
            "  \"num_attention_heads\": %" PRId64 ",\n"
            "  \"num_hidden_layers\": %" PRId64 ",\n"
            "  \"num_key_value_heads\": %" PRId64 ",\n"
            "  \"rms_norm_eps\": %s,\n",
            m->head_dim, m->hidden, hf_real(m->init_std, a), m->ffn, positions, m->heads, m->layers,
            m->kv_heads, hf_real(m->norm_eps, b));
    /* The original context twice: some converters look for it on the outside alone. */
    if (m->rope_scaling.on)
        fprintf(out,
                "  \"original_max_position_embeddings\": %" PRId64 ",\n"
                "  \"rope_scaling\": {\n"
                "    \"factor\": %s,\n"
                "    \"high_freq_factor\": %s,\n"
                "    \"low_freq_factor\": %s,\n"
                "    \"original_max_position_embeddings\": %" PRId64 ",\n"
                "    \"rope_type\": \"llama3\"\n"
                "  },\n",
                m->rope_scaling.original_context, hf_real(m->rope_scaling.factor, a),
                hf_real(m->rope_scaling.high_freq_factor, b),
                hf_real(m->rope_scaling.low_freq_factor, c), m->rope_scaling.original_context);
    else
        fprintf(out, "  \"rope_scaling\": null,\n");
    fprintf(out,
            "  \"rope_theta\": %s,\n"
            "  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"%s\",\n"
            "  \"use_cache\": true,\n"
            "  \"vocab_size\": %" PRId64 "\n"
            "}\n",
            hf_real(m->rope_theta, a), m->tied ? "true" : "false", hf_dtype_name(dtype), m->vocab);
    return ferror(out) ? -1 : 0;
}
