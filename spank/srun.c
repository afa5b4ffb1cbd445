/* srun.c - inside srun: find out whether the step asks, have its plan checked, start its
 * coordinator.
 *
 * A step asks by --gtrain-plan on its own command line, or by running `gtrain train` inside a job
 * that said it. Any other srun, the helpers in such a job's script included, is left as it was. */
#include "srun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <slurm/slurm.h>

#include "coordinator.h"
#include "launches.h"
#include "settings.h"

#define PLAIN_COLUMNS 80 /* of a terminal that does not tell its width */

/* Slurm's configuration, as the program that loads us has it. Weak: without it a step still runs.
 */
extern slurm_conf_t slurm_conf __attribute__((weak));

static bool asks(const struct self *self)
{
    const struct cmdline *c = &self->cmdline;

    if (c->value[OPTION_PLAN])
        return true;
    return args_plan_inherited() && cmdline_runs_train(c, self->argc, self->argv);
}

/* How many columns of the user's terminal a line that is redrawn in place may fill: 0 if srun does
 * not write to a terminal, or not as the program wrote it. Only gtrain train draws such a line, and
 * on one rank; the tasks of other programs would mix theirs. */
static int live_columns(const struct self *self)
{
    const struct cmdline *c = &self->cmdline;
    const char *term = getenv("TERM");
    struct winsize size;

    if (!cmdline_runs_train(c, self->argc, self->argv) || c->label || c->output ||
        getenv("SLURM_LABELIO") || getenv("SLURM_STDOUTMODE") || !term || !strcmp(term, "dumb") ||
        !isatty(STDOUT_FILENO))
        return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return PLAIN_COLUMNS;
}

/* Told to keep a step alive over lost nodes, srun ends in success with whatever ranks are left, or
 * in failure because of those whose ranks others took over. The coordinator knows better. */
static void correct_status(int status, void *unused)
{
    int right = coordinator_status(status);

    (void)unused;
    launches_go();
    if (right == status)
        return;
    fflush(NULL);
    _exit(right);
}

/* The first of two variables that holds a count, 0 if none does. */
static int count_of(const char *variable, const char *other)
{
    int count = cmdline_count(getenv(variable));

    return count ? count : cmdline_count(getenv(other));
}

/* What is known of the step's shape before it is allocated; srun reads the variables, too. */
static void know_shape(const struct cmdline *c, struct shape *shape)
{
    shape->nodes =
        c->nodes ? cmdline_count(c->nodes) : count_of("SLURM_JOB_NUM_NODES", "SLURM_NNODES");
    shape->tasks = c->tasks ? cmdline_count(c->tasks) : count_of("SLURM_NTASKS", "SLURM_NPROCS");
    shape->tasks_per_node = c->tasks_per_node
                                ? cmdline_count(c->tasks_per_node)
                                : count_of("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_NODE");
    if (shape->nodes && shape->tasks && shape->tasks % shape->nodes == 0)
        shape->tasks_per_node = shape->tasks / shape->nodes;
    else if (!c->tasks && !getenv("SLURM_NTASKS") && !getenv("SLURM_NPROCS") &&
             !c->tasks_per_node && !shape->tasks_per_node)
        shape->tasks_per_node = 1; /* what srun does when nothing is said */
}

/* Ranks need as many tasks on each node; Slurm alone would spread -N2 -n4 as 3 and 1. */
static void even_out(const struct cmdline *c)
{
    struct shape shape;
    char tasks[16];

    know_shape(c, &shape);
    if (c->tasks_per_node || !c->tasks || shape.nodes < 2 || shape.tasks % shape.nodes)
        return;
    snprintf(tasks, sizeof(tasks), "%d", shape.tasks / shape.nodes);
    settings_for_even_tasks(tasks);
}

int srun_init(struct self *self, spank_t sp)
{
    if (args_register(sp, &self->cmdline) < 0)
        return -1;
    if (!asks(self))
        return 0;
    if (launches_save(self) < 0)
        return -1;
    settings_for_step();
    even_out(&self->cmdline);
    if (live_columns(self) > 0)
        settings_for_live_line();
    /* Handlers run last in, first out: this one, registered before srun has any, runs when the
     * others have done their work and nothing is left to skip. */
    on_exit(correct_status, NULL);
    return 0;
}

/* Steps whose tasks are not all alike, or whose input and output are not the program's alone, have
 * no ranks to give out. */
static int refuse_unfit(const struct cmdline *c)
{
    const char *what = NULL;

    if (c->heterogeneous || getenv("SLURM_HET_SIZE"))
        what = "heterogeneous jobs have no single world of ranks: use one component";
    else if (c->multi_prog)
        what = "--multi-prog starts other programs on other ranks: name the one program instead";
    else if (c->pty)
        what = "--pty attaches one task to a terminal: leave it out";
    if (!what)
        return 0;
    slurm_error("gtrain: --gtrain-plan: %s", what);
    return -1;
}

