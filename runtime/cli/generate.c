/* generate.c - `gtrain generate`: a sample from a checkpoint, or the loss of a text. */
#include "cli/cli.h"

#include "cli/score.h"
#include "train/run_folder.h"
#include "train/sample.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FOLDERS = 1024 };

struct request {
    const char *given[MAX_FOLDERS]; /* --checkpoint */
    const char *roots[MAX_FOLDERS]; /* --node-root */
    int n_given, n_roots;
    const char *plan_path, *score_path;
    char *dirs[MAX_FOLDERS]; /* where to look, made of the two; owned */
    int n_dirs;
    char run_id[80];
    struct plan *plan;
    struct sample_options options;
};

static void usage(FILE *out)
{
    fputs(
        "usage: gtrain generate --checkpoint DIR --prompt TEXT [--tokens N]\n"
        "                       [--temperature T] [--top-k K] [--seed S] [--threads N]\n"
        "                       [--node-root DIR]... [--plan FILE]\n"
        "       gtrain generate --checkpoint DIR --score FILE\n"
        "\n"
        "Continue a text with a model, from the newest committed checkpoint of a run, whatever\n"
        "its layout. Or say how likely a text is to it. On a terminal, control characters in what\n"
        "the model says are shown as question marks.\n"
        "\n"
        "  --checkpoint DIR  the run folder; or a folder of checkpoints (then --plan is needed;\n"
        "                    several may be given, one a node)\n"
        "  --prompt TEXT     what to continue\n"
        "  --score FILE      print the log-probability of each of its tokens, and the mean loss:\n"
        "                    bytes, or token numbers where the run's data is no text\n"
        "  --tokens N        bytes to add (default 300)\n"
        "  --temperature T   0: always the likeliest; default 0.8\n"
        "  --top-k K         choose among the K likeliest (default: all)\n"
        "  --seed S          another seed, another text (default 1)\n"
        "  --threads N       default: all cores\n"
        "  --node-root DIR   where another node's file system is seen here: the run's checkpoint\n"
        "                    folder is looked for below it too\n"
        "  --plan FILE       the run's plan (plan.yaml in its folder)\n",
        out);
}

/* ---- options ---- */

static int read_number(const char *name, const char *text, double least, double most, bool whole,
                       double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (!*end && end != text && !errno && *out >= least && *out <= most &&
        (!whole || floor(*out) == *out))
        return 0;
    cli_error("generate: --%s is %s: use a %snumber from %g to %g", name, text,
              whole ? "whole " : "", least, most);
    return -1;
}

static int add_folder(const char **list, int *n, const char *name, const char *dir)
{
    if (*n == MAX_FOLDERS) {
        cli_error("generate: more than %d times --%s", MAX_FOLDERS, name);
        return -1;
    }
    list[(*n)++] = dir;
    return 0;
}

enum {
    OPT_CHECKPOINT = 256,
    OPT_PROMPT,
    OPT_SCORE,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_SEED,
    OPT_THREADS,
    OPT_NODE_ROOT,
    OPT_PLAN
};

static int take_option(struct request *r, int option)
{
    struct sample_options *o = &r->options;
    double value;
    switch (option) {
    case OPT_CHECKPOINT:
        return add_folder(r->given, &r->n_given, "checkpoint", optarg);
    case OPT_NODE_ROOT:
        return add_folder(r->roots, &r->n_roots, "node-root", optarg);
    case OPT_PLAN:
        r->plan_path = optarg;
        return 0;
    case OPT_SCORE:
        r->score_path = optarg;
        return 0;
    case OPT_PROMPT:
        o->prompt = optarg;
        return 0;
    case OPT_TOKENS:
        if (read_number("tokens", optarg, 1, 1e6, true, &value))
            return -1;
        o->tokens = (int64_t)value;
        return 0;
    case OPT_TEMPERATURE:
        return read_number("temperature", optarg, 0, 100, false, &o->temperature);
    case OPT_TOP_K:
        if (read_number("top-k", optarg, 1, 1e9, true, &value))
            return -1;
        o->top_k = (int64_t)value;
        return 0;
    case OPT_SEED:
        if (read_number("seed", optarg, 0, 9e15, true, &value))
            return -1;
        o->seed = (uint64_t)value;
        return 0;
    default:
        if (read_number("threads", optarg, 1, 4096, true, &value))
            return -1;
        o->threads = (int)value;
        return 0;
    }
}

