/* ckpt_prune.c - `gtrain ckpt prune`: drop what no restore needs any more (prune.h has the rule).
 *
 * Of a run folder the run's lock is held meanwhile, so no launch of it can begin; the folders of
 * both tiers that this machine sees are pruned, each by its own keep. Any other folder is pruned
 * where its file system can tell that no writer has it open. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"
#include "cli/ckpt_place.h"
#include "hf/new_folder.h"
#include "launch/rundir.h"
#include "plan/keys.h"
#include "prune.h"
#include "train/run_folder.h"

enum { PRUNE_KEEP = 2 }; /* also the plan's default */

static const char help[] =
    "usage: gtrain ckpt prune [--keep N] [--dry-run] DIR\n"
    "\n"
    "Drop from DIR, a run folder or a folder of checkpoints that no run is using: committed\n"
    "checkpoints beyond the newest N, older files that were never committed, and halves that dead\n"
    "writers left. And the folders NAME.part.PROCESS, in DIR or of DIR's own NAME, that import,\n"
    "export and reshard left when they were killed; DIR may be one of these itself. What is not\n"
    "gtrain's is not touched.\n"
    "\n"
    "  --keep N    committed checkpoints that stay, 2 or more (default: of a run folder what its\n"
    "              plan keeps, else 2)\n"
    "  --dry-run   only say what would go\n";

struct request {
    const char *dir;
    int keep; /* -1: the default */
    bool dry_run, locked;
    int parts;   /* halves of folders: found, and gone or to go */
    bool whole;  /* dir itself is asked about, */
    bool ended;  /* and it is such a half: there is nothing else to do, */
    bool in_use; /* or may be, so that it stays */
};

/* ---- folders that were half made ---- */

static bool holds_checkpoints(const char *path)
{
    struct place p;
    struct err unused;
    if (run_folder_is(path))
        return true;
    bool holds = !place_find(&p, path, &unused) && p.n_runs > 0;
    place_free(&p);
    return holds;
}

static void tell_part(void *arg, const char *path, enum new_folder_maker maker, int64_t bytes)
{
    struct request *q = arg;
    char size[NUMBER_BYTES], shown[PATH_MAX];
    bool holds = maker == NEW_FOLDER_UNKNOWN && holds_checkpoints(path);
    if (holds && q->whole)
        return; /* its name is all that is like a half */
    plan_shown(path, shown, sizeof shown);
    number_size((double)bytes, size);
    q->parts++;
    q->ended = q->whole && maker != NEW_FOLDER_UNKNOWN;
    q->in_use = q->ended && maker != NEW_FOLDER_DEAD;
    if (maker == NEW_FOLDER_DEAD)
        printf("%s %s (%s): half made by a process that is gone\n",
               q->dry_run ? "would drop" : "dropped", shown, size);
    else if (maker == NEW_FOLDER_ALIVE)
        printf("%s (%s): is being made, stays\n", shown, size);
    else if (maker == NEW_FOLDER_AWAY)
        printf("%s (%s): was begun on another host and may still be written to, stays; prune it on "
               "that host\n",
               shown, size);
    else if (holds)
        printf("%s (%s): has checkpoints and no maker's mark, stays\n", shown, size);
    else
        printf(
            "%s (%s): cannot be told from somebody else's, stays; if nobody writes there, remove "
            "it\n",
            shown, size);
}

/* dir itself, if it is a NAME.part.PROCESS that some maker has marked; else those below it, and
 * beside it those of its own name. */
static int prune_parts(struct request *q, struct err *err)
{
    char *copies[2] = {strdup(q->dir), strdup(q->dir)};
    const char *name = copies[0] ? basename(copies[0]) : NULL;
    struct new_folder_prune p = {.dry_run = q->dry_run, .tell = tell_part, .arg = q};
    int rv = name && copies[1] ? 0 : err_set(err, "no memory");
    if (!rv)
        p.dir = dirname(copies[1]);
    if (!rv && new_folder_is_part(name)) {
        p.whole = name;
        q->whole = true;
        rv = new_folder_prune(&p, err);
        p.whole = NULL;
        q->whole = false;
    }
    if (!rv && !q->ended) {
        p.name = name;
        rv = new_folder_prune(&p, err);
    }
    if (!rv && !q->ended) {
        p.dir = q->dir;
        p.name = NULL;
        rv = new_folder_prune(&p, err);
    }
    free(copies[0]);
    free(copies[1]);
    return rv;
}

/* ---- checkpoints ---- */

static void tell(void *arg, const char *name, int64_t bytes, const char *why)
{
    const struct request *q = arg;
    char size[NUMBER_BYTES];
    printf("  %s %s (%s): %s\n", q->dry_run ? "would drop" : "dropped", name,
           number_size((double)bytes, size), why);
}

