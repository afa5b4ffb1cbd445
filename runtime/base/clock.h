/* clock.h - monotonic time in milliseconds, and deadlines as points on it. */
#ifndef GTRAIN_BASE_CLOCK_H
#define GTRAIN_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Milliseconds since an arbitrary fixed point; never goes back. */
int64_t clock_ms(void);

/* The same in nanoseconds, for measuring. */
int64_t clock_ns(void);

/* Nanoseconds that the calling thread has computed: where it waits, or another thread has its core,
 * they stand still. */
int64_t clock_thread_ns(void);

/* Milliseconds left until the deadline (a clock_ms() value), clamped to [0, INT_MAX]: fits poll().
 */
int clock_left_ms(int64_t deadline_ms);

/* A deadline as pthread_cond_timedwait takes it, on CLOCK_MONOTONIC; one below 0 has passed too. */
struct timespec clock_point(int64_t deadline_ms);

#endif
