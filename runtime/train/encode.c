/* encode.c - see encode.h. */
#include "train/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "crc.h"
#include "train/partner.h"

enum { ENCODE_TAG = 2 };
enum {
    WORDS_A_TIMEOUT = 4
}; /* how often a member says that it is there, in its others' patience */

/* ---- who is in a group with whom ---- */

struct seat {
    struct partner_seat where;
    int64_t file_bytes, header_bytes;
};

static int refuse(const struct plan *plan, int nodes, struct err *err)
{
    char text[PLAN_REDUNDANCY_BYTES];
    plan_redundancy_text(&plan->checkpoint, text);
    if (!nodes)
        return plan_error(plan, "checkpoint.redundancy", err,
                          "checkpoint.redundancy is %s, which needs the same number of ranks on "
                          "every node: use --ntasks-per-node, or partner",
                          text);
    return plan_error(plan, "checkpoint.redundancy", err,
                      "checkpoint.redundancy is %s, which needs ranks on %d nodes, but they are on "
                      "%d: use more nodes, smaller groups, or none",
                      text, plan_redundancy_nodes(&plan->checkpoint), nodes);
}

static void take_group(struct encode *p, const struct seat *seats, const struct encode_seat *groups,
                       int world)
{
    const struct encode_seat *own = &groups[p->identity->rank];
    p->members = own->size;
    p->member = own->member;
    p->group = own->group;
    for (int r = 0; r < world; r++)
        if (groups[r].group == own->group) {
            p->ranks[groups[r].member] = r;
            p->bytes[groups[r].member] = seats[r].file_bytes;
            if (seats[r].header_bytes > p->header_bytes)
                p->header_bytes = seats[r].header_bytes;
        }
}

static int choose(struct encode *p, const struct seat *seats, int world, const struct plan *plan,
                  struct err *err)
{
    const struct plan_checkpoint *c = &plan->checkpoint;
    struct partner_seat *where = calloc((size_t)world, sizeof *where);
    struct encode_seat *groups = calloc((size_t)world, sizeof *groups);
    int wanted = plan_redundancy_nodes(c), nodes = 0, rv = 0;
    if (!where || !groups)
        rv = err_set(err, "no memory to choose groups");
    for (int r = 0; !rv && r < world; r++)
        where[r] = seats[r].where;
    if (!rv && !encode_groups(where, world, wanted, groups, &nodes) &&
        (p->identity->generation <= 1 || nodes <= c->group_parities ||
         !encode_groups(where, world, nodes, groups, &nodes)))
        rv = refuse(plan, nodes, err);
    if (!rv)
        take_group(p, seats, groups, world);
    free(where);
    free(groups);
    return rv;
}

static struct ckpt_parity_options options_of(const struct encode *p, const char *dir,
                                             uint64_t plan_hash)
{
    const struct train_identity *id = p->identity;
    return (struct ckpt_parity_options){.dir = dir,
                                        .run_id = id->run_id,
                                        .rank = id->rank,
                                        .world = id->world,
                                        .epoch = id->epoch,
                                        .generation = id->generation,
                                        .plan_hash = plan_hash,
                                        .members = p->members,
                                        .keeps = p->keeps,
                                        .member = p->member,
                                        .file_bytes = p->bytes,
                                        .header_bytes = p->header_bytes};
}

int encode_find(struct encode *p, struct comm *comm, const struct mesh *mesh,
                const struct train_identity *identity, const struct plan *plan, int64_t file_bytes,
                int64_t header_bytes, struct err *err)
{
    int world = mesh->world;
    struct seat mine, *seats = calloc((size_t)world, sizeof *seats);
    *p = (struct encode){.identity = identity,
                         .keeps = plan->checkpoint.group_parities,
                         .word_ms = plan->resilience.comm_timeout_ms / WORDS_A_TIMEOUT};
    memset(&mine, 0, sizeof mine); /* it travels whole */
    partner_sit(identity, &mine.where);
    mine.file_bytes = file_bytes;
    mine.header_bytes = header_bytes;
    int rv = seats ? comm_host_all_gather(comm, &mesh->all, &mine, sizeof mine, seats, err)
                   : err_set(err, "no memory to choose groups");
    if (!rv)
        rv = choose(p, seats, world, plan, err);
    free(seats);
    if (rv)
        return -1;
    struct ckpt_parity_options o = options_of(p, "", 0);
    p->file_bytes = ckpt_parity_bytes(&o, err);
    return p->file_bytes ? 0 : -1;
}

