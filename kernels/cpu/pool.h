/* pool.h - persistent threads that share the tiles of one piece of work.
 *
 * Who computes a tile is left to chance; what a tile is, is not: callers derive tiles from shapes
 * alone, so results do not depend on the number of threads. */
#ifndef GTRAIN_CPU_POOL_H
#define GTRAIN_CPU_POOL_H

#include <stdint.h>

#include "base/err.h"

struct pool;

/* One tile of the work; thread is 0 (the caller) .. threads - 1, for scratch memory of its own. */
typedef void pool_fn(void *arg, int64_t tile, int thread);

/* threads >= 1 counts the caller: a pool of 1 starts no thread. NULL with err set on failure. */
struct pool *pool_open(int threads, struct err *err);
void pool_close(struct pool *pool);
int pool_threads(const struct pool *pool);

/* Run fn for tiles 0 .. tiles - 1 and return when all are done. work_ns: about what the whole work
 * costs one thread; it decides only how many threads are woken. One call at a time. */
void pool_run(struct pool *pool, int64_t tiles, double work_ns, pool_fn *fn, void *arg);

#endif
