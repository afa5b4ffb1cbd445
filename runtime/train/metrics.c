/* metrics.c - one JSON object a step into metrics.jsonl, one an event into events.jsonl, and a line
 * for the person who watches; see metrics.h.
 *
 * Each line reaches its file by one write(2) with O_APPEND, so a killed process leaves at most the
 * last one torn, and nothing is held back in a buffer. The next start finds a file without a
 * newline at its end and adds it: the torn line stays, is no JSON, and readers skip it.
 *
 * The display is a courtesy: that it cannot be written is no error. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/number.h"
#include "train/metrics_line.h"

enum {
    LINE_BYTES = 2048,
    PATH_BYTES = 4096,
    REDRAW_MS = 50,     /* twenty times a second is as often as an eye can use */
    PLAIN_COLUMNS = 80, /* where a terminal does not tell its width */
};

/* Weight of the newest step in the displayed rates: about the last ten steps count. */
static const double RATE_WEIGHT = 0.1;

struct log {
    int fd;
    bool torn; /* a write was cut short: the next line begins with a newline */
    char path[PATH_BYTES];
};

struct metrics {
    struct log steps, events;
    int fd; /* the display */
    bool live;
    int columns;        /* of the display; 0: ask it */
    bool drawn;         /* a live line stands on the terminal */
    int64_t shown_step; /* of the last line, 0 none */
    int64_t shown_ms;   /* when it was printed */
    int64_t first_step; /* the first of this process, 0 none yet, and when it was done */
    int64_t first_ms;
    int64_t tokens_per_step;
    struct metrics_view view;
};

