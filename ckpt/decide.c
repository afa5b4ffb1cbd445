/* decide.c - which checkpoint to restore. Pure: the same blobs give the same answer everywhere.
 *
 * The rule: among committed records not newer than max_step, in the order (epoch, generation, step)
 * from the newest, the first whose every rank's file, or one of a replica of it, exists somewhere
 * with the right length, or, where the caller can rebuild, can be had from its group's. What the
 * bytes are worth is found when they are read; then the caller asks again with a lower max_step, or
 * with that file marked in the scan (ckpt_scan_mark). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "catalog.h"
#include "parity.h"

/* Ranks named in the report of one checkpoint; a lost node can hold hundreds. */
enum { REPORT_RANKS = 4 };

/* The file that holds a rank's slices, and (by) whose it is: its own, or the first replica's. */
static const struct catalog_file *find(const struct catalog *c, const struct record *r, int rank,
                                       int *by, const char **why)
{
    const struct catalog_file *f = catalog_find(c, r, rank, why);
    *by = rank;
    for (int i = 0; !f && r->ranks[rank].cut && i < r->n; i++) {
        if (i == rank || r->ranks[i].cut != r->ranks[rank].cut)
            continue;
        f = catalog_find(c, r, i, NULL);
        *by = i;
    }
    return f;
}

