/* report_read.c - reads metrics.jsonl, events.jsonl and plan.yaml; see report_read.h.
 *
 * The lines are flat JSON objects of numbers and strings, written by metrics.c; the reader below
 * takes just these, as a run of a million steps should open in a second or two. A line that is
 * anything else, or longer than it can be, is counted and left out. */
#include "cli/report_read.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_BYTES = 16384, /* several times what metrics.c writes */
    PATH_BYTES = 4096,
    PLAN_BYTES_MOST = 1 << 20, /* of plan.yaml shown */
};

static const double STEP_MOST = 9007199254740992.0; /* 2^53: beyond, doubles are no integers */

/* ---- one flat object ---- */

struct field {
    char key[32];
    bool is_string;
    double number;           /* NAN for null, true, false and strings */
    char string[LINE_BYTES]; /* unescaped */
};

static const char *skip_space(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')
        p++;
    return p;
}

/* Four hex digits of \uXXXX as UTF-8; surrogates become a question mark. */
static const char *read_unicode(const char *p, char **out)
{
    unsigned code = 0;
    for (int i = 0; i < 4; i++, p++) {
        if (!isxdigit((unsigned char)*p))
            return NULL;
        code = code * 16 + (unsigned)(*p <= '9' ? *p - '0' : (*p | 32) - 'a' + 10);
    }
    char *o = *out;
    if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
        *o++ = '?';
    } else if (code < 0x80) {
        *o++ = (char)code;
    } else if (code < 0x800) {
        *o++ = (char)(0xc0 | code >> 6);
        *o++ = (char)(0x80 | (code & 63));
    } else {
        *o++ = (char)(0xe0 | code >> 12);
        *o++ = (char)(0x80 | (code >> 6 & 63));
        *o++ = (char)(0x80 | (code & 63));
    }
    *out = o;
    return p;
}

/* p stands behind the opening quote; returns behind the closing one, or NULL. */
static const char *read_string(const char *p, char *out, size_t size)
{
    char *end = out + size - 4; /* room for the longest character and the NUL */
    while (*p != '"') {
        if (!*p || (unsigned char)*p < 0x20 || out >= end)
            return NULL;
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        static const char escapes[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        const char *e = p[1] ? strchr(escapes, p[1]) : NULL;
        if (e) {
            *out++ = values[e - escapes];
            p += 2;
        } else if (p[1] != 'u' || !(p = read_unicode(p + 2, &out))) {
            return NULL;
        }
    }
    *out = 0;
    return p + 1;
}

static const char *read_value(const char *p, struct field *f)
{
    f->is_string = *p == '"';
    f->number = NAN;
    if (f->is_string)
        return read_string(p + 1, f->string, sizeof f->string);
    if (*p == '-' || isdigit((unsigned char)*p)) {
        char *end;
        f->number = strtod(p, &end);
        return end > p && isfinite(f->number) ? end : NULL;
    }
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(p, words[i], strlen(words[i])))
            return p + strlen(words[i]);
    return NULL;
}

/* Calls take(arg, field) for each; false if the line is no whole flat object. */
static bool read_object(const char *p, struct field *f, void (*take)(void *, const struct field *),
                        void *arg)
{
    p = skip_space(p);
    if (*p++ != '{')
        return false;
    p = skip_space(p);
    while (*p == '"') {
        if (!(p = read_string(p + 1, f->key, sizeof f->key)))
            return false;
        p = skip_space(p);
        if (*p++ != ':' || !(p = read_value(skip_space(p), f)))
            return false;
        take(arg, f);
        p = skip_space(p);
        if (*p == '}')
            return !*skip_space(p + 1);
        if (*p++ != ',')
            return false;
        p = skip_space(p);
    }
    return false;
}

/* ---- lines ---- */