static int log_open(struct log *log, const char *dir, const char *name, struct err *err)
{
    if (snprintf(log->path, sizeof log->path, "%s/%s", dir, name) >= (int)sizeof log->path)
        return err_set(err, "%s/%s: the path is too long", dir, name);
    /* A link would lead out of the folder; a FIFO is told below. */
    log->fd =
        open(log->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (log->fd < 0 && errno == ELOOP)
        return err_set(err, "%s: is a symbolic link: move it away, a file is made in its place",
                       log->path);
    if (log->fd < 0)
        return err_set_errno(err, errno, "%s", log->path);
    struct stat st;
    if (fstat(log->fd, &st))
        return err_set_errno(err, errno, "%s", log->path);
    /* What nobody reads would stop the run once it is full. */
    if (S_ISFIFO(st.st_mode))
        return err_set(err, "%s: is a FIFO: move it away, a file is made in its place", log->path);
    char last = '\n';
    if (S_ISREG(st.st_mode) && st.st_size > 0 && pread(log->fd, &last, 1, st.st_size - 1) != 1)
        return err_set_errno(err, errno, "%s: cannot read its last byte", log->path);
    log->torn = last != '\n';
    return 0;
}

/* line: a newline at [0], which is only written where the line before lacks it; then the object and
 * its newline; length counts all. */
static int log_write(struct log *log, const char *line, size_t length, struct err *err)
{
    if (!log->torn) {
        line++;
        length--;
    }
    ssize_t n;
    do
        n = write(log->fd, line, length);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_set_errno(err, errno, "%s", log->path);
    log->torn = (size_t)n < length;
    if (log->torn)
        return err_set(err, "%s: only %zd of %zu bytes could be written: is the disk full?",
                       log->path, n, length);
    return 0;
}

/* A line that grows up to a fixed size; what does not fit is cut. */
struct text {
    char bytes[LINE_BYTES];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(t->bytes + t->length, sizeof t->bytes - t->length, format, ap);
    va_end(ap);
    if (n > 0)
        t->length += (size_t)n;
    if (t->length >= sizeof t->bytes)
        t->length = sizeof t->bytes - 1;
}

/* JSON knows no NaN and no infinity. */
static void add_number(struct text *t, const char *name, double value)
{
    char text[NUMBER_BYTES];
    number_text(value, text);
    add(t, "\"%s\":%s,", name, isfinite(value) ? text : "null");
}

/* Losses with all 17 digits: who compares two runs line by line sees equal bits as equal texts, and
 * sees at once that nothing was cut. */
static void add_loss(struct text *t, const char *name, double value)
{
    if (isfinite(value))
        add(t, "\"%s\":%.17g,", name, value);
    else
        add(t, "\"%s\":null,", name);
}

static void add_string(struct text *t, const char *s)
{
    /* A long text is cut where it still leaves room for the end of its object. */
    for (; *s && t->length < sizeof t->bytes - 32; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            add(t, "\\%c", c);
        else if (c < 0x20)
            add(t, "\\u%04x", c);
        else
            add(t, "%c", c);
    }
}

static void add_time(struct text *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    add(t, "\"time\":%lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000);
}

int metrics_open(struct metrics **out, const char *dir, int fd, int live, int64_t total_steps,
                 int64_t tokens_per_step, struct err *err)
{
    *out = NULL;
    struct metrics *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, "metrics: out of memory");
    m->steps.fd = m->events.fd = -1;
    m->fd = fd;
    m->live = live < 0 ? isatty(fd) == 1 : live != 0;
    m->columns = live > 1 ? live : 0;
    m->tokens_per_step = tokens_per_step;
    m->view.total_steps = total_steps;
    m->view.tokens_per_s = m->view.mfu = m->view.val_loss = m->view.left_s = NAN;
    if (mkdir(dir, 0777) && errno != EEXIST) {
        err_set_errno(err, errno, "%s", dir);
        metrics_close(m);
        return -1;
    }
    if (log_open(&m->steps, dir, "metrics.jsonl", err) ||
        log_open(&m->events, dir, "events.jsonl", err)) {
        metrics_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

int64_t metrics_last_step(const struct metrics *m)
{
    char tail[4 * LINE_BYTES + 1];
    struct stat st;
    if (fstat(m->steps.fd, &st))
        return 0;
    off_t from = st.st_size > 4 * LINE_BYTES ? st.st_size - 4 * LINE_BYTES : 0;
    ssize_t n = pread(m->steps.fd, tail, sizeof tail - 1, from);
    long long last = 0, step;
    for (char *line = tail, *end; n > 0 && (end = memchr(line, '\n', (size_t)n)); line = end + 1) {
        n -= end + 1 - line;
        *end = 0;
        if (sscanf(line, "{\"step\":%lld,", &step) == 1 && end > line && end[-1] == '}')
            last = step;
    }
    return last;
}

int64_t metrics_committed(const struct metrics *m)
{
    static const char mark[] = ",\"kind\":\"";
    long long committed = -1, step;
    char *line = NULL;
    size_t room = 0;
    int fd = dup(m->events.fd);
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
    if (!in) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    rewind(in);
    while (getline(&line, &room, in) > 0) {
        const char *kind = strstr(line, mark);
        if (!kind)
            continue;
        kind += sizeof mark - 1;
        int whole = 0; /* sscanf has got to the end of the pattern */
        if (!strncmp(kind, "start\"", 6))
            committed = -1;
        else if (sscanf(kind, "checkpoint\",\"step\":%lld,\"text\":\"committed\"}%n", &step,
                        &whole) == 1 &&
                 whole)
            committed = step;
    }
    free(line);
    fclose(in);
    return committed;
}

static int write_step(struct metrics *m, const struct metrics_step *s, double rate, struct err *err)
{
    struct text t = {.length = 0};
    add(&t, "\n{\"step\":%lld,", (long long)s->step);
    add_loss(&t, "loss", s->loss);
    if (!isnan(s->val_loss))
        add_loss(&t, "val_loss", s->val_loss);
    add_number(&t, "grad_norm", s->grad_norm);
    add_number(&t, "lr", s->lr);
    add(&t, "\"tokens\":%lld,", (long long)s->tokens);
    add_number(&t, "tokens_per_s", rate);
    if (!isnan(s->mfu))
        add_number(&t, "mfu", s->mfu);
    if (!isnan(s->mfu) && s->mfu_about)
        add(&t, "\"mfu_about\":true,");
    add_number(&t, "stall_ms", s->stall_ms);
    if (s->replicas < s->planned_replicas)
        add(&t, "\"replicas\":%d,", s->replicas);
    add(&t, "\"generation\":%u,\"epoch\":%u,", s->generation, s->epoch);
    add_time(&t);
    add(&t, "}\n");
    return log_write(&m->steps, t.bytes, t.length, err);
}

/* A single step's time says little on a machine that does something else too. */
static void update_mean(double *mean, double newest)
{
    if (isfinite(newest))
        *mean = isnan(*mean) ? newest : *mean + RATE_WEIGHT * (newest - *mean);
}

/* What the display knows beside the step itself. */
static void update_view(struct metrics *m, const struct metrics_step *s, double rate, int64_t now)
{
    struct metrics_view *v = &m->view;
    v->step = *s;
    if (!isnan(s->val_loss))
        v->val_loss = s->val_loss;
    update_mean(&v->tokens_per_s, rate);
    update_mean(&v->mfu, s->mfu);
    if (!m->first_step) {
        m->first_step = s->step;
        m->first_ms = now;
        v->left_s = NAN;
    } else if (s->step > m->first_step) {
        double per_step = (double)(now - m->first_ms) / 1000 / (double)(s->step - m->first_step);
        v->left_s = per_step * (double)(v->total_steps - s->step);
    }
}

static int columns(const struct metrics *m)
{
    struct winsize size;
    if (m->columns)
        return m->columns;
    if (!ioctl(m->fd, TIOCGWINSZ, &size) && size.ws_col > 0)
        return size.ws_col;
    return PLAIN_COLUMNS;
}

/* One write, so that lines of several processes do not mix; its failure is nobody's. */
static void show(const struct metrics *m, const char *text, size_t length)
{
    ssize_t n = write(m->fd, text, length);
    (void)n;
}

/* Put the live line's text behind whatever t holds. The last column stays free: a terminal that is
 * written full goes to the next line. */
static void add_live(struct metrics *m, struct text *t)
{
    char line[LINE_BYTES / 2];
    metrics_line(line, sizeof line, columns(m) - 1, &m->view);
    add(t, "\r%s\033[K", line);
    m->drawn = true;
}

static void display(struct metrics *m, bool validated, int64_t now)
{
    const struct metrics_view *v = &m->view;
    struct text t = {.length = 0};
    if (m->live) {
        bool last = v->step.step >= v->total_steps;
        if (m->shown_step && !last && !validated && now - m->shown_ms < REDRAW_MS)
            return;
        add_live(m, &t);
    } else {
        if (!metrics_line_due(v->step.step, v->total_steps, validated, m->shown_step,
                              now - m->shown_ms))
            return;
        t.length = metrics_line(t.bytes, sizeof t.bytes - 1, 0, v);
        add(&t, "\n");
    }
    show(m, t.bytes, t.length);
    m->shown_step = v->step.step;
    m->shown_ms = now;
}

int metrics_step(struct metrics *m, const struct metrics_step *s, struct err *err)
{
    int64_t now = clock_ms();
    double rate = s->step_s > 0 ? (double)m->tokens_per_step / s->step_s : NAN;
    int rv = write_step(m, s, rate, err);
    update_view(m, s, rate, now);
    display(m, !isnan(s->val_loss), now);
    return rv;
}

int metrics_event(struct metrics *m, const char *kind, int64_t step, const char *text,
                  struct err *err)
{
    struct text t = {.length = 0};
    add(&t, "\n{");
    add_time(&t);
    add(&t, ",\"kind\":\"");
    add_string(&t, kind);
    add(&t, "\",\"step\":%lld,\"text\":\"", (long long)step);
    add_string(&t, text);
    add(&t, "\"}\n");
    int rv = log_write(&m->events, t.bytes, t.length, err);

    struct text line = {.length = 0};
    add(&line, "%sstep %lld: %s%s%.1024s%s", m->drawn ? "\r" : "", (long long)step, kind,
        text[0] ? ": " : "", text, m->drawn ? "\033[K\n" : "\n");
    if (m->drawn)
        add_live(m, &line);
    show(m, line.bytes, line.length);
    return rv;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    if (m->drawn)
        show(m, "\n", 1);
    if (m->steps.fd >= 0)
        close(m->steps.fd);
    if (m->events.fd >= 0)
        close(m->events.fd);
    free(m);
}
