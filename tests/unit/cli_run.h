/* cli_run.h - the `gtrain` command as a person runs it: in a folder of the test's own, both outputs
 * in one text. Included by the programs that test a subcommand. */
#ifndef GTRAIN_TEST_CLI_RUN_H
#define GTRAIN_TEST_CLI_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { CLI_OUTPUT = 1 << 20 }; /* room for what it prints */

static char cli_folder[] = "/tmp/gtrain-cli-XXXXXX";

static inline const char *cli_variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

/* Run in the test's folder; $g is gtrain (and subcommand, "" or with a space in front), $p the
 * shipped plans. text: CLI_OUTPUT bytes. The exit status. */
static inline int cli_run(const char *subcommand, const char *command, char *text)
{
    char line[8192];
    snprintf(line, sizeof line, "cd %s && g='%s/gtrain%s' p='%s/contrib/plans' && { %s ; } 2>&1",
             cli_folder, cli_variable("GTRAIN_BUILD", "."), subcommand,
             cli_variable("GTRAIN_SOURCE", "."), command);
    FILE *in = popen(line, "r");
    assert_non_null(in);
    size_t n = fread(text, 1, CLI_OUTPUT - 1, in);
    text[n] = 0;
    int status = pclose(in);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static inline int cli_setup(void **state)
{
    (void)state;
    return mkdtemp(cli_folder) ? 0 : -1;
}

static inline int cli_teardown(void **state)
{
    char line[64];
    (void)state;
    snprintf(line, sizeof line, "rm -r %s", cli_folder);
    return system(line);
}

#endif
