/* cli.h - the `gtrain` command: one file per subcommand, one table in main.c. */
#ifndef GTRAIN_CLI_H
#define GTRAIN_CLI_H

/* Exit codes, also told to the launcher: 2 and 3 mean "starting again will not help". */
enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,  /* the machine or a peer failed: worth another try */
    EXIT_USAGE = 2,   /* wrong options, plan or input */
    EXIT_PROGRAM = 3, /* a bug or a loss that is not a number */
};

struct plan;

struct cli_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0]: see cli_run; returns the exit code */
};

int cli_coordinate(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_train(int argc, char **argv);
int cli_ckpt(int argc, char **argv);
/* Its subcommands in ckpt_convert.c. */
int cli_ckpt_import(int argc, char **argv);
int cli_ckpt_export(int argc, char **argv);
/* In ckpt_prune.c, ckpt_reshard.c. */
int cli_ckpt_reshard(int argc, char **argv);
int cli_ckpt_prune(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_simulate(int argc, char **argv);
int cli_status(int argc, char **argv);

/* run with argv[0] as its errors begin, getopt's too: "gtrain: NAME". */
int cli_run(int (*run)(int argc, char **argv), const char *name, int argc, char **argv);

/* The plan "FILE[,section.key=value...]"; NULL after an error that is told. */
struct plan *cli_load_plan(const char *spec);

/* "gtrain: " + text to stderr, one line. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
