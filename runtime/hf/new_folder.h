/* new_folder.h - a folder that comes into being whole or not at all.
 *
 * Until it is whole it stands beside its name, as NAME.part.PROCESS. In it lies a file,
 * .gtrain-part, that its maker keeps locked as long as it lives: so who makes a folder of that name
 * next can tell what a dead one has left, and removes it. The file gets its name only once it is
 * locked. What has no such file, or is another user's, or cannot be locked, is left alone and told.
 */
#ifndef GTRAIN_HF_NEW_FOLDER_H
#define GTRAIN_HF_NEW_FOLDER_H

#include "base/err.h"

struct new_folder {
    char *path; /* what it will be called */
    char *temp; /* what it is called until then */
    int lock;   /* -1: the file system has no locks */
    char *left; /* folders beside it that may be a dead maker's, ", " in between; NULL: none */
};

/* path must not be there yet, nor be made by a process that lives. What dead ones have left of it
 * is removed. 0, or -1 with err and nothing made; then end it either way. */
int new_folder_begin(struct new_folder *f, const char *path, struct err *err);

/* All that was written into temp is durable (files synced by their writers): give it its name. On
 * failure it is removed. */
int new_folder_commit(struct new_folder *f, struct err *err);

/* Removes it, and all in it. */
void new_folder_abort(struct new_folder *f);

#endif
