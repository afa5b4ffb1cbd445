/* parity_help.h - a group of ranks on nodes of their own, in one process: what the network does
 * between them (train/encode.c, rebuild.c) is a call here. Each node is a folder. */
#ifndef GTRAIN_TESTS_PARITY_HELP_H
#define GTRAIN_TESTS_PARITY_HELP_H

#include "ckpt_help.h"
#include "image.h"
#include "parity.h"
#include "record.h"

#include <semaphore.h>

enum { GROUP_MOST = 12 };

struct group {
    char root[256], dirs[GROUP_MOST][300], names[GROUP_MOST][8];
    int members, keeps;
    int64_t block_bytes; /* of a write */
    uint32_t epoch;
    const struct ckpt_hook *hook;
    struct state states[GROUP_MOST];
    struct ckpt *ckpts[GROUP_MOST];
    struct ckpt_parity *parities[GROUP_MOST];
    struct group_image {
        struct ckpt_image image; /* shown last */
        sem_t shown;
    } images[GROUP_MOST];
    void (*early)(struct group *g); /* all early chunks have been given; may be NULL */
};

/* Files of kilobytes; of several chunks; and such as are cut in whole MiB. */
enum group_size { GROUP_SMALL, GROUP_MIDDLE, GROUP_LARGE };

/* Ranks hold unequal states. where: as in help_scratch. */
static inline void group_make(struct group *g, int members, int keeps, enum group_size size,
                              const char *where)
{
    static const int64_t most[] = {2000, 400000, 2100000}, more[] = {0, 300000, 77777};
    memset(g, 0, sizeof *g);
    g->members = members;
    g->keeps = keeps;
    g->block_bytes = 4096;
    help_scratch(g->root, where);
    for (int i = 0; i < members; i++) {
        int64_t n[] = {700 + 997 * i, most[size] + more[size] * (i % 3)};
        state_add(&g->states[i], CKPT_F32, 1, &n[0]);
        state_add(&g->states[i], CKPT_F64, 1, &n[1]);
        snprintf(g->dirs[i], sizeof g->dirs[i], "%s/n%d", g->root, i);
        snprintf(g->names[i], sizeof g->names[i], "n%d", i);
    }
}

/* State of a member after a step. */
static inline void group_fill(struct group *g, int64_t step)
{
    for (int i = 0; i < g->members; i++)
        state_fill(&g->states[i], step * 100 + i);
}

/* The first member whose state is not that of the step, -1: all are. */
static inline int group_differs(const struct group *g, int64_t step)
{
    for (int i = 0; i < g->members; i++)
        if (state_differs(&g->states[i], step * 100 + i) >= 0)
            return i;
    return -1;
}

static inline bool group_show(void *image, const struct ckpt_image *shown)
{
    struct group_image *i = image;
    i->image = *shown;
    sem_post(&i->shown);
    return true;
}

static inline int group_open_member(struct group *g, int i, const int64_t *bytes,
                                    int64_t header_bytes, struct err *err)
{
    struct ckpt_options o = help_options(g->dirs[i], g->epoch);
    o.node = g->names[i];
    o.rank = i;
    o.world = g->members;
    o.block_bytes = g->block_bytes;
    o.no_uring = i % 2;
    struct ckpt_io io = state_io(&g->states[i]);
    if (!g->ckpts[i]) {
        if (ckpt_open_hooked(&g->ckpts[i], &o, g->states[i].tensors, g->states[i].n, &io, g->hook,
                             err))
            return -1;
        sem_init(&g->images[i].shown, 0, 0);
        ckpt_image_share(g->ckpts[i], group_show, &g->images[i]);
    }
    struct ckpt_parity_options p = {.dir = g->dirs[i],
                                    .run_id = o.run_id,
                                    .rank = i,
                                    .world = g->members,
                                    .epoch = g->epoch,
                                    .generation = 1,
                                    .plan_hash = o.plan_hash,
                                    .members = g->members,
                                    .keeps = g->keeps,
                                    .member = i,
                                    .file_bytes = bytes,
                                    .header_bytes = header_bytes,
                                    .hook = g->hook};
    return bytes ? ckpt_parity_open(&g->parities[i], &p, err) : 0;
}

static inline int group_open(struct group *g, uint32_t epoch, struct err *err)
{
    int64_t bytes[GROUP_MOST], header_bytes = 0;
    g->epoch = epoch;
    for (int i = 0; i < g->members; i++) {
        if (group_open_member(g, i, NULL, 0, err))
            return -1;
        bytes[i] = engine_file_bytes(g->ckpts[i]);
        if (g->ckpts[i]->layout.header_bytes > header_bytes)
            header_bytes = g->ckpts[i]->layout.header_bytes;
    }
    for (int i = 0; i < g->members; i++)
        if (group_open_member(g, i, bytes, header_bytes, err))
            return -1;
    return 0;
}

