/* settings.h - the settings of Slurm's own that a job of ours needs, passed to srun, sbatch or
 * salloc through the environment it is about to read. */
#ifndef GTRAIN_SPANK_SETTINGS_H
#define GTRAIN_SPANK_SETTINGS_H

/* Set what a step (srun) needs to outlive a lost node. Call it before srun reads its environment.
 */
void settings_for_step(void);

/* Have every node take so many tasks, no more: without this Slurm fills the first node and leaves
 * the last with one. Nothing if the user said it. As above. */
void settings_for_even_tasks(const char *tasks_per_node);

/* Have the text of tasks passed on as it comes, also what has no line's end yet. As above. */
void settings_for_live_line(void);

/* Set what an allocation (sbatch, salloc) needs. */
void settings_for_job(void);

/* Put the environment back as the user had it, so that nothing is handed on to the program. */
void settings_restore(void);

#endif
