/* news.h - what a coordinator tells the site beside its own records: a comment that `scontrol show
 * job` carries, and a hook of the sysadmin's for each node that has failed.
 *
 * Both are done by a process of their own: a slow slurmctld or hook holds nothing up, and none of
 * their failures is the run's. */
#ifndef GTRAIN_LAUNCH_NEWS_H
#define GTRAIN_LAUNCH_NEWS_H

#include <stdint.h>

#include "launch/run.h"
#include "launch/runlog.h"
#include "launch/runstate.h"

enum {
    NEWS_LEAST_MS = 10000,  /* between two comments: slurmctld has other work */
    NEWS_LOOK_MS = 500,     /* between two looks whether there is anything to say */
    NEWS_EVERY_MS = 300000, /* where only the step has changed */
    NEWS_ASK_MS = 10000,    /* for one answer of a busy slurmctld */
    NEWS_HOOK_MS = 30000,   /* for a hook, then it is killed */
    NEWS_TEXT_BYTES = 160,
};

struct news {
    const char *hook; /* absolute path; NULL: none */
    const char *run_dir;
    const char *job; /* whose comment; NULL: no comment */
    int told;        /* failed nodes of the record */
    char last[NEWS_TEXT_BYTES];
    int64_t last_at; /* 0: no comment yet */
    int64_t looked;  /* when it was last found out what there is to say */
};

/* Nodes that are in the record already are not told of again. */
void news_begin(struct news *n, const char *hook, const char *job, const char *run_dir,
                const struct runstate *record);

/* Tell what is new and due. `recovering`: a generation has begun and not made a step yet. */
void news_tell(struct news *n, const struct run *run, const struct runstate *record,
               struct runlog *log, int recovering, int64_t now);

/* "gtrain: epoch 1, generation 2, step 40 of 150, 1 spare": without the step in `state`, which says
 * whether anything else has changed. */
void news_describe(const struct run *run, const struct runstate *record, int recovering,
                   char text[NEWS_TEXT_BYTES], char state[NEWS_TEXT_BYTES]);

/* Is a comment due? The last one of a run does not wait. Pure. */
int news_due(const struct news *n, const char *state, int last, int64_t now);

/* Whether a comment may be replaced: there is none, or it is ours. `line` as scontrol shows a job.
 */
int news_may_comment(const char *line);

#endif
