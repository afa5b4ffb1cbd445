/* relaunch.c - see relaunch.h. */
#include "relaunch.h"

#include <stdlib.h>
#include <string.h>

bool nodes_have(const struct nodes *nodes, const char *name)
{
    for (int i = 0; i < nodes->count; i++)
        if (!strcmp(nodes->name[i], name))
            return true;
    return false;
}

int nodes_add(struct nodes *nodes, const char *name)
{
    char **more;

    if (nodes_have(nodes, name))
        return 0;
    more = reallocarray(nodes->name, (size_t)nodes->count + 1, sizeof(*more));
    if (!more)
        return -1;
    nodes->name = more;
    if (!(more[nodes->count] = strdup(name)))
        return -1;
    nodes->count++;
    return 0;
}

void nodes_free(struct nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++)
        free(nodes->name[i]);
    free(nodes->name);
    *nodes = (struct nodes){NULL, 0};
}

static int pick_from(struct nodes *pick, const struct nodes *from, const struct nodes *gone,
                     int want)
{
    for (int i = 0; i < from->count && pick->count < want; i++)
        if (!nodes_have(gone, from->name[i]) && nodes_add(pick, from->name[i]) < 0)
            return -1;
    return 0;
}

int relaunch_pick(struct nodes *pick, const struct nodes *step, const struct nodes *job,
                  const struct nodes *gone, int want)
{
    *pick = (struct nodes){NULL, 0};
    if (pick_from(pick, step, gone, want) == 0 && pick_from(pick, job, gone, want) == 0)
        return 0;
    nodes_free(pick);
    return -1;
}

static bool says_place(const struct cmdline *c, int word)
{
    for (int i = 0; i < c->places; i++)
        if (c->place[i] == word)
            return true;
    return false;
}

char **relaunch_words(const struct cmdline *c, int argc, char *const argv[], char *const more[])
{
    int extra = 0, n = 0;
    char **words;

    while (more[extra])
        extra++;
    words = calloc((size_t)(argc + extra) + 1, sizeof(*words));
    if (!words)
        return NULL;
    for (int i = 0; i < c->options_end; i++)
        if (!says_place(c, i))
            words[n++] = argv[i];
    for (int i = 0; i < extra; i++)
        words[n++] = more[i];
    for (int i = c->options_end; i < argc; i++)
        words[n++] = argv[i];
    return words;
}
