/* args.c - the options: what was said where, and what it comes to.
 *
 * An option may be said in three places: on the command line, in a batch script's #SBATCH lines,
 * and by the job around an srun (its sbatch or salloc, which Slurm replays to our callback from the
 * environment before the command line's). The command line was scanned beforehand, so the callback
 * can tell which of the three it hears. It is called more than once with the same words, which
 * changes nothing. In slurmstepd it has nothing to do: what the nodes need travels in the step's
 * environment. */
#include "args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPARES_MAX 65535 /* more nodes than any cluster has */

const char *const inherited_names[OPTION_COUNT] = {
    "SLURM_SPANK__SLURM_SPANK_OPTION_gtrain_gtrain_plan",
    "SLURM_SPANK__SLURM_SPANK_OPTION_gtrain_gtrain_spares",
    "SLURM_SPANK__SLURM_SPANK_OPTION_gtrain_gtrain_restore",
    "SLURM_SPANK__SLURM_SPANK_OPTION_gtrain_gtrain_dir"};

const char *const variable_names[OPTION_COUNT] = {"GTRAIN_PLAN", "GTRAIN_SPARES", "GTRAIN_RESTORE",
                                                  "GTRAIN_DIR"};

/* SPANK's option callbacks carry no pointer of ours, so what they hear has to be kept here. */
static struct {
    const struct cmdline *cmdline;
    char *said[OPTION_COUNT]; /* on the command line or in a batch script */
    void (*on_plan_in_script)(void);
} state;

static int hear_option(int id, const char *value, int remote);

static struct spank_option options[OPTION_COUNT] = {
    {"gtrain-plan", "FILE[,key=value...]",
     "[gtrain] train by this plan; values behind the file override it; \"inherit\" takes the "
     "plan of the enclosing sbatch or salloc (GTRAIN_PLAN)",
     1, OPTION_PLAN, hear_option},
    {"gtrain-spares", "N", "[gtrain] keep at least N whole nodes as hot spares (GTRAIN_SPARES)", 1,
     OPTION_SPARES, hear_option},
    {"gtrain-restore", "latest|none|STEP|PATH",
     "[gtrain] start from this checkpoint (GTRAIN_RESTORE)", 1, OPTION_RESTORE, hear_option},
    {"gtrain-dir", "DIR", "[gtrain] keep the run's metrics and records here (GTRAIN_DIR)", 1,
     OPTION_DIR, hear_option},
};

/* One error for a value that cannot be right; `where` is how the user wrote the option. */
static int check_value(enum option_id id, const char *where, const char *value)
{
    struct args *sizes = NULL;
    char *end;
    long n;

    if (!value || !*value) {
        slurm_error("gtrain: %s needs a value: %s", where, options[id].arginfo);
        return -1;
    }
    if (id == OPTION_SPARES) {
        errno = 0;
        n = strtol(value, &end, 10);
        if (errno || *end || *value < '0' || *value > '9' || n > SPARES_MAX) {
            slurm_error("gtrain: %s=%s: say a number of nodes, 0 to %d", where, value, SPARES_MAX);
            return -1;
        }
    }
    if (strlen(value) >= (id == OPTION_PLAN ? sizeof(sizes->plan) : sizeof(sizes->dir))) {
        slurm_error("gtrain: %s has a value of %zu characters: that is too long", where,
                    strlen(value));
        return -1;
    }
    return 0;
}

/* Keep what was said; the same again is fine, something else is not. */
static int say(enum option_id id, const char *value)
{
    if (state.said[id] && strcmp(state.said[id], value) != 0) {
        slurm_error("gtrain: --%s is given twice, as %s and as %s: give it once", option_names[id],
                    state.said[id], value);
        return -1;
    }
    if (!state.said[id] && !(state.said[id] = strdup(value))) {
        slurm_error("gtrain: out of memory");
        return -1;
    }
    return 0;
}

static int hear_option(int id, const char *value, int remote)
{
    const struct cmdline *c = state.cmdline;
    char where[64];

    if (remote || id < 0 || id >= OPTION_COUNT)
        return 0;
    snprintf(where, sizeof(where), "--%s", option_names[id]);
    if (check_value(id, where, value) < 0)
        return -1;
    if (c->value[id]) {
        if (!strcmp(value, c->value[id]) || (c->other[id] && !strcmp(value, c->other[id])))
            return say(id, value);
        return 0; /* a script's or the enclosing job's: the command line wins */
    }
    if (getenv(inherited_names[id]) && !strcmp(value, getenv(inherited_names[id])))
        return 0; /* the enclosing job's: args_resolve looks there by itself */
    if (spank_context() != S_CTX_ALLOCATOR)
        return 0;
    if (id == OPTION_PLAN && state.on_plan_in_script)
        state.on_plan_in_script();
    return say(id, value);
}