/* ---- messages ---- */

/* In front of the chunks; alone where a member says whether its file is durable. */
struct head {
    uint32_t epoch, generation;
    int32_t rank;    /* whose file */
    uint32_t chunks; /* that follow; or is it durable? */
    int64_t step;
    int64_t chunk; /* of the segments; WORD: it is such a word */
    uint32_t crc[PARITY_KEEPS_MAX];
};

enum { WORD = -1 };

int encode_open(struct encode *p, const char *dir, uint64_t plan_hash, struct err *err)
{
    if (!p->identity || p->writer)
        return 0;
    struct ckpt_parity_options o = options_of(p, dir, plan_hash);
    size_t message = sizeof(struct head) + (size_t)p->keeps * PARITY_CHUNK;
    p->out = malloc(message);
    p->in = malloc(message);
    if (!p->out || !p->in)
        return err_set(err, "no memory for %d chunks of parity", 2 * p->keeps);
    return ckpt_parity_open(&p->writer, &o, err);
}

int encode_peers(const struct encode *p, int to[PARITY_MEMBERS_MAX], int from[PARITY_MEMBERS_MAX])
{
    for (int turn = 1; turn < p->members; turn++) {
        to[turn - 1] = p->ranks[(p->member - turn + p->members) % p->members];
        from[turn - 1] = p->ranks[(p->member + turn) % p->members];
    }
    return p->members - 1;
}

static struct head head_of(const struct encode *p, int64_t chunk)
{
    return (struct head){.epoch = p->identity->epoch,
                         .generation = p->identity->generation,
                         .rank = p->identity->rank,
                         .step = p->step,
                         .chunk = chunk};
}

static int check_head(const struct encode *p, const struct head *h, int source, int64_t chunk,
                      struct err *err)
{
    const struct train_identity *id = p->identity;
    if (h->epoch == id->epoch && h->generation == id->generation && h->rank == p->ranks[source] &&
        h->step == p->step && h->chunk == chunk)
        return 0;
    return err_set(err,
                   "a chunk of rank %d's checkpoint of epoch %u, generation %u, step %lld came "
                   "for parity, but rank %d's of %u, %u, %lld is expected",
                   h->rank, h->epoch, h->generation, (long long)h->step, p->ranks[source],
                   id->epoch, id->generation, (long long)p->step);
}

/* The peers of a turn. */
static int holder_of(const struct encode *p, int turn)
{
    return (p->member - turn + p->members) % p->members;
}

static int source_of(const struct encode *p, int turn)
{
    return (p->member + turn) % p->members;
}

/* This member's chunks for a holder, behind the head in p->out; *n their bytes. */
static int fill_message(struct encode *p, int holder, size_t *n, struct err *err)
{
    const struct parity_code *code = ckpt_parity_code(p->writer);
    unsigned char *to = p->out + sizeof(struct head);
    struct head head = head_of(p, p->chunk);
    *n = 0;
    for (int k = 0; k < p->keeps; k++) {
        int segment = parity_wants(code, holder, k, p->member);
        if (segment < 0)
            continue;
        if (parity_image_read(p->source, segment, p->chunk, to + *n, &head.crc[head.chunks++], err))
            return -1;
        *n += (size_t)parity_chunk_bytes(code, p->chunk);
    }
    memcpy(p->out, &head, sizeof head);
    return 0;
}

