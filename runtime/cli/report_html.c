/* report_html.c - the report's page: figures on top, curves, timeline, plan; see report_html.h. */
#include "cli/report_html.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/chart.h"
#include "cli/report_style.h"

enum {
    WIDE = 1000, /* picture units of a chart over the page's width, and over half of it */
    HALF = 490,
    EVENT_ROWS = 200,  /* of the table; the newest are shown */
    SMOOTH_PART = 40,  /* the smoothed loss averages over this part of the run */
    SMOOTH_STEPS = 60, /* and is drawn from this many steps on */
    MARKS_MOST = 200,  /* restarts drawn in a chart */
    SPANS_MOST = 2000, /* stretches and events drawn in the timeline */
};

void html_text(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '&')
            fputs("&amp;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c >= 0x20 ? c != 0x7f : c == '\n' || c == '\t')
            fputc(c, out);
    }
}

static void put_text(FILE *out, const char *text)
{
    html_text(out, text, strlen(text));
}

/* 42 s, 3 min 20 s, 5 h 12 min, 4 d 3 h */
static const char *duration(double seconds, char *text, size_t size)
{
    long s = seconds > 0 && seconds < 1e12 ? (long)(seconds + 0.5) : 0;
    if (seconds < 10)
        snprintf(text, size, "%.1f s", seconds > 0 ? seconds : 0);
    else if (s < 120)
        snprintf(text, size, "%ld s", s);
    else if (s < 3600)
        snprintf(text, size, "%ld min %02ld s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, size, "%ld h %02ld min", s / 3600, s / 60 % 60);
    else
        snprintf(text, size, "%ld d %ld h", s / 86400, s / 3600 % 24);
    return text;
}

/* 1234567 -> 1 234 567 (with spaces that do not break, in UTF-8) */
static const char *grouped(int64_t n, char *text, size_t size)
{
    char digits[24];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)n), at = 0;
    for (size_t i = 0; i < length && at + 4 < size; i++) {
        if (i && length > 4 && (length - i) % 3 == 0) {
            memcpy(text + at, "\u202f", 3);
            at += 3;
        }
        text[at++] = digits[i];
    }
    text[at] = 0;
    return text;
}

/* ---- key figures ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* NAN if there is none; -INFINITY never. *failed is set when memory is out. */
static double median(const struct run *run, size_t offset, int *failed)
{
    double *values = malloc(run->n_steps * sizeof *values);
    if (!values) {
        *failed = 1;
        return NAN;
    }
    size_t n = 0;
    for (size_t i = 0; i < run->n_steps; i++) {
        double v;
        memcpy(&v, (const char *)&run->steps[i] + offset, sizeof v);
        if (isfinite(v))
            values[n++] = v;
    }
    qsort(values, n, sizeof *values, by_value);
    double m = n ? values[n / 2] : NAN;
    free(values);
    return m;
}

static void tile(FILE *out, const char *label, const char *value, const char *more)
{
    fprintf(out, "<div class=\"tile\"><span>%s</span><b>%s</b>", label, value);
    if (more[0])
        fprintf(out, "<em>%s</em>", more);
    fprintf(out, "</div>\n");
}

static void loss_tiles(FILE *out, const struct run *run)
{
    char value[64], more[128];
    const struct run_step *last = &run->steps[run->n_steps - 1], *val = NULL, *best = NULL;
    for (size_t i = 0; i < run->n_steps; i++) {
        const struct run_step *s = &run->steps[i];
        if (!isfinite(s->val_loss))
            continue;
        val = s;
        if (!best || s->val_loss < best->val_loss)
            best = s;
    }
    snprintf(value, sizeof value, "%.4f", last->loss);
    snprintf(more, sizeof more, "nats per token at step %lld", (long long)last->step);
    tile(out, "training loss", value, more);
    if (!val)
        return;
    snprintf(value, sizeof value, "%.4f", val->val_loss);
    if (val == best)
        snprintf(more, sizeof more, "perplexity %.4g, the best so far", exp(val->val_loss));
    else
        snprintf(more, sizeof more, "best %.4f at step %lld", best->val_loss,
                 (long long)best->step);
    tile(out, "validation loss", value, more);
}

