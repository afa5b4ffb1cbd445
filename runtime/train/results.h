/* results.h - what the last steps gave, as it travels with a snapshot.
 *
 * A state may be whole in memory before its step's line is written (loop.c finishes a step one
 * later). The line must not be lost with rank 0: so loss and norm of the two steps up to the state
 * stand beside it, bit for bit. */
#ifndef GTRAIN_RESULTS_H
#define GTRAIN_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RESULTS = 2 };

struct result {
    int64_t step; /* 0: none */
    double loss, norm;
};

/* "STEP:LOSS:NORM,...", the numbers' bits as hex digits, into text (room for 120 bytes is enough).
 * Steps of 0 are left out. */
void results_print(const struct result results[RESULTS], char *text, size_t size);
/* What cannot be read is none. */
void results_parse(const char *text, struct result results[RESULTS]);
/* NULL: not among them. */
const struct result *results_find(const struct result results[RESULTS], int64_t step);

#endif