static inline void group_close(struct group *g)
{
    for (int i = 0; i < g->members; i++) {
        ckpt_parity_close(g->parities[i]);
        ckpt_close(g->ckpts[i], help_soon());
        g->parities[i] = NULL;
        g->ckpts[i] = NULL;
    }
}

static inline void group_drop(struct group *g)
{
    group_close(g);
    for (int i = 0; i < g->members; i++)
        state_free(&g->states[i]);
    help_remove(g->root);
}

/* One member's segments to all others, chunk by chunk in step with the rest. */
static inline int group_give(struct group *g, struct parity_image *from, int source, int64_t chunk,
                             unsigned char *buffer, struct err *err)
{
    const struct parity_code *code = ckpt_parity_code(g->parities[source]);
    for (int holder = 0; holder < g->members; holder++) {
        size_t n = 0;
        for (int k = 0; k < g->keeps && holder != source; k++) {
            int segment = parity_wants(code, holder, k, source);
            uint32_t crc;
            if (segment < 0)
                continue;
            if (parity_image_read(from, segment, chunk, buffer + n, &crc, err))
                return -1;
            n += (size_t)parity_chunk_bytes(code, chunk);
        }
        if (holder != source && ckpt_parity_add(g->parities[holder], source, buffer, n, err))
            return -1;
    }
    return 0;
}

static inline int group_chunks(struct group *g, struct parity_image *const *sources, int64_t first,
                               int64_t end, unsigned char *buffer, struct err *err)
{
    const struct parity_code *code = ckpt_parity_code(g->parities[0]);
    int rv = 0;
    for (int64_t turn = first; turn < end && !rv; turn++) {
        int64_t chunk = parity_chunk(code, ckpt_parity_late(g->parities[0]), turn);
        for (int i = 0; i < g->members && !rv; i++)
            rv = group_give(g, sources[i], i, chunk, buffer, err);
        for (int i = 0; i < g->members && !rv; i++)
            rv = ckpt_parity_next(g->parities[i], err);
    }
    return rv;
}

/* As train/encode.c: early chunks while the files are written, late ones once all are durable. */
static inline int group_send(struct group *g, struct parity_image **sources,
                             const struct ckpt_position *position, unsigned char *buffer,
                             struct err *err)
{
    const struct parity_code *code = ckpt_parity_code(g->parities[0]);
    int64_t late = ckpt_parity_late(g->parities[0]), early = code->chunks - late;
    int rv = 0;
    for (int i = 0; i < g->members && !rv; i++)
        rv = parity_image_open(&sources[i], &g->images[i].image, code, late, err) ||
             ckpt_parity_begin(g->parities[i], position, err);
    if (!rv)
        rv = group_chunks(g, sources, 0, early, buffer, err);
    if (!rv && g->early)
        g->early(g);
    for (int i = 0; i < g->members && !rv; i++) {
        uint32_t digest;
        int durable = ckpt_image_wait(g->ckpts[i], help_soon(), &digest, err);
        if (!durable)
            err_set(err, "the file is not written in time");
        rv = durable == 1 ? parity_image_seal(sources[i], digest, err) : -1;
    }
    return rv ? rv : group_chunks(g, sources, early, code->chunks, buffer, err);
}

/* Of the files that are being written; their saves have returned. */
static inline int group_encode(struct group *g, int64_t step, struct err *err)
{
    struct ckpt_position position = {step, step * 8};
    struct parity_image *sources[GROUP_MOST] = {NULL};
    unsigned char *buffer = malloc((size_t)g->keeps * PARITY_CHUNK);
    for (int i = 0; i < g->members; i++)
        sem_wait(&g->images[i].shown);
    int rv = group_send(g, sources, &position, buffer, err);
    for (int i = 0; i < g->members; i++) {
        parity_image_close(sources[i]);
        ckpt_image_release(g->ckpts[i]);
    }
    free(buffer);
    return rv ? -1 : 0;
}

/* A checkpoint with its parities, up to the record; malloc'ed, NULL: err. */
static inline char *group_record(struct group *g, int64_t step, struct err *err)
{
    struct ckpt_position position = {step, step * 8};
    char *claims[GROUP_MOST] = {NULL}, *record = NULL;
    int rv = 0;
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_save(g->ckpts[i], &position, NULL, err);
    if (!rv)
        rv = group_encode(g, step, err);
    for (int i = 0; i < g->members && !rv; i++) {
        int64_t finished;
        rv = ckpt_wait(g->ckpts[i], help_soon(), err) ||
             ckpt_parity_wait(g->parities[i], help_soon(), err) ||
             ckpt_finished(g->ckpts[i], &finished, err);
        if (!rv && finished != step)
            rv = err_set(err, "the file was not written");
        if (!rv)
            rv = ckpt_parity_finished(g->parities[i], &finished, err);
        if (!rv && finished != step)
            rv = err_set(err, "the parities were not written");
        char *claim = rv ? NULL : ckpt_claim(g->ckpts[i], step, err);
        if (claim)
            claims[i] = ckpt_parity_claim(g->parities[i], step, 0, claim, err);
        free(claim);
        if (!rv && !claims[i])
            rv = -1;
    }
    if (!rv)
        record = ckpt_record((const char *const *)claims, g->members, err);
    for (int i = 0; i < g->members; i++)
        free(claims[i]);
    return record;
}