/* Seconds of training, without pauses between launches. */
static double trained_s(const struct run *run)
{
    double sum = 0;
    for (size_t i = 0; i < run->n_spans; i++)
        if (run->spans[i].last_time > run->spans[i].first_time)
            sum += run->spans[i].last_time - run->spans[i].first_time;
    return sum;
}

static void time_tiles(FILE *out, const struct run *run)
{
    char value[64], more[128], text[64];
    double seconds = trained_s(run), stall = 0;
    size_t stalls = 0;
    for (size_t i = 0; i < run->n_steps; i++) {
        if (run->steps[i].stall_ms > 0) {
            stall += run->steps[i].stall_ms / 1000;
            stalls++;
        }
    }
    more[0] = 0;
    if (run->n_spans > 1)
        snprintf(more, sizeof more, "in %zu stretches", run->n_spans);
    tile(out, "training time", duration(seconds, value, sizeof value), more);
    more[0] = 0;
    if (seconds > 0)
        snprintf(more, sizeof more, "%.2g %% of the time, in %zu steps", 100 * stall / seconds,
                 stalls);
    if (stall < 1)
        snprintf(text, sizeof text, "%.3g ms", stall * 1000);
    else
        duration(stall, text, sizeof text);
    if (stalls)
        tile(out, "waited for checkpoints", text, more);
}

static int write_tiles(FILE *out, const struct run *run)
{
    char value[64], more[64];
    int failed = 0;
    const struct run_step *last = &run->steps[run->n_steps - 1];
    double rate = median(run, offsetof(struct run_step, tokens_per_s), &failed);
    double mfu = median(run, offsetof(struct run_step, mfu), &failed);
    fprintf(out, "<div class=\"tiles\">\n");
    loss_tiles(out, run);
    more[0] = 0;
    if (run->steps[0].step > 1)
        snprintf(more, sizeof more, "the first here is %lld", (long long)run->steps[0].step);
    tile(out, "steps", grouped(last->step, value, sizeof value), more);
    if (isfinite(last->tokens))
        tile(out, "tokens", chart_number(last->tokens, value, sizeof value), "");
    if (isfinite(rate))
        tile(out, "tokens per second", chart_number(rate, value, sizeof value), "median of steps");
    if (isfinite(mfu)) {
        snprintf(value, sizeof value, last->mfu_about ? "about %.0f %%" : "%.1f %%", mfu * 100);
        tile(out, "model FLOP utilisation", value, "median of steps");
    }
    time_tiles(out, run);
    fprintf(out, "</div>\n");
    return failed ? -1 : 0;
}

/* What a reader should know before believing the curves. */
static void write_notes(FILE *out, const struct run *run)
{
    if (run->repeated && !run->differing)
        fprintf(out,
                "<p class=\"note\">%zu step%s done again after a restore, with the same loss bit "
                "for bit.</p>\n",
                run->repeated, run->repeated == 1 ? " was" : "s were");
    if (run->differing)
        fprintf(out,
                "<p class=\"note bad\">%zu of %zu steps that were done again after a restore have "
                "another loss than before, the first is step %lld. The curves show the later "
                "ones.</p>\n",
                run->differing, run->repeated, (long long)run->first_differing);
    if (run->malformed)
        fprintf(
            out,
            "<p class=\"note plain\">%zu of %zu lines are torn or malformed and left out.</p>\n",
            run->malformed, run->lines);
}

/* ---- curves ---- */

struct curves {
    FILE *out;
    const struct run *run;
    struct chart_point *points, *smooth, *val; /* n_steps each */
    double marks[MARKS_MOST];
    size_t n_marks;
};

/* How a curve is drawn: as it is and from zero on; with its mean, from zero on; with its mean on a
 * logarithmic axis. */
enum look { EXACT, NOISY, NOISY_LOG };

