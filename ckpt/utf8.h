/* utf8.h - just enough of UTF-8 to refuse what is not. */
#ifndef GTRAIN_CKPT_UTF8_H
#define GTRAIN_CKPT_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed character at p (n bytes are there), 0 if there is none: overlong forms,
 * surrogates and values above 10ffff are not well-formed. Source: Unicode 15, table 3-7. */
size_t utf8_length(const char *p, size_t n);

/* Writes a code point (valid, not a surrogate) as 1 to 4 bytes; returns how many. */
size_t utf8_put(char *to, unsigned code);

#endif
