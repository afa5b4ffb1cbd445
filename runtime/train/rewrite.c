/* rewrite.c - see rewrite.h. */
#include "train/rewrite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alone.h"
#include "drain.h"
#include "runs.h"
#include "train/reshard.h"
#include "train/state_table.h"

_Static_assert(LAYOUT_WORDS <= sizeof((struct rewrite *)0)->layout / sizeof(int64_t),
               "room for gtrain.layout");

/* ---- the source ---- */

static int open_file(void *rewrite, int number, struct ckpt_file **out, struct err *err)
{
    const struct rewrite *r = rewrite;
    const struct ckpt_place *place = &r->decision.places[number];
    if (ckpt_file_open(out, place->path, err))
        return -1;
    if (ckpt_file_digest(*out) == place->digest)
        return 0;
    ckpt_file_close(*out);
    return err_set(err, "%s is not the file that the commit record names", place->path);
}

/* Which arithmetic wrote it stays; how it is cut is the plan's. */
static int set_layout(struct rewrite *r, struct ckpt_file *file, struct err *err)
{
    const struct plan_parallel *p = &r->plan->parallel;
    for (int i = 0; i < ckpt_file_count(file); i++) {
        struct ckpt_tensor t;
        ckpt_file_tensor(file, i, &t);
        if (strcmp(t.name, RESHARD_LAYOUT_NAME) || t.dtype != CKPT_I64 || t.dims != 1 ||
            t.shape[0] != LAYOUT_WORDS)
            continue;
        if (ckpt_file_read(file, i, r->layout, err))
            return -1;
        r->layout[MESH_TENSOR] = p->tensor;
        r->layout[MESH_CONTEXT] = p->context;
        r->layout[MESH_EXPERT] = p->expert;
        r->layout[MESH_PIPELINE] = p->pipeline;
        r->layout[MESH_DATA] = p->data;
        return 0;
    }
    return err_set(err, "%s has no tensor %s: it was not written by gtrain train",
                   r->decision.places[0].path, RESHARD_LAYOUT_NAME);
}

static int add_table(struct rewrite *r, int number, struct err *err)
{
    struct ckpt_file *file = files_get(&r->open, number, err);
    if (!file || (number == 0 && set_layout(r, file, err)))
        return -1;
    char *table = ckpt_file_table(file, err);
    if (!table)
        return -1;
    for (int i = 0; i < r->n_tables; i++)
        if (!strcmp(r->tables[i], table)) { /* a replica */
            free(table);
            return 0;
        }
    r->files[r->n_tables] = number;
    r->tables[r->n_tables++] = table;
    return 0;
}

static int read_tables(struct rewrite *r, struct err *err)
{
    int world = r->decision.world;
    r->tables = calloc((size_t)world, sizeof *r->tables);
    r->files = calloc((size_t)world, sizeof *r->files);
    if (!r->tables || !r->files)
        return err_set(err, "no memory for the tables of %d files", world);
    for (int i = 0; i < world; i++)
        if (add_table(r, i, err))
            return -1;
    return 0;
}

int rewrite_open(struct rewrite *r, const struct weights_source *source, int64_t step,
                 const struct plan *plan, struct err *err)
{
    const struct ckpt_decision *d = &r->decision;
    *r = (struct rewrite){.plan = plan, .open = {.open = open_file, .arg = r, .most = FILES_MOST}};
    if (weights_decide(source, step, &r->decision, err))
        return -1;
    if (step >= 0 && d->position.step != step)
        return err_set(err,
                       "there is no whole committed checkpoint of step %" PRId64
                       "; the newest before it is of step %" PRId64,
                       step, d->position.step);
    if (d->plan_hash && d->plan_hash != plan_hash(plan))
        return err_set(err,
                       "the checkpoint of step %" PRId64
                       " belongs to another plan (hash %016" PRIx64
                       "; this plan's model, data and training: %016" PRIx64
                       "): use the run's own plan and change only parallel, checkpoint and "
                       "resilience",
                       d->position.step, d->plan_hash, plan_hash(plan));
    return read_tables(r, err);
}

void rewrite_close(struct rewrite *r)
{
    for (int i = 0; r->tables && i < r->n_tables; i++)
        free(r->tables[i]);
    free(r->tables);
    free(r->files);
    files_close(&r->open);
    ckpt_decision_free(&r->decision);
    *r = (struct rewrite){.plan = NULL};
}

/* ---- one rank ---- */

/* What rank holds, and the pieces it is made of, in the order of its tensors. */
struct job {
    struct rewrite *r;
    const atomic_bool *stop;
    struct state state;
    struct ckpt_tensor *tensors; /* gtrain.layout last */
    int n;
    char *names;
    struct ckpt_piece *pieces;
    int n_pieces, next; /* next: the first of the tensor that is wanted next */
};

/* Bytes of a piece, in portions, into the runs they belong to. */
struct scatter {
    struct runs runs;
    const atomic_bool *stop;
    unsigned char *slice;
    int64_t at, left;
};

