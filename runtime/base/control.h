/* control.h - text of others on its way to a terminal. */
#ifndef GTRAIN_BASE_CONTROL_H
#define GTRAIN_BASE_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

/* Is the byte text[at] a control character, or part of one: U+0000 to U+001F, U+007F, and U+0080 to
 * U+009F, which are two bytes in UTF-8? Terminals obey them. */
bool text_is_control(const char *text, size_t at);

#endif
