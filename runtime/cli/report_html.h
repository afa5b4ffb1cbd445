/* report_html.h - the report's page, from what report_read.c found. */
#ifndef GTRAIN_REPORT_HTML_H
#define GTRAIN_REPORT_HTML_H

#include <stdio.h>

#include "cli/report_read.h"

/* One HTML page that needs nothing beside itself. name: of the run, for the title. The same run
 * gives the same bytes. -1: out of memory; writing errors stay with out (ferror). */
int report_html(FILE *out, const struct run *run, const char *name);

/* Text, with what HTML would take for markup escaped and what is no text left out. */
void html_text(FILE *out, const char *text, size_t length);

#endif