/* Calls whole(arg, line) for each line without its end; a line that is too long gives NULL. */
static int each_line(FILE *in, int (*whole)(void *, const char *), void *arg)
{
    char *line = malloc(LINE_BYTES);
    if (!line)
        return -1;
    int rv = 0;
    while (!rv && fgets(line, LINE_BYTES, in)) {
        size_t length = strlen(line);
        bool over = length + 1 == LINE_BYTES && line[length - 1] != '\n';
        for (int c = 0; over && c != '\n' && c != EOF;)
            c = getc(in);
        rv = whole(arg, over ? NULL : line);
    }
    free(line);
    return rv;
}

struct reader {
    struct run *run;
    struct field *field;
    size_t room;
    struct run_step step;   /* being read */
    struct run_event event; /* being read */
    size_t span_room;
};

/* One more element of `size` bytes fits. */
static void *grow(void *array, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return array;
    *room = *room ? *room * 2 : 256;
    return realloc(array, *room * size);
}

static void take_step(void *arg, const struct field *f)
{
    struct run_step *s = arg;
    static const struct {
        const char *key;
        size_t offset;
    } table[] = {
        {"loss", offsetof(struct run_step, loss)},
        {"val_loss", offsetof(struct run_step, val_loss)},
        {"grad_norm", offsetof(struct run_step, grad_norm)},
        {"lr", offsetof(struct run_step, lr)},
        {"tokens", offsetof(struct run_step, tokens)},
        {"tokens_per_s", offsetof(struct run_step, tokens_per_s)},
        {"mfu", offsetof(struct run_step, mfu)},
        {"stall_ms", offsetof(struct run_step, stall_ms)},
        {"time", offsetof(struct run_step, time)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!strcmp(f->key, table[i].key)) {
            memcpy((char *)s + table[i].offset, &f->number, sizeof f->number);
            return;
        }
    }
    bool small = f->number >= 0 && f->number <= 1e9;
    if (!strcmp(f->key, "step") && f->number >= 0 && f->number <= STEP_MOST)
        s->step = (int64_t)f->number;
    else if (!strcmp(f->key, "epoch") && small)
        s->epoch = (int)f->number;
    else if (!strcmp(f->key, "generation") && small)
        s->generation = (int)f->number;
    else if (!strcmp(f->key, "mfu_about")) /* is there only where it is true */
        s->mfu_about = true;
}

static int add_span(struct reader *r, const struct run_step *s)
{
    struct run *run = r->run;
    struct run_span *last = run->n_spans ? &run->spans[run->n_spans - 1] : NULL;
    if (last && last->epoch == s->epoch && last->generation == s->generation) {
        last->last_step = s->step;
        if (isfinite(s->time))
            last->last_time = s->time;
        return 0;
    }
    struct run_span *spans = grow(run->spans, run->n_spans, &r->span_room, sizeof *spans);
    if (!spans)
        return -1;
    run->spans = spans;
    spans[run->n_spans++] = (struct run_span){.epoch = s->epoch,
                                              .generation = s->generation,
                                              .first_step = s->step,
                                              .last_step = s->step,
                                              .first_time = s->time,
                                              .last_time = s->time};
    return 0;
}

static int step_line(void *arg, const char *line)
{
    struct reader *r = arg;
    struct run *run = r->run;
    run->lines++;
    r->step = (struct run_step){.step = -1,
                                .loss = NAN,
                                .val_loss = NAN,
                                .grad_norm = NAN,
                                .lr = NAN,
                                .tokens = NAN,
                                .tokens_per_s = NAN,
                                .mfu = NAN,
                                .stall_ms = NAN,
                                .time = NAN,
                                .order = run->lines};
    if (!line || !read_object(line, r->field, take_step, &r->step) || r->step.step < 0) {
        run->malformed++;
        return 0;
    }
    struct run_step *steps = grow(run->steps, run->n_steps, &r->room, sizeof *steps);
    if (!steps)
        return -1;
    run->steps = steps;
    steps[run->n_steps++] = r->step;
    return add_span(r, &r->step);
}

