/* interval.h - how many steps lie between two checkpoints, or snapshots, where the plan says
 * `auto`.
 *
 * Young (1974), "A first order approximation to the optimum checkpoint interval": with a cost s a
 * checkpoint and a mean time M between failures the least time is lost at an interval of
 * sqrt(2 s M). s is what training is seen to wait for the copy. An interval is never shorter than a
 * write takes: the next copy would only wait for it.
 *
 * Of snapshots in memory that optimum would be minutes apart, and every failure would cost minutes,
 * for a saving that nobody sees: they are taken as often as they cost little (INTERVAL_SHARE). */
#ifndef GTRAIN_INTERVAL_H
#define GTRAIN_INTERVAL_H

#include <stddef.h>
#include <stdint.h>

enum {
    INTERVAL_FIRST = 10, /* steps, until a checkpoint's cost is known, or a snapshot's */
    INTERVAL_WINDOW = 9, /* measurements of which the median counts: one odd one does not */
};

struct interval_facts {
    double stall_s; /* of a checkpoint, of the rank that was held longest */
    double write_s; /* from the end of its copy until it is durable, likewise */
    double step_s;
    double mtbf_s; /* of the whole run */
};

/* Mean time between failures of a run on so many nodes. */
double interval_mtbf_s(double node_hours, int nodes);

/* At least 1. Pure. */
int64_t interval_steps(const struct interval_facts *facts);

/* "checkpoint every 37 steps: stall 2.1 ms, write 1.3 s, one failure per 12.4 days" */
void interval_text(const struct interval_facts *facts, int64_t steps, char *text, size_t size);

/* The most of the time that snapshots may take; and how many are taken before it is settled, at
 * most INTERVAL_FIRST steps apart, so that one odd one does not count and trying costs little, too.
 */
#define INTERVAL_SHARE 0.005
enum { INTERVAL_TRIED = 3 };

/* At least 1. Pure. */
int64_t interval_share_steps(double cost_s, double step_s);

/* "snapshot every 12 steps: 10 ms each, a step 180 ms" */
void interval_share_text(double cost_s, double step_s, int64_t steps, char *text, size_t size);

/* Measurements, the newest of each kind. Zero is none. */
struct interval_window {
    double value[INTERVAL_WINDOW];
    int n; /* ever */
};

void interval_note(struct interval_window *w, double value);
double interval_median(const struct interval_window *w); /* 0: none */

#endif
