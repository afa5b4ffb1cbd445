/* ckpt_place.h - the folders of checkpoints that a path leads to. */
#ifndef GTRAIN_CLI_CKPT_PLACE_H
#define GTRAIN_CLI_CKPT_PLACE_H

#include "base/err.h"

/* Folders with checkpoints in or directly below a folder, and the runs in them. */
struct place {
    char **folders, **runs;
    int n_folders, n_runs;
};

/* 0 also where there are none; place_free after either. */
int place_find(struct place *p, const char *dir, struct err *err);
void place_free(struct place *p);

#endif
