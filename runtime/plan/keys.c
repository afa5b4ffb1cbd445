/* keys.c - the table of keys, and finding one in it. See keys.h.
 *
 * The upper bounds are far above any machine, and low enough that no product the plan forms
 * (parameters, tokens of a step) can overflow 64 bits. */
#include "plan/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const formats[] = {"text", "bin", "megatron", NULL};
static const char *const precisions[] = {"float32", "float64", "bf16", NULL};
static const char *const lr_schedules[] = {"cosine", "wsd", "constant", NULL};
static const char *const schedules[] = {"gpipe", "1f1b", NULL};
static const char *const shards[] = {"none", "optimizer", "gradients", "weights", NULL};

#define AT(field)  offsetof(struct plan, field)
#define MAX_STEPS  1e9
#define MAX_DEGREE 1048576
#define MAX_MS     86400000.0 /* a day */
#define MAX_REAL   1e30

const struct plan_key plan_keys[] = {
    /* section, name, type, field, min, max, default, computed default, choices, flags, doc */
    {"run", "name", KEY_NAME, AT(name), 0, 0, NULL, "the plan file's name", NULL, 0,
     "what the run is called"},
    {"run", "dir", KEY_PATH, AT(run_dir), 0, 0, NULL, "NAME.run", NULL, 0,
     "folder of its metrics and records, on every node the same"},

    {"model", "layers", KEY_INT64, AT(model.layers), 1, 10000, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "transformer layers"},
    {"model", "hidden", KEY_INT64, AT(model.hidden), 1, 1048576, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "width of the residual stream"},
    {"model", "ffn", KEY_INT64, AT(model.ffn), 1, 16777216, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "width of the feed-forward layer"},
    {"model", "heads", KEY_INT64, AT(model.heads), 1, 4096, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "query heads"},
    {"model", "kv_heads", KEY_INT64, AT(model.kv_heads), 1, 4096, NULL, "heads", NULL, KEY_HASH,
     "key and value heads (grouped-query attention)"},
    {"model", "head_dim", KEY_INT64, AT(model.head_dim), 2, 4096, NULL, "hidden / heads", NULL,
     KEY_HASH, "width of one head"},
    {"model", "vocab", KEY_INT64, AT(model.vocab), 1, 16777216, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "tokens in the vocabulary; 256 for text as bytes"},
    {"model", "tied", KEY_BOOL, AT(model.tied), 0, 0, "false", NULL, NULL, KEY_HASH,
     "the output head is the embedding"},
    {"model", "norm_eps", KEY_REAL, AT(model.norm_eps), 0, 1, "1e-5", NULL, NULL,
     KEY_ABOVE | KEY_HASH, "added to the mean square in RMSNorm"},
    {"model", "init_std", KEY_REAL, AT(model.init_std), 0, 100, "0.02", NULL, NULL,
     KEY_ABOVE | KEY_HASH, "standard deviation of fresh weights"},
    {"model", "rope_theta", KEY_REAL, AT(model.rope_theta), 1, MAX_REAL, "500000", NULL, NULL,
     KEY_ABOVE | KEY_HASH, "base of the rotary frequencies"},
    {"model", "rope_scaling.factor", KEY_REAL, AT(model.rope_scaling.factor), 1, 1e6, "8", NULL,
     NULL, KEY_HASH, "Llama-3 frequency scaling; on when any rope_scaling key is given"},
    {"model", "rope_scaling.low_freq_factor", KEY_REAL, AT(model.rope_scaling.low_freq_factor), 0,
     1e6, "1", NULL, NULL, KEY_ABOVE | KEY_HASH,
     "wavelengths above original_context / this are scaled in full"},
    {"model", "rope_scaling.high_freq_factor", KEY_REAL, AT(model.rope_scaling.high_freq_factor), 0,
     1e6, "4", NULL, NULL, KEY_ABOVE | KEY_HASH,
     "wavelengths below original_context / this stay as they are"},
    {"model", "rope_scaling.original_context", KEY_INT64, AT(model.rope_scaling.original_context),
     1, 1e12, "8192", NULL, NULL, KEY_HASH, "context the frequencies were made for, tokens"},

    {"data", "format", KEY_CHOICE, AT(data.format), 0, 0, "text", NULL, formats, KEY_HASH,
     "text: bytes are tokens; bin: llm.c; megatron: .bin with .idx"},
    {"data", "train", KEY_PATHS, AT(data.files), 0, 0, NULL, NULL, NULL, KEY_REQUIRED | KEY_HASH,
     "file or list of files, read as one in this order"},
    {"data", "validation", KEY_PATHS, AT(data.val_files), 0, 0, NULL, NULL, NULL, KEY_OPTIONAL,
     "file or list of files for the validation loss"},
    {"data", "val_fraction", KEY_REAL, AT(data.val_fraction), 0, 0.5, "0", NULL, NULL, KEY_HASH,
     "part of each training file's end kept for validation; 0: none"},

    {"training", "steps", KEY_INT64, AT(training.steps), 1, MAX_STEPS, NULL, NULL, NULL,
     KEY_REQUIRED, "optimizer steps"},
    {"training", "decay_steps", KEY_INT64, AT(training.decay_steps), 1, MAX_STEPS, NULL, "steps",
     NULL, KEY_HASH, "where the learning-rate schedule ends"},
    {"training", "warmup_steps", KEY_INT64, AT(training.warmup_steps), 0, MAX_STEPS, "0", NULL,
     NULL, KEY_HASH, "steps of linear warm-up"},
    {"training", "global_batch", KEY_INT64, AT(training.global_batch), 1, 1e9, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "samples a step, over all ranks"},
    {"training", "microbatch", KEY_INT64, AT(training.microbatch), 1, 1048576, "1", NULL, NULL, 0,
     "samples a rank handles at once"},
    {"training", "sequence", KEY_INT64, AT(training.sequence), 1, 16777216, NULL, NULL, NULL,
     KEY_REQUIRED | KEY_HASH, "tokens a sample"},
    {"training", "seed", KEY_UINT64, AT(training.seed), 0, 0, "1", NULL, NULL, KEY_HASH,
     "of weights and of the order of samples"},
    {"training", "precision", KEY_CHOICE, AT(training.precision), 0, 0, "float32", NULL, precisions,
     KEY_HASH, "arithmetic"},
    {"training", "lr", KEY_REAL, AT(training.lr), 0, 1e3, "3e-4", NULL, NULL, KEY_ABOVE | KEY_HASH,
     "peak learning rate"},
    {"training", "min_lr", KEY_REAL, AT(training.min_lr), 0, 1e3, NULL, "lr / 10", NULL, KEY_HASH,
     "learning rate at decay_steps and after"},
    {"training", "lr_schedule", KEY_CHOICE, AT(training.lr_schedule), 0, 0, "cosine", NULL,
     lr_schedules, KEY_HASH, "shape after the warm-up; wsd: constant, then linear down at the end"},
    {"training", "wsd_decay_steps", KEY_INT64, AT(training.wsd_decay_steps), 1, MAX_STEPS, NULL,
     "a tenth of decay_steps", NULL, KEY_HASH, "steps before decay_steps in which wsd decays"},
    {"training", "beta1", KEY_REAL, AT(training.beta1), 0, 1, "0.9", NULL, NULL,
     KEY_BELOW | KEY_HASH, "AdamW: decay of the first moment"},
    {"training", "beta2", KEY_REAL, AT(training.beta2), 0, 1, "0.95", NULL, NULL,
     KEY_BELOW | KEY_HASH, "AdamW: decay of the second moment"},
    {"training", "eps", KEY_REAL, AT(training.eps), 0, 1, "1e-8", NULL, NULL, KEY_ABOVE | KEY_HASH,
     "AdamW: added to the root of the second moment"},
    {"training", "weight_decay", KEY_REAL, AT(training.weight_decay), 0, 100, "0.1", NULL, NULL,
     KEY_HASH, "decoupled; matrices only, not norms"},
    {"training", "clip", KEY_REAL, AT(training.clip), 0, MAX_REAL, "1", NULL, NULL, KEY_HASH,
     "largest global gradient norm; 0: no clipping"},
    {"training", "val_every", KEY_INT64, AT(training.val_every), 0, MAX_STEPS, "0", NULL, NULL, 0,
     "steps between validations; 0: only at the end"},
    {"training", "val_batches", KEY_INT64, AT(training.val_batches), 1, 1e6, "1", NULL, NULL, 0,
     "global batches of one validation"},
    {"training", "threads", KEY_INT, AT(training.threads), 0, 1024, "0", NULL, NULL, 0,
     "threads a rank; 0: cores / ranks on the node"},

    {"parallel", "tensor", KEY_INT, AT(parallel.tensor), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "ranks that share each matrix"},
    {"parallel", "context", KEY_INT, AT(parallel.context), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "ranks that share each sequence"},
    {"parallel", "expert", KEY_INT, AT(parallel.expert), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "ranks that share the experts"},
    {"parallel", "pipeline", KEY_INT, AT(parallel.pipeline), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "stages that share the layers"},
    {"parallel", "virtual", KEY_INT, AT(parallel.virtual_stages), 1, 10000, "1", NULL, NULL, 0,
     "chunks of layers a stage (interleaved schedules)"},
    {"parallel", "data", KEY_INT, AT(parallel.data), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "replicas that share the batch"},
    {"parallel", "schedule", KEY_CHOICE, AT(parallel.schedule), 0, 0, "1f1b", NULL, schedules, 0,
     "order of a stage's forwards and backwards"},
    {"parallel", "shard", KEY_CHOICE, AT(parallel.shard), 0, 0, "none", NULL, shards, 0,
     "what replicas split among them (ZeRO 1, 2, 3)"},
    {"parallel", "uneven", KEY_BOOL, AT(parallel.uneven), 0, 0, "false", NULL, NULL, 0,
     "global_batch need not divide among the replicas: the first ones take a microbatch more"},

    {"checkpoint", "local", KEY_PATH, AT(checkpoint.local), 0, 0, NULL, NULL, NULL, KEY_OPTIONAL,
     "folder on each node's own disk"},
    {"checkpoint", "shared", KEY_RUN_PATH, AT(checkpoint.shared), 0, 0, NULL, NULL, NULL,
     KEY_OPTIONAL,
     "folder that all nodes see, to which local checkpoints are copied in the background; without "
     "local, checkpoints are written there at once"},
    {"checkpoint", "shared_every", KEY_INT64, AT(checkpoint.shared_every), 0, MAX_STEPS, "0", NULL,
     NULL, 0, "every so many committed local checkpoints one is copied; 0: a run's last only"},
    {"checkpoint", "shared_keep", KEY_INT, AT(checkpoint.shared_keep), 0, 1000, "2", NULL, NULL, 0,
     "copied checkpoints kept; 0: all"},
    {"checkpoint", "shared_bytes_per_s", KEY_INT64, AT(checkpoint.shared_bytes_per_s), 0, 1e15,
     "268435456", NULL, NULL, 0, "how fast a rank copies while it trains; 0: as fast as it can"},
    {"checkpoint", "every", KEY_INT64, AT(checkpoint.every), 0, MAX_STEPS, "0", NULL, NULL,
     KEY_AUTO,
     "steps between checkpoints, more where one is not committed yet when the next is due; 0: "
     "never; "
     "auto: from what one is seen to cost, and mtbf_hours"},
    {"checkpoint", "keep", KEY_INT, AT(checkpoint.keep), 2, 1000, "2", NULL, NULL, 0,
     "committed checkpoints kept"},
    {"checkpoint", "snapshots", KEY_INT64, AT(checkpoint.snapshots), 0, MAX_STEPS, "1", NULL, NULL,
     KEY_AUTO,
     "steps between copies of the state in the node's memory and in another node's (a replica's "
     "may "
     "be one), from which a lost process or node is made up for; they take about four times the "
     "checkpoint's size, twice where replicas' will do; 0: none; auto: as often as they cost at "
     "most 0.5 % of the time"},
    {"checkpoint", "redundancy", KEY_REDUNDANCY, AT(checkpoint.redundancy), 0, 0, "none", NULL,
     NULL, 0,
     "what local checkpoints survive: partner: a lost node, by a copy of each rank's file on "
     "another; xor:N: a lost node in each group of N, by parity (1 / (N - 1) of a file more on "
     "each); rs:P+K: any K lost nodes in each group of P + K (K / P of a file more)"},
    {"checkpoint", "queue_depth", KEY_INT, AT(checkpoint.queue_depth), 1, 1024, "16", NULL, NULL, 0,
     "writes in flight a rank"},
    {"checkpoint", "block_bytes", KEY_INT64, AT(checkpoint.block_bytes), 4096, 1073741824,
     "1048576", NULL, NULL, 0, "bytes of one write, a multiple of 4096"},

    {"resilience", "spares", KEY_INT, AT(resilience.spares), 0, MAX_DEGREE, "0", NULL, NULL, 0,
     "nodes that wait to take over a lost node's ranks"},
    {"resilience", "heartbeat_ms", KEY_INT64, AT(resilience.heartbeat_ms), 10, MAX_MS, "1000", NULL,
     NULL, 0, "time between a node's signs of life"},
    {"resilience", "patience_ms", KEY_INT64, AT(resilience.patience_ms), 100, MAX_MS, "10000", NULL,
     NULL, 0, "silence after which a node counts as lost"},
    {"resilience", "start_patience_ms", KEY_INT64, AT(resilience.start_patience_ms), 100, MAX_MS,
     "30000", NULL, NULL, 0,
     "time within which a node that died before it registered is noticed, and that spares have to "
     "come once there are nodes for all ranks; later ones join"},
    {"resilience", "comm_timeout_ms", KEY_INT64, AT(resilience.comm_timeout_ms), 100, MAX_MS,
     "600000", NULL, NULL, 0, "longest single wait for another rank"},
    {"resilience", "stall_ms", KEY_INT64, AT(resilience.stall_ms), 100, MAX_MS, "120000", NULL,
     NULL, 0,
     "shortest time without a step after which a run may count as hung; more if its steps are "
     "long"},
    {"resilience", "restarts", KEY_INT, AT(resilience.restarts), 0, 1000, "3", NULL, NULL, 0,
     "of a worker that dies on a healthy node, before that is called a bug"},
    {"resilience", "relaunches", KEY_INT, AT(resilience.relaunches), 0, 1000, "3", NULL, NULL, 0,
     "of the step in its allocation, when it cannot go on but the allocation can, each without "
     "progress since the last; 0: never"},
    {"resilience", "requeues", KEY_INT, AT(resilience.requeues), 0, 1000, "10", NULL, NULL, 0,
     "of a batch job that has lost more nodes than it has spares; 0: never"},
    {"resilience", "shrink", KEY_BOOL, AT(resilience.shrink), 0, 0, "false", NULL, NULL, 0,
     "go on with fewer replicas when no spare is left; the global batch stays as it is"},
    {"resilience", "min_data", KEY_INT, AT(resilience.min_data), 1, MAX_DEGREE, "1", NULL, NULL, 0,
     "fewest replicas that shrink may leave"},
    /* Llama Team (2024), The Llama 3 Herd of Models, section 3.3.4: 419 unexpected interruptions in
     * 54 days on 16,384 GPUs, 8 to a node: 54 * 24 h * 2,048 / 419. */
    {"resilience", "mtbf_hours", KEY_REAL, AT(resilience.mtbf_hours), 0, 1e9, "6335", NULL, NULL,
     KEY_ABOVE,
     "mean time between failures of one node, for checkpoint.every: auto (default: as published "
     "for "
     "Llama 3's training)"},
};

