#include "launch/coordinator_requeue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/requeue.h"

/* The nodes that live, and the batch host unless it is lost: "n0,n2". NULL when memory is out. */
static char *living(const struct run *run, const char *batch_host)
{
    size_t room = strlen(batch_host) + 2, used = 0;
    int batch_host_is_in = !*batch_host;
    for (int i = 0; i < run->n_nodes; i++)
        room += strlen(run->nodes[i].info.node) + 1;
    char *text = calloc(1, room);
    for (int i = 0; text && i < run->n_nodes; i++) {
        const struct run_node *node = &run->nodes[i];
        batch_host_is_in |= !strcmp(node->info.node, batch_host);
        if (node->state == RUN_NODE_UP)
            used += (size_t)snprintf(text + used, room - used, "%s%s", used ? "," : "",
                                     node->info.node);
    }
    if (text && !batch_host_is_in)
        snprintf(text + used, room - used, "%s%s", used ? "," : "", batch_host);
    return text;
}

/* It is counted first: a count that is too high ends a run early, one too low never ends it. */
static int give_back(struct runstate *record, const struct run *run, const struct requeue_job *job,
                     const char *run_dir, struct err *err)
{
    char *keep = living(run, job->batch_host), *exclude = runstate_excluded(record);
    struct requeue r = {
        .job_id = record->job, .restarts = record->restarts, .keep = keep, .exclude = exclude};
    int bad = keep && exclude ? 0 : err_set(err, "out of memory");
    if (!bad)
        bad = runstate_write(record, run_dir, run, "requeued", run->text, err);
    if (!bad)
        bad = requeue_do(&r, job, err);
    free(keep);
    free(exclude);
    return bad;
}

int coordinator_requeue(struct runstate *record, const struct run *run, int requeues,
                        const char *run_dir, struct runlog *log,
                        void (*say)(struct coordinator *c, const char *text), struct coordinator *c,
                        char *text, size_t room)
{
    struct requeue_job job;
    struct err err;
    int bad = -1;
    text[0] = 0;
    if (!run->machine || !run->code || !*record->job || !requeues)
        return 0;
    if (requeue_ask(record->job, record->restarts, &job, &err)) {
        runlog_line(log, "no requeue: %s", err.text);
        return 0;
    }
    if (record->requeues >= requeues) {
        snprintf(text, room,
                 "; job %s has been requeued %d times, which is enough (resilience.requeues)",
                 record->job, record->requeues);
    } else {
        record->requeues++;
        snprintf(text, room, "%s; job %s goes back into the queue (%d of %d times)", run->text,
                 record->job, record->requeues, requeues);
        say(c, text);
        bad = give_back(record, run, &job, run_dir, &err);
        snprintf(text, room, "; job %s cannot be requeued: %s", record->job, err.text);
    }
    requeue_job_free(&job);
    return !bad;
}
