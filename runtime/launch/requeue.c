/* requeue.c - see requeue.h.
 *
 * In order: the lost nodes are given back, or Slurm would wait for them to confirm the job's end
 * until it has noticed that they are gone (SlurmdTimeout, 300 s); this is refused for the batch
 * host. Then the job is requeued. A requeued job waits until the credentials of its last start have
 * expired (121 s) unless it is told when to start once it waits, and only then can nodes be
 * excluded. */
#include "launch/requeue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/command.h"

/* ---- scontrol ---- */

static int scontrol(char *const argv[], char *text, size_t room, struct err *err)
{
    return command_run(argv, REQUEUE_ASK_MS, text, room, err);
}

/* ---- the job ---- */

/* The value of " NAME=value ", or NULL; its length. */
static const char *field(const char *line, const char *name, size_t *length)
{
    size_t n = strlen(name);
    for (const char *at = line; (at = strstr(at, name)); at += n)
        if ((at == line || at[-1] == ' ' || at[-1] == '\n') && at[n] == '=') {
            *length = strcspn(at + n + 1, " \n");
            return at + n + 1;
        }
    return NULL;
}

static int is(const char *line, const char *name, const char *value)
{
    size_t length;
    const char *at = field(line, name, &length);
    return at && length == strlen(value) && !strncmp(at, value, length);
}

int requeue_parse(const char *line, struct requeue_job *job)
{
    size_t length, host, excluded;
    const char *restarts = field(line, "Restarts", &length);
    const char *batch_host = field(line, "BatchHost", &host);
    const char *nodes = field(line, "ExcNodeList", &excluded);
    if (!field(line, "JobId", &length) || !restarts || !nodes)
        return -1;
    *job = (struct requeue_job){.batch = is(line, "BatchFlag", "1"),
                                .allowed = is(line, "Requeue", "1"),
                                .running = is(line, "JobState", "RUNNING"),
                                .restarts = atoi(restarts)};
    if (batch_host)
        snprintf(job->batch_host, sizeof job->batch_host, "%.*s", (int)host, batch_host);
    job->excluded = is(line, "ExcNodeList", "(null)") ? strdup("") : strndup(nodes, excluded);
    return job->excluded ? 0 : -1;
}

void requeue_job_free(struct requeue_job *job)
{
    free(job->excluded);
    job->excluded = NULL;
}

static int judge(const char *job_id, int restarts, const struct requeue_job *job, struct err *err)
{
    if (!job->batch)
        return err_set(err, "job %s is not a batch job: Slurm cannot start it again", job_id);
    if (!job->allowed)
        return err_set(err, "job %s was submitted with --no-requeue", job_id);
    if (job->restarts != restarts || !job->running)
        return err_set(err, "job %s is not running this launch any more", job_id);
    return 0;
}

int requeue_ask(const char *job_id, int restarts, struct requeue_job *job, struct err *err)
{
    char *argv[] = {"scontrol", "show", "job", "--oneliner", (char *)job_id, NULL};
    char *text = malloc(REQUEUE_TEXT_BYTES);
    int bad = text ? scontrol(argv, text, REQUEUE_TEXT_BYTES, err) : err_set(err, "out of memory");
    if (!bad && requeue_parse(text, job))
        bad = err_set(err, "scontrol's answer about job %s is not understood", job_id);
    else if (!bad && (bad = judge(job_id, restarts, job, err)))
        requeue_job_free(job);
    free(text);
    return bad;
}

int requeue_step_runs(const char *line)
{
    return is(line, "State", "RUNNING");
}

int requeue_step_cancelled(const char *job_id, const char *step_id)
{
    char step[128], text[2048];
    char *argv[] = {"scontrol", "show", "step", "--oneliner", step, NULL};
    snprintf(step, sizeof step, "%s.%s", job_id, step_id);
    for (int i = 0; i < REQUEUE_LOOKS; i++) {
        struct err err = {""};
        if (i)
            poll(NULL, 0, REQUEUE_LOOK_MS);
        if (!scontrol(argv, text, sizeof text, &err)) {
            if (!requeue_step_runs(text))
                return 1;
        } else {
            return strstr(text, "not found") != NULL; /* else Slurm does not answer */
        }
    }
    return 0;
}

