/* parity_group.c - the groups that a commit record names. Pure. See parity.h. */
#include <stdlib.h>
#include <string.h>

#include "parity.h"
#include "record.h"

static int group_of(const struct record *r, int rank, struct parity_group *out, struct err *err)
{
    const struct record_parity *own = &r->ranks[rank].parity;
    int64_t longest = 0;
    int members = 0;
    if (!own->path)
        return err_set(err, "rank %d has no parity", rank);
    for (int i = 0; i < r->n; i++) {
        const struct record_parity *p = &r->ranks[i].parity;
        if (!p->path || p->group != own->group)
            continue;
        members++;
        out->ranks[p->member] = i; /* the record has been checked */
        if (r->ranks[i].bytes > longest)
            longest = r->ranks[i].bytes;
    }
    out->member = own->member;
    return parity_code_make(&out->code, members, own->keeps, longest, err);
}

int parity_group_of(const struct ckpt_decision *d, int rank, struct parity_group *out,
                    struct err *err)
{
    struct record r;
    if (record_parse(d->record, (int64_t)strlen(d->record), RECORD_COMMIT, &r, err))
        return -1;
    int rv = rank >= 0 && rank < r.n ? group_of(&r, rank, out, err)
                                     : err_set(err, "rank %d of %d", rank, r.n);
    record_free(&r);
    return rv;
}

bool parity_choose(const struct ckpt_decision *d, const struct parity_group *g, int stripe,
                   int *elements, int *members)
{
    int data = parity_data(&g->code), n = 0;
    for (int m = 0; m < g->code.members && n < data; m++) {
        int element = parity_element(&g->code, m, stripe), rank = g->ranks[m];
        if (element < data ? !d->places[rank].node || d->places[rank].replica
                           : !d->parities[rank].node)
            continue;
        members[n] = m;
        elements[n++] = element;
    }
    return n == data;
}
