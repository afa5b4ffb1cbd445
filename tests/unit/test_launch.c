/* test_launch.c - whole steps on loopback. What each process ends with is compared with what the
 * contract of the launch says. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch_step.h"

/* ---- the cases ---- */

/* 3 nodes of 2 tasks, 4 ranks: nodes 0 and 2 are under one leaf, so node 1 is the spare. */
static void ranks_and_exchange(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exchange", s.folder}};
    start(&s, 3, 2, 4);
    assert_int_equal(finish(&s), 0);
    for (int i = 0; i < s.n_agents; i++)
        assert_int_equal(exit_of(&s, i), 0);
    assert_string_equal(s.said, "end 0\n");
    static const char *const nodes[] = {"n0", "n0", "n2", "n2"};
    for (int rank = 0; rank < 4; rank++) {
        char name[16], text[1024], expected[1024];
        snprintf(name, sizeof name, "%d", rank);
        read_file(s.folder, name, text, sizeof text);
        snprintf(expected, sizeof expected,
                 "rank=%d world=4 local=%d/2 node=%s/%d epoch=7 generation=1 "
                 "run=0123456789abcdef plan=the plan\n",
                 rank, rank % 2, nodes[rank], rank / 2);
        assert_string_equal(text, expected);
    }
    drop_folder(s.folder);
}

static void foreign_program(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "env", s.folder}};
    start(&s, 2, 2, 4);
    assert_int_equal(finish(&s), 0);
    char text[65536];
    read_file(s.folder, "3", text, sizeof text);
    has(text, "RANK=3\n");
    has(text, "WORLD_SIZE=4\n");
    has(text, "LOCAL_RANK=1\n");
    has(text, "LOCAL_WORLD_SIZE=2\n");
    has(text, "GROUP_RANK=1\n");
    has(text, "MASTER_ADDR=127.0.0.1\n");
    has(text, "GTRAIN_EPOCH=7\n");
    has(text, "GTRAIN_GENERATION=1\n");
    has(text, "GTRAIN_NODE=n1\n");
    has(text, "LEFT_ALONE=yes\n");
    assert_null(strstr(text, "SLURM_GTRAIN_"));
    assert_null(strstr(text, "left.yaml"));
    assert_null(strstr(text, s.door.secret));
    const char *port = strstr(text, "MASTER_PORT=");
    assert_non_null(port);
    assert_in_range(atoi(port + 12), 1024, 65535);
    drop_folder(s.folder);
}

static void exit_code_ends_all(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "3", "2"}};
    start(&s, 2, 2, 4);
    assert_int_equal(finish(&s), 3);
    for (int i = 0; i < 4; i++)
        assert_int_equal(exit_of(&s, i), i == 2 ? 3 : 1);
    assert_string_equal(s.said, "say rank 2 on node n1 ended with exit code 3\nend 3\n");
    drop_folder(s.folder);
}

static void signal_ends_all(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "kill", "9", "0"}};
    start(&s, 2, 1, 2);
    assert_int_equal(finish(&s), 128 + SIGKILL);
    assert_int_equal(signal_of(&s, 0), SIGKILL);
    assert_int_equal(exit_of(&s, 1), 1);
    has(s.said, "say rank 0 on node n0 ended with signal 9 (Killed)\n");
    drop_folder(s.folder);
}

static void early_end_is_a_failure(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "early", "1"}};
    start(&s, 1, 2, 2);
    assert_int_equal(finish(&s), 1);
    assert_int_equal(exit_of(&s, 0), 1);
    assert_int_equal(exit_of(&s, 1), 1);
    has(s.said, "say rank 1 on node n0 ended before its work was done\n");
    drop_folder(s.folder);
}

static void lost_agent(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "0", "99"}, .patience_ms = SHORT_MS};
    start(&s, 2, 2, 4);
    wait_for(&s, "placement.txt");
    kill(s.agents[2], SIGKILL);
    assert_int_equal(finish(&s), 1);
    assert_int_equal(exit_of(&s, 0), 1);
    assert_int_equal(exit_of(&s, 1), 1);
    assert_int_equal(signal_of(&s, 2), SIGKILL);
    assert_int_equal(exit_of(&s, 3), 1);
    /* an orderly close, or a reset where a heartbeat had not been read: then after the patience */
    has(s.said, "say node n1 is lost (ranks 2-3): ");
    has(s.said, "end 1\n");
    drop_folder(s.folder);
}

