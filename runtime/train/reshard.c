/* reshard.c - finds out who has what, and plans. See reshard.h; reshard_move.c moves. */
#include "train/reshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES_MAX_BYTES = 256 << 20 }; /* of one rank's: thousands of ways to cut */

static bool near(const struct reshard *r, int file, int rank)
{
    int server = r->server[file];
    if (r->decision->places[file].holder)
        return server == rank;
    return server < 0 || !strcmp(r->ranks[server].node, r->ranks[rank].node);
}

int reshard_reader(const struct reshard *r, int file, int rank)
{
    return near(r, file, rank) ? rank : r->server[file];
}

void reshard_servers(const struct reshard_rank *ranks, int world, const struct ckpt_place *places,
                     int n_files, int *server)
{
    int turn = 0;
    for (int file = 0; file < n_files; file++) {
        server[file] = places[file].holder - 1;
        if (places[file].holder)
            continue;
        for (int i = 0; i < world; i++) {
            int rank = (turn + i) % world;
            if (strcmp(ranks[rank].node, places[file].node))
                continue;
            server[file] = rank;
            turn = rank + 1;
            break;
        }
    }
}

int reshard_nearest(const struct reshard *r, int rank, uint64_t cut)
{
    int n = r->decision->world, found = -1;
    for (int i = 0; i < n; i++) {
        int file = (rank + i) % n;
        if (r->files[file].cut != cut)
            continue;
        if (near(r, file, rank))
            return file;
        if (found < 0)
            found = file;
    }
    return found;
}

/* ---- what the files hold ---- */

static int read_layout(struct ckpt_file *file, int64_t layout[LAYOUT_WORDS], struct err *err)
{
    for (int i = 0; i < ckpt_file_count(file); i++) {
        struct ckpt_tensor t;
        ckpt_file_tensor(file, i, &t);
        if (!strcmp(t.name, RESHARD_LAYOUT_NAME) && t.dtype == CKPT_I64 && t.dims == 1 &&
            t.shape[0] == LAYOUT_WORDS)
            return ckpt_file_read(file, i, layout, err);
    }
    return err_set(err, "the checkpoint file has no tensor %s: it was not written by gtrain train",
                   RESHARD_LAYOUT_NAME);
}

int reshard_open_file(const struct reshard *r, int file, struct ckpt_file **out, struct err *err)
{
    const struct ckpt_place *place = &r->decision->places[file];
    if (place->holder ? !r->memory || place->holder != r->mesh->rank + 1 : 0)
        return err_set(err, "%s is in the memory of rank %d", place->path, place->holder - 1);
    if (place->holder ? ckpt_memory_file(r->memory, place->slot, out, err)
                      : ckpt_file_open(out, place->path, err))
        return -1;
    if (ckpt_file_digest(*out) == place->digest)
        return 0;
    ckpt_file_close(*out);
    *out = NULL;
    return err_set(err, "%s is not the file that the commit record names", place->path);
}

/* *table: malloc'ed, NULL if the file is damaged. */
static void look_into(const struct reshard *r, struct reshard_file *f, char **table)
{
    struct ckpt_file *file = NULL;
    struct err err;
    *table = NULL;
    if (!reshard_open_file(r, f->number, &file, &err) && !read_layout(file, f->layout, &err))
        *table = ckpt_file_table(file, &err);
    if (*table)
        f->cut = ckpt_cut(*table);
    else
        snprintf(f->text, sizeof f->text, "%s", err.text);
    f->damaged = !*table;
    ckpt_file_close(file);
}

/* Whose turn it is to look at a file; those that everybody reads are dealt out. */
static int looker(const struct reshard *r, int file)
{
    return r->server[file] >= 0 ? r->server[file] : file % r->mesh->world;
}

/* ---- exchange ---- */

struct parts {
    void **data;
    size_t *bytes;
    int n;
};

static int gather(struct reshard *r, const void *mine, size_t bytes, size_t most, struct parts *out,
                  struct err *err)
{
    out->n = r->mesh->world;
    out->data = calloc((size_t)out->n, sizeof *out->data);
    out->bytes = calloc((size_t)out->n, sizeof *out->bytes);
    if (!out->data || !out->bytes)
        return err_set(err, "no memory to restore");
    return comm_host_all_gatherv(r->comm, &r->mesh->all, mine, bytes, most, out->data, out->bytes,
                                 err);
}

