/* session_connect.c - see session_connect.h.
 *
 * An agent's launch has a directory (launch/directory.h): a rank asks it once for the addresses of
 * those it will talk to in any case (mesh_peers), and for another's when it has the first message
 * for it, as its partner or while a checkpoint is brought into another layout. Other launches know
 * one exchange of everybody's address, and no more afterwards. */
#include "train/session_connect.h"

#include "base/clock.h"
#include "comm/mesh.h"

#include <stdlib.h>
#include <string.h>

/* All ranks must have started by then: slow nodes, cold file systems. */
enum { ADDRESSES_MS = 300000 };

/* By rank; NULL: not known. */
struct table {
    void **address;
    size_t *bytes;
    int world;
};

static int table_open(struct table *t, int world, struct err *err)
{
    *t = (struct table){.world = world};
    t->address = calloc((size_t)world, sizeof *t->address);
    t->bytes = calloc((size_t)world, sizeof *t->bytes);
    return t->address && t->bytes ? 0 : err_set(err, "no memory for %d addresses", world);
}

static void table_close(struct table *t)
{
    for (int i = 0; t->address && i < t->world; i++)
        free(t->address[i]);
    free(t->address);
    free(t->bytes);
}

static int find(void *launch, int rank, void **address, size_t *bytes, struct err *err)
{
    return launch_find(launch, &rank, 1, address, bytes, clock_ms() + ADDRESSES_MS, err);
}

/* Those of ranks[] into the table. */
static int find_some(struct table *t, struct launch *launch, const int *ranks, int n,
                     struct err *err)
{
    struct table found;
    int rv = table_open(&found, n ? n : 1, err);
    if (!rv)
        rv = launch_find(launch, ranks, n, found.address, found.bytes, clock_ms() + ADDRESSES_MS,
                         err);
    for (int i = 0; !rv && i < n; i++) {
        t->address[ranks[i]] = found.address[i];
        t->bytes[ranks[i]] = found.bytes[i];
        found.address[i] = NULL;
    }
    table_close(&found);
    return rv;
}

static int find_peers(struct table *t, struct launch *launch, const struct plan *plan, int rank,
                      struct err *err)
{
    const struct plan_parallel *p = &plan->parallel;
    const int degree[MESH_AXES] = {[MESH_TENSOR] = p->tensor,
                                   [MESH_CONTEXT] = p->context,
                                   [MESH_EXPERT] = p->expert,
                                   [MESH_PIPELINE] = p->pipeline,
                                   [MESH_DATA] = p->data};
    struct mesh mesh;
    if (mesh_open(&mesh, degree, rank, err))
        return -1;
    int *peers = calloc((size_t)mesh.world, sizeof *peers), rv;
    if (peers)
        rv = find_some(t, launch, peers, mesh_peers(&mesh, peers), err);
    else
        rv = err_set(err, "no memory for %d ranks", mesh.world);
    free(peers);
    mesh_close(&mesh);
    return rv;
}

static int use_directory(struct table *t, struct comm *comm, struct launch *launch,
                         const struct launch_identity *id, const struct plan *plan,
                         const void *address, size_t bytes, struct err *err)
{
    struct comm_directory directory = {find, launch};
    t->address[id->rank] = malloc(bytes + 1);
    if (!t->address[id->rank])
        return err_set(err, "no memory for an address");
    memcpy(t->address[id->rank], address, bytes);
    t->bytes[id->rank] = bytes;
    comm_set_directory(comm, &directory);
    if (launch_publish(launch, address, bytes, err))
        return -1;
    return find_peers(t, launch, plan, id->rank, err);
}

int session_connect(struct comm *comm, struct launch *launch, const struct launch_identity *id,
                    const struct plan *plan, const void *address, size_t bytes, struct err *err)
{
    struct table t;
    int rv = table_open(&t, id->world, err);
    if (!rv && id->kind == LAUNCH_AGENT)
        rv = use_directory(&t, comm, launch, id, plan, address, bytes, err);
    else if (!rv)
        rv = launch_exchange(launch, address, bytes, t.address, t.bytes, clock_ms() + ADDRESSES_MS,
                             err);
    if (!rv)
        rv = comm_connect_ucx(comm, t.address, t.bytes, err);
    table_close(&t);
    return rv;
}
