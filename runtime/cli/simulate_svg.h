/* simulate_svg.h - `gtrain simulate --svg`: what was simulated, as one picture. */
#ifndef GTRAIN_CLI_SIMULATE_SVG_H
#define GTRAIN_CLI_SIMULATE_SVG_H

#include <stdio.h>

#include "plan/simulate.h"

struct simulate_picture {
    const struct simulate_config *config;
    const struct simulate_source *source; /* of the run whose timeline is drawn */
    const struct simulate_summary *summary;
    double mean_s; /* between failures */
    const char *title;
    struct simulate_point spares[SIMULATE_POINTS], intervals[SIMULATE_POINTS];
    int n_spares, n_intervals, best_spares, best_interval;
};

/* Parts, ETTR against spares and against the interval, and the timeline of one run. Self-contained.
 * -1: out of memory, or out has an error. */
int simulate_svg(const struct simulate_picture *picture, FILE *out, struct err *err);

#endif