/* 0: go on; else: exit with *code. */
static int read_options(int argc, char **argv, struct request *r, int *code)
{
    static const struct option options[] = {
        {"checkpoint", required_argument, NULL, OPT_CHECKPOINT},
        {"prompt", required_argument, NULL, OPT_PROMPT},
        {"score", required_argument, NULL, OPT_SCORE},
        {"tokens", required_argument, NULL, OPT_TOKENS},
        {"temperature", required_argument, NULL, OPT_TEMPERATURE},
        {"top-k", required_argument, NULL, OPT_TOP_K},
        {"seed", required_argument, NULL, OPT_SEED},
        {"threads", required_argument, NULL, OPT_THREADS},
        {"node-root", required_argument, NULL, OPT_NODE_ROOT},
        {"plan", required_argument, NULL, OPT_PLAN},
        {"help", no_argument, NULL, 'h'},
        {0}};
    int option;
    *code = EXIT_USAGE;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h' || option == '?') {
            usage(option == 'h' ? stdout : stderr);
            *code = option == 'h' ? EXIT_OK : EXIT_USAGE;
            return -1;
        }
        if (take_option(r, option))
            return -1;
    }
    if (optind < argc)
        cli_error("generate: '%s' is not an option: `gtrain generate --help` lists them",
                  argv[optind]);
    else if (!r->n_given)
        cli_error("generate: which checkpoint? Use --checkpoint DIR, the run's folder");
    else if (!r->options.prompt == !r->score_path)
        cli_error("generate: what to continue, or to score? Use --prompt TEXT or --score FILE");
    else
        return 0;
    return -1;
}

/* ---- where the checkpoint is ---- */

static int add_dir(struct request *r, const char *root, const char *path)
{
    char *dir;
    if (r->n_dirs == MAX_FOLDERS || asprintf(&dir, "%s%s", root, path) < 0) {
        cli_error("generate: too many folders");
        return -1;
    }
    r->dirs[r->n_dirs++] = dir;
    return 0;
}

static int load_plan(struct request *r, const char *path)
{
    struct err err;
    r->plan = plan_load(path, NULL, 0, NULL, &err);
    if (!r->plan)
        cli_error("generate: %s", err.text);
    return r->plan ? 0 : -1;
}

/* Both tiers, on this machine and below each root. */
static int add_tiers(struct request *r, const struct run_folder *f)
{
    if (*f->shared && add_dir(r, "", f->shared))
        return -1;
    if (*f->local && add_dir(r, "", f->local))
        return -1;
    for (int i = 0; i < r->n_roots && *f->local; i++)
        if (add_dir(r, r->roots[i], f->local))
            return -1;
    return 0;
}

/* On a cluster local checkpoints are on the nodes' own disks, and this may not be a node. */
static int refuse_elsewhere(const struct request *r, const char *dir, const struct run_folder *f)
{
    for (int i = 0; i < r->n_dirs; i++)
        if (!access(r->dirs[i], F_OK))
            return 0;
    if (*f->local)
        cli_error("generate: the checkpoints of %s are in %s on the run's nodes, which is not on "
                  "this machine: give --node-root DIR for each place where a node's file system is "
                  "seen from here, or let the plan have checkpoint.shared",
                  dir, f->local);
    else
        cli_error("generate: the checkpoints of %s should be in %s, which is not there", dir,
                  f->shared);
    return -1;
}

