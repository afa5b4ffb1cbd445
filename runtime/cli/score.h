/* score.h - `gtrain generate --score FILE`. Only generate.c includes it. */
#ifndef GTRAIN_CLI_SCORE_H
#define GTRAIN_CLI_SCORE_H

#include "train/sample.h"

/* Prints a line for each token of the file but the first, and the mean. The file's bytes are tokens
 * where the plan's data is text; otherwise it holds token numbers, with white space between them.
 * Returns the exit code; what was wrong is said. */
int score_file(const char *path, const struct plan *plan, const struct weights_source *source,
               int threads);

#endif