static void parts_free(struct parts *p)
{
    for (int i = 0; p->data && i < p->n; i++)
        free(p->data[i]);
    free(p->data);
    free(p->bytes);
}

static int take_files(struct reshard *r, const struct parts *p, struct err *err)
{
    int n = r->decision->world, seen = 0;
    for (int rank = 0; rank < p->n; rank++) {
        const struct reshard_file *list = p->data[rank];
        for (size_t i = 0; i < p->bytes[rank] / sizeof *list; i++, seen++) {
            if (list[i].number < 0 || list[i].number >= n || looker(r, list[i].number) != rank)
                return err_set(err, "rank %d speaks of checkpoint file %d", rank, list[i].number);
            r->files[list[i].number] = list[i];
        }
    }
    return seen == n ? 0 : err_set(err, "%d of %d checkpoint files were looked at", seen, n);
}

/* This rank's files are looked into, and all hear what everybody found. tables: of this rank's
 * files. */
static int share_files(struct reshard *r, char **tables, struct err *err)
{
    int n = r->decision->world, mine = 0;
    struct parts parts = {.n = 0};
    struct reshard_file *list = calloc((size_t)n, sizeof *list);
    if (!list)
        return err_set(err, "no memory to restore");
    for (int file = 0; file < n; file++) {
        if (looker(r, file) != r->mesh->rank)
            continue;
        list[mine].number = file;
        look_into(r, &list[mine++], &tables[file]);
    }
    int rv = gather(r, list, (size_t)mine * sizeof *list, (size_t)n * sizeof *list, &parts, err);
    if (!rv)
        rv = take_files(r, &parts, err);
    parts_free(&parts);
    free(list);
    return rv;
}

static bool first_of_cut(const struct reshard *r, int file)
{
    for (int i = 0; i < file; i++)
        if (r->files[i].cut == r->files[file].cut)
            return false;
    return true;
}

/* The texts of this rank's tables that are the first of their cut, each with its NUL. */
static char *my_tables(const struct reshard *r, char **tables, size_t *bytes, struct err *err)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    for (int file = 0; out && file < r->decision->world; file++)
        if (tables[file] && first_of_cut(r, file))
            fwrite(tables[file], 1, strlen(tables[file]) + 1, out);
    if (out && !fclose(out))
        return text;
    err_set(err, "no memory for the tables of a checkpoint");
    return NULL;
}

static int take_tables(struct reshard *r, const struct parts *p, struct err *err)
{
    r->tables = calloc((size_t)r->decision->world, sizeof *r->tables);
    r->cuts = calloc((size_t)r->decision->world, sizeof *r->cuts);
    if (!r->tables || !r->cuts)
        return err_set(err, "no memory for the tables of a checkpoint");
    for (int rank = 0; rank < p->n; rank++)
        for (size_t at = 0; at < p->bytes[rank];) {
            char *text = (char *)p->data[rank] + at;
            if (r->n_tables == r->decision->world || !(r->tables[r->n_tables] = strdup(text)))
                return err_set(err, "no memory for the tables of a checkpoint");
            r->cuts[r->n_tables++] = ckpt_cut(text);
            at += strlen(text) + 1;
        }
    return 0;
}

static int share_tables(struct reshard *r, char **tables, struct err *err)
{
    struct parts parts = {.n = 0};
    size_t bytes;
    char *text = my_tables(r, tables, &bytes, err);
    if (!text)
        return -1;
    int rv = gather(r, text, bytes, TABLES_MAX_BYTES, &parts, err);
    if (!rv)
        rv = take_tables(r, &parts, err);
    parts_free(&parts);
    free(text);
    return rv;
}

static int share_ranks(struct reshard *r, const char *node, const char *own, struct err *err)
{
    struct reshard_rank me = {.cut = ckpt_cut(own)};
    snprintf(me.node, sizeof me.node, "%s", node);
    if (comm_host_all_gather(r->comm, &r->mesh->all, &me, sizeof me, r->ranks, err))
        return -1;
    reshard_servers(r->ranks, r->mesh->world, r->decision->places, r->decision->world, r->server);
    return 0;
}

/* Who reads a whole file: it must be at hand. */
static void choose_whole(struct reshard *r)
{
    for (int rank = 0; rank < r->mesh->world; rank++) {
        int file = reshard_nearest(r, rank, r->ranks[rank].cut);
        r->whole[rank] = file >= 0 && near(r, file, rank) ? file : -1;
        r->moves |= r->whole[rank] < 0;
    }
}

