/* chart.c - axes, ticks and lines of one chart; see chart.h.
 *
 * The picture is drawn in its own units (width of the chart, HEIGHT high) and scaled by the page.
 * Colours and strokes are CSS classes of the page, so that it can be light or dark. The points that
 * were drawn follow as JSON: the page's script finds the one nearest to the pointer in it. */
#include "cli/chart.h"

#include <math.h>
#include <stdlib.h>

enum {
    HEIGHT = 230,
    LEFT = 58, /* margins: room for the y labels, for half an x label, for the x labels */
    RIGHT = 16,
    TOP = 10,
    BOTTOM = 26,
    TICKS_MOST = 16,
    COLUMN_UNITS = 1, /* of the picture, one decimated column: about a pixel */
};

/* Up to the first ratio a logarithmic axis shows even steps, up to the second several in a decade,
 * up to the third three, beyond only powers of ten. */
static const double LOG_EVEN = 1.8, LOG_DENSE = 30, LOG_WIDE = 1e4;

struct scale {
    double low, high; /* logarithms where log is set */
    double from, to;  /* picture units */
    bool log;
};

static double place(const struct scale *s, double value)
{
    double v = s->log ? log10(value) : value;
    return s->from + (v - s->low) / (s->high - s->low) * (s->to - s->from);
}

size_t chart_decimate(const struct chart_point *in, size_t n, double x_first, double x_last,
                      size_t columns, struct chart_point *out)
{
    size_t written = 0, i = 0;
    bool all = n <= 2 * columns;
    double per_column = (x_last - x_first) / (double)columns;
    while (i < n) {
        if (!isfinite(in[i].y)) {
            i++;
            continue;
        }
        if (all) {
            out[written++] = in[i++];
            continue;
        }
        double column = floor((in[i].x - x_first) / per_column);
        if (column > (double)columns - 1)
            column = (double)columns - 1; /* x_last itself */
        size_t low = i, high = i;
        for (; i < n; i++) {
            double c = floor((in[i].x - x_first) / per_column);
            if (c > column && column < (double)columns - 1)
                break;
            if (!isfinite(in[i].y))
                continue;
            low = in[i].y < in[low].y ? i : low;
            high = in[i].y > in[high].y ? i : high;
        }
        out[written++] = in[low < high ? low : high];
        if (low != high)
            out[written++] = in[low < high ? high : low];
    }
    return written;
}

int chart_ticks(double low, double high, int most, double *ticks)
{
    if (!(high > low) || !isfinite(high - low) || most < 2)
        return 0;
    double power = pow(10, floor(log10((high - low) / most)));
    static const double factors[] = {1, 2, 5, 10, 20};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        double step = factors[i] * power;
        double first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
        if (last - first + 1 > most)
            continue;
        int n = 0;
        for (; n < most && first + n <= last; n++) /* n counts: first + 1 may be first */
            ticks[n] = (first + n) * step + 0.0;   /* no -0 */
        return n;
    }
    return 0;
}

static int log_ticks(double low, double high, double *ticks)
{
    static const double dense[] = {1, 1.5, 2, 3, 4, 5, 7}, wide[] = {1, 2, 5};
    bool is_dense = high / low <= LOG_DENSE;
    const double *factors = is_dense ? dense : wide;
    int per_decade = is_dense ? 7 : high / low <= LOG_WIDE ? 3 : 1, n = 0;
    /* A range may touch 0 or infinity, where a logarithm never arrives. */
    int from = low > 1e-300 ? (int)floor(log10(low)) : -300;
    int to = high < 1e300 ? (int)ceil(log10(high)) : 300;
    for (int e = from; e <= to; e++) {
        for (int i = 0; i < per_decade; i++) {
            double t = factors[i] * pow(10, e);
            if (t >= low && t <= high && n < TICKS_MOST)
                ticks[n++] = t;
        }
    }
    return n;
}

const char *chart_number(double value, char *text, size_t size)
{
    static const struct {
        double from, unit;
        const char *name;
    } units[] = {{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (fabs(value) >= units[i].from * 0.9995) {
            snprintf(text, size, "%.4g%s", value / units[i].unit, units[i].name);
            return text;
        }
    }
    snprintf(text, size, "%.4g", value);
    return text;
}

/* The range of the values, widened to be a range, with a little air above and below. */
static struct scale y_scale(const struct chart *c)
{
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < c->n_series; i++) {
        for (size_t k = 0; k < c->series[i].n; k++) {
            double y = c->series[i].points[k].y;
            if (!isfinite(y))
                continue;
            low = y < low ? y : low;
            high = y > high ? y : high;
        }
    }
    struct scale s = {.from = HEIGHT - BOTTOM, .to = TOP, .log = c->log_y && low > 0};
    if (!(low <= high)) {
        low = 0;
        high = 1;
    }
    if (s.log) {
        low = log10(low);
        high = log10(high);
    } else if (c->from_zero && low >= 0) {
        low = 0;
    }
    double air = (high - low) * 0.05;
    if (!(air > 0))
        air = fabs(high) > 0 ? fabs(high) * 0.1 : 0.1;
    s.low = c->from_zero && !s.log && low == 0 ? 0 : low - air;
    s.high = high + air;
    return s;
}

