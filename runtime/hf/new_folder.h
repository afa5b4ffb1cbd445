/* new_folder.h - a folder that comes into being whole or not at all. */
#ifndef GTRAIN_HF_NEW_FOLDER_H
#define GTRAIN_HF_NEW_FOLDER_H

#include "base/err.h"

struct new_folder {
    char *path; /* what it will be called */
    char *temp; /* what it is called until then: beside it, PATH.part.PROCESS */
};

/* path must not be there yet. 0, or -1 with err and nothing made; then end it either way. */
int new_folder_begin(struct new_folder *f, const char *path, struct err *err);

/* All that was written into temp is durable (files synced by their writers): give it its name. On
 * failure it is removed. */
int new_folder_commit(struct new_folder *f, struct err *err);

/* Removes it, and all in it. */
void new_folder_abort(struct new_folder *f);

#endif
