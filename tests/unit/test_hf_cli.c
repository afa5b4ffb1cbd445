/* test_hf_cli.c - `gtrain ckpt import | export | reshard` as processes: interrupted, killed, with
 * nobody reading what they print, and how much memory they take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "hf/hf.h"
#include "hf_rig.h"
#include "train/model.h"
#include "train_rig.h"

enum { PATIENCE_MS = 60000, ARGS_MAX = 12 };

static struct hf_rig rig;

/* ---- processes ---- */

/* gtrain ckpt ARGS..., its standard output to `output`, errors to the file "errors". */
static pid_t start(const char *const args[ARGS_MAX], int output)
{
    char program[4096], errors[320];
    const char *build = getenv("GTRAIN_BUILD"), *argv[ARGS_MAX + 3] = {"gtrain", "ckpt"};
    snprintf(program, sizeof program, "%s/gtrain", build ? build : ".");
    snprintf(errors, sizeof errors, "%s/errors", rig.folder);
    for (int i = 0; i < ARGS_MAX && args[i]; i++)
        argv[i + 2] = args[i];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    int fd = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(126);
    signal(SIGPIPE, SIG_DFL); /* whatever the caller of the test made of them */
    signal(SIGINT, SIG_DFL);
    execv(program, (char *const *)argv);
    _exit(127);
}

static int wait_for(pid_t pid, struct rusage *usage)
{
    int status;
    for (int64_t end = clock_ms() + PATIENCE_MS; clock_ms() < end;) {
        pid_t ended = wait4(pid, &status, WNOHANG, usage);
        if (ended == pid)
            return status;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("the process does not end");
    return -1;
}

static void says(const char *wanted)
{
    char path[320], text[4096];
    snprintf(path, sizeof path, "%s/errors", rig.folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    if (!strstr(text, wanted))
        fail_msg("no '%s' in: %s", wanted, text);
}

/* Runs to its end; output, where not NULL: what it printed. */
static int run(const char *const args[ARGS_MAX], char output[8192], struct rusage *usage)
{
    char path[320];
    struct rusage unused;
    snprintf(path, sizeof path, "%s/printed", rig.folder);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    int status = wait_for(start(args, fd), usage ? usage : &unused);
    if (output) {
        ssize_t n = pread(fd, output, 8191, 0);
        output[n < 0 ? 0 : n] = 0;
    }
    close(fd);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* How many names in the test's folder begin so. The last: one of them. */
static int names_with(const char *begin, char last[300])
{
    int n = 0;
    DIR *d = opendir(rig.folder);
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, begin, strlen(begin))) {
            n++;
            if (last)
                snprintf(last, 300, "%.290s", e->d_name);
        }
    closedir(d);
    return n;
}

/* ---- in the middle ---- */

static void make_run(void)
{
    struct err err;
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, false, HF_F32, 1);
    hf_rig_write(&rig, hf_rig_config);
    hf_rig_ok(hf_import(rig.hf, rig.out, NULL, NULL, &err), &err);
}

/* A pipe with no room left: who prints into it waits. */
static void full_pipe(int ends[2])
{
    char byte = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], &byte, 1) == 1)
        ;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
}

