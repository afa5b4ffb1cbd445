/* allocator.c - inside sbatch and salloc: the plan is checked while its owner is still there to
 * read the error, and the allocation is told to outlive a node. What was said reaches the job's
 * sruns by Slurm's own way for plugin options; the rest is theirs. */
#include "allocator.h"

#include "settings.h"

int allocator_init(struct self *self, spank_t sp)
{
    if (args_register(sp, &self->cmdline) < 0)
        return -1;
    if (self->cmdline.value[OPTION_PLAN])
        settings_for_job();
    /* sbatch reads a script's #SBATCH lines before its environment, so it is not too late then. */
    args_on_plan_in_script(settings_for_job);
    return 0;
}

int allocator_post_opt(struct self *self)
{
    const struct cmdline *c = &self->cmdline;
    struct args args;
    struct shape shape = {cmdline_count(c->nodes), 0, cmdline_count(c->tasks_per_node)};

    settings_restore();
    if (!args_given(OPTION_PLAN))
        return 0;
    if (c->heterogeneous) {
        slurm_error("gtrain: --gtrain-plan: heterogeneous jobs have no single world of ranks: use "
                    "one component");
        return -1;
    }
    if (args_resolve_job(&args) < 0)
        return -1;
    return job_check_plan(self, &args, &shape);
}
