/* blocks.h - the data of a rank's file, put together in memory from the tensors where they stand.
 *
 * Block by block, as the checksums are: so that a block is read once, its checksum is made on the
 * way, and threads can take different blocks. */
#ifndef GTRAIN_CKPT_BLOCKS_H
#define GTRAIN_CKPT_BLOCKS_H

#include "layout.h"

/* Block `block` (of CKPT_CRC_BLOCK bytes, the last one shorter) of the data: from[i] are tensor i's
 * bytes. The gaps between tensors must be zero already. Returns the block's CRC32C. */
uint32_t blocks_make(const struct layout *l, const void *const *from, int64_t block,
                     unsigned char *data);

#endif