/* Ranks are laid out in whole nodes, so every node has as many tasks as the others. */
static int refuse_uneven(int nodes, int tasks)
{
    if (nodes < 1 || tasks < 1 || tasks % nodes == 0)
        return 0;
    slurm_error("gtrain: %d tasks on %d nodes cannot be the same number on each: say -N%d "
                "--ntasks-per-node=%d",
                tasks, nodes, nodes, (tasks + nodes - 1) / nodes);
    return -1;
}

int srun_post_opt(struct self *self)
{
    struct args args;
    struct shape shape;

    settings_restore();
    if (!asks(self)) {
        if (!args_given(OPTION_SPARES) && !args_given(OPTION_RESTORE) && !args_given(OPTION_DIR))
            return 0;
        slurm_error(
            "gtrain: --gtrain-spares, --gtrain-restore and --gtrain-dir say something about "
            "a plan: add --gtrain-plan=FILE");
        return -1;
    }
    if (refuse_unfit(&self->cmdline) < 0 || args_resolve(&args) < 0)
        return -1;
    know_shape(&self->cmdline, &shape);
    if (refuse_uneven(shape.nodes, shape.tasks) < 0)
        return -1;
    /* A step that is launched again runs by a plan that was checked, on fewer nodes. */
    return launches_again() ? 0 : job_check_plan(self, &args, &shape);
}

/* The command line of the coordinator. `numbers` holds what argv points to. */
struct coordinate {
    char *argv[34];
    char nodes[16], tasks[16], ports[16], step[16];
};

static void build_coordinate(struct coordinate *b, const struct self *self, const struct args *args,
                             unsigned nodes, unsigned tasks, unsigned step)
{
    const char *const given[][2] = {{"--spares", args->spares},
                                    {"--restore", args->restore},
                                    {"--dir", args->dir},
                                    {"--nodes", b->nodes},
                                    {"--ntasks", b->tasks},
                                    {"--port-range", b->ports},
                                    {"--step", b->step},
                                    {"--job-nodes", launches_job_nodes()},
                                    {"--relaunches-left", launches_left()},
                                    {"--on-failure", self->site.on_failure},
                                    {"--comment", self->site.comment}};
    int n = 0;

    snprintf(b->nodes, sizeof(b->nodes), "%u", nodes);
    snprintf(b->tasks, sizeof(b->tasks), "%u", tasks);
    snprintf(b->step, sizeof(b->step), "%u", step);
    b->ports[0] = '\0';
    if (&slurm_conf && slurm_conf.srun_port_range)
        snprintf(b->ports, sizeof(b->ports), "%u-%u", slurm_conf.srun_port_range[0],
                 slurm_conf.srun_port_range[1]);
    b->argv[n++] = (char *)self->site.gtrain;
    b->argv[n++] = "coordinate";
    b->argv[n++] = "--plan";
    b->argv[n++] = (char *)args->plan;
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        if (!given[i][1] || !*given[i][1])
            continue;
        b->argv[n++] = (char *)given[i][0];
        b->argv[n++] = (char *)given[i][1];
    }
    b->argv[n++] = "--ready-fd";
    b->argv[n++] = "3";
    b->argv[n++] = "--life-fd";
    b->argv[n++] = "4";
    b->argv[n] = NULL;
}

/* Slurm drops nodes that would have no task, without a word that a plan's owner would see. */
static int refuse_shrunk(const struct self *self, unsigned nodes)
{
    int wanted = cmdline_count(self->cmdline.nodes);

    if (!wanted || (unsigned)wanted == nodes || (self->site.cli_filter && (unsigned)wanted < nodes))
        return 0;
    slurm_error("gtrain: -N%d was asked for, but the step has %u nodes: say -N%d "
                "--ntasks-per-node=N instead of a number of tasks",
                wanted, nodes, wanted);
    return -1;
}

int srun_user_init(struct self *self, spank_t sp)
{
    struct coordinate command;
    struct contact contact;
    struct args args;
    uint32_t nodes = 0, tasks = 0, step = 0;
    char where[sizeof(contact.address) + sizeof(contact.port) + 1], columns[16];

    if (!asks(self))
        return 0;
    if (spank_get_item(sp, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS ||
        spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
        spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS) {
        slurm_error("gtrain: Slurm does not tell the step's number, nodes and tasks");
        return -1;
    }
    if (refuse_shrunk(self, nodes) < 0 || refuse_uneven((int)nodes, (int)tasks) < 0 ||
        args_resolve(&args) < 0 || launches_begin(sp, (int)nodes, (int)(tasks / nodes)) < 0)
        return -1;
    build_coordinate(&command, self, &args, nodes, tasks, step);
    if (coordinator_start(command.argv, live_columns(self) > 0, &contact) < 0)
        return -1;
    snprintf(where, sizeof(where), "%s:%s", contact.address, contact.port);
    snprintf(columns, sizeof(columns), "%d", live_columns(self));
    if (setenv("SLURM_GTRAIN_COORDINATOR", where, 1) < 0 ||
        setenv("SLURM_GTRAIN_COLUMNS", columns, 1) < 0 ||
        setenv("SLURM_GTRAIN_SECRET", contact.secret, 1) < 0) {
        slurm_error("gtrain: out of memory");
        return -1;
    }
    return 0;
}

void srun_exit(void)
{
    coordinator_end();
    launches_prepare();
}
