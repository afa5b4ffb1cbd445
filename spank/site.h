/* site.h - what the site's plugstack.conf says behind the plugin's name. */
#ifndef GTRAIN_SPANK_SITE_H
#define GTRAIN_SPANK_SITE_H

#include <stdbool.h>

/* Paths, valid for as long as the plugin is loaded. */
struct site {
    const char *gtrain;     /* the gtrain command, on the host srun runs on */
    const char *agent;      /* gtrain-agent, on the nodes */
    const char *on_failure; /* the site's hook for a node that has failed; NULL: none */
    const char *comment;    /* on the job: "on" or "off" */
    bool cli_filter;        /* it adds the spares to -N, or will: contrib/cli_filter.lua */
};

/* Read `gtrain=PATH agent=PATH on_failure=PATH comment=off
 * cli_filter`; what is not named is where it was installed. Returns 0,
 * or -1 after one line in Slurm's log. */
int site_parse(struct site *site, int argc, char **argv);

#endif
