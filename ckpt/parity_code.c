/* parity_code.c - which element of which stripe is what, and the arithmetic. See parity.h. */
#include <string.h>

#include <isa-l/erasure_code.h>

#include "layout.h"
#include "parity.h"

/* From where the loss of half a grain in each segment and header is nothing. */
#define LARGE_BYTES (INT64_C(16) << 20)

static int64_t round_up(int64_t v, int64_t grain)
{
    return (v + grain - 1) / grain * grain;
}

int64_t parity_data_at(const struct parity_code *code, int64_t header_bytes)
{
    return round_up(header_bytes, code->grain);
}

int parity_code_make(struct parity_code *out, int members, int keeps, int64_t longest,
                     struct err *err)
{
    if (keeps < 1 || keeps > PARITY_KEEPS_MAX || members <= keeps || members > PARITY_MEMBERS_MAX)
        return err_set(err, "a group of %d that keeps %d: a group has up to %d, and keeps 1 to %d",
                       members, keeps, PARITY_MEMBERS_MAX, PARITY_KEEPS_MAX);
    if (longest < 1 || longest > INT64_MAX / 2)
        return err_set(err, "parity of files of %lld bytes", (long long)longest);
    int64_t data = members - keeps, grain = longest < LARGE_BYTES ? CKPT_ALIGN : PARITY_CHUNK;
    /* our headers are multiples of 4096 already */
    int64_t all = grain == CKPT_ALIGN ? longest : longest + grain;
    int64_t segment = round_up((all + data - 1) / data, grain);
    *out = (struct parity_code){.members = members,
                                .keeps = keeps,
                                .grain = grain,
                                .segment = segment,
                                .chunks = (segment + PARITY_CHUNK - 1) / PARITY_CHUNK};
    return 0;
}

int parity_data(const struct parity_code *code)
{
    return code->members - code->keeps;
}

int64_t parity_late(const struct parity_code *code, int64_t header_bytes)
{
    int64_t n = (header_bytes + PARITY_CHUNK - 1) / PARITY_CHUNK;
    return n < 1 ? 1 : n < code->chunks ? n : code->chunks;
}

int64_t parity_chunk(const struct parity_code *code, int64_t late, int64_t turn)
{
    return (late + turn) % code->chunks;
}

int64_t parity_chunk_bytes(const struct parity_code *code, int64_t chunk)
{
    int64_t left = code->segment - chunk * PARITY_CHUNK;
    return left < PARITY_CHUNK ? left : PARITY_CHUNK;
}

/* The first `keeps` members from the stripe's own on hold its parities, those behind them data. */
int parity_element(const struct parity_code *code, int member, int stripe)
{
    int at = (member - stripe + code->members) % code->members;
    return at < code->keeps ? parity_data(code) + at : at - code->keeps;
}

int parity_stripe(const struct parity_code *code, int member, int element)
{
    int data = parity_data(code), at = element < data ? element + code->keeps : element - data;
    return (member - at + code->members) % code->members;
}

int parity_wants(const struct parity_code *code, int holder, int which, int source)
{
    int stripe = parity_stripe(code, holder, parity_data(code) + which);
    int element = parity_element(code, source, stripe);
    return element < parity_data(code) ? element : -1;
}

bool parity_suffices(const struct parity_code *code, const bool *files, const bool *parities)
{
    int data = parity_data(code);
    for (int stripe = 0; stripe < code->members; stripe++) {
        int there = 0;
        bool lost = false; /* a segment, so the others are needed */
        for (int m = 0; m < code->members; m++) {
            bool is_data = parity_element(code, m, stripe) < data;
            there += is_data ? files[m] : parities[m];
            lost |= is_data && !files[m];
        }
        if (lost && there < data)
            return false;
    }
    return true;
}

unsigned char parity_weight(const struct parity_code *code, int element, int segment)
{
    if (element < parity_data(code))
        return element == segment;
    return code->keeps == 1 ? 1 : gf_inv((unsigned char)(element ^ segment));
}

bool parity_factors(const struct parity_code *code, int wanted, const int *elements,
                    unsigned char *factor)
{
    enum { MOST = PARITY_MEMBERS_MAX };
    int data = parity_data(code);
    unsigned char matrix[MOST * MOST], inverse[MOST * MOST];
    for (int i = 0; i < data; i++) {
        if (elements[i] < 0 || elements[i] >= code->members)
            return false;
        for (int k = 0; k < data; k++)
            matrix[i * data + k] = parity_weight(code, elements[i], k);
    }
    if (gf_invert_matrix(matrix, inverse, data))
        return false;
    for (int i = 0; i < data; i++) {
        factor[i] = 0;
        for (int k = 0; k < data; k++)
            factor[i] ^= gf_mul(parity_weight(code, wanted, k), inverse[k * data + i]);
    }
    return true;
}

void parity_add(unsigned char factor, const void *from, void *sum, size_t n)
{
    unsigned char table[32], *to = sum;
    if (!factor)
        return;
    ec_init_tables(1, 1, &factor, table);
    ec_encode_data_update((int)n, 1, 1, 0, table, (unsigned char *)from, &to);
}
