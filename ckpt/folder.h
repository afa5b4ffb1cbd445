/* folder.h - the folder of a run's checkpoints on a node: open it safely, list what is ours. */
#ifndef GTRAIN_CKPT_FOLDER_H
#define GTRAIN_CKPT_FOLDER_H

#include "base/err.h"
#include "names.h"
#include "sys.h"

/* Makes the folder (and those above it) where missing, and opens it. Refused: a symbolic link in
 * its place, something that is no folder, a folder of another user. Returns the descriptor or -1.
 */
int folder_open_own(const char *dir, const struct ckpt_hook *hook, struct err *err);

/* Opens it for reading; *fd is -1 and the result 0 where nothing is there. A link or a file in its
 * place is an error. */
int folder_open_read(const char *dir, int *fd, struct err *err);

/* A writer says that it uses the folder, for as long as fd is open: then nobody prunes it. Waits a
 * few seconds for who does. A file system without locks goes without. */
int folder_use(int fd, const char *dir, struct err *err);

/* For who prunes: fails while anybody uses it. unsure: a file system without locks will do. */
int folder_take(int fd, const char *dir, bool unsure, struct err *err);

struct folder_entry {
    struct ckpt_name name;
    int64_t bytes;
};

struct folder_list {
    struct folder_entry *entries; /* regular files with names of ours, in no order */
    int n;
};

/* run: only that run's; NULL: all. */
int folder_list(int fd, const char *run, struct folder_list *out, struct err *err);
void folder_list_free(struct folder_list *l);

/* The whole of a file, NUL behind it, malloc'ed; at most `most` bytes, of a longer one the last.
 * -1 with errno as set. */
int folder_read(int fd, const char *name, int64_t most, char **text, int64_t *bytes);

#endif
