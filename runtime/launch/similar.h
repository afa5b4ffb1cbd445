/* similar.h - a blob in a message, told by how it differs from the one before it.
 *
 * Where all ranks' addresses go to all nodes, the bytes grow with the square of the job: 16,384
 * addresses of 300 bytes are 10 GB for 2,048 nodes. They are much alike (same devices, same flags;
 * ports and identities differ), so each is written as stretches that are equal at the same offset
 * in another, the one before it or the first (directory.h), and bytes that are not.
 *
 * Form: length, then pairs until it is reached: so many bytes as before, so many new ones, which
 * follow. Numbers are base 128, low digits first, the top bit set on all but the last. */
#ifndef GTRAIN_LAUNCH_SIMILAR_H
#define GTRAIN_LAUNCH_SIMILAR_H

#include "launch/wire.h"

enum { SIMILAR_MORE_BYTES = 8 }; /* a blob takes at most so many more than it has */

/* before: the blob in front of it, before_bytes 0 for the first. */
void similar_put(struct wire_frame *f, const void *blob, size_t bytes, const void *before,
                 size_t before_bytes);

/* malloc'ed, of at most max bytes, with a NUL behind. NULL with r->bad when it makes no sense or
 * memory is out. */
void *similar_get(struct wire_reader *r, size_t max, const void *before, size_t before_bytes,
                  size_t *bytes);

#endif
