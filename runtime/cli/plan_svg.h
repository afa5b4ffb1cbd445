/* plan_svg.h - a plan as one picture that stands alone: sizes, rank map, pipeline schedule. */
#ifndef GTRAIN_CLI_PLAN_SVG_H
#define GTRAIN_CLI_PLAN_SVG_H

#include <stdio.h>

#include "base/err.h"
#include "plan/plan.h"
#include "train/program.h"

/* stages: the programs of all pipeline stages. 0, or -1 with err. */
int plan_svg(const struct plan *plan, const struct program *stages, FILE *out, struct err *err);

#endif
