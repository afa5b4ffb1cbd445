/* test_new_folder.c - a folder that comes into being whole or not at all: what dead makers left is
 * removed, what may be somebody else's is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hf/new_folder.h"

static char dir[200], path[256];

static void at(char out[512], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void at(char out[512], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = snprintf(out, 512, "%s/", dir);
    vsnprintf(out + n, 512 - (size_t)n, format, args);
    va_end(args);
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(name, "we");
    if (!f)
        fail_msg("%s: %s", name, strerror(errno));
    fputs(text, f);
    fclose(f);
}

static bool there(const char *name)
{
    struct stat st;
    return !lstat(name, &st);
}

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%s/gtrain-new-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/new", dir);
    return 0;
}

static int remove_dir(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

/* Another process begins it and puts something in; then it waits to be killed. */
static pid_t maker(void)
{
    int ready[2];
    char byte = 0, name[512];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) {
        struct new_folder f;
        struct err err;
        if (new_folder_begin(&f, path, &err))
            _exit(1);
        snprintf(name, sizeof name, "%s/sub", f.temp);
        mkdir(name, 0777);
        snprintf(name, sizeof name, "%s/sub/file", f.temp);
        put(name, "half");
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void whole_or_not_at_all(void **state)
{
    struct new_folder f;
    struct err err;
    char name[512], mark[512];
    (void)state;
    if (new_folder_begin(&f, path, &err))
        fail_msg("%s", err.text);
    assert_null(f.left);
    assert_false(there(path));
    snprintf(name, sizeof name, "%s/file", f.temp);
    put(name, "all");
    if (new_folder_commit(&f, &err))
        fail_msg("%s", err.text);
    at(name, "new/file");
    at(mark, "new/.gtrain-part");
    assert_true(there(name));
    assert_false(there(mark));
    assert_int_equal(new_folder_begin(&f, path, &err), -1);
    assert_non_null(strstr(err.text, "is there already"));
    unlink(name);
    assert_int_equal(rmdir(path), 0); /* nothing else is in it */
    if (new_folder_begin(&f, path, &err))
        fail_msg("%s", err.text);
    snprintf(name, sizeof name, "%s", f.temp);
    new_folder_abort(&f);
    assert_false(there(name) || there(path));
}

static void a_dead_maker_is_cleared_away(void **state)
{
    struct new_folder f;
    struct err err;
    char name[512];
    (void)state;
    pid_t pid = maker();
    at(name, "new.part.%d", (int)pid);
    assert_true(there(name));
    assert_int_equal(new_folder_begin(&f, path, &err), -1); /* it lives */
    assert_non_null(strstr(err.text, "is being made by gtrain, process "));
    assert_true(there(name));
    end(pid);
    if (new_folder_begin(&f, path, &err))
        fail_msg("%s", err.text);
    assert_false(there(name));
    assert_null(f.left);
    new_folder_abort(&f);
}

/* What lies there under such a name, and whether it is told; none is touched. */
static const struct {
    const char *make; /* a command; $p is the path */
    bool told;
} others[] = {
    {"mkdir $p", true},
    {"mkdir $p && echo precious > $p/file", true},
    {"mkdir $p && echo another > $p/.gtrain-part", true},
    {"mkdir $p && mkfifo $p/.gtrain-part", true},
    {"mkdir $p && echo 'made by gtrain, process 1 on an.other.host' > $p/.gtrain-part", true},
    {"mkdir $p $d/far && echo 'made by gtrain, process 1 on x' > $d/far/mark && "
     "ln -s $d/far/mark $p/.gtrain-part",
     true},
    {"echo precious > $p", false},
    {"mkdir -p $d/away && echo 'made by gtrain, process 1 on x' > $d/away/.gtrain-part && "
     "ln -s $d/away $p",
     false},
};

static void others_are_left_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct new_folder f;
        struct err err;
        char name[512], command[1500];
        at(name, "new.part.%zu", i + 1);
        snprintf(command, sizeof command, "p=%s d=%s; %s && find $d | sort > /tmp/.gtrain-new-%d",
                 name, dir, others[i].make, (int)getpid());
        assert_int_equal(system(command), 0);
        if (new_folder_begin(&f, path, &err))
            fail_msg("%s: %s", others[i].make, err.text);
        if (others[i].told ? !f.left || strcmp(f.left, name) : f.left != NULL)
            fail_msg("%s: '%s' is told", others[i].make, f.left ? f.left : "");
        new_folder_abort(&f);
        snprintf(command, sizeof command,
                 "find %s | sort | cmp - /tmp/.gtrain-new-%d && rm -rf %s/*; rc=$?; "
                 "rm -f /tmp/.gtrain-new-%d; exit $rc",
                 dir, (int)getpid(), dir, (int)getpid());
        if (system(command))
            fail_msg("%s: something has changed", others[i].make);
    }
}

/* Names that only look alike, even with a dead maker's mark. */
static void names_that_look_alike(void **state)
{
    static const char *const names[] = {"new.part", "new.part.", "new.part.12x", "new2.part.1",
                                        "anew.part.1"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct new_folder f;
        struct err err;
        char name[512], mark[600];
        at(name, "%s", names[i]);
        assert_int_equal(mkdir(name, 0777), 0);
        snprintf(mark, sizeof mark, "%s/.gtrain-part", name);
        put(mark, "made by gtrain, process 1 on x\n");
        if (new_folder_begin(&f, path, &err))
            fail_msg("%s", err.text);
        assert_true(there(mark));
        assert_null(f.left);
        new_folder_abort(&f);
    }
}

/* Names that nothing can be renamed to are refused before anything is made. */
static void names_of_dots(void **state)
{
    static const char *const ends[] = {"/.", "/..", "/./", "/none/..", "/.//"};
    struct new_folder f;
    struct err err;
    char name[512];
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(name, sizeof name, "%s%s", dir, ends[i]);
        assert_int_equal(new_folder_begin(&f, name, &err), -1);
        assert_non_null(strstr(err.text, "cannot be called . or .."));
    }
    assert_int_equal(new_folder_begin(&f, ".", &err), -1);
    assert_int_equal(new_folder_begin(&f, "..", &err), -1);
    assert_int_equal(rmdir(dir), 0); /* it is empty */
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(name, sizeof name, "%s/...", dir); /* a name as any other */
    if (new_folder_begin(&f, name, &err))
        fail_msg("%s", err.text);
    new_folder_abort(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_or_not_at_all, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_dead_maker_is_cleared_away, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(others_are_left_alone, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(names_that_look_alike, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(names_of_dots, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("new folder", tests, NULL, NULL);
}
