/* crash_life.h - what the crash tests share besides the shim: a life is a child process that a
 * fault waits for, and how it ended is all that its parent sees, besides what it told in shared
 * memory. */
#ifndef GTRAIN_TESTS_CRASH_LIFE_H
#define GTRAIN_TESTS_CRASH_LIFE_H

#include "crash_shim.h"
#include "../unit/ckpt_help.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
    CHILD_MS = 60000, /* a child that lives longer hangs */
    EXIT_LIED = 3,    /* the child found a wrong state */
    EXIT_REFUSED = 4, /* the child could not even start */
};

static inline struct shared *shared_make(void)
{
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    return shared;
}

/* Of one case alone: what went wrong in a life, which is mostly what should. */
static inline void tell(const struct shim *shim, const char *text)
{
    if (shim->talk)
        fprintf(stderr, "# fault %d at %d of %d: %s\n", shim->fault, shim->at,
                atomic_load(&shim->shared->boundary), text);
}

/* Runs a life, whose exit status `live` returns where it does not exit by itself, to its end. Its
 * wait status. */
static inline int run_life(int (*live)(void *scene, struct shim *shim), void *scene,
                           struct shim *shim, const char *name)
{
    atomic_store(&shim->shared->boundary, 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(live(scene, shim));
    int status = 0;
    int64_t deadline = clock_ms() + CHILD_MS;
    while (!waitpid(child, &status, WNOHANG)) {
        if (clock_ms() > deadline) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            fail_msg("%s: the run hangs", name);
        }
        usleep(200);
    }
    return status;
}

/* It ended well, or as its fault makes it. */
static inline void check_status(int status, const struct shim *shim, const char *name)
{
    bool may_die = shim->fault == FAULT_KILL || shim->fault == FAULT_TORN;
    if (WIFSIGNALED(status) ? may_die && WTERMSIG(status) == SIGKILL
                            : WEXITSTATUS(status) == 0 ||
                                  (WEXITSTATUS(status) == EXIT_REFUSED &&
                                   (shim->fault == FAULT_NOSPC || shim->fault == FAULT_EIO)))
        return;
    fail_msg("%s: a run with fault %d at boundary %d ended with status %x", name, shim->fault,
             shim->at, status);
}

static inline void flip_bit(const char *path, uint64_t seed)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    if (!st.st_size)
        return;
    int fd = open(path, O_RDWR);
    unsigned char byte;
    off_t at = (off_t)(seed % (uint64_t)st.st_size);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1 << (seed >> 40) % 8);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Which cases: so many, in the long mode `many`, or those that are asked for. */
struct cases {
    int first, last;
};

static inline struct cases cases_asked(int argc, char **argv, int usual, int many)
{
    const char *asked = getenv("GTRAIN_TEST_LONG");
    struct cases c = {0, usual - 1};
    if ((argc == 2 && !strcmp(argv[1], "--long")) || (argc == 1 && asked && !strcmp(asked, "yes")))
        c.last = many - 1;
    else if (argc == 3 && !strcmp(argv[1], "--cases"))
        c.last = atoi(argv[2]) - 1;
    else if (argc == 3 && !strcmp(argv[1], "--case"))
        c.first = c.last = atoi(argv[2]);
    return c;
}

#endif
