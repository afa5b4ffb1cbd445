/* image.h - a file as it stands in the writer's memory, for who sends it elsewhere while it is
 * written.
 *
 * The data are complete when the copy of the state is over, and stay as they are until the next
 * copy: so they may be sent at once. The header holds their checksums; it stands in memory when the
 * file is durable, and not before. Who sends it last, and only then, can be sure that what is made
 * of the file elsewhere is never complete where the file itself is not. */
#ifndef GTRAIN_CKPT_IMAGE_H
#define GTRAIN_CKPT_IMAGE_H

#include "ckpt.h"

struct ckpt_image {
    const unsigned char *bytes; /* of the file: header, then data */
    int64_t header_bytes, total;
    struct ckpt_position position;
};

/* From now on each file's image is shown to `ready`, once its data are complete, in the writer's
 * thread. It must not block, nor call any function of the ckpt. Where it returns true the next copy
 * begins only after ckpt_image_release. NULL: no more are shown. */
void ckpt_image_share(struct ckpt *c, bool (*ready)(void *arg, const struct ckpt_image *image),
                      void *arg);

/* Of the image that is kept, in whatever thread. 1: the file is durable, and this its digest; 0:
 * not by the deadline (a ckpt_clock_ms() point). -1 with err: it will not be. */
int ckpt_image_wait(struct ckpt *c, int64_t deadline_ms, uint32_t *digest, struct err *err);

void ckpt_image_release(struct ckpt *c);

#endif
