/* cmdline.c - looks through the arguments of srun, sbatch or salloc for ours.
 *
 * The hard part is to know where the options end and the program begins: in `-N 4 prog` the 4
 * belongs to -N, in `-l prog` prog is the program. Slurm's tables of options are not open to
 * plugins, so the few that take no argument are listed here; an unknown long option is taken to
 * have one. Being wrong there means reading on into the program's own arguments, which does harm
 * only if they hold an option of ours. */
#include "cmdline.h"

#include <stdlib.h>
#include <string.h>

const char *const option_names[OPTION_COUNT] = {"gtrain-plan", "gtrain-spares", "gtrain-restore",
                                                "gtrain-dir"};

/* Short options of srun, sbatch and salloc whose argument may be the next word. */
static const char short_with_argument[] = "aAbBcCdDeFGiJLmMnNopPqrStTwWx";

/* Long options that never take the next word: flags, and those with an optional value behind "=".
 */
static const char *const long_flags[] = {"bcast",
                                         "bell",
                                         "compress",
                                         "contiguous",
                                         "disable-status",
                                         "exact",
                                         "exclusive",
                                         "external",
                                         "get-user-env",
                                         "help",
                                         "hold",
                                         "ignore-pbs",
                                         "immediate",
                                         "interactive",
                                         "kill-command",
                                         "kill-on-bad-exit",
                                         "label",
                                         "multi-prog",
                                         "nice",
                                         "no-allocate",
                                         "no-bell",
                                         "no-kill",
                                         "no-requeue",
                                         "no-shell",
                                         "overcommit",
                                         "overlap",
                                         "oversubscribe",
                                         "parsable",
                                         "preserve-env",
                                         "propagate",
                                         "pty",
                                         "quiet",
                                         "quit-on-interrupt",
                                         "reboot",
                                         "requeue",
                                         "resv-ports",
                                         "send-libs",
                                         "share",
                                         "spread-job",
                                         "test-only",
                                         "unbuffered",
                                         "usage",
                                         "use-min-nodes",
                                         "verbose",
                                         "version",
                                         "whole",
                                         "x11",
                                         NULL};

/* Whether a word names this long option, in full or cut as getopt_long allows, at least so far as
 * to tell it from Slurm's own: `shortest` characters. The value behind "=", if any, goes to *value.
 */
static bool names_long(const char *word, const char *name, size_t shortest, const char **value)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);

    if (length < shortest || length > strlen(name) || strncmp(word, name, length) != 0)
        return false;
    *value = equals ? equals + 1 : NULL;
    return true;
}

static bool is_flag(const char *word)
{
    for (int i = 0; long_flags[i]; i++)
        if (!strcmp(word, long_flags[i]))
            return true;
    return false;
}

/* Whether a word looks like an option: then it is not the argument of the one before. */
static bool is_option(const char *word)
{
    return word && word[0] == '-' && word[1];
}

static void say_option(struct cmdline *c, enum option_id id, const char *value)
{
    if (!value)
        return;
    if (c->value[id] && strcmp(c->value[id], value) != 0)
        c->other[id] = value;
    else
        c->value[id] = value;
}

/* One long option, `word` without its dashes, `next` the word behind it or NULL. Returns how many
 * words it takes, 1 or 2. */
static int scan_long(struct cmdline *c, const char *word, const char *next)
{
    const char *value = NULL;
    const struct {
        const char *name;
        const char **to;
    } sizes[] = {{"nodes", &c->nodes},
                 {"ntasks", &c->tasks},
                 {"ntasks-per-node", &c->tasks_per_node},
                 {"tasks-per-node", &c->tasks_per_node}};

    for (int id = 0; id < OPTION_COUNT; id++) {
        /* "gtrain-p" is as short as ours can be cut. */
        if (names_long(word, option_names[id], strlen("gtrain-p"), &value)) {
            say_option(c, id, value ? value : next);
            return value ? 1 : 2;
        }
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (names_long(word, sizes[i].name, strlen(sizes[i].name), &value)) {
            *sizes[i].to = value ? value : next;
            return value ? 1 : 2;
        }
    }
    c->label = c->label || names_long(word, "label", 2, &value);
    c->output = c->output || names_long(word, "output", 2, &value);
    if (names_long(word, "pty", 2, &value))
        c->pty = true;
    else if (names_long(word, "multi-prog", 2, &value))
        c->multi_prog = true;
    else if (names_long(word, "het-group", 3, &value))
        c->heterogeneous = true;
    else
        return strchr(word, '=') || is_flag(word) || is_option(next) ? 1 : 2;
    return c->heterogeneous && !value ? 2 : 1;
}

/* One word of short options, such as -N4, -lN 4 or -k, without its dash. As scan_long. */
static int scan_short(struct cmdline *c, const char *word, const char *next)
{
    for (; *word; word++) {
        const char *value = word[1] ? word + 1 : next;

        /* Optional values stick to their letter and end the word. */
        if (*word == 'I' || *word == 'K' || *word == 'k')
            return 1;
        c->label = c->label || *word == 'l';
        if (!strchr(short_with_argument, *word))
            continue;
        if (*word == 'N')
            c->nodes = value;
        else if (*word == 'n')
            c->tasks = value;
        else if (*word == 'o')
            c->output = true;
        return word[1] || is_option(next) ? 1 : 2;
    }
    return 1;
}

/* Whether a word, with its dashes, is one that c->place holds. */
static bool says_place(const char *word)
{
    const char *value;

    if (word[1] == '-')
        return names_long(word + 2, "exclusive", 4, &value) ||
               names_long(word + 2, "relative", 3, &value);
    return word[1] == 'r';
}

static void note_place(struct cmdline *c, const char *word, int at, int words)
{
    for (int i = at; says_place(word) && i < at + words && c->places < CMDLINE_PLACES; i++)
        c->place[c->places++] = i;
}

void cmdline_scan(struct cmdline *c, int argc, char *const argv[])
{
    int i = 1, dashes = 0;

    memset(c, 0, sizeof(*c));
    while (i < argc && argv[i][0] == '-' && argv[i][1]) {
        const char *word = argv[i];
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (!strcmp(word, "--")) {
            dashes = 1;
            i++;
            break;
        }
        int words = word[1] == '-' ? scan_long(c, word + 2, next) : scan_short(c, word + 1, next);
        note_place(c, word, i, words);
        i += words;
    }
    c->program = i < argc ? i : argc;
    c->options_end = c->program - dashes;
    for (; i < argc; i++)
        if (!strcmp(argv[i], ":"))
            c->heterogeneous = true;
}

bool cmdline_runs_train(const struct cmdline *c, int argc, char *const argv[])
{
    const char *slash;

    if (c->program + 1 >= argc)
        return false;
    slash = strrchr(argv[c->program], '/');
    return !strcmp(slash ? slash + 1 : argv[c->program], "gtrain") &&
           !strcmp(argv[c->program + 1], "train");
}

int cmdline_count(const char *text)
{
    int count = 0;

    if (!text || !*text)
        return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || count > 100000)
            return 0;
        count = count * 10 + (*text - '0');
    }
    return count;
}
