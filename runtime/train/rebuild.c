/* rebuild.c - see rebuild.h. */
#include "train/rebuild.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"
#include "drain.h"
#include "parity.h"
#include "train/partner.h"

enum { REBUILD_TAG = (3 << 20) + 3 }; /* beside those of reshard, partner and encode */
enum { TEXT_BYTES = 512 };

struct node {
    char name[PARTNER_NODE_BYTES];
};

enum ending {
    END_WELL,
    END_SOURCE, /* a file or its parities cannot be read */
    END_GROUP,  /* all were read, but what came out is not the file */
    END_OWN     /* the builder's own disk or memory */
};

/* How it went on a rank: the first that went wrong. */
struct outcome {
    int32_t ending;
    int32_t rank;     /* whose file or parities; END_GROUP: the lost file's */
    int32_t parities; /* bool */
    char text[TEXT_BYTES];
};

/* One lost file, as this rank sees it. */
struct job {
    const struct rebuild *r;
    const struct node *nodes; /* of all ranks */
    int file, builder;
    struct parity_group group;
    struct parity_rebuild *out;                           /* the builder's */
    struct parity_source *sources[2][PARITY_MEMBERS_MAX]; /* open ones: files, parities */
    bool failed[2][PARITY_MEMBERS_MAX];
    bool spoiled; /* the builder's: something is missing, the rest is for nothing */
    unsigned char *message, *sum;
    struct outcome *outcome;
};

/* In front of a chunk. */
struct head {
    uint32_t epoch, generation;
    int32_t file, element, segment;
    int32_t failed; /* it cannot be read */
    int64_t chunk;
    uint32_t crc;
    uint32_t unused;
};

static void note(struct job *j, enum ending ending, int rank, bool parities, const struct err *why)
{
    if (j->outcome->ending != END_WELL)
        return;
    *j->outcome = (struct outcome){.ending = (int32_t)ending, .rank = rank, .parities = parities};
    snprintf(j->outcome->text, TEXT_BYTES, "%s", why->text);
}

static const struct ckpt_place *place_of(const struct job *j, int member, bool parities)
{
    const struct ckpt_decision *d = j->r->decision;
    int rank = j->group.ranks[member];
    return parities ? &d->parities[rank] : &d->places[rank];
}

/* Who reads a place: the builder what is at hand or seen by all; else the rank it is of, if that is
 * there; else the first that is. */
static int reader_of(const struct job *j, int member, bool parities)
{
    const struct ckpt_place *p = place_of(j, member, parities);
    int world = j->r->mesh->world, rank = j->group.ranks[member];
    if (!strcmp(p->node, CKPT_SHARED_NODE) || !strcmp(p->node, j->nodes[j->builder].name))
        return j->builder;
    if (rank < world && !strcmp(p->node, j->nodes[rank].name))
        return rank;
    for (int i = 0; i < world; i++)
        if (!strcmp(p->node, j->nodes[i].name))
            return i;
    return j->builder; /* which will say that it is not there */
}

/* A chunk of an element of a member into `to`; false: it cannot be read, and that is noted. */
static bool read_here(struct job *j, int member, int element, int64_t chunk, void *to)
{
    bool parities = element >= parity_data(&j->group.code);
    struct parity_source **s = &j->sources[parities][member];
    struct err why;
    if (j->failed[parities][member])
        return false;
    if ((*s || !parity_source_open(s, place_of(j, member, parities), &j->group.code, member,
                                   parities, &why)) &&
        !parity_source_read(*s, element, chunk, to, &why))
        return true;
    j->failed[parities][member] = true;
    note(j, END_SOURCE, j->group.ranks[member], parities, &why);
    return false;
}

static struct head head_of(const struct job *j, int element, int segment, int64_t chunk)
{
    return (struct head){.epoch = j->r->identity->epoch,
                         .generation = j->r->identity->generation,
                         .file = j->file,
                         .element = element,
                         .segment = segment,
                         .chunk = chunk};
}

static int send_chunk(struct job *j, int member, int element, int segment, int64_t chunk,
                      struct err *err)
{
    struct head head = head_of(j, element, segment, chunk);
    size_t n = (size_t)parity_chunk_bytes(&j->group.code, chunk);
    unsigned char *data = j->message + sizeof head;
    if (!read_here(j, member, element, chunk, data)) {
        memset(data, 0, n);
        head.failed = 1;
    }
    head.crc = crc32c(0, data, n);
    memcpy(j->message, &head, sizeof head);
    return comm_host_send(j->r->comm, j->message, sizeof head + n, j->builder, REBUILD_TAG, err);
}

