#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *err, const char *format, ...)
{
    if (!err)
        return -1;
    va_list ap;
    va_start(ap, format);
    vsnprintf(err->text, sizeof err->text, format, ap);
    va_end(ap);
    return -1;
}

int err_set_errno(struct err *err, int errnum, const char *format, ...)
{
    if (!err)
        return -1;
    va_list ap;
    va_start(ap, format);
    int used = vsnprintf(err->text, sizeof err->text, format, ap);
    va_end(ap);
    if (used < 0 || (size_t)used >= sizeof err->text)
        return -1;
    char reason[128];
    snprintf(err->text + used, sizeof err->text - (size_t)used, ": %s",
             strerror_r(errnum, reason, sizeof reason));
    return -1;
}

int err_prefix(struct err *err, const char *format, ...)
{
    if (!err)
        return -1;
    struct err old = *err;
    va_list ap;
    va_start(ap, format);
    int used = vsnprintf(err->text, sizeof err->text, format, ap);
    va_end(ap);
    if (used < 0 || (size_t)used >= sizeof err->text)
        return -1;
    snprintf(err->text + used, sizeof err->text - (size_t)used, ": %s", old.text);
    return -1;
}
