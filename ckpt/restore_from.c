/* restore_from.c - a rank's tensors out of the files of a decision, whatever layout wrote them,
 * where this process sees all of those files. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "files.h"

struct source {
    const struct ckpt_decision *decision;
    char **tables; /* one for each way in which the files are cut */
    int *files;    /* the first of each */
    int n;
    struct files open;
};

static int open_file(void *arg, int number, struct ckpt_file **out, struct err *err)
{
    const struct source *s = arg;
    const struct ckpt_place *place = &s->decision->places[number];
    if (ckpt_file_open(out, place->path, err))
        return -1;
    if (ckpt_file_digest(*out) == place->digest)
        return 0;
    ckpt_file_close(*out);
    return err_set(err, "%s is not the file that the commit record names", place->path);
}

static int add_table(struct source *s, int number, struct err *err)
{
    struct ckpt_file *file = files_get(&s->open, number, err);
    char *table = file ? ckpt_file_table(file, err) : NULL;
    if (!table)
        return -1;
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->tables[i], table)) { /* a replica */
            free(table);
            return 0;
        }
    s->files[s->n] = number;
    s->tables[s->n++] = table;
    return 0;
}

static int find_pieces(struct source *s, struct ckpt *c, struct ckpt_piece **pieces, int *n,
                       struct err *err)
{
    struct ckpt_tensor *wanted = calloc((size_t)c->layout.n + 1, sizeof *wanted);
    int rv = wanted ? 0 : err_set(err, "out of memory");
    for (int i = 0; !rv && i < s->decision->world; i++)
        rv = add_table(s, i, err);
    for (int i = 0; !rv && i < c->layout.n; i++)
        wanted[i] = c->layout.tensors[i].tensor;
    if (!rv)
        rv = ckpt_pieces(wanted, c->layout.n, (const char *const *)s->tables, s->n, pieces, n, err);
    if (!rv)
        rv = ckpt_fill_order(c, pieces, n, err);
    free(wanted);
    return rv;
}

static int put(void *c, const void *p, size_t n, struct err *err)
{
    return ckpt_fill_put(c, p, n, err);
}

static int fill(struct source *s, struct ckpt *c, const struct ckpt_piece *pieces, int n,
                struct err *err)
{
    if (ckpt_fill_begin(c, err))
        return -1;
    for (int i = 0; i < n; i++) {
        struct ckpt_file *file = files_get(&s->open, s->files[pieces[i].source], err);
        if (!file || ckpt_fill_piece(c, &pieces[i], err) ||
            ckpt_file_read_piece(file, &pieces[i], put, c, err))
            return -1;
    }
    return ckpt_fill_end(c, err);
}

int ckpt_restore_from(struct ckpt *c, const struct ckpt_decision *decision, struct err *err)
{
    struct ckpt_piece *pieces = NULL;
    int n = 0, world = decision->world;
    if (!decision->found)
        return err_set(err, "there is nothing to restore");
    struct source s = {.decision = decision,
                       .tables = calloc((size_t)world, sizeof *s.tables),
                       .files = calloc((size_t)world, sizeof *s.files)};
    s.open =
        (struct files){.open = open_file, .arg = &s, .most = files_most(engine_state_bytes(c))};
    int rv = s.tables && s.files ? 0 : err_set(err, "out of memory for %d files", world);
    if (!rv)
        rv = find_pieces(&s, c, &pieces, &n, err);
    if (!rv)
        rv = fill(&s, c, pieces, n, err);
    for (int i = 0; s.tables && i < s.n; i++)
        free(s.tables[i]);
    free(s.tables);
    free(s.files);
    free(pieces);
    files_close(&s.open);
    return rv ? -1 : 0;
}