static int from_run_folder(struct request *r, const char *dir)
{
    struct run_folder f;
    struct err err;
    int rv = run_folder_open(&f, dir, r->plan_path, &err);
    if (rv) {
        cli_error("generate: %s", err.text);
    } else if (!*f.local && !*f.shared) {
        rv = -1;
        cli_error("generate: the plan of %s keeps no checkpoints (checkpoint.local or shared)",
                  dir);
    } else {
        memcpy(r->run_id, f.run_id, sizeof f.run_id);
        rv = add_tiers(r, &f) || refuse_elsewhere(r, dir, &f) ? -1 : 0;
        r->plan = f.plan;
        f.plan = NULL;
    }
    run_folder_close(&f);
    return rv;
}

/* Folders of checkpoints are called after their run. */
static int from_checkpoint_folders(struct request *r)
{
    if (!r->plan_path) {
        cli_error(
            "generate: %s is not a run folder (no plan.yaml in it): give the run's folder, or "
            "its plan with --plan",
            r->given[0]);
        return -1;
    }
    if (load_plan(r, r->plan_path))
        return -1;
    for (int i = 0; i < r->n_given; i++) {
        char real[PATH_MAX];
        if (!realpath(r->given[i], real)) {
            cli_error("generate: %s: %s", r->given[i], strerror(errno));
            return -1;
        }
        snprintf(r->run_id, sizeof r->run_id, "%s", strrchr(real, '/') + 1);
        if (add_dir(r, "", real))
            return -1;
    }
    return 0;
}

static int find_checkpoint(struct request *r)
{
    if (r->n_given == 1 && run_folder_is(r->given[0]))
        return from_run_folder(r, r->given[0]);
    return from_checkpoint_folders(r);
}

/* ---- */

/* What is printed, and what it may not do there. */
struct printer {
    const char *prompt; /* NULL once it is out */
    bool terminal;
    int32_t before; /* the last token */
};

/* What a model makes up may be a command to a terminal: there, marks stand for control characters
 * (in two bytes of UTF-8, too). A token that is no byte is a mark everywhere. */
static int shown(const struct printer *p, int32_t token)
{
    bool two = p->before == 0xC2 && token >= 0x80 && token < 0xA0;
    bool control = (token < ' ' && token != '\n' && token != '\t') || token == 127 || two;
    return token > UCHAR_MAX || (control && p->terminal) ? '?' : token;
}

/* The prompt comes with the first token: a run that fails prints nothing but its error. */
static void print_token(void *arg, int32_t token)
{
    struct printer *p = arg;
    if (p->prompt)
        fputs(p->prompt, stdout);
    p->prompt = NULL;
    putchar(shown(p, token));
    p->before = token;
    fflush(stdout);
}

static int generate(struct request *r)
{
    struct printer printer = {.prompt = r->options.prompt, .terminal = isatty(STDOUT_FILENO)};
    struct err err;
    if (find_checkpoint(r))
        return EXIT_USAGE;
    r->options.plan = r->plan;
    r->options.source = (struct weights_source){
        .dirs = (const char *const *)r->dirs, .n_dirs = r->n_dirs, .run_id = r->run_id};
    if (r->score_path)
        return score_file(r->score_path, r->plan, &r->options.source, r->options.threads);
    r->options.token = print_token;
    r->options.arg = &printer;
    if (sample_run(&r->options, NULL, &err)) {
        cli_error("generate: %s", err.text);
        return EXIT_USAGE;
    }
    putchar('\n');
    return EXIT_OK;
}

int cli_generate(int argc, char **argv)
{
    int code = EXIT_FAILED;
    struct request *r = calloc(1, sizeof *r);
    if (!r) {
        cli_error("generate: no memory");
        return code;
    }
    r->options = (struct sample_options){.tokens = 300, .temperature = 0.8, .seed = 1};
    r->options.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!read_options(argc, argv, r, &code))
        code = generate(r);
    for (int i = 0; i < r->n_dirs; i++)
        free(r->dirs[i]);
    plan_free(r->plan);
    free(r);
    return code;
}