static int prune_one(struct request *q, const char *folder, const char *run, int keep)
{
    struct prune_options o = {.dir = folder,
                              .run = run,
                              .keep = keep,
                              .dry_run = q->dry_run,
                              .locked = q->locked,
                              .tell = tell,
                              .arg = q};
    struct prune_result result;
    struct err err;
    char size[NUMBER_BYTES], shown[PATH_MAX];
    plan_shown(folder, shown, sizeof shown);
    printf("%s, run %s\n", shown, run);
    if (prune_folder(&o, &result, &err)) {
        cli_error("prune: %s", err.text);
        return EXIT_FAILED;
    }
    printf("  %d files, %s, %s; %d committed checkpoint%s here whole\n", result.files,
           number_size((double)result.bytes, size), q->dry_run ? "would go" : "are gone",
           result.good < keep ? result.good : keep,
           (result.good < keep ? result.good : keep) == 1 ? " stays" : "s stay");
    return EXIT_OK;
}

/* All folders and runs at or below dir. */
static int prune_place(struct request *q, const char *dir, int keep)
{
    struct place p;
    struct err err;
    int rv = EXIT_OK;
    if (place_find(&p, dir, &err)) {
        cli_error("prune: %s", err.text);
        rv = EXIT_USAGE;
    } else if (!p.n_runs && !q->parts) {
        cli_error("prune: %s: there are no checkpoints here or one level below", dir);
        rv = EXIT_USAGE;
    }
    for (int f = 0; rv == EXIT_OK && f < p.n_folders; f++)
        for (int r = 0; rv == EXIT_OK && r < p.n_runs; r++)
            rv = prune_one(q, p.folders[f], p.runs[r], keep);
    place_free(&p);
    return rv;
}

/* What the plan keeps of a tier; 0 (all) is more than there are. */
static int tier_keep(const struct request *q, int plan_keep)
{
    if (q->keep >= 0)
        return q->keep;
    return plan_keep == 0 ? INT_MAX : plan_keep < PRUNE_KEEP ? PRUNE_KEEP : plan_keep;
}

static int prune_run(struct request *q, const struct run_folder *f)
{
    const struct plan_checkpoint *c = &f->plan->checkpoint;
    const char *dirs[2] = {f->local, f->shared};
    int keeps[2] = {c->keep, *f->local ? c->shared_keep : c->keep}, n = 0, rv = EXIT_OK;
    for (int i = 0; rv == EXIT_OK && i < 2; i++) {
        if (!*dirs[i])
            continue;
        if (access(dirs[i], F_OK)) {
            printf("%s: not on this machine, or nothing written yet\n", dirs[i]);
            continue;
        }
        n++;
        rv = prune_place(q, dirs[i], tier_keep(q, keeps[i]));
    }
    if (n || rv != EXIT_OK)
        return rv;
    cli_error("prune: %s: the run's checkpoints are not on this machine%s", q->dir,
              *f->local ? ": run this on its nodes (srun)" : "");
    return EXIT_FAILED;
}

static int prune_run_folder(struct request *q)
{
    struct run_folder f;
    struct err err;
    int lock = -1, rv = EXIT_USAGE;
    if (run_folder_open(&f, q->dir, NULL, &err)) {
        cli_error("prune: %s", err.text);
    } else if ((lock = rundir_lock(q->dir, &err)) < 0) {
        cli_error("prune: %s", err.text);
        rv = EXIT_FAILED;
    } else {
        q->locked = true;
        rv = prune_run(q, &f);
    }
    if (lock >= 0)
        close(lock);
    run_folder_close(&f);
    return rv;
}

static int take_keep(struct request *q, const char *text)
{
    char *end;
    errno = 0;
    long keep = strtol(text, &end, 10);
    if (end == text || *end || errno || keep < 2 || keep > INT_MAX) {
        cli_error("prune: --keep is %s: use 2 (one may be damaged) or more", text);
        return -1;
    }
    q->keep = (int)keep;
    return 0;
}

int cli_ckpt_prune(int argc, char **argv)
{
    static const struct option options[] = {{"keep", required_argument, NULL, 'k'},
                                            {"dry-run", no_argument, NULL, 'n'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct request q = {.keep = -1};
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            return EXIT_OK;
        }
        if (option == 'n')
            q.dry_run = true;
        else if (option != 'k' || take_keep(&q, optarg))
            return EXIT_USAGE;
    }
    if (argc - optind != 1) {
        cli_error("prune: one DIR is expected, %d given: see gtrain ckpt prune --help",
                  argc - optind);
        return EXIT_USAGE;
    }
    q.dir = argv[optind];
    struct err err;
    if (!*q.dir || prune_parts(&q, &err)) {
        cli_error("prune: %s", *q.dir ? err.text : "the name given is empty");
        return *q.dir ? EXIT_FAILED : EXIT_USAGE;
    }
    if (q.ended || (q.parts && access(q.dir, F_OK)))
        return q.in_use ? EXIT_FAILED : EXIT_OK;
    if (run_folder_is(q.dir))
        return prune_run_folder(&q);
    return prune_place(&q, q.dir, q.keep >= 0 ? q.keep : PRUNE_KEEP);
}
