/* record.c - claims and commit records: print, parse, join. */
#include "record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "parity.h"

static const char *const kind_names[] = {[RECORD_CLAIM] = "claim", [RECORD_COMMIT] = "commit"};

static void print_rank(FILE *f, int rank, const struct record_rank *r)
{
    fprintf(f, " rank=%d node=%s path=%s bytes=%" PRId64 " digest=%08" PRIx32, rank, r->node,
            r->path, r->bytes, r->digest);
    if (r->cut)
        fprintf(f, " cut=%016" PRIx64, r->cut);
    if (r->parity.path)
        fprintf(f,
                " parity=%s parity_bytes=%" PRId64 " parity_digest=%08" PRIx32
                " parity_group=%d parity_member=%d parity_keeps=%d",
                r->parity.path, r->parity.bytes, r->parity.digest, r->parity.group,
                r->parity.member, r->parity.keeps);
}

char *record_print(const struct record *r, enum record_kind kind)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    const struct file_meta *m = &r->meta;
    fprintf(f,
            "%s v=1 run=%s epoch=%" PRIu32 " generation=%" PRIu32 " step=%" PRId64
            " samples=%" PRId64 " plan=%016" PRIx64 " world=%d",
            kind_names[kind], m->run, m->key.epoch, m->key.generation, m->key.step, m->samples,
            m->plan_hash, m->world);
    for (int i = 0; i < r->n; i++)
        print_rank(f, kind == RECORD_CLAIM ? m->rank : i, &r->ranks[i]);
    if (!fclose(f))
        return text;
    free(text);
    return NULL;
}

/* One key=value word at a time. */
struct words {
    char *at; /* a copy of the text, cut up as it is read */
    char *key, *value;
};

static int next_word(struct words *w)
{
    char *word;
    do
        word = strsep(&w->at, " ");
    while (word && !*word);
    if (!word)
        return 0;
    w->key = word;
    w->value = strchr(word, '=');
    if (!w->value)
        return -1;
    *w->value++ = 0;
    return 1;
}

static bool whole_number(const char *text, int64_t most, int64_t *out)
{
    return take_number(&text, most, out) && !*text;
}

static bool whole_hex(const char *text, int digits, uint64_t *out)
{
    return take_hex(&text, digits, out) && !*text;
}

enum word { WORD_OK, WORD_BAD, WORD_UNKNOWN };

static enum word head_word(struct file_meta *m, const char *key, const char *value, int *seen)
{
    static const char *const keys[] = {"v",    "run",     "epoch", "generation",
                                       "step", "samples", "plan",  "world"};
    int which = 0;
    while (which < 8 && strcmp(keys[which], key))
        which++;
    if (which == 8)
        return WORD_UNKNOWN;
    if (*seen & 1 << which)
        return WORD_BAD;
    *seen |= 1 << which;
    int64_t v = 0;
    bool good = false;
    switch (which) {
    case 0:
        good = !strcmp(value, "1");
        break;
    case 1:
        good = name_run_valid(value);
        if (good)
            strcpy(m->run, value);
        break;
    case 2:
        good = whole_number(value, UINT32_MAX, &v);
        m->key.epoch = (uint32_t)v;
        break;
    case 3:
        good = whole_number(value, UINT32_MAX, &v);
        m->key.generation = (uint32_t)v;
        break;
    case 4:
        good = whole_number(value, INT64_MAX, &m->key.step);
        break;
    case 5:
        good = whole_number(value, INT64_MAX, &m->samples);
        break;
    case 6:
        good = whole_hex(value, 16, &m->plan_hash);
        break;
    case 7:
        good = whole_number(value, CKPT_WORLD_MAX, &v) && v > 0;
        m->world = (int)v;
        break;
    }
    return good ? WORD_OK : WORD_BAD;
}

enum { PARITY_WORDS = 6 };

static enum word parity_word(struct record_parity *p, const char *key, const char *value)
{
    static const char *const keys[PARITY_WORDS] = {"parity",       "parity_bytes",  "parity_digest",
                                                   "parity_group", "parity_member", "parity_keeps"};
    int which = 0;
    while (which < PARITY_WORDS && strcmp(keys[which], key))
        which++;
    if (which == PARITY_WORDS)
        return WORD_UNKNOWN;
    if (p->words & 1u << which)
        return WORD_BAD;
    p->words |= 1u << which;
    struct ckpt_name name;
    uint64_t digest = 0;
    int64_t v = 0;
    bool good = false;
    switch (which) {
    case 0:
        name_parse(value, &name);
        good = name.kind == NAME_PARITY && (p->path = strdup(value));
        break;
    case 1:
        good = whole_number(value, INT64_MAX, &p->bytes) && p->bytes;
        break;
    case 2:
        good = whole_hex(value, 8, &digest);
        p->digest = (uint32_t)digest;
        break;
    case 3:
        good = whole_number(value, CKPT_WORLD_MAX - 1, &v);
        p->group = (int)v;
        break;
    case 4:
        good = whole_number(value, PARITY_MEMBERS_MAX - 1, &v);
        p->member = (int)v;
        break;
    case 5:
        good = whole_number(value, PARITY_KEEPS_MAX, &v) && v > 0;
        p->keeps = (int)v;
        break;
    }
    return good ? WORD_OK : WORD_BAD;
}

