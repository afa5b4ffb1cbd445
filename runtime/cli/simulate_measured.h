/* simulate_measured.h - constants for `gtrain simulate` that were measured: listed in a file with
 * where each comes from, or taken from what a run has gone through. */
#ifndef GTRAIN_SIMULATE_MEASURED_H
#define GTRAIN_SIMULATE_MEASURED_H

#include "base/err.h"

enum { MEASURED_MOST = 32, MEASURED_NAME_BYTES = 32, MEASURED_FROM_BYTES = 160 };

struct measured_value {
    char name[MEASURED_NAME_BYTES]; /* of the option that it stands for, without "--" */
    char value[32];                 /* as it would stand behind that option */
    char from[MEASURED_FROM_BYTES]; /* for people */
};

struct measured {
    struct measured_value values[MEASURED_MOST];
    int n;
};

/* path: a file of lines "NAME VALUE WHERE-FROM", # begins a comment; or a run's folder, whose
 * takeovers and checkpoints are measured. -1: err says what is wrong, with the line. */
int measured_read(struct measured *m, const char *path, struct err *err);

#endif
