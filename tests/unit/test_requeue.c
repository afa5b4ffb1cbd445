/* test_requeue.c - what scontrol says of a job, and what a run folder remembers of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/requeue.h"
#include "launch/run.h"
#include "launch/runstate.h"

/* Shortened from Slurm 22.05. */
#define JOB                                                                                        \
    "JobId=7 JobName=a b UserId=root(0) Reason=None Dependency=(null) Requeue=%s Restarts=%s "     \
    "BatchFlag=%s JobState=%s ReqNodeList=(null) ExcNodeList=%s NodeList=n[0,3-4] BatchHost=n0 "   \
    "NumNodes=3 Comment=Requeue=0 \n"

static void job_lines(void **state)
{
    (void)state;
    static const struct {
        const char *requeue, *restarts, *batch, *state, *excluded;
        int batch_is, allowed, running, restarts_is;
        const char *excluded_is;
    } rows[] = {
        {"1", "0", "1", "RUNNING", "(null)", 1, 1, 1, 0, ""},
        {"0", "3", "1", "RUNNING", "n[1-2],m7", 1, 0, 1, 3, "n[1-2],m7"},
        {"1", "12", "0", "PENDING", "n1", 0, 1, 0, 12, "n1"},
        {"1", "1", "1", "COMPLETING", "n1", 1, 1, 0, 1, "n1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[1024];
        struct requeue_job job;
        snprintf(line, sizeof line, JOB, rows[i].requeue, rows[i].restarts, rows[i].batch,
                 rows[i].state, rows[i].excluded);
        assert_int_equal(requeue_parse(line, &job), 0);
        assert_int_equal(job.batch, rows[i].batch_is);
        assert_int_equal(job.allowed, rows[i].allowed);
        assert_int_equal(job.running, rows[i].running);
        assert_int_equal(job.restarts, rows[i].restarts_is);
        assert_string_equal(job.excluded, rows[i].excluded_is);
        assert_string_equal(job.batch_host, "n0");
        requeue_job_free(&job);
    }
    struct requeue_job job;
    assert_int_equal(requeue_parse("", &job), -1);
    assert_int_equal(requeue_parse("slurm_load_jobs error: Invalid job id specified", &job), -1);
}

static void step_lines(void **state)
{
    (void)state;
    static const char shown[] = "StepId=99.0 UserId=0 TimeLimit=UNLIMITED State=%s Partition=main "
                                "Name=State=RUNNING\n";
    static const struct {
        const char *state;
        int runs;
    } rows[] = {{"RUNNING", 1}, {"CANCELLED", 0}, {"COMPLETING", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[256];
        snprintf(line, sizeof line, shown, rows[i].state);
        assert_int_equal(requeue_step_runs(line), rows[i].runs);
    }
    assert_int_equal(requeue_step_runs(""), 0);
}

static void lose(struct run *run, int node, const char *why)
{
    run->nodes[node].state = RUN_NODE_LOST;
    snprintf(run->nodes[node].why, sizeof run->nodes[node].why, "%s", why);
}

static void open_run(struct run *run, struct run_node nodes[3])
{
    *run = (struct run){.nodes = nodes, .n_nodes = 3, .world = 2, .furthest = 41};
    run->config.generation = 2;
    for (int i = 0; i < 3; i++) {
        nodes[i] = (struct run_node){.node_rank = i == 2 ? -1 : i};
        snprintf(nodes[i].info.node, sizeof nodes[i].info.node, "n%d", i);
    }
}

static void excluded_are(const struct runstate *r, const char *list)
{
    char *text = runstate_excluded(r);
    assert_string_equal(text, list);
    free(text);
}

/* Nodes that failed stay out for the job, over its launches, and for no other job. */
static void remembered_for_the_job(void **state)
{
    (void)state;
    char dir[] = "/tmp/gtrain-requeue.XXXXXX", path[64];
    struct run run;
    struct run_node nodes[3];
    struct runstate r;
    struct err err;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/state.json", dir);
    assert_int_equal(runstate_read(&r, dir, &err), 0);
    runstate_begin(&r, "7", 0, 1);
    open_run(&run, nodes);
    lose(&run, 1, "its agent \"is\" gone");
    assert_int_equal(runstate_lost(&r, &run), 0);
    assert_int_equal(runstate_lost(&r, &run), 0); /* once is enough */
    r.requeues++;
    assert_int_equal(runstate_write(&r, dir, &run, "requeued", "no spare is left", &err), 0);
    runstate_free(&r);

    assert_int_equal(runstate_read(&r, dir, &err), 1);
    assert_string_equal(r.state, "requeued");
    assert_string_equal(r.text, "no spare is left");
    assert_int_equal(r.step, 41);
    assert_int_equal(r.generation, 2);
    assert_int_equal(r.spares, 1);
    assert_int_equal(r.n_failed, 1);
    assert_string_equal(r.failed[0].reason, "its agent \"is\" gone");
    assert_int_equal(r.failed[0].epoch, 1);
    runstate_begin(&r, "7", 1, 2);
    assert_int_equal(r.requeues, 1);
    open_run(&run, nodes);
    lose(&run, 1, "again");
    lose(&run, 0, "it is silent");
    assert_int_equal(runstate_lost(&r, &run), 0);
    excluded_are(&r, "n1,n0");
    assert_int_equal(runstate_write(&r, dir, &run, "running", "", &err), 0);

    /* Its host died: a launch that never came to its end counts. Started by hand it does not. */
    runstate_begin(&r, "7", 1, 3);
    assert_int_equal(r.requeues, 1);
    runstate_begin(&r, "7", 2, 3);
    assert_int_equal(r.requeues, 2);
    runstate_begin(&r, "8", 0, 4);
    assert_int_equal(r.requeues, 0);
    excluded_are(&r, "");
    runstate_free(&r);

    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("[1, 2", f);
    fclose(f);
    assert_int_equal(runstate_read(&r, dir, &err), -1);
    assert_non_null(strstr(err.text, "is not a record of a run's state"));
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_lines),
        cmocka_unit_test(step_lines),
        cmocka_unit_test(remembered_for_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