static void silent_node(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "0", "99"}, .patience_ms = SHORT_MS};
    start(&s, 2, 1, 2);
    wait_for(&s, "placement.txt");
    kill(s.agents[1], SIGSTOP);
    int64_t began = clock_ms();
    s.status[0] = reap(&s, s.agents[0], began + DEADLINE_MS);
    assert_true(clock_ms() - began >= SHORT_MS);
    kill(s.agents[1], SIGKILL);
    s.agents[0] = s.agents[1];
    s.n_agents = 1;
    assert_int_equal(finish(&s), 1);
    has(s.said, "say node n1 is lost (rank 1): it is silent for 2.0 s; no spare is left\n");
    drop_folder(s.folder);
}

static void signals_are_orders(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "hang", s.folder}};
    start(&s, 2, 1, 2);
    wait_for(&s, "0"); /* each worker has started */
    wait_for(&s, "1");
    for (int i = 0; i < 2; i++)
        kill(s.agents[i], SIGTERM);
    assert_int_equal(finish(&s), 128 + SIGTERM);
    assert_int_equal(signal_of(&s, 0), SIGTERM);
    assert_int_equal(signal_of(&s, 1), SIGTERM);
    drop_folder(s.folder);
}

static void srun_gone(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "hang"}};
    start(&s, 2, 1, 2);
    wait_for(&s, "placement.txt");
    shutdown(s.life, SHUT_WR);
    assert_int_equal(finish(&s), 1);
    has(s.said, "end 1\n");
    drop_folder(s.folder);
}

/* ---- takeover ---- */

/* Each rank has run a second time, on these nodes, with a port of its own; nobody had the input.
 * Where it has run before, what it left in the agent's memory is there. */
static void ran_again(const struct step *s, const char *const *nodes)
{
    char port[16] = "";
    for (int rank = 0; rank < s->world; rank++) {
        char name[16], text[1024], expected[1024];
        snprintf(name, sizeof name, "%d", rank);
        read_file(s->folder, name, text, sizeof text);
        if (!*port && strstr(text, "port="))
            snprintf(port, sizeof port, "%.*s", (int)strcspn(strstr(text, "port=") + 5, " "),
                     strstr(text, "port=") + 5);
        int stayed = !strcmp(nodes[rank], rank < 2 ? "n0" : "n2");
        snprintf(expected, sizeof expected,
                 "rank=%d node=%s generation=2 port=%s stdin=0 memory=%d\n", rank, nodes[rank],
                 port, stayed ? 1000 + rank : 0);
        assert_string_equal(text, expected);
    }
}

static void worker_restarts_in_place(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "again", s.folder, "1", "9"}, .restarts = 1};
    static const char *const nodes[] = {"n0", "n0", "n2", "n2"};
    start(&s, 3, 2, 4);
    assert_int_equal(finish(&s), 0);
    for (int i = 0; i < s.n_agents; i++)
        assert_int_equal(exit_of(&s, i), 0);
    ran_again(&s, nodes);
    has(s.said, "say rank 1 on node n0 ended with signal 9 (Killed); it is started "
                "again on the same node: generation 2 starts\n");
    has(s.said, "say generation 2 goes on from step 3: detect ");
    has(s.said, "end 0\n");
    drop_folder(s.folder);
}

static void spare_takes_over(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "again", s.folder, "9", "0"}, .patience_ms = SHORT_MS};
    static const char *const nodes[] = {"n0", "n0", "n1", "n1"};
    start(&s, 3, 2, 4);
    for (int rank = 0; rank < 4; rank++) {
        char name[16];
        snprintf(name, sizeof name, "first.%d", rank);
        wait_for(&s, name);
    }
    kill(s.agents[4], SIGKILL); /* of node n2, which has ranks 2 and 3 */
    assert_int_equal(finish(&s), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(exit_of(&s, i), 0);
    ran_again(&s, nodes);
    assert_non_null(strstr(s.said, "; node n1 takes over ranks 2-3: generation 2 starts\n"));
    has(s.said, "end 0\n");
    drop_folder(s.folder);
}

