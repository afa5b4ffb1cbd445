/* json_file.c - see json_file.h. */
#include "hf/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BYTES = 65536 };

static int open_regular(const char *path, int64_t max_bytes, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_set_errno(err, errno, "cannot be opened");
    if (fstat(fd, &st))
        err_set_errno(err, errno, "cannot be looked at");
    else if (!S_ISREG(st.st_mode))
        err_set(err, "is not a regular file");
    else if (st.st_size > max_bytes)
        err_set(err, "has %" PRId64 " bytes: at most %" PRId64 " are read", (int64_t)st.st_size,
                max_bytes);
    else
        return fd;
    close(fd);
    return -1;
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!text[i] || !strchr(" \t\r\n", text[i]))
            return false;
    return true;
}

/* An object, and nothing but blanks behind it. */
static struct json_object *parse(int fd, struct json_tokener *tokener, struct err *err)
{
    char text[PIECE_BYTES];
    struct json_object *o = NULL;
    enum json_tokener_error state = json_tokener_continue;
    bool more = false; /* than the object */
    while (!more && (state == json_tokener_continue || state == json_tokener_success)) {
        ssize_t n = read(fd, text, sizeof text);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err_set_errno(err, errno, "cannot be read");
            json_object_put(o);
            return NULL;
        }
        if (!n)
            break;
        size_t used = 0;
        if (state == json_tokener_continue) {
            o = json_tokener_parse_ex(tokener, text, (int)n);
            state = json_tokener_get_error(tokener);
            used = json_tokener_get_parse_end(tokener);
        }
        more = state == json_tokener_success && !is_blank(text + used, (size_t)n - used);
    }
    if (state == json_tokener_success && !more && json_object_get_type(o) == json_type_object)
        return o;
    json_object_put(o);
    err_set(err, "this is no JSON object: %s",
            more                             ? "something stands behind it"
            : state == json_tokener_success  ? "it is something else"
            : state == json_tokener_continue ? "it is cut"
                                             : json_tokener_error_desc(state));
    return NULL;
}

struct json_object *json_file_read(const char *path, int64_t max_bytes, struct err *err)
{
    struct json_object *o = NULL;
    int fd = open_regular(path, max_bytes, err);
    if (fd < 0)
        return NULL;
    struct json_tokener *tokener = json_tokener_new();
    if (tokener)
        o = parse(fd, tokener, err);
    else
        err_set(err, "no memory");
    if (tokener)
        json_tokener_free(tokener);
    close(fd);
    return o;
}
