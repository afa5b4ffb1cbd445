/* comm_cases_failures.c - what a comm must say when something goes wrong. See comm_cases.h. */
#include "comm_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/* A deadline that is meant to pass. */
#define SHORT_MS 300

/* The call must have failed, its text must have all of `parts` in it, and the next call must fail
 * with the same text. */
static int expect_failure(struct rank *r, int rv, const char *const *parts, int n)
{
    struct err first = r->err, second = {""};
    if (!rv)
        return err_set(&r->err, "a call that must fail came back with success");
    for (int i = 0; i < n; i++)
        if (!strstr(first.text, parts[i]))
            return err_set(&r->err, "the error \"%s\" does not name \"%s\"", first.text, parts[i]);
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    if (!comm_barrier(r->comm, &g, &second) || strcmp(first.text, second.text))
        return err_set(&r->err, "after \"%s\" the next call said \"%s\"", first.text, second.text);
    return 0;
}

/* Rank 1 sends 40 bytes where rank 0 expects 80, and the other way round with long messages. Who
 * learns first is open; the receiver must name both. */
int case_size_mismatch(struct rank *r)
{
    char data[80] = {0};
    if (r->rank == 1) {
        comm_host_send(r->comm, data, 40, 0, 3, &r->err);
        /* Wait for rank 0's end, as an error or a close. */
        comm_set_timeout_ms(r->comm, PATIENT_MS);
        return comm_host_recv(r->comm, data, 1, 0, 4, &r->err) == -1 ? 0 : -1;
    }
    if (r->rank > 1)
        return 0;
    static const char *const parts[] = {"rank 0", "rank 1", "80 bytes", "40", "host tag 3"};
    return expect_failure(r, comm_host_recv(r->comm, data, 80, 1, 3, &r->err), parts, 5);
}

int case_deadline(struct rank *r)
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks);
    if (comm_barrier(r->comm, &g, &r->err))
        return -1;
    if (r->rank == 0) {
        comm_set_timeout_ms(r->comm, SHORT_MS);
        struct pair buf;
        struct comm_request *req;
        if (pair_open(r, &buf, K_F32, 16) ||
            comm_recv(r->comm, r->stream, buf.dev, 1, 21, &req, &r->err))
            return -1;
        int64_t start_ms = clock_ms();
        int rv = comm_wait(r->comm, &req, &r->err);
        static const char *const parts[] = {"rank 0", "from rank 1", "tag 21", "64 bytes",
                                            "within 300 ms"};
        rv = expect_failure(r, rv, parts, 5);
        free(buf.host.any);
        if (!rv && (req || clock_ms() - start_ms < SHORT_MS))
            rv = err_set(&r->err, "gave up too early, or left the request");
        return rv;
    }
    /* The others hear of it: by the hub, or because rank 0 goes away without a barrier. */
    char byte;
    static const char *const parts[] = {"rank 0"};
    return expect_failure(r, comm_host_recv(r->comm, &byte, 1, 0, 22, &r->err), parts, 1);
}

static void *abort_later(void *comm)
{
    nanosleep(&(struct timespec){0, SHORT_MS * 1000000}, NULL);
    comm_abort(comm, "told to");
    return NULL;
}

int case_abort(struct rank *r)
{
    pthread_t thread;
    char byte;
    if (r->rank == 0 && pthread_create(&thread, NULL, abort_later, r->comm))
        return err_set(&r->err, "no thread");
    /* Nobody sends: all wait until rank 0 is aborted. */
    int peer = r->rank == 0 ? 1 : 0;
    int rv = comm_host_recv(r->comm, &byte, 1, peer, 5, &r->err);
    if (r->rank == 0)
        pthread_join(thread, NULL);
    static const char *const parts[] = {"rank 0", "gave up: told to"};
    return expect_failure(r, rv, parts, r->rank == 0 ? 2 : 1);
}

/* The last rank leaves; the others still talk among themselves, and learn it when they turn to it.
 */
int case_peer_closes(struct rank *r)
{
    int ranks[64], last = r->world - 1;
    struct comm_group all = everybody(r, ranks), rest = {6, last, r->rank, ranks};
    if (comm_barrier(r->comm, &all, &r->err))
        return -1;
    if (r->rank == last)
        return 0;
    for (int i = 0; i < 5; i++)
        if (all_reduce_right(r, &rest, K_F32, 100))
            return -1;
    /* Rank 0 turns to it, when all have come here: its failure is then everybody's. */
    char byte = 0;
    for (int i = 1; i < last; i++)
        if (r->rank == 0 ? comm_host_recv(r->comm, &byte, 1, i, 4, &r->err)
                         : r->rank == i && comm_host_send(r->comm, &byte, 1, 0, 4, &r->err))
            return -1;
    char text[32];
    snprintf(text, sizeof text, "rank %d", last);
    const char *const parts[] = {text, "closed"};
    int peer = r->rank == 0 ? last : 0; /* which never sends that: it fails first */
    return expect_failure(r, comm_host_recv(r->comm, &byte, 1, peer, 5, &r->err), parts, 2);
}

int case_bad_arguments(struct rank *r)
{
    int ranks[64];
    struct comm_group g = everybody(r, ranks), wrong = g;
    struct kbuf none = {0};
    struct comm_request *req;
    struct pair buf;
    if (pair_open(r, &buf, K_F32, 10))
        return -1;
    wrong.id = 256;
    int accepted = 0;
    accepted += !comm_barrier(r->comm, &wrong, &r->err);
    wrong.id = 1;
    wrong.me = r->world;
    accepted += !comm_barrier(r->comm, &wrong, &r->err);
    accepted += !comm_send(r->comm, r->stream, buf.dev, r->world, 1, &req, &r->err);
    accepted += !comm_recv(r->comm, r->stream, buf.dev, 0, 1 << 24, &req, &r->err);
    accepted += !comm_all_gather(r->comm, &g, r->stream, none, buf.dev, &r->err);
    struct kbuf odd = kbuf_slice(buf.dev, 0, (size_t)r->world + 1);
    if (r->world > 1)
        accepted += !comm_all_to_all(r->comm, &g, r->stream, odd, odd, &r->err);
    accepted += !comm_broadcast(r->comm, &g, r->stream, buf.dev, r->world, &r->err);
    pair_close(r, &buf);
    if (accepted)
        return err_set(&r->err, "%d bad calls were taken", accepted);
    /* None of these is the comm's failure: it goes on working. */
    return comm_barrier(r->comm, &g, &r->err);
}
