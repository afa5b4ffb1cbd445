/* files.c - see files.h. */
#include "files.h"

#include "crc.h"

enum {
    STATE_PART = 32, /* of the state, for the files' memory at most; but */
    LEAST = 2,
};

int files_most(int64_t state_bytes)
{
    int64_t most = state_bytes / STATE_PART / CKPT_CRC_BLOCK;
    return most < LEAST ? LEAST : most > FILES_MOST ? FILES_MOST : (int)most;
}

/* Where to put another: a free place, or that of the one not used for longest. */
static struct files_entry *make_room(struct files *f)
{
    if (f->n < f->most)
        return &f->entries[f->n++];
    struct files_entry *oldest = &f->entries[0];
    for (int i = 1; i < f->n; i++)
        if (f->entries[i].used < oldest->used)
            oldest = &f->entries[i];
    ckpt_file_close(oldest->file);
    return oldest;
}

struct ckpt_file *files_get(struct files *f, int number, struct err *err)
{
    struct ckpt_file *file = NULL;
    f->calls++;
    for (int i = 0; i < f->n; i++)
        if (f->entries[i].number == number) {
            f->entries[i].used = f->calls;
            return f->entries[i].file;
        }
    if (f->open(f->arg, number, &file, err))
        return NULL;
    *make_room(f) = (struct files_entry){number, file, f->calls};
    return file;
}

void files_close(struct files *f)
{
    for (int i = 0; i < f->n; i++)
        ckpt_file_close(f->entries[i].file);
    f->n = 0;
}
