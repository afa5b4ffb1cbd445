/* number.h - a double as text. */
#ifndef GTRAIN_BASE_NUMBER_H
#define GTRAIN_BASE_NUMBER_H

enum { NUMBER_BYTES = 32 };

/* The shortest of 15, 16 and 17 digits that reads back as the same number: 0.003, and not
 * 0.0030000000000000001. Digits and point are those of the locale. */
void number_text(double value, char text[NUMBER_BYTES]);

/* "1.5 MB": bytes in the unit (B to EB, powers of 1000) that leaves one to three digits in front of
 * the point. Returns text. */
const char *number_size(double bytes, char text[NUMBER_BYTES]);

#endif