static void write_axes(FILE *out, const struct chart *c, const struct scale *x,
                       const struct scale *y)
{
    char text[32];
    double ticks[TICKS_MOST];
    double low = y->log ? pow(10, y->low) : y->low, high = y->log ? pow(10, y->high) : y->high;
    int n = y->log && high / low > LOG_EVEN ? log_ticks(low, high, ticks)
                                            : chart_ticks(low, high, 6, ticks);
    for (int i = 0; i < n; i++) {
        double at = place(y, ticks[i]);
        fprintf(out,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/>"
                "<text class=\"y\" x=\"%d\" y=\"%.1f\">%s</text>\n",
                LEFT, at, c->width - RIGHT, LEFT - 7, at + 4,
                chart_number(ticks[i], text, sizeof text));
    }
    n = chart_ticks(x->low, x->high, c->width > 600 ? 10 : 5, ticks);
    for (int i = 0; i < n; i++)
        fprintf(out, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%s</text>\n", place(x, ticks[i]),
                HEIGHT - 7, chart_number(ticks[i], text, sizeof text));
    for (size_t i = 0; i < c->n_marks; i++)
        if (c->marks[i] >= x->low && c->marks[i] <= x->high)
            fprintf(out, "<path class=\"mark\" d=\"M%.1f %dV%d\"/>\n", place(x, c->marks[i]), TOP,
                    HEIGHT - BOTTOM);
}

static void write_series(FILE *out, const struct chart_series *s, const struct chart_point *points,
                         size_t n, const struct scale *x, const struct scale *y)
{
    fprintf(out, "<path class=\"%s\" d=\"", s->style);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', place(x, points[i].x), place(y, points[i].y));
    fprintf(out, "\"/>\n");
    bool single = n == 1; /* a path of one point shows nothing */
    if (s->style[0] != 'd' && !single)
        return;
    for (size_t i = 0; i < n; i++)
        fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", s->style,
                place(x, points[i].x), place(y, points[i].y), n > 60 ? 2 : 3);
}

/* {"name":..., "p":[[x,y],...]}: what the read-out looks up. */
static void write_points(FILE *out, const struct chart_series *s, const struct chart_point *points,
                         size_t n)
{
    fprintf(out, "{\"name\":\"%s\",\"p\":[", s->name);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s[%.15g,%.6g]", i ? "," : "", points[i].x, points[i].y);
    fprintf(out, "]}");
}

int chart_write(FILE *out, const struct chart *c)
{
    double air = c->x_last > c->x_first ? 0 : 0.5;
    struct scale x = {
        .low = c->x_first - air, .high = c->x_last + air, .from = LEFT, .to = c->width - RIGHT};
    struct scale y = y_scale(c);
    size_t columns = (size_t)(c->width - LEFT - RIGHT) / COLUMN_UNITS;
    struct chart_point *points = malloc((size_t)c->n_series * 2 * columns * sizeof *points);
    size_t *counts = malloc((size_t)c->n_series * sizeof *counts);
    if (!points || !counts) {
        free(points);
        free(counts);
        return -1;
    }
    fprintf(out,
            "<figure class=\"%s\" data-x0=\"%.15g\" data-x1=\"%.15g\" data-left=\"%d\" "
            "data-right=\"%d\" data-width=\"%d\">\n<figcaption>%s <small>%s</small>"
            "<output></output></figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"%s\">\n",
            c->width > 600 ? "wide" : "half", x.low, x.high, LEFT, RIGHT, c->width, c->title,
            c->unit, c->width, HEIGHT, c->title);
    write_axes(out, c, &x, &y);
    for (int i = 0; i < c->n_series; i++) {
        const struct chart_series *s = &c->series[i];
        struct chart_point *p = points + (size_t)i * 2 * columns;
        counts[i] = chart_decimate(s->points, s->n, c->x_first, c->x_last, columns, p);
        if (counts[i])
            write_series(out, s, p, counts[i], &x, &y);
    }
    fprintf(out, "<path class=\"cursor\" d=\"M0 %dV%d\" hidden=\"\"/>\n</svg>\n", TOP,
            HEIGHT - BOTTOM);
    fprintf(out, "<script type=\"application/json\">[");
    for (int i = 0; i < c->n_series; i++) {
        fprintf(out, "%s", i ? ",\n" : "");
        write_points(out, &c->series[i], points + (size_t)i * 2 * columns, counts[i]);
    }
    fprintf(out, "]</script>\n</figure>\n");
    free(points);
    free(counts);
    return 0;
}
