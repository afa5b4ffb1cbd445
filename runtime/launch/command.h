/* command.h - running somebody else's command to its end, within a deadline, with nothing of ours
 * handed on; and a process of its own for what must not hold up the caller. */
#ifndef GTRAIN_LAUNCH_COMMAND_H
#define GTRAIN_LAUNCH_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Run argv[0] (looked for in PATH) with nothing on its standard input, and take what it writes to
 * both outputs, cut at room. 0, or -1 with its first line, or why it did not run, or that it took
 * longer than deadline_ms: then it is killed, with all that it started and that stayed in its
 * process group. */
int command_run(char *const argv[], int deadline_ms, char *text, size_t room, struct err *err);

/* What the command has written so far, cut at room, until it has closed (0) or the deadline of
 * clock_ms() has come (-1). */
int command_read(int fd, char *text, size_t room, int64_t deadline);

void command_close_above_stderr(void);

/* Call work(fd, arg) in a process of its own: a session of its own, no signal to the step ends it,
 * and of the caller's descriptors only a copy of `fd` is left, which closes on exec; -1: none. The
 * caller neither waits for it nor has a child of it. -1: no process. */
int command_detach(int fd, void (*work)(int fd, void *arg), void *arg);

#endif
