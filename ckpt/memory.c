/* memory.c - see memory.h. */
#include "memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "blocks.h"
#include "crc.h"
#include "file.h"
#include "held.h"
#include "record.h"
#include "slots.h"

enum {
    OWN_SLOTS = CKPT_MEMORY_SLOTS / 2, /* the others are the ward's */
    WHOLE = 0x656c6f68,                /* the word */
};

/* Behind the claim, whose readers pass over words they do not know; the note is the last. */
#define PARTS_WORD " parts="
#define NOTE_WORD  " note="
enum { PARTS_BYTES = 24 };

static const char magic[8] = {'g', 't', 'r', 's', 'l', 'o', 't', '1'};

/* How a slot begins. */
struct head {
    char magic[8];
    uint32_t whole; /* WHOLE, or the image is not */
    uint32_t text_bytes;
    uint32_t crc; /* CRC32C of text_bytes and the text */
    char text[CKPT_MEMORY_HEAD_BYTES - 20];
};

struct slot {
    int fd;
    unsigned char *map; /* NULL: it has no size yet */
    int64_t map_bytes;
    struct slot_state state;
    struct file_meta meta; /* where it is valid */
    int64_t bytes;         /* of the image */
    uint32_t digest;
    char note[CKPT_MEMORY_NOTE];
    bool clean; /* the gaps between tensors are zero */
};

struct ckpt_memory {
    char node[CKPT_NODE_MAX + 1], run[CKPT_RUN_MAX + 1];
    int rank, world;
    uint32_t epoch, generation;
    uint64_t plan_hash;
    int parts;
    struct ckpt_io io;
    struct layout layout;
    struct slot slots[CKPT_MEMORY_SLOTS];
    bool keeps;
    struct ckpt_key kept;
    uint32_t *crcs;
    const void *(*where)(void *arg, int index);
    const void **from; /* of each tensor, where it stands */
    bool direct;       /* all stand in host memory: they are copied by blocks, with checksums */

    int filling; /* own slot between begin and seal, then the one sealed last; -1: none */
    int taking;  /* the ward's, between begin and end; -1: none */
    struct ckpt_memory_head head;
    int64_t taken; /* bytes */
};

int64_t ckpt_memory_bytes(const struct ckpt_memory *m)
{
    return m->layout.header_bytes + m->layout.data_bytes;
}

/* ---- what a slot says of itself ---- */

static void set_whole(struct slot *s, bool whole)
{
    struct head *h = (struct head *)s->map;
    /* Whoever looks at the slot after this process was killed sees its stores in their order. */
    __atomic_store_n(&h->whole, whole ? WHOLE : 0, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    s->state.valid = whole;
}

static uint32_t head_crc(const struct head *h)
{
    return crc32c(crc32c(0, &h->text_bytes, sizeof h->text_bytes), h->text, h->text_bytes);
}

static int write_head(const struct ckpt_memory *m, struct slot *s, struct err *err)
{
    struct head *h = (struct head *)s->map;
    char path[CKPT_NAME_ROOM];
    struct ckpt_name name = {.kind = NAME_FILE, .key = s->meta.key, .rank = s->meta.rank};
    strcpy(name.run, s->meta.run);
    name_format(&name, path);
    struct record_rank rank = {
        .node = (char *)m->node, .path = path, .bytes = s->bytes, .digest = s->digest};
    struct record claim = {.meta = s->meta, .n = 1, .ranks = &rank};
    char *text = record_print(&claim, RECORD_CLAIM);
    size_t room = sizeof h->text - sizeof s->note - strlen(NOTE_WORD) - PARTS_BYTES;
    size_t n = text ? strlen(text) : 0;
    if (!text || n > room) {
        free(text);
        return err_set(err, "no room for what a snapshot says of itself");
    }
    memcpy(h->magic, magic, sizeof magic);
    memcpy(h->text, text, n);
    if (m->parts)
        n += (size_t)sprintf(h->text + n, PARTS_WORD "%d", m->parts);
    if (*s->note)
        n += (size_t)sprintf(h->text + n, NOTE_WORD "%s", s->note);
    h->text_bytes = (uint32_t)n;
    h->crc = head_crc(h);
    free(text);
    s->state.key = s->meta.key;
    return 0;
}

static bool note_valid(const char *note)
{
    size_t n = strnlen(note, CKPT_MEMORY_NOTE);
    return n < CKPT_MEMORY_NOTE && strspn(note, "0123456789abcdefghijklmnopqrstuvwxyz:,-") == n;
}

static void read_note(struct slot *s, const struct head *h)
{
    const char *at = memmem(h->text, h->text_bytes, NOTE_WORD, strlen(NOTE_WORD));
    size_t n = at ? (size_t)(h->text + h->text_bytes - at) - strlen(NOTE_WORD) : 0;
    s->note[0] = 0;
    if (!n || n >= sizeof s->note)
        return;
    memcpy(s->note, at + strlen(NOTE_WORD), n);
    s->note[n] = 0;
    if (!note_valid(s->note))
        s->note[0] = 0;
}

/* A slot counts if it says, and can be, a whole image of this run and launch. */
static void read_head(const struct ckpt_memory *m, struct slot *s)
{
    struct head h;
    struct record claim;
    struct err unused;
    s->state = (struct slot_state){.valid = false};
    if (s->map_bytes < CKPT_MEMORY_HEAD_BYTES)
        return;
    memcpy(&h, s->map, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) || h.whole != WHOLE || h.text_bytes > sizeof h.text ||
        head_crc(&h) != h.crc || record_parse(h.text, h.text_bytes, RECORD_CLAIM, &claim, &unused))
        return;
    s->meta = claim.meta;
    s->bytes = claim.ranks[0].bytes;
    s->digest = claim.ranks[0].digest;
    read_note(s, &h);
    s->state.key = claim.meta.key;
    s->state.valid = !strcmp(claim.meta.run, m->run) && claim.meta.key.epoch == m->epoch &&
                     s->bytes <= s->map_bytes - CKPT_MEMORY_HEAD_BYTES;
    record_free(&claim);
}

