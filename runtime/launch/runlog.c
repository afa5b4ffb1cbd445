#include "launch/runlog.h"

#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Not waiting: a FIFO in the place of a log is an error, not a coordinator that hangs. */
#define LOG_FLAGS (O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

void runlog_open(struct runlog *log, const char *run_dir)
{
    *log = (struct runlog){.fd = -1};
    if (!run_dir || !*run_dir)
        return;
    char path[PATH_MAX], old[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/coordinator.log", run_dir) >= (int)sizeof path ||
        snprintf(old, sizeof old, "%s/coordinator.log.old", run_dir) >= (int)sizeof old)
        return;
    struct stat st;
    if (!stat(path, &st) && st.st_size > RUNLOG_FILE_BYTES)
        rename(path, old);
    log->fd = open(path, LOG_FLAGS, 0666);
}

void runlog_close(struct runlog *log)
{
    if (log->fd >= 0)
        close(log->fd);
    log->fd = -1;
}

void runlog_line(struct runlog *log, const char *format, ...)
{
    if (log->fd < 0 || log->bytes > RUNLOG_LAUNCH_BYTES)
        return;
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ld ", now.tv_nsec / 1000000);
    va_list ap;
    va_start(ap, format);
    int more = vsnprintf(line + n, sizeof line - n - 1, format, ap);
    va_end(ap);
    n += more < 0 ? 0 : (size_t)more;
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    log->bytes += n;
    if (write(log->fd, line, n) < 0)
        return; /* a full disk must not stop a run */
    if (log->bytes > RUNLOG_LAUNCH_BYTES) {
        static const char full[] = "the log of this launch is full: nothing more is written\n";
        if (write(log->fd, full, sizeof full - 1) < 0)
            return;
    }
}

void runlog_event(struct runlog *log, const char *run_dir, const char *kind, int64_t step,
                  const char *text)
{
    char path[PATH_MAX];
    if (!run_dir || !*run_dir ||
        snprintf(path, sizeof path, "%s/events.jsonl", run_dir) >= (int)sizeof path)
        return;
    int fd = open(path, LOG_FLAGS, 0644);
    struct json_object *quoted = json_object_new_string(text);
    struct timespec now;
    char line[4096];
    clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(line, sizeof line,
                     "{\"time\":%lld.%03ld,\"kind\":\"%s\",\"step\":%lld,\"text\":%s}\n",
                     (long long)now.tv_sec, now.tv_nsec / 1000000, kind, (long long)step,
                     quoted ? json_object_to_json_string(quoted) : "\"\"");
    json_object_put(quoted);
    if (fd < 0 || n >= (int)sizeof line || write(fd, line, (size_t)n) != n)
        runlog_line(log, "cannot write %s: %m", path);
    if (fd >= 0)
        close(fd);
}

static void print_node(FILE *out, const struct run *run, int i)
{
    const struct run_node *node = &run->nodes[i];
    int tasks = run->config.shape.tasks;
    char ranks[64];
    if (node->node_rank < 0)
        snprintf(ranks, sizeof ranks, node->state == RUN_NODE_LOST ? "lost" : "spare");
    else
        snprintf(ranks, sizeof ranks, "%d-%d", node->node_rank * tasks,
                 node->node_rank * tasks + tasks - 1);
    fprintf(out, "%-13s %-20s %-30s %-16s %u\n", ranks, node->info.node,
            *node->info.topology ? node->info.topology : "-", node->info.address, node->info.cores);
}

void runlog_placement(struct runlog *log, const char *run_dir, const struct run *run)
{
    char path[PATH_MAX];
    if (!run_dir || !*run_dir ||
        snprintf(path, sizeof path, "%s/placement.txt", run_dir) >= (int)sizeof path)
        return;
    int fd = open(path, (LOG_FLAGS & ~O_APPEND) | O_TRUNC, 0666);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out) {
        runlog_line(log, "cannot write %s: %m", path);
        if (fd >= 0)
            close(fd);
        return;
    }
    const struct placement_shape *s = &run->config.shape;
    fprintf(out, "epoch %u generation %u: %d ranks = %d inner x %d pipeline x %d data, %d a node\n",
            run->config.epoch, run->config.generation, run->world, s->inner, s->pipeline, s->data,
            s->tasks);
    fprintf(out, "%-13s %-20s %-30s %-16s %s\n", "ranks", "node", "topology", "address", "cores");
    for (int r = 0; r < run->world / s->tasks; r++)
        print_node(out, run, run_find_node_rank(run, r));
    for (int i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].node_rank < 0)
            print_node(out, run, i);
    struct placement_cost c = run_placement_cost(run);
    fprintf(out,
            "\nneighbours under different switches: tensor groups %d, pipelines %d, replicas %d\n",
            c.inner, c.pipeline, c.data);
    fclose(out);
}
