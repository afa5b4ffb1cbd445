/* simulate_svg.c - see simulate_svg.h.
 *
 * The axes of ETTR are logarithmic in what is missing to 1, so that 90, 99 and 99.9 % are equally
 * far apart: that is where the differences are. In the timeline an outage is at least MARK wide, or
 * nobody would see it: half a minute of 54 days. */
#include "cli/simulate_svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1200, MARGIN = 40, CHART_WIDTH = 540, CHART_HEIGHT = 250, ROWS = 9, ROW = 18 };

static const double MARK = 1.6;        /* least width of an outage in the timeline */
static const double LEAST_LOSS = 1e-6; /* ETTR of 1 is drawn as this */
static const double TICK_ROOM = 24;    /* between labels of the y axis */
static const char *const colours[SIMULATE_PARTS] = {"#2f9e62", "#e8a33d", "#8c6bb8", "#3f7fc4",
                                                    "#6fb1e0", "#b5d6ee", "#d64545"};
static const char *const BEST = "#d6336c", *const INK = "#223";

static void text_at(FILE *out, double x, double y, int size, const char *colour, const char *anchor,
                    const char *text)
{
    fprintf(
        out,
        "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" fill=\"%s\" text-anchor=\"%s\">%s</text>\n",
        x, y, size, colour, anchor, text);
}

/* ---- parts ---- */

/* What is not useful, to scale, with a legend below. */
static void draw_parts(const struct simulate_picture *p, double top, FILE *out)
{
    const struct simulate_summary *m = p->summary;
    double lost = 0, x = MARGIN, width = WIDTH - 2 * MARGIN, at = MARGIN;
    char text[128];
    for (int i = SIMULATE_USEFUL + 1; i < SIMULATE_PARTS; i++)
        lost += m->part[i].mean;
    snprintf(text, sizeof text, "The %.2f %% that are not useful work", 100 * lost);
    text_at(out, MARGIN, top, 16, INK, "start", text);
    for (int i = SIMULATE_USEFUL + 1; i < SIMULATE_PARTS; i++) {
        double w = lost > 0 ? m->part[i].mean / lost * width : 0;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"30\" fill=\"%s\"/>\n", x,
                top + 12, w, colours[i]);
        x += w;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", at,
                top + 54, colours[i]);
        snprintf(text, sizeof text, "%s %.3f %%", simulate_part_names[i], 100 * m->part[i].mean);
        text_at(out, at + 18, top + 65, 12, INK, "start", text);
        at += width / (SIMULATE_PARTS - 1);
    }
}

/* ---- charts ---- */

struct axes {
    double x0, y0; /* of the plot: left, top */
    double low_x, high_x, low_y, high_y;
    bool log_x;
};

static double nines(double ettr)
{
    return -log10(fmax(1 - ettr, LEAST_LOSS));
}

static double at_x(const struct axes *a, double x)
{
    double v = a->log_x ? log10(x) : x;
    return a->x0 + (v - a->low_x) / (a->high_x - a->low_x) * (CHART_WIDTH - 60);
}

static double at_y(const struct axes *a, double ettr)
{
    return a->y0 + (a->high_y - nines(ettr)) / (a->high_y - a->low_y) * CHART_HEIGHT;
}

static struct axes axes_of(const struct simulate_point *points, int n, double scale, bool paid,
                           double formula, double x0, double y0)
{
    struct axes a = {.x0 = x0, .y0 = y0, .log_x = !paid, .low_y = INFINITY, .high_y = 0};
    for (int i = 0; i < n; i++) {
        a.low_y = fmin(a.low_y, nines(paid ? points[i].paid : points[i].ettr));
        a.high_y = fmax(a.high_y, nines(points[i].ettr));
    }
    a.high_y = fmax(a.high_y, nines(formula)) + 0.03;
    a.low_y = fmin(a.low_y, nines(formula)) - 0.03;
    a.low_x = a.log_x ? log10((double)points[0].x * scale) : 0;
    a.high_x = a.log_x ? log10((double)points[n - 1].x * scale) : (double)points[n - 1].x;
    if (a.high_x <= a.low_x)
        a.high_x = a.low_x + 1;
    return a;
}

