/* test_memory_room.c - how much memory may be taken, read from made-up /proc and /sys/fs/cgroup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "train/memory_room.h"

static char root[64];

/* A file with its folders. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0777);
        *slash = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int make(void **state)
{
    (void)state;
    strcpy(root, "/tmp/gtrain-room-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void is(int64_t bytes, const char *why)
{
    char proc[128], groups[128], text[MEMORY_ROOM_WHY];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(groups, sizeof groups, "%s/cgroup", root);
    assert_int_equal(memory_room(proc, groups, text), bytes);
    assert_string_equal(text, why);
}

static void nothing_is_known(void **state)
{
    (void)state;
    is(INT64_MAX, "not known");
}

static void machine(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:    5000 kB\n");
    put("proc/self/cgroup", "0::/\n");
    is(5000 * 1024, "MemAvailable");
}

/* The tightest group on the way up counts; what its page cache could give back is free. */
static void version_2(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable: 5000 kB\n");
    put("proc/self/cgroup", "0::/job_1/step_0/task_3\n");
    put("cgroup/job_1/step_0/task_3/memory.max", "max\n");
    put("cgroup/job_1/step_0/task_3/memory.current", "1000\n");
    put("cgroup/job_1/step_0/memory.max", "900000\n");
    put("cgroup/job_1/step_0/memory.current", "500000\n");
    put("cgroup/job_1/step_0/memory.stat", "anon 1\ninactive_file 30000\n");
    put("cgroup/job_1/memory.max", "2000000\n");
    put("cgroup/job_1/memory.current", "600000\n");
    is(430000, "the limit of the control group /job_1/step_0");
    put("cgroup/job_1/memory.current", "1999000\n");
    is(1000, "the limit of the control group /job_1");
    put("cgroup/job_1/memory.current", "2000001\n");
    is(0, "the limit of the control group /job_1");
}

static void version_1(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable: 5000 kB\n");
    put("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/slurm/uid_0/job_9\n");
    put("cgroup/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
    put("cgroup/memory/slurm/memory.usage_in_bytes", "77\n");
    put("cgroup/memory/slurm/uid_0/job_9/memory.limit_in_bytes", "300000\n");
    put("cgroup/memory/slurm/uid_0/job_9/memory.usage_in_bytes", "100000\n");
    is(200000, "the limit of the control group /slurm/uid_0/job_9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_known, make, drop),
        cmocka_unit_test_setup_teardown(machine, make, drop),
        cmocka_unit_test_setup_teardown(version_2, make, drop),
        cmocka_unit_test_setup_teardown(version_1, make, drop),
    };
    return cmocka_run_group_tests_name("memory_room", tests, NULL, NULL);
}