static int receive_chunk(struct job *j, int from, int element, int segment, int64_t chunk,
                         struct err *err)
{
    struct head head, want = head_of(j, element, segment, chunk);
    size_t n = (size_t)parity_chunk_bytes(&j->group.code, chunk);
    unsigned char *data = j->message + sizeof head;
    if (comm_host_recv(j->r->comm, j->message, sizeof head + n, from, REBUILD_TAG, err))
        return -1;
    memcpy(&head, j->message, sizeof head);
    want.failed = head.failed;
    want.crc = crc32c(0, data, n);
    if (memcmp(&head, &want, sizeof head))
        return err_set(err,
                       "rank %d has sent another chunk than the one that rank %d's file is to be "
                       "rebuilt from, or it came damaged",
                       from, j->file);
    j->spoiled |= head.failed != 0;
    return 0;
}

/* One chunk of the file: every reader sends its element, the builder sums up. */
static int move_chunk(struct job *j, int segment, int64_t chunk, const int *elements,
                      const int *members, const unsigned char *factors, struct err *err)
{
    int me = j->r->mesh->rank, data = parity_data(&j->group.code);
    size_t n = (size_t)parity_chunk_bytes(&j->group.code, chunk);
    if (me == j->builder)
        memset(j->sum, 0, n);
    for (int i = 0; i < data; i++) {
        int reader = reader_of(j, members[i], elements[i] >= data);
        if (me != j->builder) {
            if (me == reader && send_chunk(j, members[i], elements[i], segment, chunk, err))
                return -1;
            continue;
        }
        if (reader != me) {
            if (receive_chunk(j, reader, elements[i], segment, chunk, err))
                return -1;
        } else if (!read_here(j, members[i], elements[i], chunk,
                              j->message + sizeof(struct head))) {
            j->spoiled = true;
        }
        parity_add(factors[i], j->message + sizeof(struct head), j->sum, n);
    }
    return 0;
}

/* The sum goes into the file, unless that is for nothing. */
static void keep_chunk(struct job *j, int segment, int64_t chunk)
{
    struct err why;
    if (j->r->mesh->rank != j->builder || j->spoiled || !j->out)
        return;
    if (!parity_rebuild_put(j->out, segment, chunk, j->sum, &why))
        return;
    note(j, END_OWN, j->file, false, &why);
    j->spoiled = true;
}

static int move_segment(struct job *j, int segment, struct err *err)
{
    int elements[PARITY_MEMBERS_MAX], members[PARITY_MEMBERS_MAX];
    unsigned char factors[PARITY_MEMBERS_MAX];
    const struct parity_code *code = &j->group.code;
    int stripe = parity_stripe(code, j->group.member, segment);
    if (!parity_choose(j->r->decision, &j->group, stripe, elements, members) ||
        !parity_factors(code, segment, elements, factors))
        return err_set(err, "rank %d's file cannot be rebuilt from its group", j->file);
    for (int64_t chunk = 0; chunk < code->chunks; chunk++) {
        if (move_chunk(j, segment, chunk, elements, members, factors, err))
            return -1;
        keep_chunk(j, segment, chunk);
    }
    return 0;
}

static void begin_file(struct job *j)
{
    struct err why;
    if (j->r->mesh->rank != j->builder)
        return;
    if (parity_rebuild_open(&j->out, j->r->dir, j->r->identity->run_id, j->r->decision, j->file,
                            NULL, &why))
        note(j, END_OWN, j->file, false, &why);
}

static void end_file(struct job *j)
{
    struct err why;
    if (!j->out || j->spoiled)
        return;
    if (parity_rebuild_check(j->out, &why))
        note(j, END_GROUP, j->file, false, &why);
    else if (parity_rebuild_finish(j->out, &why))
        note(j, END_OWN, j->file, false, &why);
}

static void job_close(struct job *j)
{
    for (int m = 0; m < PARITY_MEMBERS_MAX; m++) {
        parity_source_close(j->sources[0][m]);
        parity_source_close(j->sources[1][m]);
    }
    parity_rebuild_close(j->out);
    free(j->message);
    free(j->sum);
}

