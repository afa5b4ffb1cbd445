/* thin.h - a writer that never has a whole copy of the state: some tensors at a time go through a
 * small buffer into the file. For tools whose state lies in other files, not in memory (alone.h):
 * what copy_out brings must not change until the file is finished. */
#ifndef GTRAIN_CKPT_THIN_H
#define GTRAIN_CKPT_THIN_H

#include "crc.h"
#include "engine.h"

int ckpt_open_thin(struct ckpt **out, const struct ckpt_options *options,
                   const struct ckpt_tensor *tensors, int n_tensors, const struct ckpt_io *io,
                   struct err *err);

/* Begin to write; ckpt_wait and ckpt_finished as after any save. copy_out and flush are called in
 * the writer's thread. */
int thin_save(struct ckpt *c, const struct ckpt_position *position, struct err *err);

/* The writer's: all data into fd, their checksums into the stream. */
int thin_write(struct ckpt *c, int fd, struct crc_stream *stream, struct err *err);

/* Bytes of the buffer: header, and the largest tensor or several small ones. Pure. */
int64_t thin_buffer_bytes(const struct layout *layout);

#endif
