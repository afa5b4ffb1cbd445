/* ckpt.c - `gtrain ckpt list | verify | show`: what lies in a checkpoint folder (prune is in
 * ckpt_prune.c, reshard in ckpt_reshard.c, import and export are in ckpt_convert.c).
 *
 * DIR is a folder that a node of a run writes to, or one that holds such folders. All that lie
 * there are scanned as a restore would (ckpt_scan) and joined (catalog.h); a rank whose file is
 * claimed by a node whose folder is not among them is "elsewhere", not missing. Of a run folder the
 * two tiers are shown one after the other. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog.h"
#include "ckpt.h"
#include "base/number.h"
#include "cli/ckpt_place.h"
#include "cli/cli.h"
#include "file.h"
#include "folder.h"
#include "plan/keys.h"
#include "train/run_folder.h"

static const char help[] =
    "usage: gtrain ckpt list DIR     checkpoints in a folder, newest first\n"
    "       gtrain ckpt verify DIR   read all committed files, compare every checksum\n"
    "       gtrain ckpt show FILE    what one rank's file holds\n"
    "       gtrain ckpt prune [--keep N] [--dry-run] DIR    drop what no restore needs any more\n"
    "       gtrain ckpt reshard [--step N] SRC DST --plan PLAN    write one in another layout\n"
    "       gtrain ckpt import HF_DIR OUT    a run folder from published Llama weights\n"
    "       gtrain ckpt export [--dtype f32|bf16|f16] [--step N] [--shard-bytes N]\n"
    "                          [--like HF_DIR] DIR OUT    a Hugging Face folder from a checkpoint\n"
    "\n"
    "DIR is a run folder, a run's checkpoint folder, or a folder that holds several such.\n"
    "`gtrain ckpt COMMAND --help` says more of prune, reshard, import and export.\n"
    "Exit status: 0 all is well; 1 a file is damaged or missing, nothing is committed, or reading\n"
    "or writing failed; 2 wrong usage, or DIR, FILE or HF_DIR cannot be read or do not fit.\n";

/* The node that writes here, by its log; a folder without one goes by its place in the list. */
static void node_of(const char *folder, const char *run, int index, char out[CKPT_NODE_MAX + 1])
{
    struct folder_list list;
    struct err unused;
    int fd;
    snprintf(out, CKPT_NODE_MAX + 1, "folder-%d", index);
    if (folder_open_read(folder, &fd, &unused) || fd < 0)
        return;
    if (!folder_list(fd, run, &list, &unused)) {
        for (int i = 0; i < list.n; i++)
            if (list.entries[i].name.kind == NAME_LOG)
                strcpy(out, list.entries[i].name.node);
        folder_list_free(&list);
    }
    close(fd);
}

static int scan_run(const struct place *p, const char *run, struct catalog *out, struct err *err)
{
    char **blobs = calloc((size_t)p->n_folders, sizeof *blobs);
    int rv = blobs ? 0 : err_set(err, "out of memory");
    for (int i = 0; i < p->n_folders && !rv; i++) {
        char node[CKPT_NODE_MAX + 1];
        node_of(p->folders[i], run, i, node);
        blobs[i] = ckpt_scan(p->folders[i], node, run, err);
        rv = blobs[i] ? 0 : -1;
    }
    if (!rv)
        rv = catalog_make(out, (const char *const *)blobs, p->n_folders, err);
    for (int i = 0; i < p->n_folders && blobs; i++)
        free(blobs[i]);
    free(blobs);
    return rv;
}

/* How much of a committed checkpoint is here. */
struct presence {
    int here, elsewhere, missing;
    int rebuilt; /* of the latter two, what can be had from the groups of what is here */
    int first_missing;
    const char *why;
};

static bool node_is_here(const struct catalog *c, const char *node)
{
    for (int i = 0; i < c->n_sources; i++)
        if (!strcmp(c->sources[i].node, node))
            return true;
    return false;
}

static struct presence presence_of(const struct catalog *c, const struct record *r)
{
    struct presence p = {.first_missing = -1};
    for (int rank = 0; rank < r->n; rank++) {
        const char *why;
        if (catalog_find(c, r, rank, &why)) {
            p.here++;
            continue;
        }
        p.rebuilt += catalog_can_rebuild(c, r, rank);
        if (!node_is_here(c, r->ranks[rank].node)) {
            p.elsewhere++;
        } else {
            if (!p.missing++) {
                p.first_missing = rank;
                p.why = why;
            }
        }
    }
    return p;
}

/* Retention drops whole checkpoints: one of which nothing is left, behind one that is here, is no
 * loss. */
static bool was_dropped(const struct presence *p, bool newer_is_here)
{
    return !p->here && newer_is_here;
}