static size_t gather(const struct curves *c, size_t offset, double factor)
{
    size_t n = 0;
    for (size_t i = 0; i < c->run->n_steps; i++) {
        double y;
        memcpy(&y, (const char *)&c->run->steps[i] + offset, sizeof y);
        if (isfinite(y))
            c->points[n++] = (struct chart_point){(double)c->run->steps[i].step, y * factor};
    }
    return n;
}

static int draw(struct curves *c, struct chart *chart)
{
    const struct run *run = c->run;
    chart->marks = c->marks;
    chart->n_marks = c->n_marks;
    if (!(chart->x_last > chart->x_first)) {
        chart->x_first = (double)run->steps[0].step;
        chart->x_last = (double)run->steps[run->n_steps - 1].step;
    }
    return chart_write(c->out, chart);
}

/* Exponential mean over the last SMOOTH_PART-th of the run, or, as the loss falls fast at first,
 * over an eighth of what has been, where that is less. */
static void smooth(const struct chart_point *in, size_t n, struct chart_point *out)
{
    double most = fmax(5, (double)n / SMOOTH_PART), mean = in[0].y;
    for (size_t i = 0; i < n; i++) {
        double window = fmin(most, fmax(1, (double)i / 8));
        mean += (in[i].y - mean) / window;
        out[i] = (struct chart_point){in[i].x, mean};
    }
}

static int draw_one(struct curves *c, const char *title, const char *unit, const char *name,
                    size_t offset, double factor, enum look look)
{
    size_t n = gather(c, offset, factor);
    if (!n)
        return 0;
    bool smoothed = look != EXACT && n >= SMOOTH_STEPS;
    if (smoothed)
        smooth(c->points, n, c->smooth);
    struct chart_series series[2] = {
        {.points = c->points, .n = n, .name = name, .style = smoothed ? "raw" : "line"},
        {.points = c->smooth, .n = smoothed ? n : 0, .name = "mean", .style = "line"}};
    struct chart chart = {.title = title,
                          .unit = unit,
                          .series = series,
                          .n_series = 2,
                          .log_y = look == NOISY_LOG,
                          .from_zero = look != NOISY_LOG,
                          .width = HALF};
    return draw(c, &chart);
}

/* The part of a series from x on. */
static struct chart_series tail(struct chart_series s, double x)
{
    while (s.n && s.points->x < x) {
        s.points++;
        s.n--;
    }
    return s;
}

/* The whole run on a logarithmic axis and, where there is enough of it, its second half on a linear
 * one: what happens late is flat beside the first steps. */
static int draw_loss(struct curves *c)
{
    const struct run *run = c->run;
    size_t n = gather(c, offsetof(struct run_step, loss), 1), n_val = 0;
    bool smoothed = n >= SMOOTH_STEPS;
    if (smoothed)
        smooth(c->points, n, c->smooth);
    for (size_t i = 0; i < run->n_steps; i++)
        if (isfinite(run->steps[i].val_loss))
            c->val[n_val++] =
                (struct chart_point){(double)run->steps[i].step, run->steps[i].val_loss};
    struct chart_series series[3] = {
        {.points = c->points, .n = n, .name = "loss", .style = smoothed ? "raw" : "line"},
        {.points = c->smooth, .n = smoothed ? n : 0, .name = "mean", .style = "line"},
        {.points = c->val, .n = n_val, .name = "validation", .style = "dots"}};
    struct chart chart = {.title = "Loss",
                          .unit = n_val ? "nats per token, logarithmic; orange: validation"
                                        : "nats per token, logarithmic",
                          .series = series,
                          .n_series = 3,
                          .log_y = true,
                          .width = WIDE};
    if (draw(c, &chart))
        return -1;
    if (!smoothed)
        return 0;
    chart.title = "Loss, second half";
    chart.unit = "nats per token";
    chart.log_y = false;
    chart.width = HALF;
    chart.x_first = (double)run->steps[run->n_steps / 2].step;
    chart.x_last = (double)run->steps[run->n_steps - 1].step;
    for (int i = 0; i < 3; i++)
        series[i] = tail(series[i], chart.x_first);
    return draw(c, &chart);
}

