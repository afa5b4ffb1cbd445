/* ckpt_place.c - see ckpt_place.h. */
#include "cli/ckpt_place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"

static int add_text(char ***list, int *n, const char *text)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp((*list)[i], text))
            return 0;
    char **more = reallocarray(*list, (size_t)*n + 1, sizeof *more);
    if (!more)
        return -1;
    *list = more;
    if (!(more[*n] = strdup(text)))
        return -1;
    ++*n;
    return 0;
}

void place_free(struct place *p)
{
    for (int i = 0; i < p->n_folders; i++)
        free(p->folders[i]);
    for (int i = 0; i < p->n_runs; i++)
        free(p->runs[i]);
    free(p->folders);
    free(p->runs);
}

/* Adds the folder if anything of ours is in it. */
static int look_into(struct place *p, const char *folder, struct err *err)
{
    struct folder_list list;
    int fd, rv = 0;
    if (folder_open_read(folder, &fd, err))
        return -1;
    if (fd < 0)
        return err_set_errno(err, ENOENT, "%s", folder);
    if (folder_list(fd, NULL, &list, err)) {
        close(fd);
        return -1;
    }
    for (int i = 0; i < list.n && !rv; i++)
        rv = add_text(&p->runs, &p->n_runs, list.entries[i].name.run);
    if (list.n && !rv)
        rv = add_text(&p->folders, &p->n_folders, folder);
    folder_list_free(&list);
    close(fd);
    return rv ? err_set(err, "out of memory") : 0;
}

static int look_below(struct place *p, const char *dir, struct err *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_set_errno(err, errno, "%s", dir);
    int rv = 0;
    for (struct dirent *e; !rv && (e = readdir(d));) {
        char path[PATH_MAX];
        struct stat st;
        struct err unused; /* a folder that we may not read is not ours */
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
            !S_ISDIR(st.st_mode))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        look_into(p, path, &unused);
    }
    closedir(d);
    return rv;
}

int place_find(struct place *p, const char *dir, struct err *err)
{
    *p = (struct place){.n_runs = 0};
    return look_into(p, dir, err) || look_below(p, dir, err) ? -1 : 0;
}
