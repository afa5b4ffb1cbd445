/* simulate_trace.c - reads a failure trace; see simulate_read_trace. */
#include "plan/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 256, MOST_LINES = 10000000 };

static int compare(const void *a, const void *b)
{
    const struct simulate_failure *x = a, *y = b;
    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* The line without comment, surrounding blanks and line end. */
static char *trim(char *line)
{
    line[strcspn(line, "#\r\n")] = 0;
    line += strspn(line, " \t");
    size_t n = strlen(line);
    while (n && strchr(" \t", line[n - 1]))
        line[--n] = 0;
    return line;
}

/* Cuts the first field off *rest; NULL when there is none left. */
static char *field(char **rest)
{
    char *text = *rest;
    if (!text)
        return NULL;
    char *comma = strchr(text, ',');
    *rest = comma ? comma + 1 : NULL;
    if (comma)
        *comma = 0;
    return trim(text);
}

static int read_line(char *line, int nodes, struct simulate_failure *f, struct err *err)
{
    char *rest = line, *end;
    const char *time = field(&rest), *place = field(&rest), *kind = field(&rest);
    if (!place || rest)
        return err_set(err, "not 2 or 3 fields: use time_hours,node[,kind]");
    errno = 0;
    double hours = strtod(time, &end);
    if (end == time || *end || !(hours >= 0) || !isfinite(hours))
        return err_set(err, "the time is '%s': use hours from the start, 0 or more", time);
    long node = strtol(place, &end, 10);
    if (end == place || *end || errno || node < 0 || node >= nodes)
        return err_set(err, "the node is '%s': use 0 to %d", place, nodes - 1);
    if (kind && strcmp(kind, "node") && strcmp(kind, "worker"))
        return err_set(err, "the kind is '%s': use node or worker", kind);
    *f = (struct simulate_failure){.at_s = hours * 3600,
                                   .place = (int)node,
                                   .kind = kind && *kind == 'w' ? SIMULATE_WORKER : SIMULATE_NODE};
    return 0;
}

/* Column names: the first line that says anything, if it does not begin with a number. */
static int is_header(const char *line, size_t n)
{
    return n == 0 && !strchr("+-.0123456789", *line);
}

static int grow(struct simulate_failure **list, size_t n, size_t *room)
{
    if (n < *room)
        return 0;
    size_t more = *room ? 2 * *room : 256;
    struct simulate_failure *all = realloc(*list, more * sizeof *all);
    if (!all)
        return -1;
    *list = all;
    *room = more;
    return 0;
}

long simulate_read_trace(FILE *in, const char *name, int nodes, struct simulate_failure **list,
                         struct err *err)
{
    char line[LINE_BYTES];
    size_t n = 0, room = 0;
    int named = 0;
    *list = NULL;
    for (long at = 1; fgets(line, sizeof line, in); at++) {
        if (at > MOST_LINES || (!strchr(line, '\n') && !feof(in))) {
            err_set(err, "%s:%ld: %s", name, at,
                    at > MOST_LINES ? "the trace is too long" : "the line is too long");
            goto fail;
        }
        char *text = trim(line);
        if (!*text)
            continue;
        if (!named && is_header(text, n)) {
            named = 1;
            continue;
        }
        if (grow(list, n, &room)) {
            err_set(err, "%s: out of memory", name);
            goto fail;
        }
        if (read_line(text, nodes, &(*list)[n], err)) {
            err_prefix(err, "%s:%ld", name, at);
            goto fail;
        }
        n++;
    }
    if (ferror(in)) {
        err_set_errno(err, errno, "%s", name);
        goto fail;
    }
    if (!n) {
        err_set(err, "%s: no failure in it: use lines of time_hours,node[,kind]", name);
        goto fail;
    }
    qsort(*list, n, sizeof **list, compare);
    return (long)n;
fail:
    free(*list);
    *list = NULL;
    return -1;
}