static int run_job(const struct rebuild *r, const struct node *nodes, int file,
                   struct outcome *outcome, struct err *err)
{
    struct job j = {.r = r,
                    .nodes = nodes,
                    .file = file,
                    .builder = file % r->mesh->world,
                    .outcome = outcome,
                    .message = malloc(sizeof(struct head) + PARITY_CHUNK),
                    .sum = malloc(PARITY_CHUNK)};
    int rv = j.message && j.sum ? parity_group_of(r->decision, file, &j.group, err)
                                : err_set(err, "no memory to rebuild a file");
    if (!rv)
        begin_file(&j);
    for (int segment = 0; !rv && segment < parity_data(&j.group.code); segment++)
        rv = move_segment(&j, segment, err);
    if (!rv)
        end_file(&j);
    job_close(&j);
    return rv;
}

/* ---- what came of it ---- */

/* All parities of the group are of no use. */
static int mark_group(const struct rebuild *r, int rank, struct err *err)
{
    struct parity_group g;
    if (parity_group_of(r->decision, rank, &g, err))
        return -1;
    for (int m = 0; m < g.code.members; m++) {
        const struct ckpt_place *p = &r->decision->parities[g.ranks[m]];
        if (p->node && r->damaged(r->arg, p, err))
            return -1;
    }
    return 0;
}

static int mark(const struct rebuild *r, const struct outcome *o, struct err *err)
{
    const struct ckpt_decision *d = r->decision;
    if (o->rank < 0 || o->rank >= d->world)
        return err_set(err, "a word about rank %d's checkpoint file", o->rank);
    if (o->ending == END_GROUP)
        return mark_group(r, o->rank, err);
    return r->damaged(r->arg, o->parities ? &d->parities[o->rank] : &d->places[o->rank], err);
}

/* All ranks have all outcomes. */
static int judge(const struct rebuild *r, const struct outcome *all, struct err *err)
{
    int rv = 0;
    for (int i = 0; i < r->mesh->world; i++)
        if (all[i].ending == END_OWN) {
            *r->troubled = i;
            return err_set(err, "%.*s", TEXT_BYTES - 1, all[i].text);
        }
    for (int i = 0; i < r->mesh->world; i++) {
        if (all[i].ending == END_WELL)
            continue;
        if (mark(r, &all[i], err))
            return -1;
        rv = 1;
    }
    return rv;
}

static int tell_places(const struct rebuild *r, const struct node *nodes, struct err *err)
{
    struct ckpt_decision *d = r->decision;
    for (int file = 0; file < d->world; file++) {
        struct ckpt_place *p = &d->places[file];
        if (p->node)
            continue;
        p->path = parity_rebuild_path(r->dir, r->identity->run_id, d, file, err);
        p->node = p->path ? strdup(nodes[file % r->mesh->world].name) : NULL;
        if (!p->node)
            return err_set(err, "no memory for a place");
        if (r->built(r->arg, p, err))
            return -1;
    }
    d->lost = 0;
    return 0;
}

static int rebuild_all(const struct rebuild *r, struct node *nodes, struct outcome *all,
                       struct err *err)
{
    const struct comm_group *group = &r->mesh->all;
    struct outcome mine;
    struct node node;
    memset(&mine, 0, sizeof mine); /* these travel whole */
    memset(&node, 0, sizeof node);
    snprintf(node.name, sizeof node.name, "%s", r->identity->node);
    if (comm_host_all_gather(r->comm, group, &node, sizeof node, nodes, err))
        return -1;
    for (int file = 0; file < r->decision->world; file++)
        if (!r->decision->places[file].node && run_job(r, nodes, file, &mine, err)) {
            comm_abort(r->comm, err->text); /* the others wait for a rank that has stopped */
            return -1;
        }
    if (comm_host_all_gather(r->comm, group, &mine, sizeof mine, all, err))
        return -1;
    int rv = judge(r, all, err);
    return rv ? rv : tell_places(r, nodes, err);
}

int rebuild_lost(const struct rebuild *r, struct err *err)
{
    size_t world = (size_t)r->mesh->world;
    struct node *nodes = calloc(world, sizeof *nodes);
    struct outcome *all = calloc(world, sizeof *all);
    int rv = nodes && all ? rebuild_all(r, nodes, all, err)
                          : err_set(err, "no memory to rebuild a checkpoint");
    free(nodes);
    free(all);
    return rv;
}