static inline int group_checkpoint(struct group *g, int64_t step, struct err *err)
{
    char *record = group_record(g, step, err);
    int rv = record ? 0 : -1;
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_commit(g->ckpts[i], step, record, err);
    for (int i = 0; i < g->members && !rv; i++)
        rv = ckpt_wait(g->ckpts[i], help_soon(), err);
    free(record);
    return rv ? -1 : 0;
}

/* What the nodes hold; each malloc'ed. */
static inline void group_scan(const struct group *g, char *blobs[GROUP_MOST])
{
    struct err err;
    for (int i = 0; i < g->members; i++) {
        blobs[i] = ckpt_scan(g->dirs[i], g->names[i], "run-1", &err);
        assert_non_null(blobs[i]);
    }
}

static inline int group_decide(const struct group *g, struct ckpt_decision *d, struct err *err)
{
    char *blobs[GROUP_MOST];
    group_scan(g, blobs);
    int rv = ckpt_decide_rebuilt((const char *const *)blobs, g->members, -1, d, err);
    for (int i = 0; i < g->members; i++)
        free(blobs[i]);
    return rv;
}

/* What a lost file is rebuilt from, opened when it is first needed; and a chunk to read into. */
struct group_sources {
    struct parity_source *open[2][GROUP_MOST]; /* files, parities; by member */
    unsigned char one[PARITY_CHUNK];
};

/* One chunk of a lost member's segment out of P others. */
static inline int group_chunk(struct group_sources *from, const struct ckpt_decision *d,
                              const struct parity_group *p, int segment, int64_t chunk,
                              unsigned char *sum, struct err *err)
{
    int elements[PARITY_MEMBERS_MAX], members[PARITY_MEMBERS_MAX], data = parity_data(&p->code);
    unsigned char factors[PARITY_MEMBERS_MAX];
    int64_t n = parity_chunk_bytes(&p->code, chunk);
    int stripe = parity_stripe(&p->code, p->member, segment);
    if (!parity_choose(d, p, stripe, elements, members) ||
        !parity_factors(&p->code, segment, elements, factors))
        return err_set(err, "stripe %d has too few elements", stripe);
    memset(sum, 0, (size_t)n);
    for (int i = 0; i < data; i++) {
        bool parities = elements[i] >= data;
        int rank = p->ranks[members[i]];
        struct parity_source **s = &from->open[parities][members[i]];
        if (!*s && parity_source_open(s, parities ? &d->parities[rank] : &d->places[rank], &p->code,
                                      members[i], parities, err))
            return -1;
        if (parity_source_read(*s, elements[i], chunk, from->one, err))
            return -1;
        parity_add(factors[i], from->one, sum, (size_t)n);
    }
    return 0;
}

static inline int group_rebuild_from(struct group_sources *from, const struct group *g,
                                     const struct ckpt_decision *d, int rank, struct err *err)
{
    struct parity_group p;
    struct parity_rebuild *r;
    unsigned char *sum = malloc(PARITY_CHUNK);
    int rv = parity_group_of(d, rank, &p, err);
    if (!rv && !(rv = parity_rebuild_open(&r, g->dirs[rank], "run-1", d, rank, g->hook, err))) {
        for (int segment = 0; segment < parity_data(&p.code) && !rv; segment++)
            for (int64_t chunk = 0; chunk < p.code.chunks && !rv; chunk++) {
                rv = group_chunk(from, d, &p, segment, chunk, sum, err);
                if (!rv)
                    rv = parity_rebuild_put(r, segment, chunk, sum, err);
            }
        if (!rv)
            rv = parity_rebuild_check(r, err) || parity_rebuild_finish(r, err);
        parity_rebuild_close(r);
    }
    free(sum);
    return rv ? -1 : 0;
}

/* The lost file of a rank, into its own node's folder. */
static inline int group_rebuild(const struct group *g, const struct ckpt_decision *d, int rank,
                                struct err *err)
{
    struct group_sources *from = calloc(1, sizeof *from);
    int rv = from ? group_rebuild_from(from, g, d, rank, err) : err_set(err, "out of memory");
    for (int i = 0; from && i < 2 * GROUP_MOST; i++)
        parity_source_close(from->open[i / GROUP_MOST][i % GROUP_MOST]);
    free(from);
    return rv;
}

#endif