static int write_curves(FILE *out, const struct run *run)
{
    struct curves *c = calloc(1, sizeof *c);
    if (!c)
        return -1;
    c->out = out;
    c->run = run;
    c->points = malloc(run->n_steps * sizeof *c->points);
    c->smooth = malloc(run->n_steps * sizeof *c->smooth);
    c->val = malloc(run->n_steps * sizeof *c->val);
    for (size_t i = 1; i < run->n_spans && c->n_marks < MARKS_MOST; i++)
        c->marks[c->n_marks++] = (double)run->spans[i].first_step;
    fprintf(out, "<h2>Curves%s</h2>\n<div class=\"charts\">\n",
            c->n_marks ? " <span class=\"legend\">dashed: a new launch or generation</span>" : "");
    int rv = c->points && c->smooth && c->val ? draw_loss(c) : -1;
#define COLUMN(name) offsetof(struct run_step, name)
    if (!rv)
        rv = draw_one(c, "Learning rate", "", "lr", COLUMN(lr), 1, EXACT);
    if (!rv)
        rv = draw_one(c, "Gradient norm", "before clipping, logarithmic", "norm", COLUMN(grad_norm),
                      1, NOISY_LOG);
    if (!rv)
        rv = draw_one(c, "Speed", "tokens per second", "tokens/s", COLUMN(tokens_per_s), 1, NOISY);
    if (!rv)
        rv = draw_one(c, "Model FLOP utilisation", "%", "MFU", COLUMN(mfu), 100, NOISY);
    if (!rv)
        rv = draw_one(c, "Waited for checkpoints", "ms in a step", "stall", COLUMN(stall_ms), 1,
                      EXACT);
#undef COLUMN
    fprintf(out, "</div>\n");
    free(c->points);
    free(c->smooth);
    free(c->val);
    free(c);
    return rv;
}

/* ---- timeline ---- */

