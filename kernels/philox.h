/* philox.h - Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):
 * random numbers as a pure function of a counter and a key, so that any part of a tensor can be
 * made anywhere, in any order. */
#ifndef GTRAIN_PHILOX_H
#define GTRAIN_PHILOX_H

#include <stdint.h>

/* Four random words for (counter, key). */
void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Two independent normal numbers (mean 0, deviation 1) for (seed, tensor, pair): the elements
 * 2*pair and 2*pair + 1 of the tensor. key = seed, counter = (pair, tensor), low words first. Of
 * the four words, the first two make a uniform number in (0, 1], the others one in [0, 1), of 53
 * bits each; Box and Muller (1958) turn them into out[0] (cosine) and out[1] (sine). */
void philox_normal_pair(uint64_t seed, uint64_t tensor, uint64_t pair, double out[2]);

#endif