const int plan_n_keys = sizeof plan_keys / sizeof *plan_keys;

int plan_key_find(const char *section, const char *name)
{
    for (int i = 0; i < plan_n_keys; i++)
        if (!strcmp(plan_keys[i].section, section) && !strcmp(plan_keys[i].name, name))
            return i;
    return -1;
}

bool plan_key_is_section(const char *section)
{
    for (int i = 0; i < plan_n_keys; i++)
        if (!strcmp(plan_keys[i].section, section))
            return true;
    return false;
}

bool plan_key_is_group(const char *section, const char *group)
{
    size_t length = strlen(group);
    for (int i = 0; i < plan_n_keys; i++)
        if (!strcmp(plan_keys[i].section, section) && !strncmp(plan_keys[i].name, group, length) &&
            plan_keys[i].name[length] == '.')
            return true;
    return false;
}

const char *plan_key_home(const char *name)
{
    for (int i = 0; i < plan_n_keys; i++)
        if (!strcmp(plan_keys[i].name, name))
            return plan_keys[i].section;
    return NULL;
}

/* Edit distance (Wagner and Fischer 1974), of names up to NEAR_MAX bytes. */
enum { NEAR_MAX = 40 };

static int distance(const char *a, const char *b)
{
    int row[NEAR_MAX + 1];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *plan_key_near(const char *section, const char *name, char *text, size_t size)
{
    int best = (int)strlen(name) / 2 + 1; /* further away than half of it is another word */
    bool found = false;
    if (strlen(name) > NEAR_MAX)
        return NULL;
    for (int i = 0; i < plan_n_keys; i++) {
        const struct plan_key *key = &plan_keys[i];
        if (section && strcmp(key->section, section))
            continue;
        int d = distance(name, section ? key->name : key->section);
        if (d >= best)
            continue;
        best = d;
        found = true;
        snprintf(text, size, "%s%s%s", key->section, section ? "." : "", section ? key->name : "");
    }
    return found ? text : NULL;
}

void plan_key_range(const struct plan_key *key, char *text, size_t size)
{
    bool above = key->flags & KEY_ABOVE, below = key->flags & KEY_BELOW;
    int n = 0;
    switch (key->type) {
    case KEY_INT64:
    case KEY_INT:
        snprintf(text, size, "a whole number from %.0f to %.0f%s", key->min, key->max,
                 key->flags & KEY_AUTO ? ", or auto" : "");
        break;
    case KEY_UINT64:
        snprintf(text, size, "a whole number from 0 to %llu", (unsigned long long)UINT64_MAX);
        break;
    case KEY_REAL:
        snprintf(text, size, "a number %s %g %s %g", above ? "above" : "from", key->min,
                 above || below ? below ? "and below" : "and up to" : "to", key->max);
        break;
    case KEY_BOOL:
        snprintf(text, size, "true or false");
        break;
    case KEY_CHOICE:
        for (int i = 0; key->choices[i]; i++) {
            const char *gap = i == 0 ? "" : key->choices[i + 1] ? ", " : " or ";
            n += snprintf(text + n, size - (size_t)n, "%s%s", gap, key->choices[i]);
        }
        break;
    case KEY_REDUNDANCY:
        snprintf(text, size,
                 "none, partner, xor:N (N from 2 to %d) or rs:P+K (K from 1 to %d, "
                 "P + K up to %d)",
                 PLAN_GROUP_MAX, PLAN_PARITIES_MAX, PLAN_GROUP_MAX);
        break;
    case KEY_NAME:
        snprintf(text, size, "letters, digits, dots, dashes and underscores");
        break;
    case KEY_PATH:
        snprintf(text, size, "a path");
        break;
    case KEY_RUN_PATH:
        snprintf(text, size, "a path (a relative one counts from the run folder)");
        break;
    case KEY_PATHS:
        snprintf(text, size, "a path, or [path, ...]");
        break;
    }
}

/* "default 1e-5", "default: heads", "required", "optional". */
static void describe_default(const struct plan_key *key, char *text, size_t size)
{
    if (key->fallback)
        snprintf(text, size, "default %s", key->fallback);
    else if (key->computed)
        snprintf(text, size, "default: %s", key->computed);
    else
        snprintf(text, size, "%s", key->flags & KEY_REQUIRED ? "required" : "optional");
}

void plan_keys_print(FILE *out)
{
    for (int i = 0; i < plan_n_keys; i++) {
        const struct plan_key *key = &plan_keys[i];
        char range[200], other[80];
        if (i == 0 || strcmp(plan_keys[i - 1].section, key->section))
            fprintf(out, "%s%s:\n", i ? "\n" : "", key->section);
        plan_key_range(key, range, sizeof range);
        describe_default(key, other, sizeof other);
        fprintf(out, "  %s: %s (%s)\n      %s\n", key->name, range, other, key->doc);
    }
}

/* A minus that can be copied from the page and a full stop that is no request. */
static void write_man(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '-' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
}

void plan_keys_print_man(FILE *out)
{
    for (int i = 0; i < plan_n_keys; i++) {
        const struct plan_key *key = &plan_keys[i];
        char range[200], other[80];
        if (i == 0 || strcmp(plan_keys[i - 1].section, key->section))
            fprintf(out, ".SS %s\n", key->section);
        plan_key_range(key, range, sizeof range);
        describe_default(key, other, sizeof other);
        fprintf(out, ".TP\n.B %s\n", key->name);
        write_man(range, out);
        fputs(" (", out);
        write_man(other, out);
        fputs(")\n.br\n", out);
        write_man(key->doc, out);
        fputc('\n', out);
    }
}
