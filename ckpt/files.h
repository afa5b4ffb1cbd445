/* files.h - several ranks' files open at once, so that who reads from them in turn need not open
 * them anew each time. The one that was not used for longest is closed for another. */
#ifndef GTRAIN_CKPT_FILES_H
#define GTRAIN_CKPT_FILES_H

#include "ckpt.h"

enum { FILES_MOST = 16 };

struct files {
    int (*open)(void *arg, int number, struct ckpt_file **out, struct err *err);
    void *arg;
    int most; /* files_most() */
    int n;
    struct files_entry {
        int number;
        struct ckpt_file *file;
        int64_t used; /* when, in calls */
    } entries[FILES_MOST];
    int64_t calls;
};

/* How many may be open where so much state is filled from them: each has a block of memory. Pure.
 */
int files_most(int64_t state_bytes);

/* The file of that number, open until another call. NULL: err. */
struct ckpt_file *files_get(struct files *f, int number, struct err *err);

void files_close(struct files *f);

#endif
