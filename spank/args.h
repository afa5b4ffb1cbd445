/* args.h - the plugin's options: registered with Slurm, gathered from the command line, from an
 * enclosing sbatch or salloc, and from the environment. */
#ifndef GTRAIN_SPANK_ARGS_H
#define GTRAIN_SPANK_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include <slurm/spank.h>

#include "cmdline.h"

/* What the options come to. Strings are the struct's own, "" where nothing was said. */
struct args {
    char plan[8192]; /* FILE[,key=value...] */
    char spares[16];
    char restore[4096];
    char dir[4096];
};

/* Register the options in this context. `cmdline` must outlive the plugin. Returns 0, or -1 after
 * one line in Slurm's log. */
int args_register(spank_t sp, const struct cmdline *cmdline);

/* What to call when a line of a batch script (#SBATCH) first asks for a plan. */
void args_on_plan_in_script(void (*callback)(void));

/* Whether the option was given, on the command line or in a batch script, and not inherited. */
bool args_given(enum option_id id);

/* Whether an enclosing sbatch or salloc, or GTRAIN_PLAN, names a plan. */
bool args_plan_inherited(void);

/* Resolve the options of an srun that asks: its own words first, then those of the enclosing job,
 * then GTRAIN_PLAN, GTRAIN_SPARES, GTRAIN_RESTORE and GTRAIN_DIR. Returns 0, or -1 after one line
 * in Slurm's log. */
int args_resolve(struct args *args);

/* As args_resolve, for sbatch and salloc: nothing is inherited there. */
int args_resolve_job(struct args *args);

/* The names of the variables by which options reach srun from sbatch and salloc, and from the user.
 */
extern const char *const inherited_names[OPTION_COUNT];
extern const char *const variable_names[OPTION_COUNT];

#endif
