/* probe.c - see probe.h. All connections are tried at once: a dead node of a thousand costs no more
 * time than one of two. */
#include "probe.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <slurm/slurm.h>

#define PROBE_MS    3000 /* a lost first packet is sent again after 1 s, and after 2 more */
#define SLURMD_PORT 6818 /* Slurm's default, where it names none */

int probe_expand(struct nodes *nodes, const char *list)
{
    /* The type's name has changed between versions of Slurm. */
    __typeof__(slurm_hostlist_create("")) names = list ? slurm_hostlist_create(list) : NULL;
    char *name;
    int rv = 0;

    *nodes = (struct nodes){NULL, 0};
    while (names && rv == 0 && (name = slurm_hostlist_shift(names))) {
        rv = nodes_add(nodes, name);
        free(name);
    }
    if (names)
        slurm_hostlist_destroy(names);
    if (rv < 0)
        nodes_free(nodes);
    return rv;
}

int probe_step(struct nodes *nodes, uint32_t job, uint32_t step)
{
    slurm_step_id_t id = {.job_id = job, .step_het_comp = NO_VAL, .step_id = step};
    slurm_step_layout_t *layout = slurm_job_step_layout_get(&id);
    int rv;

    *nodes = (struct nodes){NULL, 0};
    if (!layout)
        return -1;
    rv = probe_expand(nodes, layout->node_list);
    slurm_job_step_layout_free(layout);
    return rv;
}

char *probe_compress(const struct nodes *nodes)
{
    __typeof__(slurm_hostlist_create("")) names = slurm_hostlist_create(NULL);
    char *list = NULL;

    if (!names)
        return NULL;
    for (int i = 0; i < nodes->count; i++)
        slurm_hostlist_push_host(names, nodes->name[i]);
    list = slurm_hostlist_ranged_string_malloc(names);
    slurm_hostlist_destroy(names);
    return list;
}

/* Nobody else is to blame for these. */
static bool ours(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
           error == EADDRNOTAVAIL;
}

/* Begin to connect. Returns the socket, or -1 if that cannot work, and *good if it is this host's
 * fault: who cannot be asked does not count as silent. */
static int knock(const node_info_t *node, bool *good)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    char port[16];
    int fd, rc;

    if ((node->node_state & NODE_STATE_BASE) == NODE_STATE_DOWN || !node->node_addr)
        return -1;
    snprintf(port, sizeof(port), "%u", node->port ? node->port : SLURMD_PORT);
    rc = getaddrinfo(node->node_addr, port, &hints, &found);
    if (rc) {
        *good = rc != EAI_NONAME;
        return -1;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *good = fd < 0;
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) < 0 && errno != EINPROGRESS) {
        *good = ours(errno);
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* Wait until each has been answered, one way or the other; those that were not keep their socket,
 * those that were have theirs closed, and `good` says how. */
static void await(struct pollfd *p, bool *good, int n)
{
    int64_t deadline = now_ms() + PROBE_MS, left;
    int open = 0;

    for (int i = 0; i < n; i++)
        open += p[i].fd >= 0;
    while (open > 0 && (left = deadline - now_ms()) > 0) {
        if (poll(p, (nfds_t)n, (int)left) <= 0)
            continue;
        for (int i = 0; i < n; i++) {
            int error = 0;
            socklen_t size = sizeof(error);

            if (p[i].fd < 0 || !p[i].revents)
                continue;
            good[i] = getsockopt(p[i].fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && !error;
            close(p[i].fd);
            p[i].fd = -1;
            open--;
        }
    }
}

static const node_info_t *find(const node_info_msg_t *all, const char *name)
{
    for (uint32_t i = 0; i < all->record_count; i++)
        if (all->node_array[i].name && !strcmp(all->node_array[i].name, name))
            return &all->node_array[i];
    return NULL;
}

int probe_silent(struct nodes *silent, const struct nodes *nodes)
{
    size_t n = (size_t)nodes->count;
    struct pollfd *p = calloc(n + 1, sizeof(*p));
    bool *good = calloc(n + 1, sizeof(*good));
    node_info_msg_t *all = NULL;
    int rv = -1;

    *silent = (struct nodes){NULL, 0};
    if (!p || !good || slurm_load_node(0, &all, SHOW_ALL) != SLURM_SUCCESS)
        goto done;
    for (size_t i = 0; i < n; i++) {
        const node_info_t *node = find(all, nodes->name[i]);

        p[i] = (struct pollfd){node ? knock(node, &good[i]) : -1, POLLOUT, 0};
    }
    await(p, good, nodes->count);
    rv = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i].fd >= 0)
            close(p[i].fd);
        if (!good[i] && nodes_add(silent, nodes->name[i]) < 0)
            rv = -1;
    }
done:
    if (all)
        slurm_free_node_info_msg(all);
    free(p);
    free(good);
    return rv;
}
