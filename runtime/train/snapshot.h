/* snapshot.h - copies of the state's tensors to the host, beside the step that follows.
 *
 * Weights and moments stay as they are from one optimizer to the next, so the copy of a step's
 * state runs while the next step goes forward and backward, on a stream of its own. Two events keep
 * it right: the copies wait for all that was submitted before snapshot_begin, and what is submitted
 * after snapshot_join waits for the copies. */
#ifndef GTRAIN_SNAPSHOT_H
#define GTRAIN_SNAPSHOT_H

#include "kernels.h"

struct snapshot {
    struct kernels *k;
    struct kstream *stream;
    struct kevent *begun, *copied;
};

int snapshot_open(struct snapshot *s, struct kernels *k, struct err *err);

/* From now on copies are of the state that `stream` has made so far. */
void snapshot_begin(struct snapshot *s, struct kstream *stream);

/* Submit the copy of one buffer. From any thread; host as in kop_download, until snapshot_sync. */
void snapshot_copy(struct snapshot *s, struct kbuf buf, void *host);

/* All copies are submitted: what comes on `stream` may change the buffers. */
void snapshot_join(struct snapshot *s, struct kstream *stream);

/* Wait until the bytes are here. From any thread. */
int snapshot_sync(struct snapshot *s, int64_t deadline_ms, struct err *err);

/* After a snapshot_sync that covers all copies. */
void snapshot_close(struct snapshot *s);

#endif
