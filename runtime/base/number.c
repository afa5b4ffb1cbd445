/* number.c - see number.h. 17 digits give every double back, 15 survive the way to a double and
 * back (IEEE 754): so nothing shorter than 15 needs to be tried, %g drops zeros by itself. */
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>

void number_text(double value, char text[NUMBER_BYTES])
{
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, NUMBER_BYTES, "%.*g", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
}

const char *number_size(double bytes, char text[NUMBER_BYTES])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    int unit = 0;
    for (; bytes >= 1000 && unit < 6; unit++)
        bytes /= 1000;
    snprintf(text, NUMBER_BYTES, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}
