/* ckpt_convert.c - `gtrain ckpt import | export`: between checkpoints and published weights. */
#include "cli/cli.h"

#include "base/number.h"
#include "cli/interrupt.h"
#include "hf/hf.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What transformers makes of a large model, about. */
#define SHARD_BYTES INT64_C(5000000000)

static const char import_help[] =
    "usage: gtrain ckpt import HF_DIR OUT\n"
    "\n"
    "Make the run folder OUT, new or empty, from a Llama folder of the Hugging Face kind\n"
    "(config.json; weights in model.safetensors, or in several files with an index; float32,\n"
    "bfloat16 or float16).\n";

static const char export_help[] =
    "usage: gtrain ckpt export [--dtype f32|bf16|f16] [--step N] [--shard-bytes N]\n"
    "                          [--like HF_DIR] DIR OUT\n"
    "\n"
    "Make the folder OUT, new or empty, with config.json and the weights, which transformers and\n"
    "others load, from a checkpoint of the run folder DIR.\n"
    "\n"
    "  --like HF_DIR     the published folder that the model came from: its tokenizer's files,\n"
    "                    special tokens and max_position_embeddings are taken over\n"
    "  --dtype D         of the weights (default f32)\n"
    "  --step N          of the checkpoint (default: the newest committed)\n"
    "  --shard-bytes N   of tensors in one file at most (default 5000000000)\n";

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return true;
    return false;
}

static void tell(void *arg, int file, int files, int64_t bytes)
{
    char size[NUMBER_BYTES];
    (void)arg;
    if (files == 1 || !interrupt_may_print())
        return; /* one: the last line says it */
    printf("  file %d of %d: %s\n", file, files, number_size((double)bytes, size));
    fflush(stdout);
}

/* Says what went wrong, if something did; the exit code. Ends by the signal that came. */
static int ended(const char *what, const atomic_bool *stop, int rv, const struct err *err)
{
    if (rv)
        cli_error("%s: %s", what, atomic_load(stop) ? "interrupted: nothing was made" : err->text);
    interrupt_release(!rv);
    return rv == HF_FAILED ? EXIT_FAILED : rv ? EXIT_USAGE : EXIT_OK;
}

int cli_ckpt_import(int argc, char **argv)
{
    struct err err;
    int64_t parameters;
    if (asks_for_help(argc, argv)) {
        fputs(import_help, stdout);
        return EXIT_OK;
    }
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-') {
            cli_error("import: there is no option '%s'; a folder of that name is ./%s", argv[i],
                      argv[i]);
            return EXIT_USAGE;
        }
    if (argc != 3) {
        cli_error("import: HF_DIR and OUT are expected, %d given: see gtrain ckpt import --help",
                  argc - 1);
        return EXIT_USAGE;
    }
    if (!*argv[1]) {
        cli_error("import: the name given is empty");
        return EXIT_USAGE;
    }
    struct hf_watch watch = {.stop = interrupt_catch(), .tell = tell};
    int rv = hf_import(argv[1], argv[2], &watch, &parameters, &err);
    int code = ended("import", watch.stop, rv, &err);
    if (code)
        return code;
    printf("%s: %" PRId64 " parameters. Name your data in %s/plan.yaml, then\n"
           "    gtrain train --plan %s/plan.yaml --dir %s\n",
           argv[2], parameters, argv[2], argv[2], argv[2]);
    return EXIT_OK;
}

static int read_whole(const char *name, const char *text, int64_t least, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && *out >= least)
        return 0;
    cli_error("export: --%s is %s: use a whole number from %" PRId64, name, text, least);
    return -1;
}

/* 0, or -1 with what was wrong said. */
static int take_option(struct hf_export_options *o, int option)
{
    int dtype;
    switch (option) {
    case 'd':
        dtype = hf_dtype_find(optarg);
        o->dtype = (enum hf_dtype)dtype;
        if (dtype >= 0)
            return 0;
        cli_error("export: --dtype is %s: use f32, bf16 or f16", optarg);
        return -1;
    case 's':
        return read_whole("step", optarg, 0, &o->step);
    case 'l':
        o->like = optarg;
        return 0;
    case 'b':
        return read_whole("shard-bytes", optarg, 1, &o->shard_bytes);
    default: /* getopt has told */
        return -1;
    }
}

static void print_exported(const struct hf_export_options *o, const struct hf_exported *done)
{
    printf("%s: the weights after step %" PRId64 ", %s; max_position_embeddings is %" PRId64 "\n",
           o->out, done->position.step, hf_dtype_name(o->dtype), done->positions);
    if (done->note)
        printf("    note: %s\n", done->note);
    if (o->like)
        printf("    with %d files for tokenizer and generation from %s\n", done->copied, o->like);
    else
        printf("    without a tokenizer, which vLLM and llama.cpp want: copy its files from where "
               "you have\n    them, or name a published folder by --like\n");
}

int cli_ckpt_export(int argc, char **argv)
{
    static const struct option options[] = {{"dtype", required_argument, NULL, 'd'},
                                            {"step", required_argument, NULL, 's'},
                                            {"shard-bytes", required_argument, NULL, 'b'},
                                            {"like", required_argument, NULL, 'l'},
                                            {0}};
    struct hf_export_options o = {.step = -1, .shard_bytes = SHARD_BYTES};
    struct hf_exported done;
    struct err err;
    int option;
    if (asks_for_help(argc, argv)) {
        fputs(export_help, stdout);
        return EXIT_OK;
    }
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        if (take_option(&o, option))
            return EXIT_USAGE;
    if (argc - optind != 2) {
        cli_error("export: DIR and OUT are expected, %d given: see gtrain ckpt export --help",
                  argc - optind);
        return EXIT_USAGE;
    }
    if (!*argv[optind] || (o.like && !*o.like)) {
        cli_error("export: the name given is empty");
        return EXIT_USAGE;
    }
    o.run_dir = argv[optind];
    o.out = argv[optind + 1];
    o.watch = (struct hf_watch){.stop = interrupt_catch(), .tell = tell};
    int rv = hf_export(&o, &done, &err);
    int code = ended("export", o.watch.stop, rv, &err);
    if (!code)
        print_exported(&o, &done);
    return code;
}