static int put(void *arg, const void *p, size_t n, struct err *err)
{
    struct scatter *s = arg;
    const unsigned char *from = p;
    if (s->stop && atomic_load(s->stop))
        return err_set(err, "interrupted");
    while (n) {
        if (!s->left) {
            if (!runs_next(&s->runs, &s->at))
                return err_set(err, "%zu bytes more than the piece has", n);
            s->left = s->runs.bytes;
        }
        size_t part = (int64_t)n < s->left ? n : (size_t)s->left;
        memcpy(s->slice + s->at, from, part);
        s->at += (int64_t)part;
        s->left -= (int64_t)part;
        from += part;
        n -= part;
    }
    return 0;
}

static int read_piece(struct job *j, const struct ckpt_piece *piece, void *host, struct err *err)
{
    struct scatter s = {.slice = host, .stop = j->stop};
    struct ckpt_file *file = files_get(&j->r->open, j->r->files[piece->source], err);
    if (!file)
        return -1;
    if (!runs_begin(&s.runs, &j->tensors[piece->to], piece->offset, piece->shape))
        return err_set(err, "a piece of %s that is not in its slice", j->tensors[piece->to].name);
    return ckpt_file_read_piece(file, piece, put, &s, err);
}

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct job *j = arg;
    if (index == j->n - 1) {
        memcpy(host, j->r->layout, LAYOUT_WORDS * sizeof *j->r->layout);
        return 0;
    }
    for (; j->next < j->n_pieces && j->pieces[j->next].to == index; j->next++)
        if (read_piece(j, &j->pieces[j->next], host, err))
            return -1;
    return 0;
}

/* Of weights that were imported there are no moments, and none are made. */
static void drop_moments(struct job *j)
{
    int n = 0;
    for (int i = 0; i < j->n - 1; i += STATE_TABLE_PARTS)
        j->tensors[n++] = j->tensors[i];
    j->tensors[n++] = j->tensors[j->n - 1];
    j->n = n;
}

static int list_rank(struct job *j, int rank, struct err *err)
{
    const struct plan_parallel *p = &j->r->plan->parallel;
    const int degree[MESH_AXES] = {[MESH_TENSOR] = p->tensor,
                                   [MESH_CONTEXT] = p->context,
                                   [MESH_EXPERT] = p->expert,
                                   [MESH_PIPELINE] = p->pipeline,
                                   [MESH_DATA] = p->data};
    struct mesh mesh;
    if (mesh_open(&mesh, degree, rank, err))
        return -1;
    int rv = state_list(&j->state, j->r->plan, &mesh, err);
    mesh_close(&mesh);
    if (rv || state_table(&j->state, &j->tensors, &j->n, &j->names, err))
        return -1;
    if (!j->r->decision.plan_hash)
        drop_moments(j);
    return ckpt_pieces(j->tensors, j->n - 1, (const char *const *)j->r->tables, j->r->n_tables,
                       &j->pieces, &j->n_pieces, err);
}

static void close_job(struct job *j)
{
    state_close(&j->state);
    free(j->tensors);
    free(j->names);
    free(j->pieces);
}

static int64_t bytes_of(const struct job *j)
{
    int64_t bytes = 0;
    for (int i = 0; i < j->n_pieces; i++)
        bytes += ckpt_piece_bytes(&j->pieces[i], &j->tensors[j->pieces[i].to]);
    return bytes;
}

int64_t rewrite_bytes(struct rewrite *r, struct err *err)
{
    int64_t bytes = 0;
    for (int rank = 0; rank < r->plan->world; rank++) {
        struct job j = {.r = r};
        int rv = list_rank(&j, rank, err);
        bytes += rv ? 0 : bytes_of(&j);
        close_job(&j);
        if (rv)
            return err_prefix(err, "rank %d of %d", rank, r->plan->world);
    }
    return bytes;
}

static int write_rank(struct rewrite *r, const struct rewrite_target *target, struct alone *to,
                      int rank, struct err *err)
{
    struct job j = {.r = r, .stop = target->stop};
    int rv = list_rank(&j, rank, err);
    if (!rv)
        rv = alone_write(to, rank, j.tensors, j.n, copy_out, &j, err);
    if (!rv && target->tell)
        target->tell(target->arg, rank, bytes_of(&j));
    close_job(&j);
    return rv ? err_prefix(err, "rank %d of %d", rank, to->world) : 0;
}

int rewrite_write(struct rewrite *r, const struct rewrite_target *target, struct err *err)
{
    struct alone to = {.dir = target->dir,
                       .node = CKPT_SHARED_NODE,
                       .run_id = target->run_id,
                       .world = r->plan->world,
                       .epoch = target->epoch,
                       .plan_hash = r->decision.plan_hash,
                       .position = r->decision.position,
                       .replicated = true};
    int rv = alone_open(&to, err);
    for (int rank = to.world - 1; !rv && rank >= 0; rank--)
        rv = write_rank(r, target, &to, rank, err);
    alone_close(&to);
    return rv;
}
