/* cmdline.h - what a command line of srun, sbatch or salloc says, read before Slurm reads it.
 *
 * Slurm gives a plugin its options only after srun has taken its own settings from the environment,
 * but those settings (SLURM_NO_KILL and others) must be there by then if, and only if, the job asks
 * for gtrain. So the arguments are looked through once, without touching them, up to the program.
 */
#ifndef GTRAIN_SPANK_CMDLINE_H
#define GTRAIN_SPANK_CMDLINE_H

#include <stdbool.h>

/* The plugin's options, in the order of option_names. */
enum option_id { OPTION_PLAN, OPTION_SPARES, OPTION_RESTORE, OPTION_DIR, OPTION_COUNT };

/* Names as on the command line, without dashes. */
extern const char *const option_names[OPTION_COUNT];

/* More words than this that say where a step goes, nobody writes. */
#define CMDLINE_PLACES 8

/* Every string points into the argv that was scanned, NULL where nothing was said. */
struct cmdline {
    const char *value[OPTION_COUNT];
    const char *other[OPTION_COUNT]; /* a second, different value of the same option */
    const char *nodes;               /* -N, --nodes */
    const char *tasks;               /* -n, --ntasks */
    const char *tasks_per_node;      /* --ntasks-per-node */
    bool pty, multi_prog;
    bool label, output;        /* -l, --label; -o, --output */
    bool heterogeneous;        /* ":" between components, or --het-group */
    int place[CMDLINE_PLACES]; /* indices of the words that say where in the allocation the step
                                * goes
                                * (--exclusive, -r, --relative) */
    int places;
    int options_end; /* index behind the last option, where one more could stand */
    int program;     /* index of the program in argv; argc if there is none */
};

/* Look through argv[1..argc-1]. */
void cmdline_scan(struct cmdline *c, int argc, char *const argv[]);

/* Whether the program is `gtrain train`, by whatever path. */
bool cmdline_runs_train(const struct cmdline *c, int argc, char *const argv[]);

/* A count written as plain decimal digits, 1 to 1,000,000; 0 for NULL and for anything else, a
 * range such as 2-4 included: "not known". */
int cmdline_count(const char *text);

#endif
