/* report.c - `gtrain report DIR`: a run folder's records as one HTML page. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/report_html.h"
#include "cli/report_read.h"

enum { PATH_BYTES = 4096 };

static const char USAGE[] =
    "usage: gtrain report DIR [-o FILE]\n"
    "\n"
    "Reads metrics.jsonl, events.jsonl and plan.yaml in the run folder DIR and writes one\n"
    "HTML page that needs nothing beside itself.\n"
    "\n"
    "  -o, --output FILE  write here, - for standard output (default: DIR/report.html)\n"
    "  -h, --help         this text\n";

/* The last part of a path, without slashes at its end; "." and ".." give the folder's real name. */
static void base_name(const char *dir, char *name, size_t size)
{
    char *real = realpath(dir, NULL);
    const char *path = real ? real : dir;
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash && slash[1] ? slash + 1 : path);
    free(real);
}

static int write_page(FILE *out, const struct run *run, const char *name, const char *path)
{
    int rv = report_html(out, run, name);
    if (rv)
        cli_error("%s: out of memory", path);
    else if (fflush(out) || ferror(out))
        cli_error("%s: %s", path, strerror(errno)), rv = -1;
    return rv;
}

/* Under another name first: who looks at the old report while a new one is made sees one whole. */
static int write_file(const struct run *run, const char *name, const char *path)
{
    char temporary[PATH_BYTES + 16];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkstemp(temporary);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out) {
        cli_error("%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    int rv = write_page(out, run, name, path);
    if (fclose(out) && !rv) {
        cli_error("%s: %s", path, strerror(errno));
        rv = -1;
    }
    if (!rv && rename(temporary, path)) {
        cli_error("%s: %s", path, strerror(errno));
        rv = -1;
    }
    if (rv)
        unlink(temporary);
    return rv;
}

static int report(const char *dir, const char *output)
{
    char path[PATH_BYTES], name[256];
    struct err err = {{0}};
    struct run run;
    int rv = -1;
    if (snprintf(path, sizeof path, "%s%s", output ? output : dir, output ? "" : "/report.html") >=
        (int)sizeof path) {
        cli_error("%s: the path is too long", output ? output : dir);
        return EXIT_USAGE;
    }
    if (run_read(&run, dir, &err)) {
        cli_error("%s", err.text);
        run_free(&run);
        return EXIT_USAGE;
    }
    base_name(dir, name, sizeof name);
    if (!strcmp(path, "-"))
        rv = write_page(stdout, &run, name, "standard output");
    else if (!(rv = write_file(&run, name, path)))
        printf("%s\n", path);
    run_free(&run);
    return rv ? EXIT_FAILED : EXIT_OK;
}

int cli_report(int argc, char **argv)
{
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *output = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "o:h", options, NULL)) != -1) {
        switch (c) {
        case 'o':
            output = optarg;
            break;
        case 'h':
            fputs(USAGE, stdout);
            return EXIT_OK;
        default:
            fputs(USAGE, stderr);
            return EXIT_USAGE;
        }
    }
    if (optind + 1 != argc) {
        cli_error("report: name one run folder: gtrain report DIR [-o FILE]");
        return EXIT_USAGE;
    }
    return report(argv[optind], output);
}
