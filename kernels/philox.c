/* philox.c - see philox.h. The constants are those of the paper's section 3.3. */
#include "philox.h"

#include <math.h>

enum { ROUNDS = 10 };
static const uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
static const uint32_t weyl[2] = {0x9E3779B9u, 0xBB67AE85u};

void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)multiplier[0] * c0, p1 = (uint64_t)multiplier[1] * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += weyl[0];
        k1 += weyl[1];
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void philox_normal_pair(uint64_t seed, uint64_t tensor, uint64_t pair, double out[2])
{
    const double two_to_minus_53 = 0x1p-53, two_pi = 6.283185307179586476925;
    uint32_t words[4];
    philox4x32_10((uint32_t[]){(uint32_t)pair, (uint32_t)(pair >> 32), (uint32_t)tensor,
                               (uint32_t)(tensor >> 32)},
                  (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, words);
    uint64_t first = words[0] | (uint64_t)words[1] << 32;
    uint64_t second = words[2] | (uint64_t)words[3] << 32;
    double u1 = (double)((first >> 11) + 1) * two_to_minus_53;
    double u2 = (double)(second >> 11) * two_to_minus_53;
    double radius = sqrt(-2.0 * log(u1));
    out[0] = radius * cos(two_pi * u2);
    out[1] = radius * sin(two_pi * u2);
}
