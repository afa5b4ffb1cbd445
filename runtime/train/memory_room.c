/* memory_room.c - see memory_room.h.
 *
 * A control group's limit holds for all groups below it, so each one on the way to the root counts.
 * Version 2 has one tree ("0::/path"), version 1 one for memory ("4:memory:/path"); a process in a
 * container may see paths that are not there: those say nothing. */
#include "train/memory_room.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_ROOM = 4096 };

/* A number at the start of a file, -1: none ("max", or no file). */
static int64_t read_number(const char *dir, const char *name)
{
    char path[PATH_ROOM + 64], text[64] = "";
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    char *got = fgets(text, sizeof text, f), *end;
    fclose(f);
    long long v = got ? strtoll(text, &end, 10) : 0;
    return got && end != text && v >= 0 ? v : -1;
}

static void bound(int64_t *room, char *why, int64_t bytes, const char *what, const char *where)
{
    if (bytes < 0)
        bytes = 0;
    if (bytes >= *room)
        return;
    *room = bytes;
    snprintf(why, MEMORY_ROOM_WHY, "%s%.180s", what, where);
}

static void machine(const char *proc, int64_t *room, char *why)
{
    char path[PATH_ROOM], line[256];
    long long kib;
    snprintf(path, sizeof path, "%s/meminfo", proc);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1 && kib >= 0)
            bound(room, why, kib < INT64_MAX / 1024 ? kib * 1024 : INT64_MAX, "MemAvailable", "");
    if (f)
        fclose(f);
}

/* What can be given back at once is no use of memory: the page cache counts as used there. */
static int64_t cache_of(const char *dir)
{
    char path[PATH_ROOM + 64], line[256];
    long long v, cache = 0;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %lld", &v) == 1 && v > 0)
            cache = v;
    if (f)
        fclose(f);
    return cache;
}

static void groups(const char *root, const char *path, const char *limit, const char *used,
                   int64_t *room, char *why)
{
    char dir[PATH_ROOM];
    size_t top = strlen(root);
    if (snprintf(dir, sizeof dir, "%s%s", root, path) >= (int)sizeof dir)
        return;
    for (;;) {
        int64_t most = read_number(dir, limit), now = read_number(dir, used);
        if (most >= 0 && now >= 0)
            bound(room, why, most - now + cache_of(dir), "the limit of the control group ",
                  dir[top] ? dir + top : "/");
        char *slash = strrchr(dir, '/');
        if (!slash || slash < dir + top)
            return;
        *slash = 0;
    }
}

int64_t memory_room(const char *proc, const char *cgroups, char why[MEMORY_ROOM_WHY])
{
    int64_t room = INT64_MAX;
    char path[PATH_ROOM], line[PATH_ROOM], v1[PATH_ROOM];
    snprintf(why, MEMORY_ROOM_WHY, "not known");
    machine(proc, &room, why);
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        if (!at)
            continue;
        *at++ = 0;
        names++;
        if (!*names)
            groups(cgroups, at, "memory.max", "memory.current", &room, why);
        else if (!strcmp(names, "memory") &&
                 snprintf(v1, sizeof v1, "%s/memory", cgroups) < (int)sizeof v1)
            groups(v1, at, "memory.limit_in_bytes", "memory.usage_in_bytes", &room, why);
    }
    if (f)
        fclose(f);
    return room;
}
