/* main.c - finds the subcommand and runs it. */
#include "cli/cli.h"

#include "base/control.h"
#include "config.h"
#include "train/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct cli_command commands[] = {
    {"ckpt", "list checkpoints, verify them, drop old ones, bring weights in and out", cli_ckpt},
    {"coordinate", "run a job step's coordinator (started by the Slurm plugin)", cli_coordinate},
    {"plan", "check a plan file, show what becomes of it, list its keys", cli_plan},
    {"generate", "continue a text with what a run has learnt", cli_generate},
    {"report", "write a run's curves as one HTML page", cli_report},
    {"simulate", "replay failures of a long run: how much of its time is useful", cli_simulate},
    {"status", "say where a run is, who has which ranks, what failed", cli_status},
    {"train", "train what a plan describes", cli_train},
    {0},
};

void cli_error(const char *format, ...)
{
    char text[2048], clean[sizeof text];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    /* Names in files that somebody else made stand in it. */
    size_t n = 0;
    for (; text[n]; n++)
        clean[n] = text[n] != '\n' && text_is_control(text, n) ? '?' : text[n];
    clean[n] = 0;
    fprintf(stderr, "gtrain: %s\n", clean);
}

int cli_run(int (*run)(int argc, char **argv), const char *name, int argc, char **argv)
{
    char prefix[64], *was = argv[0];
    snprintf(prefix, sizeof prefix, "gtrain: %s", name);
    argv[0] = prefix;
    int code = run(argc, argv);
    argv[0] = was;
    return code;
}

struct plan *cli_load_plan(const char *spec)
{
    struct err err = {""};
    struct plan *plan = session_load_plan(spec, &err);
    if (!plan)
        cli_error("%s", err.text);
    return plan;
}

static void usage(FILE *out)
{
    fprintf(out, "usage: gtrain COMMAND [ARGUMENTS]\n\n");
    for (const struct cli_command *c = commands; c->name; c++)
        fprintf(out, "  %-12s %s\n", c->name, c->summary);
    fprintf(
        out,
        "\n`gtrain COMMAND --help` says more; so does man gtrain. `gtrain --version`: which.\n");
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(stdout);
        return EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("gtrain %s\n", PACKAGE_VERSION);
        return EXIT_OK;
    }
    for (const struct cli_command *c = commands; c->name; c++)
        if (!strcmp(argv[1], c->name))
            return cli_run(c->run, c->name, argc - 1, argv + 1);
    cli_error("no command '%s': `gtrain --help` lists them", argv[1]);
    return EXIT_USAGE;
}

/* What the caller has closed of the standard three is held by something that cannot be written to:
 * the first files opened would have their numbers, and get what is printed. */
static void hold_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) < 0)
            break;
}

/* What was printed counts only once it is out: a full disk must not look like success. (A reader
 * that has gone away ends us by SIGPIPE, as it does any filter.) */
int main(int argc, char **argv)
{
    hold_standard();
    int code = run(argc, argv);
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_OK) {
        if (!errno) { /* it failed some time ago, on a long text: one more byte tells why */
            putchar('\n');
            fflush(stdout);
        }
        cli_error("standard output: %s", errno ? strerror(errno) : "it could not all be written");
        code = EXIT_FAILED;
    }
    return code;
}
