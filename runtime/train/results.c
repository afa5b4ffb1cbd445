/* results.c - see results.h. */
#include "train/results.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double value_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void results_print(const struct result results[RESULTS], char *text, size_t size)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < RESULTS && n < size; i++)
        if (results[i].step > 0)
            n += (size_t)snprintf(text + n, size - n, "%s%" PRId64 ":%016" PRIx64 ":%016" PRIx64,
                                  n ? "," : "", results[i].step, bits_of(results[i].loss),
                                  bits_of(results[i].norm));
}

void results_parse(const char *text, struct result results[RESULTS])
{
    memset(results, 0, RESULTS * sizeof *results);
    for (int i = 0; i < RESULTS && text && *text; i++) {
        int64_t step;
        uint64_t loss, norm;
        int used = 0;
        if (sscanf(text, "%18" SCNd64 ":%16" SCNx64 ":%16" SCNx64 "%n", &step, &loss, &norm,
                   &used) != 3 ||
            !used || step < 1)
            return;
        results[i] = (struct result){step, value_of(loss), value_of(norm)};
        text += used;
        text += *text == ',';
    }
}

const struct result *results_find(const struct result results[RESULTS], int64_t step)
{
    for (int i = 0; i < RESULTS; i++)
        if (results[i].step == step && step > 0)
            return &results[i];
    return NULL;
}