static int check_message(const struct encode *p, int source, size_t n, struct err *err)
{
    struct head h;
    size_t each = (size_t)parity_chunk_bytes(ckpt_parity_code(p->writer), p->chunk);
    memcpy(&h, p->in, sizeof h);
    if (check_head(p, &h, source, p->chunk, err))
        return -1;
    if (h.chunks != n / each)
        return err_set(err, "rank %d sends %u chunks for parity, but %zu are expected", h.rank,
                       h.chunks, n / each);
    for (uint32_t i = 0; i < h.chunks; i++)
        if (h.crc[i] != crc32c(0, p->in + sizeof h + i * each, each))
            return err_set(err, "a chunk of rank %d's checkpoint came damaged", h.rank);
    return 0;
}

/* One message each way. As many bytes go as come: in a turn, all members meet one that is as far
 * away. */
static int exchange(struct encode *p, struct comm *comm, int turn, struct err *err)
{
    int holder = holder_of(p, turn), source = source_of(p, turn);
    size_t n;
    if (fill_message(p, holder, &n, err) ||
        comm_host_exchange(comm, p->out, sizeof(struct head) + n, p->ranks[holder], p->in,
                           sizeof(struct head) + n, p->ranks[source], ENCODE_TAG, err) ||
        check_message(p, source, n, err) ||
        ckpt_parity_add(p->writer, source, p->in + sizeof(struct head), n, err))
        return -1;
    return 0;
}

static int all_turns(struct encode *p, struct background *b, struct err *err)
{
    for (int turn = 1; turn < p->members; turn++) {
        if (exchange(p, b->comm, turn, err))
            return -1;
        background_moved(b);
    }
    return ckpt_parity_next(p->writer, err);
}

/* All members tell each other whether their files are durable. *all: they are. The same on all. */
static int swap_words(struct encode *p, struct background *b, bool durable, bool *all,
                      struct err *err)
{
    struct head out = head_of(p, WORD), in;
    out.chunks = durable;
    *all = durable;
    for (int turn = 1; turn < p->members; turn++) {
        int source = source_of(p, turn);
        if (comm_host_exchange(b->comm, &out, sizeof out, p->ranks[holder_of(p, turn)], &in,
                               sizeof in, p->ranks[source], ENCODE_TAG, err) ||
            check_head(p, &in, source, WORD, err))
            return -1;
        *all = *all && in.chunks;
    }
    background_moved(b);
    return 0;
}

/* Until all members' files are durable. */
static int seal(struct encode *p, struct ckpt *own, struct background *b, struct err *err)
{
    bool sealed = false, all = false;
    while (!all) {
        uint32_t digest;
        int durable = ckpt_image_wait(own, clock_ms() + p->word_ms, &digest, err);
        if (durable < 0 || (durable && !sealed && parity_image_seal(p->source, digest, err)))
            return -1;
        sealed = durable;
        if (swap_words(p, b, sealed, &all, err))
            return -1;
    }
    return 0;
}

static int begin(struct encode *p, const struct ckpt_image *image, struct err *err)
{
    if (image->total != p->bytes[p->member])
        return err_set(err, "a file of %lld bytes, but its group was told of %lld",
                       (long long)image->total, (long long)p->bytes[p->member]);
    p->step = image->position.step;
    if (parity_image_open(&p->source, image, ckpt_parity_code(p->writer),
                          ckpt_parity_late(p->writer), err))
        return -1;
    return ckpt_parity_begin(p->writer, &image->position, err);
}

static int run(struct encode *p, struct ckpt *own, struct background *b, struct err *err)
{
    const struct parity_code *code = ckpt_parity_code(p->writer);
    int64_t late = ckpt_parity_late(p->writer);
    for (int64_t turn = 0; turn < code->chunks; turn++) {
        p->chunk = parity_chunk(code, late, turn);
        if ((turn == code->chunks - late && seal(p, own, b, err)) || all_turns(p, b, err))
            return -1;
    }
    return 0;
}

int encode_run(struct encode *p, struct ckpt *own, const struct ckpt_image *image,
               struct background *b, struct err *err)
{
    int rv = begin(p, image, err) || run(p, own, b, err) ? -1 : 0;
    parity_image_close(p->source);
    p->source = NULL;
    return rv;
}

void encode_close(struct encode *p)
{
    parity_image_close(p->source);
    ckpt_parity_close(p->writer);
    free(p->out);
    free(p->in);
    *p = (struct encode){.identity = NULL};
}