static int exchange(struct reshard *r, const char *node, const char *own, char **tables,
                    struct err *err)
{
    if (share_ranks(r, node, own, err) || share_files(r, tables, err))
        return -1;
    if (reshard_damage(r))
        return 0;
    choose_whole(r);
    return r->moves ? share_tables(r, tables, err) : 0;
}

int reshard_open(struct reshard *r, struct comm *comm, const struct mesh *mesh,
                 const struct ckpt_decision *decision, const struct ckpt_memory *memory,
                 const char *node, const char *own, struct err *err)
{
    size_t world = (size_t)mesh->world, n = (size_t)decision->world;
    *r = (struct reshard){.comm = comm, .mesh = mesh, .decision = decision, .memory = memory};
    r->ranks = calloc(world, sizeof *r->ranks);
    r->whole = calloc(world, sizeof *r->whole);
    r->files = calloc(n, sizeof *r->files);
    r->server = calloc(n, sizeof *r->server);
    char **tables = calloc(n, sizeof *tables);
    int rv = r->ranks && r->whole && r->files && r->server && tables
                 ? exchange(r, node, own, tables, err)
                 : err_set(err, "no memory to restore from %d files", decision->world);
    for (size_t i = 0; tables && i < n; i++)
        free(tables[i]);
    free(tables);
    return rv;
}

const struct reshard_file *reshard_damage(const struct reshard *r)
{
    for (int i = 0; i < r->decision->world; i++)
        if (r->files[i].damaged)
            return &r->files[i];
    return NULL;
}

bool reshard_same_cut(const struct reshard *r)
{
    bool same = r->decision->world == r->mesh->world;
    for (int i = 0; same && i < r->mesh->world; i++)
        same = r->files[i].cut == r->ranks[i].cut;
    return same;
}

/* ---- plan ---- */

struct choice {
    int file; /* of one cut, for this rank */
    const char *table;
};

/* Tables in the order that this rank prefers: near ones, then the others, each from another start.
 */
static void order_tables(const struct reshard *r, struct choice *out)
{
    int n = 0;
    for (int far = 0; far <= 1; far++)
        for (int i = 0; i < r->n_tables; i++) {
            int t = (r->mesh->rank + i) % r->n_tables;
            int file = reshard_nearest(r, r->mesh->rank, r->cuts[t]);
            if (near(r, file, r->mesh->rank) == !far)
                out[n++] = (struct choice){file, r->tables[t]};
        }
}

int reshard_plan(struct reshard *r, const struct ckpt_tensor *wanted, int n, struct err *err)
{
    if (r->whole[r->mesh->rank] >= 0)
        return 0;
    struct choice *choices = calloc((size_t)r->n_tables + 1, sizeof *choices);
    const char **tables = calloc((size_t)r->n_tables + 1, sizeof *tables);
    int rv = choices && tables ? 0 : err_set(err, "no memory for %d tables", r->n_tables);
    if (!rv)
        order_tables(r, choices);
    for (int i = 0; !rv && i < r->n_tables; i++)
        tables[i] = choices[i].table;
    if (!rv)
        rv = ckpt_pieces(wanted, n, tables, r->n_tables, &r->pieces, &r->n_pieces, err);
    for (int i = 0; i < r->n_pieces; i++)
        r->pieces[i].source = choices[r->pieces[i].source].file;
    free(choices);
    free(tables);
    return rv;
}

int reshard_order(struct reshard *r, struct ckpt *c, const struct ckpt_tensor *tensors,
                  struct err *err)
{
    if (ckpt_fill_order(c, &r->pieces, &r->n_pieces, err))
        return -1;
    r->piece_bytes = calloc((size_t)r->n_pieces + 1, sizeof *r->piece_bytes);
    if (!r->piece_bytes)
        return err_set(err, "no memory for %d pieces", r->n_pieces);
    for (int i = 0; i < r->n_pieces; i++)
        r->piece_bytes[i] = ckpt_piece_bytes(&r->pieces[i], &tensors[r->pieces[i].to]);
    return 0;
}

void reshard_close(struct reshard *r)
{
    for (int i = 0; r->tables && i < r->n_tables; i++)
        free(r->tables[i]);
    free(r->tables);
    free(r->cuts);
    free(r->ranks);
    free(r->files);
    free(r->server);
    free(r->whole);
    free(r->pieces);
    free(r->piece_bytes);
    *r = (struct reshard){0};
}
