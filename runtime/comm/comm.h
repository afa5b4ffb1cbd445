/* comm.h - the mesh of ranks: messages and collectives behind one table.
 *
 * Two backends: `local` (ranks are threads of one process) and `ucx` (processes and nodes). Both
 * give point-to-point messages; the collectives in collective.c stand on those and add in rank
 * order, so that every backend gives the same bits. A GPU backend may bring collectives of its own.
 *
 * One comm belongs to one rank and is used by one thread. Every wait has a deadline. A failure (a
 * peer died, a deadline passed, comm_abort) is final for the comm: every later call returns -1 with
 * the first error's text, and nobody hangs. Once a call has said so, buffers of messages that were
 * under way are not touched any more and may be freed, before comm_close too. Without a failure
 * they must not be: comm_abort first. Bad arguments are an error, but not a failure.
 *
 * A send may wait until its message is received: two ranks that both send and wait, then receive,
 * wait for each other.
 *
 * Buffers are device memory. A call with a stream starts when that stream has reached it: the CPU
 * backends sync the stream, then move bytes. What is submitted to the stream afterwards sees the
 * result. */
#ifndef GTRAIN_COMM_H
#define GTRAIN_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels.h"

struct comm;
struct comm_request;

/* An ordered set of ranks, the same on all members. `id` is unique per set of simultaneous groups
 * (mesh.h numbers them) and keeps their messages apart. */
struct comm_group {
    int id; /* 0..255; mesh.h uses 0..6 */
    int size;
    int me;           /* my index in ranks */
    const int *ranks; /* size world ranks, ascending; owned by whoever made the group */
};

enum comm_op { COMM_SUM, COMM_MAX };

int comm_rank(const struct comm *c);
int comm_world(const struct comm *c);

/* Has it failed (a peer died, a deadline passed, comm_abort)? Then every call returns -1. */
bool comm_failed(const struct comm *c);

/* How long one wait inside a call may take, from its start. Default 600 s. */
void comm_set_timeout_ms(struct comm *c, int64_t timeout_ms);

/* ---- point to point ---- */

/* Start. The buffer stays as it is (send) or untouched (receive) until comm_wait on *req. Messages
 * match by (peer, tag) in the order they were started. Counts and dtypes must agree on both sides;
 * a message of another size is an error. tag < 2^24. Returns -1 with err if it cannot start. */
int comm_send(struct comm *c, struct kstream *stream, struct kbuf buf, int peer, uint32_t tag,
              struct comm_request **req, struct err *err);
int comm_recv(struct comm *c, struct kstream *stream, struct kbuf buf, int peer, uint32_t tag,
              struct comm_request **req, struct err *err);

/* Wait until it is done, free it, set *req to NULL. A NULL *req is done. */
int comm_wait(struct comm *c, struct comm_request **req, struct err *err);

/* ---- collectives: all members call, in the same order ---- */

/* In place, rank order (slices are exchanged, added 0..n-1, gathered). */
int comm_all_reduce(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf buf, enum comm_op op, struct err *err);
/* in.count * size == out.count; member i's part is at i * in.count. */
int comm_all_gather(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf out, struct kbuf in, struct err *err);
/* out.count * size == in.count; member i gets the sum, in rank order, of everyone's part i. */
int comm_reduce_scatter(struct comm *c, const struct comm_group *group, struct kstream *stream,
                        struct kbuf out, struct kbuf in, struct err *err);
/* Part i of in goes to member i; part i of out comes from member i. */
int comm_all_to_all(struct comm *c, const struct comm_group *group, struct kstream *stream,
                    struct kbuf out, struct kbuf in, struct err *err);
int comm_broadcast(struct comm *c, const struct comm_group *group, struct kstream *stream,
                   struct kbuf buf, int root_index, struct err *err);

/* Host memory, for small things (decisions, addresses, sizes): out holds size * bytes. */
int comm_host_all_gather(struct comm *c, const struct comm_group *group, const void *in,
                         size_t bytes, void *out, struct err *err);
/* Parts of any size: out[i] is malloc'ed (NUL added behind it), lengths[i] its bytes; the caller
 * frees each. A part over max_bytes is an error on all members. */
int comm_host_all_gatherv(struct comm *c, const struct comm_group *group, const void *in,
                          size_t bytes, size_t max_bytes, void **out, size_t *lengths,
                          struct err *err);
int comm_host_broadcast(struct comm *c, const struct comm_group *group, void *data, size_t bytes,
                        int root_index, struct err *err);
int comm_barrier(struct comm *c, const struct comm_group *group, struct err *err);
/* Bulk host bytes between two ranks, both sides call. */
int comm_host_send(struct comm *c, const void *data, size_t bytes, int peer, uint32_t tag,
                   struct err *err);
int comm_host_recv(struct comm *c, void *data, size_t bytes, int peer, uint32_t tag,
                   struct err *err);
/* Both at once, so that ranks which send in a circle do not wait for each other. A peer of -1: that
 * half is left out. */
int comm_host_exchange(struct comm *c, const void *out, size_t out_bytes, int to, void *in,
                       size_t in_bytes, int from, uint32_t tag, struct err *err);

/* Make all waits, here and now and later, fail with `why`. May be called from another thread. */
void comm_abort(struct comm *c, const char *why);

/* Close. Orderly only after a barrier; otherwise peers see an error. */
void comm_close(struct comm *c);

/* Bytes sent so far, and nanoseconds spent waiting: for metrics. */
void comm_stats(const struct comm *c, uint64_t *bytes_sent, int64_t *wait_ns);

/* ---- backends ---- */

/* The hub that the threads of one process share. Freed by comm_hub_close after all comms. */
struct comm_hub;
struct comm_hub *comm_hub_open(int world, struct err *err);
void comm_hub_close(struct comm_hub *hub);
struct comm *comm_open_local(struct comm_hub *hub, struct kernels *k, int rank, struct err *err);

/* UCX, in two steps: open gives this rank's address (valid until connect returns), which the
 * launcher exchanges; connect takes everybody's, in rank order. NULL: not known, and looked for
 * when a message to or from that rank is begun (comm_set_directory), unless that rank has made
 * itself known meanwhile. `generation` tags every message: one from an older generation is dropped.
 * `listen_address`, where not NULL, is an IPv4 address that chooses the network device. */
struct comm *comm_open_ucx(struct kernels *k, int rank, int world, uint32_t generation,
                           const char *listen_address, const void **address, size_t *address_bytes,
                           struct err *err);
/* Finds a rank's address: malloc'ed, or -1 with err. Called in the thread that uses the comm, which
 * waits. */
struct comm_directory {
    int (*find)(void *arg, int rank, void **address, size_t *bytes, struct err *err);
    void *arg;
};
void comm_set_directory(struct comm *c, const struct comm_directory *directory);
int comm_connect_ucx(struct comm *c, void *const *addresses, const size_t *address_bytes,
                     struct err *err);

#endif
