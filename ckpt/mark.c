/* mark.c - see mark.h. */
#include "mark.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "log.h"

enum { MARK_ROOM = 512 }; /* the longest: six numbers and a run id */

static int print(const struct mark *m, char out[MARK_ROOM])
{
    int n = snprintf(out, MARK_ROOM,
                     "%s v=1 run=%s epoch=%" PRIu32 " generation=%" PRIu32 " step=%" PRId64
                     " by=%" PRIu32 ".%" PRIu32,
                     m->bad ? "bad" : "good", m->run, m->key.epoch, m->key.generation, m->key.step,
                     m->by.epoch, m->by.generation);
    if (m->bad)
        n += snprintf(out + n, MARK_ROOM - (size_t)n, " nan=%" PRId64, m->nan_step);
    return n;
}

char *mark_print(const struct mark *m)
{
    char text[MARK_ROOM];
    print(m, text);
    return strdup(text);
}

bool mark_is(const char *text, int64_t n)
{
    return (n > 4 && !memcmp(text, "bad ", 4)) || (n > 5 && !memcmp(text, "good ", 5));
}

/* "KEY" and a number; false leaves *p anywhere. */
static bool take(const char **p, const char *key, int64_t most, int64_t *out)
{
    size_t n = strlen(key);
    if (strncmp(*p, key, n))
        return false;
    *p += n;
    return take_number(p, most, out);
}

static bool take_key(const char **p, struct ckpt_key *key, const char *epoch, const char *between)
{
    int64_t e, g;
    if (!take(p, epoch, UINT32_MAX, &e) || !take(p, between, UINT32_MAX, &g))
        return false;
    *key = (struct ckpt_key){(uint32_t)e, (uint32_t)g, 0};
    return true;
}

bool mark_parse(const char *text, int64_t n, struct mark *out)
{
    char copy[MARK_ROOM], again[MARK_ROOM];
    memset(out, 0, sizeof *out);
    if (!mark_is(text, n) || n >= MARK_ROOM || memchr(text, 0, (size_t)n))
        return false;
    memcpy(copy, text, (size_t)n);
    copy[n] = 0;
    out->bad = copy[0] == 'b';
    const char *run = strstr(copy, " run="), *p = run ? strchr(run + 5, ' ') : NULL;
    if (!p || p - (run + 5) > CKPT_RUN_MAX)
        return false;
    memcpy(out->run, run + 5, (size_t)(p - (run + 5)));
    if (!name_run_valid(out->run) || !take_key(&p, &out->key, " epoch=", " generation=") ||
        !take(&p, " step=", INT64_MAX, &out->key.step) || !take_key(&p, &out->by, " by=", ".") ||
        (out->bad && !take(&p, " nan=", INT64_MAX, &out->nan_step)))
        return false;
    print(out, again);
    return !strcmp(copy, again);
}

int marks_add(struct marks *m, const struct mark *mark)
{
    if (!(m->n & (m->n - 1))) {
        void *more = reallocarray(m->list, m->n ? (size_t)m->n * 2 : 1, sizeof *m->list);
        if (!more)
            return -1;
        m->list = more;
    }
    m->list[m->n++] = *mark;
    return 0;
}

/* Of a checkpoint the mark that holds comes first. */
static int by_key(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    int order = key_compare(&x->key, &y->key);
    if (!order)
        order = key_compare(&y->by, &x->by);
    if (!order)
        order = y->bad - x->bad;
    return order ? order : (x->nan_step > y->nan_step) - (x->nan_step < y->nan_step);
}

void marks_settle(struct marks *m)
{
    int n = 0;
    if (m->n)
        qsort(m->list, (size_t)m->n, sizeof *m->list, by_key);
    struct ckpt_key last = {0};
    for (int i = 0; i < m->n; i++) {
        bool first = !i || key_compare(&last, &m->list[i].key);
        last = m->list[i].key;
        if (first && m->list[i].bad)
            m->list[n++] = m->list[i];
    }
    m->n = n;
}

static int compare_key(const void *key, const void *mark)
{
    return key_compare(key, &((const struct mark *)mark)->key);
}

const struct mark *marks_find(const struct marks *m, const struct ckpt_key *key)
{
    return m->n ? bsearch(key, m->list, (size_t)m->n, sizeof *m->list, compare_key) : NULL;
}

void marks_free(struct marks *m)
{
    free(m->list);
    *m = (struct marks){.list = NULL};
}

/* ---- writing ---- */

static int append(int dirfd, const char *log, const struct mark *m, struct err *err)
{
    char *text = mark_print(m);
    int rv = text ? log_append(dirfd, log, text, INT_MAX, NULL, err) : err_set(err, "no memory");
    free(text);
    return rv;
}

int ckpt_mark_write(const char *dir, const char *node, const char *run_id,
                    const struct ckpt_mark *marks, int n, bool bad, uint32_t epoch,
                    uint32_t generation, struct err *err)
{
    struct ckpt_name log = {.kind = NAME_LOG};
    char name[CKPT_NAME_ROOM];
    int rv = 0;
    if (!name_run_valid(run_id) || !name_node_valid(node))
        return err_set(err, "marks of run '%.100s' by node '%.100s': no such names", run_id, node);
    int fd = folder_open_own(dir, NULL, err);
    if (fd < 0)
        return -1;
    strcpy(log.run, run_id);
    strcpy(log.node, node);
    name_format(&log, name);
    for (int i = 0; !rv && i < n; i++) {
        struct mark m = {.key = {marks[i].epoch, marks[i].generation, marks[i].step},
                         .by = {epoch, generation, 0},
                         .bad = bad,
                         .nan_step = bad ? marks[i].nan_step : 0};
        strcpy(m.run, run_id);
        rv = append(fd, name, &m, err);
    }
    close(fd);
    return rv ? err_prefix(err, "checkpoint folder %s", dir) : 0;
}
