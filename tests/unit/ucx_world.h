/* ucx_world.h - the exchange of UCX addresses among ranks that are threads or forked processes. */
#ifndef GTRAIN_TEST_UCX_WORLD_H
#define GTRAIN_TEST_UCX_WORLD_H

#include "comm_cases.h"

/* Loopback: no test may depend on the machine's network. */
extern const struct backend ucx_backend;
/* Ranks that know no address but their own, and look for the others'. */
extern const struct backend ucx_find_backend;

/* Runs the case in `world` forked processes, which must not have used UCX or threads before. Each
 * has at most `patience_s` seconds. killed: a rank that is expected to die by SIGKILL, or -1. 0, or
 * -1 after printing the ranks' errors. */
int run_processes(int world, comm_case run, unsigned patience_s, int killed);

#endif
