/* news.c - see news.h.
 *
 * The hook runs as the job's user, never as root's other than root's own jobs; that its file is
 * root's and nobody else can write it is looked at all the same, since every user of the site would
 * run it. Nothing a user can name is run: the path comes from plugstack.conf. */
#include "launch/news.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/command.h"

enum { ANSWER_BYTES = 65536, SHOWN_BYTES = 400 };

void news_begin(struct news *n, const char *hook, const char *job, const char *run_dir,
                const struct runstate *record)
{
    *n = (struct news){.hook = hook,
                       .job = job && *job ? job : NULL,
                       .run_dir = run_dir ? run_dir : "",
                       .told = record->n_failed};
}

/* ---- the comment ---- */

void news_describe(const struct run *run, const struct runstate *record, int recovering,
                   char text[NEWS_TEXT_BYTES], char state[NEWS_TEXT_BYTES])
{
    char steps[64], rest[64] = "";
    int spares = run_spares(run), replicas = run->config.shape.data;
    size_t used = 0;
    snprintf(steps, sizeof steps, ", step %lld",
             (long long)(run->furthest < 0 ? 0 : run->furthest));
    if (run->config.steps)
        snprintf(steps + strlen(steps), sizeof steps - strlen(steps), " of %lld",
                 (long long)run->config.steps);
    if (!strcmp(record->state, "running"))
        used = (size_t)snprintf(rest, sizeof rest, ", %d spare%s", spares, spares == 1 ? "" : "s");
    else
        used = (size_t)snprintf(rest, sizeof rest, ", %s", record->state);
    if (replicas < run->replicas)
        used += (size_t)snprintf(rest + used, sizeof rest - used, ", %d of %d replicas", replicas,
                                 run->replicas);
    if (recovering && used < sizeof rest)
        snprintf(rest + used, sizeof rest - used, ", recovering");
    for (int i = 0; i < 2; i++)
        snprintf(i ? state : text, NEWS_TEXT_BYTES, "gtrain: epoch %u, generation %u%s%s",
                 run->config.epoch, run->config.generation, i ? "" : steps, rest);
}

int news_due(const struct news *n, const char *state, int last, int64_t now)
{
    int changed = strcmp(state, n->last) != 0;
    if (!n->job)
        return 0;
    if (!n->last_at || (last && changed))
        return 1;
    return now - n->last_at >= (changed ? NEWS_LEAST_MS : NEWS_EVERY_MS);
}

int news_may_comment(const char *line)
{
    static const char name[] = " Comment=";
    const char *at = strstr(line, name);
    if (!at)
        return 1;
    at += strlen(name);
    return !strncmp(at, "gtrain:", 7) || !strncmp(at, "(null)", 6) || *at == ' ' || *at == '\n' ||
           !*at;
}

/* ---- in a process of its own ---- */

struct errand {
    const struct news *news;
    const struct runstate *record;
    const char *comment; /* NULL: none is due */
    struct runlog *log;
};

static void comment(const struct errand *e)
{
    char job[64], text[NEWS_TEXT_BYTES + 16];
    char *show[] = {"scontrol", "show", "job", "--oneliner", (char *)e->news->job, NULL};
    char *update[] = {"scontrol", "update", job, text, NULL};
    char *answer = malloc(ANSWER_BYTES);
    struct err err;
    snprintf(job, sizeof job, "jobid=%s", e->news->job);
    snprintf(text, sizeof text, "comment=%s", e->comment);
    if (answer && (command_run(show, NEWS_ASK_MS, answer, ANSWER_BYTES, &err) ||
                   (news_may_comment(answer) &&
                    command_run(update, NEWS_ASK_MS, answer, ANSWER_BYTES, &err))))
        runlog_line(e->log, "no comment on job %s: %s", e->news->job, err.text);
    free(answer);
}

/* 0, or -1 with why this file is not run. */
static int trusted(const char *path, struct err *err)
{
    struct stat st;
    if (*path != '/' || stat(path, &st))
        return err_set(err, "%s is not there", path);
    if (!S_ISREG(st.st_mode) || st.st_uid || st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(err, "%s is not a file that only root can write", path);
    return 0;
}

static void run_hook(const struct errand *e, const struct runstate_failed *f)
{
    char when[32], answer[SHOWN_BYTES];
    char *argv[] = {(char *)e->news->hook, (char *)f->node, when, (char *)f->reason, NULL};
    struct err err;
    snprintf(when, sizeof when, "%.0f", f->time);
    if (trusted(e->news->hook, &err) ||
        command_run(argv, NEWS_HOOK_MS, answer, sizeof answer, &err))
        runlog_line(e->log, "hook for node %s: %s", f->node, err.text);
    else if (*answer)
        runlog_line(e->log, "hook for node %s: %.*s", f->node, (int)strcspn(answer, "\n"), answer);
}

static void work(int fd, void *arg)
{
    const struct errand *e = arg;
    e->log->fd = fd;
    setenv("GTRAIN_RUN_DIR", e->news->run_dir, 1);
    for (int i = e->news->told; e->news->hook && i < e->record->n_failed; i++)
        run_hook(e, &e->record->failed[i]);
    if (e->comment)
        comment(e);
}

void news_tell(struct news *n, const struct run *run, const struct runstate *record,
               struct runlog *log, int recovering, int64_t now)
{
    char text[NEWS_TEXT_BYTES], state[NEWS_TEXT_BYTES];
    int failed = n->hook && n->told < record->n_failed, last = run->phase == RUN_ENDED;
    if (!failed && (!n->job || (!last && now - n->looked < NEWS_LOOK_MS)))
        return;
    n->looked = now;
    news_describe(run, record, recovering, text, state);
    int due = news_due(n, state, last, now);
    struct errand e = {.news = n, .record = record, .comment = due ? text : NULL, .log = log};
    if ((due || failed) && command_detach(log->fd, work, &e))
        runlog_line(log,
                    "no process to tell the site that a node has failed, or how the run stands");
    n->told = record->n_failed;
    if (!due)
        return;
    n->last_at = now;
    snprintf(n->last, sizeof n->last, "%s", state);
}
