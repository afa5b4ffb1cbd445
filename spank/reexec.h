/* reexec.h - start this very process's program anew, in the same process: its input, output, number
 * and exit code, and the signals sent to it, stay those of the command that the user started. */
#ifndef GTRAIN_SPANK_REEXEC_H
#define GTRAIN_SPANK_REEXEC_H

/* Remember what the program was started with: its words, environment, open descriptors, blocked
 * signals. Before it changes any of them. Returns 0, or -1 with errno set. */
int reexec_save(int argc, char *const argv[]);

/* The words that were saved. */
char *const *reexec_argv(void);

/* Become the program anew, with these words, one variable more, and nothing on its standard input
 * (what has been read of it is gone). Returns, with errno set, only if that cannot be done. */
void reexec_run(char *const argv[], const char *variable, const char *value);

#endif