/* One that waits while its folder is half made, as nobody reads what it prints. */
static pid_t start_and_wait_for(const char *const args[ARGS_MAX], int ends[2])
{
    full_pipe(ends);
    pid_t pid = start(args, ends[1]);
    close(ends[1]);
    for (int64_t end = clock_ms() + PATIENCE_MS; !names_with("back.part.", NULL);) {
        assert_true(clock_ms() < end);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return pid;
}

static pid_t start_and_wait(int ends[2])
{
    const char *const args[ARGS_MAX] = {"export", "--shard-bytes", "3000", rig.out, rig.back};
    return start_and_wait_for(args, ends);
}

static void interrupt(const char *const args[ARGS_MAX], int number)
{
    int ends[2];
    struct rusage usage;
    char wanted[100];
    pid_t pid = start_and_wait_for(args, ends);
    kill(pid, number);
    int status = wait_for(pid, &usage);
    close(ends[0]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
        fail_msg("%s ended with status %x, not by signal %d", args[0], status, number);
    snprintf(wanted, sizeof wanted, "gtrain: %s: interrupted: nothing was made", args[0]);
    says(wanted);
    assert_int_equal(names_with("back", NULL), 0);
}

static void interrupted_it_leaves_nothing(void **state)
{
    (void)state;
    char plan[400];
    const char *const export[ARGS_MAX] = {"export", "--shard-bytes", "3000", rig.out, rig.back},
                      *const reshard[ARGS_MAX] = {"reshard", rig.out, rig.back, "--plan", plan};
    snprintf(plan, sizeof plan, "%s/plan.yaml,parallel.tensor=2,parallel.data=4", rig.out);
    make_run();
    interrupt(export, SIGINT);
    interrupt(export, SIGHUP); /* libraries listen to it, too */
    interrupt(reshard, SIGTERM);
}

static void unread_it_leaves_nothing(void **state)
{
    (void)state;
    int ends[2];
    struct rusage usage;
    make_run();
    pid_t pid = start_and_wait(ends);
    close(ends[0]);
    int status = wait_for(pid, &usage);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
    assert_int_equal(names_with("back", NULL), 0);
}

static void prune_says(const char *dir, bool dry, int status, const char *wanted)
{
    char output[8192];
    const char *const args[ARGS_MAX] = {"prune", dir, dry ? "--dry-run" : NULL};
    int code = run(args, output, NULL);
    if (code != status || !strstr(output, wanted))
        fail_msg("prune %s: %d, or no '%s' in: %s", dir, code, wanted, output);
}

/* Of a killed one a half is left, which goes on request, however it is named. */
static void killed_it_is_pruned(void **state)
{
    (void)state;
    char part[300], path[600];
    const char *const ways[] = {rig.back, rig.folder, path};
    make_run();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int ends[2];
        struct rusage usage;
        pid_t pid = start_and_wait(ends);
        assert_int_equal(names_with("back.part.", part), 1);
        snprintf(path, sizeof path, "%s/%s", rig.folder, part);
        prune_says(ways[i], false, ways[i] == path, "is being made, stays");
        kill(pid, SIGKILL);
        wait_for(pid, &usage);
        close(ends[0]);
        prune_says(ways[i], true, 0, "would drop ");
        assert_int_equal(names_with("back.part.", NULL), 1);
        prune_says(ways[i], false, 0, "half made by a process that is gone");
        assert_int_equal(names_with("back", NULL), 0);
        assert_int_equal(names_with("out", NULL), 1);
    }
}

/* What only looks like one is nobody's to remove. */
static void prune_leaves_what_it_does_not_know(void **state)
{
    (void)state;
    char path[400];
    make_run();
    snprintf(path, sizeof path, "%s/out.part.12", rig.folder);
    assert_int_equal(mkdir(path, 0777), 0);
    prune_says(rig.out, false, 0, "cannot be told from somebody else's, stays");
    const char *const all[ARGS_MAX] = {"prune", rig.folder};
    assert_int_equal(run(all, NULL, NULL), 2);
    says("there are no checkpoints here");
    assert_int_equal(names_with("out.part.12", NULL), 1);
    assert_int_equal(rmdir(path), 0);
}

static void an_empty_folder_makes_way(void **state)
{
    (void)state;
    char path[400];
    const char *const args[ARGS_MAX] = {"export", rig.out, rig.back};
    make_run();
    assert_int_equal(mkdir(rig.back, 0777), 0);
    snprintf(path, sizeof path, "%s/mine", rig.back);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(run(args, NULL, NULL), 2);
    says("is there already: name a new folder, or an empty one");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(run(args, NULL, NULL), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", rig.back);
    assert_int_equal(access(path, F_OK), 0);
}

/* ---- memory ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* 64 MiB of its 67 as float32 are one tensor; in the file they are a hole. */
static const struct plan_model large = {.layers = 1,
                                        .hidden = 128,
                                        .ffn = 128,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 64,
                                        .vocab = 131072,
                                        .tied = true};
enum { LARGE_MIB = 64, MORE_MIB = 24 }; /* more: buffers of 16, blocks in flight */

static void write_large(void)
{
    char path[400], *json = NULL;
    size_t bytes;
    int64_t at = 0;
    FILE *header = open_memstream(&json, &bytes);
    for (int i = 0; i < model_count(&large); i++) {
        struct model_tensor t;
        model_tensor(&large, i, &t);
        int64_t end = at + t.rows * t.cols * 2;
        fprintf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", i ? "," : "{", t.name);
        if (t.matrix)
            fprintf(header, "%" PRId64 ",", t.rows);
        fprintf(header, "%" PRId64 "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t.cols, at,
                end);
        at = end;
    }
    fputc('}', header);
    fclose(header);
    snprintf(path, sizeof path, "%s/model.safetensors", rig.hf);
    FILE *f = fopen(path, "wb");
    uint64_t length = bytes;
    assert_non_null(f);
    fwrite(&length, sizeof length, 1, f);
    fwrite(json, 1, bytes, f);
    fflush(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + bytes) + at), 0);
    assert_int_equal(fclose(f), 0);
    free(json);
}

static long peak_mib(const char *const args[ARGS_MAX])
{
    struct rusage usage;
    char output[8192];
    int code = run(args, output, &usage);
    if (code)
        says("(it failed)");
    return usage.ru_maxrss / 1024;
}

static void memory_is_that_of_a_tensor(void **state)
{
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    char plan[400];
    snprintf(plan, sizeof plan, "%s/plan.yaml,parallel.tensor=2", rig.out);
    const char *const help[ARGS_MAX] = {"--help"},
                      *const in[ARGS_MAX] = {"import", rig.hf, rig.out},
                      *const again[ARGS_MAX] = {"reshard", rig.out, rig.back, "--plan", plan},
                      *const out[ARGS_MAX] = {"export", rig.back, rig.hf};
    hf_rig_forget(&rig);
    hf_rig_fill(&rig, true, HF_BF16, 1);
    hf_rig_write(&rig,
                 "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 128, "
                 "\"intermediate_size\": 128, \"num_attention_heads\": 2, \"vocab_size\": 131072, "
                 "\"tie_word_embeddings\": true}");
    write_large();
    long none = peak_mib(help), import = peak_mib(in), reshard = peak_mib(again);
    rig_folder_remove(rig.hf);
    long export = peak_mib(out);
    if (import > none + LARGE_MIB + MORE_MIB)
        fail_msg("import took %ld MiB, and nothing takes %ld", import, none);
    if (reshard > none + LARGE_MIB / 2 + MORE_MIB) /* a rank has half of it */
        fail_msg("reshard took %ld MiB, and nothing takes %ld", reshard, none);
    if (export > none + 2 * MORE_MIB)
        fail_msg("export took %ld MiB, and nothing takes %ld", export, none);
}

static int make(void **state)
{
    (void)state;
    hf_rig_make(&rig);
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    hf_rig_remove(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_that_of_a_tensor), /* first: a child's peak begins with ours */
        cmocka_unit_test(interrupted_it_leaves_nothing),
        cmocka_unit_test(unread_it_leaves_nothing),
        cmocka_unit_test(killed_it_is_pruned),
        cmocka_unit_test(prune_leaves_what_it_does_not_know),
        cmocka_unit_test(an_empty_folder_makes_way),
    };
    return cmocka_run_group_tests_name("hf cli", tests, make, remove_all);
}
