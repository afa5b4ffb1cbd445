/* memory_decide.c - which state in the nodes' memory to go on from. Pure: the same scans give the
 * same answer everywhere.
 *
 * The rule: of all states (epoch, generation, step; world, plan) that a slot somewhere holds, from
 * the newest, the first of which every rank's image is in some slot, or that of a replica: a rank
 * whose number is the same modulo the number of parts that the claim tells. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "record.h"

struct entry {
    int holder, slot; /* holder: a rank */
    struct record claim;
    int parts;        /* of the state; the world where there are no replicas */
    const char *note; /* in its scan; n bytes */
    int note_bytes;
};

struct entries {
    struct entry *list;
    int n;
};

/* " parts=N" of a claim's line; what makes no sense counts as none. */
static int parts_of(const char *line, size_t length, int world)
{
    const char *at = memmem(line, length, " parts=", 7);
    int64_t parts;
    if (!at || !(at += 7, take_number(&at, world, &parts)) || parts < 1 || world % parts)
        return world;
    return (int)parts;
}

static int add(struct entries *all, int holder, const char *line, size_t length, struct err *err)
{
    struct entry *e = &all->list[all->n];
    int64_t slot;
    const char *at = line;
    if (!take_number(&at, CKPT_MEMORY_SLOTS - 1, &slot) || *at++ != ' ' ||
        record_parse(at, (int64_t)(length - (size_t)(at - line)), RECORD_CLAIM, &e->claim, err))
        return err_set(err, "rank %d says of its memory '%.*s'", holder,
                       (int)(length < 80 ? length : 80), line);
    e->holder = holder;
    e->slot = (int)slot;
    e->parts = parts_of(line, length, e->claim.meta.world);
    const char *note = memmem(line, length, " note=", 6);
    e->note = note ? note + 6 : line;
    e->note_bytes = note ? (int)(line + length - e->note) : 0;
    all->n++;
    return 0;
}

static int read_scans(struct entries *all, const char *const *scans, int n, struct err *err)
{
    int lines = 0;
    for (int i = 0; i < n; i++)
        for (const char *c = scans[i]; c && *c; c++)
            lines += *c == '\n' || !c[1];
    all->list = calloc((size_t)lines + 1, sizeof *all->list);
    if (!all->list)
        return err_set(err, "out of memory");
    for (int i = 0; i < n; i++)
        for (const char *line = scans[i]; line && *line;) {
            size_t length = strcspn(line, "\n");
            if (all->n == lines || add(all, i, line, length, err))
                return -1;
            line += length + (line[length] == '\n');
        }
    return 0;
}

/* Which state it is; the newest first. */
static int by_state(const struct entry *a, const struct entry *b)
{
    const struct file_meta *x = &a->claim.meta, *y = &b->claim.meta;
    int newer = key_compare(&y->key, &x->key);
    if (newer)
        return newer;
    if (x->world != y->world)
        return x->world < y->world ? -1 : 1;
    if (x->plan_hash != y->plan_hash)
        return x->plan_hash < y->plan_hash ? -1 : 1;
    if (a->parts != b->parts)
        return a->parts - b->parts;
    return x->samples == y->samples ? 0 : x->samples < y->samples ? -1 : 1;
}

/* Then by rank, a rank's own slot before others'. */
static int by_order(const void *p, const void *q)
{
    const struct entry *a = p, *b = q;
    int state = by_state(a, b), x = a->claim.meta.rank, y = b->claim.meta.rank;
    if (state || x != y)
        return state ? state : x - y;
    if ((a->holder == x) != (b->holder == x))
        return a->holder == x ? -1 : 1;
    return a->holder != b->holder ? a->holder - b->holder : a->slot - b->slot;
}

/* The first of n entries, which are in their order, that is of this rank; NULL: none. */
static const struct entry *first_of(const struct entry *list, int n, int rank)
{
    int low = 0, high = n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (list[middle].claim.meta.rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && list[low].claim.meta.rank == rank ? &list[low] : NULL;
}

/* Whose image will do for this rank: its own, or a replica's. */
static const struct entry *source_of(const struct entry *list, int n, int rank)
{
    const struct entry *e = first_of(list, n, rank);
    for (int twin = rank % list->parts; !e && twin < list->claim.meta.world; twin += list->parts)
        e = first_of(list, n, twin);
    return e;
}

static int fill(struct ckpt_decision *out, const struct entry *list, int n, struct err *err)
{
    const struct file_meta *m = &list[0].claim.meta;
    out->position = (struct ckpt_position){m->key.step, m->samples};
    out->plan_hash = m->plan_hash;
    out->epoch = out->written_epoch = m->key.epoch;
    out->written_generation = m->key.generation;
    out->report = strdup("");
    const struct entry *zero = source_of(list, n, 0);
    out->note = strndup(zero->note, (size_t)zero->note_bytes);
    out->places = calloc((size_t)m->world, sizeof *out->places);
    bool good = out->report && out->note && out->places;
    for (int rank = 0; rank < m->world && good; rank++) {
        const struct entry *e = source_of(list, n, rank);
        const struct record_rank *r = &e->claim.ranks[0];
        struct ckpt_place *p = &out->places[out->world++];
        *p = (struct ckpt_place){.node = strdup(r->node),
                                 .path = strdup(r->path),
                                 .bytes = r->bytes,
                                 .digest = r->digest,
                                 .replica = e->claim.meta.rank != rank,
                                 .holder = e->holder + 1,
                                 .slot = e->slot};
        good = p->node && p->path;
    }
    if (!good)
        return err_set(err, "out of memory deciding between snapshots");
    out->found = out->memory = true;
    return 0;
}

/* Is there a source for every rank? */
static bool is_whole(const struct entry *list, int n)
{
    for (int rank = 0; rank < list->claim.meta.world; rank++)
        if (!source_of(list, n, rank))
            return false;
    return true;
}

static int decide(struct ckpt_decision *out, const struct entries *all, struct err *err)
{
    for (int i = 0, n; i < all->n; i += n) {
        const struct entry *list = &all->list[i];
        for (n = 1; i + n < all->n && !by_state(list, &list[n]);)
            n++;
        if (is_whole(list, n))
            return fill(out, list, n, err);
    }
    return 0;
}

int ckpt_memory_decide(const char *const *scans, int n, struct ckpt_decision *out, struct err *err)
{
    struct entries all = {.n = 0};
    memset(out, 0, sizeof *out);
    int rv = read_scans(&all, scans, n, err);
    if (!rv && all.n)
        qsort(all.list, (size_t)all.n, sizeof *all.list, by_order);
    if (!rv)
        rv = decide(out, &all, err);
    for (int i = 0; i < all.n; i++)
        record_free(&all.list[i].claim);
    free(all.list);
    if (rv)
        ckpt_decision_free(out);
    return rv;
}