/* ---- opening ---- */

static int map_slot(struct slot *s, struct err *err)
{
    struct stat st;
    if (fstat(s->fd, &st))
        return err_set_errno(err, errno, "looking at the memory of descriptor %d", s->fd);
    if (s->map)
        held_unmap(s->map, s->map_bytes);
    s->map = NULL;
    s->map_bytes = 0;
    if (st.st_size < CKPT_MEMORY_HEAD_BYTES)
        return 0;
    if (held_map(s->fd, st.st_size, &s->map, err))
        return -1;
    s->map_bytes = st.st_size;
    return 0;
}

int ckpt_memory_open(struct ckpt_memory **out, const struct ckpt_memory_options *o,
                     const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                     struct err *err)
{
    *out = NULL;
    if (!name_node_valid(o->node) || !name_run_valid(o->run_id) || o->rank < 0 ||
        o->rank >= o->world)
        return err_set(err, "snapshots of rank %d of %d, run '%.64s', node '%.128s'", o->rank,
                       o->world, o->run_id, o->node);
    struct ckpt_memory *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, "out of memory");
    strcpy(m->node, o->node);
    strcpy(m->run, o->run_id);
    m->rank = o->rank;
    m->world = o->world;
    m->epoch = o->epoch;
    m->generation = o->generation;
    m->plan_hash = o->plan_hash;
    m->parts = o->parts;
    m->where = o->where;
    m->io = *io;
    m->filling = m->taking = -1;
    int rv = layout_make(&m->layout, tensors, n_tensors, err);
    for (int i = 0; i < CKPT_MEMORY_SLOTS && !rv; i++) {
        m->slots[i].fd = o->fds[i];
        rv = map_slot(&m->slots[i], err);
        if (!rv)
            read_head(m, &m->slots[i]);
    }
    m->crcs = calloc((size_t)crc_blocks(m->layout.data_bytes) + 1, sizeof *m->crcs);
    m->from = calloc((size_t)m->layout.n + 1, sizeof *m->from);
    if (!rv && (!m->crcs || !m->from))
        rv = err_set(err, "out of memory");
    if (rv)
        ckpt_memory_close(m);
    else
        *out = m;
    return rv;
}

void ckpt_memory_close(struct ckpt_memory *m)
{
    if (!m)
        return;
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        if (m->slots[i].map)
            held_unmap(m->slots[i].map, m->slots[i].map_bytes);
    layout_free(&m->layout);
    free(m->crcs);
    free(m->from);
    free(m);
}