static void take_event(void *arg, const struct field *f)
{
    struct run_event *e = arg;
    if (!strcmp(f->key, "time"))
        e->time = f->number;
    else if (!strcmp(f->key, "step") && fabs(f->number) <= STEP_MOST)
        e->step = (int64_t)f->number;
    else if (!strcmp(f->key, "kind") && f->is_string)
        snprintf(e->kind, sizeof e->kind, "%s", f->string);
    else if (!strcmp(f->key, "text") && f->is_string && !e->text)
        e->text = strdup(f->string);
}

static int event_line(void *arg, const char *line)
{
    struct reader *r = arg;
    struct run *run = r->run;
    run->lines++;
    r->event = (struct run_event){.time = NAN};
    if (!line || !read_object(line, r->field, take_event, &r->event) || !r->event.text) {
        free(r->event.text);
        run->malformed++;
        return 0;
    }
    struct run_event *events = grow(run->events, run->n_events, &r->room, sizeof *events);
    if (!events) {
        free(r->event.text);
        return -1;
    }
    run->events = events;
    events[run->n_events++] = r->event;
    return 0;
}

/* A FIFO that nobody writes is empty, not waited for. */
static FILE *open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
    if (fd >= 0 && !in)
        close(fd);
    return in;
}

/* 0 read, 1 there is none, -1 err. */
static int read_file(struct run *run, const char *dir, const char *name,
                     int (*whole)(void *, const char *), struct err *err)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(err, "%s/%s: the path is too long", dir, name);
    FILE *in = open_file(path);
    if (!in) {
        int why = errno;
        err_set_errno(err, why, "%s", path);
        return why == ENOENT ? 1 : -1;
    }
    struct reader r = {.run = run, .field = malloc(sizeof *r.field)};
    int rv = r.field ? each_line(in, whole, &r) : -1;
    if (rv)
        err_set(err, "%s: out of memory", path);
    else if (ferror(in))
        rv = err_set_errno(err, errno, "%s", path);
    free(r.field);
    fclose(in);
    return rv;
}

/* ---- the whole ---- */

static int by_step(const void *a, const void *b)
{
    const struct run_step *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static bool same_bits(double a, double b)
{
    return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

/* Sort, and keep the last line of each step. */
static void keep_last(struct run *run)
{
    bool sorted = true;
    for (size_t i = 1; i < run->n_steps && sorted; i++)
        sorted = run->steps[i - 1].step <= run->steps[i].step;
    if (!sorted)
        qsort(run->steps, run->n_steps, sizeof *run->steps, by_step);
    size_t kept = 0;
    for (size_t i = 0; i < run->n_steps;) {
        size_t end = i + 1;
        bool equal = true;
        for (; end < run->n_steps && run->steps[end].step == run->steps[i].step; end++)
            equal = equal && same_bits(run->steps[end].loss, run->steps[i].loss);
        if (end - i > 1)
            run->repeated++;
        if (!equal && !run->differing++)
            run->first_differing = run->steps[i].step;
        run->steps[kept++] = run->steps[end - 1];
        i = end;
    }
    run->n_steps = kept;
}

static void read_plan(struct run *run, const char *dir)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/plan.yaml", dir) >= (int)sizeof path)
        return;
    FILE *in = open_file(path);
    if (!in)
        return;
    run->plan = malloc(PLAN_BYTES_MOST);
    if (run->plan)
        run->plan_bytes = fread(run->plan, 1, PLAN_BYTES_MOST, in);
    fclose(in);
}

int run_read(struct run *run, const char *dir, struct err *err)
{
    *run = (struct run){0};
    int rv = read_file(run, dir, "metrics.jsonl", step_line, err);
    if (rv)
        return -1;
    if (!run->n_steps)
        return err_set(err, "%s/metrics.jsonl: has no whole line yet: nothing to report", dir);
    rv = read_file(run, dir, "events.jsonl", event_line, err);
    if (rv < 0)
        return -1;
    keep_last(run);
    read_plan(run, dir);
    return 0;
}

void run_free(struct run *run)
{
    for (size_t i = 0; i < run->n_events; i++)
        free(run->events[i].text);
    free(run->events);
    free(run->steps);
    free(run->spans);
    free(run->plan);
    *run = (struct run){0};
}
