/* ckpt_reshard.c - `gtrain ckpt reshard`: a checkpoint, written again in another layout, as a run
 * folder of its own. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number.h"
#include "cli/ckpt_place.h"
#include "cli/interrupt.h"
#include "hf/new_folder.h"
#include "launch/rundir.h"
#include "train/rewrite.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/train.h"

/* Where the run folder that is made has its checkpoints, whatever the plan says. */
#define TARGET_SHARED "checkpoints"

static const char help[] =
    "usage: gtrain ckpt reshard [--step N] SRC DST --plan PLAN[,key=value...]\n"
    "\n"
    "Write a checkpoint of SRC, a run folder or a folder of checkpoints that holds the files of "
    "all\n"
    "ranks, once more in the layout of PLAN, which differs from the run's own plan in parallel,\n"
    "checkpoint and resilience alone. DST, new or empty, becomes a run folder of its own, from "
    "which\n"
    "gtrain train goes on as it would have from SRC.\n"
    "\n"
    "  --plan PLAN  the plan, and values that override it\n"
    "  --step N     of the checkpoint (default: the newest committed)\n";

struct request {
    const char *source, *target, *spec;
    int64_t step;
    struct place place;    /* what SRC leads to */
    struct run_folder run; /* SRC, where it is a run folder */
    const char *tiers[2];  /* then */
    struct weights_source from;
    struct plan *plan;
    const atomic_bool *stop;
};

/* ---- SRC ---- */

static int find_run(struct request *q, struct err *err)
{
    const char *dirs[2] = {q->run.local, q->run.shared};
    for (int i = 0; i < 2; i++)
        if (*dirs[i] && !access(dirs[i], F_OK))
            q->tiers[q->from.n_dirs++] = dirs[i];
    if (!q->from.n_dirs)
        return err_set(err, "%s: the run's checkpoints are not on this machine", q->source);
    q->from.dirs = q->tiers;
    q->from.run_id = q->run.run_id;
    return 0;
}

static int find_source(struct request *q, struct err *err)
{
    if (run_folder_is(q->source))
        return run_folder_open(&q->run, q->source, NULL, err) || find_run(q, err) ? -1 : 0;
    if (place_find(&q->place, q->source, err))
        return -1;
    if (q->place.n_runs != 1)
        return err_set(err,
                       q->place.n_runs ? "%s holds checkpoints of several runs: name the folder of "
                                         "one"
                                       : "%s: there are no checkpoints here or one level below",
                       q->source);
    q->from = (struct weights_source){.dirs = (const char *const *)q->place.folders,
                                      .n_dirs = q->place.n_folders,
                                      .run_id = q->place.runs[0]};
    return 0;
}

/* ---- DST ---- */

/* What the plan says, but for where checkpoints are shared: in DST. */
static int load_plan(struct request *q, struct err *err)
{
    char *spec;
    if (asprintf(&spec, "%s,checkpoint.shared=" TARGET_SHARED, q->spec) < 0)
        return err_set(err, "no memory");
    q->plan = session_load_plan(spec, err);
    free(spec);
    return q->plan ? train_check(q->plan, err) : -1;
}

static int write_plan(const struct request *q, const char *folder, struct err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    FILE *out = fopen(path, "wxe");
    if (!out)
        return err_set_errno(err, errno, "%s", path);
    fputs(q->plan->text, out);
    int rv = fflush(out) || ferror(out) || fsync(fileno(out))
                 ? err_set_errno(err, errno, "%s", path)
                 : 0;
    fclose(out);
    return rv;
}

static void tell(void *arg, int rank, int64_t bytes)
{
    char size[NUMBER_BYTES];
    const struct request *q = arg;
    if (!interrupt_may_print())
        return;
    printf("  rank %d of %d: %s\n", rank, q->plan->world, number_size((double)bytes, size));
    fflush(stdout);
}

