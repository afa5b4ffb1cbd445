/* memory_room.h - how much memory this process may still take: what the machine has available, and
 * what is left below the limits of the control groups it is in. */
#ifndef GTRAIN_MEMORY_ROOM_H
#define GTRAIN_MEMORY_ROOM_H

#include <stdint.h>

enum { MEMORY_ROOM_WHY = 256 };

/* In bytes; INT64_MAX: not known. why: what sets the bound, for people. proc and cgroups are /proc
 * and /sys/fs/cgroup (tests have others). */
int64_t memory_room(const char *proc, const char *cgroups, char why[MEMORY_ROOM_WHY]);

#endif
