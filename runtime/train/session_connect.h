/* session_connect.h - from a launch to a connected comm: ranks learn each other's addresses. */
#ifndef GTRAIN_SESSION_CONNECT_H
#define GTRAIN_SESSION_CONNECT_H

#include "comm/comm.h"
#include "launch/client.h"
#include "plan/plan.h"

/* address: this rank's, from comm_open_ucx. The launch must outlive the comm. */
int session_connect(struct comm *comm, struct launch *launch, const struct launch_identity *id,
                    const struct plan *plan, const void *address, size_t bytes, struct err *err);

#endif