static int fill_folder(struct request *q, struct rewrite *r, const char *folder, struct err *err)
{
    char dir[PATH_MAX], run_id[RUNDIR_ID_BYTES];
    struct rewrite_target target = {
        .dir = dir, .run_id = run_id, .tell = tell, .arg = q, .stop = q->stop};
    int lock = rundir_lock(folder, err);
    if (lock < 0)
        return -1;
    int rv = write_plan(q, folder, err) || rundir_next_epoch(folder, run_id, &target.epoch, err);
    if (!rv &&
        snprintf(dir, sizeof dir, "%s/" TARGET_SHARED "/%s", folder, run_id) >= (int)sizeof dir)
        rv = err_set(err, "the path %.64s... is too long", folder);
    if (!rv)
        rv = rewrite_write(r, &target, err);
    close(lock);
    return rv ? -1 : 0;
}

/* 0, or the exit code with err. */
static int make_folder(struct request *q, struct rewrite *r, struct err *err)
{
    struct new_folder folder;
    int64_t bytes = rewrite_bytes(r, err);
    if (bytes < 0 || new_folder_begin(&folder, q->target, err))
        return EXIT_USAGE;
    if (folder.left)
        cli_error("reshard: note: %s may be what another one left when it was killed; if nobody is "
                  "writing there, remove it",
                  folder.left);
    if (!new_folder_room(&folder, bytes, err) && !fill_folder(q, r, folder.temp, err))
        return new_folder_commit(&folder, err) ? EXIT_FAILED : EXIT_OK;
    new_folder_abort(&folder);
    return EXIT_FAILED;
}

static int reshard(struct request *q, struct err *err)
{
    struct rewrite r = {.plan = NULL};
    int code = EXIT_USAGE;
    if (load_plan(q, err) || find_source(q, err))
        return code;
    if (!rewrite_open(&r, &q->from, q->step, q->plan, err)) {
        printf("%s: step %" PRId64 " of %d ranks, for %d\n", q->source, r.decision.position.step,
               r.decision.world, q->plan->world);
        code = make_folder(q, &r, err);
    }
    rewrite_close(&r);
    return code;
}

static int take_step(struct request *q, const char *text)
{
    char *end;
    errno = 0;
    q->step = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && q->step >= 0)
        return 0;
    cli_error("reshard: --step is %s: use a whole number from 0", text);
    return -1;
}

static int read_options(struct request *q, int argc, char **argv)
{
    static const struct option options[] = {
        {"plan", required_argument, NULL, 'p'}, {"step", required_argument, NULL, 's'}, {0}};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        if (option == 'p')
            q->spec = optarg;
        else if (option != 's' || take_step(q, optarg))
            return -1;
    if (argc - optind != 2 || !q->spec) {
        cli_error(
            "reshard: SRC, DST and --plan PLAN are expected, %d folders and %s plan given: see "
            "gtrain ckpt reshard --help",
            argc - optind, q->spec ? "a" : "no");
        return -1;
    }
    if (!*argv[optind]) {
        cli_error("reshard: the name given is empty");
        return -1;
    }
    q->source = argv[optind];
    q->target = argv[optind + 1];
    return 0;
}

int cli_ckpt_reshard(int argc, char **argv)
{
    struct request q = {.step = -1};
    struct err err;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(help, stdout);
            return EXIT_OK;
        }
    if (read_options(&q, argc, argv))
        return EXIT_USAGE;
    q.stop = interrupt_catch();
    int code = reshard(&q, &err);
    if (code)
        cli_error("reshard: %s", atomic_load(q.stop) ? "interrupted: nothing was made" : err.text);
    interrupt_release(!code);
    if (!code)
        printf("%s: a run folder. To go on from it:\n"
               "    gtrain train --plan %s/plan.yaml --dir %s\n",
               q.target, q.target, q.target);
    plan_free(q.plan);
    run_folder_close(&q.run);
    place_free(&q.place);
    return code;
}
