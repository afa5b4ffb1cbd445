/* chart.h - a line chart as SVG, for the report. */
#ifndef GTRAIN_CHART_H
#define GTRAIN_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct chart_point {
    double x, y;
};

struct chart_series {
    const struct chart_point *points; /* ascending x; a y that is not finite is left out */
    size_t n;
    const char *name;  /* in the read-out of the values under the pointer */
    const char *style; /* CSS class: "raw", "line" or "dots" */
};

struct chart {
    const char *title, *unit; /* plain text without markup */
    const struct chart_series *series;
    int n_series;
    const double *marks; /* x of dashed vertical lines: restarts */
    size_t n_marks;
    double x_first, x_last;
    bool log_y;     /* where all values are positive */
    bool from_zero; /* the y axis begins at 0 */
    int width;      /* of the picture, in its own units; a height follows */
};

/* At most 2 * columns points: of each of `columns` equal parts of [x_first, x_last] the lowest and
 * the highest, in their order, so that no spike is lost. Fewer points than that are all kept.
 * Returns how many were written to out. */
size_t chart_decimate(const struct chart_point *in, size_t n, double x_first, double x_last,
                      size_t columns, struct chart_point *out);

/* Ticks of a linear axis: multiples of 1, 2 or 5 times a power of ten inside [low, high], `most` at
 * most. Returns how many. */
int chart_ticks(double low, double high, int most, double *ticks);

/* A <figure> with the chart, its points as JSON for the read-out, and its title as caption. -1: out
 * of memory. Writing errors stay with out (ferror). */
int chart_write(FILE *out, const struct chart *c);

/* A number as people write it: 1.2k, 3.4M, 0.0012. Returns text. */
const char *chart_number(double value, char *text, size_t size);

#endif