static void draw_y_axis(const struct axes *a, FILE *out)
{
    static const double ticks[] = {0,    20,   40,    50,    60,    70,   80,   90,   95,
                                   97,   98,   98.5,  99,    99.2,  99.4, 99.5, 99.6, 99.7,
                                   99.8, 99.9, 99.95, 99.98, 99.99, 98.8, 99.1, 99.3};
    double used[sizeof ticks / sizeof *ticks];
    int n = 0;
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++) {
        double y = at_y(a, ticks[i] / 100);
        bool room = y >= a->y0 - 1 && y <= a->y0 + CHART_HEIGHT + 1;
        for (int k = 0; k < n; k++)
            room = room && fabs(used[k] - y) >= TICK_ROOM;
        if (!room)
            continue;
        used[n++] = y;
        char text[32];
        snprintf(text, sizeof text, "%g %%", ticks[i]);
        fprintf(out, "<path d=\"M%.1f %.1fh%d\" stroke=\"#dde\"/>\n", a->x0, y, CHART_WIDTH - 60);
        text_at(out, a->x0 - 6, y + 4, 11, "#556", "end", text);
    }
}

static void draw_x_axis(const struct axes *a, FILE *out)
{
    char text[32];
    double bottom = a->y0 + CHART_HEIGHT + 18;
    if (!a->log_x) {
        int step = a->high_x > 40 ? 10 : a->high_x > 16 ? 4 : 2;
        for (int x = 0; x <= (int)a->high_x; x += step) {
            snprintf(text, sizeof text, "%d", x);
            text_at(out, at_x(a, x), bottom, 11, "#556", "middle", text);
        }
        return;
    }
    static const struct {
        double s;
        const char *name;
    } ticks[] = {{1, "1 s"},    {3, "3 s"},     {10, "10 s"},    {30, "30 s"},
                 {60, "1 min"}, {180, "3 min"}, {600, "10 min"}, {1800, "30 min"},
                 {3600, "1 h"}, {10800, "3 h"}, {21600, "6 h"},  {86400, "1 day"}};
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks; i++)
        if (log10(ticks[i].s) >= a->low_x - 0.01 && log10(ticks[i].s) <= a->high_x + 0.01)
            text_at(out, at_x(a, ticks[i].s), bottom, 11, "#556", "middle", ticks[i].name);
}

static void draw_line(const struct axes *a, const struct simulate_point *points, int n,
                      double scale, bool paid, const char *style, FILE *out)
{
    fputs("<path fill=\"none\" ", out);
    fprintf(out, "%s d=\"", style);
    for (int i = 0; i < n; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', at_x(a, (double)points[i].x * scale),
                at_y(a, paid ? points[i].paid : points[i].ettr));
    fputs("\"/>\n", out);
}

static void draw_mark(const struct axes *a, double x, double ettr, const char *colour,
                      const char *text, double below, FILE *out)
{
    double px = at_x(a, x), py = at_y(a, ettr);
    bool right = px > a->x0 + CHART_WIDTH - 200;
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", px, py, colour);
    if (below > 0) /* out of the way of a curve that falls to the right */
        text_at(out, px, py + below, 12, colour, "middle", text);
    else
        text_at(out, px + (right ? -8 : 8), py + below, 12, colour, right ? "end" : "start", text);
}

static void draw_formula(const struct axes *a, double formula, FILE *out)
{
    fprintf(out, "<path d=\"M%.1f %.1fh%d\" stroke=\"#667\" stroke-dasharray=\"5 4\"/>\n", a->x0,
            at_y(a, formula), CHART_WIDTH - 60);
    text_at(out, a->x0 + CHART_WIDTH - 64, at_y(a, formula) - 5, 11, "#667", "end",
            "closed formula");
}

