/* err.h - one error text, filled by whoever fails, printed by whoever may print.
 *
 * Libraries here never print and never exit. A function that can fail returns -1 (or NULL) and puts
 * one line into the err it was given: what was wrong, where, and what would be right. */
#ifndef GTRAIN_BASE_ERR_H
#define GTRAIN_BASE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

struct err {
    char text[1024];
};

/* Set the text, printf-like; a longer text is cut. Does nothing if err is NULL. Always returns -1,
 * so that a failing function can end in `return err_set(err, ...)`. */
int err_set(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As err_set, and append ": " and the text of the errno value. */
int err_set_errno(struct err *err, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "what: " in front of the text that is already there: the caller's view of the same failure.
 */
int err_prefix(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