/* What slot i must be long. */
static int64_t wanted_bytes(const struct ckpt_memory *m, int i, int64_t ward_bytes)
{
    int64_t image = i < OWN_SLOTS ? ckpt_memory_bytes(m) : ward_bytes;
    return image ? image + CKPT_MEMORY_HEAD_BYTES : 0;
}

int64_t ckpt_memory_lacks(const struct ckpt_memory *m, int64_t ward_bytes)
{
    int64_t lacks = 0;
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++) {
        struct stat st;
        int64_t wanted = wanted_bytes(m, i, ward_bytes);
        int64_t has = fstat(m->slots[i].fd, &st) ? 0 : (int64_t)st.st_blocks * 512;
        if (has < wanted)
            lacks += wanted - has;
    }
    return lacks;
}

int ckpt_memory_take(struct ckpt_memory *m, int64_t ward_bytes, struct err *err)
{
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++) {
        struct slot *s = &m->slots[i];
        int64_t wanted = wanted_bytes(m, i, ward_bytes);
        if (!wanted)
            continue;
        if (held_lengthen(s->fd, wanted, err) || (s->map_bytes < wanted && map_slot(s, err)) ||
            held_fill(s->fd, s->map, wanted, err))
            return -1;
    }
    return 0;
}

void ckpt_memory_keep(struct ckpt_memory *m, const struct ckpt_key *key)
{
    m->keeps = true;
    m->kept = *key;
}

void ckpt_memory_confirm(struct ckpt_memory *m, const struct ckpt_key *key, int ward)
{
    ckpt_memory_keep(m, key);
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++) {
        struct slot *s = &m->slots[i];
        if (s->state.valid && !key_compare(&s->meta.key, key) &&
            s->meta.rank != (i < OWN_SLOTS ? m->rank : ward))
            set_whole(s, false);
    }
}

/* Of `n` slots from `first`, one to fill now; its word is cleared. -1: none. */
static int choose(struct ckpt_memory *m, int first, int n, const struct ckpt_key *next,
                  int64_t bytes, struct err *err)
{
    struct slot_state states[CKPT_MEMORY_SLOTS];
    struct ckpt_key now = {m->epoch, m->generation, 0};
    for (int i = 0; i < n; i++)
        states[i] = m->slots[first + i].state;
    int chosen = slots_choose(states, n, m->keeps ? &m->kept : NULL, &now);
    if (chosen < 0)
        return err_set(err, "no slot is free for a snapshot of step %" PRId64, next->step);
    chosen += first;
    struct slot *s = &m->slots[chosen];
    if (bytes > s->map_bytes - CKPT_MEMORY_HEAD_BYTES)
        return err_set(err, "a snapshot of %" PRId64 " bytes for a slot of %" PRId64, bytes,
                       s->map_bytes - CKPT_MEMORY_HEAD_BYTES);
    set_whole(s, false);
    return chosen;
}

static unsigned char *image(const struct slot *s)
{
    return s->map + CKPT_MEMORY_HEAD_BYTES;
}

/* ---- the rank's own ---- */

static void clean_gaps(const struct layout *l, unsigned char *data)
{
    for (int i = 0; i < l->n; i++) {
        int64_t next = i + 1 < l->n ? l->tensors[i + 1].begin : l->data_bytes;
        memset(data + l->tensors[i].end, 0, (size_t)(next - l->tensors[i].end));
    }
}

static struct file_meta meta_of(const struct ckpt_memory *m, const struct ckpt_key *key, int rank,
                                int64_t samples)
{
    struct file_meta meta = {.key = *key,
                             .samples = samples,
                             .rank = rank,
                             .world = m->world,
                             .plan_hash = m->plan_hash};
    strcpy(meta.run, m->run);
    return meta;
}

static void look_where(struct ckpt_memory *m)
{
    m->direct = m->where != NULL;
    for (int i = 0; i < m->layout.n && m->direct; i++)
        m->direct = (m->from[i] = m->where(m->io.arg, i)) != NULL;
}