static void draw_spares(const struct simulate_picture *p, double top, FILE *out)
{
    char text[96];
    double formula = simulate_formula(p->config, p->mean_s, false);
    struct axes a = axes_of(p->spares, p->n_spares, 1, true, formula, MARGIN + 52, top + 22);
    text_at(out, MARGIN, top, 16, INK, "start", "ETTR against spare nodes");
    draw_y_axis(&a, out);
    draw_x_axis(&a, out);
    draw_formula(&a, formula, out);
    draw_line(&a, p->spares, p->n_spares, 1, true,
              "stroke=\"#9bb\" stroke-width=\"2\" stroke-dasharray=\"2 3\"", out);
    draw_line(&a, p->spares, p->n_spares, 1, false, "stroke=\"#2f9e62\" stroke-width=\"2.5\"", out);
    const struct simulate_point *best = &p->spares[p->best_spares];
    snprintf(text, sizeof text, "best use of all nodes held: %lld spare%s", (long long)best->x,
             best->x == 1 ? "" : "s");
    draw_mark(&a, (double)best->x, best->paid, BEST, text, 26, out);
    if (p->config->spares < p->n_spares) {
        snprintf(text, sizeof text, "this run: %d", p->config->spares);
        draw_mark(&a, p->config->spares, p->spares[p->config->spares].ettr, "#2f9e62", text, -9,
                  out);
    }
    text_at(
        out, MARGIN + 52, top + CHART_HEIGHT + 62, 11, "#556", "start",
        "solid: share of the time that is useful; dotted: times training nodes by all nodes held");
}

static void draw_intervals(const struct simulate_picture *p, double top, FILE *out)
{
    char text[96];
    const struct simulate_config *c = p->config;
    double formula = simulate_formula(c, p->mean_s, false), left = WIDTH - MARGIN - CHART_WIDTH;
    struct axes a =
        axes_of(p->intervals, p->n_intervals, c->step_s, false, formula, left + 52, top + 22);
    text_at(out, left, top, 16, INK, "start", "ETTR against the time between checkpoints");
    draw_y_axis(&a, out);
    draw_x_axis(&a, out);
    draw_line(&a, p->intervals, p->n_intervals, c->step_s, false,
              "stroke=\"#2f9e62\" stroke-width=\"2.5\"", out);
    const struct simulate_point *best = &p->intervals[p->best_interval];
    snprintf(text, sizeof text, "best: %.4g s", (double)best->x * c->step_s);
    draw_mark(&a, (double)best->x * c->step_s, best->ettr, BEST, text, 26, out);
    double own = (double)c->every_steps * c->step_s;
    snprintf(text, sizeof text, "this run: %.4g s", own);
    if (log10(own) >= a.low_x - 1e-9 && log10(own) <= a.high_x + 1e-9)
        draw_mark(&a, own, p->summary->part[SIMULATE_USEFUL].mean, "#2f9e62", text, -9, out);
}

/* ---- timeline ---- */

struct stretch {
    enum simulate_part part;
    double from, to;
};

struct stretches {
    struct stretch *all;
    size_t n, room;
    bool failed;
};

static void keep(void *arg, enum simulate_part part, double from, double to)
{
    struct stretches *s = arg;
    if (part == SIMULATE_USEFUL)
        return;
    if (s->n == s->room) {
        size_t room = s->room ? 2 * s->room : 1024;
        struct stretch *more = realloc(s->all, room * sizeof *more);
        if (!more) {
            s->failed = true;
            return;
        }
        s->all = more;
        s->room = room;
    }
    s->all[s->n++] = (struct stretch){part, from, to};
}

static int earlier(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* The stretches from i on that follow each other without a gap. */
static size_t outage_end(const struct stretches *s, size_t i)
{
    size_t k = i + 1;
    while (k < s->n && s->all[k].from <= s->all[k - 1].to + 1e-6 * s->all[k].to)
        k++;
    return k;
}

static void draw_outage(double from, double to, const char *colour, double row_s, double top,
                        FILE *out)
{
    double width = WIDTH - 2 * MARGIN - 60;
    for (int row = (int)(from / row_s); row < ROWS && row * row_s < to; row++) {
        double x = fmax(from - row * row_s, 0) / row_s * width;
        double w = fmin(to - row * row_s, row_s) / row_s * width - x;
        if (w < MARK)
            w = MARK;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                MARGIN + 60 + x, top + row * (ROW + 6), w, ROW, colour);
    }
}

