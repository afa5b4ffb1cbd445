#include "launch/coordinator_relaunch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SILENT[] = "it did not answer while the step was launched";

static int has_failed(const struct runstate *record, const char *node, size_t length)
{
    for (int i = 0; i < record->n_failed; i++)
        if (strlen(record->failed[i].node) == length &&
            !strncmp(record->failed[i].node, node, length))
            return 1;
    return 0;
}

int relaunch_usable(const char *job_nodes, const struct runstate *record)
{
    int usable = 0;
    for (const char *at = job_nodes; *at;) {
        size_t length = strcspn(at, ",");
        usable += length && !has_failed(record, at, length);
        at += length + (at[length] == ',');
    }
    return usable;
}

void relaunch_begin(struct relaunch *r, const char *job_nodes, int limit, int left,
                    const struct run *run, const struct runstate *record)
{
    *r = (struct relaunch){.job_nodes = job_nodes,
                           .limit = limit,
                           .left = left < 0 || left > limit ? limit : left,
                           .needed = run->world / run->config.shape.tasks,
                           .begun_before = record->begun};
}

void relaunch_tell(struct relaunch *r, const struct runstate *record, struct relaunch_line line)
{
    char text[RELAUNCH_LINE_BYTES];
    if (!r->job_nodes)
        return;
    for (; r->told < record->n_failed; r->told++) {
        snprintf(text, sizeof text, "lost %s", record->failed[r->told].node);
        line.tell(line.to, text);
    }
    snprintf(text, sizeof text, "relaunch %d %d", r->left, r->needed);
    line.tell(line.to, text);
}

int relaunch_progress(struct relaunch *r, const struct run *run, struct runstate *record)
{
    if (r->begun || !run->phases.restored)
        return 0;
    r->begun = 1;
    record->begun = run->ranks[0].begin;
    if (record->begun > r->begun_before)
        r->left = r->limit;
    return 1;
}

static void forget_absent(struct relaunch *r)
{
    for (int i = 0; i < r->n_absent; i++)
        free(r->absent[i]);
    r->n_absent = 0;
}

/* Of those that have registered the coordinator knows better. */
static int hear_absent(struct relaunch *r, const char *node, const struct run *run)
{
    for (int i = 0; i < run->n_nodes; i++)
        if (!strcmp(run->nodes[i].info.node, node))
            return 0;
    char **more = reallocarray(r->absent, (size_t)r->n_absent + 1, sizeof *more);
    if (!more)
        return -1;
    r->absent = more;
    r->absent[r->n_absent] = strdup(node);
    if (!r->absent[r->n_absent])
        return -1;
    r->n_absent++;
    return 0;
}

static int hear_line(struct relaunch *r, const char *line, const struct run *run,
                     struct runstate *record)
{
    if (!strncmp(line, "absent ", 7) && line[7])
        return hear_absent(r, line + 7, run);
    r->answered |= !strcmp(line, "asked");
    if (strncmp(line, "silent ", 7) != 0 || !line[7])
        return 0;
    r->silent++;
    return runstate_failed(record, line + 7, SILENT);
}

int relaunch_answer(struct relaunch *r, struct run *run, struct runstate *record, int64_t now)
{
    int bad = 0, before = run->cause;
    if (!r->answered)
        return 0;
    run_absent(run, r->n_absent ? r->absent[0] : "", r->n_absent, now);
    for (int i = 0; run->cause && !before && i < r->n_absent; i++) {
        r->silent++;
        bad |= runstate_failed(record, r->absent[i], SILENT);
    }
    forget_absent(r);
    r->answered = 0;
    return bad ? -1 : 0;
}

void relaunch_end(struct relaunch *r)
{
    forget_absent(r);
    free(r->absent);
    r->absent = NULL;
}

int relaunch_hear(struct relaunch *r, const char *bytes, size_t n, const struct run *run,
                  struct runstate *record)
{
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') {
            if (r->have < sizeof r->line - 1)
                r->line[r->have++] = bytes[i];
            continue;
        }
        r->line[r->have] = 0;
        r->have = 0;
        bad |= hear_line(r, r->line, run, record);
    }
    return bad ? -1 : 0;
}

void relaunch_blame(const struct relaunch *r, struct run *run, const struct runstate *record,
                    int64_t now)
{
    if (r->silent && record->n_failed)
        run_not_launched(run, record->failed[record->n_failed - 1].node, r->silent, now);
}

int relaunch_possible(const struct relaunch *r, const struct run *run,
                      const struct runstate *record, int srun_is_gone)
{
    return r->job_nodes && r->left > 0 && run->machine && run->code && !run->ordered &&
           (!srun_is_gone || r->silent) && relaunch_usable(r->job_nodes, record) >= r->needed;
}
