/* watch.h - what import and export do for the caller's hf_watch. */
#ifndef GTRAIN_HF_WATCH_H
#define GTRAIN_HF_WATCH_H

#include "hf/hf.h"

static inline int watch_stopped(const struct hf_watch *watch, struct err *err)
{
    return watch->stop && atomic_load(watch->stop) ? err_set(err, "interrupted") : 0;
}

static inline void watch_tell(const struct hf_watch *watch, int file, int files, int64_t bytes)
{
    if (watch->tell)
        watch->tell(watch->arg, file, files, bytes);
}

#endif