static void draw_rows(const struct simulate_run *run, double row_s, double top, FILE *out)
{
    char text[32];
    double width = WIDTH - 2 * MARGIN - 60;
    for (int row = 0; row < ROWS; row++) {
        double y = top + row * (ROW + 6),
               w = fmin(run->wall_s - row * row_s, row_s) / row_s * width;
        snprintf(text, sizeof text, "day %.3g", row * row_s / 86400);
        text_at(out, MARGIN + 52, y + 13, 11, "#556", "end", text);
        if (w > 0)
            fprintf(out,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"#cfe9da\"/>\n",
                    MARGIN + 60, y, w, ROW);
    }
}

/* One outage to scale, with the seconds of each phase. */
static void draw_longest(const struct stretches *s, size_t i, size_t end, double top, FILE *out)
{
    double from = s->all[i].from, all = s->all[end - 1].to - from, width = WIDTH - 2 * MARGIN;
    char text[160];
    snprintf(text, sizeof text, "Its costliest failure, to scale: %.4g s, on day %.3g", all,
             from / 86400);
    text_at(out, MARGIN, top, 16, INK, "start", text);
    for (; i < end; i++) {
        const struct stretch *k = &s->all[i];
        double x = MARGIN + (k->from - from) / all * width, w = (k->to - k->from) / all * width;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"30\" fill=\"%s\"/>\n", x,
                top + 12, w, colours[k->part]);
        snprintf(text, sizeof text, "%s %.3g s", simulate_part_names[k->part], k->to - k->from);
        if (w > 7 * (double)strlen(text))
            text_at(out, x + w / 2, top + 32, 12, k->part == SIMULATE_WAIT ? "#fff" : INK, "middle",
                    text);
    }
}

static void draw_timeline(const struct simulate_run *run, const struct stretches *s, double top,
                          FILE *out)
{
    double row_s = fmax(run->wall_s / ROWS, 1), longest = 0;
    size_t first = 0, last = 0;
    char text[200];
    snprintf(text, sizeof text,
             "One run: %lld failures, %lld without a spare left (red), %lld back to the shared "
             "folder",
             (long long)run->failures, (long long)run->requeues, (long long)run->from_shared);
    text_at(out, MARGIN, top, 16, INK, "start", text);
    draw_rows(run, row_s, top + 14, out);
    for (size_t i = 0, end; i < s->n; i = end) {
        end = outage_end(s, i);
        const char *colour = colours[SIMULATE_DETECT];
        for (size_t k = i; k < end; k++)
            colour = s->all[k].part == SIMULATE_WAIT ? colours[SIMULATE_WAIT] : colour;
        draw_outage(s->all[i].from, s->all[end - 1].to, colour, row_s, top + 14, out);
        if (s->all[end - 1].to - s->all[i].from > longest) {
            longest = s->all[end - 1].to - s->all[i].from;
            first = i;
            last = end;
        }
    }
    if (last)
        draw_longest(s, first, last, top + 14 + ROWS * (ROW + 6) + 34, out);
}

int simulate_svg(const struct simulate_picture *p, FILE *out, struct err *err)
{
    struct stretches s = {0};
    struct simulate_watch watch = {keep, &s};
    struct simulate_run run;
    char text[200];
    double height = 900;
    if (simulate_one(p->config, p->source, &watch, &run, err) || s.failed) {
        free(s.all);
        return err_set(err, "out of memory for the picture");
    }
    if (s.n)
        qsort(s.all, s.n, sizeof *s.all, earlier);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\">\n<title>%s</title>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height, p->title);
    snprintf(text, sizeof text, "ETTR %.2f %%", 100 * p->summary->part[SIMULATE_USEFUL].median);
    text_at(out, MARGIN, 50, 26, INK, "start", text);
    snprintf(text, sizeof text, "%s; a failure every %.3g h", p->title, p->mean_s / 3600);
    text_at(out, MARGIN + 190, 50, 14, "#445", "start", text);
    draw_parts(p, 88, out);
    draw_spares(p, 200, out);
    draw_intervals(p, 200, out);
    draw_timeline(&run, &s, 556, out);
    fputs("</svg>\n", out);
    free(s.all);
    return ferror(out) ? err_set(err, "the picture could not be written") : 0;
}
