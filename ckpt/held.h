/* held.h - memory that another process holds (a memfd), mapped and taken for good.
 *
 * A state goes through it at every step, so all its pages are there before the first one, and large
 * ones where the kernel makes them of a memfd (MADV_COLLAPSE, Linux 6.1, whatever the system's
 * setting for shared memory is): with pages of 4 KiB a copy takes a quarter more. */
#ifndef GTRAIN_CKPT_HELD_H
#define GTRAIN_CKPT_HELD_H

#include <stdint.h>

#include "base/err.h"

/* Maps the first bytes of it at a place that suits large pages. */
int held_map(int fd, int64_t bytes, unsigned char **out, struct err *err);
void held_unmap(unsigned char *map, int64_t bytes);

/* Makes it at least that long; what is new has no memory yet. */
int held_lengthen(int fd, int64_t bytes, struct err *err);

/* Memory for all that bytes of it, which are mapped there. */
int held_fill(int fd, unsigned char *map, int64_t bytes, struct err *err);

#endif