static void lost_task_loses_its_node(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "again", s.folder, "9", "0"}};
    static const char *const nodes[] = {"n0", "n0", "n1", "n1"};
    start(&s, 3, 2, 4);
    for (int rank = 0; rank < 4; rank++) {
        char name[16];
        snprintf(name, sizeof name, "first.%d", rank);
        wait_for(&s, name);
    }
    kill(s.agents[5], SIGKILL);
    assert_int_equal(finish(&s), 0);
    assert_int_equal(exit_of(&s, 4), 1); /* the other task of the node was told to go */
    ran_again(&s, nodes);
    has(s.said, "say node n2 is lost (ranks 2-3): the agent of rank 3 is gone; node n1 takes over "
                "ranks 2-3: generation 2 starts\n");
    drop_folder(s.folder);
}

static void always_crashing_ends(void **state)
{
    (void)state;
    struct step s = {.argv = {0, "exit", "7", "1"}, .restarts = 2};
    start(&s, 1, 2, 2);
    assert_int_equal(finish(&s), 7);
    has(s.said, "say rank 1 on node n0 ended with exit code 7, 3 times, and the run got no further "
                "than step 0: that is taken for a bug in the program (resilience.restarts is 2)\n");
    drop_folder(s.folder);
}

/* A program that is not there is not tried again. */
static void missing_program_ends(void **state)
{
    (void)state;
    struct step s = {.nodes = 1, .tasks = 1, .world = 1, .restarts = 2};
    s.argv[0] = "/nonexistent/program";
    start_coordinator(&s);
    start_agents(&s);
    assert_int_equal(finish(&s), ENOENT);
    has(s.said, "say rank 0 on node n0 ended with exit code 2\n");
    drop_folder(s.folder);
}

/* ---- without an agent ---- */

static int run_to_end(char *const argv[])
{
    struct step none = {.life = -1};
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    int status = reap(&none, pid, clock_ms() + DEADLINE_MS);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void alone(void **state)
{
    (void)state;
    char folder[64], text[1024];
    make_folder(folder);
    char *argv[] = {(char *)build_path("tests/unit/launch_worker"), "exchange", folder, NULL};
    assert_int_equal(run_to_end(argv), 0);
    read_file(folder, "0", text, sizeof text);
    assert_non_null(strstr(text, "rank=0 world=1 local=0/1 "));
    drop_folder(folder);
}

static void pmix(void **state)
{
    (void)state;
    char folder[64];
    char *version[] = {"sh", "-c",
                       "command -v mpirun >/dev/null && mpirun --version | grep -q Open", NULL};
#ifndef HAVE_PMIX
    print_message("# skipped: built without PMIx\n");
    skip();
#endif
    if (run_to_end(version)) {
        print_message("# skipped: no Open MPI mpirun to be a PMIx server (openmpi-bin)\n");
        skip();
    }
    make_folder(folder);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    char *argv[] = {"mpirun",
                    "--oversubscribe",
                    "-n",
                    "3",
                    (char *)build_path("tests/unit/launch_worker"),
                    "exchange",
                    folder,
                    NULL};
    assert_int_equal(run_to_end(argv), 0);
    for (int rank = 0; rank < 3; rank++) {
        char name[16], text[1024], expected[64];
        snprintf(name, sizeof name, "%d", rank);
        snprintf(expected, sizeof expected, "rank=%d world=3 local=%d/3 ", rank, rank);
        read_file(folder, name, text, sizeof text);
        assert_non_null(strstr(text, expected));
    }
    drop_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_exchange),
        cmocka_unit_test(foreign_program),
        cmocka_unit_test(exit_code_ends_all),
        cmocka_unit_test(signal_ends_all),
        cmocka_unit_test(early_end_is_a_failure),
        cmocka_unit_test(lost_agent),
        cmocka_unit_test(silent_node),
        cmocka_unit_test(signals_are_orders),
        cmocka_unit_test(worker_restarts_in_place),
        cmocka_unit_test(spare_takes_over),
        cmocka_unit_test(lost_task_loses_its_node),
        cmocka_unit_test(always_crashing_ends),
        cmocka_unit_test(missing_program_ends),
        cmocka_unit_test(alone),
        cmocka_unit_test(pmix),
        cmocka_unit_test(srun_gone),

    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