/* The look of an event, from its kind: words a run uses for trouble, starts and checkpoints. */
static const char *event_class(const struct run_event *e)
{
    static const struct {
        const char *word, *look;
    } table[] = {{"checkpoint", "checkpoint"},
                 {"commit", "checkpoint"},
                 {"restor", "start"},
                 {"start", "start"},
                 {"lost", "bad"},
                 {"shrink", "bad"},
                 {"fail", "bad"},
                 {"error", "bad"},
                 {"die", "bad"},
                 {"dead", "bad"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strstr(e->kind, table[i].word))
            return table[i].look;
    return "";
}

/* First and last moment that is known. */
static bool time_range(const struct run *run, double *first, double *last)
{
    *first = INFINITY;
    *last = -INFINITY;
    for (size_t i = 0; i < run->n_spans; i++) {
        *first = fmin(*first, run->spans[i].first_time); /* fmin passes over NAN */
        *last = fmax(*last, run->spans[i].last_time);
    }
    for (size_t i = 0; i < run->n_events; i++) {
        *first = fmin(*first, run->events[i].time);
        *last = fmax(*last, run->events[i].time);
    }
    return *last > *first && isfinite(*last - *first);
}

static void write_timeline(FILE *out, const struct run *run, double first, double last)
{
    enum { TOP = 26, BAR = 22, SIDE = 12 };
    char text[64];
    double scale = (WIDE - 2 * SIDE) / (last - first);
    fprintf(out,
            "<div class=\"card\"><svg viewBox=\"0 0 %d 72\" role=\"img\" aria-label=\"timeline\">\n"
            "<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"/>\n",
            WIDE, SIDE, TOP, WIDE - 2 * SIDE, BAR);
    for (size_t i = 0; i < run->n_spans && i < SPANS_MOST; i++) {
        const struct run_span *s = &run->spans[i];
        if (!isfinite(s->first_time))
            continue;
        double x = SIDE + (s->first_time - first) * scale;
        double width = fmax(1.5, (s->last_time - s->first_time) * scale);
        fprintf(out,
                "<rect class=\"span%zu\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" "
                "rx=\"2\"><title>epoch %d, generation %d: steps %lld to %lld</title></rect>\n",
                i % 2, x, TOP, width, BAR, s->epoch, s->generation, (long long)s->first_step,
                (long long)s->last_step);
    }
    size_t skip = run->n_events > SPANS_MOST ? run->n_events - SPANS_MOST : 0;
    for (size_t i = skip; i < run->n_events; i++) {
        const struct run_event *e = &run->events[i];
        if (!isfinite(e->time))
            continue;
        fprintf(out, "<path class=\"event %s\" d=\"M%.1f %dl-4 -9h8z\"><title>", event_class(e),
                SIDE + (e->time - first) * scale, TOP - 2);
        put_text(out, e->kind);
        fprintf(out, ", step %lld: ", (long long)e->step);
        put_text(out, e->text);
        fprintf(out, "</title></path>\n");
    }
    fprintf(out,
            "<text x=\"%d\" y=\"66\">0</text><text class=\"y\" x=\"%d\" y=\"66\">%s</text>\n"
            "</svg></div>\n",
            SIDE, WIDE - SIDE, duration(last - first, text, sizeof text));
}

static void write_events(FILE *out, const struct run *run, double first)
{
    size_t skip = run->n_events > EVENT_ROWS ? run->n_events - EVENT_ROWS : 0;
    char text[64];
    fprintf(out, "<details class=\"card\" style=\"margin-top:12px\"%s><summary>%zu event%s",
            run->n_events <= 12 ? " open" : "", run->n_events, run->n_events == 1 ? "" : "s");
    if (skip)
        fprintf(out, ", the last %d here", EVENT_ROWS);
    fprintf(out, "</summary>\n<table><tr><th>after</th><th>step</th><th>what</th><th></th></tr>\n");
    for (size_t i = skip; i < run->n_events; i++) {
        const struct run_event *e = &run->events[i];
        fprintf(out, "<tr><td class=\"n\">%s</td><td class=\"n\">%lld</td><td>",
                isfinite(e->time) ? duration(e->time - first, text, sizeof text) : "",
                (long long)e->step);
        put_text(out, e->kind);
        fprintf(out, "</td><td class=\"t\">");
        put_text(out, e->text);
        fprintf(out, "</td></tr>\n");
    }
    fprintf(out, "</table></details>\n");
}

/* ---- page ---- */

static void write_head(FILE *out, const struct run *run, const char *name)
{
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    put_text(out, name);
    fprintf(out, " - gtrain</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>",
            REPORT_CSS);
    put_text(out, name);
    fprintf(out, "</h1>\n<p>gtrain report");
    double last = run->steps[run->n_steps - 1].time;
    time_t when = last > 0 && last < 1e11 ? (time_t)last : 0;
    struct tm tm;
    char text[64];
    if (when && gmtime_r(&when, &tm) && strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &tm))
        fprintf(out, ", last step at %s", text);
    fprintf(out, "</p></header>\n");
}

int report_html(FILE *out, const struct run *run, const char *name)
{
    write_head(out, run, name);
    if (write_tiles(out, run))
        return -1;
    write_notes(out, run);
    if (write_curves(out, run))
        return -1;
    double first, last;
    bool timed = time_range(run, &first, &last);
    if (timed || run->n_events)
        fprintf(out, "<h2>Timeline</h2>\n");
    if (timed)
        write_timeline(out, run, first, last);
    if (run->n_events)
        write_events(out, run, first);
    if (run->plan) {
        fprintf(out, "<h2>Plan</h2>\n<div class=\"card\"><pre>");
        html_text(out, run->plan, run->plan_bytes);
        fprintf(out, "</pre></div>\n");
    }
    fprintf(out, "<script>\n%s</script>\n</body>\n</html>\n", REPORT_JS);
    return 0;
}
