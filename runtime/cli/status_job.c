/* status_job.c - looks in the index that coordinators keep for this user, then, as Slurm tells who
 * the job's owner is, in the owner's. The folder itself has the last word on whose it is. */
#include "cli/status_job.h"

#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "launch/command.h"
#include "launch/jobindex.h"
#include "launch/runstate.h"

enum { ASK_MS = 10000, ANSWER_BYTES = 8192, NAME_BYTES = 256 };

bool status_is_job(const char *text)
{
    struct stat st;
    size_t digits = strspn(text, "0123456789");
    return digits && !text[digits] && digits < 16 && stat(text, &st);
}

/* In "... UserId=ann(1000) ...": ann's home, "" if that is not to be had. */
static void find_home(const char *job, char *home, size_t room)
{
    char answer[ANSWER_BYTES], name[NAME_BYTES];
    char *argv[] = {"scontrol", "show", "job", "--oneliner", (char *)job, NULL};
    home[0] = 0;
    if (command_run(argv, ASK_MS, answer, sizeof answer, NULL))
        return;
    const char *at = strstr(answer, " UserId=");
    if (!at || sscanf(at, " UserId=%255[^( ]", name) != 1)
        return;
    const struct passwd *owner = getpwnam(name);
    if (owner)
        snprintf(home, room, "%s", owner->pw_dir);
}

static bool find_for(const char *home, const char *job, char *dir, size_t room)
{
    char folder[PATH_MAX];
    return !jobindex_folder(home, folder, sizeof folder) && jobindex_find(folder, job, dir, room);
}

int status_find_job(const char *job, char *dir, size_t room, struct err *err)
{
    char home[PATH_MAX];
    struct runstate r;
    if (!find_for("", job, dir, room)) {
        find_home(job, home, sizeof home);
        if (!*home || !find_for(home, job, dir, room))
            return err_set(err,
                           "no run folder of job %s is known here: name the folder (it is the "
                           "plan's run.dir, or --gtrain-dir)",
                           job);
    }
    int known = runstate_read(&r, dir, err);
    if (known < 0)
        return -1;
    int same = known && !strcmp(r.job, job);
    if (!same)
        err_set(err, "job %s used %s, which is %s%s by now: `gtrain status %s` shows that", job,
                dir, known ? "the folder of job " : "no run's folder", known ? r.job : "", dir);
    runstate_free(&r);
    return same ? 0 : -1;
}