/* Whole it may be, but a run that restored it came to a step that was not finite. */
static const struct mark *print_mark(const struct catalog *c, const struct record *r)
{
    const struct mark *m = marks_find(&c->marks, &r->meta.key);
    if (m)
        printf("marked bad: from it step %" PRId64 " was not finite; ", m->nan_step);
    return m;
}

/* "; in groups of 4 that keep 1", of the smallest, or nothing. */
static void print_groups(const struct record *r)
{
    int smallest = 0, keeps = 0;
    for (int i = 0; i < r->n; i++) {
        int members = 0;
        if (!r->ranks[i].parity.path || r->ranks[i].parity.member)
            continue;
        for (int k = 0; k < r->n; k++)
            members +=
                r->ranks[k].parity.path && r->ranks[k].parity.group == r->ranks[i].parity.group;
        if (!smallest || members < smallest) {
            smallest = members;
            keeps = r->ranks[i].parity.keeps;
        }
    }
    if (smallest)
        printf("; in groups of %d that keep %d", smallest, keeps);
}

static void print_state(const struct catalog *c, const struct record *r, const struct presence *p)
{
    print_mark(c, r);
    bool rebuilt = p->rebuilt == p->missing + p->elsewhere;
    if (p->missing) {
        printf("%s: rank %d's file on %s %s%s", rebuilt ? "can be rebuilt" : "not whole",
               p->first_missing, r->ranks[p->first_missing].node, p->why,
               p->missing > 1 ? ", and more" : "");
    } else {
        printf("committed");
        print_groups(r);
        if (p->elsewhere)
            printf("; %d of %d ranks are on other nodes%s", p->elsewhere, r->n,
                   rebuilt ? " and can be rebuilt from these" : "");
    }
    putchar('\n');
}

static void print_head(const char *run, const struct catalog *c)
{
    printf("run %s\n", run);
    for (int i = 0; i < c->n_sources; i++) {
        char dir[PATH_MAX];
        plan_shown(c->sources[i].dir, dir, sizeof dir);
        printf("  %s on %s\n", dir, c->sources[i].node);
    }
    if (c->notes)
        printf("%s", c->notes);
    printf("  %10s %6s %5s %6s %10s %12s  %s\n", "STEP", "EPOCH", "GEN", "RANKS", "SIZE", "SAMPLES",
           "STATE");
}

static void print_row(const struct ckpt_key *key, int ranks, int64_t bytes, int64_t samples)
{
    char size[NUMBER_BYTES], count[32] = "-";
    if (samples >= 0)
        snprintf(count, sizeof count, "%" PRId64, samples);
    printf("  %10" PRId64 " %6" PRIu32 " %5" PRIu32 " %6d %10s %12s  ", key->step, key->epoch,
           key->generation, ranks, number_size((double)bytes, size), count);
}

static bool in_a_record(const struct catalog *c, const struct catalog_file *f)
{
    for (int i = 0; i < c->n_records; i++)
        if (!key_compare(&c->records[i].meta.key, &f->name.key))
            return true;
    return false;
}

/* Files that no record names: being written, given up, or a commit away. */
static void list_uncommitted(const struct catalog *c)
{
    for (int i = 0; i < c->n_files; i++) {
        const struct catalog_file *f = &c->files[i];
        if (in_a_record(c, f))
            continue;
        bool first = true;
        int ranks = 0;
        int64_t bytes = 0;
        for (int k = 0; k < c->n_files; k++)
            if (!key_compare(&c->files[k].name.key, &f->name.key)) {
                first &= k >= i;
                ranks += c->files[k].name.kind == NAME_FILE;
                bytes += c->files[k].bytes;
            }
        if (!first)
            continue;
        print_row(&f->name.key, ranks, bytes, -1);
        printf("not committed\n");
    }
}

static void list_run(const char *run, const struct catalog *c, bool *good)
{
    int dropped = 0;
    bool newer_is_here = false;
    print_head(run, c);
    for (int i = 0; i < c->n_records; i++) {
        const struct record *r = &c->records[i];
        struct presence p = presence_of(c, r);
        if (was_dropped(&p, newer_is_here)) {
            dropped++;
            continue;
        }
        newer_is_here |= p.here > 0;
        int64_t bytes = 0;
        for (int rank = 0; rank < r->n; rank++)
            bytes += r->ranks[rank].bytes;
        print_row(&r->meta.key, r->n, bytes, r->meta.samples);
        print_state(c, r, &p);
        *good &= !p.missing;
    }
    list_uncommitted(c);
    if (dropped)
        printf("  %d older committed ones have been dropped\n", dropped);
    *good &= newer_is_here;
}