int args_register(spank_t sp, const struct cmdline *cmdline)
{
    state.cmdline = cmdline;
    for (int id = 0; id < OPTION_COUNT; id++) {
        if (spank_option_register(sp, &options[id]) != ESPANK_SUCCESS) {
            slurm_error("gtrain: Slurm does not take the option --%s", option_names[id]);
            return -1;
        }
    }
    return 0;
}

void args_on_plan_in_script(void (*callback)(void))
{
    state.on_plan_in_script = callback;
}

bool args_given(enum option_id id)
{
    return state.said[id] != NULL;
}

bool args_plan_inherited(void)
{
    return getenv(inherited_names[OPTION_PLAN]) || getenv(variable_names[OPTION_PLAN]);
}

/* Whether a restore value is a word or a step, not a path. */
static bool is_restore_word(const char *value)
{
    return !strcmp(value, "latest") || !strcmp(value, "none") ||
           value[strspn(value, "0123456789")] == '\0';
}

/* Write `value`, in front of it the folder the job was submitted from if it is a relative path that
 * an enclosing job said: the script may have changed folder since. */
static int put(char *to, size_t size, enum option_id id, const char *value, bool from_job)
{
    const char *folder = from_job ? getenv("SLURM_SUBMIT_DIR") : NULL;
    int n;

    if (id == OPTION_SPARES || *value == '/' || (id == OPTION_RESTORE && is_restore_word(value)))
        folder = NULL;
    n = snprintf(to, size, "%s%s%s", folder ? folder : "", folder ? "/" : "", value);
    if (n < 0 || (size_t)n >= size) {
        slurm_error("gtrain: --%s=%s: the path is too long", option_names[id], value);
        return -1;
    }
    return 0;
}

/* Find what holds for one option. Returns 0 also if nothing was said (`to` is "" then). */
static int resolve(char *to, size_t size, enum option_id id, const char *said, bool inherit)
{
    char where[128];
    const char *value = said;
    bool from_job = false;

    *to = '\0';
    snprintf(where, sizeof(where), "--%s", option_names[id]);
    if (!value && inherit && (value = getenv(inherited_names[id])))
        from_job = true;
    if (!value && (value = getenv(variable_names[id])))
        snprintf(where, sizeof(where), "%s", variable_names[id]);
    if (!value)
        return 0;
    if (check_value(id, where, value) < 0)
        return -1;
    return put(to, size, id, value, from_job);
}

/* The plan: `inherit[,key=value...]`, or nothing, takes the enclosing job's, its own changes kept.
 */
static int resolve_plan(char *to, size_t size, bool inherit)
{
    const char *said = state.said[OPTION_PLAN], *more = "";
    size_t length;

    if (said && !strncmp(said, "inherit", 7) && (said[7] == '\0' || said[7] == ',')) {
        more = said + 7;
        said = NULL;
        if (!inherit || !args_plan_inherited()) {
            slurm_error(
                "gtrain: --gtrain-plan=inherit: there is no plan to inherit: give sbatch or "
                "salloc the option --gtrain-plan=FILE, or set GTRAIN_PLAN");
            return -1;
        }
    }
    if (resolve(to, size, OPTION_PLAN, said, inherit) < 0)
        return -1;
    length = strlen(to);
    if (length + strlen(more) >= size) {
        slurm_error("gtrain: --gtrain-plan has too many values behind the file");
        return -1;
    }
    memcpy(to + length, more, strlen(more) + 1);
    return 0;
}

static int resolve_all(struct args *args, bool inherit)
{
    if (resolve_plan(args->plan, sizeof(args->plan), inherit) < 0 ||
        resolve(args->spares, sizeof(args->spares), OPTION_SPARES, state.said[OPTION_SPARES],
                inherit) < 0 ||
        resolve(args->restore, sizeof(args->restore), OPTION_RESTORE, state.said[OPTION_RESTORE],
                inherit) < 0 ||
        resolve(args->dir, sizeof(args->dir), OPTION_DIR, state.said[OPTION_DIR], inherit) < 0)
        return -1;
    return 0;
}

int args_resolve(struct args *args)
{
    return resolve_all(args, true);
}

int args_resolve_job(struct args *args)
{
    return resolve_all(args, false);
}
