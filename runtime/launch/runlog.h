/* runlog.h - DIR/coordinator.log: what happened in a launch, for people; bounded. */
#ifndef GTRAIN_LAUNCH_RUNLOG_H
#define GTRAIN_LAUNCH_RUNLOG_H

#include <stddef.h>

#include "launch/run.h"

enum {
    RUNLOG_LAUNCH_BYTES = 1048576, /* of one launch */
    RUNLOG_FILE_BYTES = 4194304,   /* a longer file is set aside as coordinator.log.old */
};

struct runlog {
    int fd; /* -1: no log */
    size_t bytes;
};

void runlog_open(struct runlog *log, const char *run_dir);
void runlog_close(struct runlog *log);
/* One line, with the time in front. A log that cannot be written stops nothing. */
void runlog_line(struct runlog *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line in DIR/events.jsonl, as the training writes them, too. */
void runlog_event(struct runlog *log, const char *run_dir, const char *kind, int64_t step,
                  const char *text);

/* DIR/placement.txt: which node has which ranks, and what crosses a switch. */
void runlog_placement(struct runlog *log, const char *run_dir, const struct run *run);

#endif
