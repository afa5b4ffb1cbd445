/* comm_cases.h - what a comm must do, whatever its backend. test_comm_local and test_comm_ucx run
 * these with ranks as threads, test_comm_ucx as processes too.
 *
 * A case is a function that every rank calls. It returns 0, or -1 with what was wrong: cmocka's
 * assertions may only be used by the main thread. */
#ifndef GTRAIN_TEST_COMM_CASES_H
#define GTRAIN_TEST_COMM_CASES_H

#include "base/err.h"
#include "comm/comm.h"
#include "comm/mesh.h"
#include "kernels.h"

struct rank {
    int rank, world;
    struct comm *comm;
    struct kernels *k;
    struct kstream *stream;
    struct err err;
};

typedef int (*comm_case)(struct rank *r);

/* How the ranks of a world come by their comm. */
struct backend {
    void *(*world_open)(int world); /* what they share */
    void (*world_close)(void *shared);
    struct comm *(*join)(void *shared, struct kernels *k, int rank, int world, struct err *err);
    uint64_t deferred; /* seed of the deferring device; 0: the plain one */
};

/* Runs the case on `world` threads and returns 0, or -1 after printing the ranks' errors. */
int run_threads(const struct backend *backend, int world, comm_case run);

/* One rank's life: kernels, stream, comm, the case, barrier, close. 0, or -1 with r->err. */
int run_rank(const struct backend *backend, void *shared, struct rank *r, comm_case run);

/* Each collective, for counts that divide and that do not, f64, f32 and i32, against sums in rank
 * order made here, bit for bit. */
int case_all_reduce(struct rank *r);
int case_reduce_scatter(struct rank *r);
int case_all_gather(struct rank *r);
int case_all_to_all(struct rank *r);
int case_broadcast(struct rank *r);
int case_host(struct rank *r);
/* Groups along all axes of a 2 x 2 x 2 mesh, at once; world 8. */
int case_mesh_groups(struct rank *r);
/* Two streams, one after the other without a sync between: scratch must not be shared too early. */
int case_two_streams(struct rank *r);
/* Random messages, fixed seed, several under way. */
int case_soak(struct rank *r);

/* Failures; each returns 0 if it came out as it must. World 2 or more. */
int case_size_mismatch(struct rank *r);
int case_deadline(struct rank *r);
int case_abort(struct rank *r);
int case_peer_closes(struct rank *r);
int case_bad_arguments(struct rank *r);

#endif