static enum word rank_word(struct record_rank *r, const char *key, const char *value)
{
    uint64_t digest;
    struct ckpt_name name;
    if (!strcmp(key, "node") && !r->node)
        return name_node_valid(value) && (r->node = strdup(value)) ? WORD_OK : WORD_BAD;
    if (!strcmp(key, "path") && !r->path) {
        name_parse(value, &name); /* one of ours, so surely no way out of the folder */
        return name.kind == NAME_FILE && (r->path = strdup(value)) ? WORD_OK : WORD_BAD;
    }
    if (!strcmp(key, "bytes") && !r->bytes)
        return whole_number(value, INT64_MAX, &r->bytes) && r->bytes ? WORD_OK : WORD_BAD;
    if (!strcmp(key, "digest")) {
        if (!whole_hex(value, 8, &digest))
            return WORD_BAD;
        r->digest = (uint32_t)digest;
        return WORD_OK;
    }
    if (!strcmp(key, "cut"))
        return whole_hex(value, 16, &r->cut) ? WORD_OK : WORD_BAD;
    bool twice = !strcmp(key, "node") || !strcmp(key, "path") || !strcmp(key, "bytes");
    return twice ? WORD_BAD : parity_word(&r->parity, key, value);
}

/* "rank=": checks the one before, makes room for the next. */
static int begin_rank(struct record *r, enum record_kind kind, const char *value)
{
    int64_t rank;
    if (!whole_number(value, CKPT_WORLD_MAX - 1, &rank) || rank >= r->meta.world)
        return -1;
    if (kind == RECORD_CLAIM ? r->n == 1 : rank != r->n)
        return -1;
    if (!(r->n & (r->n - 1))) {
        void *more = reallocarray(r->ranks, r->n ? (size_t)r->n * 2 : 1, sizeof *r->ranks);
        if (!more)
            return -1;
        r->ranks = more;
    }
    if (kind == RECORD_CLAIM)
        r->meta.rank = (int)rank;
    memset(&r->ranks[r->n++], 0, sizeof *r->ranks);
    return 0;
}

/* Each group has each of its members once, and they agree on what it keeps. count: of a group's
 * members, first: its first rank; taken[group's first place + member]. All of r->n, and zero. */
static bool check_groups(const struct record *r, int *count, int *first, bool *taken)
{
    for (int i = 0; i < r->n; i++) {
        const struct record_parity *p = &r->ranks[i].parity;
        if (!p->words)
            continue;
        if (p->words != (1u << PARITY_WORDS) - 1 || p->group >= r->n)
            return false;
        if (!count[p->group]++)
            first[p->group] = i;
        if (r->ranks[first[p->group]].parity.keeps != p->keeps)
            return false;
    }
    for (int i = 0, at = 0; i < r->n; i++) { /* from now on: where its members' places begin */
        first[i] = at;
        at += count[i];
    }
    for (int i = 0; i < r->n; i++) {
        const struct record_parity *p = &r->ranks[i].parity;
        if (!p->words)
            continue;
        if (p->member >= count[p->group] || p->keeps >= count[p->group] ||
            taken[first[p->group] + p->member])
            return false;
        taken[first[p->group] + p->member] = true;
    }
    return true;
}

static bool groups_good(const struct record *r)
{
    size_t n = (size_t)r->n;
    int *count = calloc(n, sizeof *count), *first = calloc(n, sizeof *first);
    bool *taken = calloc(n, sizeof *taken);
    bool good = count && first && taken && check_groups(r, count, first, taken);
    free(count);
    free(first);
    free(taken);
    return good;
}

/* The name of a rank's file says what the record says: whoever reads that file as this step's gets
 * no other's. */
static bool names_file_of(const struct file_meta *m, int rank, const char *path)
{
    struct ckpt_name name;
    name_parse(path, &name);
    return !strcmp(name.run, m->run) && !key_compare(&name.key, &m->key) && name.rank == rank;
}

static bool names_good(const struct record *r, enum record_kind kind)
{
    for (int i = 0; i < r->n; i++) {
        const struct record_rank *k = &r->ranks[i];
        int rank = kind == RECORD_CLAIM ? r->meta.rank : i;
        if (!names_file_of(&r->meta, rank, k->path) ||
            (k->parity.path && !names_file_of(&r->meta, rank, k->parity.path)))
            return false;
    }
    return true;
}

