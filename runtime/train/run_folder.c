/* run_folder.c - see run_folder.h. */
#include "train/run_folder.h"

#include <stdio.h>
#include <sys/stat.h>

bool run_folder_is(const char *dir)
{
    char path[4160];
    struct stat st;
    return snprintf(path, sizeof path, "%s/run.json", dir) < (int)sizeof path && !stat(path, &st);
}

/* root/run_id; root may be relative to the run folder. */
static int place(char out[4096], const char *dir, const char *root, const char *run_id,
                 struct err *err)
{
    bool below = *root != '/';
    if (snprintf(out, 4096, "%s%s%s/%s", below ? dir : "", below ? "/" : "", root, run_id) < 4096)
        return 0;
    return err_set(err, "the path %.64s... is too long", root);
}

int run_folder_open(struct run_folder *f, const char *dir, const char *plan_path, struct err *err)
{
    char path[4160];
    *f = (struct run_folder){.plan = NULL};
    if (rundir_read_id(dir, f->run_id, err))
        return -1;
    snprintf(path, sizeof path, "%s/plan.yaml", dir);
    f->plan = plan_load(plan_path ? plan_path : path, NULL, 0, NULL, err);
    if (!f->plan)
        return -1;
    const struct plan_checkpoint *c = &f->plan->checkpoint;
    if (c->local && place(f->local, dir, c->local, f->run_id, err))
        return -1;
    return c->shared ? place(f->shared, dir, c->shared, f->run_id, err) : 0;
}

void run_folder_close(struct run_folder *f)
{
    plan_free(f->plan);
    f->plan = NULL;
}