/* ---- the process that does it ---- */

/* Room for what is said to scontrol. */
struct words {
    char job[64], nodes[REQUEUE_TEXT_BYTES], exclude[REQUEUE_TEXT_BYTES], start[64];
    char answer[REQUEUE_TEXT_BYTES];
};

static void give_back_lost(struct words *w, const struct requeue *r)
{
    char *argv[] = {"scontrol", "update", w->job, w->nodes, NULL};
    if (*r->keep &&
        snprintf(w->nodes, sizeof w->nodes, "nodelist=%s", r->keep) < (int)sizeof w->nodes)
        scontrol(argv, w->answer, sizeof w->answer, NULL); /* only slower without */
}

/* Tell the waiting job when to start, and where not. Slurm may still be busy with its end. */
static void hasten(struct words *w, const struct requeue *r, const struct requeue_job *job)
{
    char *argv[] = {"scontrol", "update", w->job, w->start, w->exclude, NULL};
    const char *comma = *job->excluded && *r->exclude ? "," : "";
    snprintf(w->start, sizeof w->start, "starttime=now+%d", REQUEUE_START_S);
    int n = snprintf(w->exclude, sizeof w->exclude, "excnodelist=%s%s%s", job->excluded, comma,
                     r->exclude);
    if (n >= (int)sizeof w->exclude || !*r->exclude)
        argv[4] = NULL;
    for (int i = 0; i < REQUEUE_TRIES; i++) {
        if (!scontrol(argv, w->answer, sizeof w->answer, NULL))
            return;
        if (i == REQUEUE_TRIES / 2)
            argv[4] = NULL; /* perhaps it is the nodes that Slurm does not like */
        sleep(1);
    }
}

static void work(const struct requeue *r, const struct requeue_job *job, int tell)
{
    struct words *w = calloc(1, sizeof *w);
    struct err err = {"out of memory"};
    sigset_t none;
    sigemptyset(&none);
    signal(SIGTERM, SIG_IGN); /* Slurm ends the step meanwhile */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int bad = -1;
    if (w) {
        char *argv[] = {"scontrol", "requeue", (char *)r->job_id, NULL};
        snprintf(w->job, sizeof w->job, "jobid=%s", r->job_id);
        give_back_lost(w, r);
        bad = scontrol(argv, w->answer, sizeof w->answer, &err);
    }
    const char *word = bad ? err.text : "ok";
    ssize_t told = write(tell, word, strlen(word));
    (void)told; /* who wanted to know may be gone by now; the job still waits */
    close(tell);
    if (!bad)
        hasten(w, r, job);
    free(w);
}

int requeue_do(const struct requeue *r, const struct requeue_job *job, struct err *err)
{
    int tell[2];
    char word[sizeof err->text];
    if (pipe2(tell, O_CLOEXEC))
        return err_set_errno(err, errno, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        int fd =
            dup2(tell[1], STDIN_FILENO); /* and nothing else of ours, the folder's lock above */
        dup2(open("/dev/null", O_RDWR), STDOUT_FILENO);
        dup2(STDOUT_FILENO, STDERR_FILENO);
        command_close_above_stderr();
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        work(r, job, fd);
        _exit(0);
    }
    close(tell[1]);
    int bad = pid < 0 || command_read(tell[0], word, sizeof word, clock_ms() + REQUEUE_TELL_MS);
    close(tell[0]);
    if (bad)
        return err_set(err, "Slurm has not taken job %s back within %d s", r->job_id,
                       REQUEUE_TELL_MS / 1000);
    return strcmp(word, "ok") ? err_set(err, "%s", word) : 0;
}
