/* gtrain.c - the SPANK plugin: which of Slurm's programs are we in, and whose turn is it?
 *
 * This file only dispatches. What happens in srun is in srun.c, in sbatch and salloc in
 * allocator.c, in slurmstepd in remote.c; the options are in args.c. Sites load the plugin as
 * `optional`, so that a missing file stops no job, and Slurm then ignores what a hook returns. So a
 * job that asked and cannot be served is ended here. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <slurm/spank.h>

#include "allocator.h"
#include "remote.h"
#include "srun.h"

SPANK_PLUGIN(gtrain, 1);

/* One plugin per process; SPANK's hooks carry no pointer of ours. */
static struct self self;

#ifndef __GLIBC__
#error "the plugin learns its program's arguments from glibc's way of calling constructors"
#endif

/* glibc hands a library's constructors the arguments of the program, also when it is loaded late.
 * That spares every srun of the site an open of /proc/self/cmdline. */
__attribute__((constructor)) static void learn_arguments(int argc, char **argv)
{
    self.argc = argc;
    self.argv = argv;
}

/* Pass success on; end srun, sbatch or salloc otherwise, by their own exit handlers. */
static int or_exit(int rv)
{
    if (rv < 0)
        exit(EXIT_FAILURE);
    return rv;
}

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
    if (site_parse(&self.site, argc, argv) < 0)
        return -1;
    switch (spank_context()) {
    case S_CTX_LOCAL:
        cmdline_scan(&self.cmdline, self.argc, self.argv);
        return srun_init(&self, sp);
    case S_CTX_ALLOCATOR:
        cmdline_scan(&self.cmdline, self.argc, self.argv);
        return allocator_init(&self, sp);
    case S_CTX_REMOTE:
        return remote_init(&self, sp);
    default:
        return 0;
    }
}

int slurm_spank_init_post_opt(spank_t sp, int argc, char **argv)
{
    (void)sp;
    (void)argc;
    (void)argv;
    switch (spank_context()) {
    case S_CTX_LOCAL:
        return or_exit(srun_post_opt(&self));
    case S_CTX_ALLOCATOR:
        return or_exit(allocator_post_opt(&self));
    default:
        return 0;
    }
}

int slurm_spank_local_user_init(spank_t sp, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return or_exit(srun_user_init(&self, sp));
}

int slurm_spank_task_init(spank_t sp, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    /* This process was to become the program: it has no exit handlers of its own to run. */
    if (remote_task_init(&self, sp) < 0)
        _exit(EXIT_FAILURE);
    return 0;
}

int slurm_spank_exit(spank_t sp, int argc, char **argv)
{
    (void)sp;
    (void)argc;
    (void)argv;
    if (spank_context() == S_CTX_LOCAL)
        srun_exit();
    return 0;
}
