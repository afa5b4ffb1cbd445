/* test_jobindex.c - the run folder of a job is found again; whatever else is in the file. */
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

#include "launch/jobindex.h"

static char top[] = "/tmp/gtrain-jobindex-XXXXXX";

static int make_top(void **state)
{
    (void)state;
    return mkdtemp(top) ? 0 : -1;
}

static int drop_top(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", top);
    return system(command);
}

static void expect(const char *folder, const char *job, const char *run_dir)
{
    char found[256] = "";
    assert_int_equal(jobindex_find(folder, job, found, sizeof found), *run_dir != 0);
    assert_string_equal(found, run_dir);
}

static void found_again(void **state)
{
    (void)state;
    char folder[64], path[80];
    snprintf(folder, sizeof folder, "%s/a/b", top);
    expect(folder, "7", "");
    assert_int_equal(jobindex_add(folder, "7", "/runs/x y"), 0);
    assert_int_equal(jobindex_add(folder, "71", "/runs/other"), 0);
    assert_int_equal(jobindex_add(folder, "8", "/runs/first"), 0);
    assert_int_equal(jobindex_add(folder, "8", "/runs/second"), 0);
    assert_int_equal(jobindex_add(folder, "9", "/runs/bad\n9 /elsewhere"), -1);
    snprintf(path, sizeof path, "%s/jobs", folder);
    FILE *out = fopen(path, "a");
    assert_non_null(out);
    fputs("10 relative\n\n 11 /x\n12", out); /* no folder; nothing; no job; cut short */
    fclose(out);
    expect(folder, "7", "/runs/x y");
    expect(folder, "71", "/runs/other");
    expect(folder, "8", "/runs/second");
    expect(folder, "9", "");
    expect(folder, "10", "");
    expect(folder, "11", "");
    expect(folder, "12", "");
    expect(folder, "", "");
}

/* Two files of bounded length: the newest jobs stay. */
static void bounded(void **state)
{
    (void)state;
    enum { JOBS = 12000 }; /* at about 60 bytes: three files */
    char folder[64], path[80], job[16];
    snprintf(folder, sizeof folder, "%s/c", top);
    for (int i = 0; i < JOBS; i++) {
        snprintf(job, sizeof job, "%d", i);
        assert_int_equal(
            jobindex_add(folder, job, "/a/folder/with/a/name/of/about/fifty/characters/in/all"), 0);
    }
    expect(folder, "11999", "/a/folder/with/a/name/of/about/fifty/characters/in/all");
    expect(folder, "7500", "/a/folder/with/a/name/of/about/fifty/characters/in/all");
    expect(folder, "0", "");
    for (int i = 0; i < 2; i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/jobs%s", folder, i ? ".old" : "");
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_size < JOBINDEX_FILE_BYTES + 100);
    }
}

static void where(void **state)
{
    (void)state;
    char path[128];
    setenv("XDG_STATE_HOME", "/state", 1);
    assert_int_equal(jobindex_folder("", path, sizeof path), 0);
    assert_string_equal(path, "/state/gtrain");
    assert_int_equal(jobindex_folder("/home/b", path, sizeof path), 0);
    assert_string_equal(path, "/home/b/.local/state/gtrain");
    unsetenv("XDG_STATE_HOME");
    setenv("HOME", "/home/a", 1);
    assert_int_equal(jobindex_folder("", path, sizeof path), 0);
    assert_string_equal(path, "/home/a/.local/state/gtrain");
    assert_int_equal(jobindex_folder("", path, 10), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(found_again), cmocka_unit_test(bounded),
                                       cmocka_unit_test(where)};
    return cmocka_run_group_tests(tests, make_top, drop_top);
}
