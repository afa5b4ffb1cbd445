/* side.c - see side.h. */
#include "train/side.h"

#include <stdlib.h>
#include <string.h>

enum {
    SIDE_ADDRESS_MAX_BYTES = 1 << 20, /* of a rank in the network */
    SIDE_TAG = (3 << 20) + 9,         /* beside those of reshard, rebuild */
};

/* By rank; NULL: not known. */
struct table {
    void **address;
    size_t *bytes;
};

static void keep(struct table *t, int rank, void *address, size_t bytes)
{
    free(t->address[rank]); /* of two nodes each is both to the other */
    t->address[rank] = address;
    t->bytes[rank] = bytes;
}

/* One round: lengths, then addresses. */
static int swap(struct table *t, const struct side *side, struct comm *main, int to, int from,
                struct err *err)
{
    uint64_t mine = side->address_bytes, theirs = 0;
    if (comm_host_exchange(main, &mine, sizeof mine, to, &theirs, sizeof theirs, from, SIDE_TAG,
                           err))
        return -1;
    if (theirs > SIDE_ADDRESS_MAX_BYTES)
        return err_set(err, "rank %d has an address of %llu bytes", from,
                       (unsigned long long)theirs);
    void *address = malloc(theirs + 1);
    if (!address)
        return err_set(err, "no memory for an address");
    if (comm_host_exchange(main, side->address, mine, to, address, theirs, from, SIDE_TAG, err)) {
        free(address);
        return -1;
    }
    if (from < 0)
        free(address);
    else
        keep(t, from, address, theirs);
    return 0;
}

static int fill(struct table *t, const struct side *side, struct comm *main, const int *to,
                const int *from, int n, struct err *err)
{
    for (int i = 0; i < n; i++)
        if (swap(t, side, main, to[i], from[i], err))
            return -1;
    void *own = malloc(side->address_bytes + 1);
    if (!own)
        return err_set(err, "no memory for an address");
    memcpy(own, side->address, side->address_bytes);
    keep(t, comm_rank(main), own, side->address_bytes);
    return 0;
}

int side_connect(struct side *side, struct comm *main, const int *to, const int *from, int n,
                 int64_t timeout_ms, struct err *err)
{
    int world = comm_world(main), rv = 0;
    comm_set_timeout_ms(side->comm, timeout_ms);
    if (!side->address || !n)
        return 0;
    struct table t = {.address = calloc((size_t)world, sizeof *t.address),
                      .bytes = calloc((size_t)world, sizeof *t.bytes)};
    if (!t.address || !t.bytes)
        rv = err_set(err, "no memory for %d addresses", world);
    if (!rv)
        rv = fill(&t, side, main, to, from, n, err);
    if (!rv)
        rv = comm_connect_ucx(side->comm, t.address, t.bytes, err);
    for (int i = 0; t.address && i < world; i++)
        free(t.address[i]);
    free(t.address);
    free(t.bytes);
    return rv;
}

struct comm *side_take(struct side *side)
{
    struct comm *comm = side->comm;
    *side = (struct side){.comm = NULL};
    return comm;
}

void side_close(struct side *side)
{
    if (side->comm)
        comm_close(side->comm);
    *side = (struct side){.comm = NULL};
}
