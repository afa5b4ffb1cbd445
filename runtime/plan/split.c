/* split.c - the value of --gtrain-plan: FILE[,key=value...]. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

void plan_split_free(char *path, char **overrides, int n_overrides)
{
    free(path);
    for (int i = 0; i < n_overrides; i++)
        free(overrides[i]);
    free(overrides);
}

int plan_split(const char *option, char **path, char ***overrides, int *n_overrides,
               struct err *err)
{
    /* Every part ends at a comma or at the end, so there are no more parts than commas + 1. */
    size_t parts = 1;
    for (const char *s = option; *s; s++)
        parts += *s == ',';
    *n_overrides = 0;
    *path = NULL;
    *overrides = calloc(parts, sizeof **overrides);
    if (!*overrides)
        return err_set(err, "%s: not enough memory", option);
    for (const char *start = option;;) {
        int depth = 0;
        const char *end = start;
        for (; *end && (*end != ',' || (depth > 0 && *path)); end++)
            depth += (*end == '[') - (*end == ']');
        if (*path && depth != 0) {
            err_set(err, "%s: a [ or ] has no partner in %s", option, start);
            goto fail;
        }
        char *part = strndup(start, (size_t)(end - start));
        if (!part) {
            err_set(err, "%s: not enough memory", option);
            goto fail;
        }
        if (*path)
            (*overrides)[(*n_overrides)++] = part;
        else
            *path = part;
        if (!*part) {
            err_set(err, "'%s': an empty part: use FILE[,section.key=value...]", option);
            goto fail;
        }
        if (!*end)
            return 0;
        start = end + 1;
    }
fail:
    plan_split_free(*path, *overrides, *n_overrides);
    *path = NULL;
    *overrides = NULL;
    *n_overrides = 0;
    return -1;
}
