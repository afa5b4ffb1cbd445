/* decide.c - which checkpoint to restore. Pure: the same blobs give the same answer everywhere.
 *
 * The rule: among committed records not newer than max_step, in the order (epoch, generation, step)
 * from the newest, the first whose every rank's file, or one of a replica of it, exists somewhere
 * with the right length. What the bytes are worth is found when they are read; then the caller asks
 * again with a lower max_step. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "catalog.h"

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

static bool is_whole(const struct catalog *c, const struct record *r, FILE *report)
{
    int missing = 0;
    for (int rank = 0; rank < r->n; rank++) {
        const char *why;
        int by;
        if (find(c, r, rank, &by, &why))
            continue;
        if (!missing)
            fprintf(report,
                    "step %" PRId64 " (epoch %" PRIu32 ", generation %" PRIu32 ") is not whole:",
                    r->meta.key.step, r->meta.key.epoch, r->meta.key.generation);
        if (missing++ < REPORT_RANKS)
            fprintf(report, " rank %d's file on %s %s;", rank, r->ranks[rank].node, why);
    }
    if (missing > REPORT_RANKS)
        fprintf(report, " and %d more;", missing - REPORT_RANKS);
    if (missing)
        fputc('\n', report);
    return !missing;
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
    if (!out->record || !out->places)
        return -1;
    for (out->world = 0; out->world < r->n;) {
        int by;
        const struct catalog_file *f = find(c, r, out->world, &by, NULL);
        const struct catalog_source *source = &c->sources[f->source];
        struct ckpt_place *p = &out->places[out->world++];
        p->node = strdup(source->node);
        p->bytes = f->bytes;
        p->digest = r->ranks[by].digest;
        if (asprintf(&p->path, "%s/%s", source->dir, f->path) < 0)
            p->path = NULL;
        if (!p->node || !p->path)
            return -1;
    }
    out->found = true;
    return 0;
}

static int decide(struct ckpt_decision *out, const struct catalog *c, int64_t max_step)
{
    size_t bytes;
    FILE *report = open_memstream(&out->report, &bytes);
    if (!report)
        return -1;
    int chosen = -1;
    if (c->notes)
        fputs(c->notes, report);
    for (int i = 0; i < c->n_records && chosen < 0; i++)
        if (max_step >= 0 && c->records[i].meta.key.step > max_step)
            continue;
        else if (is_whole(c, &c->records[i], report))
            chosen = i;
        else
            out->passed_over++;
    if (fclose(report)) {
        free(out->report);
        out->report = NULL;
        return -1;
    }
    return chosen < 0 ? 0 : fill(out, c, chosen);
}

int ckpt_decide(const char *const *blobs, int n, int64_t max_step, struct ckpt_decision *out,
                struct err *err)
{
    struct catalog c;
    memset(out, 0, sizeof *out);
    if (catalog_make(&c, blobs, n, err))
        return -1;
    out->epoch = c.epoch;
    int rv = decide(out, &c, max_step);
    catalog_free(&c);
    if (!rv)
        return 0;
    ckpt_decision_free(out);
    return err_set(err, "out of memory deciding between checkpoints");
}

void ckpt_decision_free(struct ckpt_decision *d)
{
    for (int i = 0; i < d->world; i++) {
        free(d->places[i].node);
        free(d->places[i].path);
    }
    free(d->places);
    free(d->record);
    free(d->report);
    memset(d, 0, sizeof *d);
}
