/* metrics_line.h - the words of a progress line and when one is due: pure, for metrics.c. */
#ifndef GTRAIN_METRICS_LINE_H
#define GTRAIN_METRICS_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/metrics.h"

struct metrics_view {
    struct metrics_step step;
    int64_t total_steps;
    double tokens_per_s, mfu; /* of the last steps together, NAN unknown */
    double val_loss;          /* the newest measured, NAN none yet */
    double left_s;            /* until the last step, NAN unknown */
};

/* One line without its end, in out, as long as width columns allow (0: no limit): what matters
 * least goes first, what is unknown is never shown. Returns its length. */
size_t metrics_line(char *out, size_t size, int width, const struct metrics_view *view);

/* Should a plain line be printed for this step? The first, the last and each validation always;
 * others once a hundredth of the run and a second have passed since the line before, and in any
 * case after a minute, so that a log is readable for a run of a second and for one of a month.
 * last_step: of the line before, 0 none. */
bool metrics_line_due(int64_t step, int64_t total_steps, bool validated, int64_t last_step,
                      int64_t since_ms);

#endif
