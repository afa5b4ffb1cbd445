#include "base/clock.h"

#include <limits.h>
#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}

int clock_left_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - clock_ms();
    if (left < 0)
        return 0;
    return left > INT_MAX ? INT_MAX : (int)left;
}

struct timespec clock_point(int64_t deadline_ms)
{
    if (deadline_ms < 0)
        deadline_ms = 0;
    return (struct timespec){.tv_sec = deadline_ms / 1000,
                             .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
}
