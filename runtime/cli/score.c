/* score.c - see score.h. */
#include "cli/score.h"

#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 16 << 20 };

struct tokens {
    int32_t *all;
    int64_t n;
};

static int add_token(struct tokens *t, int32_t token)
{
    if (t->n == TOKENS_MAX)
        return -1;
    if (!(t->n & (t->n - 1))) {
        void *more = reallocarray(t->all, t->n ? (size_t)t->n * 2 : 1, sizeof *t->all);
        if (!more)
            return -1;
        t->all = more;
    }
    t->all[t->n++] = token;
    return 0;
}

static int read_tokens(FILE *in, const char *path, bool bytes, struct tokens *t)
{
    char word[32];
    for (int c, n; (c = bytes ? fgetc(in) : 0) != EOF;) {
        if (!bytes && (n = fscanf(in, "%31s", word)) != 1)
            break;
        char *end = word;
        long token = bytes ? c : strtol(word, &end, 10);
        if (!bytes && (end == word || *end || token < 0 || token > INT32_MAX)) {
            cli_error("generate: %s: '%s' is no token number", path, word);
            return -1;
        }
        if (add_token(t, (int32_t)token)) {
            cli_error("generate: %s: more than %d tokens, or no memory for them", path, TOKENS_MAX);
            return -1;
        }
    }
    if (!ferror(in))
        return 0;
    cli_error("generate: %s: %s", path, strerror(errno));
    return -1;
}

struct total {
    double sum;
    int64_t n;
};

static void print_score(void *arg, int32_t token, double log_probability)
{
    struct total *total = arg;
    printf("%" PRId32 " %.9g\n", token, log_probability);
    total->sum -= log_probability;
    total->n++;
}

int score_file(const char *path, const struct plan *plan, const struct weights_source *source,
               int threads)
{
    struct tokens t = {.n = 0};
    struct total total = {.n = 0};
    struct err err;
    FILE *in = fopen(path, "re");
    if (!in) {
        cli_error("generate: %s: %s", path, strerror(errno));
        return EXIT_USAGE;
    }
    int rv = read_tokens(in, path, plan->data.format == PLAN_DATA_TEXT, &t);
    fclose(in);
    struct score_options o = {.plan = plan,
                              .source = *source,
                              .tokens = t.all,
                              .n = t.n,
                              .threads = threads,
                              .score = print_score,
                              .arg = &total};
    if (!rv && (rv = sample_score(&o, NULL, &err)))
        cli_error("generate: %s", err.text);
    free(t.all);
    if (rv)
        return EXIT_USAGE;
    double mean = total.sum / (double)total.n;
    printf("%" PRId64 " tokens, loss %.9g, perplexity %.6g\n", total.n, mean, exp(mean));
    return EXIT_OK;
}