static bool complete(const struct record *r, enum record_kind kind, int seen)
{
    if (seen != 0xff || r->n != (kind == RECORD_CLAIM ? 1 : r->meta.world))
        return false;
    for (int i = 0; i < r->n; i++)
        if (!r->ranks[i].node || !r->ranks[i].path || !r->ranks[i].bytes)
            return false;
    if (!names_good(r, kind))
        return false;
    if (kind == RECORD_COMMIT)
        return groups_good(r);
    return !r->ranks[0].parity.words || r->ranks[0].parity.words == (1u << PARITY_WORDS) - 1;
}

static int parse_words(struct words *w, enum record_kind kind, struct record *out, struct err *err)
{
    int seen = 0, more;
    char *first = strsep(&w->at, " ");
    if (!first || strcmp(first, kind_names[kind]))
        return err_set(err, "a %s should stand here, not '%.80s'", kind_names[kind],
                       first ? first : "");
    while ((more = next_word(w)) > 0) {
        enum word word;
        if (!strcmp(w->key, "rank"))
            word = seen == 0xff && !begin_rank(out, kind, w->value) ? WORD_OK : WORD_BAD;
        else if (out->n)
            word = rank_word(&out->ranks[out->n - 1], w->key, w->value);
        else
            word = head_word(&out->meta, w->key, w->value, &seen);
        if (word == WORD_BAD)
            return err_set(err, "%s: %.40s=%.200s is not what it should be", kind_names[kind],
                           w->key, w->value);
    }
    if (more < 0)
        return err_set(err, "%s: '%.80s' is no key=value", kind_names[kind], w->key);
    return complete(out, kind, seen)
               ? 0
               : err_set(err, "%s: words are missing, or do not agree", kind_names[kind]);
}

int record_parse(const char *text, int64_t n, enum record_kind kind, struct record *out,
                 struct err *err)
{
    memset(out, 0, sizeof *out);
    if (memchr(text, 0, (size_t)n))
        return err_set(err, "%s: a NUL in the text", kind_names[kind]);
    char *copy = strndup(text, (size_t)n);
    if (!copy)
        return err_set(err, "out of memory");
    struct words w = {.at = copy};
    int rv = parse_words(&w, kind, out, err);
    free(copy);
    if (rv)
        record_free(out);
    return rv;
}

void record_free(struct record *r)
{
    for (int i = 0; i < r->n; i++) {
        free(r->ranks[i].node);
        free(r->ranks[i].path);
        free(r->ranks[i].parity.path);
    }
    free(r->ranks);
    memset(r, 0, sizeof *r);
}

/* Everything but the rank must be the same in all claims of a checkpoint. */
static bool same_checkpoint(const struct file_meta *a, const struct file_meta *b)
{
    return !strcmp(a->run, b->run) && !key_compare(&a->key, &b->key) && a->samples == b->samples &&
           a->world == b->world && a->plan_hash == b->plan_hash;
}

static int join_claim(struct record *joined, const char *text, int rank, struct err *err)
{
    struct record claim;
    if (!text)
        return err_set(err, "rank %d has no claim", rank);
    if (record_parse(text, (int64_t)strlen(text), RECORD_CLAIM, &claim, err))
        return err_prefix(err, "rank %d", rank);
    int rv = 0;
    if (!rank)
        joined->meta = claim.meta;
    if (claim.meta.rank != rank)
        rv = err_set(err, "the claim in place %d is of rank %d", rank, claim.meta.rank);
    else if (!same_checkpoint(&claim.meta, &joined->meta))
        rv = err_set(err,
                     "rank %d claims step %" PRId64 " (epoch %" PRIu32 ", generation %" PRIu32
                     "), rank 0 step %" PRId64 " (%" PRIu32 ", %" PRIu32
                     "), or run, samples, world or plan differ: they are not one checkpoint",
                     rank, claim.meta.key.step, claim.meta.key.epoch, claim.meta.key.generation,
                     joined->meta.key.step, joined->meta.key.epoch, joined->meta.key.generation);
    if (rv) {
        record_free(&claim);
        return rv;
    }
    joined->ranks[joined->n++] = claim.ranks[0];
    free(claim.ranks);
    return 0;
}

char *ckpt_record(const char *const *claims, int world, struct err *err)
{
    struct record joined = {.n = 0};
    char *text = NULL;
    if (world < 1 || world > CKPT_WORLD_MAX) {
        err_set(err, "%d claims cannot make a record", world);
        return NULL;
    }
    joined.ranks = calloc((size_t)world, sizeof *joined.ranks);
    if (!joined.ranks) {
        err_set(err, "out of memory for %d claims", world);
        return NULL;
    }
    for (int rank = 0; rank < world; rank++)
        if (join_claim(&joined, claims[rank], rank, err))
            goto out;
    if (joined.meta.world != world) {
        err_set(err, "%d claims were given for a world of %d", world, joined.meta.world);
        goto out;
    }
    joined.meta.rank = 0;
    text = record_print(&joined, RECORD_COMMIT);
    if (!text)
        err_set(err, "out of memory for a record of %d ranks", world);
out:
    record_free(&joined);
    return text;
}
