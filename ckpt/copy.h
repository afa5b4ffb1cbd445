/* copy.h - a copy of another rank's files on this node, so that its node may be lost.
 *
 * Who owns a file sends it in pieces, while it is written there: the data first, and, when it is
 * durable, the header, which holds their checksums (image.h). So a copy is complete only where its
 * original is. Here the pieces are written under the same rules as files of one's own: a half under
 * a temporary name, every byte checked against the checksums in the header and the digest its owner
 * gave, fsync, rename, fsync of the folder. The copy has the name of the original, so whoever looks
 * for the file (ckpt_decide) finds it here as well. Where both nodes have the same folder it is
 * there already, and nothing is written.
 *
 * A thread writes. One a rank. One thread may put while another asks what is finished, and waits.
 * Functions return 0, or -1 with err set. */
#ifndef GTRAIN_CKPT_COPY_H
#define GTRAIN_CKPT_COPY_H

#include <stdint.h>

#include "base/err.h"

struct ckpt_copy;

struct ckpt_copy_options {
    const char *dir; /* as in ckpt_options: this node's folder, open */
    const char *run_id;
    int rank; /* whose files */
    uint32_t epoch, generation;
};

int ckpt_copy_open(struct ckpt_copy **out, const struct ckpt_copy_options *options,
                   struct err *err);

/* n bytes of the file of `step`, which is `total` bytes long, `header` of them before the data. */
struct ckpt_copy_piece {
    int64_t step, header, total, at, n;
    uint32_t digest; /* of the file, as in its record; with the header's pieces */
    void *data;      /* malloc'ed */
};

/* The order of pieces. The first begins at `header`; where the one begins that follows one that
 * ends at `end`, -1: none does; and where a piece that begins at `at` must end at the latest. Pure.
 */
int64_t ckpt_copy_next(int64_t header, int64_t total, int64_t end);
int64_t ckpt_copy_end(int64_t header, int64_t total, int64_t at);

/* The next piece; a file begins where the one before has ended. Takes data over, also on failure.
 * Waits while the disk is several pieces behind. */
int ckpt_copy_put(struct ckpt_copy *c, const struct ckpt_copy_piece *piece, struct err *err);

/* The newest step whose copy is complete and durable, -1 if none. A failed write is an error, here,
 * once; what comes after it is not written. Never blocks. */
int ckpt_copy_finished(struct ckpt_copy *c, int64_t *step, struct err *err);

/* Until all that was put is written, or failed, or the deadline (a clock_ms() point). */
int ckpt_copy_wait(struct ckpt_copy *c, int64_t deadline_ms, struct err *err);

/* A half is unlinked. */
void ckpt_copy_close(struct ckpt_copy *c);

#endif
