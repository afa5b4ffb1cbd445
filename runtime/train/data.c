/* data.c - windows over token files, and the permutation that orders them; see data.h.
 *
 * Every file of the split gives the run of tokens [begin, end) that belongs to it: the whole file,
 * or what val_fraction leaves of it or takes from its end. A run of n tokens holds
 * (n - 1) / sequence windows of sequence + 1 tokens that overlap by one; what is left over at its
 * end is never seen. Windows are numbered through all files in the plan's order.
 *
 * The order of an epoch is a Feistel permutation: an index is cut into two halves of h bits, and
 * each round adds to one half a hash of the other, of the round and of (seed, epoch). That is one
 * to one on [0, 4^h) whatever the hash; an index that falls outside [0, windows) is sent through
 * again until it falls inside (4^h < 4 * windows, so four times on average at worst), which keeps
 * it one to one on [0, windows). */
#include "train/data.h"

#include <math.h>
#include <stdlib.h>

#include "train/token_file.h"

/* Rounds of the permutation. Three would do against an onlooker (Luby and Rackoff 1988); windows of
 * small files have halves of a few bits only, where more rounds still mix better. */
enum { FEISTEL_ROUNDS = 6 };

struct run {
    struct token_file file;
    int64_t begin;        /* first token of the split's part */
    int64_t first_window; /* number of its first window */
};

struct data {
    struct run *runs;
    int n_runs;
    int64_t sequence, windows, tokens;
    uint64_t seed;
    bool permuted;
    int half_bits;
};

/* Finaliser of splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t permute(const struct data *d, uint64_t epoch, uint64_t index)
{
    uint64_t mask = ((uint64_t)1 << d->half_bits) - 1;
    uint64_t key = mix(mix(d->seed + 0x9e3779b97f4a7c15u) ^ epoch);
    do {
        uint64_t left = index >> d->half_bits, right = index & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t sum = (left + mix(key + (round << 56) + right)) & mask;
            left = right;
            right = sum;
        }
        index = left << d->half_bits | right;
    } while (index >= (uint64_t)d->windows);
    return index;
}

/* Which tokens of a file belong to the split. */
static void run_bounds(const struct plan *plan, enum data_split split, int64_t count,
                       int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = count;
    if (plan->data.n_val_files || plan->data.val_fraction <= 0)
        return;
    int64_t border = count - (int64_t)floor((double)count * plan->data.val_fraction);
    if (split == DATA_TRAIN)
        *end = border;
    else
        *begin = border;
}

static int run_open(struct data *d, const struct plan *plan, enum data_split split,
                    const char *path, const char *key, struct err *err)
{
    struct run *r = &d->runs[d->n_runs];
    struct err why = {{0}};
    if (token_file_open(&r->file, plan->data.format, path, &why))
        return plan_error(plan, key, err, "%s: %s", key, why.text);
    d->n_runs++;

    int64_t end;
    run_bounds(plan, split, r->file.count, &r->begin, &end);
    int64_t tokens = end - r->begin;
    int64_t windows = tokens > 0 ? (tokens - 1) / d->sequence : 0;
    if (windows < 1)
        return plan_error(
            plan, key, err,
            "%s: %s: has %lld tokens for %s, but one sample needs training.sequence + "
            "1 = %lld: use a longer file or a shorter sequence",
            key, path, (long long)tokens, split == DATA_TRAIN ? "training" : "validation",
            (long long)d->sequence + 1);
    if (token_file_check(&r->file, path, r->begin, tokens, plan->model.vocab, &why))
        return plan_error(plan, key, err, "%s: %s", key, why.text);
    r->first_window = d->windows;
    d->windows += windows;
    d->tokens += windows * d->sequence;
    return 0;
}

static int check_enough(const struct data *d, const struct plan *plan, enum data_split split,
                        const char *key, struct err *err)
{
    if (d->windows >= plan->training.global_batch)
        return 0;
    return plan_error(
        plan, key, err,
        "%s: %s %lld samples of %lld tokens for %s, but one batch takes "
        "training.global_batch = %lld: use more text, a smaller batch or a shorter sequence",
        key, d->n_runs == 1 ? "the file holds" : "the files hold", (long long)d->windows,
        (long long)d->sequence, split == DATA_TRAIN ? "training" : "validation",
        (long long)plan->training.global_batch);
}

static int open_runs(struct data *d, const struct plan *plan, enum data_split split,
                     struct err *err)
{
    bool own = split == DATA_VALIDATION && plan->data.n_val_files > 0;
    char *const *files = own ? plan->data.val_files : plan->data.files;
    int n = own ? plan->data.n_val_files : plan->data.n_files;
    const char *key = own ? "data.validation" : "data.train";

    if (plan->data.format == PLAN_DATA_TEXT && plan->model.vocab < 256)
        return plan_error(plan, "model.vocab", err,
                          "model.vocab is %lld, but data.format is text, whose tokens are bytes: "
                          "use 256 or more",
                          (long long)plan->model.vocab);
    d->runs = calloc((size_t)n, sizeof *d->runs);
    if (!d->runs)
        return err_set(err, "%s: out of memory for %d files", key, n);
    for (int i = 0; i < n; i++)
        if (run_open(d, plan, split, files[i], key, err))
            return -1;
    if (check_enough(d, plan, split, own || split == DATA_TRAIN ? key : "data.val_fraction", err))
        return -1;
    while (((uint64_t)1 << (2 * d->half_bits)) < (uint64_t)d->windows)
        d->half_bits++;
    return 0;
}

int data_open(struct data **out, const struct plan *plan, enum data_split split, struct err *err)
{
    *out = NULL;
    if (split == DATA_VALIDATION && !plan->data.n_val_files && !(plan->data.val_fraction > 0))
        return 0;
    struct data *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(err, "data: out of memory");
    d->sequence = plan->training.sequence;
    d->seed = plan->training.seed;
    d->permuted = split == DATA_TRAIN;
    if (open_runs(d, plan, split, err)) {
        data_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

int64_t data_windows(const struct data *d)
{
    return d->windows;
}

int64_t data_tokens(const struct data *d)
{
    return d->tokens;
}

/* The run that holds a window: the last whose first window is not behind it. */
static const struct run *find_run(const struct data *d, int64_t window)
{
    int low = 0, high = d->n_runs - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (d->runs[middle].first_window <= window)
            low = middle;
        else
            high = middle - 1;
    }
    return &d->runs[low];
}

void data_sample(const struct data *d, int64_t index, int32_t *tokens)
{
    int64_t epoch = index / d->windows, window = index % d->windows;
    if (d->permuted)
        window = (int64_t)permute(d, (uint64_t)epoch, (uint64_t)window);
    const struct run *r = find_run(d, window);
    int64_t first = r->begin + (window - r->first_window) * d->sequence;
    token_file_read(&r->file, first, d->sequence + 1, tokens);
}

void data_close(struct data *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_runs; i++)
        token_file_close(&d->runs[i].file);
    free(d->runs);
    free(d);
}
