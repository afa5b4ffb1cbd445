/* interrupt.h - long work that is stopped by a signal clears away what it has half made. */
#ifndef GTRAIN_CLI_INTERRUPT_H
#define GTRAIN_CLI_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

/* From now on SIGINT, SIGTERM, SIGHUP and SIGPIPE (those that were not ignored) make the flag true
 * instead of ending the process; a second one of the same kind ends it at once. A file that grows
 * too large for the process' limit is an error of write, no signal. */
const atomic_bool *interrupt_catch(void);

/* Waits until standard output takes a line without waiting; false: a signal came before or
 * meanwhile. Where nobody reads, a signal that came just before a line was printed would not end
 * the wait. */
bool interrupt_may_print(void);

/* As before. If one came, and the work is not done all the same, the process ends by it here, so
 * that who waits for it sees that. */
void interrupt_release(bool done);

#endif