int ckpt_memory_begin(struct ckpt_memory *m, const struct ckpt_key *key, int64_t samples,
                      struct err *err)
{
    m->filling = choose(m, 0, OWN_SLOTS, key, ckpt_memory_bytes(m), err);
    if (m->filling < 0)
        return -1;
    struct slot *s = &m->slots[m->filling];
    if (!s->clean)
        clean_gaps(&m->layout, image(s) + m->layout.header_bytes);
    s->clean = true;
    look_where(m);
    s->meta = meta_of(m, key, m->rank, samples);
    s->bytes = ckpt_memory_bytes(m);
    return 0;
}

int ckpt_memory_count(const struct ckpt_memory *m)
{
    return m->direct ? (int)crc_blocks(m->layout.data_bytes) : m->layout.n;
}

int ckpt_memory_copy(struct ckpt_memory *m, int piece, struct err *err)
{
    unsigned char *data = image(&m->slots[m->filling]) + m->layout.header_bytes;
    if (m->direct) {
        m->crcs[piece] = blocks_make(&m->layout, m->from, piece, data);
        return 0;
    }
    const struct layout_tensor *t = &m->layout.tensors[piece];
    if (m->io.copy_out(m->io.arg, piece, data + t->begin, err))
        return err_prefix(err, "copying %s for a snapshot", t->key);
    return 0;
}

int ckpt_memory_flush(struct ckpt_memory *m, struct err *err)
{
    if (m->io.flush && m->io.flush(m->io.arg, err))
        return err_prefix(err, "copying the state for a snapshot");
    return 0;
}

int ckpt_memory_seal(struct ckpt_memory *m, const char *note, struct err *err)
{
    struct slot *s = &m->slots[m->filling];
    struct crc_stream stream = {.crcs = m->crcs};
    if (!note_valid(note))
        return err_set(err, "'%.40s' cannot stand beside a snapshot", note);
    strcpy(s->note, note);
    if (!m->direct)
        crc_feed(&stream, image(s) + m->layout.header_bytes, (size_t)m->layout.data_bytes);
    if (layout_header(&m->layout, &s->meta, m->crcs, image(s), &s->digest, err) ||
        write_head(m, s, err))
        return -1;
    set_whole(s, true);
    return 0;
}

const void *ckpt_memory_image(const struct ckpt_memory *m, struct ckpt_memory_head *head)
{
    const struct slot *s = &m->slots[m->filling];
    *head = (struct ckpt_memory_head){.rank = s->meta.rank,
                                      .world = s->meta.world,
                                      .epoch = s->meta.key.epoch,
                                      .generation = s->meta.key.generation,
                                      .step = s->meta.key.step,
                                      .samples = s->meta.samples,
                                      .bytes = s->bytes,
                                      .plan_hash = s->meta.plan_hash,
                                      .digest = s->digest};
    strcpy(head->note, s->note);
    return image(s);
}

/* Of `n` slots from `first`, the one with that rank's state of that key, as this run cuts it. */
static int find(const struct ckpt_memory *m, int first, int n, const struct ckpt_key *key, int rank)
{
    for (int i = first; i < first + n; i++) {
        const struct slot *s = &m->slots[i];
        if (s->state.valid && !key_compare(&s->meta.key, key) && s->meta.rank == rank &&
            s->meta.world == m->world && s->meta.plan_hash == m->plan_hash)
            return i;
    }
    return -1;
}

bool ckpt_memory_find(struct ckpt_memory *m, const struct ckpt_key *key)
{
    m->filling = find(m, 0, OWN_SLOTS, key, m->rank);
    return m->filling >= 0;
}

bool ckpt_memory_find_ward(const struct ckpt_memory *m, const struct ckpt_key *key, int ward)
{
    return find(m, OWN_SLOTS, CKPT_MEMORY_SLOTS - OWN_SLOTS, key, ward) >= 0;
}

/* ---- the ward's ---- */