/* report NULL: nobody asks why. */
static void say(FILE *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(FILE *report, const char *format, ...)
{
    va_list args;
    if (!report)
        return;
    va_start(args, format);
    vfprintf(report, format, args);
    va_end(args);
}

static bool is_whole(const struct catalog *c, const struct record *r, bool rebuild, FILE *report)
{
    int missing = 0;
    for (int rank = 0; rank < r->n; rank++) {
        const char *why;
        int by;
        if (find(c, r, rank, &by, &why) || (rebuild && catalog_can_rebuild(c, r, rank)))
            continue;
        if (!missing)
            say(report,
                "step %" PRId64 " (epoch %" PRIu32 ", generation %" PRIu32 ") is not whole:",
                r->meta.key.step, r->meta.key.epoch, r->meta.key.generation);
        if (missing++ < REPORT_RANKS)
            say(report, " rank %d's file on %s %s;", rank, r->ranks[rank].node, why);
    }
    if (missing > REPORT_RANKS)
        say(report, " and %d more;", missing - REPORT_RANKS);
    if (missing)
        say(report, "\n");
    return !missing;
}

/* f NULL: it lies nowhere. */
static int fill_place(struct ckpt_place *p, const struct catalog *c, const struct catalog_file *f,
                      int64_t bytes, uint32_t digest)
{
    p->bytes = bytes;
    p->digest = digest;
    if (!f)
        return 0;
    const struct catalog_source *source = &c->sources[f->source];
    p->node = strdup(source->node);
    if (asprintf(&p->path, "%s/%s", source->dir, f->path) < 0)
        p->path = NULL;
    return p->node && p->path ? 0 : -1;
}

static int fill(struct ckpt_decision *out, const struct catalog *c, int index)
{
    const struct record *r = &c->records[index];
    out->position = (struct ckpt_position){r->meta.key.step, r->meta.samples};
    out->plan_hash = r->meta.plan_hash;
    out->written_epoch = r->meta.key.epoch;
    out->written_generation = r->meta.key.generation;
    out->record = strdup(c->texts[index]);
    out->places = calloc((size_t)r->n, sizeof *out->places);
    out->parities = calloc((size_t)r->n, sizeof *out->parities);
    if (!out->record || !out->places || !out->parities)
        return -1;
    out->world = r->n;
    for (int i = 0; i < r->n; i++) {
        const struct record_rank *k = &r->ranks[i];
        int by;
        const struct catalog_file *file = find(c, r, i, &by, NULL);
        if (!file)
            by = i;
        out->lost += !file;
        out->places[i].replica = by != i;
        if (fill_place(&out->places[i], c, file, r->ranks[by].bytes, r->ranks[by].digest) ||
            fill_place(&out->parities[i], c, catalog_find_parity(c, r, i), k->parity.bytes,
                       k->parity.digest))
            return -1;
    }
    out->found = true;
    return 0;
}

/* Marked bad, and nobody has named it. */
static bool is_bad(const struct catalog *c, const struct record *r, int64_t named, FILE *report)
{
    const struct mark *m = marks_find(&c->marks, &r->meta.key);
    if (!m || r->meta.key.step == named)
        return false;
    say(report,
        "step %" PRId64 " (epoch %" PRIu32 ", generation %" PRIu32
        ") is marked bad: from it step %" PRId64 " was not finite\n",
        r->meta.key.step, r->meta.key.epoch, r->meta.key.generation, m->nan_step);
    return true;
}

/* What may be taken: not newer than max_step (-1: any); a step that is marked bad but named (-1:
 * none is); what can be rebuilt. */
struct terms {
    int64_t max_step, named;
    bool rebuild;
};

/* The next to be taken from index on; -1: none. */
static int next_good(const struct catalog *c, int index, const struct terms *terms, FILE *report,
                     int *passed_over)
{
    for (; index < c->n_records; index++) {
        const struct record *r = &c->records[index];
        if (terms->max_step >= 0 && r->meta.key.step > terms->max_step)
            continue;
        if (!is_bad(c, r, terms->named, report) && is_whole(c, r, terms->rebuild, report))
            return index;
        ++*passed_over;
    }
    return -1;
}

static bool has_older(const struct catalog *c, int chosen, bool rebuild)
{
    int64_t step = c->records[chosen].meta.key.step;
    struct terms terms = {step - 1, -1, rebuild};
    int passed_over = 0;
    return step > 0 && next_good(c, chosen + 1, &terms, NULL, &passed_over) >= 0;
}

static int fill_marks(struct ckpt_decision *out, const struct catalog *c)
{
    out->marks = calloc((size_t)c->marks.n + 1, sizeof *out->marks);
    for (int i = 0; out->marks && i < c->marks.n; i++) {
        const struct mark *m = &c->marks.list[i];
        out->marks[out->n_marks++] =
            (struct ckpt_mark){m->key.epoch, m->key.generation, m->key.step, m->nan_step};
    }
    return out->marks ? 0 : -1;
}

static int decide(struct ckpt_decision *out, const struct catalog *c, const struct terms *terms)
{
    size_t bytes;
    FILE *report = open_memstream(&out->report, &bytes);
    if (!report)
        return -1;
    if (c->notes)
        fputs(c->notes, report);
    int chosen = next_good(c, 0, terms, report, &out->passed_over);
    if (fclose(report)) {
        free(out->report);
        out->report = NULL;
        return -1;
    }
    if (fill_marks(out, c) || chosen < 0)
        return out->marks ? 0 : -1;
    out->older = has_older(c, chosen, terms->rebuild);
    out->marked = marks_find(&c->marks, &c->records[chosen].meta.key) != NULL;
    return fill(out, c, chosen);
}

static int decide_blobs(const char *const *blobs, int n, const struct terms *terms,
                        struct ckpt_decision *out, struct err *err)
{
    struct catalog c;
    memset(out, 0, sizeof *out);
    if (catalog_make(&c, blobs, n, err))
        return -1;
    out->epoch = c.epoch;
    int rv = decide(out, &c, terms);
    catalog_free(&c);
    if (!rv)
        return 0;
    ckpt_decision_free(out);
    return err_set(err, "out of memory deciding between checkpoints");
}

int ckpt_decide(const char *const *blobs, int n, int64_t max_step, struct ckpt_decision *out,
                struct err *err)
{
    return decide_blobs(blobs, n, &(struct terms){max_step, -1, false}, out, err);
}

int ckpt_decide_rebuilt(const char *const *blobs, int n, int64_t max_step,
                        struct ckpt_decision *out, struct err *err)
{
    return decide_blobs(blobs, n, &(struct terms){max_step, -1, true}, out, err);
}

int ckpt_decide_named(const char *const *blobs, int n, int64_t step, struct ckpt_decision *out,
                      struct err *err)
{
    return decide_blobs(blobs, n, &(struct terms){step, step, false}, out, err);
}

int ckpt_decide_rebuilt_named(const char *const *blobs, int n, int64_t step,
                              struct ckpt_decision *out, struct err *err)
{
    return decide_blobs(blobs, n, &(struct terms){step, step, true}, out, err);
}

static void free_places(struct ckpt_place *places, int n)
{
    for (int i = 0; places && i < n; i++) {
        free(places[i].node);
        free(places[i].path);
    }
    free(places);
}

void ckpt_decision_free(struct ckpt_decision *d)
{
    free_places(d->places, d->world);
    free_places(d->parities, d->world);
    free(d->note);
    free(d->record);
    free(d->marks);
    free(d->report);
    memset(d, 0, sizeof *d);
}
