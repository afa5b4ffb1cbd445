/* directory.h - the addresses of a generation's ranks: one table, out of which each rank gets those
 * that it asks for. Pure.
 *
 * A rank of a large job talks to few others (comm/mesh.h), so that telling all of them to everybody
 * would cost the square of the job: 16,384 addresses for each of 2,048 nodes. Each rank publishes
 * its own once and asks for those it needs, in one question for many; it may ask again later. A
 * question is answered once all ranks have published.
 *
 * Addresses are much alike: each is kept as how it differs from the first that came (similar.h),
 * and goes out so, in however many answers, as often as it is asked for. */
#ifndef GTRAIN_LAUNCH_DIRECTORY_H
#define GTRAIN_LAUNCH_DIRECTORY_H

#include "base/err.h"
#include "launch/message.h"

struct directory {
    int room, world, published;
    size_t bytes; /* of all, as they are kept */
    struct directory_rank {
        struct wire_frame *address; /* coded; NULL: not published */
        struct message_ask ask;     /* not answered yet, if asks; wanted is owned */
        int asks;
    } * ranks;
    void *first; /* that the others differ from */
    size_t first_bytes;
};

int directory_open(struct directory *d, int room, struct err *err);
void directory_close(struct directory *d);
/* A generation of that many ranks, nothing is known of them. */
void directory_begin(struct directory *d, int world);

/* 1 if all have published now and had not before, 0 if not yet (or the rank had), -1: out of
 * memory, or the addresses are too long for one answer. */
int directory_publish(struct directory *d, uint32_t rank, const void *address, size_t bytes,
                      struct err *err);
/* Keeps the question, in the place of an older one of the rank; takes ask->wanted over. -1: a rank
 * that is not there. */
int directory_ask(struct directory *d, struct message_ask *ask);
/* The answer to the rank's question, once all have published; NULL: none is due, or (failed) out of
 * memory. */
struct wire_frame *directory_answer(struct directory *d, uint32_t rank, int *failed);

#endif