/* 0, or -1 with err. */
static int verify_file(const struct catalog_file *f, const char *dir, uint32_t digest,
                       struct err *err)
{
    char path[PATH_MAX];
    struct ckpt_file *file;
    snprintf(path, sizeof path, "%s/%s", dir, f->path);
    if (ckpt_file_open(&file, path, err))
        return -1;
    int rv = ckpt_file_verify(file, err);
    if (!rv && ckpt_file_digest(file) != digest)
        rv = err_set(err, "%s: its digest is %08" PRIx32 ", the record says %08" PRIx32, path,
                     ckpt_file_digest(file), digest);
    ckpt_file_close(file);
    return rv;
}

/* A line below that of the checkpoint. */
static void print_bad(int *bad, const char *text)
{
    char shown[sizeof((struct err *)0)->text];
    if (!(*bad)++)
        printf("BAD\n");
    plan_shown(text, shown, sizeof shown);
    printf("             %s\n", shown);
}

/* One that cannot be read is marked, so that nothing is rebuilt from it. */
static void verify_one(const struct catalog *c, const struct catalog_file *f, uint32_t digest,
                       int *bad)
{
    struct err err;
    if (!f || !verify_file(f, c->sources[f->source].dir, digest, &err))
        return;
    c->files[f - c->files].damaged = true;
    print_bad(bad, err.text);
}

static int verify_record(const struct catalog *c, const struct record *r)
{
    struct err err;
    int bad = 0, lost = 0, rebuilt = 0;
    for (int rank = 0; rank < r->n; rank++) {
        const char *why;
        const struct record_rank *k = &r->ranks[rank];
        const struct catalog_file *f = catalog_find(c, r, rank, &why);
        verify_one(c, f, k->digest, &bad);
        verify_one(c, catalog_find_parity(c, r, rank), k->parity.digest, &bad);
        if (f || !node_is_here(c, k->node))
            continue;
        err_set(&err, "rank %d's file %s on %s %s", rank, k->path, k->node, why);
        print_bad(&bad, err.text);
    }
    for (int rank = 0; bad && rank < r->n; rank++)
        if (!catalog_find(c, r, rank, NULL)) {
            lost++;
            rebuilt += catalog_can_rebuild(c, r, rank);
        }
    if (bad && rebuilt)
        printf("             %d of %d files that are not here or damaged can be rebuilt\n", rebuilt,
               lost);
    return bad;
}

static void verify_run(const char *run, const struct catalog *c, bool *good)
{
    bool newer_is_here = false;
    print_head(run, c);
    for (int i = 0; i < c->n_records; i++) {
        const struct record *r = &c->records[i];
        struct presence p = presence_of(c, r);
        if (was_dropped(&p, newer_is_here))
            continue;
        newer_is_here |= p.here > 0;
        int64_t bytes = 0;
        for (int rank = 0; rank < r->n; rank++)
            bytes += r->ranks[rank].bytes;
        print_row(&r->meta.key, r->n, bytes, r->meta.samples);
        fflush(stdout);
        if (print_mark(c, r))
            *good = false;
        if (verify_record(c, r))
            *good = false;
        else if (p.elsewhere)
            printf("good; %d of %d ranks are on other nodes\n", p.elsewhere, r->n);
        else
            printf("good\n");
    }
    *good &= newer_is_here;
}

typedef void run_report(const char *run, const struct catalog *c, bool *good);

/* Reports on all runs in dir; *good becomes false where one is not well. */
static int each_run(const char *dir, run_report *what, bool *good)
{
    struct place p = {.n_runs = 0};
    struct err err;
    int rv = place_find(&p, dir, &err) ? EXIT_USAGE : EXIT_OK;
    if (!rv && !p.n_runs) {
        err_set(&err, "%s: there are no checkpoints here or one level below", dir);
        rv = EXIT_FAILED;
    }
    if (rv)
        cli_error("%s", err.text);
    for (int i = 0; i < p.n_runs && !rv; i++) {
        struct catalog c;
        if (scan_run(&p, p.runs[i], &c, &err)) {
            cli_error("%s", err.text);
            rv = EXIT_FAILED;
            break;
        }
        what(p.runs[i], &c, good);
        catalog_free(&c);
    }
    place_free(&p);
    return rv;
}

/* One tier of a run folder's run; one that is not on this machine is only said to be elsewhere. */
static int tier(const char *name, const char *dir, run_report *what, bool *good, int *n)
{
    if (!*dir)
        return EXIT_OK;
    if (access(dir, F_OK)) {
        printf("checkpoint.%s: %s: not on this machine, or nothing written yet\n", name, dir);
        return EXIT_OK;
    }
    printf("checkpoint.%s: ", name);
    fflush(stdout);
    ++*n;
    return each_run(dir, what, good);
}

