/* site.c - the arguments in plugstack.conf. They live as long as Slurm's plugin stack, so nothing
 * is copied. */
#include "site.h"

#include <stdint.h>
#include <string.h>
#include <slurm/spank.h>

static const char gtrain_installed[] = GTRAIN_BINDIR "/gtrain";
static const char agent_installed[] = GTRAIN_LIBEXECDIR "/gtrain-agent";

int site_parse(struct site *site, int argc, char **argv)
{
    site->gtrain = gtrain_installed;
    site->agent = agent_installed;
    site->on_failure = NULL;
    site->comment = "on";
    site->cli_filter = false;
    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');

        if (!strncmp(argv[i], "gtrain=", 7) && equals[1] == '/')
            site->gtrain = equals + 1;
        else if (!strncmp(argv[i], "agent=", 6) && equals[1] == '/')
            site->agent = equals + 1;
        else if (!strncmp(argv[i], "on_failure=", 11) && equals[1] == '/')
            site->on_failure = equals + 1;
        else if (!strcmp(argv[i], "comment=off") || !strcmp(argv[i], "comment=on"))
            site->comment = equals + 1;
        else if (!strcmp(argv[i], "cli_filter"))
            site->cli_filter = true;
        else {
            slurm_error("gtrain: plugstack.conf: '%s' is not understood: write gtrain=/PATH, "
                        "agent=/PATH, on_failure=/PATH, comment=off or cli_filter",
                        argv[i]);
            return -1;
        }
    }
    return 0;
}
