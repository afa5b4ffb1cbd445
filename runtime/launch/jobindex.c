/* jobindex.c - see jobindex.h. A line is written at once, by append: two jobs that start together
 * do not mix theirs. */
#include "launch/jobindex.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = PATH_MAX + 64 };

int jobindex_folder(const char *home, char *path, size_t room)
{
    const char *state = *home ? NULL : getenv("XDG_STATE_HOME");
    int n;
    if (state && *state == '/') {
        n = snprintf(path, room, "%s/gtrain", state);
        return n < (int)room ? 0 : -1;
    }
    if (!*home)
        home = getenv("HOME");
    if (!home || *home != '/') {
        const struct passwd *me = getpwuid(getuid());
        home = me ? me->pw_dir : NULL;
    }
    if (!home || *home != '/')
        return -1;
    n = snprintf(path, room, "%s/.local/state/gtrain", home);
    return n < (int)room ? 0 : -1;
}

static int make_folders(const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/", folder) >= (int)sizeof path)
        return -1;
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(path, 0700) && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return 0;
}

int jobindex_add(const char *folder, const char *job, const char *run_dir)
{
    char path[PATH_MAX], old[PATH_MAX], line[LINE_BYTES];
    struct stat st;
    int n = snprintf(line, sizeof line, "%s %s\n", job, run_dir);
    if (n >= (int)sizeof line || strpbrk(job, " \n") || strchr(run_dir, '\n') ||
        make_folders(folder) ||
        snprintf(path, sizeof path, "%s/jobs", folder) >= (int)sizeof path ||
        snprintf(old, sizeof old, "%s/jobs.old", folder) >= (int)sizeof old)
        return -1;
    if (!stat(path, &st) && st.st_size > JOBINDEX_FILE_BYTES)
        rename(path, old);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -1;
    int bad = write(fd, line, (size_t)n) != n;
    close(fd);
    return bad ? -1 : 0;
}

/* The last line of the file that is about the job. */
static int find_in(const char *path, const char *job, char *run_dir, size_t room)
{
    char line[LINE_BYTES];
    size_t length = strlen(job);
    int found = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
    if (!in && fd >= 0)
        close(fd);
    while (in && fgets(line, sizeof line, in)) {
        size_t end = strcspn(line, "\n");
        if (!line[end] || strncmp(line, job, length) != 0 || line[length] != ' ' ||
            line[length + 1] != '/') /* cut short by a full disk, or another's */
            continue;
        line[end] = 0;
        found |= snprintf(run_dir, room, "%s", line + length + 1) < (int)room;
    }
    if (in)
        fclose(in);
    return found;
}

int jobindex_find(const char *folder, const char *job, char *run_dir, size_t room)
{
    static const char *const names[] = {"jobs", "jobs.old"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) < (int)sizeof path &&
            find_in(path, job, run_dir, room))
            return 1;
    return 0;
}
