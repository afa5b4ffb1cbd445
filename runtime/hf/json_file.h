/* json_file.h - a JSON object out of a file that somebody else wrote. */
#ifndef GTRAIN_HF_JSON_FILE_H
#define GTRAIN_HF_JSON_FILE_H

#include <json-c/json.h>
#include <stdint.h>

#include "base/err.h"

/* The object, to be given back with json_object_put; or NULL with err (without the path): no
 * regular file (one that may be without end, or block), more than max_bytes, no JSON object. */
struct json_object *json_file_read(const char *path, int64_t max_bytes, struct err *err);

#endif