int ckpt_memory_ward_begin(struct ckpt_memory *m, const struct ckpt_memory_head *h, int ward,
                           const struct ckpt_key *key, struct err *err)
{
    struct ckpt_key is = {h->epoch, h->generation, h->step};
    m->taking = -1;
    if (key_compare(&is, key) || h->rank != ward || h->world != m->world || h->samples < 0 ||
        h->plan_hash != m->plan_hash)
        return err_set(err,
                       "a snapshot of rank %d, epoch %" PRIu32 ", generation %" PRIu32
                       ", step %" PRId64 " came, but rank %d's of epoch %" PRIu32
                       ", generation %" PRIu32 ", step %" PRId64 " is due",
                       h->rank, h->epoch, h->generation, h->step, ward, key->epoch, key->generation,
                       key->step);
    if (h->bytes < 8 || !note_valid(h->note))
        return err_set(err, "a snapshot of %" PRId64 " bytes came from rank %d", h->bytes, ward);
    m->taking = choose(m, OWN_SLOTS, CKPT_MEMORY_SLOTS - OWN_SLOTS, key, h->bytes, err);
    if (m->taking < 0)
        return err_prefix(err, "the copy of rank %d's state", ward);
    m->slots[m->taking].clean = false;
    m->head = *h;
    m->taken = 0;
    return 0;
}

void *ckpt_memory_ward_next(struct ckpt_memory *m, int64_t n, struct err *err)
{
    if (m->taking < 0 || n < 0 || n > m->head.bytes - m->taken) {
        err_set(err, "%" PRId64 " bytes more than the snapshot of rank %d has", n, m->head.rank);
        return NULL;
    }
    void *at = image(&m->slots[m->taking]) + m->taken;
    m->taken += n;
    return at;
}

/* Every byte, and that it is what the head has said. */
static int check_image(const struct slot *s, struct err *err)
{
    struct ckpt_file *f;
    if (ckpt_file_open_memory(&f, image(s), (size_t)s->bytes, err))
        return -1;
    int rv = ckpt_file_verify(f, err);
    if (!rv && (key_compare(&f->meta.key, &s->meta.key) || strcmp(f->meta.run, s->meta.run) ||
                f->meta.samples != s->meta.samples || f->meta.rank != s->meta.rank ||
                f->meta.world != s->meta.world || f->meta.plan_hash != s->meta.plan_hash ||
                f->digest != s->digest))
        rv = err_set(err, "it is not the state that it is said to be");
    ckpt_file_close(f);
    return rv;
}

int ckpt_memory_ward_end(struct ckpt_memory *m, struct err *err)
{
    struct slot *s = &m->slots[m->taking];
    const struct ckpt_memory_head *h = &m->head;
    if (m->taken != h->bytes)
        return err_set(err, "%" PRId64 " of %" PRId64 " bytes of rank %d's state came", m->taken,
                       h->bytes, h->rank);
    s->meta = meta_of(m, &(struct ckpt_key){h->epoch, h->generation, h->step}, h->rank, h->samples);
    s->bytes = h->bytes;
    s->digest = h->digest;
    strcpy(s->note, h->note);
    m->taking = -1;
    if (check_image(s, err))
        return err_prefix(err, "the copy of rank %d's state", h->rank);
    if (write_head(m, s, err))
        return -1;
    set_whole(s, true);
    return 0;
}

/* ---- restore ---- */

char *ckpt_memory_scan(const struct ckpt_memory *m, struct err *err)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int i = 0; out && i < CKPT_MEMORY_SLOTS; i++) {
        const struct slot *s = &m->slots[i];
        const struct head *h = (const struct head *)s->map;
        if (s->state.valid)
            fprintf(out, "%d %.*s\n", i, (int)h->text_bytes, h->text);
    }
    if (out && !fclose(out))
        return text;
    err_set(err, "out of memory");
    return NULL;
}

int ckpt_memory_file(const struct ckpt_memory *m, int slot, struct ckpt_file **out, struct err *err)
{
    *out = NULL;
    if (slot < 0 || slot >= CKPT_MEMORY_SLOTS || !m->slots[slot].state.valid)
        return err_set(err, "slot %d of rank %d's memory holds no whole state", slot, m->rank);
    const struct slot *s = &m->slots[slot];
    if (ckpt_file_open_memory(out, image(s), (size_t)s->bytes, err))
        return err_prefix(err, "memory of node %s", m->node);
    return 0;
}

void ckpt_memory_verify(struct ckpt_memory *m)
{
    struct err unused;
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        if (m->slots[i].state.valid && check_image(&m->slots[i], &unused))
            set_whole(&m->slots[i], false);
}

void ckpt_memory_forget(struct ckpt_memory *m)
{
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        if (m->slots[i].map)
            set_whole(&m->slots[i], false);
}
