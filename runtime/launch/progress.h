/* progress.h - does the run get anywhere, and who holds it up? Pure, like run.h.
 *
 * Ranks of a training step wait for each other, so when one hangs, all stop within a step or two.
 * The run is then stalled: nobody has reported anything for much longer than steps take. Who is the
 * cause does not show in the reports. So the agents are asked twice what their workers are doing:
 * one that was stopped by a signal, or computes while the others sleep, or whose agent does not
 * answer, is the one. If none stands out, the rank that is furthest behind is named.
 *
 * A slow rank is no hung one: the run goes on, at that rank's speed. It is told apart by the time
 * of its own that each step costs it, the waits for others not counted, and only named. */
#ifndef GTRAIN_LAUNCH_PROGRESS_H
#define GTRAIN_LAUNCH_PROGRESS_H

#include <stdint.h>

struct run;

enum {
    PROGRESS_STEPS = 64,     /* whose times are remembered */
    PROGRESS_MEDIANS = 10,   /* a step may take so many times the median of those */
    PROGRESS_LONGEST = 3,    /* or so many times the longest: some save, some validate */
    PROGRESS_LOOK_MS = 500,  /* between the two looks, and after the second */
    PROGRESS_SLOW_EVERY = 16 /* steps between two looks for slow ranks */
};

/* In struct run. */
struct progress {
    int64_t step, at;                /* furthest in this generation, and the last sign of life */
    int64_t took_ms[PROGRESS_STEPS]; /* a ring */
    int n;                           /* ever */
    int64_t step_at;                 /* when `step` was reached */
    int looks;                       /* asked for */
    int64_t looked_at;
    int asked;       /* the coordinator has sent so many */
    int signalled;   /* the step is told to end: what follows takes what it takes */
    int64_t checked; /* step of the last look for slow ranks */
    char slow[256];  /* a slow rank that was not told yet, "" none */
};

/* In struct run_rank. */
struct progress_rank {
    int looks;         /* answered */
    char state;        /* as in /proc: R, S, D, T, ... */
    int64_t cpu_ms[2]; /* at each look */
    double busy_ms;    /* of its own a step, a running mean; 0: not known */
    int slow;          /* looks in a row in which it was */
};

/* A rank has reported. busy_us: of its own since the report before, 0: not known. */
void progress_note(struct run *run, uint32_t rank, int64_t step, uint32_t busy_us, int64_t now);

/* How long the run may be without a report; INT64_MAX: it is not watched (yet, or any more). */
int64_t progress_deadline_ms(const struct run *run);

/* An agent's answer to a look. */
void progress_seen(struct run *run, uint32_t rank, char state, int64_t cpu_ms);

/* Time passes: ask (progress.looks grows), and at last fail the run's generation. */
void progress_tick(struct run *run, int64_t now);

#endif
