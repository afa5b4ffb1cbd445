/* snapshot.c - see snapshot.h. */
#include "train/snapshot.h"

int snapshot_open(struct snapshot *s, struct kernels *k, struct err *err)
{
    *s = (struct snapshot){.k = k};
    s->stream = kernels_stream_open(k, err);
    s->begun = s->stream ? kernels_event_open(k, err) : NULL;
    s->copied = s->begun ? kernels_event_open(k, err) : NULL;
    if (s->copied)
        return 0;
    snapshot_close(s);
    return -1;
}

void snapshot_begin(struct snapshot *s, struct kstream *stream)
{
    kernels_event_record(s->k, s->begun, stream);
    kernels_event_wait(s->k, s->stream, s->begun);
}

void snapshot_copy(struct snapshot *s, struct kbuf buf, void *host)
{
    KSUBMIT(s->k, s->stream, DOWNLOAD, download, .in = buf, .host = host);
}

void snapshot_join(struct snapshot *s, struct kstream *stream)
{
    kernels_event_record(s->k, s->copied, s->stream);
    kernels_event_wait(s->k, stream, s->copied);
}

int snapshot_sync(struct snapshot *s, int64_t deadline_ms, struct err *err)
{
    return kernels_stream_sync(s->k, s->stream, deadline_ms, err);
}

void snapshot_close(struct snapshot *s)
{
    if (s->copied)
        kernels_event_close(s->k, s->copied);
    if (s->begun)
        kernels_event_close(s->k, s->begun);
    if (s->stream)
        kernels_stream_close(s->k, s->stream);
    *s = (struct snapshot){0};
}