static int each_tier(const char *dir, run_report *what, bool *good)
{
    struct run_folder f;
    struct err err;
    int n = 0, rv = EXIT_USAGE;
    if (run_folder_open(&f, dir, NULL, &err)) {
        cli_error("%s", err.text);
    } else {
        int local = tier("local", f.local, what, good, &n);
        int shared = tier("shared", f.shared, what, good, &n);
        rv = local ? local : shared;
        if (!n) {
            cli_error("%s: the run's checkpoints are not on this machine, or there are none%s", dir,
                      *f.local ? ": run this on its nodes (srun), or name the folder where a "
                                 "node's disk is seen from here"
                               : "");
            rv = EXIT_FAILED;
        }
    }
    run_folder_close(&f);
    return rv;
}

static int report(const char *dir, run_report *what)
{
    bool good = true;
    int rv = run_folder_is(dir) ? each_tier(dir, what, &good) : each_run(dir, what, &good);
    return rv ? rv : good ? EXIT_OK : EXIT_FAILED;
}

static void show_tensors(const struct ckpt_file *f)
{
    printf("\n  %-48s %-5s %-24s %-24s %s\n", "TENSOR", "DTYPE", "SHAPE", "OF GLOBAL", "AT");
    for (int i = 0; i < f->n; i++) {
        const struct ckpt_tensor *t = &f->tensors[i].tensor;
        char *texts[3] = {NULL}, name[200];
        const int64_t *dims[3] = {t->shape, t->global, t->offset};
        bool whole = tensor_is_whole(t);
        for (int k = 0; k < (whole ? 1 : 3); k++) {
            size_t n;
            FILE *out = open_memstream(&texts[k], &n);
            if (!out)
                continue;
            dims_print(out, t->dims, dims[k]);
            fclose(out);
        }
        plan_shown(t->name, name, sizeof name);
        printf("  %-48s %-5s %-24s %-24s %s\n", name, dtype_name(t->dtype),
               texts[0] ? texts[0] : "", texts[1] ? texts[1] : "whole", texts[2] ? texts[2] : "");
        for (int k = 0; k < 3; k++)
            free(texts[k]);
    }
}

static int show(const char *path)
{
    struct err err;
    struct ckpt_file *f;
    char size[NUMBER_BYTES];
    if (ckpt_file_open(&f, path, &err)) {
        struct stat st;
        bool readable = !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, R_OK);
        cli_error("%s", err.text);
        return readable ? EXIT_FAILED : EXIT_USAGE;
    }
    printf("%s\n", path);
    printf("  run %s, step %" PRId64 ", %" PRId64 " samples consumed\n", f->meta.run,
           f->meta.key.step, f->meta.samples);
    printf("  epoch %" PRIu32 ", generation %" PRIu32 ", rank %d of %d, plan %016" PRIx64 "\n",
           f->meta.key.epoch, f->meta.key.generation, f->meta.rank, f->meta.world,
           f->meta.plan_hash);
    printf("  %s, digest %08" PRIx32 ", data from byte %" PRId64 "\n",
           number_size((double)f->bytes, size), f->digest, f->header_bytes);
    show_tensors(f);
    ckpt_file_close(f);
    return EXIT_OK;
}

static int list(const char *dir)
{
    return report(dir, list_run);
}

static int verify(const char *dir)
{
    return report(dir, verify_run);
}

/* Of list, verify and show: one name. */
static bool takes_one(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (argv[i][0] == '-') {
            cli_error("ckpt %s: there is no option '%s'; what is called so is ./%s", argv[1],
                      argv[i], argv[i]);
            return false;
        }
    if (argc != 3)
        cli_error("ckpt %s: one %s is expected, %d given: see gtrain ckpt --help", argv[1],
                  !strcmp(argv[1], "show") ? "FILE" : "DIR", argc - 2);
    else if (!*argv[2])
        cli_error("ckpt %s: the name given is empty", argv[1]);
    return argc == 3 && *argv[2];
}

int cli_ckpt(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *path);
    } simple[] = {{"list", list}, {"verify", verify}, {"show", show}};
    static const struct {
        const char *name, *prefix;
        int (*run)(int argc, char **argv);
    } with_options[] = {{"import", "ckpt import", cli_ckpt_import},
                        {"export", "ckpt export", cli_ckpt_export},
                        {"reshard", "ckpt reshard", cli_ckpt_reshard},
                        {"prune", "ckpt prune", cli_ckpt_prune}};
    for (size_t i = 0; i < sizeof with_options / sizeof *with_options; i++)
        if (argc > 1 && !strcmp(argv[1], with_options[i].name))
            return cli_run(with_options[i].run, with_options[i].prefix, argc - 1, argv + 1);
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(help, stdout);
            return EXIT_OK;
        }
    if (argc < 2) {
        fputs(help, stderr);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (!strcmp(argv[1], simple[i].name))
            return takes_one(argc, argv) ? simple[i].run(argv[2]) : EXIT_USAGE;
    cli_error("ckpt has no '%s': list, verify, show, prune, reshard, import and export are there",
              argv[1]);
    return EXIT_USAGE;
}
