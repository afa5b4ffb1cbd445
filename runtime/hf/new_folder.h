/* new_folder.h - a folder that comes into being whole or not at all.
 *
 * Until it is whole it stands beside its name, as NAME.part.PROCESS. In it lies a file,
 * .gtrain-part, that its maker keeps locked as long as it lives: so who makes a folder of that name
 * next can tell what a dead one has left, and removes it. The file gets its name only once it is
 * locked. What has no such file, or is another user's or another host's, or cannot be locked, is
 * left alone and told.
 */
#ifndef GTRAIN_HF_NEW_FOLDER_H
#define GTRAIN_HF_NEW_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct new_folder {
    char *path;      /* what it will be called */
    char *temp;      /* what it is called until then */
    int lock;        /* -1: the file system has no locks */
    bool over_empty; /* an empty folder has that name, and makes way at the end */
    char *left;      /* folders beside it that may be a dead maker's, ", " in between; NULL: none */
};

/* path must not be there yet, or be an empty folder, nor be made by a process that lives. What dead
 * ones have left of it is removed. 0, or -1 with err and nothing made; then end it either way. */
int new_folder_begin(struct new_folder *f, const char *path, struct err *err);

/* Has its file system room for so many bytes now? 0, or -1 with err. */
int new_folder_room(const struct new_folder *f, int64_t bytes, struct err *err);

/* All that was written into temp is durable (files synced by their writers): give it its name. On
 * failure it is removed. */
int new_folder_commit(struct new_folder *f, struct err *err);

/* Removes it, and all in it. */
void new_folder_abort(struct new_folder *f);

/* ---- what dead makers have left, on request ---- */

enum new_folder_maker {
    NEW_FOLDER_DEAD,    /* removed, unless dry_run */
    NEW_FOLDER_ALIVE,   /* is being made */
    NEW_FOLDER_AWAY,    /* made on another host, whose locks may not be seen here */
    NEW_FOLDER_UNKNOWN, /* it has no mark, or is another user's */
};

struct new_folder_prune {
    const char *dir;
    const char *name;  /* NAME.part.PROCESS of this NAME; NULL: of any, and none of the unknown */
    const char *whole; /* or just this NAME.part.PROCESS */
    bool dry_run;
    void (*tell)(void *arg, const char *path, enum new_folder_maker maker, int64_t bytes);
    void *arg;
};

/* A dir that is not there, or cannot be listed, is no error. 0, or -1 with err. */
int new_folder_prune(const struct new_folder_prune *p, struct err *err);

/* Is it a NAME.part.PROCESS? */
bool new_folder_is_part(const char *name);

#endif
